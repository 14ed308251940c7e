"""Attempts in child processes, so that one that crashes, hangs or eats memory is found out and the next one goes on.

    try_all(trial, range(1000), attempt)

A child makes up to `BATCH` attempts and tells of each when it begins and when it ends. Where it dies in between, it is
known in which attempt, and a new child goes on with the next. An attempt hangs when it takes more than `SECONDS` of the
processor, or waits for `WAIT` seconds. `attempt(number)` gives back the bytes of memory that it may take; an exception
is a failure.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .counting import Trial

BATCH = 50
SECONDS, WAIT = 5.0, 120.0
MORE_MEMORY = 256 * 2**20
_MOST_ADDRESSES = 4 * 2**30
"""Bytes of addresses that a child may ask for beyond those it begins with: more is a size that nobody checked."""

Attempt = Callable[[int], int]


def try_all(trial: Trial, numbers: Iterable[int], attempt: Attempt, name: Any = "seed {}".format) -> None:
    """Count the attempts of an experiment."""
    left = list(numbers)
    while left:
        found = _batch(left[:BATCH], attempt)
        del left[: len(found)]
        for number, why in found:
            with trial.attempt(name(number)):
                assert not why, why


def in_child(make: Callable[[], Any]) -> Any:
    """What a function gives, in JSON, without leaving its threads and memory in this process."""

    def work(told: Any) -> int:
        try:
            found, code = make(), 0
        except BaseException:
            found, code = traceback.format_exc(), 1
        with contextlib.suppress(BrokenPipeError):
            told.write(json.dumps(found).encode())
        return code

    found, status = _forked(work)
    assert status == 0, json.loads(found) if found else _end_of(status)
    return json.loads(found)


def _forked(work: Callable[[Any], int]) -> tuple[bytes, int]:
    """What a child writes, and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 99
        try:
            with os.fdopen(writing, "wb", buffering=0) as told:
                code = work(told)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        found = told.read()
    return found, os.waitpid(child, 0)[1]


def _batch(numbers: Sequence[int], attempt: Attempt) -> list[tuple[int, str]]:
    told, status = _forked(lambda writing: _work(numbers, attempt, writing))
    lines = [json.loads(line) for line in told.splitlines()]
    found = [(number, why) for kind, number, why in lines if kind == "end"]
    begun = [number for kind, number, _ in lines if kind == "begin"]
    if len(begun) > len(found):
        found.append((begun[-1], _end_of(status)))
    assert found, f"a child ended before its first attempt: {_end_of(status)}"
    return found


def _end_of(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended by itself with {os.waitstatus_to_exitcode(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    hang = {"SIGPROF": f"more than {SECONDS:g} s of work", "SIGALRM": f"more than {WAIT:g} s of waiting"}
    return f"a hang: {hang[name]}" if name in hang else f"a crash: {name}"


def _work(numbers: Sequence[int], attempt: Attempt, told: Any) -> int:
    """The life of a child."""
    for one in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(one, signal.SIG_DFL)  # a handler in Python would not interrupt compiled code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = own_bytes("VmSize") + _MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    gc.freeze()  # what was there before is not looked through again and again
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  the child ends with it
    for number in numbers:
        told.write(json.dumps(["begin", number, ""]).encode() + b"\n")
        why = _watched(number, attempt)
        told.write(json.dumps(["end", number, why]).encode() + b"\n")
    return 0


def _watched(number: int, attempt: Attempt) -> str:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        with measured() as growth:
            allowed = attempt(number)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} ({Path(place.filename).name}:{place.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "" if growth[0] <= allowed else f"{growth[0] >> 20:,} MiB of memory, {allowed >> 20:,} are allowed"


@contextlib.contextmanager
def measured() -> Iterator[list[int]]:
    """How many bytes of memory were taken at most inside."""
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, found = own_bytes("VmRSS"), [0]
    yield found
    found[0] = max(0, own_bytes("VmHWM") - before)


def own_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
