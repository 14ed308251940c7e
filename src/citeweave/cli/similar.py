"""The commands `similar` and `explain`: nearest papers, and which of their sentences match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import CommonArguments, Device, Overwrite
from citeweave.core.artifact import kind_of
from citeweave.core.errors import ArtifactError, InputError, UserError, choose
from citeweave.core.files import resolve_output, write_atomically
from citeweave.core.options import Flag, Positional
from citeweave.evaluation.html import one_line

if TYPE_CHECKING:
    from citeweave.vectors.document_distance import DocumentDistance, SentenceAlignment
    from citeweave.vectors.own_distance import Reading


class PaperSentences:
    """Titles and sentences of papers for what `similar` and `explain` print beside ids; empty where unknown."""

    def __init__(self, source: Path | None) -> None:
        if source is not None and not source.exists():
            raise InputError(f"{source} is not there; give the folder of a corpus, or a file of abstracts")
        self._source = source
        self._titles: dict[str, str] = {}
        self._sentences: dict[str, list[str]] = {}

    def find(self, ids: Iterable[str]) -> None:
        """Read the titles and sentences of papers that `similar` or `explain` prints from the corpus or file."""
        wanted = list(dict.fromkeys(ids))
        if self._source is not None and self._source.is_dir():
            self._find_in_corpus(self._source, wanted)
        elif self._source is not None:
            from citeweave.evaluation.suites.aspire import read_abstracts

            texts = read_abstracts(self._source, wanted=wanted).texts
            for row, paper in enumerate(texts.ids):
                self._titles[paper], self._sentences[paper] = texts.titles[row], list(texts.sentences_of(row))

    def _find_in_corpus(self, folder: Path, wanted: list[str]) -> None:
        from citeweave.corpus.text import sentence_texts

        corpus = cw.Corpus.open(folder)
        for paper, row in zip(wanted, corpus.rows(wanted).tolist(), strict=True):
            if row >= 0:
                title = corpus.titles[row]
                self._titles[paper] = title
                self._sentences[paper] = sentence_texts(corpus.abstracts[row]) or [each for each in [title] if each]

    def title(self, paper: str) -> str:
        return one_line(self._titles.get(paper, ""), 300)

    def sentences(self, paper: str) -> list[str]:
        return self._sentences.get(paper, [])

    def sentence(self, paper: str, at: int, max_length: int = 120) -> str:
        """Return one sentence on one line, shortened if it is long."""
        known = self.sentences(paper)
        return one_line(known[at], max_length) if at < len(known) else ""


@dataclass(frozen=True, kw_only=True)
class DistanceArguments(CommonArguments):
    """How `similar` and `explain` compare papers by their sentences."""

    sentences: str = ""
    """With sentence vectors: compare only these sentences of the first paper, counted from 0, such as 2,3."""

    distance: str = ""
    """With sentence vectors: document distance single, mean_best, top2, attention or transport; default: the model's own,
    else transport."""

    temperature: float | None = None
    """Softmax temperature for attention and transport; default: 0.5 with --sentences, 5000 without."""

    @property
    def numbers(self) -> list[int] | None:
        """The sentences of --sentences; None for all."""
        parts = [part.strip() for part in self.sentences.split(",")] if self.sentences else []
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise UserError(f"--sentences is {self.sentences!r}; it must be numbers of sentences, from 0, such as 2,3")
        return [int(part) for part in parts] or None

    def document_distance(self, metric: str, own: Reading) -> DocumentDistance:
        """Return the document distance of the options, else the model's own, with ASPIRE's temperatures."""
        from citeweave.evaluation.sentence_systems import FACET_TEMPERATURE, PAPER_TEMPERATURE
        from citeweave.vectors.document_distance import DocumentDistance

        usual = own.temperature or (FACET_TEMPERATURE if self.sentences else PAPER_TEMPERATURE)
        temperature = usual if self.temperature is None else self.temperature
        name = self.distance or own.of_sentences or DocumentDistance().name
        return DocumentDistance(name, temperature, metric or own.metric or "l2")


@dataclass(frozen=True, kw_only=True)
class SimilarArguments(DistanceArguments):
    vectors: Annotated[Path, Positional()]
    """Folder of vectors or of sentence vectors."""

    paper: str
    """Id of the query paper."""

    corpus: Path | None = None
    """Corpus, or abstracts as JSON lines, to show titles and sentences."""

    k: Annotated[int, Flag("-k")] = 10
    """Number of papers to return."""

    metric: str = ""
    """Metric between vectors (cosine, l2 or dot; default cosine) or between sentences (l2 or cosine; default: the model's
    own, else l2)."""

    first: Annotated[int, Flag("--rescore")] = 200
    """Number of papers to rescore with top2, attention or transport; 0 = as many as an exact result needs."""

    device: Device = "auto"


def similar(args: SimilarArguments) -> None:
    """List a paper's nearest neighbors in a folder of vectors, by the whole paper or selected sentences."""
    kind = kind_of(args.vectors)
    if kind not in ("vectors", "sentence_vectors"):
        raise ArtifactError(f"{args.vectors} holds no vectors; give an output folder of `citeweave embed`")
    texts = PaperSentences(args.corpus)
    if kind == "vectors" and args.sentences:
        raise UserError(
            f"--sentences is {args.sentences!r}, but {args.vectors} has one vector per paper; make vectors of sentences with "
            "`citeweave embed CORPUS --sentences -o FOLDER`, or leave it out"
        )
    result = _by_vectors(args) if kind == "vectors" else _by_sentences(args)
    texts.find([args.paper, *(hit["id"] for hit in result["hits"])])
    for each in (result, *result["hits"]):
        each["title"] = texts.title(each["id"])
    args.print_result(result, _similar_text(result, texts))


def _by_vectors(args: SimilarArguments) -> dict[str, Any]:
    import numpy as np

    from citeweave.vectors.topk import METRICS

    metric = choose(args.metric or "cosine", METRICS, "--metric")
    opened = cw.Vectors.open(args.vectors)
    row = opened.rows([args.paper])
    if row[0] < 0:
        raise UserError(
            f"--paper is {args.paper!r}; {args.vectors} has {len(opened):,} papers with ids such as {opened.ids[0]!r}"
        )
    if args.k < 1:
        raise UserError(f"-k is {args.k}; it must be at least 1")
    query = np.asarray(opened.matrix[row])
    common: dict[str, Any] = {"device": args.device, "reporter": args.reporter}
    near = cw.nearest(opened.matrix, query, min(args.k, len(opened)), metric=metric, itself=row, **common)
    places = zip(near.rows[0].tolist(), near.scores[0].tolist(), strict=True)
    hits = [{"id": opened.ids[at], "score": float(score)} for at, score in places if at >= 0]
    return {"id": args.paper, "metric": metric, "is_exact": True, "hits": hits}


def _by_sentences(args: SimilarArguments) -> dict[str, Any]:
    import numpy as np

    from citeweave.vectors.document_distance import explain_pair
    from citeweave.vectors.sentence_search import search_sentences
    from citeweave.vectors.sentence_vectors import SentenceVectors

    numbers = args.numbers
    opened = SentenceVectors.open(args.vectors)
    distance = args.document_distance(args.metric, opened.reading)
    nearest = search_sentences(
        opened,
        [args.paper],
        args.k,
        distance,
        query_sentences=None if numbers is None else [np.array(numbers, np.int64)],
        first=max(args.first, args.k) if args.first else None,
        device=args.device,
        reporter=args.reporter,
    )
    hits = []
    for row, score in zip(nearest.rows[0].tolist(), nearest.scores[0].tolist(), strict=True):
        if row >= 0:
            pair = explain_pair(opened, args.paper, row, distance, query_sentences=numbers).nearest
            sentences = {"query": pair.left, "paper": pair.right, "distance": pair.distance}
            hits.append({"id": opened.ids[row], "score": score, "nearest_sentences": sentences})
    settings = {"distance": distance.name, "metric": distance.metric, "temperature": distance.temperature}
    return {"id": args.paper, "sentences": numbers, **settings, "is_exact": bool(nearest.is_exact[0]), "hits": hits}


def _similar_text(result: dict[str, Any], texts: PaperSentences) -> str:
    lines = [f"{result['id']}  {result['title']}".rstrip()]
    for place, hit in enumerate(result["hits"], 1):
        # + 0.0 turns -0.0 into 0.0
        lines.append(f"{place:>3}. {hit['score'] + 0.0:.4f}  {hit['id']}  {hit['title']}".rstrip())
        if pair := hit.get("nearest_sentences"):
            for paper, at in ((result["id"], pair["query"]), (hit["id"], pair["paper"])):
                lines.append(f"     {at:>3}  {texts.sentence(paper, at)}".rstrip())
    if not result["hits"]:
        lines.append("no other paper has vectors")
    if not result["is_exact"]:
        lines.append("not proved to be the nearest of all; --rescore 0 makes sure")
    return "\n".join(lines)


MAX_PAIRS = 10
"""Pairs of sentences that are printed."""


@dataclass(frozen=True, kw_only=True)
class ExplainArguments(DistanceArguments):
    texts: Annotated[Path, Positional("CORPUS_OR_TEXTS")]
    """Corpus, or abstracts as JSON lines: paper_id, title, abstract."""

    vectors: Path
    """Folder of sentence vectors."""

    papers: tuple[str, str]
    """Ids of the two papers, A B."""

    output: Annotated[Path | None, Flag("-o", "--output")] = None
    """HTML page to write, such as page.html."""

    metric: str = ""
    """Metric between sentences: l2 or cosine; default: the model's own, else l2."""

    overwrite: Overwrite = False


def explain(args: ExplainArguments) -> None:
    """Show which sentences of two papers match, and how strongly, as a table and an HTML page."""
    from citeweave.vectors.document_distance import explain_pair
    from citeweave.vectors.sentence_vectors import SentenceVectors

    if kind_of(args.vectors) != "sentence_vectors":
        raise ArtifactError(f"{args.vectors} holds no sentence vectors; make them with `citeweave embed --sentences`")
    if args.output is not None and args.output.exists() and not args.overwrite:
        raise UserError(f"{args.output} already exists; choose another name, or replace it with --overwrite")
    known, opened = PaperSentences(args.texts), SentenceVectors.open(args.vectors)
    chosen = args.document_distance(args.metric, opened.reading)
    explanation = explain_pair(opened, *args.papers, chosen, query_sentences=args.numbers)
    known.find(args.papers)
    if args.output is not None:
        from citeweave.evaluation.match_page import PairTexts, explanation_as_page

        titles = [known.title(paper) or paper for paper in args.papers]
        texts = PairTexts(*titles, *map(known.sentences, args.papers))
        page = explanation_as_page(explanation, texts, chosen, model=opened.provenance.label)
        write_atomically(resolve_output(args.output), page.encode())
    names = {"papers": list(args.papers), "titles": [known.title(paper) for paper in args.papers], "name": chosen.name}
    args.print(
        {**names, **explanation.as_json(), "output": str(args.output) if args.output else None},
        _explain_text(args.papers, explanation, known, chosen.name, args.output),
    )


def _explain_text(
    papers: tuple[str, str], explanation: SentenceAlignment, known: PaperSentences, name: str, output: Path | None
) -> str:
    lines = [f"{letter}: {paper}  {known.title(paper)}".rstrip() for letter, paper in zip("AB", papers, strict=True)]
    lines += [f"{name} distance {explanation.total:.4f}", " share  distance"]
    total = float(explanation.plan.sum()) or 1.0
    for pair in explanation.strongest(MAX_PAIRS):
        lines.append(
            f"{100 * pair.mass / total:5.1f}%  {pair.distance:8.4f}  A{pair.left}  {known.sentence(papers[0], pair.left)}".rstrip()
        )
        lines.append(f"{'':18}B{pair.right}  {known.sentence(papers[1], pair.right)}".rstrip())
    for paper, numbers in zip(papers, (explanation.left, explanation.right), strict=True):
        if numbers.max() >= len(known.sentences(paper)):
            lines.append(f"{paper} has vectors of more sentences than its text has: the vectors belong to another text")
    if output is not None:
        lines.append(f"page: {output}")
    return "\n".join(lines)
