"""Sorting bare citations, each one number: citing row, then cited row in `bits` bits.

    codes = CitationCodes(folder, papers=3, expected=4, memory=2**20)
    codes.add(citing, cited)           # any number of times
    for block in codes.blocks():       # every distinct citation once, ascending
        ...

Linear in their number: scattered over files by citing row, then to their row's place, then each short row sorted.
Does not carry intents or strengths; `citation_links.py` sorts citations that have any.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numba
import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]

_MOST_FILES = 512
_BYTES = 20
"""Held for a citation while its bucket is sorted: its code, its place, and some of what is written next."""


class CitationCodes:
    """Citations as codes, handed back sorted and each once; `memory` bounds what is held at a time."""

    def __init__(self, folder: Path, *, papers: int, expected: int, memory: int) -> None:
        self.bits = max(papers - 1, 1).bit_length()
        self._papers = max(papers, 1)
        # twice as many as an even spread needs: later papers cite more
        wanted = 1 if expected * _BYTES <= memory else -(-2 * expected * _BYTES // memory)
        self._buckets = min(wanted, _MOST_FILES, self._papers)
        self._width = -(-self._papers // self._buckets)
        self._held: list[Codes] = []
        self._files: list[BinaryIO] = []
        self.repeats = 0
        """Citations that were given again; known when all blocks were taken."""
        if self._buckets > 1:
            folder.mkdir(parents=True, exist_ok=True)
            self._paths = [folder / f"codes-{bucket:03d}.bin" for bucket in range(self._buckets)]
            # what is written at a time is larger than the buffer and goes past it; all of it, or an error
            self._files = [path.open("wb", buffering=1 << 12) for path in self._paths]

    def add(self, codes: Codes) -> None:
        if not self._files:
            self._held.append(codes)
            return
        ends, out = np.empty(self._buckets + 1, np.int64), np.empty(len(codes), np.uint64)
        _scatter(codes, self.bits, self._width, ends, out)
        for bucket, file in enumerate(self._files):
            if ends[bucket + 1] > ends[bucket]:
                file.write(out[ends[bucket] : ends[bucket + 1]].data)

    def blocks(self) -> Iterator[Codes]:
        for bucket in range(self._buckets):
            codes = self._take(bucket)
            if len(codes):
                first = bucket * self._width
                kept = _sort_rows(codes, self.bits, first, min(self._width, self._papers - first))
                self.repeats += len(codes) - kept
                yield codes[:kept]

    def _take(self, bucket: int) -> Codes:
        if self._files:
            self._files[bucket].close()
            codes = np.fromfile(self._paths[bucket], np.uint64)
            self._paths[bucket].unlink()
            return codes
        held, self._held = self._held, []
        return np.concatenate([np.empty(0, np.uint64), *held])


@numba.njit(cache=True, nogil=True)
def _scatter(codes: Codes, bits: int, width: int, ends: NDArray[np.int64], out: Codes) -> None:
    """Codes by bucket, in their order; those of bucket b end up in out[ends[b]:ends[b + 1]]."""
    shift = np.uint64(bits)
    ends[:] = 0
    for i in range(len(codes)):
        ends[int(codes[i] >> shift) // width + 1] += 1
    for bucket in range(1, len(ends)):
        ends[bucket] += ends[bucket - 1]
    place = ends[:-1].copy()
    for i in range(len(codes)):
        bucket = int(codes[i] >> shift) // width
        out[place[bucket]] = codes[i]
        place[bucket] += 1


@numba.njit(cache=True, nogil=True)
def _sort_rows(codes: Codes, bits: int, first: int, rows: int) -> int:
    """Codes of citing rows first .. first + rows - 1, sorted in place and each once; gives their number."""
    shift, out = np.uint64(bits), np.empty(len(codes), np.uint64)
    starts = np.zeros(rows + 1, np.int64)
    for i in range(len(codes)):
        starts[int(codes[i] >> shift) - first + 1] += 1
    for row in range(1, rows + 1):
        starts[row] += starts[row - 1]
    place = starts[:-1].copy()
    for i in range(len(codes)):
        row = int(codes[i] >> shift) - first
        out[place[row]] = codes[i]
        place[row] += 1
    end = 0
    for row in range(rows):
        start, stop = starts[row], starts[row + 1]
        _sort(out, start, stop)
        for i in range(start, stop):
            if i == start or out[i] != out[i - 1]:
                codes[end] = out[i]  # every code is in `out` by now
                end += 1
    return end


@numba.njit(cache=True, nogil=True)
def _sort(codes: Codes, start: int, stop: int) -> None:
    """Sort codes[start:stop]: most rows are short."""
    if stop - start > 64:
        codes[start:stop].sort()
        return
    for i in range(start + 1, stop):
        code, at = codes[i], i
        while at > start and codes[at - 1] > code:
            codes[at] = codes[at - 1]
            at -= 1
        codes[at] = code
