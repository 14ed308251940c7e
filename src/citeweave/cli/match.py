"""The command `match`: reviewers for submissions."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Model, Overwrite, Quiet, print_json, reporter_of, table
from citeweave.core.artifact import kind_of
from citeweave.core.errors import ArtifactError, UserError
from citeweave.encoders.model_names import DEFAULT_MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.vectors.vectors import Vectors

_Submissions = Annotated[
    Path, typer.Argument(help="Corpus of the submissions, or a folder of their vectors.", show_default=False)
]
_Reviewers = Annotated[
    Path,
    typer.Option(
        "--reviewers",
        help="File of reviewers and their papers: JSON lines or CSV of person and paper ids.",
        show_default=False,
    ),
]
_Papers = Annotated[
    Path | None,
    typer.Option(
        "--papers", help="Corpus or vectors of the reviewers' papers; default: SUBMISSIONS.", show_default=False
    ),
]
_Output = Annotated[Path, typer.Option("-o", "--output", help="CSV file to write.", show_default=False)]
_Rule = Annotated[
    str,
    typer.Option(
        "--rule", help="How to combine the scores of a reviewer's papers: top3 (mean of the three best), max or mean."
    ),
]
_MinPapers = Annotated[int, typer.Option("--min-papers", help="Minimum number of papers per reviewer.")]
_Best = Annotated[int, typer.Option("--top", help="Number of best reviewers per submission; 0 = all.")]
_Conflicts = Annotated[
    Path | None,
    typer.Option("--conflicts", help="CSV of submissions and persons with conflicts of interest.", show_default=False),
]


def match(
    submissions: _Submissions,
    reviewers: _Reviewers,
    output: _Output,
    papers: _Papers = None,
    model: Model = DEFAULT_MODEL,
    rule: _Rule = "top3",
    min_papers: _MinPapers = 1,
    best: _Best = 0,
    conflicts: _Conflicts = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score how well reviewers' papers match submissions, for tools that assign reviewers; authors are excluded."""
    from citeweave.search.reviewers import (
        MatchOptions,
        People,
        match_reviewers,
        read_conflicts,
        read_people,
        write_scores,
    )

    if output.exists() and not overwrite:
        raise UserError(f"{output} already exists; choose another name, or replace it with --overwrite")
    options, reporter = MatchOptions(rule, best), reporter_of(quiet or json)
    papers_of, excluded = read_people(reviewers), read_conflicts(conflicts) if conflicts else set()
    with TemporaryDirectory(prefix="citeweave-match-") as folder:
        opening = _VectorSource(model, device, Path(folder), reporter)
        known, papers_of = opening.people(papers or submissions, papers_of)
        people = People.find(papers_of, known, min_papers=min_papers)
        queries = opening.vectors(submissions, "submissions")
        fits = match_reviewers(queries, known, people, options, conflicts=excluded, reporter=reporter)
        lines = write_scores(output, fits)
    summary: dict[str, Any] = {
        "submissions": len(queries),
        "people": len(people),
        "left_out": people.left_out,
        "unknown_papers": people.unknown,
        "scores": lines,
        "rule": rule,
        "output": str(output),
    }
    if json:
        print_json(summary)
    elif not quiet:
        print(_text(summary, min_papers))


def _text(summary: dict[str, Any], min_papers: int) -> str:
    rows: list[tuple[str, object]] = [("submissions", summary["submissions"]), ("people", summary["people"])]
    if summary["left_out"]:
        rows.append((f"  left out: fewer than {min_papers} papers", summary["left_out"]))
    if summary["unknown_papers"]:
        rows.append(("papers of people, without a vector", summary["unknown_papers"]))
    rows.append(("scores", summary["scores"]))
    return f"{summary['output']}: {summary['rule']} of cosines\n{table(rows)}"


class _VectorSource:
    """Vectors for `match`: existing ones, or embedded from a corpus while the command runs."""

    def __init__(self, model: str, device: str, folder: Path, reporter: Reporter) -> None:
        self._model, self._device, self._folder, self._reporter = model, device, folder, reporter
        self._encoder: Any = None

    def people(self, source: Path, papers_of: dict[str, list[str]]) -> tuple[Vectors, dict[str, list[str]]]:
        """Read the options of `match`: the vectors of the reviewers' papers, and the papers by the vectors' ids."""
        if kind_of(source) != "corpus":
            return self.vectors(source, "papers"), papers_of
        from citeweave.corpus.corpus import Corpus

        corpus = Corpus.open(source)
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
            from citeweave.vectors.vectors import Vectors

            return Vectors.open(source)
        if kind != "corpus":
            raise ArtifactError(f"{source} holds neither a corpus nor vectors; give the output of import or embed")
        from citeweave.corpus.corpus import Corpus

        corpus = Corpus.open(source)
        return self._embed(corpus, range(len(corpus)), name)

    def _embed(self, corpus: Corpus, rows: Sequence[int], name: str) -> Vectors:
        from citeweave.corpus.text import TextRecipe, paper_text
        from citeweave.encoders.embed import embed_texts
        from citeweave.encoders.encoder import load_encoder

        self._encoder = self._encoder or load_encoder(self._model, device=self._device)
        ids, texts = [], []
        for row in rows:
            if text := paper_text(corpus.titles[row], corpus.abstracts[row]):
                ids.append(corpus.ids[row])
                texts.append(text)
        if not ids:
            raise UserError(f"no paper of {corpus.folder} has a text; import titles or abstracts")
        return embed_texts(
            self._encoder,
            ids,
            texts,
            self._folder / name,
            text_recipe=TextRecipe().hash,
            reporter=self._reporter,
        )
