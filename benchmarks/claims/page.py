"""docs/claims.md from the reports that exist: the data, the checks, a row per claim, every table and figure, the curves.

    write_page(Path("study/"), Path("docs/claims.md"))

Nothing on the page is written by hand but its words; what was not run says so by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.claims import CLAIMS, CURVES, GRID, ITEMS, LINK_ROWS, REASONS, TEXTS, Claim
from benchmarks.claims.links import links_path
from benchmarks.claims.systems import CORPORA, START, STARTS, SYSTEMS, not_trained_here
from benchmarks.claims.verdicts import (
    NOT_RUN,
    Results,
    Test,
    is_provisional,
    mean_and_range,
    read_results,
    test_claims,
    verdict,
)
from benchmarks.table.facts import bundle_facts
from benchmarks.table.reports import pack_runs, packed_path
from benchmarks.table.tables import NOTHING, lead_text, markdown
from citeweave.core.plots import draw_bars, draw_curves
from citeweave.evaluation.compare import OVERALL
from citeweave.pipeline.recipe import shipped_recipes

MAIN = "mlm"
PROVISIONAL = ", provisional"
FACTS = "claims.json"
"""What the bundles say of themselves, beside the packed reports: the page can be written without the bundles."""

HEAD = """# The texts' claims

Each table and figure of the five texts, tested again on open data: reproduced, reversed, or not testable here. Written by
`python -m benchmarks.claims show`; do not edit. The reports behind it, with the values of every query, are in
[reports/](reports/).

    python -m benchmarks.claims prepare --data DATA -o study/ --start mlm=MODEL minilm
    python -m benchmarks.claims run study/
    python -m benchmarks.claims show study/ --keep docs/reports
    python -m benchmarks.claims show docs/reports

**The test, named before any result.** A claim "first > second" is tested by the paired bootstrap over queries and training
seeds ({resamples:,} resamples, 95 % intervals). All tests of one text are corrected together (Holm). From the main start,
`{main}`, a claim is *reproduced* if a corpus favors the first system at a corrected p under 0.05 and none the second,
*reversed* if it is the other way round, *contradictory* if both happen, otherwise *inconclusive*; *provisional* if a system has
fewer seeds than planned. Other starts are shown beside it. Systems are compared by the distance that they were trained with (L2 for
triplet losses, cosine for contrastive ones, their own distance between sentences for ASPIRE); the difference by cosine is beside it.

**Conditions.** Whole reference lists; pool = papers with abstracts; anchors = papers that cite another one of the pool, the
same for all systems but those that draw from citing sentences; the recipes' own epochs, rates and lengths. What differs from the texts: the corpora are small
(tens of thousands of papers instead of hundreds of thousands), rank bands are fitted to the pool, warm-ups last at most a
tenth of the steps, and the start models are small: `mlm`, a masked-language model of MiniLM's shape that never saw a
citation; `minilm`, which was trained on citation pairs (the control); `smollm2`, a causal model of 135M parameters. SciBERT's
weights are not used. SciDocs' and SciRepEval's tasks are replaced by the closest tasks of the corpus suite: an average is the mean of
its tasks, classification `field.f1`, regression `year.kendalltau`, citations `cite.map`. The venue and author ablations are
evaluated on title and abstract.
"""


def write_page(folder: Path, page: Path, *, resamples: int = 10_000, keep: Path | None = None) -> str:
    """Write the page and its figures; `keep` is a folder for packed reports, from which the page can be written again."""
    facts = _facts(folder)
    if keep is not None:
        _keep(folder, keep)
    results = read_results(folder)
    tests = test_claims(results, CLAIMS, resamples=resamples)
    parts = [
        HEAD.format(resamples=resamples, main=MAIN),
        _data_section(facts),
        _check_section(results),
        _summary(tests),
        *(_text_section(text, tests) for text in TEXTS),
        _curves_section(results, page),
        _grid_section(results, page),
        _links_section(folder),
        _map_section(results),
        _not_run_section(results, facts),
    ]
    text = "\n".join(part for part in parts if part)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return text


def _facts(folder: Path) -> dict[str, Any]:
    """Return what the bundles say of themselves, and keep it for a folder that has reports alone."""
    path = folder / FACTS
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for corpus in CORPORA:
        if (folder / f"{corpus}.bundle").is_file():
            found[corpus] = bundle_facts(folder / f"{corpus}.bundle").facts
    if found:
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


def _keep(folder: Path, target: Path) -> None:
    """Pack all reports of a study and copy them with its facts."""
    target.mkdir(parents=True, exist_ok=True)
    settings = [f"{corpus}.{start}" for start in STARTS for corpus in CORPORA]
    for setting in settings:
        if (folder / "reports" / setting).is_dir():
            pack_runs(folder, setting)
    paths = [packed_path(folder, setting) for setting in settings] + [links_path(folder, name) for name in CORPORA]
    for path in [*paths, folder / FACTS]:
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


def _data_section(facts: Mapping[str, Any]) -> str:
    names = (
        *("nodes", "citations", "pool", "median degree of the pool", "pool without a citation", "query papers"),
        "held out",
    )
    lines = [["corpus", *names, "answers checked by the audit", "of them in the graph"]]
    for corpus, own in facts.items():
        audit = own.get("audit", {})
        leaks = sum(number for name, number in audit.items() if name != "answers checked")
        cells = [_number(own.get(name, NOTHING)) for name in names]
        lines.append([corpus, *cells, _number(audit.get("answers checked", NOTHING)), str(leaks)])
    note = (
        "The graph without the references of held-out papers, which are asked for. The audit refuses a graph in which an answer "
        "of `cite` or `hard_cite` is a citation in either direction, an answer of `cocite` is cited together with its query, or a "
        "held-out paper or a copy of one cites anything."
    )
    note += "".join(_costly_note(corpus, own) for corpus, own in facts.items())
    return f"## Data\n\n{markdown(lines)}\n\n{note}\n" if facts else "## Data\n\nNo bundle is at hand.\n"


def _costly_note(corpus: str, own: Mapping[str, Any]) -> str:
    models = [f"{label}: {text}" for label, text in own.get("edge models", {}).items()]
    with_intent = own.get("citations with an intent")
    intents = [] if with_intent is None else [f"citations with an intent, by the shipped classifier: {with_intent:,}"]
    return f"\n\n{corpus}: {'; '.join([*models, *intents])}." if models or intents else ""


def _number(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _check_section(results: Results) -> str:
    """The start must lie far below what is trained from it, else no order can show."""
    lines = [["setting", "start", "specter", "scincl", "specter_cl"]]
    for setting, systems in results.items():
        cells = [_cell(systems.get(name, ()), "cite.map") for name in (START, "specter", "scincl", "specter_cl")]
        lines.append([setting, *cells])
    head = "## The start knows no citations\n\n`cite.map`; a start near its trained versions cannot show an order.\n"
    return f"{head}\n{markdown(lines)}\n" if results else f"{head}\n{NOT_RUN}.\n"


def _cell(runs: Sequence[Any], metric: str) -> str:
    found = mean_and_range(runs, metric) if runs else None
    return (
        NOTHING
        if found is None
        else f"{found[0]:.1f}" + (f" ({found[1]:.1f} to {found[2]:.1f})" if len(runs) > 1 else "")
    )


def _summary(tests: Sequence[Test]) -> str:
    lines = [["text", "claims", "reproduced", "reversed", "contradictory", "inconclusive", "not run"]]
    for text in TEXTS:
        claims = [claim for claim in CLAIMS if claim.text == text]
        verdicts = [verdict(_of(tests, claim), MAIN) for claim in claims]
        lines.append([TEXTS[text], str(len(claims)), *(str(verdicts.count(word)) for word in lines[0][2:])])
    early = sum(is_provisional(_of(tests, claim), MAIN) for claim in CLAIMS)
    said = f"{early} verdicts are provisional: some of their systems have fewer seeds than planned (five, or three).\n"
    return f"## Summary\n\n{markdown(lines)}\n" + (f"\n{said}" if early else "")


def _of(tests: Sequence[Test], claim: Claim) -> list[Test]:
    return [test for test in tests if test.claim == claim]


def _text_section(text: str, tests: Sequence[Test]) -> str:
    own = [claim for claim in CLAIMS if claim.text == text]
    settings = list(dict.fromkeys(test.setting for test in tests))
    lines = [["claim", "by", "where", "the text", *settings, "verdict"]]
    for claim in own:
        found = {test.setting: test for test in _of(tests, claim)}
        cells = [_test_cell(found.get(setting)) for setting in settings]
        metric = "mean of the tasks" if claim.metric == OVERALL else claim.metric
        shown = f"CSFCube {metric}" if claim.view == "csfcube" else metric
        line = [f"{claim.better} > {claim.worse}", shown, claim.where, claim.published, *cells]
        own_tests = list(found.values())
        lines.append([*line, verdict(own_tests, MAIN) + (PROVISIONAL if is_provisional(own_tests, MAIN) else "")])
    items = markdown([["table or figure", "answered"], *([name, where] for name, where in ITEMS[text].items())])
    count = sum(test.claim.text == text for test in tests)
    reasons = "\n".join(f"- {reason}" for reason in REASONS[text])
    why = f"Where it differs, likely reasons:\n\n{reasons}\n"
    return f"## {TEXTS[text]}\n\n{markdown(lines)}\n\n{count} tests, corrected together.\n\n{why}\n{items}\n"


def _test_cell(test: Test | None) -> str:
    if test is None:
        return NOT_RUN
    mark = {1: " **+**", -1: " **-**", 0: ""}[test.sign]
    first, second = test.values
    seeds = "/".join(map(str, test.seeds))
    beside = "" if test.beside is None else f"; cosine {test.beside:+.1f}"
    return f"{first:.1f} against {second:.1f}: {lead_text(test.lead)}{mark} (seeds {seeds}{beside})"


def _curves_section(results: Results, page: Path) -> str:
    """Draw SciNCL's figures 2, 3 and 5 as means, 6 and 7 by task, one chart per corpus and start."""
    lines = ["## SciNCL's figures 2, 3, 5, 6 and 7\n"]
    for axis, (pattern, ranks, published) in CURVES.items():
        for setting, systems in results.items():
            known = [rank for rank in ranks if systems.get(pattern.format(rank))]
            if len(known) < 2:
                lines.append(f"- {axis} on {setting}: {NOT_RUN} ({len(known)} of {len(ranks)} values)")
                continue
            mean = [mean_and_range(systems[pattern.format(rank)], OVERALL) for rank in known]
            by_task = _by_task(systems, [pattern.format(rank) for rank in known])
            name = f"claims-{axis.replace('+', 'positives').replace('-', 'negatives')}-{setting.replace('.', '-')}"
            is_rank = axis.startswith("k")
            x_label = "rank" if is_rank else "similarity"
            common: dict[str, Any] = {"x_label": x_label, "y_label": "percent", "log_x": is_rank}
            pictures = page.parent / "pictures"
            pictures.mkdir(parents=True, exist_ok=True)
            title = f"{axis} on {setting}"
            draw_curves(pictures / f"{name}.svg", known, {"mean of the tasks": np.array(mean)}, title=title, **common)
            draw_curves(pictures / f"{name}-tasks.svg", known, by_task, title=f"{title}, by task", **common)
            values = ", ".join(f"{rank}: {each[0]:.1f}" for rank, each in zip(known, mean, strict=True) if each)
            lines.append(f"- {axis} on {setting}: {values}. {published}.")
            lines.append(f"  ![{title}](pictures/{name}.svg) ![{title}, by task](pictures/{name}-tasks.svg)")
    if not results:
        lines.append(f"{NOT_RUN}.")
    return "\n".join(lines) + "\n"


def _by_task(systems: Mapping[str, Sequence[Any]], names: Sequence[str]) -> dict[str, Any]:
    headline = systems[names[0]][0].views["corpus"].headline
    found = {metric: [mean_and_range(systems[name], metric) for name in names] for metric in headline}
    return {metric: [each[0] for each in own if each] for metric, own in found.items() if all(own)}


def _grid_section(results: Results, page: Path) -> str:
    """Four losses by two poolings, table 6.5 of the co-citation thesis."""
    parts = [
        "## Losses by pooling\n\nTable 6.5 of the co-citation thesis; mean of the tasks over seeds. GTE-base is not at hand.\n"
    ]
    for setting, systems in results.items():
        cells = {loss: [_cell(systems.get(name, ()), OVERALL) for name in names] for loss, names in GRID.items()}
        if all(cell == NOTHING for own in cells.values() for cell in own):
            parts.append(f"- {setting}: {NOT_RUN}")
            continue
        parts.append(
            f"{setting}:\n\n{markdown([['loss', 'first token', 'mean'], *([loss, *own] for loss, own in cells.items())])}\n"
        )
        bars = {
            f"{loss}, {pooling}": found[0]
            for loss, names in GRID.items()
            for pooling, name in zip(("first token", "mean"), names, strict=True)
            if (found := mean_and_range(systems.get(name, ()), OVERALL)) is not None
        }
        name = f"claims-losses-{setting.replace('.', '-')}.svg"
        (page.parent / "pictures").mkdir(parents=True, exist_ok=True)
        draw_bars(
            page.parent / "pictures" / name, bars, title=f"Losses by pooling, {setting}", x_label="mean of the tasks"
        )
        parts.append(f"![Losses by pooling, {setting}](pictures/{name})\n")
    return "\n".join(parts) + "\n"


def _links_section(folder: Path) -> str:
    lines = [["corpus", "node vectors", "MRR", "Hits@1", "Hits@10", "Hits@50", "AUC"]]
    for corpus in CORPORA:
        path = links_path(folder, corpus)
        for method, own in (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}).items():
            cells = [f"{np.mean(own[name]):.3f}" for name in ("mrr", "hits_1", "hits_10", "hits_50", "auc")]
            lines.append([corpus, method, *cells])
    said = "\n".join(f"- {where}: {what}" for where, what in LINK_ROWS.items())
    table = markdown(lines) if len(lines) > 1 else f"{NOT_RUN}: `python -m benchmarks.claims links`."
    return (
        f"## Link prediction\n\nFive percent of the citations, or of the co-citations, held out.\n\n{said}\n\n{table}\n"
    )


def _map_section(results: Results) -> str:
    lines = [["setting", "system", "papers", "homogeneity", "completeness"]]
    for setting, systems in results.items():
        for name in (START, "specter"):
            for run in systems.get(name, ())[:1]:
                if own := run.cost.get("map"):
                    shown = [_decimal(own["homogeneity"]), _decimal(own["completeness"])]
                    lines.append([setting, name, _number(own["papers"]), *shown])
    said = "SPECTER, figure 2: homogeneity 0.41 and completeness 0.72, SciBERT 0.19 and 0.63 (t-SNE, then DBSCAN)."
    return f"## Map of topics\n\n{said}\n\n{markdown(lines) if len(lines) > 1 else f'{NOT_RUN}.'}\n"


def _decimal(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _not_run_section(results: Results, facts: Mapping[str, Any]) -> str:
    """Name every system without a run, with the reason that is known."""
    done = {name for systems in results.values() for name in systems}
    lines = []
    for name, system in SYSTEMS.items():
        if name in done:
            continue
        reasons = {own["not possible here"].get(name, "") for own in facts.values() if "not possible here" in own}
        why = not_trained_here(system) or "; ".join(sorted(filter(None, reasons))) or "no report of it exists"
        lines.append(f"- {name}: {why}")
    missing = [name for name in STARTS if not any(setting.endswith(f".{name}") for setting in results)]
    lines += [f"- start {name}: no run" for name in missing]
    recipes = set(shipped_recipes())
    run, stood = len(recipes & done), sum(line.partition(": ")[2].startswith("the run of") for line in lines)
    head = f"{run} of {len(recipes)} shipped recipes have a run here"
    head += f"; another run stands for {stood}." if stood else "."
    return f"## Not run\n\n{head}\n\n" + ("\n".join(lines) or "Nothing.") + "\n"
