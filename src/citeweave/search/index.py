"""An index: the vectors of a corpus's papers in every space of a model, and what is shown of a paper.

    index/
      vectors/           the encoder's vectors: `similarity/vectors.py`
      spaces/0.npy       vectors of length 1 in the space of the first aspect, and so on; (papers, dimension)
      aspects/           the model's aspect heads, so that a text finds its way into the same spaces
      papers/            title, year, cited_as: how often the paper is cited with each intent
      ids/               from any id of a paper to its row
      sentences/         with `contexts`: citing sentences, `citing_sentences.py`
      manifest.json      model, revision, corpus, aspects

    index = Index.open("index/")
    index.row("doi:10.1/x"), index.hit(7, score=0.5)

Carries all it shows: the corpus may move. Does not search (`exact.py`, `searching.py`), and knows no abstract.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn, open_matrix, open_numbers
from citeweave.corpus.index import IdIndex
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.errors import ArtefactError, UserError, choose
from citeweave.files import Manifest, check_files, read_manifest
from citeweave.hashing import hash_texts
from citeweave.search.citing_sentences import CitingSentences
from citeweave.similarity.vectors import Vectors

KIND, VERSION = "index", 1
INTENT_BITS = 8
"""Columns of `cited_as`: one a bit of `Intent`."""

NO_VECTOR = -2
"""Row of an id whose paper has no vector."""

_NEAR_IDS, _LOOKED_AT = 3, 5000


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper that was found."""

    id: str
    title: str
    year: int | None
    score: float
    """A cosine unless the search says otherwise; higher is better."""

    row: int
    """Of the index."""

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "title": self.title, "year": self.year, "score": self.score, "row": self.row}


class Index:
    """An index folder, memory-mapped: opening reads its manifest and the sizes of its files."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.vectors = Vectors.open(folder / "vectors")
        self.titles = TextColumn(folder / "papers", "title")
        self.years: NDArray[np.int16] = open_numbers(folder / "papers" / "year.npy", np.int16)
        papers = len(self.vectors)
        if len(self.titles) != papers or len(self.years) != papers:
            raise ArtefactError(f"{folder} is damaged: its columns do not fit together; build the index again")
        self.cited_as: NDArray[np.int32] = open_matrix(
            folder / "papers" / "cited_as.npy", np.int32, (papers, INTENT_BITS)
        )
        """Citations with each intent, by bit; (papers, 8)."""
        facts = manifest.facts
        try:
            self.corpus, self.model = str(facts["corpus"]), str(facts["model_path"])
            """Hash of the corpus; where the model was when the index was made."""
            self.runtime, self.aspects = str(facts["runtime"]), tuple(str(name) for name in facts["aspects"])
        except (KeyError, TypeError):
            raise ArtefactError(f"{folder}/manifest.json does not describe an index; build it again") from None

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        return cls(folder, manifest)

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}: {len(self):,} papers by {self.vectors.provenance.label})"

    @cached_property
    def heads(self) -> AspectHeads | None:
        """The model's aspect heads, None where it has none."""
        # a whole path, as a bare name may be that of a model
        return find_heads(self.folder.resolve()) if self.aspects else None

    @cached_property
    def sentences(self) -> CitingSentences | None:
        """The citing sentences, None where the index was made without them."""
        folder = self.folder / "sentences"
        return CitingSentences(folder, len(self)) if folder.is_dir() else None

    @property
    def known_intents(self) -> int:
        """Bits of the intents with which some paper is known to be cited."""
        of_papers = sum(1 << bit for bit in range(self.cited_as.shape[1]) if self.cited_as[:, bit].any())
        of_sentences = 0 if self.sentences is None else int(np.bitwise_or.reduce(self.sentences.intents, initial=0))
        return of_papers | of_sentences

    def check_aspect(self, aspect: str) -> None:
        """Refuse a space that the index does not have; the empty name is the encoder's own."""
        if aspect and not self.aspects:
            raise UserError(
                f"--aspect is {aspect!r}, but {self.vectors.provenance.model}, the model of {self.folder}, has no aspect "
                "heads; leave it out, or train one that has with `citeweave run sciaspect_hybrid` and index with it"
            )
        if aspect:
            choose(aspect, (*self.aspects, ALL), "--aspect")

    def space(self, aspect: str) -> list[NDArray[Any]]:
        """Matrices (papers, dimension) that side by side are the vectors of a space."""
        self.check_aspect(aspect)
        if not aspect:
            return [self.vectors.matrix]
        names = self.aspects if aspect == ALL else (aspect,)
        return [self._space(self.aspects.index(name)) for name in names]

    def take(self, rows: NDArray[Any], aspect: str) -> NDArray[np.float32]:
        """Vectors of these papers in a space, (rows, dimension)."""
        return np.concatenate([np.asarray(part[rows], np.float32) for part in self.space(aspect)], axis=1)

    def row(self, id: str) -> int:
        """The row of a paper by any of its ids."""
        row = int(self._ids.rows_of(hash_texts([id.encode("utf-8", "replace").decode()]))[0])
        if row == NO_VECTOR:
            raise UserError(f"paper {id!r} has no vector in {self.folder}, as it has no text; ask with another paper")
        if row < 0:
            raise UserError(f"paper {id!r} is not in {self.folder}, which has {len(self):,} papers{self._near(id)}")
        return row

    def hit(self, row: int, score: float) -> Hit:
        return Hit(self.vectors.ids[row], self.titles[row], int(self.years[row]) or None, score, row)

    @cached_property
    def _ids(self) -> IdIndex:
        found = IdIndex.open(self.folder / "ids")
        if len(found.rows) and int(found.rows.max()) >= len(self):
            raise ArtefactError(
                f"{self.folder}/ids is damaged: it names rows that are not there; build the index again"
            )
        return found

    def _space(self, number: int) -> NDArray[Any]:
        if self.heads is None or self.heads.names != self.aspects:
            raise ArtefactError(f"{self.folder}/aspects does not fit the manifest; build the index again")
        shape = (len(self), self.heads.dimension(self.aspects[number]))
        return open_matrix(self.folder / "spaces" / f"{number}.npy", self.vectors.provenance.dtype, shape)

    def _near(self, id: str) -> str:
        """Ids that look like one that is not there; few are compared closely, as there may be millions."""
        some = min(4, max(1, len(id) // 2))
        head, tail = id[:some], id[-some:]
        alike: list[str] = []
        for known in self.vectors.ids:
            if known.startswith(head) or known.endswith(tail):
                alike.append(known)
                if len(alike) == _LOOKED_AT:
                    break
        near = difflib.get_close_matches(id[:200], alike, _NEAR_IDS)
        if near:
            return f"; did you mean {', '.join(map(repr, near))}?"
        return f" with ids such as {self.vectors.ids[0]!r}"
