"""Papers of published suites leave the corpus before anything is learned from it.

    report = find_leaks(corpus, {"csfcube": suite})
    report.rows_to_exclude()

By the leakage audit of `corpus/leakage`: ids, titles and near-duplicate texts. A suite without texts cannot be looked
for, which is said.
"""

from __future__ import annotations

from collections.abc import Mapping

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.leakage.audit import PaperColumns, audit_leakage
from citeweave.corpus.leakage.benchmark_papers import CorpusPapers
from citeweave.corpus.leakage.report import LeakageReport
from citeweave.evaluation.tasks import Suite
from citeweave.progress import QUIET, Reporter


def find_leaks(corpus: Corpus, suites: Mapping[str, Suite], reporter: Reporter = QUIET) -> LeakageReport:
    """Which papers of the corpus are papers of the suites."""
    tables = {name: suite_papers(suite) for name, suite in suites.items()}
    for name, table in tables.items():
        if not len(table.ids):
            reporter.say(f"{name} has no texts here: its papers cannot be looked for in the corpus")
    return audit_leakage(CorpusPapers(corpus), {name: table for name, table in tables.items() if len(table.ids)})


def suite_papers(suite: Suite) -> PaperColumns:
    """The texts of a suite's tasks, each id once."""
    found: dict[str, tuple[str, str]] = {}
    for task in suite.tasks:
        if not task.texts.lacking:
            rows = zip(task.texts.ids, task.texts.titles, task.texts.abstracts, strict=True)
            found |= {name: (title, abstract) for name, title, abstract in rows}
    return PaperColumns(
        ids=list(found),
        titles=[title for title, _ in found.values()],
        abstracts=[abstract for _, abstract in found.values()],
    )
