"""Systems that compare papers by sentences or tokens: single match, attention, optimal transport, token_best.

    system = SentenceSystem(load_encoder("minilm", max_tokens=512), metric="cosine")
    system.scores(texts, pools, "mean_best")
    system.scores(texts, pools, "token_best")        only with an encoder, which also gives token vectors

Sentence vectors come from a folder, or from an encoder that reads a suite's sentences in their context. A query takes part
with the sentences that it asks about, or with all of its paper; candidates take part with all of theirs.
`CombinedSystem` also has one vector per paper, for sums of distances such as `cosine+mean_best`.
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
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.systems import (
    ABSENT,
    PRESENT,
    Hits,
    NoAnswerError,
    PaperVectors,
    Rows,
    Scores,
    System,
    no_hits,
)
from citeweave.evaluation.tasks import Pools, TaskTexts, fingerprint
from citeweave.vectors.document_distance import (
    DISTANCES,
    DocumentDistance,
    SentenceAlignment,
    document_scores,
    explain_pair,
)
from citeweave.vectors.sentence_distances import TOKEN_BEST, token_distances
from citeweave.vectors.sentence_search import FIRST, search_sentences
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Provenance

TOKEN_MEMORY = 2 << 30
"""Bytes of token vectors that are kept in memory."""

FACET_TEMPERATURE, PAPER_TEMPERATURE = 0.5, 5000.0
"""ASPIRE's temperatures: for chosen sentences of the query, and for complete abstracts."""


class SentenceSystem:
    """A system with one vector per sentence of a paper; probes get the mean of a paper's sentence vectors."""

    def __init__(
        self,
        source: SentenceVectors | TorchEncoder,
        *,
        name: str = "",
        metric: str = "l2",
        temperature: float | None = None,
        with_paper: bool = False,
        with_tokens: bool = False,
        device: str = "auto",
        reporter: Reporter = QUIET,
    ) -> None:
        """`with_tokens`: keep the tokens of papers whose sentences are encoded, for a sum of distances with token_best."""
        self._source, self._metric, self._temperature, self._with_paper = source, metric, temperature, with_paper
        self._with_tokens, self._device, self._reporter = with_tokens, device, reporter
        self.distances: tuple[str, ...] = DISTANCES
        if not isinstance(source, SentenceVectors):
            self.distances = (*DISTANCES, TOKEN_BEST)
        self.name = name or ("sentence vectors" if isinstance(source, SentenceVectors) else f"{source.name} sentences")
        self.revision = hash_json([_hash(source), metric, temperature, *(["whole"] if with_paper else [])])[:16]
        self._work: Path | None = None
        self._encoded: dict[str, SentenceVectors] = {}
        self._tokens: dict[str, TokenCache] = {}
        """Hash of texts -> their tokens, of the last texts alone."""

        self.counts: dict[str, dict[str, int]] = {}
        """Hash of texts -> number of sentences cut off, of texts encoded here or by an executor."""

    def resume_in(self, folder: Path | None) -> None:
        self._work = folder

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.revision,
            "metric": self._metric,
            "temperature": self._temperature,
            **({"own vector beside the sentences": True} if self._with_paper else {}),
            "sentences cut away": sum(each.get("cut", 0) for each in self.counts.values()),
        }

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        vectors = self._open(texts)
        rows = vectors.rows(list(texts.ids))
        matrix = np.zeros((len(rows), vectors.matrix.shape[1]), np.float32)
        state = np.full(len(rows), ABSENT, np.uint8)
        for at, row in enumerate(rows.tolist()):
            sentences = vectors.matrix[vectors.offsets[row] : vectors.offsets[row + 1]] if row >= 0 else ()
            if len(sentences):
                matrix[at], state[at] = np.asarray(sentences, np.float32).mean(axis=0), PRESENT
        return PaperVectors(matrix, state)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        if distance == TOKEN_BEST:
            return self._token_scores(texts, pools)
        vectors = self._open(texts)
        rows = vectors.rows(list(texts.ids))
        default = PAPER_TEMPERATURE if pools.sentences is None else FACET_TEMPERATURE
        scores = document_scores(
            vectors,
            rows[pools.queries],
            pools.offsets,
            rows[pools.candidates],
            self._distance(distance, default),
            query_sentences=pools.sentences,
            device=self._device,
        )
        # a paper without sentences has no score, not the worst one
        return np.where(np.isneginf(scores), np.nan, scores)

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        if distance == TOKEN_BEST:
            raise NoAnswerError(f"{TOKEN_BEST} orders pools of candidates and does not search among all papers")
        vectors = self._open(texts)
        rows = vectors.rows(list(texts.ids))  # (rows of the texts,)
        has_sentences = (rows >= 0) & (vectors.lengths()[np.maximum(rows, 0)] > 0)
        usable = np.flatnonzero(has_sentences[queries])
        pool = candidates[has_sentences[candidates]]
        best, scores = no_hits(len(queries), depth)
        if len(usable) and len(pool):
            hits = search_sentences(
                vectors,
                rows[queries[usable]],
                depth,
                self._distance(distance, PAPER_TEMPERATURE),
                pool=rows[pool],
                first=max(depth, FIRST),
                device=self._device,
                reporter=self._reporter,
            )
            text_rows = np.full(len(vectors) + 1, -1, np.int64)  # position -> row of the texts; the last one is for -1
            text_rows[rows[pool]] = pool
            best[usable], scores[usable] = text_rows[hits.rows], hits.scores
        return best, scores

    def explain(
        self, texts: TaskTexts, query: int, candidate: int, distance: str, sentences: NDArray[np.int64] | None = None
    ) -> SentenceAlignment | None:
        """Explain by which sentences this system matches two papers, rows of the texts.

        None where one of them has no sentence that takes part, and where the distance is not one between sentences.
        """
        if distance not in DISTANCES:
            return None
        vectors = self._open(texts)
        left, right = vectors.rows([texts.ids[query], texts.ids[candidate]]).tolist()
        if min(left, right) < 0:
            return None
        chosen = self._distance(distance, PAPER_TEMPERATURE if sentences is None else FACET_TEMPERATURE)
        try:
            return explain_pair(vectors, left, right, chosen, query_sentences=sentences)
        except UserError:
            return None

    def _token_scores(self, texts: TaskTexts, pools: Pools) -> NDArray[np.float64]:
        """Score every pair by the distance between tokens, and count the sentences cut off."""
        tokens = self._tokens_of(texts)
        scores = tokens.scores(pools)
        self._count_cut(texts, tokens.lost)
        return scores

    def _tokens_of(self, texts: TaskTexts) -> TokenCache:
        assert not isinstance(self._source, SentenceVectors)
        if texts.hash not in self._tokens:
            self._tokens = {texts.hash: TokenCache(self._source, texts, reporter=self._reporter)}
        return self._tokens[texts.hash]

    def _count_cut(self, texts: TaskTexts, cut: int) -> None:
        """Count sentences cut off, once even where sentences are encoded twice: for themselves and for their tokens."""
        own = self.counts.setdefault(texts.hash, {})
        own["cut"] = max(cut, own.get("cut", 0))

    def _distance(self, name: str, default: float) -> DocumentDistance:
        """Return a distance between documents with the user's temperature, or else the default one."""
        return DocumentDistance(name, self._temperature or default, self._metric)

    def _open(self, texts: TaskTexts) -> SentenceVectors:
        """Return the sentence vectors of a suite's papers, encoded when first needed."""
        if isinstance(self._source, SentenceVectors):
            return self._source
        if texts.hash not in self._encoded:
            texts.require()
            encoded = encode_sentences(
                self._source,
                texts.titles,
                [texts.sentences_of(row) for row in range(len(texts))],
                with_paper=self._with_paper,
                on_tokens=self._tokens_of(texts).keep if self._with_tokens else None,
                reporter=self._reporter,
                saved=self._saved(texts),
            )
            self._count_cut(texts, encoded.lost)
            source = Provenance(self.name, self._source.revision, "", self._source.dimension, "float32", "memory")
            self._encoded[texts.hash] = SentenceVectors(
                list(texts.ids), encoded.offsets, encoded.matrix, encoded.numbers, source
            )
        return self._encoded[texts.hash]

    def _saved(self, texts: TaskTexts) -> SavedBatches:
        """Return where batches of sentence vectors are saved while the evaluation runs."""
        if self._work is None:
            return NOT_SAVED
        folder = self._work / "sentences"
        folder.mkdir(exist_ok=True)
        return SavedBatches(folder / hash_json([texts.hash, self.revision])[:24], save_last=True)


def _hash(source: SentenceVectors | TorchEncoder) -> str:
    """Return the hash of sentence vectors or of the encoder that makes them."""
    if not isinstance(source, SentenceVectors):
        return source.revision
    return source.manifest.hash if source.manifest is not None else fingerprint(np.asarray(source.matrix))


class CombinedSystem:
    """System of an encoder that compares papers, sentences or tokens, as the distance says; probes get paper vectors."""

    def __init__(self, by_paper: EncoderSystem, by_sentence: SentenceSystem) -> None:
        self._by_paper, self._by_sentence, self.name = by_paper, by_sentence, by_paper.name
        self.revision = hash_json([by_paper.revision, by_sentence.revision])[:16]
        self.distances: tuple[str, ...] = (*by_paper.distances, *by_sentence.distances)
        self.counts: dict[str, dict[str, int]] = {}
        by_paper.counts = by_sentence.counts = self.counts  # each counts under names of its own

    def resume_in(self, folder: Path | None) -> None:
        self._by_paper.resume_in(folder)
        self._by_sentence.resume_in(folder)

    def metadata(self) -> dict[str, Any]:
        return {**self._by_sentence.metadata(), **self._by_paper.metadata(), "revision": self.revision}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        return self._by_paper.vectors(texts)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        return self._system_for(distance).scores(texts, pools, distance)

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        return self._system_for(distance).top(texts, queries, candidates, depth, distance)

    def _system_for(self, distance: str) -> System:
        """Return the part that computes a distance: paper vectors or sentences."""
        return self._by_paper if distance in self._by_paper.distances else self._by_sentence


class TokenCache:
    """Token vectors for systems that compare tokens, by row of the texts, at most `memory` bytes of them.

    Tokens take much memory (CSFCube with MiniLM: 0.7 GB), so papers are encoded when first needed, unless their sentences
    were encoded before, and the least recently used ones are dropped.
    """

    def __init__(
        self, encoder: TorchEncoder, texts: TaskTexts, *, memory: int = TOKEN_MEMORY, reporter: Reporter = QUIET
    ) -> None:
        texts.require()
        self._encoder, self._texts, self._memory, self._reporter = encoder, texts, memory, reporter
        self._max_paper_bytes = encoder.reader.max_tokens * encoder.dimension * BYTES
        self._cached: dict[int, PaperTokens] = {}
        """Row -> tokens; the least recently used paper is first."""

        self._used = 0
        """Bytes of their vectors."""

        self._lost = np.zeros(len(texts), np.int64)
        """(rows,) sentences without a token, of papers that were encoded."""

    def keep(self, row: int, paper: PaperTokens) -> None:
        """Keep the tokens of a paper that was encoded for another reason, if there is room."""
        if self._used + paper.units.nbytes <= self._memory and row not in self._cached:
            self._add(row, paper)

    def _add(self, row: int, paper: PaperTokens) -> None:
        self._cached[row], self._lost[row] = paper, len(self._texts.sentences_of(row)) - len(paper.numbers)
        self._used += paper.units.nbytes

    @property
    def lost(self) -> int:
        """Number of sentences without a token, because they were cut off or are empty, of all encoded papers."""
        return int(self._lost.sum())

    def scores(self, pools: Pools) -> NDArray[np.float64]:
        """Score every pair by a system's distance between tokens, (pairs,); NaN where a paper has no token."""
        scores = np.full(len(pools.candidates), np.nan)
        with self._reporter.task("comparing tokens", len(scores), "pairs") as advance:
            for number, query in enumerate(pools.queries.tolist()):
                sentences = None if pools.sentences is None else pools.sentences[number]
                span = pools.span(number)
                scores[span] = self._score_query(query, sentences, pools.candidates[span], advance)
        return scores

    def _score_query(
        self, query: int, sentences: NDArray[np.int64] | None, candidates: NDArray[np.int64], advance: Advance
    ) -> NDArray[np.float64]:
        """Score the candidates of one query by their tokens, (candidates,); `sentences` of the query take part."""
        scores, size = np.full(len(candidates), np.nan), max(1, self._memory // self._max_paper_bytes - 1)
        for start in range(0, len(candidates), size):
            part = candidates[start : start + size].tolist()
            own, *others = self._tokens_of([query, *part])
            query_tokens, has_tokens = own.of(sentences), np.flatnonzero([len(each.units) for each in others])
            if len(query_tokens) and len(has_tokens):
                distances = token_distances(query_tokens, [others[at].units for at in has_tokens.tolist()])
                scores[start + has_tokens] = -distances.double().cpu().numpy()
            advance(len(part))
        return scores

    def _tokens_of(self, rows: Sequence[int]) -> list[PaperTokens]:
        """Return the tokens of these papers; missing ones are encoded, and others dropped to free memory for them."""
        new = [row for row in dict.fromkeys(rows) if row not in self._cached]
        for row in rows:
            if row in self._cached:
                self._cached[row] = self._cached.pop(row)
        self._drop_oldest(len(new) * self._max_paper_bytes, set(rows))
        titles, sentences = [self._texts.titles[row] for row in new], [self._texts.sentences_of(row) for row in new]
        for row, paper in zip(new, encode_tokens(self._encoder, titles, sentences), strict=True):
            self._add(row, paper)
        return [self._cached[row] for row in rows]

    def _drop_oldest(self, needed: int, in_use: set[int]) -> None:
        """Drop the least recently used papers until `needed` bytes are free."""
        while (
            self._cached and self._used + needed > self._memory and (oldest := next(iter(self._cached))) not in in_use
        ):
            self._used -= self._cached.pop(oldest).units.nbytes
