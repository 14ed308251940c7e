"""The command `match`: reviewers for submissions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import CommonArguments, Device, Model, Overwrite, table
from citeweave.core.artifact import kind_of
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.options import Flag, Positional, Range
from citeweave.encoders.model_names import DEFAULT_MODEL
from citeweave.search.options import MatchOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.vectors.vectors import Vectors


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
    from citeweave.search.reviewers import (
        People,
        match_reviewers,
        read_conflicts,
        read_people,
        write_scores,
    )

    if args.output.exists() and not args.overwrite:
        raise UserError(f"{args.output} already exists; choose another name, or replace it with --overwrite")
    reporter = args.reporter
    papers_of, excluded = read_people(args.reviewers), read_conflicts(args.conflicts) if args.conflicts else set()
    with TemporaryDirectory(prefix="citeweave-match-") as folder:
        opening = _VectorSource(args.model, args.device, Path(folder), reporter)
        known, papers_of = opening.people(args.papers or args.submissions, papers_of)
        people = People.find(papers_of, known, min_papers=args.min_papers)
        queries = opening.vectors(args.submissions, "submissions")
        fits = match_reviewers(queries, known, people, args.options, conflicts=excluded, reporter=reporter)
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
    args.print(summary, _text(summary, args.min_papers))


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
