"""A synthetic citation graph of any size as shards of edges, streamed: no more than one shard a process is in memory.

    options = Shards(folder, papers=52_000_000, citations=463_000_000)
    write_shards(options)      folder/edges-000.parquet, ..., every tenth one edges-009.tsv.gz; what is there is kept

The graph: papers are numbered by age. A paper's reference list has a length with a long tail (shifted exponential), and
each reference is to an older paper: of its own topic (60 %, topics of about 1,000 papers), of its field (25 %, one of
300) or of any (15 %). Among these the older a paper is the likelier it is cited (rank = count * u ** exponent), which
gives numbers of citations a power-law tail: the most cited paper of 52 million has some 200,000. Topics make communities
that share references. Every draw is a hash of (seed, paper, place), so that shards can be made in any order and on any
number of processes. Structure only: no texts, no years.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal import igzip
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FIELDS, TOPIC = 300, 1000
TSV_EVERY = 10
_LONGEST = 6.0
"""The longest reference list, as a multiple of the mean."""


@dataclass(frozen=True, slots=True)
class Shards:
    """What to make, and where."""

    folder: Path
    papers: int
    citations: int
    shard: int = 5_000_000
    """About so many citations a file."""

    seed: int = 0
    stretch: float = 0.0
    """References drawn for each one wanted, since repeats fall out; 0 = found out on a sample."""

    @property
    def step(self) -> int:
        """Papers a shard."""
        return max(1, round(self.papers * self.shard / self.citations))

    @property
    def count(self) -> int:
        return -(-self.papers // self.step)

    def path(self, number: int) -> Path:
        kind = "tsv.gz" if number % TSV_EVERY == TSV_EVERY - 1 else "parquet"
        return self.folder / f"edges-{number:04d}.{kind}"


def write_shards(options: Shards, workers: int = 0) -> int:
    """Make the shards that are missing; gives how many there were to make."""
    options.folder.mkdir(parents=True, exist_ok=True)
    options = replace(options, stretch=_stretch(options))
    missing = [number for number in range(options.count) if not options.path(number).exists()]
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for _ in pool.map(_write_shard, [options] * len(missing), missing):
            pass
    return len(missing)


def _stretch(options: Shards) -> float:
    """How many references to draw for each one that stays, measured on some papers of all ages."""
    starts = np.linspace(0, max(0, options.papers - 1000), 50).astype(np.int64).tolist()
    stretch = 1.0
    for _ in range(3):
        tried = replace(options, stretch=stretch)
        kept = [len(edges(tried, start, min(start + 1000, options.papers))[0]) for start in starts]
        sampled = sum(min(1000, options.papers - start) for start in starts)
        stretch *= options.citations / options.papers / (sum(kept) / sampled)
    return stretch


def edges(options: Shards, start: int, stop: int) -> tuple[Ints, Ints]:
    """The citations of papers start .. stop - 1: citing and cited numbers, each citation once."""
    mean = options.citations / options.papers * options.stretch
    most = int((stop - start) * (mean * _LONGEST + 1))
    citing, cited = np.empty(most, np.int64), np.empty(most, np.int64)
    topics = max(1, options.papers // TOPIC)
    found = _draw(start, stop, mean, topics, min(FIELDS, topics), np.uint64(options.seed), citing, cited)
    return citing[:found], cited[:found]


def _write_shard(options: Shards, number: int) -> None:
    start = number * options.step
    citing, cited = edges(options, start, min(start + options.step, options.papers))
    path = options.path(number)
    new = path.with_name(path.name + ".new")
    if path.suffix == ".parquet":
        kind = np.int32 if options.papers < 2**31 else np.int64
        table = pa.table({"citing": citing.astype(kind), "cited": cited.astype(kind)})
        encodings = {"citing": "DELTA_BINARY_PACKED", "cited": "PLAIN"}
        pq.write_table(table, new, compression="none", use_dictionary=False, column_encoding=encodings)
    else:
        with igzip.open(new, "wb", compresslevel=1) as file:
            for first in range(0, len(citing), 1 << 16):
                pairs = zip(*(end[first : first + (1 << 16)].tolist() for end in (citing, cited)), strict=True)
                file.write("".join([f"{a}\t{b}\n" for a, b in pairs]).encode())
    new.replace(path)


@numba.njit(cache=True)
def _uniform(seed: np.uint64, row: int, place: int) -> float:
    """A number in [0, 1) fixed by the three: splitmix64 as a hash."""
    bits = seed + np.uint64(row) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(place) * np.uint64(0xD1B54A32D192ED03)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return float(bits >> np.uint64(11)) * 2.0**-53


@numba.njit(cache=True)
def _older(row: int, why: float, chance: float, topics: int, fields: int) -> int:
    """An older paper of the same topic, of the same field, or any; -1 where there is none."""
    if why < 0.6:
        first, stride, exponent = row % topics, topics, 1.7
    elif why < 0.85:
        first, stride, exponent = row % topics % fields, fields, 2.5
    else:
        first, stride, exponent = 0, 1, 3.0
    count = (row - first + stride - 1) // stride
    return first + int(chance**exponent * count) * stride if count > 0 else -1


@numba.njit(cache=True)
def _draw(
    start: int, stop: int, mean: float, topics: int, fields: int, seed: np.uint64, citing: Ints, cited: Ints
) -> int:
    end = 0
    for row in range(start, stop):
        length = min(0.4 - 0.6 * np.log(1.0 - _uniform(seed, row, 0)), _LONGEST)
        first = end
        for place in range(int(length * mean + _uniform(seed, row, 1))):
            target = _older(row, _uniform(seed, row, 2 * place + 2), _uniform(seed, row, 2 * place + 3), topics, fields)
            at = end
            while at > first and cited[at - 1] > target:
                at -= 1
            if target < 0 or (at > first and cited[at - 1] == target):
                continue
            for back in range(end, at, -1):
                cited[back] = cited[back - 1]
            cited[at], citing[end] = target, row
            end += 1
    return end
