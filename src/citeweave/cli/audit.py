"""citeweave audit"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Json, Overwrite, Quiet, print_json, reporter_of
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.leakage.report import LeakageReport


def audit(
    corpus: Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)],
    against: Annotated[
        list[str],
        typer.Option("--against", help="NAME=PATH of a benchmark's papers; may be repeated.", show_default=False),
    ],
    same_ids: Annotated[
        bool, typer.Option("--same-ids", help="Ids without a prefix mean the same on both sides.")
    ] = False,
    near_duplicates: Annotated[
        bool, typer.Option("--near-duplicates/--exact", help="Also compare texts, or ids and titles only.")
    ] = True,
    show: Annotated[int, typer.Option("--show", help="How many matches to list for each benchmark.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a corpus without the papers found.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the papers of benchmarks inside a corpus, by id, DOI, title and near-duplicate text; exclude them with -o."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.leakage.audit import LeakageOptions, audit_leakage
    from citeweave.corpus.leakage.benchmark_papers import CorpusPapers, papers_of

    opened = Corpus.open(corpus)
    benchmarks = {name: papers_of(path) for name, path in _named_paths(against).items()}
    options = LeakageOptions(same_id_space=same_ids, near_duplicates=near_duplicates)
    report = audit_leakage(CorpusPapers(opened), benchmarks, options)
    result: dict[str, Any] = report.as_json()
    if show:
        result["matches"] = {name: _matches(opened, papers, report, name, show) for name, papers in benchmarks.items()}
    if output is not None:
        result["excluded"] = _exclude(opened, report, output, overwrite=overwrite)
        reporter_of(quiet or json).say(f"{output}: the corpus without {result['excluded']:,} papers")
    if json:
        print_json(result)
    elif not quiet:
        print(_text(report, result))


def _named_paths(pairs: list[str]) -> dict[str, Path]:
    named = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise UserError(f"--against is {pair!r}; it must be NAME=PATH, such as csfcube=data/csfcube")
        if name in named:
            raise UserError(f"--against names {name!r} twice; give every benchmark a name of its own")
        named[name] = Path(path)
    return named


def _matches(corpus: Corpus, papers: Any, report: LeakageReport, name: str, show: int) -> list[dict[str, Any]]:
    found = []
    for match in list(report.benchmarks[name])[:show]:
        found.append(
            {
                "paper": corpus.ids[match.corpus_row],
                "title": corpus.titles[match.corpus_row],
                "benchmark_paper": papers.ids[match.benchmark_row],
                "benchmark_title": papers.titles[match.benchmark_row],
                "evidence": str(match.strongest.name).lower(),
            }
        )
    return found


def _exclude(corpus: Corpus, report: LeakageReport, output: Path, *, overwrite: bool) -> int:
    from citeweave.corpus.importing import exclude_papers

    rows = report.rows_to_exclude()
    exclude_papers(corpus, rows, output, why=f"papers of {', '.join(report.benchmarks)}", overwrite=overwrite)
    return len(rows)


def _text(report: LeakageReport, result: dict[str, Any]) -> str:
    lines = [str(report)]
    for name, matches in result.get("matches", {}).items():
        lines += [
            f"{name}: {m['paper']} = {m['benchmark_paper']} ({m['evidence']})\n  {m['title']}\n  {m['benchmark_title']}"
            for m in matches
        ]
    return "\n".join(lines)
