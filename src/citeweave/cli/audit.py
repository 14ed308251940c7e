"""citeweave audit"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from citeweave.artefacts.manifest import kind_of
from citeweave.cli.audit_samples import audit_samples_folder, print_report
from citeweave.cli.options import Debug, Json, Overwrite, Quiet, named_paths, print_json, reporter_of
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.leakage.report import LeakageReport


_Folder = Annotated[Path, typer.Argument(help="Folder of a corpus or of samples.", show_default=False)]
_Against = Annotated[
    list[str],
    typer.Option("--against", help="NAME=PATH of a benchmark's papers; may be repeated.", show_default=False),
]
_SameIds = Annotated[bool, typer.Option("--same-ids", help="Ids without a prefix mean the same on both sides.")]
_NearDuplicates = Annotated[
    bool, typer.Option("--near-duplicates/--exact", help="Also compare texts, or ids and titles only.")
]
_Show = Annotated[int, typer.Option("--show", help="How many matches or collisions to list.")]
_Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write a corpus without the papers found.", show_default=False)
]
_Corpus = Annotated[
    Path | None,
    typer.Option("--corpus", help="Samples: their corpus, where it was moved.", show_default=False),
]
_Graph = Annotated[
    Path | None,
    typer.Option("--graph", help="Samples: folder of a graph, for distances.", show_default=False),
]
_Pictures = Annotated[Path | None, typer.Option("--pictures", help="Samples: folder for pictures.", show_default=False)]


def audit(
    folder: _Folder,
    against: _Against = [],  # noqa: B006
    same_ids: _SameIds = False,
    near_duplicates: _NearDuplicates = True,
    show: _Show = 0,
    output: _Output = None,
    corpus: _Corpus = None,
    graph: _Graph = None,
    pictures: _Pictures = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find what should not be trained on.

    In a corpus: the papers of benchmarks, by id, DOI, title and near-duplicate text; exclude them with -o. In samples:
    collisions, negatives that are related or copies, repeats, coverage, leaks.
    """
    if kind_of(folder) == "samples":
        report = audit_samples_folder(
            folder,
            corpus=corpus,
            graph=graph,
            against=against,
            near_duplicates=near_duplicates,
            show=show,
            pictures=pictures,
            reporter=reporter_of(quiet or json),
        )
        print_report(report, as_json=json, quiet=quiet)
        return
    from citeweave.corpus.corpus import Corpus

    for option, value in (("--corpus", corpus), ("--graph", graph), ("--pictures", pictures)):
        if value is not None:
            raise UserError(f"{option} is for auditing samples, and {folder} holds none; leave it out")
    if kind_of(folder) != "corpus":
        Corpus.open(folder)  # says what is wrong with it
    if not against:
        raise UserError("auditing a corpus needs --against NAME=PATH, such as --against csfcube=data/csfcube")
    found = _audit_corpus(folder, against, same_ids=same_ids, near_duplicates=near_duplicates, show=show)
    if output is not None:
        found.result["excluded"] = _exclude(found.corpus, found.report, output, overwrite=overwrite)
        reporter_of(quiet or json).say(f"{output}: the corpus without {found.result['excluded']:,} papers")
    if json:
        print_json(found.result)
    elif not quiet:
        print(_text(found.report, found.result))


class _Found(NamedTuple):
    corpus: Corpus
    report: LeakageReport
    result: dict[str, Any]


def _audit_corpus(folder: Path, against: list[str], *, same_ids: bool, near_duplicates: bool, show: int) -> _Found:
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.leakage.audit import LeakageOptions, audit_leakage
    from citeweave.corpus.leakage.benchmark_papers import CorpusPapers, papers_of

    opened = Corpus.open(folder)
    named = named_paths(against, "--against", "csfcube=data/csfcube")
    benchmarks = {name: papers_of(path) for name, path in named.items()}
    options = LeakageOptions(same_id_space=same_ids, near_duplicates=near_duplicates)
    report = audit_leakage(CorpusPapers(opened), benchmarks, options)
    result: dict[str, Any] = report.as_json()
    if show:
        result["matches"] = {name: _matches(opened, papers, report, name, show) for name, papers in benchmarks.items()}
    return _Found(opened, report, result)


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
