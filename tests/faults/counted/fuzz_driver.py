"""Fuzzing with coverage: inputs that reach new lines of citeweave are kept and changed further.

    fuzz(target, "readers", seconds=600, seed=1)               Fuzzed(executions=21_000, lines=412, driver="atheris", ...)
    fuzz(target, "readers", seconds=10, seed=1, most=1000)     the same inputs on every machine, by our own engine

By atheris (libFuzzer) where it is installed and nothing bounds the inputs, in a process of its own; else by the small
engine of this module: random changes of seeds, lines seen by `sys.settrace`. A failure is an exception that no page documents, a crash, or an
input that takes more than 5 seconds; it is told with the input.
"""

import importlib.util
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import citeweave

from .fuzz_targets import Target, remove_fuzz_files
from .trying import SECONDS, in_child

SOURCE = str(Path(citeweave.__file__).parent)
LONGEST = 4096
"""Bytes of an input at most."""

_MOST_KEPT = 2000


@dataclass(frozen=True)
class Fuzzed:
    """What became of a target."""

    executions: int
    lines: int
    """Lines of citeweave that were reached; edges, where atheris counts them."""

    driver: str
    failure: str = ""


def fuzz(target: Target, group: str, *, seconds: float, seed: int, most: int = 0) -> Fuzzed:
    """Fuzz one target for so many seconds, with so many inputs at most where `most` is given, or until it fails."""
    if not most and importlib.util.find_spec("atheris"):
        return _by_atheris(target, group, seconds, seed)
    return _by_own_engine(target, seconds, seed, most or sys.maxsize)


# --- our own engine ---------------------------------------------------------------------------------------


class Lines:
    """The lines of citeweave that were run, seen by a trace function."""

    def __init__(self) -> None:
        self.seen: set[tuple[Any, int]] = set()

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.seen.add((frame.f_code, frame.f_lineno))
        return self._line


def mutate(data: bytes, others: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """The data with one to six changes."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 4, 16, 64)))
        match rng.randrange(8):
            case 0 if data:
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at] + rng.randbytes(rng.choice((1, 2, 4, 8))) + data[at:]
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:end] + data[at:end] * rng.choice((1, 2, 20)) + data[end:]
            case 4:
                other = rng.choice(others)
                cut = rng.randrange(len(other) + 1)
                data = data[:at] + other[cut : cut + rng.choice((4, 32, 256, LONGEST))] + data[end:]
            case 5 if words:
                data = data[:at] + rng.choice(words) + data[rng.choice((at, end)) :]
            case 6:
                data = data[:at] + rng.choice(_TOKENS) + data[end:]
            case _:
                numbers = list(re.finditer(rb"-?\d+", data))
                if numbers:
                    place = rng.choice(numbers)
                    data = data[: place.start()] + rng.choice(_NUMBERS) + data[place.end() :]
    return data[:LONGEST]


_NUMBERS = (b"0", b"-1", b"1", b"9" * 19, b"9" * 400, b"1e999", b"0.5", b"2147483648", b"NaN", b"1e-400")
_TOKENS = (
    b'"', b"'", b"{", b"}", b"[", b"]", b"<", b">", b"</", b"&", b"\\", b"\n", b"\r\n", b"\t", b"\x00", b",", b":", b"=",
    b"null", b"true", b'""', b"[]", b"{}", b'"\\ud800"', b"\xff\xfe", b"\xef\xbb\xbf", b"\xc2\x85", b"[" * 300, b"(" * 300,
    b"&#0;", b"<!--", b"]]>", b"<![CDATA[", b"<?xml", b"<!DOCTYPE x [", b"\xe2\x80\xa8", b"@", b"  - ", b"../", b"~", b"%",
)  # fmt: skip


def _by_own_engine(target: Target, seconds: float, seed: int, most: int) -> Fuzzed:
    """In a child, which tells the input it is at through shared memory, so that it is known where it dies of one."""
    shared = mmap.mmap(-1, LONGEST + 64)

    def work() -> tuple[int, int, str]:
        for one in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(one, signal.SIG_DFL)
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  the child ends with it
        try:
            return _loop(target, seconds, most, random.Random(seed), shared)
        finally:
            remove_fuzz_files()

    try:
        executions, lines, failure = in_child(work)
    except AssertionError as error:
        size, executions, lines = int.from_bytes(shared[:8], "little"), int.from_bytes(shared[8:16], "little"), 0
        failure = f"{target.name}: {error} at the input {bytes(shared[64 : 64 + size])!r}"
    return Fuzzed(executions, lines, "own", failure)


_IMPORTING = 60.0
"""Seconds that a seed may take besides: what a path needs is imported, and compiled, when it is first gone."""


def _loop(target: Target, seconds: float, most: int, rng: random.Random, shared: mmap.mmap) -> tuple[int, int, str]:
    lines, kept, executions = Lines(), [seed[:LONGEST] for seed in target.seeds], 0
    waiting, end = list(kept), time.process_time() + seconds
    while executions < most and time.process_time() < end:
        data = waiting.pop() if waiting else mutate(rng.choice(kept), kept, target.words, rng)
        shared[:16] = len(data).to_bytes(8, "little") + executions.to_bytes(8, "little")
        shared[64 : 64 + len(data)] = data
        known = len(lines.seen)
        signal.setitimer(signal.ITIMER_PROF, SECONDS if executions >= len(target.seeds) else SECONDS + _IMPORTING)
        sys.settrace(lines.call)
        try:
            target.run(data)
        except BaseException as error:
            sys.settrace(None)
            place = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
            return executions, len(lines.seen), f"{target.name}: {why} at the input {data!r}"
        finally:
            sys.settrace(None)
        executions += 1
        if len(lines.seen) > known and len(kept) < _MOST_KEPT:
            kept.append(data)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return executions, len(lines.seen), ""


# --- atheris ----------------------------------------------------------------------------------------------


def _by_atheris(target: Target, group: str, seconds: float, seed: int) -> Fuzzed:
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "corpus"
        corpus.mkdir()
        for number, data in enumerate(target.seeds):
            (corpus / str(number)).write_bytes(data[:LONGEST])
        words = "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words)
        (Path(place) / "words").write_text(words)
        options = [
            f"-max_total_time={max(1, round(seconds))}", f"-seed={seed + 1}", f"-timeout={SECONDS:g}", f"-max_len={LONGEST}",
            "-rss_limit_mb=4096", "-print_final_stats=1", f"-artifact_prefix={place}/",
        ]  # fmt: skip
        options += [f"-dict={place}/words"] if words else []
        here = Path(__file__).resolve()
        paths = [str(here.parents[1]), str(Path(SOURCE).parent), os.environ.get("PYTHONPATH", "")]
        module = f"{here.parent.name}.fuzz_by_atheris"
        command = [sys.executable, "-m", module, group, target.name, *options, str(corpus)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        run = subprocess.run(command, capture_output=True, env=environment, text=True, errors="replace", check=False)
        told = run.stderr
        executions = [int(number) for number in re.findall(r"number_of_executed_units:\s+(\d+)", told)]
        edges = [int(number) for number in re.findall(r"\bcov: (\d+)", told)]
        failure = ""
        if run.returncode:
            named = [path for path in Path(place).iterdir() if re.match("crash-|timeout-|oom-", path.name)]
            inputs = [path.read_bytes() for path in named]
            at = f" at the input {inputs[0]!r}" if inputs else ""
            failure = f"{target.name} ended with code {run.returncode}: {_what_went_wrong(told)}{at}"
    return Fuzzed(executions[-1] if executions else 0, edges[-1] if edges else 0, "atheris", failure)


def _what_went_wrong(told: str) -> str:
    found = re.search(r"Uncaught Python exception: ===\n(.*?)\n", told, re.DOTALL) or re.search(r"(ERROR: .*)", told)
    return found[1][:300] if found else told[-300:]
