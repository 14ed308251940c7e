"""citeweave compare"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from citeweave.cli.options import Debug, Json, Quiet, Seed, print_json
from citeweave.errors import UserError
from citeweave.files import write_whole
from citeweave.links import output_place

if TYPE_CHECKING:
    from citeweave.evaluation.comparison import Comparison
    from citeweave.evaluation.report import Report

_Reports = Annotated[
    list[str],
    typer.Argument(
        metavar="REPORTS",
        help="Folders of reports, two or more; NAME=FOLDER, with the same name for the seeds of one system.",
        show_default=False,
    ),
]
_Metrics = Annotated[
    list[str],
    typer.Option("--metric", help="Compare by this metric, such as all.map; may be repeated.", show_default=False),
]
_Resamples = Annotated[int, typer.Option("--resamples", help="Bootstrap resamples.")]
_Page = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the tables to this .md or .html file.", show_default=False),
]


def compare(
    reports: _Reports,
    metric: _Metrics = [],  # noqa: B006
    resamples: _Resamples = 10_000,
    output: _Page = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say whether systems differ: values with intervals, differences with corrected p-values, a plain sentence each."""
    from citeweave.evaluation import compare as verb
    from citeweave.evaluation.reporting.markdown import comparison_as_markdown

    if resamples < 100:
        raise UserError(f"--resamples is {resamples}; at least 100 are needed for an interval")
    if output is not None and output.suffix not in (".md", ".html"):
        raise UserError(f"-o is {output}; a comparison is written as .md or .html")
    comparison = verb.compare(_systems(reports), metrics=metric, resamples=resamples, seed=seed)
    text = comparison_as_markdown(comparison)
    if output is not None:
        _write(output, comparison, text)
    if json:
        found = asdict(comparison)
        found["differences"] = [{**asdict(each), "significant": each.is_significant} for each in comparison.differences]
        print_json({**found, "sentences": comparison.sentences})
    elif not quiet:
        print(text)


def _systems(given: list[str]) -> dict[str, list[Report]]:
    """Reports by system: by the names given, else each for itself."""
    from citeweave.evaluation.report import Report

    systems: dict[str, list[Report]] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if equals and not Path(text).is_dir():  # a folder may have an equals sign in its name
            systems.setdefault(name, []).append(Report.open(folder))
            continue
        report = Report.open(text)
        systems[_free_name([report.name, f"{report.name} ({text})"], systems)] = [report]
    return systems


def _free_name(names: list[str], taken: Container[str]) -> str:
    """The first name that is not taken, else the last with a number.

    >>> _free_name(["a", "a (b)"], ["a"]), _free_name(["a", "a (b)"], ["a", "a (b)"])
    ('a (b)', 'a (b) 2')
    """
    more = (f"{names[-1]} {number}" for number in count(2))
    return next(name for name in chain(names, more) if name not in taken)


def _write(path: Path, comparison: Comparison, text: str) -> None:
    from citeweave.evaluation.reporting.page import comparison_as_page

    write_whole(output_place(path), (comparison_as_page(comparison) if path.suffix == ".html" else text).encode())
