"""The verb: judge a model in all its aspect spaces, a report each, with every paper read once.

    reports = evaluate_spaces(open_spaces("model/"), suite, "reports/")
    reports["method"].metrics["cite.map"]

    reports/encoder/  reports/background/  reports/method/  reports/result/  reports/all/  reports/matching/

`matching` is left out where the suite asks about no aspect. Does not judge tasks: see `evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from citeweave.artefacts.manifest import kind_of
from citeweave.errors import UserError
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.judged import ByFacet, Judged
from citeweave.evaluation.judging.aspect_spaces import judgeable
from citeweave.evaluation.remote import Shared
from citeweave.evaluation.report import Report
from citeweave.evaluation.tasks import Suite
from citeweave.progress import QUIET, Reporter


def evaluate_spaces(
    spaces: Mapping[str, Judged | Shared],
    suite: Suite,
    output: str | Path,
    *,
    tasks: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    with_map: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> dict[str, Report]:
    """Space -> its report, in a folder of that name."""
    folder = Path(output)
    if folder.is_dir() and (kind := kind_of(folder)):
        raise UserError(
            f"{folder} holds a {kind}, and a report of every space goes into a folder of its own; choose another -o"
        )
    return {
        name: evaluate(
            judged,
            suite,
            folder / name,
            tasks=tasks,
            options=options,
            with_map=with_map and not isinstance(judged.judged if isinstance(judged, Shared) else judged, ByFacet),
            overwrite=overwrite,
            reporter=reporter,
        )
        for name, judged in ((name, spaces[name]) for name in judgeable(suite.choose(tasks), spaces))
    }


def spaces_as_text(reports: Mapping[str, Report]) -> str:
    """One line a metric, one column a space; a task that a space cannot answer has a dash.

    problem.map      38.50   61.20
    """
    metrics = list(dict.fromkeys(name for report in reports.values() for name in report.metrics))
    width = max(map(len, metrics), default=0)
    columns = {space: max(len(space), 6) for space in reports}
    lines = [" " * width + "".join(f"  {space:>{size}}" for space, size in columns.items())]
    for name in metrics:
        cells = (f"{report.metrics[name]:.2f}" if name in report.metrics else "-" for report in reports.values())
        lines.append(
            f"{name:<{width}}"
            + "".join(f"  {cell:>{size}}" for cell, size in zip(cells, columns.values(), strict=True))
        )
    notes = dict.fromkeys(note for report in reports.values() for note in report.value["notes"])
    return "\n".join([*lines, *notes])
