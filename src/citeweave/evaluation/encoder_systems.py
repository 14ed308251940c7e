"""Systems that encode a suite's texts: an encoder of papers, and its aspect spaces.

Vectors are cached by texts, model and text recipe:

    <cache>/vectors/<hash of texts, model and text recipe>/      a folder of vectors, as `embed` would write it

Batches are saved there from time to time, so an interrupted evaluation resumes; without a cache they are saved in the
folder of the evaluation (`resume_in`) and removed with it. A text whose vector is all zeros or not finite has no vector;
such texts are counted.

    spaces = aspect_spaces(EncoderSystem(encoder), heads)     {"encoder": ..., "method": ..., "all": ..., "matching": ...}

All aspect spaces are projections of the encoder's vectors, so papers are encoded once. `matching` scores each query in
the space of the aspect it asks about, the group of its pool in CSFCube and in the suites `aspects` and `intents`:

    background, problem  -> the background space        method -> the method space        result, finding -> the result space

Does not load encoders or heads: `open_system.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches
from citeweave.core.errors import EmptyResultError
from citeweave.core.executor import Executor, ShardTask
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import Ragged, to_offsets
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import OWN, AspectHeads
from citeweave.encoders.embed import SHARD, embed_texts, plan_texts, text_maker
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.shards import EncodingWorker, RemoteMaker, write_vectors
from citeweave.evaluation.options import DISTANCES
from citeweave.evaluation.systems import (
    ABSENT,
    PRESENT,
    Hits,
    NoAnswerError,
    PaperVectors,
    Resumable,
    Rows,
    Scores,
    SingleVectorSystem,
    System,
)
from citeweave.evaluation.tasks import Pools, RankingTask, SearchTask, Suite, Task, TaskTexts
from citeweave.vectors.vectors import KIND, VERSION

_RECIPE = TextRecipe()


class EncoderSystem(SingleVectorSystem):
    """An encoder as the system to evaluate: one vector per paper, cached by texts and model."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        cache: Path | None = None,
        text_recipe: TextRecipe = _RECIPE,
        reporter: Reporter = QUIET,
        same_as: EncoderSystem | None = None,
    ) -> None:
        """Evaluate an encoder; `same_as` is a system whose encoder gives the same vectors, which are made once for both."""
        self.encoder, self._cache, self._recipe, self._reporter = encoder, cache, text_recipe, reporter
        self.name = encoder.name
        self.revision = hash_json([encoder.revision, text_recipe.hash])[:16]
        self._work: Path | None = None
        self._encoded: dict[str, PaperVectors] = {} if same_as is None else same_as._encoded
        self.counts: dict[str, dict[str, int]] = {} if same_as is None else same_as.counts
        """Hash of texts -> dimension and number of unusable vectors, of texts encoded here or by an executor."""

    def resume_in(self, folder: Path | None) -> None:
        self._work = folder

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.encoder.revision,
            "dimension": max((each.get("dimension", 0) for each in self.counts.values()), default=None),
            "text_recipe": self._recipe.hash,
            "texts without usable vector": sum(each.get("lost", 0) for each in self.counts.values()),
        }

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        if texts.hash not in self._encoded:
            self._encoded[texts.hash] = self._encode(texts)
        return self._encoded[texts.hash]

    def fill_cache(self, texts: TaskTexts, executor: Executor, work: ShardTask) -> None:
        """Fill the encoder system's cache, if any, with the vectors of these texts; an executor encodes missing shards."""
        if self._cache is None or not any(paper_texts := texts.paper_texts(self._recipe)):
            return
        plan = plan_texts(self.encoder, texts.ids, paper_texts, text_recipe=self._recipe.hash)
        folder = self._folder(texts)
        if not artifact_matches(folder, KIND, VERSION, plan.recipe):
            with suppress(EmptyResultError):  # reported when the task is evaluated
                write_vectors(folder, plan, RemoteMaker(executor, work), reporter=self._reporter)

    def shards(self, texts: TaskTexts) -> EncodingWorker:
        """Return a worker's side of `fill_cache`: number of a shard -> its bytes."""
        paper_texts = texts.paper_texts(self._recipe)
        return EncodingWorker(text_maker(self.encoder, paper_texts, "float32"), len(paper_texts), SHARD)

    def _encode(self, texts: TaskTexts) -> PaperVectors:
        """Encode the papers of a task, count unusable vectors and mark their papers as absent."""
        paper_texts = texts.paper_texts(self._recipe)
        has_text = np.array([bool(text) for text in paper_texts])  # (rows,)
        matrix = self._matrix(texts, paper_texts) if has_text.any() else np.zeros((len(paper_texts), 1), np.float32)
        usable = np.isfinite(matrix).all(axis=1) & matrix.any(axis=1)  # (rows,)
        if has_text.any() and not usable.any():
            raise self._no_usable_vector(len(paper_texts))
        matrix[~usable] = 0
        counts = {"dimension": matrix.shape[1], "lost": int((has_text & ~usable).sum())}
        self.counts.setdefault(texts.hash, {}).update(counts)
        return PaperVectors(matrix, np.where(has_text & usable, PRESENT, ABSENT).astype(np.uint8))

    def _matrix(self, texts: TaskTexts, paper_texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) from the cache or encode them now; zeros where one is unusable."""
        if self._saved_in is None:
            return np.array(self.encoder.encode(paper_texts, reporter=self._reporter), np.float32)
        try:
            vectors = embed_texts(
                self.encoder,
                texts.ids,
                paper_texts,
                self._folder(texts),
                text_recipe=self._recipe.hash,
                reporter=self._reporter,
            )
        except EmptyResultError:
            raise self._no_usable_vector(len(paper_texts)) from None
        rows = vectors.rows(texts.ids)  # -1 where no vector was kept
        matrix = np.array(vectors.matrix[np.maximum(rows, 0)], np.float32)
        matrix[rows < 0] = 0
        return matrix

    @property
    def _saved_in(self) -> Path | None:
        """Where vectors are saved: the cache, or the folder of the evaluation while it runs."""
        return self._cache or self._work

    def _folder(self, texts: TaskTexts) -> Path:
        assert self._saved_in is not None
        # also by the model's name, which is stored in the folder: `run` calls its initial model "start"
        return self._saved_in / "vectors" / hash_json([texts.hash, self.revision, self.name])[:24]

    def _no_usable_vector(self, texts: int) -> NoAnswerError:
        return NoAnswerError(
            f"{self.name} gives no usable vector for {texts:,} texts: all are zeros or not finite; check the model"
        )


ENCODER, MATCHING = OWN, "matching"
"""Names of two spaces: the encoder's own vector, and for every query the aspect that it asks about."""

SPACE_OF_ASPECT = {"problem": "background", "finding": "result"}
"""Aspects of the synthetic literature -> the intents with which its papers cite those that share them."""


class AspectSpace(SingleVectorSystem):
    """System of an encoder's vectors projected into the space of one aspect, or into several side by side."""

    def __init__(self, encoder: System, heads: AspectHeads, aspect: str) -> None:
        heads.check(aspect)
        self.encoder_system, self._heads, self._aspect = encoder, heads, aspect
        self.name = f"{encoder.name} ({aspect})"
        self.revision = hash_json([encoder.revision, heads.hash, aspect])[:16]

    def resume_in(self, folder: Path | None) -> None:
        if isinstance(self.encoder_system, Resumable):
            self.encoder_system.resume_in(folder)

    def metadata(self) -> dict[str, Any]:
        shared = {
            **self.encoder_system.metadata(),
            "name": self.name,
            "aspect": self._aspect,
            "heads": self._heads.hash,
        }
        return {**shared, "dimension": self._heads.dimension(self._aspect)}

    def _make_vectors(self, texts: TaskTexts) -> PaperVectors:
        """Project the encoder's vectors into the space of the aspect."""
        vectors = self.encoder_system.vectors(texts)
        matrix = np.zeros((len(vectors.matrix), self._heads.dimension(self._aspect)), np.float32)  # (rows, dimension)
        if vectors.present.any():
            matrix[vectors.present] = self._heads.project(vectors.matrix[vectors.present], self._aspect)
        return PaperVectors(matrix, vectors.state)


class MatchingSpace:
    """System of an encoder with aspect heads that scores every query in the space of the aspect it asks about."""

    distances = DISTANCES

    def __init__(self, encoder: System, heads: AspectHeads) -> None:
        self.encoder_system, self._heads = encoder, heads
        self._spaces = {name: AspectSpace(encoder, heads, name) for name in heads.names}
        self.name = f"{encoder.name} ({MATCHING})"
        self.revision = hash_json([encoder.revision, heads.hash, MATCHING])[:16]

    def resume_in(self, folder: Path | None) -> None:
        if isinstance(self.encoder_system, Resumable):
            self.encoder_system.resume_in(folder)

    def metadata(self) -> dict[str, Any]:
        return {**self.encoder_system.metadata(), "name": self.name, "aspect": MATCHING, "heads": self._heads.hash}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError(
            f"{self.name} has one vector per aspect, but this task asks about no aspect; evaluate one space, such as "
            f"--aspect {self._heads.names[0]}"
        )

    def system_for(self, facet: str) -> System:
        """Return the encoder's system in an aspect's space, by the name that a task has for the aspect."""
        name = SPACE_OF_ASPECT.get(facet, facet)
        if name not in self._spaces:
            raise NoAnswerError(
                f"queries ask about {facet!r}, but {self.encoder_system.name} has the spaces {', '.join(self._spaces)}; "
                f"--aspect {MATCHING} needs a space of that name"
            )
        return self._spaces[name]

    def count_zeros(self, texts: TaskTexts) -> int:
        """Count the encoder's own vectors of zeros."""
        return self.encoder_system.vectors(texts).count_zeros()

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        if pools.groups is None:
            raise self._no_aspect()
        scores = np.full(len(pools.candidates), np.nan)
        facets = np.array(pools.groups)  # (queries,)
        for facet in dict.fromkeys(pools.groups):
            part, pairs = _select_queries(pools, np.flatnonzero(facets == facet))
            scores[pairs] = self.system_for(facet).scores(texts, part, distance)
        return scores

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        raise self._no_aspect()

    def _no_aspect(self) -> NoAnswerError:
        return NoAnswerError(
            f"--aspect {MATCHING} scores a query by the aspect it asks about, but the queries of this task ask about "
            f"none; evaluate one space, such as --aspect {self._heads.names[0]}, or all of them: --aspect every"
        )


def _select_queries(pools: Pools, chosen: NDArray[np.int64]) -> tuple[Pools, NDArray[np.int64]]:
    """Return the pools of some queries alone, and which pairs of all pools those are."""
    ragged, at = Ragged(pools.offsets), chosen.tolist()
    pairs = ragged.places(chosen)
    part = replace(
        pools,
        queries=pools.queries[chosen],
        offsets=to_offsets(ragged.lengths()[chosen]),
        candidates=pools.candidates[pairs],
        grades=pools.grades[pairs],
        names=[pools.names[query] for query in at],
        sentences=None if pools.sentences is None else [pools.sentences[query] for query in at],
        groups=None,
        scored=None if pools.scored is None else pools.scored[pairs],
    )
    return part, pairs


def aspect_spaces(encoder: System, heads: AspectHeads) -> dict[str, System]:
    """Return the aspect spaces of an encoder by their --aspect name: itself, each aspect, those side by side, matching."""
    spaces: dict[str, System] = {name: AspectSpace(encoder, heads, name) for name in heads.spaces}
    return {ENCODER: encoder, **spaces, MATCHING: MatchingSpace(encoder, heads)}


def spaces_for_suite(suite: Suite, spaces: Iterable[str]) -> list[str]:
    """Return the aspect spaces that a suite can evaluate: `matching` only where its queries ask about aspects."""
    names = list(spaces)
    return [name for name in names if name != MATCHING or any(_asks_about(task, names) for task in suite.tasks)]


def _asks_about(task: Task, names: Sequence[str]) -> bool:
    """Tell whether every query of a task asks about one of these aspects."""
    pools = task.pools if isinstance(task, RankingTask) else task.judgments if isinstance(task, SearchTask) else None
    facets = set(pools.groups or ()) if pools else set()
    return bool(facets) and {SPACE_OF_ASPECT.get(facet, facet) for facet in facets} <= set(names)
