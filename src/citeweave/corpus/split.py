"""Split papers into train, validation and test: by the year of the citing paper, or by a share of the papers.

A split assigns papers; a citation belongs to the part of its CITING paper. So no reference list is divided
and no reference of a test paper is trained on; a cited paper may occur in several parts.

    >>> split = split_by_year([2014, 2016, 2017, 0], validation_from=2016, test_from=2017)
    >>> split.train.tolist(), split.validation.tolist(), split.test.tolist(), split.unknown_years
    ([0, 3], [1], [2], 1)
    >>> split.of_citations([2, 0, 0]).tolist()
    [2, 0, 0]

Does not look for copies of a paper under another id in another part; see `leakage.py` for that.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.core.errors import EmptyResultError, UserError


class SplitPart(enum.IntEnum):
    """Train, validation and test: the parts of a split, as `Split.codes` stores them."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a split that every paper belongs to."""

    codes: NDArray[np.int8]
    """One `SplitPart` per paper."""

    unknown_years: int = 0
    """Number of papers without a year, all of them in train (splits by year only)."""

    @property
    def train(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.codes == SplitPart.TRAIN)

    @property
    def validation(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.codes == SplitPart.VALIDATION)

    @property
    def test(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.codes == SplitPart.TEST)

    def of_citations(self, citing_rows: ArrayLike) -> NDArray[np.int8]:
        """Return the part of each citation: that of its citing paper."""
        return self.codes[np.asarray(citing_rows, np.int64)]

    def as_json(self) -> dict[str, int]:
        """Return the number of papers in each part of the split.

        >>> Split(np.array([0, 0, 2], np.int8)).as_json()
        {'train': 2, 'validation': 0, 'test': 1, 'unknown_years': 0}
        """
        counts = np.bincount(self.codes, minlength=len(SplitPart))
        return {part.name.lower(): int(counts[part]) for part in SplitPart} | {"unknown_years": self.unknown_years}


def split_by_year(citing_years: ArrayLike, *, validation_from: int, test_from: int) -> Split:
    """Split papers by year: those from `validation_from` on are validation, those from `test_from` on are test.

    Year 0 means unknown: such a paper is in train, and counted in `unknown_years`. If both years are the
    same, there is no validation part.
    """
    if validation_from > test_from:
        raise UserError(
            f"validation_from is {validation_from}; it must not be after test_from, which is {test_from}: "
            "set validation_from to the earlier year"
        )
    years = np.asarray(citing_years, np.int32)  # (papers,)
    codes = np.zeros(len(years), np.int8)  # (papers,)
    codes[years >= validation_from] = SplitPart.VALIDATION
    codes[years >= test_from] = SplitPart.TEST
    known = years[years > 0]
    codes[years <= 0] = SplitPart.TRAIN
    span = f"the papers' years go from {known.min()} to {known.max()}" if len(known) else "no paper has a year"
    wanted = [SplitPart.TRAIN, SplitPart.TEST, *([SplitPart.VALIDATION] if validation_from < test_from else [])]
    years_set = f"validation_from {validation_from} and test_from {test_from}"
    _require_papers(codes, wanted, f"{years_set}: {span}; choose years in that range")
    return Split(codes, len(years) - len(known))


def split_by_share(ids: Iterable[str], *, validation: float, test: float, seed: int) -> Split:
    """Split papers by a hash of seed and paper id; papers in neither share are in train.

    A paper's part depends on nothing but its id and the seed: not on the order of the papers, and not
    on the other papers, so it stays the same when the corpus grows. A larger share includes the papers of
    the smaller one, and changing one share does not affect the other. The sizes vary as in a random draw:
    10 % of 1,000 papers is 100 plus or minus 19 (95 %).

    >>> ids = [f"s2:{number}" for number in range(1000)]
    >>> split_by_share(ids, validation=0.1, test=0.2, seed=1).as_json()
    {'train': 675, 'validation': 106, 'test': 219, 'unknown_years': 0}
    """
    for name, share in {"validation": validation, "test": test}.items():
        if not 0 <= share < 1:
            raise UserError(f"{name} is {share}; a share must be at least 0 and below 1, such as 0.1")
    if validation + test >= 1:
        raise UserError(
            f"validation {validation} and test {test} leave nothing to train on; make their sum less than 1"
        )
    places = hash_ids(ids, seed)  # (papers,)
    codes = np.zeros(len(places), np.int8)  # (papers,)
    # from both ends, so that neither share affects the other
    codes[places < np.uint64(test * 2.0**64)] = SplitPart.TEST
    codes[~places < np.uint64(validation * 2.0**64)] = SplitPart.VALIDATION
    wanted = [SplitPart.TRAIN] + [SplitPart.VALIDATION] * (validation > 0) + [SplitPart.TEST] * (test > 0)
    shares = f"validation {validation}, test {test} and seed {seed}"
    _require_papers(codes, wanted, f"{shares}: there are only {len(codes)} papers; use larger shares or another seed")
    return Split(codes)


def hash_ids(ids: Iterable[str], seed: int) -> NDArray[np.uint64]:
    """Hash every paper id with the seed of a split to a number from 0 to 2**64 - 1, the same on every machine (BLAKE2b).

    >>> hash_ids(["s2:1", "s2:2"], seed=1).tolist() == hash_ids(["s2:2", "s2:1"], seed=1).tolist()[::-1]
    True
    """
    seeded = hashlib.blake2b(f"{seed}:".encode(), digest_size=8, person=b"citeweave split")
    digests = bytearray()
    for name in ids:
        state = seeded.copy()
        state.update(name.encode("utf-8", "surrogatepass"))
        digests += state.digest()
    return np.frombuffer(bytes(digests), "<u8").astype(np.uint64)


def _require_papers(codes: NDArray[np.int8], wanted: Sequence[SplitPart], explanation: str) -> None:
    """Raise an error if a part of the split has no papers."""
    counts = np.bincount(codes, minlength=len(SplitPart))
    empty = [part.name.lower() for part in wanted if counts[part] == 0]
    if empty:
        raise EmptyResultError(f"no paper is in the {' or '.join(empty)} part with {explanation}")
