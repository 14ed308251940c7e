"""Papers judged by their tokens: the distance `token_best` of `similarity.matching.tokens`.

    HeldTokens(encoder, texts).scores(pools)      (pairs,) minus the distance; NaN where a side has no token

A query takes part with the tokens of the sentences that it asks about, or with all of its paper; candidates are whole.
Tokens take much room (CSFCube by MiniLM: 0.7 GB), so papers are read when they are first asked for, and the ones asked
for longest ago are forgotten.

Sentence vectors judged by a distance between documents: single match, attention, optimal transport.

    judged = SentenceLevel(load_encoder("minilm", max_tokens=512), metric="cosine")
    judged.scores(texts, pools, "mean_best")
    judged.scores(texts, pools, "token_best")        of an encoder alone: see `token_level.py`

Sentence vectors come from a folder, or from an encoder that reads a suite's sentences in their context.

A model that answers by whole papers, by their sentences and by their tokens, as the distance asks: `cosine+mean_best`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.encoders.batches import NOT_SAVED, SavedBatches
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.sentence_encoder import BYTES, PaperTokens, encode_sentences, encode_tokens
from citeweave.evaluation.encoder_systems import Encoded
from citeweave.evaluation.systems import ABSENT, PRESENT, Judged, NoAnswerError, PaperVectors, fingerprint
from citeweave.evaluation.tasks import Pools, TaskTexts
from citeweave.vectors.document_distance import DISTANCES, DocumentDistance, document_scores
from citeweave.vectors.explain import Explanation, explain_pair
from citeweave.vectors.pair_scores import TOKEN_BEST, token_distances
from citeweave.vectors.sentence_search import FIRST, search_sentences
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Provenance

ROOM = 2 << 30
"""Bytes of tokens that are held."""


class HeldTokens:
    """Tokens of a suite's papers by row of the texts, no more than fit into `room`."""

    def __init__(
        self, encoder: TorchEncoder, texts: TaskTexts, *, room: int = ROOM, reporter: Reporter = QUIET
    ) -> None:
        texts.require()
        self._encoder, self._texts, self._room, self._reporter = encoder, texts, room, reporter
        self._largest = encoder.reader.max_tokens * encoder.dimension * BYTES  # of a paper
        self._held: dict[int, PaperTokens] = {}
        """The paper asked for longest ago is first."""

        self._lost = np.zeros(len(texts), np.int64)
        """(rows,) sentences without a token, of papers that were read."""

    @property
    def lost(self) -> int:
        """Sentences of all papers that were read which have no token, because they were cut away or are empty."""
        return int(self._lost.sum())

    def scores(self, pools: Pools) -> NDArray[np.float64]:
        found = np.full(len(pools.candidates), np.nan)
        with self._reporter.task("comparing tokens", len(found), "pairs") as advance:
            for number, query in enumerate(pools.queries.tolist()):
                wanted = None if pools.sentences is None else pools.sentences[number]
                span = slice(int(pools.offsets[number]), int(pools.offsets[number + 1]))
                found[span] = self._score(query, wanted, pools.candidates[span], advance)
        return found

    def _score(
        self, query: int, wanted: NDArray[np.int64] | None, candidates: NDArray[np.int64], advance: Advance
    ) -> NDArray[np.float64]:
        """Of one query, (candidates,)."""
        found, size = np.full(len(candidates), np.nan), max(1, self._room // self._largest - 1)
        for start in range(0, len(candidates), size):
            part = candidates[start : start + size].tolist()
            own, *others = self._take([query, *part])
            asked, has_tokens = own.of(wanted), np.flatnonzero([len(each.units) for each in others])
            if len(asked) and len(has_tokens):
                apart = token_distances(asked, [others[at].units for at in has_tokens.tolist()])
                found[start + has_tokens] = -apart.double().cpu().numpy()
            advance(len(part))
        return found

    def _take(self, rows: Sequence[int]) -> list[PaperTokens]:
        """Of these papers; those that are not held are read, and others forgotten to make room for them."""
        new = [row for row in dict.fromkeys(rows) if row not in self._held]
        for row in rows:
            if row in self._held:
                self._held[row] = self._held.pop(row)
        self._forget(len(new) * self._largest, set(rows))
        titles, sentences = [self._texts.titles[row] for row in new], [self._texts.sentences_of(row) for row in new]
        for row, own, paper in zip(new, sentences, encode_tokens(self._encoder, titles, sentences), strict=True):
            self._held[row], self._lost[row] = paper, len(own) - len(paper.numbers)
        return [self._held[row] for row in rows]

    def _forget(self, needed: int, asked: set[int]) -> None:
        held = sum(paper.units.nbytes for paper in self._held.values())
        while self._held and held + needed > self._room and (oldest := next(iter(self._held))) not in asked:
            held -= self._held.pop(oldest).units.nbytes


# Sentence vectors judged by a distance between documents: single match, attention, optimal transport.

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

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        made = self._open(texts)
        rows = made.rows(list(texts.ids))
        matrix = np.zeros((len(rows), made.matrix.shape[1]), np.float32)
        state = np.full(len(rows), ABSENT, np.uint8)
        for at, row in enumerate(rows.tolist()):
            own = made.matrix[made.offsets[row] : made.offsets[row + 1]] if row >= 0 else ()
            if len(own):
                matrix[at], state[at] = np.asarray(own, np.float32).mean(axis=0), PRESENT
        return PaperVectors(matrix, state)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
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
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
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
        self, texts: TaskTexts, query: int, candidate: int, distance: str, sentences: NDArray[np.int64] | None = None
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

    def _token_scores(self, texts: TaskTexts, pools: Pools) -> NDArray[np.float64]:
        assert not isinstance(self._source, SentenceVectors)
        if texts.hash not in self._tokens:
            self._tokens = {texts.hash: HeldTokens(self._source, texts, reporter=self._reporter)}
        held = self._tokens[texts.hash]
        found = held.scores(pools)
        self._count(texts, held.lost)
        return found

    def _count(self, texts: TaskTexts, cut: int) -> None:
        """Sentences may be read twice, for their own vectors and for those of their tokens; they are counted once."""
        own = self.counts.setdefault(texts.hash, {})
        own["cut"] = max(cut, own.get("cut", 0))

    def _distance(self, name: str, usual: float) -> DocumentDistance:
        return DocumentDistance(name, self._temperature or usual, self._metric)

    def _open(self, texts: TaskTexts) -> SentenceVectors:
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

    def _saved(self, texts: TaskTexts) -> SavedBatches:
        if self._work is None:
            return NOT_SAVED
        place = self._work / "sentences"
        place.mkdir(exist_ok=True)
        return SavedBatches(place / hash_json([texts.hash, self.revision])[:24], save_last=True)


def _hash(source: SentenceVectors | TorchEncoder) -> str:
    if not isinstance(source, SentenceVectors):
        return source.revision
    return source.manifest.hash if source.manifest is not None else fingerprint(np.asarray(source.matrix))


# A model that answers by whole papers, by their sentences and by their tokens, as the distance asks: `cosine+mean_best`.


class ByDistance:
    """One encoder, judged in both ways; probes get its vectors of whole papers."""

    def __init__(self, whole: Encoded, inside: SentenceLevel) -> None:
        self._whole, self._inside, self.name = whole, inside, whole.name
        self.revision = hash_json([whole.revision, inside.revision])[:16]
        self.distances: tuple[str, ...] = (*whole.distances, *inside.distances)
        self.counts: dict[str, dict[str, int]] = {}
        whole.counts = inside.counts = self.counts  # each has names of its own

    def resume_in(self, folder: Path | None) -> None:
        self._whole.resume_in(folder)
        self._inside.resume_in(folder)

    def facts(self) -> dict[str, Any]:
        return {**self._inside.facts(), **self._whole.facts(), "revision": self.revision}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        return self._whole.vectors(texts)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return self._answering(distance).scores(texts, pools, distance)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._answering(distance).top(texts, queries, candidates, depth, distance)

    def _answering(self, distance: str) -> Judged:
        return self._whole if distance in self._whole.distances else self._inside
