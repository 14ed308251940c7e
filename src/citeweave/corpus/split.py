"""Parts for training, validation and test: by the year of the citing paper, or by a share of the papers.

A split is made of papers; a citation belongs to the part of its CITING paper. So no reference list is
torn apart and nothing of a test paper's list is trained on; a cited paper may occur in several parts.

    >>> split = split_by_year([2014, 2016, 2017, 0], validation_from=2016, test_from=2017)
    >>> split.train.tolist(), split.validation.tolist(), split.test.tolist(), split.unknown_years
    ([0, 3], [1], [2], 1)
    >>> split.of_citations([2, 0, 0]).tolist()
    [2, 0, 0]

Does not look for copies of a paper under another id in another part; see `leakage/` for that.
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
    """The parts of a split, as `Split.codes` writes them."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


@dataclass(frozen=True, slots=True)
class Split:
    """Which part every paper belongs to."""

    codes: NDArray[np.int8]
    """One `SplitPart` a paper."""

    unknown_years: int = 0
    """Papers without a year, all of them in train (splits by year only)."""

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
        """The part of each citation: that of its citing paper."""
        return self.codes[np.asarray(citing_rows, np.int64)]

    def as_json(self) -> dict[str, int]:
        """How many papers are in each part.

        >>> Split(np.array([0, 0, 2], np.int8)).as_json()
        {'train': 2, 'validation': 0, 'test': 1, 'unknown_years': 0}
        """
        counts = np.bincount(self.codes, minlength=len(SplitPart))
        return {part.name.lower(): int(counts[part]) for part in SplitPart} | {"unknown_years": self.unknown_years}


def split_by_year(citing_years: ArrayLike, *, validation_from: int, test_from: int) -> Split:
    """Train on the past: papers from `validation_from` on validate, from `test_from` on test.

    Year 0 means unknown: such a paper trains, and is counted in `unknown_years`. With both years the
    same there is no validation part.
    """
    if validation_from > test_from:
        raise UserError(
            f"validation_from is {validation_from}; it must not be after test_from, which is {test_from}: "
            "give the earlier year to validation_from"
        )
    years = np.asarray(citing_years, np.int32)  # (papers,)
    codes = np.zeros(len(years), np.int8)  # (papers,)
    codes[years >= validation_from] = SplitPart.VALIDATION
    codes[years >= test_from] = SplitPart.TEST
    known = years[years > 0]
    codes[years <= 0] = SplitPart.TRAIN
    span = f"the papers' years go from {known.min()} to {known.max()}" if len(known) else "no paper has a year"
    wanted = [SplitPart.TRAIN, SplitPart.TEST, *([SplitPart.VALIDATION] if validation_from < test_from else [])]
    given = f"validation_from {validation_from} and test_from {test_from}"
    _require_papers(codes, wanted, f"{given}: {span}; choose years inside")
    return Split(codes, len(years) - len(known))


def split_by_share(ids: Iterable[str], *, validation: float, test: float, seed: int) -> Split:
    """Draw parts by a hash of seed and paper id; what is in neither share trains.

    A paper's part depends on nothing but its id and the seed: not on the order of the papers, and not
    on which others there are, so it stays where it is when the corpus grows. A larger share keeps the
    papers of the smaller one, and changing one share leaves the other alone. The sizes are those of
    a fair draw: 10 % of 1,000 papers is 100 give or take 19 (95 %).

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
    # from both ends, so that neither share moves the other
    codes[places < np.uint64(test * 2.0**64)] = SplitPart.TEST
    codes[~places < np.uint64(validation * 2.0**64)] = SplitPart.VALIDATION
    wanted = [SplitPart.TRAIN] + [SplitPart.VALIDATION] * (validation > 0) + [SplitPart.TEST] * (test > 0)
    given = f"validation {validation}, test {test} and seed {seed}"
    _require_papers(codes, wanted, f"{given}: there are only {len(codes)} papers; use larger shares or another seed")
    return Split(codes)


def hash_ids(ids: Iterable[str], seed: int) -> NDArray[np.uint64]:
    """A number from 0 to 2**64 - 1 for every id: BLAKE2b of seed and id, the same on every machine.

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
    counts = np.bincount(codes, minlength=len(SplitPart))
    empty = [part.name.lower() for part in wanted if counts[part] == 0]
    if empty:
        raise EmptyResultError(f"no paper is in the {' or '.join(empty)} part with {explanation}")
