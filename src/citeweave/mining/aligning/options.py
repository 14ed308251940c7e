"""How sentences are aligned: the `[alignment]` table of a recipe.

    [alignment]
    by = "contexts"                      # through the sentences that cite both papers; or "abstracts"
    encoder = "recipe:aspire_context"    # a model, or a recipe whose model is trained first

Does not align: `mining/alignment.py` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from citeweave.errors import UserError, choose

CONTEXTS, ABSTRACTS = "contexts", "abstracts"
METHODS = (CONTEXTS, ABSTRACTS)


@dataclass(frozen=True, slots=True)
class AlignmentOptions:
    """How to align."""

    by: str = CONTEXTS
    """`contexts`: in either abstract the sentence that is nearest to any sentence that cites both papers (ASPIRE's ts);
    `abstracts`: the two sentences that are nearest to each other (its abs)."""

    encoder: str = "minilm"
    """The frozen encoder's name, for whoever loads it: minilm, a folder, a hub name; in a recipe also recipe:NAME."""

    def __post_init__(self) -> None:
        choose(self.by, METHODS, "--by")


def alignment_options(table: Mapping[str, Any]) -> AlignmentOptions:
    """Read an `[alignment]` table; an unknown key is refused with the nearest known one.

    >>> alignment_options({"by": "abstracts"})
    AlignmentOptions(by='abstracts', encoder='minilm')
    >>> alignment_options({"encodr": "minilm"})
    Traceback (most recent call last):
    citeweave.errors.UserError: alignment: key is 'encodr'; it must be one of by, encoder. Did you mean 'encoder'?
    """
    for key, value in table.items():
        choose(key, [field.name for field in dataclasses.fields(AlignmentOptions)], "alignment: key")
        if not isinstance(value, str) or not value:
            raise UserError(f"alignment.{key} is {value!r}; it must be a text, such as {AlignmentOptions()!r}")
    if "by" in table:
        choose(table["by"], METHODS, "alignment.by")
    return AlignmentOptions(**table)
