"""citeweave similar"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.artefacts.manifest import kind_of
from citeweave.cli.options import Debug, Device, Json, Quiet, print_json, reporter_of
from citeweave.errors import ArtefactError, UserError, choose

if TYPE_CHECKING:
    from citeweave.cli.paper_texts import PaperTexts
    from citeweave.progress import Reporter
    from citeweave.similarity.transport import DocumentDistance

_Vectors = Annotated[Path, typer.Argument(help="Folder of vectors or of sentence vectors.", show_default=False)]
_Paper = Annotated[str, typer.Option("--paper", help="Id of the paper to ask with.", show_default=False)]
_Sentences = Annotated[
    str,
    typer.Option(
        "--sentences",
        help="Of sentence vectors: only these sentences of the paper, from 0, as 2,3.",
        show_default=False,
    ),
]
_Texts = Annotated[
    Path | None,
    typer.Option("--corpus", help="Corpus, or abstracts as JSON lines: for titles and sentences.", show_default=False),
]
_K = Annotated[int, typer.Option("-k", help="How many papers.")]
_Distance = Annotated[
    str, typer.Option("--distance", help="Of sentence vectors: single, mean_best, top2, attention, transport.")
]
_Metric = Annotated[
    str,
    typer.Option(
        "--metric",
        help="Of vectors cosine, l2 or dot, else cosine; between sentences l2 or cosine, else l2.",
        show_default=False,
    ),
]
_Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        help="Of attention and transport; else 0.5 with --sentences and 5000 without.",
        show_default=False,
    ),
]
_First = Annotated[
    int,
    typer.Option("--first", help="Papers scored by top2, attention or transport; 0 = until nothing can be missing."),
]


def similar(
    vectors: _Vectors,
    paper: _Paper,
    sentences: _Sentences = "",
    corpus: _Texts = None,
    k: _K = 10,
    distance: _Distance = "transport",
    metric: _Metric = "",
    temperature: _Temperature = None,
    first: _First = 200,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The papers of a folder of vectors that are nearest to one of them, whole or by chosen sentences."""
    from citeweave.cli.paper_texts import PaperTexts, document_distance, parse_sentences

    kind = kind_of(vectors)
    if kind not in ("vectors", "sentence_vectors"):
        raise ArtefactError(f"{vectors} holds no vectors; give a folder that `citeweave embed` made")
    texts, reporter = PaperTexts.open(corpus), reporter_of(quiet or json)
    if kind == "vectors":
        if sentences:
            raise UserError(f"--sentences is {sentences!r}, but {vectors} has one vector a paper; leave it out")
        found = _by_vectors(vectors, paper, k, metric or "cosine", device, reporter)
    else:
        numbers = parse_sentences(sentences)
        chosen = document_distance(distance, metric, temperature, by_sentences=numbers is not None)
        found = _by_sentences(vectors, paper, numbers, k, chosen, first or None, device, reporter)
    texts.find([paper, *(hit["id"] for hit in found["hits"])])
    for each in (found, *found["hits"]):
        each["title"] = texts.title(each["id"])
    if json:
        print_json(found)
    else:
        print(_text(found, texts))


def _by_vectors(folder: Path, paper: str, k: int, metric: str, device: str, reporter: Reporter) -> dict[str, Any]:
    import numpy as np

    from citeweave.similarity.topk import METRICS, nearest
    from citeweave.similarity.vectors import Vectors

    choose(metric, METRICS, "--metric")
    opened = Vectors.open(folder)
    row = opened.rows([paper])
    if row[0] < 0:
        raise UserError(f"--paper is {paper!r}; {folder} has {len(opened):,} papers with ids such as {opened.ids[0]!r}")
    if k < 1:
        raise UserError(f"-k is {k}; it must be at least 1")
    near = nearest(
        opened.matrix,
        np.asarray(opened.matrix[row]),
        min(k, len(opened)),
        metric=metric,
        itself=row,
        device=device,
        reporter=reporter,
    )
    hits = [
        {"id": opened.ids[at], "score": float(score)}
        for at, score in zip(near.rows[0].tolist(), near.scores[0].tolist(), strict=True)
        if at >= 0
    ]
    return {"id": paper, "metric": metric, "is_exact": True, "hits": hits}


def _by_sentences(
    folder: Path,
    paper: str,
    numbers: list[int] | None,
    k: int,
    distance: DocumentDistance,
    first: int | None,
    device: str,
    reporter: Reporter,
) -> dict[str, Any]:
    import numpy as np

    from citeweave.similarity.explaining import explain_pair
    from citeweave.similarity.sentence_search import search_sentences
    from citeweave.similarity.sentence_vectors import SentenceVectors

    opened = SentenceVectors.open(folder)
    found = search_sentences(
        opened,
        [paper],
        k,
        distance,
        query_sentences=None if numbers is None else [np.array(numbers, np.int64)],
        first=None if first is None else max(first, k),
        device=device,
        reporter=reporter,
    )
    hits = []
    for row, score in zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True):
        if row >= 0:
            pair = explain_pair(opened, paper, row, distance, query_sentences=numbers).nearest
            about = {"query": pair.left, "paper": pair.right, "distance": pair.distance}
            hits.append({"id": opened.ids[row], "score": score, "nearest_sentences": about})
    facts = {"distance": distance.name, "metric": distance.metric, "temperature": distance.temperature}
    return {"id": paper, "sentences": numbers, **facts, "is_exact": bool(found.is_exact[0]), "hits": hits}


def _text(found: dict[str, Any], texts: PaperTexts) -> str:
    lines = [f"{found['id']}  {found['title']}".rstrip()]
    for place, hit in enumerate(found["hits"], 1):
        # + 0.0, as -0.0 is a strange thing to read
        lines.append(f"{place:>3}. {hit['score'] + 0.0:.4f}  {hit['id']}  {hit['title']}".rstrip())
        if pair := hit.get("nearest_sentences"):
            for paper, at in ((found["id"], pair["query"]), (hit["id"], pair["paper"])):
                lines.append(f"     {at:>3}  {texts.sentence(paper, at)}".rstrip())
    if not found["hits"]:
        lines.append("no other paper has vectors")
    if not found["is_exact"]:
        lines.append("not proved to be the nearest of all; --first 0 makes sure")
    return "\n".join(lines)
