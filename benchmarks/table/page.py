"""The section of docs/results.md with every recipe, and its details in docs/history/results.md, from the reports.

Each is written between two marks; the rest of a page stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table.facts import BundleFacts, bundle_facts
from benchmarks.table.judging import BY_L2, CORPUS, CSFCUBE, SCITLDR
from benchmarks.table.ranking import Entries, Ranked, Standing, rank, sort_out, stand
from benchmarks.table.reports import read_runs, unpack_runs
from benchmarks.table.systems import (
    PAPERS_SEEN,
    START,
    WEAVE,
    is_graph_study,
    is_variant,
)
from benchmarks.table.tables import (
    Shown,
    columns_of,
    details_table,
    reasons,
    wide_table,
)
from citeweave.core.errors import UserError
from citeweave.evaluation.compare import OVERALL

BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"
CSFCUBE_METRICS = ("all.map", "all.ndcg%20", "background.map", "method.map", "result.map")
IN_MAIN = {
    CSFCUBE: {"all.map": "CSFCube MAP", "all.ndcg%20": "CSFCube NDCG%20"},
    SCITLDR: {"search.ndcg_cut_10": "SciTLDR NDCG@10"},
}

HEAD = """## Every recipe from one start with one budget

Every recipe starts from MiniLM, also those that were published with SPECTER as their start, and reads {papers:,} papers. Its
settings are the published ones, except: texts cut at 256 tokens, MiniLM's mean pooling instead of the first token, warm-ups of at
most a tenth of the steps, no early stopping, sentences aligned by MiniLM, rank bands chosen for the corpus. Papers of CSFCube, ACM-CR
and SciTLDR are not in the corpora; the references of a tenth of the papers are held out. Values are means over three training seeds
on the same samples (baselines: one), in percent. DATA holds peerread_plus, elife, csfcube and scitldr; `train` needs a GPU:

    python -m benchmarks.table prepare --data DATA -o table/
    python -m benchmarks.table train table/
    python -m benchmarks.table baselines --data DATA -o table/
    python -m benchmarks.table show table/

`docs/reports/` holds all reports with the values of every query; `show` writes these tables from a folder with them.

`mean` weights the nine tasks of the corpus suite equally. Brackets are 95 % intervals of {resamples:,} resamples over queries and
seeds; with three seeds they are a little too narrow. Recipes that train sentences are evaluated on CSFCube by the distance that they
train. `+` and `-` after a value: better or worse than `{start}`; `=`: no difference to `{best}` can be claimed, `>`: better than it.
Bold: the best of a column. Each column is corrected by itself (Holm). MiniLM's vectors have length one; a recipe's do not, which matters
to probes (`field`, `year`, `citations`) and not to cosines. MiniLM was trained on pairs of papers from the web, which cannot be audited.
GPU seconds, pools by L2 and SciNCL with other graphs are in [history/results.md](history/results.md); the texts' claims under the
texts' conditions are in [claims.md](claims.md).
"""

HISTORY_HEAD = """## Details of the table of all recipes

Differences of the mean of nine tasks to `{start}` with 95 % intervals; the mean of five rankings by L2 instead of cosine; training
cost on one H200, seconds divided by the runs that shared it. `weave, ...` are variants with other budgets, `scincl, ...` other node
vectors (FastRP is the default) or fewer citing papers in the graph.
"""


@dataclass(frozen=True)
class Results:
    """All of one corpus: runs, what the bundle says, and every view with all pairs of its systems compared."""

    entries: Entries
    facts: BundleFacts
    standings: Mapping[str, Standing]


def write_section(folder: Path, page: Path, corpora: Sequence[str], *, resamples: int = 10_000) -> str:
    """Write the section into a page, and its details into the page of the same name in `history/`."""
    parts = [HEAD.format(papers=PAPERS_SEEN, resamples=resamples, start=START, best=WEAVE)]
    details = [HISTORY_HEAD.format(start=START)]
    for corpus in corpora:
        facts = bundle_facts(folder / f"{corpus}.bundle")
        unpack_runs(folder, corpus, version=facts.version)
        runs = read_runs(folder, corpus)
        if not runs:
            raise UserError(f"{folder} has no report on {corpus}; run `train` and `baselines` first")
        results = judge_runs(sort_out(runs, corpus, version=facts.version), facts, resamples=resamples)
        parts.append(corpus_section(results))
        details.append(corpus_details(results))
    section = "\n".join(parts)
    _write_between_marks(page, section)
    _write_between_marks(page.parent / "history" / page.name, "\n".join(details))
    return section


def _write_between_marks(page: Path, section: str) -> None:
    page.parent.mkdir(exist_ok=True)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    page.write_text(replace_section(text, section), encoding="utf-8")


def replace_section(text: str, section: str) -> str:
    """A page with another section; the marks are put at its end where it has none.

    >>> replace_section(f"a\\n{BEGIN}\\nold\\n{END}\\nb\\n", "new") == f"a\\n{BEGIN}\\nnew\\n{END}\\nb\\n"
    True
    """
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n".lstrip()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section.strip()}\n{END}{after}"


def judge_runs(entries: Entries, facts: BundleFacts, *, resamples: int) -> Results:
    """Compare all systems by every view that the start has."""
    views = entries.runs[START][0].views
    asked = {CORPUS: (), CSFCUBE: CSFCUBE_METRICS, SCITLDR: tuple(IN_MAIN[SCITLDR])}
    standings = {
        view: stand(entries, view, _known(entries, view, metrics), overall=view == CORPUS, resamples=resamples)
        for view, metrics in asked.items()
    }
    if BY_L2 in views:
        pools = _known(entries, BY_L2, views[BY_L2].headline)
        standings[BY_L2] = stand(entries, BY_L2, pools, resamples=resamples)
    return Results(entries, facts, standings)


def _known(entries: Entries, view: str, metrics: Sequence[str]) -> list[str]:
    """Those of the metrics that the start's report has."""
    outcomes = entries.runs[START][0].views[view].outcomes
    known = {f"{outcome.task}.{metric}" for outcome in outcomes for metric in outcome.how}
    return [metric for metric in metrics if metric in known]


def corpus_section(results: Results) -> str:
    """The table of one corpus: recipes and baselines."""
    entries = results.entries
    main = [name for name in entries.runs if not is_graph_study(name) and not is_variant(name)]
    shown = _only(entries, main)
    columns = _columns(results, main, WEAVE)
    impossible = results.facts.impossible
    parts = [
        f"### Trained on {entries.corpus}",
        _queries(results.standings[CORPUS]),
        wide_table(columns, shown),
        reasons(columns, shown),
        "\n".join(
            f"- not possible here: {name}: {why}" for name, why in impossible.items() if name not in entries.runs
        ),
        "\n".join(f"- {view}: {note}" for view, own in results.standings.items() for note in own.left_out),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def corpus_details(results: Results) -> str:
    """Every system of one corpus with its lead, its pools by L2 and its cost, then those that are not ranked."""
    corpus = rank(results.standings[CORPUS], reference=WEAVE)
    by_l2 = results.standings[BY_L2].values if BY_L2 in results.standings else {}
    parts = [
        f"### Trained on {results.entries.corpus}",
        f"Data version {results.entries.version}.",
        details_table(corpus, by_l2, results.entries),
        reasons(_titled(corpus), results.entries),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _columns(results: Results, names: Sequence[str], reference: str) -> list[Shown]:
    """The suite's mean and tasks, then CSFCube and SciTLDR."""
    first = rank(results.standings[CORPUS], names, reference=reference)
    found = _titled(first)
    for view, titles in IN_MAIN.items():
        ranked: Ranked = rank(results.standings[view], names, reference=reference)
        known = {metric: title for metric, title in titles.items() if metric in ranked.metrics}
        found += columns_of(ranked, known, spans=False)
    return found


def _titled(ranked: Ranked) -> list[Shown]:
    return columns_of(ranked, {metric: "mean" if metric == OVERALL else metric for metric in ranked.metrics})


def _queries(standing: Standing) -> str:
    if standing.found is None:
        return ""
    told = ", ".join(f"{name} {number:,}" for name, number in standing.found.queries.items())
    return f"Queries or test papers: {told}."


def _only(entries: Entries, names: Sequence[str]) -> Entries:
    runs = {name: own for name, own in entries.runs.items() if name in names}
    refused = {name: own for name, own in entries.refused.items() if name in names}
    return Entries(entries.corpus, entries.version, runs, refused)
