"""The model of an index, loaded to make more of its vectors; another one than made those that are there is refused.

Vectors that were made elsewhere, such as by `citeweave embed` on a machine with a graphics card.

    given = Given(Vectors.open("vectors"), SentenceVectors.open("sentence_vectors"))
    for is_given, rows in split_given(given, records, rows):      those that have one, and the others
        make_vectors(artifact, chosen, how, given if is_given else None)

They must be of the very model and text recipe of the index, and are taken by the papers' ids: whether a paper had the
same text then is not seen. So those of another corpus are refused, unless the ids are trusted. Papers without a given
vector are embedded here.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter
from citeweave.core.columns import MatrixWriter, TextColumn, write_numbers
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys
from citeweave.encoders.aspects import AspectHeads, find_heads, save_heads
from citeweave.encoders.embed import SHARD
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.search.index import Index
from citeweave.search.segment import HAS_NONE, HAS_VECTOR, PRECOMPUTED
from citeweave.search.segment_papers import Records, SelectedPapers, spread
from citeweave.search.segment_vectors import (
    SENTENCES,
    Embedding,
    embed_abstracts,
    embed_segment,
    vector_facts,
    write_spaces,
)
from citeweave.search.state import HEADS
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors, id_keys


def open_embedding(
    index: Index,
    model: str | Path | None = None,
    *,
    device: str = "auto",
    shard: int = SHARD,
    encoder: TorchEncoder | None = None,
    sentences: bool = False,
) -> Embedding:
    """The model where it was when the index was made, or where `model` says it is now; `encoder` is one loaded before.

    `sentences` asks for their vectors also where the index has none so far.
    """
    where = str(model or index.model)
    if not model and Path(where).is_absolute() and not Path(where).is_dir():
        raise UserError(f"the model of {index.folder} is no longer at {where}; say with --model where it is")
    encoder = encoder or load_encoder(where, device=device, runtime=index.runtime)
    facts = index.state.facts
    sentences = sentences or bool(facts.get("sentences"))
    how = Embedding(encoder, find_heads(where), str(facts["dtype"]), sentences, shard)
    if index.provenance is not None:
        index.provenance.check_same(how.provenance)
        if (how.heads.hash if how.heads else "") != facts.get("heads"):
            raise UserError(
                f"{index.folder} was made with other aspect heads than those of {where}; give the index's own model "
                "with --model, or build the index again"
            )
    return how


def model_facts(how: Embedding | None) -> dict[str, Any]:
    """What a state tells about the model: nothing before there are vectors."""
    heads = how.heads if how else None
    return {
        "provenance": asdict(how.provenance) if how else None,
        "aspects": list(heads.names) if heads else [],
        "heads": heads.hash if heads else "",
    }


def write_heads(folder: Path, heads: AspectHeads | None) -> None:
    """Keep the heads beside the segments, in a folder of their own name; before a state names them."""
    if heads is not None:
        place = folder / HEADS / heads.hash
        place.mkdir(parents=True, exist_ok=True)
        save_heads(place, heads)


# Vectors that were made elsewhere, such as by `citeweave embed` on a machine with a graphics card.

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Given:
    """Vectors of papers by their ids."""

    vectors: Vectors
    sentences: SentenceVectors | None = None
    trust_ids: bool = False
    """Whether equal ids mean equal papers, also in another corpus."""

    def check(self, how: Embedding, corpus: str) -> None:
        """Refuse vectors of another model or text, or of another corpus than that of this hash."""
        how.provenance.check_same(self.vectors.provenance)
        if self.sentences is not None:
            if not how.sentences:
                raise UserError("sentence vectors are given, but the index keeps none; add --sentences")
            how.provenance.check_same(self.sentences.provenance)
        self.check_corpus(corpus)

    def check_corpus(self, corpus: str) -> None:
        """Refuse vectors that were made of another corpus than that of this hash, as far as they say of which."""
        manifests = {f"{self.vectors.folder}": self.vectors.manifest}
        if self.sentences is not None and self.sentences.manifest is not None:
            manifests["--sentence-vectors"] = self.sentences.manifest
        for name, manifest in manifests.items():
            if not self.trust_ids and manifest.recipe.get("corpus") not in (None, "", corpus):
                raise UserError(
                    f"{name} holds vectors of another corpus, in which an id may be of another paper or another text; "
                    "embed this corpus, or add --trust-ids where equal ids are equal papers"
                )

    def hashes(self) -> list[str]:
        """What they are, for a recipe."""
        return [self.vectors.manifest.hash, _hash(self.sentences) if self.sentences else ""]

    def has(self, records: Records) -> NDArray[np.bool_]:
        """Papers that need no model: a sound vector is given, or there is no text; (papers,)."""
        places = places_of(records.texts["id"].keys(), self.vectors.ids.keys())
        found = places >= 0
        for start in range(0, len(places), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = self.vectors.matrix[places[part][found[part]]]
            found[part][found[part]] = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
        empty = (records.texts["title"].lengths() == 0) & (records.texts["abstract"].lengths() == 0)
        return np.asarray(found | empty)


def _hash(sentences: SentenceVectors) -> str:
    if sentences.manifest is not None:
        return sentences.manifest.hash
    return hashlib.sha256(np.asarray(sentences.matrix).tobytes()).hexdigest()


def split_given(given: Given | None, records: Records, rows: NDArray[np.int64]) -> list[tuple[bool, NDArray[np.int64]]]:
    """These rows of the records as those that need no model and those that do; only parts that hold any."""
    known = np.zeros(len(rows), bool) if given is None else given.has(records)[rows]
    parts = [(True, rows[known]), (False, rows[~known])]
    return [(is_given, part) for is_given, part in parts if len(part)]


def make_vectors(
    artifact: ArtifactWriter, chosen: SelectedPapers, how: Embedding, given: Given | None, reporter: Reporter = QUIET
) -> dict[str, Any]:
    """Vectors of the papers that lie in the artifact's folder: the given ones, or made here; for its manifest."""
    if given is None:
        return embed_segment(artifact, how, reporter)
    return take_given(artifact, chosen, how, given, reporter)


def places_of(wanted: Keys, keys: Keys) -> NDArray[np.int64]:
    """Where each wanted key stands, -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[at] == wanted, at, -1)


def take_given(
    artifact: ArtifactWriter, chosen: SelectedPapers, how: Embedding, given: Given, reporter: Reporter = QUIET
) -> dict[str, Any]:
    """Write the given vectors of the papers that lie in the artifact's folder; what its manifest should tell."""
    folder = artifact.folder
    keys = TextColumn(folder / "papers", "id").keys()
    rows = places_of(keys, given.vectors.ids.keys())  # (papers,)
    writer = MatrixWriter(folder / "matrix.npy", how.dtype, how.encoder.dimension)
    status = np.full(len(chosen), HAS_NONE, np.uint8)
    for start in range(0, len(chosen), _BLOCK):
        part = rows[start : start + _BLOCK]
        block = np.zeros((len(part), how.encoder.dimension), how.dtype)
        with np.errstate(over="ignore"):
            block[part >= 0] = given.vectors.matrix[part[part >= 0]]
        block[~np.isfinite(block).all(axis=1)] = 0
        status[start : start + _BLOCK][block.any(axis=1)] = HAS_VECTOR
        writer.append(block)
    writer.close()
    write_numbers(folder / "embedded.npy", status)
    spaces = write_spaces(folder, how, len(chosen), reporter) if how.heads else []
    if how.sentences:
        make_sentences(artifact, how, given, reporter)
    return vector_facts(how.provenance, spaces, status, [PRECOMPUTED])


def make_sentences(artifact: ArtifactWriter, how: Embedding, given: Given | None, reporter: Reporter = QUIET) -> None:
    """Vectors of sentences of the papers that lie in the artifact's folder: all of them given, or made here."""
    if given is None or given.sentences is None:
        embed_abstracts(artifact, how, reporter)
    else:
        keys = TextColumn(artifact.folder / "papers", "id").keys()
        _take_sentences(artifact.folder / SENTENCES, keys, how, given.sentences)


def _take_sentences(folder: Path, keys: Keys, how: Embedding, given: SentenceVectors) -> None:
    known = given.ids.keys() if isinstance(given.ids, TextColumn) else id_keys(given.ids)
    rows = places_of(keys, known)  # (papers,)
    starts = np.where(rows >= 0, given.offsets[rows], 0)
    counts = np.where(rows >= 0, given.offsets[rows + 1] - starts, 0)
    write_numbers(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]), np.int64)
    matrix = MatrixWriter(folder / "matrix.npy", how.dtype, how.encoder.dimension)
    numbers = []
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        places = spread(starts[part], counts[part])
        matrix.append(given.matrix[places])
        numbers.append(np.asarray(given.numbers)[places])
    matrix.close()
    write_numbers(folder / "numbers.npy", np.concatenate([np.empty(0, np.int32), *numbers]), np.int32)
