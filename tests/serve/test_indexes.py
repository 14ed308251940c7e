"""Indexes that are served: opened once, seen as they change, with a model that comes later; batches and threads."""

import asyncio
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave.core.errors import CiteweaveError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.int8_tiles import has_instruction
from citeweave.search.build import build_index, delete_papers
from citeweave.search.options import IndexOptions
from citeweave.serve import indexes
from citeweave.serve.app import create_app
from citeweave.serve.indexes import BatchedEncoder, Batcher, ServedIndexes, Workers
from citeweave.serve.middleware import Metrics
from citeweave.serve.options import ServeOptions
from citeweave.serve.responses import RefusedError

from .conftest import PATIENT, client_of, wait_for_model

OPTIONS = ServeOptions(device="cpu")
PATIENCE = 300
"""Seconds after which a thread is taken for hung."""


@pytest.fixture
def copy(place: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place.index, tmp_path / "index"))


def served(folder: Path, options: ServeOptions = OPTIONS, **others: Path) -> ServedIndexes:
    return ServedIndexes({"main": folder, **others}, options, Metrics())


def ready(shelf: ServedIndexes) -> Any:
    end = time.monotonic() + 600
    while (opened := shelf.get()).query_encoder is None and not opened.no_encoder:
        assert time.monotonic() < end
        time.sleep(0.01)
    return opened


def search(client: Any, q: str = "models cell", **params: Any) -> Any:
    return client.get("/search", params={"q": q, **params}).json()


def test_a_change_is_seen_by_the_next_request_and_health_is_well_again_once_the_index_is(serve, copy, tmp_path):
    client = serve(copy)
    before = {hit["id"] for hit in search(client, by="words", count=100)["hits"]}
    assert client.get("/health").json()["papers"] == 20 and "p:3" in before
    copy.rename(tmp_path / "moved")
    assert client.get("/health").json()["status"] == "failing"
    (tmp_path / "moved").rename(copy)
    assert client.get("/health").json()["status"] == "ok"
    assert delete_papers(copy, ["p:3"]) == 1
    assert before - {hit["id"] for hit in search(client, by="words", count=100)["hits"]} == {"p:3"}
    health = client.get("/health").json()
    assert (health["status"], health["papers"]) == ("ok", 19) and client.get("/papers/p:3").status_code == 404
    assert sum(client.get("/facets").json()["years"].values()) == 19
    assert 'citeweave_papers{index="main"} 19' in client.get("/metrics").text


@pytest.mark.parametrize("runtime", ["openvino", "int8"])
def test_another_runtime_encodes_the_texts(place, runtime, tmp_path, monkeypatch):
    """The same model, in eight bits too: its revision says so, its vectors are nearly those of the index."""
    if runtime == "int8" and not has_instruction():
        pytest.skip("this processor cannot compute int8")
    if runtime == "openvino":
        pytest.importorskip("openvino", reason="pip install 'citeweave[runtimes]'")
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    with_runtime = ServeOptions(device="cpu", runtime=runtime)
    plain, other = (ready(served(place.index, how)).query_encoder for how in (OPTIONS, with_runtime))
    assert other.encoder.revision == plain.encoder.revision + ("-int8" if runtime == "int8" else "")
    one, two = (reader.encode("models learn from data") for reader in (plain, other))
    assert one @ two / np.linalg.norm(one) / np.linalg.norm(two) > (0.99 if runtime == "int8" else 0.99999)
    assert runtime == "int8" or list((tmp_path / "cache").rglob("model.xml")), "torch read both"


def test_running_requests_do_not_wait_for_a_new_state_and_keep_the_old_one_if_it_cannot_be_opened(copy):
    shelf = served(copy)
    old = shelf.get().index
    delete_papers(copy, ["p:3"])
    with shelf._opening["main"]:  # another thread is opening the new state
        assert shelf.get().index is old
    number = shelf.get().index.number
    assert number != old.number
    (copy / "state.json").write_text("{")
    assert shelf.get().index.number == number


def test_an_answer_says_what_it_waits_for(serve, copy, monkeypatch):
    may_load, load = threading.Event(), indexes.load_query_encoder

    def late(*arguments: Any, **options: Any) -> Any:
        assert may_load.wait(600)
        return load(*arguments, **options)

    monkeypatch.setattr(indexes, "load_query_encoder", late)
    client = serve(copy)
    found = search(client, "zebras")
    assert found["hits"] == [] and found["coming"] == "the model is being loaded" and found["by"] == "words"
    assert search(client, "zebras", by="words")["coming"] == ""
    late_answer = client.get("/search", params={"q": "zebras", "by": "vectors"})
    assert late_answer.status_code == 503 and late_answer.json()["error"]["coming"] is True
    may_load.set()
    wait_for_model(client)
    found = search(client, "zebras")
    assert found["by"] == "hybrid" and found["coming"] == ""


def test_an_index_of_words_is_served_and_says_that_its_papers_are_being_embedded(serve, place, tmp_path):
    options = IndexOptions(device="cpu", vectors=False)
    folder = build_index(Corpus.open(place.corpus), place.model, tmp_path / "words", options).folder
    client = serve(folder)
    assert client.get("/health").json()["with_vectors"] == 0
    assert search(client, "models learn")["hits"]
    assert "words" in client.get("/similar?paper=p:1").json()["note"]
    assert client.get("/search?q=models&by=vectors").status_code in (400, 503)
    status = {"what": "embedding", "done": 0, "total": 20, "seconds_left": None}
    library = SimpleNamespace(index_folder=folder, lacks=list, working=lambda: status)
    found = search(client_of(create_app(library, ServeOptions(**PATIENT))), "zebras")
    assert found["hits"] == [] and found["coming"] == "the model has not read the papers yet"


def test_an_index_deleted_while_served(serve, copy, caplog):
    client = serve(copy)
    assert client.get("/papers/p:1").status_code == 200
    shutil.rmtree(copy)
    for _ in range(3):
        assert search(client, by="words")["hits"]
    health = client.get("/health").json()
    assert health["status"] == "failing" and health["papers"] == 20
    assert any(line.startswith("an older state is served") for line in health["lacks"])
    assert not any(str(copy.parent) in line for line in health["lacks"])
    assert sum("cannot be opened" in record.getMessage() for record in caplog.records) == 1


def test_an_index_is_opened_once_and_two_of_one_model_share_it(place):
    shelf, found = served(place.index, other=place.index), list[Any]()
    threads = [threading.Thread(target=lambda: found.append(shelf.get().index)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(index) for index in found}) == 1
    batcher, second = ready(shelf).query_encoder.encoder.batcher, shelf.get("other").query_encoder
    assert second is not None and second.encoder.batcher is batcher
    shelf.close()


def test_a_model_that_was_deleted_leaves_words(serve, tmp_path, place):
    model = Path(shutil.copytree(place.model, tmp_path / "model"))
    build_index(Corpus.open(place.corpus), model, tmp_path / "index", IndexOptions(device="cpu"))
    shutil.rmtree(model)
    client = serve(tmp_path / "index")
    ready(client.app.state.server.indexes)
    health = client.get("/health").json()
    assert health["status"] == "ok" and not health["reads_texts"]
    assert any("words only" in line for line in health["lacks"])
    assert str(tmp_path) not in str(health), "folders of the server are not told"
    assert search(client, "models", by="words")["hits"]
    found = search(client, "models")
    assert found["hits"] and "words" in found["note"]
    assert client.get("/search", params={"q": "models", "by": "vectors"}).status_code == 503
    assert client.post("/embed", json={"texts": ["a"]}).status_code == 503
    moved = serve(tmp_path / "index", model=str(place.model))
    assert ready(moved.app.state.server.indexes).query_encoder is not None


def test_another_model_is_refused(place, save_bert, tmp_path):
    other = str(save_bert(tmp_path / "other", seed=1))
    opened = ready(served(place.index, ServeOptions(device="cpu", model=other)))
    assert opened.query_encoder is None and "cannot be compared" in opened.no_encoder


def test_an_index_that_is_being_made(tmp_path, place):
    status, lacks = {"what": "reading", "done": 3, "total": 10, "seconds_left": 1.5}, ["there are no citations"]
    library = SimpleNamespace(
        index_folder=tmp_path / "index", working=lambda: status, missing_data=lambda: lacks, rejected=[]
    )
    client = client_of(create_app(library, OPTIONS))
    health = client.get("/health").json()
    assert health["status"] == "starting" and health["working"]["done"] == 3 and health["lacks"] == lacks
    answer = client.get("/search", params={"q": "a"})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
    shutil.copytree(place.index, tmp_path / "index")
    assert search(client, "models", by="words")["hits"]
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("state", [None, '{"format": "something else"}', "\x00"])
def test_what_is_no_index_is_said_at_the_start(copy, state):
    if state != "\x00":
        shutil.rmtree(copy)
    if state is not None:
        copy.mkdir(exist_ok=True)
        (copy / "state.json").write_text(state)
    with pytest.raises(CiteweaveError, match="index"):
        create_app({"main": copy}, OPTIONS)


# --- batches -------------------------------------------------------------------------------------------------


class Lengths:
    """An encoder of text lengths that waits to be let go and remembers its calls."""

    name, revision, dimension = "lengths", "1", 2

    def __init__(self, *, held: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        if not held:
            self.go.set()

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[len(text), 1] for text in texts], np.float32).reshape(-1, 2)


def held(**options: Any) -> tuple[Lengths, Batcher, Any]:
    """A batcher whose encoder is at work on the text "a"."""
    encoder = Lengths(held=True)
    batcher = Batcher(encoder, wait=0, **options)
    first = batcher.submit(["a"])
    assert encoder.begun.wait(PATIENCE)
    return encoder, batcher, first


def test_texts_that_come_while_the_encoder_works_go_together():
    sizes = list[int]()
    encoder, batcher, first = held(on_batch=sizes.append)
    others = [batcher.submit(["x" * n, "y"]) for n in range(1, 6)]
    encoder.go.set()
    assert first.result(PATIENCE).tolist() == [[1, 1]]
    assert [other.result(PATIENCE).tolist() for other in others] == [[[n, 1], [1, 1]] for n in range(1, 6)]
    assert len(encoder.calls) == 2 and len(encoder.calls[1]) == 10 and sizes == [1, 10]


def test_texts_wait_a_moment_for_others():
    encoder = Lengths()
    batcher = Batcher(encoder, wait=PATIENCE, max_texts=4)  # ends at the fourth text
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: BatchedEncoder(batcher).encode(["x" * n])[0, 0], range(1, 5)))
    assert found == [1, 2, 3, 4] and len(encoder.calls) == 1


def test_a_cancelled_request_is_left_out_and_disturbs_nobody():
    encoder, batcher, _ = held()
    dropped, kept = batcher.submit(["dropped"]), batcher.submit(["kept"])
    assert dropped.cancel()
    encoder.go.set()
    assert kept.result(PATIENCE).tolist() == [[4, 1]]
    assert encoder.calls == [["a"], ["kept"]]
    with pytest.raises(CancelledError):
        dropped.result()


def test_an_error_reaches_all_that_waited_and_the_next_are_served():
    batcher = Batcher(Lengths(), wait=0)
    with pytest.raises(ValueError, match="bad text"):
        batcher.submit(["bad"]).result(PATIENCE)
    assert batcher.submit(["good"]).result(PATIENCE).tolist() == [[4, 1]]


def test_the_line_is_bounded_and_empties():
    encoder, batcher, running = held(max_waiting=3)
    waiting = [batcher.submit(["b"]) for _ in range(3)]
    with pytest.raises(RefusedError) as caught:
        batcher.submit(["one too many"])
    assert caught.value.status == 503 and caught.value.retry_after == 1
    encoder.go.set()
    for future in (running, *waiting):
        future.result(PATIENCE)
    assert batcher.submit(["c"] * 20).result(PATIENCE).shape == (20, 2), "an empty line takes any number"


def test_closing_serves_what_waits_and_refuses_the_rest():
    encoder, batcher, first = held()
    futures = [first, batcher.submit(["b"])]
    encoder.go.set()
    batcher.close()
    assert [future.result(PATIENCE).shape for future in futures] == [(1, 2), (1, 2)]
    with pytest.raises(RefusedError):
        batcher.submit(["late"])


# --- threads -------------------------------------------------------------------------------------------------


def test_work_is_done_in_threads_and_its_errors_come_out():
    async def story() -> tuple[int, str]:
        workers = Workers(2)
        return await workers.run(pow, 2, 5), await workers.run(lambda: threading.current_thread().name)

    result, name = asyncio.run(story())
    assert result == 32 and name.startswith("citeweave-work")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Workers(1).run(lambda: 1 / 0))


def test_abandoned_threads_are_known_until_they_are_done():
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
        return [*seen, workers.stuck()]

    assert asyncio.run(story()) == [False, True, "still answered", "free again", False]
