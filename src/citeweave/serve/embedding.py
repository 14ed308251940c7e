"""POST /embed: vectors of texts, encoded together with those of other requests."""

from __future__ import annotations

import asyncio

import numpy as np
from fastapi import APIRouter, Response

from citeweave.corpus.text import paper_text
from citeweave.serve.answers import Embedded, failures
from citeweave.serve.batching import BatchedEncoder
from citeweave.serve.opening import Opened
from citeweave.serve.requests import EmbedRequest
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.serving import Held

router = APIRouter(route_class=StrictRoute, tags=["vectors"])


@router.post("/embed", response_model=Embedded, responses=failures(403, 415))
async def embed(server: Held, asked: EmbedRequest) -> Response:
    """Vectors of texts, as the papers of the index have them; a text without a word gets zeros."""
    texts = [
        paper_text(one, "") if isinstance(one, str) else paper_text(one.title, one.abstract) for one in asked.texts
    ]

    def look_up(opened: Opened) -> Opened:
        opened.index.check_aspect(asked.aspect)
        return opened

    opened = await server.ask(asked.index, look_up)
    encoder = opened.need_reader().encoder
    assert isinstance(encoder, BatchedEncoder)
    # no thread waits here: the texts of many requests can wait at once
    made = await asyncio.wrap_future(encoder.batcher.submit(texts))  # (texts, dimension)

    def finish() -> bytes:
        heads = opened.index.heads
        vectors = heads.project(made, asked.aspect) if asked.aspect and heads is not None else made
        vectors = np.ascontiguousarray(vectors, np.float32)
        label = opened.index.provenance.label if opened.index.provenance else encoder.name
        return Json.write({"model": label, "dimension": vectors.shape[1], "vectors": vectors})

    return Response(await server.workers.run(finish), media_type="application/json")
