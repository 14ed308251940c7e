"""Options of building an index and of matching reviewers.

    IndexOptions(contexts=10, sentences=True)      for `citeweave search --cite`, and for search by sentences
    MatchOptions(rule="max", best=5)

>>> IndexOptions(dtype="int4")
Traceback (most recent call last):
citeweave.core.errors.UserError: dtype is 'int4'; it must be one of float16, float32.

Declares and checks values; imports nothing heavy, so that `--help` is fast. `query.py` has the options of a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from citeweave.core.errors import UserError
from citeweave.core.options import Flag, OneOf, Range, check


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options for building an index: what it holds besides words, and how its vectors are made."""

    dtype: Annotated[str, OneOf("float16", "float32")] = "float16"
    """Data type of the vectors: float16 or float32."""

    contexts: Annotated[int, Range(0)] = 0
    """Maximal citing sentences per paper and set of intents; 0 = none."""

    runtime: str = "auto"
    """Runtime of the model, now and in later searches: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic)."""

    device: str = "auto"
    """Device: cpu, cuda or auto."""

    shard: Annotated[int, Range(1)] = 16_384
    """Papers between two saves; like the device, it does not change the result."""

    sentences: bool = False
    """Also one vector per sentence of an abstract."""

    vectors: bool = True
    """False: words only; `fill_vectors` adds the vectors later."""

    def __post_init__(self) -> None:
        check(self)
        if self.contexts and not self.vectors:
            raise UserError("citing sentences are kept by their vectors; leave out --contexts, or make vectors")


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """Options of reviewer matching: the scoring rule, and how many reviewers per submission are listed."""

    rule: Annotated[str, OneOf("top3", "max", "mean")] = "top3"
    """How to combine the scores of a reviewer's papers: top3 (mean of the three best), max or mean."""

    best: Annotated[int, Range(0), Flag("--top")] = 0
    """Number of best reviewers per submission; 0 = all."""

    def __post_init__(self) -> None:
        check(self)
