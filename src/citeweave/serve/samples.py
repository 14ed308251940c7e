"""GET /samples: mined training samples, for looking at them. Only where the server was started with --samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Query as FromUrl

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.mining.sample_blocks import Picks
from citeweave.mining.samples import Samples
from citeweave.serve.answers import SamplePage, failures
from citeweave.serve.failures import RefusedError, unknown_paper
from citeweave.serve.requests import SamplesParameters
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.serving import Held

router = APIRouter(route_class=StrictRoute, tags=["samples"])

MOST_PICKS = 100
"""Positives, and negatives, of a sample that are listed."""


@dataclass(frozen=True, slots=True)
class SampleBook:
    """Samples with the corpus whose rows they name."""

    samples: Samples
    corpus: Corpus

    @classmethod
    def open(cls, samples: str | Path, corpus: str | Path) -> SampleBook:
        if not corpus:
            raise UserError("--samples names rows of a corpus; give the one they were mined from with --corpus")
        opened, papers = Samples.open(samples), Corpus.open(Path(corpus))
        opened.check_corpus(papers.hash, papers.folder)
        return cls(opened, papers)

    def page(self, anchor: str, start: int, count: int) -> dict[str, Any]:
        """Samples from a place on, all of them or those of one paper."""
        if anchor:
            row = int(self.corpus.rows([anchor])[0])
            if row < 0:
                raise unknown_paper(anchor)
            numbers = np.flatnonzero(self.samples.anchors == row)  # (samples of the anchor,)
            total, chosen = len(numbers), numbers[start : start + count].tolist()
        else:
            total = len(self.samples)
            chosen = list(range(min(start, total), min(start + count, total)))
        return {"total": total, "start": start, "samples": [self._sample(number) for number in chosen]}

    def _sample(self, number: int) -> dict[str, Any]:
        anchor = int(self.samples.anchors[number])
        return {
            "anchor": {"id": self.corpus.ids[anchor], "title": self.corpus.titles[anchor]},
            "aspect": self.samples.names.aspects[int(self.samples.aspects[number])],
            "positives": self._picks(self.samples.positives, number),
            "negatives": self._picks(self.samples.negatives, number),
        }

    def _picks(self, picks: Picks, number: int) -> list[dict[str, Any]]:
        start = int(picks.offsets[number])
        end = min(int(picks.offsets[number + 1]), start + MOST_PICKS)
        parts = (picks.rows[start:end].tolist(), picks.rules[start:end].tolist(), picks.scores[start:end].tolist())
        return [
            {
                "id": self.corpus.ids[row],
                "title": self.corpus.titles[row],
                "rule": self.samples.names.rules[rule],
                "score": score if np.isfinite(score) else None,
            }
            for row, rule, score in zip(*parts, strict=True)
        ]


@router.get("/samples", response_model=SamplePage, responses=failures())
async def samples(server: Held, asked: Annotated[SamplesParameters, FromUrl()]) -> Response:
    """Mined samples: an anchor, its positives and negatives, and the rule that chose each."""
    book = server.kept.get("samples")
    if book is None:
        raise RefusedError(404, "this server has no samples; start it with --samples FOLDER --corpus FOLDER")
    return Json(await server.workers.run(book.page, asked.anchor, asked.start, asked.count))
