"""The commands `search`, with hits printed as lines of text and the reasons for them, and `match`: reviewers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import CommonArguments, Device, Given, IndexFolder, Model, Overwrite, print_json, table
from citeweave.core.artifact import kind_of
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.options import Flag, Positional, Range
from citeweave.encoders.model_names import DEFAULT_MODEL
from citeweave.evaluation.html import one_line
from citeweave.search.author_names import short_names
from citeweave.search.options import MatchOptions
from citeweave.search.query import Filter, Passage, Query, SentenceQuery
from citeweave.search.read_query import check_years

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.search.answer import SearchResult
    from citeweave.search.explain import Explanation
    from citeweave.search.index import Index
    from citeweave.vectors.vectors import Vectors


MAX_PAIRS = 2
"""Maximum pairs of sentences that are printed as a reason."""


def reasons(index: Index, result: SearchResult) -> list[Explanation | None]:
    """Explain each hit that `citeweave search` prints: why it is similar to the query or nearest liked paper; None for a text."""
    import numpy as np

    from citeweave.vectors.vectors import unit_rows

    query = result.query
    papers = [query.paper] if query.paper else list(query.liked)
    if query.sentences is not None and query.sentences.paper:
        papers = [query.sentences.paper]
    if not papers:
        return [None] * len(result.hits)
    rows = np.array([index.row(id) for id in papers], np.int64)
    nearest = [0] * len(result.hits)
    if len(rows) > 1 and result.hits:
        hits = index.take(np.array([hit.row for hit in result.hits]), query.aspect)  # (hits, dimension)
        liked = unit_rows(index.take(rows, query.aspect))  # (liked, dimension)
        nearest = np.argmax(hits @ liked.T, axis=1).tolist()
    return [cw.explain(index, int(rows[at]), hit.row) for at, hit in zip(nearest, result.hits, strict=True)]


def _hits_text(index: Index, result: SearchResult, output: dict[str, Any]) -> str:
    """Format hits as lines: rank, score, year, authors, title and id, with details below."""
    lines, passage, place = list[str](), -1, 0
    for hit in output["hits"]:
        if hit.get("passage", -1) != passage:
            passage, place = hit["passage"], 0
            lines.append(one_line(result.passage[passage]))
        place += 1
        # + 0.0 turns -0.0 into 0.0
        title, name = one_line(hit["title"], 120) or "(no title)", one_line(hit["id"], 100)
        rank = place if passage >= 0 else result.query.offset + place
        by = f"{one_line(short_names(hit['authors']), 60)}  " if hit["authors"] else ""
        lines.append(f"{rank:>3}. {hit['score'] + 0.0:.4f}  {hit['year'] or '----'}  {by}{title}  {name}")
        lines += _evidence(hit)
        if result.query.sentences is not None or "why" in hit:
            lines += _matches(index, result, hit)
        if hit.get("why"):
            lines += _why(index, hit)
    if not output["hits"]:
        lines.append("no paper was found" + ("; try fewer conditions" if result.query.where else ""))
    if result.note:
        lines.append(result.note)
    if output.get("sentences") == 0:
        lines.append("by papers only; `citeweave index --contexts` adds the sentences that cite them")
    return "\n".join(lines)


def _evidence(hit: dict[str, Any]) -> Iterator[str]:
    if evidence := hit.get("evidence"):
        intents = f" ({', '.join(evidence['intents'])})" if evidence["intents"] else ""
        citing, text = one_line(evidence["citing"], 100), one_line(evidence["text"])
        yield f"     {evidence['score'] + 0.0:.4f}  {citing}{intents}: {text}"


def _matches(index: Index, result: SearchResult, hit: dict[str, Any]) -> Iterator[str]:
    """Return the sentence of a hit that matches each query sentence."""
    chosen = result.query.sentences
    numbers = list(dict.fromkeys(chosen.numbers)) if chosen else []
    texts = index.sentence_texts(hit["row"]) if hit["matches"] else []
    for match in hit["matches"]:
        query = f"{numbers[match['query']] if numbers else match['query']} ~ " if chosen else ""
        text = one_line(texts[match["sentence"]]) if match["sentence"] < len(texts) else ""
        yield f"     {match['score'] + 0.0:.4f}  {query}{match['sentence']}  {text}".rstrip()


def _why(index: Index, hit: dict[str, Any]) -> Iterator[str]:
    why = hit["why"]
    of = one_line(why["of"], 100)
    cites = {"left": f"{of} cites it", "right": f"it cites {of}", "both": f"it and {of} cite each other"}
    lines = [cites[why["cites"]]] if why["cites"] else []
    if why["shared_references"]:
        lines.append(f"{why['shared_references']:,} shared reference{'s' * (why['shared_references'] > 1)}")
    if why["co_cited_by"]:
        lines.append(f"cited together by {why['co_cited_by']:,}")
    if why["words"]:
        lines.append(f"words {one_line(', '.join(why['words'][:5]))}")
    if lines:
        yield f"     {'; '.join(lines)}"
    if hit["matches"]:
        return
    left, right = index.sentence_texts(index.row(why["of"])), index.sentence_texts(hit["row"])
    for pair in why["pairs"][:MAX_PAIRS]:
        for at, texts in ((pair["left"], left), (pair["right"], right)):
            yield f"     {at:>3}  {one_line(texts[at]) if at < len(texts) else ''}".rstrip()


@dataclass(frozen=True, kw_only=True)
class SearchArguments(CommonArguments):
    index: IndexFolder
    text: Annotated[str, Positional()] = ""
    """Text to search for: a question, or a title and an abstract separated by a line break."""

    query: Annotated[Mapping[str, Any], Given(Query, without=("text", "sentences", "cite"))]

    sentences: str = ""
    """Search by sentences of an indexed paper's abstract, as ID:2,3 (numbered from 0)."""

    sentence: tuple[str, ...] = ()
    """Search by this sentence of your own; may be repeated."""

    cite: str = ""
    """Find papers to cite in this sentence or paragraph of a draft."""

    passage: Annotated[Mapping[str, Any], Given(Passage, without=("text",))]

    year: str = ""
    """Only papers published in these years, such as 2015-2020, 2015-, -2020 or 2015."""

    where: Annotated[Mapping[str, Any], Given(Filter, only=("venues", "fields", "authors", "keywords", "collections"))]
    store: str = ""
    """Search in an external vector store: lance:FOLDER or milvus:ADDRESS[#COLLECTION]."""

    explain: bool = False
    """Show below each result why it matches."""

    export: Path | None = None
    """Also write the results to a .bib, .ris, .csv or .json file."""

    model: str = ""
    """Folder of the model that the index was built with, if moved."""

    device: Device = "auto"


def search(args: SearchArguments) -> None:
    """Search an index by text, by paper or by sentence, or find papers to cite in a draft."""
    _check(args)
    query = Query(
        text=args.text,
        sentences=_sentence_query(args.sentences, args.sentence),
        cite=Passage(args.cite, **args.passage) if args.cite else None,
        where=Filter(years=check_years(args.year, "--year"), **args.where),
        **args.query,
    )
    opened = cw.Index.open(args.index)
    result = _search(opened, query, args)
    if args.export is not None:
        from citeweave.search.export import export_papers

        rows = dict.fromkeys(hit.row for hit in result.hits)  # a paper may be a hit of two sentences of a draft
        export_papers([opened.paper(row) for row in rows], args.export)
    output = _result_json(opened, result, explain=args.explain)
    if args.json:
        by_model = opened.provenance.label if opened.provenance else ""
        export = str(args.export) if args.export else None
        print_json({"index": str(opened.folder), "model": by_model, **output, "export": export})
    else:
        print(_hits_text(opened, result, output))


def _check(args: SearchArguments) -> None:
    """Refuse options of `search` that do not go together, before anything is opened."""
    liked = any(name in args.query for name in ("liked", "disliked"))
    kinds = (args.text, args.query.get("paper"), liked, args.sentences, args.sentence, args.cite)
    if sum(map(bool, kinds)) != 1:
        raise UserError(
            'give exactly one thing to search for: "a text", --paper ID, --like ID, --sentences ID:2,3, '
            '--sentence "a sentence" or --cite "a sentence"'
        )
    if args.cite and args.query.get("aspect"):
        raise UserError("--aspect is for a text or a paper; with --cite the space is that of --intent")
    if args.passage and not args.cite:
        raise UserError("--intent, --draft, --min-share and --each-sentence go with --cite; did you mean --aspect?")
    if args.export is not None:
        from citeweave.search.export import export_format

        export_format(args.export)
        if args.export.exists():
            raise UserError(f"--export is {str(args.export)!r}, which already exists; choose another name")


def _sentence_query(text: str, own: tuple[str, ...]) -> SentenceQuery | None:
    """Parse --sentence and --sentences of `search`: own sentences, or the id of a paper and numbers of its sentences.

    >>> _sentence_query("doi:10.1/x:2,3", ()).numbers
    (2, 3)
    """
    if own or not text:
        return SentenceQuery(texts=own) if own else None
    match = re.fullmatch(r"(.+):(\d{1,6}(?:\s?,\s?\d{1,6})*)", text, re.ASCII | re.DOTALL)
    if not match:
        raise UserError(f"--sentences is {text!r}; it must be a paper's id and numbers from 0, such as ID:2,3")
    return SentenceQuery(match[1], tuple(int(number) for number in match[2].split(",")))


def _search(index: Index, query: Query, args: SearchArguments) -> SearchResult:
    from citeweave.search.answer import answer, needs_query_encoder

    index.check_aspect(query.aspect)
    # without vectors to compare with, or for names alone, the model need not be loaded
    needs_model = needs_query_encoder(query, index) and bool(index.with_vector.any())
    encoder = cw.open_query_encoder(index, args.model, device=args.device) if needs_model else None
    if not args.store:
        return answer(index, encoder, query)
    from citeweave.search.databases import open_store
    from citeweave.search.store import nearest_in_store, refuse_aspect

    refuse_aspect(query.aspect)
    if query.kind not in ("text", "paper", "liked") or query.by == "words":
        raise UserError("--store holds vectors of papers: it goes with a text, --paper or --like, not by words")
    with open_store(args.store) as opened:
        return answer(index, encoder, query, near=partial(nearest_in_store, opened, where=query.where))


def _result_json(index: Index, result: SearchResult, *, explain: bool) -> dict[str, Any]:
    """Return what `search --json` prints, with the query as the options gave it."""
    query = result.query
    output = result.as_json() | {"aspect": query.aspect}
    if query.cite:
        output["query"] = {"cite": query.cite.text, "intent": query.cite.intent, "draft": query.cite.draft}
        output["aspect"] = query.cite.intent if query.cite.intent in index.aspects else ""
        output["sentences"] = len(index.citing_sentences) if index.citing_sentences is not None else 0
    else:
        kinds = ("text", "paper", "liked", "disliked", "sentences")
        output["query"] = {kind: output["query"][kind] for kind in kinds if kind in output["query"]}
    output["hits"] = [_hit_json(index, hit) for hit in output["hits"]]
    if explain:
        for hit, why in zip(output["hits"], reasons(index, result), strict=True):
            hit["why"] = why.brief() | {"of": why.left.id} if why else None
    return output


def _hit_json(index: Index, hit: dict[str, Any]) -> dict[str, Any]:
    """Return a hit as `search --json` prints it, with what a person cites it by."""
    from citeweave.search.paper_details import cited_counts, details_json

    paper = index.paper(hit["row"])
    by = {"authors": list(paper.authors), "venue": paper.venue}
    return {**hit, **by, **details_json(paper), "cited_by_count": int(cited_counts(index)[paper.row])}


@dataclass(frozen=True, kw_only=True)
class MatchArguments(CommonArguments):
    submissions: Annotated[Path, Positional()]
    """Corpus of the submissions, or a folder of their vectors."""

    reviewers: Path
    """File of reviewers and their papers: JSON lines or CSV of person and paper ids."""

    output: Annotated[Path, Flag("-o", "--output")]
    """CSV file to write."""

    papers: Path | None = None
    """Corpus or vectors of the reviewers' papers; default: SUBMISSIONS."""

    model: Model = DEFAULT_MODEL
    options: MatchOptions
    min_papers: Annotated[int, Range(1)] = 1
    """Minimum number of papers per reviewer."""

    conflicts: Path | None = None
    """CSV of submissions and persons with conflicts of interest."""

    device: Device = "auto"
    overwrite: Overwrite = False


def match(args: MatchArguments) -> None:
    """Score how well reviewers' papers match submissions, for tools that assign reviewers; authors are excluded."""
    from citeweave.search.reviewers import People, match_reviewers, read_conflicts, read_people, write_scores

    if args.output.exists() and not args.overwrite:
        raise UserError(f"{args.output} already exists; choose another name, or replace it with --overwrite")
    papers_of, excluded = read_people(args.reviewers), read_conflicts(args.conflicts) if args.conflicts else set()
    with TemporaryDirectory(prefix="citeweave-match-") as folder:
        source = _VectorSource(args, Path(folder))
        known, papers_of = source.people(args.papers or args.submissions, papers_of)
        people = People.find(papers_of, known, min_papers=args.min_papers)
        queries = source.vectors(args.submissions, "submissions")
        fits = match_reviewers(queries, known, people, args.options, conflicts=excluded, reporter=args.reporter)
        lines = write_scores(args.output, fits)
    summary: dict[str, Any] = {
        "submissions": len(queries),
        "people": len(people),
        "left_out": people.left_out,
        "unknown_papers": people.unknown,
        "scores": lines,
        "rule": args.options.rule,
        "output": str(args.output),
    }
    rows = [("submissions", len(queries)), ("people", len(people))]
    if people.left_out:
        rows.append((f"  left out: fewer than {args.min_papers} papers", people.left_out))
    if people.unknown:
        rows.append(("papers of people, without a vector", people.unknown))
    rows.append(("scores", lines))
    args.print(summary, f"{args.output}: {args.options.rule} of cosines\n{table(rows)}")


class _VectorSource:
    """Vectors for `match`: existing ones, or embedded from a corpus while the command runs."""

    def __init__(self, args: MatchArguments, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._encoder: Any = None

    def people(self, source: Path, papers_of: dict[str, list[str]]) -> tuple[Vectors, dict[str, list[str]]]:
        """Read the options of `match`: the vectors of the reviewers' papers, and the papers by the vectors' ids."""
        if kind_of(source) != "corpus":
            return self.vectors(source, "papers"), papers_of
        corpus = cw.Corpus.open(source)
        own = {
            person: [
                corpus.ids[row] if row >= 0 else id for id, row in zip(ids, corpus.rows(ids).tolist(), strict=True)
            ]
            for person, ids in papers_of.items()
            if ids
        }
        wanted = sorted({row for ids in own.values() for row in corpus.rows(ids).tolist() if row >= 0})
        if not wanted:
            raise UserError(f"none of the people's papers is in {source}; check the ids, or give another --papers")
        return self._embed(corpus, wanted, "papers"), {person: own.get(person, []) for person in papers_of}

    def vectors(self, source: Path, name: str) -> Vectors:
        kind = kind_of(source)
        if kind == "vectors":
            return cw.Vectors.open(source)
        if kind != "corpus":
            raise ArtifactError(f"{source} holds neither a corpus nor vectors; give the output of import or embed")
        corpus = cw.Corpus.open(source)
        return self._embed(corpus, range(len(corpus)), name)

    def _embed(self, corpus: Corpus, rows: Sequence[int], name: str) -> Vectors:
        from citeweave.encoders.embed import embed_texts

        self._encoder = self._encoder or cw.load_encoder(self._args.model, device=self._args.device)
        read = {corpus.ids[row]: cw.paper_text(corpus.titles[row], corpus.abstracts[row]) for row in rows}
        texts = {id: text for id, text in read.items() if text}
        if not texts:
            raise UserError(f"no paper of {corpus.folder} has a text; import titles or abstracts")
        recipe, reporter = cw.TextRecipe().hash, self._args.reporter
        folder, ids = self._folder / name, list(texts)
        return embed_texts(self._encoder, ids, list(texts.values()), folder, text_recipe=recipe, reporter=reporter)
