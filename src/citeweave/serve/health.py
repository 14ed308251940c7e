"""GET /health and /metrics: whether the server is well, what it has and lacks, and its counters.

Both are answered by threads of their own, however busy the server is.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from citeweave.errors import CiteweaveError
from citeweave.search.index import Index
from citeweave.serve.answers import Health
from citeweave.serve.counting import count_papers
from citeweave.serve.failures import RefusedError, without_paths
from citeweave.serve.metrics import CONTENT_TYPE
from citeweave.serve.opening import Opened
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.serving import Held, Server
from citeweave.version import __version__

router = APIRouter(route_class=StrictRoute, tags=["server"])

_EMPTY = {"papers": 0, "around": 0, "with_vectors": 0, "with_sentences": 0, "with_abstract": 0}


@router.get("/health", response_model=Health)
async def health(server: Held) -> Response:
    """What the server has, what it is doing, and what it lacks."""
    return Json(await server.workers.run_aside(_health, server))


@router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(server: Held) -> Response:
    """Counters in the text form of Prometheus; each worker process counts for itself."""
    text = await server.workers.run_aside(lambda: server.metrics.text(_gauges(server)))
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


def counts_of(server: Server, name: str, index: Index) -> dict[str, int]:
    """Papers, and how many of them have what; counted once a state."""
    key = ("counts", name)
    state, counts = server.kept.get(key, (None, {}))
    if state != index.number:
        counts = count_papers(index)
        server.kept[key] = (index.number, counts)
    return dict(counts)


def lacks_of(counts: dict[str, int], opened: Opened) -> list[str]:
    """
    >>> lacks_of({"papers": 1900, "with_vectors": 1900, "with_sentences": 1900, "with_abstract": 1588}, None)
    ['312 of 1,900 papers have no abstract']
    """
    names = {"with_abstract": "abstract", "with_vectors": "vector yet", "with_sentences": "sentence vectors"}
    lacks = []
    for key, name in names.items():
        without = counts["papers"] - counts[key]
        if without > 0 and (counts[key] or key != "with_sentences"):
            lacks.append(f"{without:,} of {counts['papers']:,} papers have no {name}")
    if opened is not None and opened.why and counts["with_vectors"]:
        lacks.append(f"texts are searched by their words only: {opened.why}")
    return lacks


def _health(server: Server) -> dict[str, Any]:
    library = server.shelf.library
    told: dict[str, Any] = {"status": "starting", **_EMPTY, "model": "", "reads_texts": False, "aspects": []}
    lacks: list[str] = []
    try:
        opened = server.shelf.get()
    except RefusedError:
        pass
    except CiteweaveError as error:
        told["status"] = "failing"
        lacks = [without_paths(str(error))]
    else:
        counts = counts_of(server, opened.name, opened.index)
        provenance = opened.index.provenance
        told |= {"status": "ok", **counts, "model": provenance.label if provenance else ""}
        told |= {"reads_texts": opened.reader is not None, "aspects": list(opened.index.aspects)}
        lacks = lacks_of(counts, opened)
        if trouble := server.shelf.troubles.get(opened.name):
            told["status"] = "failing"
            lacks.append(f"an older state is served, as the index cannot be read any more: {without_paths(trouble)}")
    working = library.working() if library else None
    lacks += [line for line in (library.lacks() if library else ()) if line not in lacks]
    return {
        **told,
        "indexes": server.shelf.names,
        "working": None if working is None else dict(working),
        "lacks": lacks,
        "samples": "samples" in server.kept,
        "version": __version__,
    }


def _gauges(server: Server) -> dict[str, dict[str, float]]:
    papers, vectors, states = dict[str, float](), dict[str, float](), dict[str, float]()
    for name in server.shelf.names:
        try:
            index = server.shelf.get(name).index
        except (RefusedError, CiteweaveError):
            continue
        counts = counts_of(server, name, index)
        papers[name], vectors[name], states[name] = counts["papers"], counts["with_vectors"], index.number
    return {"papers": papers, "papers_with_vectors": vectors, "state_number": states}
