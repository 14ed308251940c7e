"""The table's section of docs/results.md, written from the reports between two marks; the rest of the page stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table.claims import claims_section
from benchmarks.table.facts import BundleFacts, bundle_facts
from benchmarks.table.judging import BY_L2, CORPUS, CSFCUBE, FACET_SPACE, INSIDE, ONE_VECTOR, SCITLDR
from benchmarks.table.ranking import Entries, Ranked, Standing, rank, sort_out, stand
from benchmarks.table.reports import read_runs, unpack_runs
from benchmarks.table.systems import (
    BASELINES,
    PAPERS_SEEN,
    RAW_START,
    START,
    SYSTEMS,
    WEAVE,
    is_graph_study,
    is_variant,
)
from benchmarks.table.tables import (
    Shown,
    columns_of,
    cost_table,
    leads_table,
    plain_table,
    reasons,
    wide_table,
)
from citeweave.core.errors import UserError
from citeweave.evaluation.compare import OVERALL

BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"
CSFCUBE_METRICS = ("all.map", "all.ndcg%20", "background.map", "method.map", "result.map")
SEARCH_METRICS = ("search.ndcg_cut_10", "search.map", "search.recall_100")
IN_MAIN = {
    CSFCUBE: {"all.map": "CSFCube MAP", "all.ndcg%20": "CSFCube NDCG%20"},
    SCITLDR: {"search.ndcg_cut_10": "SciTLDR NDCG@10"},
}
SCINCL = "scincl"

HEAD = """## One start, one budget: every recipe

Every recipe starts from plain MiniLM (also those that were published with SPECTER as their start), reads {papers:,}
papers with its published settings otherwise (texts cut at 256 tokens, MiniLM's mean pooling where the recipe asks for the
first token, warm-ups of at most a tenth of the steps, no early stopping, sentences aligned by plain MiniLM, rank bands
chosen for the corpus), and is judged by the same questions. Papers of CSFCube, ACM-CR and SciTLDR left the corpora; the
references of a tenth of the papers are held out. Three seeds of training on the same samples; values are means over
them, in percent. Written by the last of these lines from the reports of the others; DATA holds peerread_plus, elife,
csfcube and scitldr, and the second wants a GPU:

    python -m benchmarks.table prepare --data DATA -o table/
    python -m benchmarks.table train table/
    python -m benchmarks.table baselines --data DATA -o table/
    python -m benchmarks.table show table/

`reports/` beside this page holds all reports, with the values of every query; put beside the bundles they need not be made again.

`mean` weighs the nine tasks of the corpus's own suite equally. Brackets are 95 % intervals of {resamples:,} resamples, of
the queries of every task and of a system's seeds; those of the mean come from all tasks at once. Three seeds are few:
intervals that rest on them are a little too narrow. `+` and `-` behind a value: better or worse than the start. `>` and
`=`: better than the system that is named above the table, or no difference to it can be claimed; neither: worse, or that
system itself. Bold: the column's best. Each column of a table is corrected by itself (Holm, all systems against both). A system without a place is
not ranked, and the reason stands below. MiniLM itself was trained on pairs of papers from the web, which nobody can
audit: that is the same for all. Its own vectors have length one, as it ships; a recipe's have the length that training
leaves them, which probes (`field`, `year`, `citations`) and L2 distances see, and cosines do not: `{raw}` is the
start without that step. Seconds are those of training on the GPU, divided by the runs that shared the card.
"""


@dataclass(frozen=True)
class Results:
    """All of one corpus: runs, what the bundle says, and every view with all pairs of its systems compared."""

    entries: Entries
    facts: BundleFacts
    standings: Mapping[str, Standing]


def write_section(folder: Path, page: Path, corpora: Sequence[str], *, resamples: int = 10_000) -> str:
    """Write the section into a page, between its marks."""
    parts = [HEAD.format(papers=PAPERS_SEEN, resamples=resamples, raw=RAW_START)]
    standings, impossible = {}, {}
    for corpus in corpora:
        facts = bundle_facts(folder / f"{corpus}.bundle")
        unpack_runs(folder, corpus, version=facts.version)
        runs = read_runs(folder, corpus)
        if not runs:
            raise UserError(f"{folder} has no report on {corpus}; run `train` and `baselines` first")
        results = judge_runs(sort_out(runs, corpus, version=facts.version), facts, resamples=resamples)
        parts.append(corpus_section(results))
        standings[corpus] = results.standings
        impossible[corpus] = facts.impossible
    section = "\n".join([*parts, claims_section(standings, impossible)])
    page.write_text(replace_section(page.read_text(encoding="utf-8"), section), encoding="utf-8")
    return section


def replace_section(text: str, section: str) -> str:
    """A page with another section; the marks are put at its end where it has none.

    >>> replace_section(f"a\\n{BEGIN}\\nold\\n{END}\\nb\\n", "new") == f"a\\n{BEGIN}\\nnew\\n{END}\\nb\\n"
    True
    """
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
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
    """All tables of one corpus."""
    entries, names = results.entries, list(results.entries.runs)
    main = [name for name in names if not is_graph_study(name) and not is_variant(name)]
    variants = [name for name in names if is_variant(name) or name in (START, WEAVE)]
    graphs = [name for name in names if is_graph_study(name) or name in (START, SCINCL)]
    shown = _only(entries, main)
    columns = _columns(results, main, WEAVE)
    parts = [
        f"### Trained on {entries.corpus}",
        f"Data version {entries.version}. {_queries(results.standings[CORPUS])}",
        *_compared(columns, shown),
        _absent(results),
        "\n".join(f"- {view}: {note}" for view, own in results.standings.items() for note in own.left_out),
        *_leads(columns, START),
        *_leads(columns, WEAVE),
    ]
    if BY_L2 in results.standings:
        by_l2 = _titled(rank(results.standings[BY_L2], main, reference=WEAVE))
        parts += ["#### The suite's pools by L2 distances", *_compared(by_l2, shown, told=columns)]
    parts += ["#### CSFCube by facet, SciTLDR by other measures", plain_table(shown, CSFCUBE, CSFCUBE_METRICS)]
    parts += [plain_table(shown, view, CSFCUBE_METRICS) for view in (ONE_VECTOR, FACET_SPACE)]
    parts += [plain_table(_only(entries, [*main, *variants]), view, CSFCUBE_METRICS) for view in INSIDE]
    parts += [plain_table(shown, SCITLDR, SEARCH_METRICS)]
    if any(map(is_variant, names)):
        parts += [f"#### Variants of {WEAVE}", *_compared(_columns(results, variants, WEAVE), _only(entries, variants))]
    if any(map(is_graph_study, names)):
        parts += [
            "#### SciNCL with other graphs",
            "Node vectors of SciNCL's bands by other methods (FastRP where nothing is said), and with the references of a "
            "part of the citing papers alone.",
            *_compared(study := _columns(results, graphs, SCINCL), _only(entries, graphs)),
            leads_table(study, SCINCL),
        ]
    parts += ["#### Cost", cost_table(entries)]
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


def _compared(columns: Sequence[Shown], entries: Entries, told: Sequence[Shown] = ()) -> list[str]:
    """A table, what its marks are about, and who has no place, unless that was told below another one."""
    names = set(columns[0].ranked.references.values())
    other = f"`{names.pop()}`" if len(names) == 1 else "the column's best"
    known = reasons(told, entries).splitlines() if told else []
    own = [line for line in reasons(columns, entries).splitlines() if line not in known]
    return [f"`>` and `=`: against {other}.", wide_table(columns, entries), "\n".join(own)]


def _leads(columns: Sequence[Shown], other: str) -> list[str]:
    """Nothing where all were compared with another system."""
    table = leads_table(columns, other) if other == START or other in columns[0].ranked.references.values() else ""
    return [f"#### Against `{other}`", table] if table else []


def _absent(results: Results) -> str:
    """Systems that have no report, with the reason where the bundle knows one."""
    impossible, there = results.facts.impossible, results.entries.runs
    lines = [f"- not possible here: {name}: {why}" for name, why in impossible.items() if name not in there]
    known = [name for name in (*SYSTEMS, RAW_START, *BASELINES) if name not in there and name not in impossible]
    return "\n".join([*lines, *([f"- not run: {'; '.join(known)}"] if known else [])])


def _queries(standing: Standing) -> str:
    if standing.found is None:
        return ""
    told = ", ".join(f"{name} {number:,}" for name, number in standing.found.queries.items())
    return f"Queries or test papers: {told}."


def _only(entries: Entries, names: Sequence[str]) -> Entries:
    runs = {name: own for name, own in entries.runs.items() if name in names}
    refused = {name: own for name, own in entries.refused.items() if name in names}
    return Entries(entries.corpus, entries.version, runs, refused)
