"""citeweave explain"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from citeweave.artefacts.manifest import kind_of
from citeweave.cli.options import Debug, Json, Overwrite, Quiet, print_json
from citeweave.errors import ArtefactError, UserError
from citeweave.files import write_whole
from citeweave.links import output_place

if TYPE_CHECKING:
    from citeweave.cli.paper_texts import PaperTexts
    from citeweave.similarity.explaining import Explanation

_Texts = Annotated[
    Path,
    typer.Argument(
        metavar="CORPUS_OR_TEXTS",
        help="Corpus, or abstracts as JSON lines: paper_id, title, abstract.",
        show_default=False,
    ),
]
_Vectors = Annotated[Path, typer.Option("--vectors", help="Folder of sentence vectors.", show_default=False)]
_Papers = Annotated[tuple[str, str], typer.Option("--papers", help="Ids of the two papers, A B.", show_default=False)]
_Page = Annotated[
    Path | None, typer.Option("-o", "--output", help="Page to write, such as page.html.", show_default=False)
]
_Sentences = Annotated[
    str, typer.Option("--sentences", help="Only these sentences of A, from 0, as 2,3.", show_default=False)
]
_Distance = Annotated[str, typer.Option("--distance", help="single, mean_best, top2, attention or transport.")]
_Metric = Annotated[str, typer.Option("--metric", help="Between sentences: l2 or cosine.")]
_Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        help="Of attention and transport; else 0.5 with --sentences and 5000 without.",
        show_default=False,
    ),
]

MOST = 10
"""Pairs of sentences that are printed."""


def explain(
    texts: _Texts,
    vectors: _Vectors,
    papers: _Papers,
    output: _Page = None,
    sentences: _Sentences = "",
    distance: _Distance = "transport",
    metric: _Metric = "l2",
    temperature: _Temperature = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Which sentences of two papers match, and how much each pair counts; as a table, and as a page with pictures."""
    from citeweave.cli.paper_texts import PaperTexts, document_distance, parse_sentences
    from citeweave.similarity.explaining import explain_pair
    from citeweave.similarity.sentence_vectors import SentenceVectors

    if kind_of(vectors) != "sentence_vectors":
        raise ArtefactError(f"{vectors} holds no sentence vectors; make them with `citeweave embed --sentences`")
    if output is not None and output.exists() and not overwrite:
        raise UserError(f"{output} exists already; choose another name, or replace it with --overwrite")
    known, opened, numbers = PaperTexts.open(texts), SentenceVectors.open(vectors), parse_sentences(sentences)
    chosen = document_distance(distance, metric, temperature, by_sentences=numbers is not None)
    found = explain_pair(opened, *papers, chosen, query_sentences=numbers)
    known.find(papers)
    if output is not None:
        from citeweave.evaluation.reporting.explain_page import explain_page
        from citeweave.evaluation.reporting.matches import PairTexts

        titles = [known.title(paper) or paper for paper in papers]
        shown = PairTexts(titles[0], titles[1], known.sentences(papers[0]), known.sentences(papers[1]))
        page = explain_page(found, shown, chosen, model=opened.provenance.label)
        write_whole(output_place(output), page.encode())
    if json:
        names = {"papers": list(papers), "titles": [known.title(paper) for paper in papers], "name": chosen.name}
        print_json({**names, **found.as_json(), "output": str(output) if output else None})
    elif not quiet:
        print(_text(papers, found, known, chosen.name, output))


def _text(papers: tuple[str, str], found: Explanation, known: PaperTexts, name: str, output: Path | None) -> str:
    lines = [f"{letter}: {paper}  {known.title(paper)}".rstrip() for letter, paper in zip("AB", papers, strict=True)]
    lines += [f"{name} distance {found.total:.4f}", " share  distance"]
    whole = float(found.plan.sum()) or 1.0
    for pair in found.strongest(MOST):
        lines.append(
            f"{100 * pair.mass / whole:5.1f}%  {pair.distance:8.4f}  A{pair.left}  {known.sentence(papers[0], pair.left)}".rstrip()
        )
        lines.append(f"{'':18}B{pair.right}  {known.sentence(papers[1], pair.right)}".rstrip())
    for paper, numbers in zip(papers, (found.left, found.right), strict=True):
        if numbers.max() >= len(known.sentences(paper)):
            lines.append(f"{paper} has vectors of more sentences than its text has: they are of another text")
    if output is not None:
        lines.append(f"pictures: {output}")
    return "\n".join(lines)
