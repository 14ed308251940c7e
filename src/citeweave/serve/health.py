"""Routes about the server itself: /health, /rejected and /metrics.

    {"status": "ok", "papers": 1900, "with_vectors": 1900, "lacks": ["312 of 1,900 papers have no abstract"], ...}

GET /health reports what the server has, does and lacks; GET /rejected names the entries of a library's source that did
not become papers; GET /metrics counts requests for Prometheus. They have reserved threads, so they answer however busy the
server is. Does not search: see `routes.py`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from citeweave.core.errors import CiteweaveError
from citeweave.serve.indexes import CurrentServer, OpenIndex, Server
from citeweave.serve.library import count_papers
from citeweave.serve.responses import Json, RefusedError, StrictRoute, without_paths
from citeweave.version import __version__

health_router = APIRouter(route_class=StrictRoute, tags=["server"])


class BackgroundTask(BaseModel):
    what: str
    done: int
    total: int | None
    seconds_left: float | None


class HealthResponse(BaseModel):
    status: str = Field(
        description="ok; starting while the first index is built; failing if it cannot be read (any longer)."
    )
    papers: int
    around: int = Field(description="Papers known as references or citations only; not counted in papers.")
    with_vectors: int
    with_sentences: int
    with_abstract: int
    model: str = Field(description="Model of the first index, with its revision; empty = words only so far.")
    reads_texts: bool = Field(description="Whether the model is loaded.")
    aspects: list[str]
    indexes: list[str]
    working: BackgroundTask | None
    lacks: list[str] = Field(description="What cannot be done because data is missing, one sentence each.")
    rejected: int = Field(
        description="Entries of the library's source that did not become papers and that /rejected names."
    )
    samples: bool
    version: str


class RejectedEntryResponse(BaseModel):
    key: str = Field(description="Citation key or id; may be empty.")
    line: int = Field(description="Line of the file where the entry begins, from 1; 0 = unknown.")
    reason: str
    file: str


class RejectedResponse(BaseModel):
    entries: list[RejectedEntryResponse]


_NO_PAPERS = {"papers": 0, "around": 0, "with_vectors": 0, "with_sentences": 0, "with_abstract": 0}


@health_router.get("/health", response_model=HealthResponse)
async def health(server: CurrentServer) -> Response:
    """Report what the server has, what it is doing, and what it lacks."""
    return Json(await server.workers.run_reserved(_health_json, server))


@health_router.get("/rejected", response_model=RejectedResponse)
async def rejected(server: CurrentServer) -> Response:
    """Name the entries of the library's source that did not become papers, at most 200."""

    def work() -> dict[str, Any]:
        library = server.indexes.library
        return {"entries": [entry._asdict() for entry in library.rejected] if library else []}

    return Json(await server.workers.run_reserved(work))


@health_router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(server: CurrentServer) -> Response:
    """Return the counters in Prometheus's text format; each worker process has its own."""
    text = await server.workers.run_reserved(lambda: server.metrics.text(_gauges(server)))
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _describe_missing_data(counts: dict[str, int], opened: OpenIndex | None) -> list[str]:
    """Describe what the papers of an index lack for /health, one sentence each.

    >>> _describe_missing_data({"papers": 1900, "with_vectors": 1900, "with_sentences": 1900, "with_abstract": 1588}, None)
    ['312 of 1,900 papers have no abstract']
    """
    names = {"with_abstract": "abstract", "with_vectors": "vector yet", "with_sentences": "sentence vectors"}
    lines = []
    for key, name in names.items():
        without = counts["papers"] - counts[key]
        if without > 0 and (counts[key] or key != "with_sentences"):
            lines.append(f"{without:,} of {counts['papers']:,} papers have no {name}")
    if opened is not None and opened.no_encoder and counts["with_vectors"]:
        lines.append(f"texts are searched by their words only: {opened.no_encoder}")
    return lines


def _health_json(server: Server) -> dict[str, Any]:
    library = server.indexes.library
    health: dict[str, Any] = {"status": "starting", **_NO_PAPERS, "model": "", "reads_texts": False, "aspects": []}
    lacks: list[str] = []
    try:
        opened = server.indexes.get()
    except RefusedError:
        pass
    except CiteweaveError as error:
        health["status"] = "failing"
        lacks = [without_paths(str(error))]
    else:
        counts = server.once_per_state("counts", opened.name, opened.index, count_papers)
        provenance = opened.index.provenance
        health |= {"status": "ok", **counts, "model": provenance.label if provenance else ""}
        health |= {"reads_texts": opened.query_encoder is not None, "aspects": list(opened.index.aspects)}
        lacks = _describe_missing_data(counts, opened)
        if error_message := server.indexes.errors.get(opened.name):
            health["status"] = "failing"
            lacks.append(
                f"an older state is served, because the index can no longer be read: {without_paths(error_message)}"
            )
    working = library.working() if library else None
    lacks += [line for line in (library.missing_data() if library else ()) if line not in lacks]
    return {
        **health,
        "indexes": server.indexes.names,
        "working": None if working is None else dict(working),
        "lacks": lacks,
        "rejected": len(library.rejected) if library else 0,
        "samples": "samples" in server.cache,
        "version": __version__,
    }


def _gauges(server: Server) -> dict[str, dict[str, float]]:
    papers, vectors, states = dict[str, float](), dict[str, float](), dict[str, float]()
    for name in server.indexes.names:
        try:
            index = server.indexes.get(name).index
        except (RefusedError, CiteweaveError):
            continue
        counts = server.once_per_state("counts", name, index, count_papers)
        papers[name], vectors[name], states[name] = counts["papers"], counts["with_vectors"], index.number
    return {"papers": papers, "papers_with_vectors": vectors, "state_number": states}
