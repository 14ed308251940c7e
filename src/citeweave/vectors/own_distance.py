"""A model's own distance: how its papers are best compared, its reading, kept in the model's folder.

    model/reading.json      {"distance": "mean_best+token_best", "metric": "cosine", "max_tokens": 512, "temperature": null}

Training writes it: a sentence loss has a distance of its own, and `[encoder.reading]` of a recipe names another. Where
papers are compared by sentences, every command follows the model's reading unless it is told otherwise. A model without
the file is compared as ASPIRE does.

>>> Reading("mean_best+token_best", "cosine").of_sentences
'mean_best'
>>> Reading(), bool(Reading()), bool(Reading(metric="cosine"))
(Reading(distance='', metric='', max_tokens=0, temperature=None), False, True)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from citeweave.core.errors import InputError, UserError, choose
from citeweave.core.files import read_input, write_json
from citeweave.core.options import OneOf, Range, check, parse_table

FILE = "reading.json"
SENTENCE_TOKENS = 500
"""Token limit of texts for sentence vectors, as in ASPIRE; a lower limit would lose the last sentences."""

SENTENCE_DISTANCES = ("single", "top2", "mean_best", "attention", "transport")
_KNOWN = ("cosine", "l2", "dot", *SENTENCE_DISTANCES, "token_best")


@dataclass(frozen=True, slots=True)
class Reading:
    """How papers are compared by a model: the `[encoder.reading]` table, and what a model's folder says of itself."""

    distance: str = ""
    """Distance between papers, or a sum such as `mean_best+token_best`; default: that of a sentence loss, else the
    suite's."""

    metric: Annotated[str, OneOf("", "l2", "cosine")] = ""
    """Metric between sentences: `l2` or `cosine`; default: that of a sentence loss, else l2."""

    max_tokens: Annotated[int, Range(0)] = 0
    """Maximum length of a paper that is read by sentences; 0 = 500."""

    temperature: Annotated[float | None, Range(above=0)] = None
    """Softmax temperature of the distance `attention`."""

    def __post_init__(self) -> None:
        check(self, "encoder.reading")
        for part in self.distance.split("+") if self.distance else ():
            choose(part, _KNOWN, "encoder.reading.distance")

    def __bool__(self) -> bool:
        return self != Reading()

    @property
    def of_sentences(self) -> str:
        """The first part of the distance that sentence vectors alone are enough for; empty where there is none."""
        return next((part for part in self.distance.split("+") if part in SENTENCE_DISTANCES), "")


def parse_reading(value: Any, where: str) -> Reading:
    """Read a reading from JSON; what is none is refused with the name of its file."""
    try:
        return parse_table(Reading, value, where)
    except UserError as error:
        raise InputError(f"{error}; copy it again") from None


def read_reading(folder: Path) -> Reading:
    """Read a model folder's own reading; the empty one where it has none."""
    path = folder / FILE
    if not path.is_file():
        return Reading()
    try:
        value = json.loads(read_input(path))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; copy the complete folder of the model again") from None
    return parse_reading(value, str(path))


def write_reading(folder: Path, reading: Reading) -> None:
    """Write a model folder's own reading, unless it is empty."""
    if reading:
        write_json(folder / FILE, asdict(reading))
