"""What vectors of any kind share: where they come from, how ids are looked up, which of them were met before.

Used by `vectors.py`, one row a paper, and `sentence_vectors.py`, several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.manifest import Manifest
from citeweave.errors import ArtefactError, UserError
from citeweave.hashing import Keys, hash_texts

DTYPES = ("float16", "float32")
MAX_DIMENSION = 65_536
"""Longest vector; a longer one is no vector of a paper."""

TWICE = "id given before"
NOT_FINITE = "number that is not finite"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where vectors come from: whether two of them may be compared."""

    model: str
    """Name of the model, empty where it is not known."""

    revision: str
    """Version of the model, empty where it is not known."""

    text_recipe: str
    """Hash of how a paper became the text that the model read, empty where it is not known."""

    dimension: int
    dtype: str
    source: str
    """What the vectors were made or read from."""

    def check_same(self, other: Provenance) -> None:
        """Refuse vectors of another model, dimension or text recipe.

        What one side does not know about its revision or its text recipe is no difference; an unknown model is.
        """
        differences = []
        if self.model != other.model:
            differences.append("the models")
        if self.dimension != other.dimension:
            differences.append(f"the dimensions ({self.dimension} and {other.dimension})")
        if self.revision and other.revision and self.revision != other.revision:
            differences.append("the revisions of the model")
        if self.text_recipe and other.text_recipe and self.text_recipe != other.text_recipe:
            differences.append(f"the text recipes ({self.text_recipe[:12]} and {other.text_recipe[:12]})")
        if differences:
            raise UserError(
                f"vectors of {self.label} and of {other.label} cannot be compared: {', '.join(differences)} differ; "
                "embed both with the same model and text"
            )

    @property
    def label(self) -> str:
        """The model and its revision, for a message."""
        if not self.model:
            return "an unnamed model"
        return f"{self.model}@{self.revision}" if self.revision else self.model


class SeenKeys:
    """The keys met so far, 8 bytes each: sorted runs, of which the last two become one when they are alike in size."""

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def add(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of the keys were not met before; of equal ones the first."""
        fresh = np.zeros(len(keys), bool)
        fresh[np.unique(keys, return_index=True)[1]] = True
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            fresh &= run[at] != keys
        if fresh.any():
            self._runs.append(np.sort(keys[fresh]))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs[-1] = np.sort(np.concatenate([self._runs[-1], last]), kind="stable")
        return fresh


def id_keys(ids: Sequence[str]) -> Keys:
    """Hashes of ids, as of those in a column."""
    # lone surrogates are replaced as they are when ids are written
    return hash_texts([text if text.isascii() else text.encode("utf-8", "replace").decode() for text in ids])


def read_facts(folder: Path, manifest: Manifest) -> tuple[Provenance, int]:
    """Provenance and number of rows, as a manifest tells them."""
    facts = manifest.facts if isinstance(manifest.facts, dict) else {}
    texts = [facts.get(name) for name in ("model", "revision", "text_recipe", "dtype", "source")]
    dimension, rows = facts.get("dimension"), facts.get("rows")
    known = all(isinstance(text, str) for text in texts) and facts.get("dtype") in DTYPES
    if not known or type(dimension) is not int or type(rows) is not int or dimension < 1 or rows < 1:
        raise ArtefactError(f"{folder}/manifest.json does not describe vectors: it is damaged; make them again")
    model, revision, text_recipe, dtype, source = map(str, texts)
    return Provenance(model, revision, text_recipe, dimension, dtype, source), rows
