"""Papers judged by their tokens: the distance `token_best` of `similarity.matching.tokens`.

    HeldTokens(encoder, texts).scores(pools)      (pairs,) minus the distance; NaN where a side has no token

A query takes part with the tokens of the sentences that it asks about, or with all of its paper; candidates are whole.
Tokens take much room (CSFCube by MiniLM: 0.7 GB), so papers are read when they are first asked for, and the ones asked
for longest ago are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.tokens import BYTES, PaperTokens, encode_tokens
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.progress import QUIET, Advance, Reporter
from citeweave.similarity.matching.tokens import token_distances

ROOM = 2 << 30
"""Bytes of tokens that are held."""


class HeldTokens:
    """Tokens of a suite's papers by row of the texts, no more than fit into `room`."""

    def __init__(self, encoder: TorchEncoder, texts: Texts, *, room: int = ROOM, reporter: Reporter = QUIET) -> None:
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
