"""Sentence vectors judged by a distance between documents: single match, attention, optimal transport.

    judged = SentenceLevel(load_encoder("minilm", max_tokens=512), metric="cosine")
    judged.scores(texts, pools, "mean_best")
    judged.scores(texts, pools, "token_best")        of an encoder alone: see `token_level.py`

Sentence vectors come from a folder, or from an encoder that reads a suite's sentences in their context.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.saved_batches import NOT_SAVED, SavedBatches
from citeweave.encoders.sentences import encode_sentences
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.evaluation.fingerprint import fingerprint
from citeweave.evaluation.judged import ABSENT, PRESENT, NoAnswerError, PaperVectors
from citeweave.evaluation.judging.token_level import HeldTokens
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.explaining import Explanation, explain_pair
from citeweave.similarity.matching.tokens import TOKEN_BEST
from citeweave.similarity.provenance import Provenance
from citeweave.similarity.sentence_search import FIRST, search_sentences
from citeweave.similarity.sentence_vectors import SentenceVectors
from citeweave.similarity.transport import DISTANCES, DocumentDistance, document_scores

FACET_TEMPERATURE, PAPER_TEMPERATURE = 0.5, 5000.0
"""ASPIRE's, for chosen sentences of the query and for whole abstracts."""


class SentenceLevel:
    """Several vectors a paper. Probes get the mean of a paper's sentence vectors."""

    def __init__(
        self,
        source: SentenceVectors | TorchEncoder,
        *,
        name: str = "",
        metric: str = "l2",
        temperature: float | None = None,
        whole: bool = False,
        device: str = "auto",
        reporter: Reporter = QUIET,
    ) -> None:
        self._source, self._metric, self._temperature, self._whole = source, metric, temperature, whole
        self._device, self._reporter = device, reporter
        self.distances: tuple[str, ...] = DISTANCES
        if not isinstance(source, SentenceVectors):
            self.distances = (*DISTANCES, TOKEN_BEST)
        own = _hash(source)
        self.name = name or ("sentence vectors" if isinstance(source, SentenceVectors) else f"{source.name} sentences")
        self.revision = hash_json([own, metric, temperature, *(["whole"] if whole else [])])[:16]
        self._work: Path | None = None
        self._made: dict[str, SentenceVectors] = {}
        self._tokens: dict[str, HeldTokens] = {}
        """Of the texts judged last."""

        self.counts: dict[str, dict[str, int]] = {}
        """Hash of texts -> sentences cut away, of all that were read, here or by a crew."""

    def resume_in(self, folder: Path | None) -> None:
        self._work = folder

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.revision,
            "metric": self._metric,
            "temperature": self._temperature,
            **({"own vector beside the sentences": True} if self._whole else {}),
            "sentences cut away": sum(each.get("cut", 0) for each in self.counts.values()),
        }

    def vectors(self, texts: Texts) -> PaperVectors:
        made = self._open(texts)
        rows = made.rows(list(texts.ids))
        matrix = np.zeros((len(rows), made.matrix.shape[1]), np.float32)
        state = np.full(len(rows), ABSENT, np.uint8)
        for at, row in enumerate(rows.tolist()):
            own = made.matrix[made.offsets[row] : made.offsets[row + 1]] if row >= 0 else ()
            if len(own):
                matrix[at], state[at] = np.asarray(own, np.float32).mean(axis=0), PRESENT
        return PaperVectors(matrix, state)

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        if distance == TOKEN_BEST:
            return self._token_scores(texts, pools)
        made = self._open(texts)
        rows = made.rows(list(texts.ids))
        usual = PAPER_TEMPERATURE if pools.sentences is None else FACET_TEMPERATURE
        chosen = self._distance(distance, usual)
        found = document_scores(
            made,
            rows[pools.queries],
            pools.offsets,
            rows[pools.candidates],
            chosen,
            query_sentences=pools.sentences,
            device=self._device,
        )
        return np.where(np.isneginf(found), np.nan, found)  # a paper without sentences has no answer, not the worst one

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if distance == TOKEN_BEST:
            raise NoAnswerError(f"{TOKEN_BEST} orders pools of candidates and does not search among all papers")
        made = self._open(texts)
        rows = made.rows(list(texts.ids))  # (rows of the texts,)
        has_sentences = (rows >= 0) & (made.lengths()[np.maximum(rows, 0)] > 0)
        asked = np.flatnonzero(has_sentences[queries])
        pool = candidates[has_sentences[candidates]]
        found, scores = np.full((len(queries), depth), -1, np.int64), np.full((len(queries), depth), np.nan)
        if len(asked) and len(pool):
            hits = search_sentences(
                made,
                rows[queries[asked]],
                depth,
                self._distance(distance, PAPER_TEMPERATURE),
                pool=rows[pool],
                first=max(depth, FIRST),
                device=self._device,
                reporter=self._reporter,
            )
            back = np.full(len(made) + 1, -1, np.int64)  # position -> row of the texts; the last one is for -1
            back[rows[pool]] = pool
            found[asked], scores[asked] = back[hits.rows], hits.scores
        return found, scores

    def explain(
        self, texts: Texts, query: int, candidate: int, distance: str, sentences: NDArray[np.int64] | None = None
    ) -> Explanation | None:
        """How two papers match, rows of the texts; None where one of them has no sentence that takes part, and where the
        distance is not one between sentences."""
        if distance not in DISTANCES:
            return None
        made = self._open(texts)
        left, right = made.rows([texts.ids[query], texts.ids[candidate]]).tolist()
        if min(left, right) < 0:
            return None
        chosen = self._distance(distance, PAPER_TEMPERATURE if sentences is None else FACET_TEMPERATURE)
        try:
            return explain_pair(made, left, right, chosen, query_sentences=sentences)
        except UserError:
            return None

    def _token_scores(self, texts: Texts, pools: Pools) -> NDArray[np.float64]:
        assert not isinstance(self._source, SentenceVectors)
        if texts.hash not in self._tokens:
            self._tokens = {texts.hash: HeldTokens(self._source, texts, reporter=self._reporter)}
        held = self._tokens[texts.hash]
        found = held.scores(pools)
        self._count(texts, held.lost)
        return found

    def _count(self, texts: Texts, cut: int) -> None:
        """Sentences may be read twice, for their own vectors and for those of their tokens; they are counted once."""
        own = self.counts.setdefault(texts.hash, {})
        own["cut"] = max(cut, own.get("cut", 0))

    def _distance(self, name: str, usual: float) -> DocumentDistance:
        return DocumentDistance(name, self._temperature or usual, self._metric)

    def _open(self, texts: Texts) -> SentenceVectors:
        if isinstance(self._source, SentenceVectors):
            return self._source
        if texts.hash not in self._made:
            texts.require()
            split = [texts.sentences_of(row) for row in range(len(texts))]
            found = encode_sentences(
                self._source,
                texts.titles,
                split,
                whole=self._whole,
                reporter=self._reporter,
                saved=self._saved(texts),
            )
            self._count(texts, found.lost)
            source = Provenance(self.name, self._source.revision, "", self._source.dimension, "float32", "memory")
            self._made[texts.hash] = SentenceVectors(
                list(texts.ids), found.offsets, found.matrix, found.numbers, source
            )
        return self._made[texts.hash]

    def _saved(self, texts: Texts) -> SavedBatches:
        if self._work is None:
            return NOT_SAVED
        place = self._work / "sentences"
        place.mkdir(exist_ok=True)
        return SavedBatches(place / hash_json([texts.hash, self.revision])[:24], save_last=True)


def _hash(source: SentenceVectors | TorchEncoder) -> str:
    if not isinstance(source, SentenceVectors):
        return source.revision
    return source.manifest.hash if source.manifest is not None else fingerprint(np.asarray(source.matrix))
