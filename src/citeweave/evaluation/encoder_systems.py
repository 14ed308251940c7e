"""Encoders, judged by the vectors they make of a suite's texts; vectors are kept in a cache by content and model.

    <cache>/vectors/<hash of texts, model and text recipe>/      a folder of vectors, as `embed` would write it

Batches are saved there by time, so an interrupted evaluation resumes in the middle of them; without a cache they are
saved in the folder of the evaluation (`resume_in`) and removed with it. A text of which a model gives zeros, or a number that is not finite, has no vector; such texts are counted.

Aspect spaces of an encoder, judged: one space, all side by side, or for every query the one it asks about.

    spaces = spaces_of(Encoded(encoder), heads)      {"encoder": ..., "method": ..., "all": ..., "matching": ...}

All of them share the encoder's vectors, so that papers are read once; a space is a projection of them.
Which aspect a query asks about is the group of its pool, in CSFCube and in the suites `aspects` and `intents`:

    background, problem  -> the space of backgrounds        method -> of methods        result, finding -> of results

Does not load encoders or heads.

BM25 as a judged ranker: words alone, the baseline of every search task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import matches
from citeweave.core.errors import EmptyResultError
from citeweave.core.executor import Executor, ShardTask
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import SEPARATOR, TextRecipe
from citeweave.encoders.aspects import ALL, AspectHeads
from citeweave.encoders.embed import SHARD, embed_texts, plan_of_texts, text_maker
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.shards import Hired, write_vectors
from citeweave.evaluation.systems import (
    ABSENT,
    PRESENT,
    Judged,
    NoAnswerError,
    PaperVectors,
    Resumable,
    find_top,
    score_pairs,
)
from citeweave.evaluation.tasks import DISTANCES, Pools, RankingTask, SearchTask, Suite, Task, TaskTexts
from citeweave.vectors.bm25 import Bm25
from citeweave.vectors.vectors import KIND, VERSION

if TYPE_CHECKING:
    from citeweave.encoders.remote_shards import MadeHere


_RECIPE = TextRecipe()


class Encoded:
    """An encoder of whole papers."""

    distances = DISTANCES

    def __init__(
        self,
        encoder: Encoder,
        *,
        cache: Path | None = None,
        text_recipe: TextRecipe = _RECIPE,
        reporter: Reporter = QUIET,
    ) -> None:
        self.encoder, self._cache, self._recipe, self._reporter = encoder, cache, text_recipe, reporter
        self.name = encoder.name
        self.revision = hash_json([encoder.revision, text_recipe.hash])[:16]
        self._work: Path | None = None
        self._made: dict[str, PaperVectors] = {}
        self.counts: dict[str, dict[str, int]] = {}
        """Hash of texts -> dimension and lost vectors, of all that were read, here or by a crew."""

    def resume_in(self, folder: Path | None) -> None:
        self._work = folder

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.encoder.revision,
            "dimension": max((each.get("dimension", 0) for each in self.counts.values()), default=None),
            "text_recipe": self._recipe.hash,
            "texts without usable vector": sum(each.get("lost", 0) for each in self.counts.values()),
        }

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        if texts.hash not in self._made:
            self._made[texts.hash] = self._encode(texts)
        return self._made[texts.hash]

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return score_pairs(self.vectors(texts), pools, distance)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return find_top(self.vectors(texts), queries, candidates, depth, distance)

    def keep(self, texts: TaskTexts, crew: Executor, work: ShardTask) -> None:
        """See to it that the cache, if there is one, has these texts' vectors: a crew makes the shards that lack."""
        if self._cache is None or not any(written := texts.paper_texts(self._recipe)):
            return
        plan = plan_of_texts(self.encoder, texts.ids, written, text_recipe=self._recipe.hash)
        folder = self._folder(texts)
        if not matches(folder, KIND, VERSION, plan.recipe):
            with suppress(EmptyResultError):  # told of the task, when it is judged
                write_vectors(folder, plan, Hired(crew, work), reporter=self._reporter)

    def shards(self, texts: TaskTexts) -> MadeHere:
        """A worker's side of `keep`: the number of a shard -> its bytes."""
        from citeweave.encoders.remote_shards import MadeHere

        written = texts.paper_texts(self._recipe)
        return MadeHere(text_maker(self.encoder, written, "float32"), len(written), SHARD)

    def _encode(self, texts: TaskTexts) -> PaperVectors:
        written = texts.paper_texts(self._recipe)
        has_text = np.array([bool(text) for text in written])  # (rows,)
        matrix = self._read(texts, written) if has_text.any() else np.zeros((len(written), 1), np.float32)
        usable = np.isfinite(matrix).all(axis=1) & matrix.any(axis=1)  # (rows,)
        if has_text.any() and not usable.any():
            raise self._useless(len(written))
        matrix[~usable] = 0
        found = {"dimension": matrix.shape[1], "lost": int((has_text & ~usable).sum())}
        self.counts.setdefault(texts.hash, {}).update(found)
        return PaperVectors(matrix, np.where(has_text & usable, PRESENT, ABSENT).astype(np.uint8))

    def _read(self, texts: TaskTexts, written: Sequence[str]) -> NDArray[np.float32]:
        """(rows, dimension) out of the cache, or made now; zeros where a vector was of no use."""
        if self._place is None:
            return np.array(self.encoder.encode(written, reporter=self._reporter), np.float32)
        try:
            vectors = embed_texts(
                self.encoder,
                texts.ids,
                written,
                self._folder(texts),
                text_recipe=self._recipe.hash,
                reporter=self._reporter,
            )
        except EmptyResultError:
            raise self._useless(len(written)) from None
        rows = vectors.rows(texts.ids)  # -1 where no vector was kept
        matrix = np.array(vectors.matrix[np.maximum(rows, 0)], np.float32)
        matrix[rows < 0] = 0
        return matrix

    @property
    def _place(self) -> Path | None:
        """Where vectors are saved: the cache, or the folder of the evaluation for as long as that takes."""
        return self._cache or self._work

    def _folder(self, texts: TaskTexts) -> Path:
        assert self._place is not None
        # also by its name, which stands in the folder: `run` calls the model that it starts from "start"
        return self._place / "vectors" / hash_json([texts.hash, self.revision, self.name])[:24]

    def _useless(self, texts: int) -> NoAnswerError:
        return NoAnswerError(
            f"{self.name} gives no usable vector of {texts:,} texts: all are zeros or not finite; check the model"
        )


# Aspect spaces of an encoder, judged: one space, all side by side, or for every query the one it asks about.

ENCODER, MATCHING = "encoder", "matching"
"""The encoder's own vector; the space that a query asks about."""

ALSO_CALLED = {"problem": "background", "finding": "result"}
"""The made-up literature's aspects -> the intents with which its papers cite those that share them."""


class AspectSpace:
    """The vectors of an encoder in the space of one aspect, or of all side by side."""

    distances = DISTANCES

    def __init__(self, whole: Judged, heads: AspectHeads, aspect: str) -> None:
        heads.check(aspect)
        self.whole, self._heads, self._aspect = whole, heads, aspect
        self.name = f"{whole.name} ({aspect})"
        self.revision = hash_json([whole.revision, heads.hash, aspect])[:16]
        self._last: tuple[TaskTexts, PaperVectors] | None = None  # tasks of a suite mostly share their texts

    def resume_in(self, folder: Path | None) -> None:
        _resume_in(self.whole, folder)

    def facts(self) -> dict[str, Any]:
        found = {**self.whole.facts(), "name": self.name, "aspect": self._aspect, "heads": self._heads.hash}
        return {**found, "dimension": self._heads.dimension(self._aspect)}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        if self._last is None or self._last[0] is not texts:
            self._last = texts, self._project(self.whole.vectors(texts))
        return self._last[1]

    def _project(self, found: PaperVectors) -> PaperVectors:
        matrix = np.zeros((len(found.matrix), self._heads.dimension(self._aspect)), np.float32)  # (rows, dimension)
        if found.present.any():
            matrix[found.present] = self._heads.project(found.matrix[found.present], self._aspect)
        return PaperVectors(matrix, found.state)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return score_pairs(self.vectors(texts), pools, distance)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return find_top(self.vectors(texts), queries, candidates, depth, distance)


class MatchingSpace:
    """Every query is answered in the space of the aspect that it asks about."""

    distances = DISTANCES

    def __init__(self, whole: Judged, heads: AspectHeads) -> None:
        self.whole, self._heads = whole, heads
        self._spaces = {name: AspectSpace(whole, heads, name) for name in heads.names}
        self.name = f"{whole.name} ({MATCHING})"
        self.revision = hash_json([whole.revision, heads.hash, MATCHING])[:16]

    def resume_in(self, folder: Path | None) -> None:
        _resume_in(self.whole, folder)

    def facts(self) -> dict[str, Any]:
        return {**self.whole.facts(), "name": self.name, "aspect": MATCHING, "heads": self._heads.hash}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError(
            f"{self.name} has a vector a query's aspect, and this task asks about none; judge one space, such as "
            f"--aspect {self._heads.names[0]}"
        )

    def answering(self, facet: str) -> Judged:
        """The space of an aspect as a task calls it."""
        name = ALSO_CALLED.get(facet, facet)
        if name not in self._spaces:
            raise NoAnswerError(
                f"queries ask about {facet!r}, and {self.whole.name} has the spaces {', '.join(self._spaces)}; "
                f"--aspect {MATCHING} needs the very one"
            )
        return self._spaces[name]

    def count_zeros(self, texts: TaskTexts) -> int:
        """Vectors of zeros, those of the encoder itself."""
        return self.whole.vectors(texts).count_zeros()

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        if pools.groups is None:
            raise self._unasked()
        found = np.full(len(pools.candidates), np.nan)
        facets = np.array(pools.groups)  # (queries,)
        for facet in dict.fromkeys(pools.groups):
            space, chosen = self.answering(facet), np.flatnonzero(facets == facet)
            part, pairs = _part(pools, chosen)
            found[pairs] = space.scores(texts, part, distance)
        return found

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        raise self._unasked()

    def _unasked(self) -> NoAnswerError:
        return NoAnswerError(
            f"--aspect {MATCHING} answers a query by the aspect that it asks about, and this task's queries ask about "
            f"none; judge one space, such as --aspect {self._heads.names[0]}, or all of them: --aspect every"
        )


def _resume_in(whole: Judged, folder: Path | None) -> None:
    if isinstance(whole, Resumable):
        whole.resume_in(folder)


def _part(pools: Pools, chosen: NDArray[np.int64]) -> tuple[Pools, NDArray[np.int64]]:
    """Pools of some queries alone, and which pairs those are."""
    spans = [np.arange(pools.offsets[query], pools.offsets[query + 1]) for query in chosen.tolist()]
    pairs = np.concatenate(spans)
    at = chosen.tolist()
    part = replace(
        pools,
        queries=pools.queries[chosen],
        offsets=np.cumsum([0, *(len(span) for span in spans)]),
        candidates=pools.candidates[pairs],
        grades=pools.grades[pairs],
        names=[pools.names[query] for query in at],
        sentences=None if pools.sentences is None else [pools.sentences[query] for query in at],
        groups=None,
        scored=None if pools.scored is None else pools.scored[pairs],
    )
    return part, pairs


def spaces_of(whole: Judged, heads: AspectHeads) -> dict[str, Judged]:
    """The encoder, its spaces, all side by side, and for every query its own; by the name that --aspect gives them."""
    spaces: dict[str, Judged] = {name: AspectSpace(whole, heads, name) for name in (*heads.names, ALL)}
    return {ENCODER: whole, **spaces, MATCHING: MatchingSpace(whole, heads)}


def judgeable(suite: Suite, spaces: Iterable[str]) -> list[str]:
    """The names of those spaces that a suite can judge: `matching` only where it says which aspect is asked about."""
    names = list(spaces)
    return [name for name in names if name != MATCHING or any(_asks_about(task, names) for task in suite.tasks)]


def _asks_about(task: Task, names: Sequence[str]) -> bool:
    pools = task.pools if isinstance(task, RankingTask) else task.judged if isinstance(task, SearchTask) else None
    facets = set(pools.groups or ()) if pools else set()
    return bool(facets) and {ALSO_CALLED.get(facet, facet) for facet in facets} <= set(names)


# BM25 as a judged ranker: words alone, the baseline of every search task.


class Lexical:
    """BM25 over title and abstract; word statistics are those of the suite's own texts."""

    name, revision = "bm25", "bm25"
    distances: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._index: tuple[str, Bm25, list[str]] | None = None

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "statistics": "of the suite's texts"}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError("bm25 has no vectors, so it can rank but not classify or regress")

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        index, words = self._open(texts)
        queries = [words[row] for row in pools.queries.tolist()]
        scores = index.scores(queries, pools.offsets, pools.candidates)
        has_text = np.array([bool(text) for text in words])  # (rows,)
        answered = np.repeat(has_text[pools.queries], np.diff(pools.offsets)) & has_text[pools.candidates]
        return np.where(answered, scores, np.nan)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        words = _words(texts)
        best = Bm25([words[row] for row in candidates.tolist()]).top([words[row] for row in queries.tolist()], depth)
        # a paper that shares no word with the question was not found
        found = best.scores > 0  # (queries, depth)
        return np.where(found, candidates[best.rows], -1), np.where(found, best.scores, np.nan)

    def _open(self, texts: TaskTexts) -> tuple[Bm25, list[str]]:
        if self._index is None or self._index[0] != texts.hash:
            words = _words(texts)
            self._index = texts.hash, Bm25(words), words
        return self._index[1], self._index[2]


def _words(texts: TaskTexts) -> list[str]:
    return [text.replace(SEPARATOR, " ") for text in texts.paper_texts()]
