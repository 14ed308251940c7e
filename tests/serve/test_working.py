from __future__ import annotations

import asyncio
import threading

import pytest

from citeweave.serve.indexes import Workers


def test_work_is_done_in_threads() -> None:
    async def story() -> tuple[int, str]:
        workers = Workers(2)
        name = await workers.run(lambda: threading.current_thread().name)
        return await workers.run(pow, 2, 5), name

    assert asyncio.run(story())[0] == 32
    assert asyncio.run(story())[1].startswith("citeweave-work")


def test_errors_come_out() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Workers(1).run(lambda: 1 / 0))


def test_abandoned_threads_are_known_until_they_are_done() -> None:
    go, begun = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go.wait(300)

    async def story() -> list[object]:
        workers, seen = Workers(1), list[object]()
        first = asyncio.create_task(workers.run(slow))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(workers.run(seen.append, "never begun"))
        await asyncio.sleep(0)
        seen.append(workers.stuck())
        first.cancel()
        waiting.cancel()
        await asyncio.gather(first, waiting, return_exceptions=True)
        seen.append(workers.stuck())
        seen.append(await workers.run_reserved(lambda: "still answered"))
        go.set()
        seen.append(await workers.run(lambda: "free again"))
        seen.append(workers.stuck())
        return seen

    assert asyncio.run(story()) == [False, True, "still answered", "free again", False]
