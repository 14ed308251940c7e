"""Embed papers into a Vectors folder, block by block.

    embed_texts(encoder, corpus_ids, texts, Path("vectors"), text_recipe=TextRecipe().hash)

Papers without text, or with a vector of zeros, get none; they are counted in the manifest. A folder that was made of
the same ids, texts and encoder is opened and nothing is computed. Does not go on in the middle of an interrupted run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.encoders.encoder import Encoder
from citeweave.errors import UserError
from citeweave.files import matches
from citeweave.hashing import hash_texts
from citeweave.progress import QUIET, Advance, Reporter
from citeweave.similarity.vectors import KIND, VERSION, Vectors, new_vectors

BLOCK = 8192
"""Papers in memory at a time."""

NO_TEXT = "no text, or a vector of zeros"


def embed_texts(
    encoder: Encoder,
    ids: Sequence[str],
    texts: Sequence[str],
    folder: str | Path,
    *,
    text_recipe: str,
    dtype: str = "float32",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors:
    """Vectors of the papers' texts as a folder; `ids` and `texts` are asked for slices only and may be read lazily."""
    if len(ids) != len(texts):
        raise UserError(f"{len(ids)} ids for {len(texts)} texts; give one text a paper")
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": text_recipe}
    recipe: dict[str, Any] = {**facts, "dtype": dtype, "ids": _hash(ids), "texts": _hash(texts)}
    if matches(Path(folder), KIND, VERSION, recipe):
        reporter.say(f"{folder} is there already: same papers, texts and model")
        return Vectors.open(folder)
    with (
        new_vectors(folder, **facts, dtype=dtype, recipe=recipe, overwrite=overwrite) as writer,
        reporter.task("embedding", len(ids), "papers") as advance,
    ):
        for start in range(0, len(ids), BLOCK):
            names, block = list(ids[start : start + BLOCK]), texts[start : start + BLOCK]
            inner = _Inner(advance)
            vectors = encoder.encode(block, reporter=inner)  # (papers, dimension)
            advance(len(names) - inner.done)
            filled = np.asarray(vectors.any(axis=1))  # (papers,)
            writer.tally.reject("vectors", NO_TEXT, int((~filled).sum()))
            writer.append([names[row] for row in np.flatnonzero(filled).tolist()], vectors[filled])
        return writer.finish()


def _hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(texts), BLOCK):
        # lone surrogates are replaced as they are when texts are read
        block = [text.encode("utf-8", "replace").decode() for text in texts[start : start + BLOCK]]
        digest.update(hash_texts(block).tobytes())
    return digest.hexdigest()[:16]


class _Inner(Reporter):
    """Hands the progress of one block on to the task of the whole."""

    def __init__(self, onward: Advance) -> None:
        super().__init__(quiet=True)
        self.onward, self.done = onward, 0

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        yield self._advance

    def _advance(self, amount: int) -> None:
        self.done += amount
        self.onward(amount)
