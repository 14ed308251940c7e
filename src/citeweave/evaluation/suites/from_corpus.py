"""The suites `corpus` and `intents`: evaluation tasks drawn from any corpus by the field's protocols.

    suite = make_suite(Corpus.open("corpus/"), CorpusSuiteOptions(held_out="year:2016"))

    cite, cocite, hard_cite, couple   pools of up to 5 relevant papers and 25 others (SciDocs); map, ndcg
    mdcr                              pools of up to 5 and 55 that are near in several ways, by field; map, recall_5
    field                             a linear probe for classes (SciDocs); macro F1
    year, citations                   linear probes for numbers (SciRepEval); Kendall's tau
    title, summary                    search: a title finds its abstract, a summary finds its paper

    suite = make_intent_suite(corpus, CorpusSuiteOptions(held_out="share:0.1"), graph=intent_graph(corpus, "intents/"))

    background, method, result                            what a paper cites for one reason, among what it cites for others
    background_mixed, method_mixed, result_mixed          and among 25 random papers too
    all, all_mixed                                        means of the three

A citation with several intents is relevant for each of them and a negative for none of these; one without a known intent is
left out of the pool.

The references of held-out papers are the answers: a model that was trained on them must not be evaluated on these suites.
`training_graph` and `held_out_rows` (`corpus_pools.py`) are the other side of that line, the same for both suites. Pools of different seeds
differ: compare models on the same ones. A model with one vector per paper does not see the intent in question;
`--aspect matching` answers each query in its space. Pools by intent are small, and the notes give the map of a random
order. Does not evaluate and does not predict intents: see `evaluate.py` and `citeweave annotate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.paper import Intent
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.ranking_metrics import chance_of_average_precision
from citeweave.evaluation.suites import corpus_pools, corpus_tasks
from citeweave.evaluation.suites.corpus_pools import RowPools, Rows, SuiteData
from citeweave.evaluation.tasks import (
    SCIDOCS_CLASSES,
    SCIREPEVAL_NUMBERS,
    Average,
    Pools,
    ProbeTask,
    RankingRule,
    RankingTask,
    Suite,
    Task,
    TaskTexts,
)
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.intent_overlay import IntentOverlay, intents_from_contexts

NAME, INTENT_SUITE = "corpus", "intents"
MIXED = "_mixed"

INTENTS = {"background": Intent.BACKGROUND, "method": Intent.METHOD, "result": Intent.RESULT}
ANY_INTENT = Intent.BACKGROUND | Intent.METHOD | Intent.RESULT
"""A citation with only finer intents has none of these three, so it is neither relevant nor a negative."""

INTENT_RELEVANT, OTHERS, RANDOM = 25, 25, 25
"""At most so many papers of each kind in a pool by intent."""

DrawnTask = RowPools | corpus_tasks.RowProbe | corpus_tasks.CorpusSearch
Maker = Callable[[SuiteData], Any]
"""Draws a task, or the plain and mixed pools of an intent, from the data of a suite."""

MAKERS: Mapping[str, Maker] = {
    "cite": corpus_pools.make_cite,
    "cocite": corpus_pools.make_cocite,
    "hard_cite": partial(corpus_pools.make_cite, hard=True),
    "couple": corpus_pools.make_couple,
    "mdcr": corpus_tasks.make_mdcr,
    "field": corpus_tasks.make_field,
    "year": corpus_tasks.make_year,
    "citations": corpus_tasks.make_citations,
    "title": corpus_tasks.make_title,
    "summary": corpus_tasks.make_summary,
}
HEADLINE = {
    **dict.fromkeys(("cite", "cocite", "hard_cite", "couple", "mdcr"), "map"),
    "field": "f1",
    **dict.fromkeys(("year", "citations"), "kendalltau"),
    **dict.fromkeys(("title", "summary"), "ndcg_cut_10"),
}
"""Task -> its main metric."""

RULES = {"mdcr": RankingRule(metrics=("map", "recall_5"), distance="cosine")}
RULE = RankingRule(metrics=("map", "ndcg"), distance="cosine")


def make_suite(corpus: Corpus, options: CorpusSuiteOptions | None = None, *, reporter: Reporter = QUIET) -> Suite:
    """Draw the suite `corpus` from a corpus: the tasks it can give; the same corpus and options give the same tasks."""
    options = options or CorpusSuiteOptions()
    data = SuiteData(corpus, options)
    drawn, not_evaluated = _draw_tasks(data, MAKERS, "tasks", reporter)
    if not drawn:
        reasons = "; ".join(f"{name}: {why}" for name, why in not_evaluated.items())
        raise EmptyResultError(f"{corpus.folder} gives no task ({reasons}); import papers with titles and citations")
    rows = _rows_of(drawn)
    tasks = _as_tasks(drawn, rows, _read_task_texts(corpus, rows))
    headline = tuple(f"{task.name}.{HEADLINE[task.name]}" for task in tasks)
    return Suite(
        NAME,
        tasks,
        averages={"average": Average(headline, note=f"mean of the {len(headline)} tasks' main metrics")},
        headline=headline,
        not_evaluated=not_evaluated,
        notes=_notes(data, drawn, rows),
        data={
            "folder": str(corpus.folder),
            "corpus": corpus.hash,
            "options": asdict(options),
            "papers": len(corpus),
            "papers with title": len(data.order),
            "papers of the suite": len(rows),
            **_count_held_out(data),
            "tasks": {name: dict(part.counts) for name, part in drawn.items()},
        },
    )


def _draw_tasks(
    data: SuiteData, makers: Mapping[str, Maker], unit: str, reporter: Reporter
) -> tuple[dict[str, Any], dict[str, str]]:
    """Draw every task that the corpus can give; the others with the reason why not. None is no task at all."""
    drawn: dict[str, Any] = {}
    not_evaluated: dict[str, str] = {}
    with reporter.task("building the suite", total=len(makers), unit=unit) as advance:
        for name, make in makers.items():
            try:
                drawn[name] = make(data)
            except corpus_pools.TaskUnavailableError as error:
                not_evaluated[name] = str(error)
            advance(1)
    return {name: part for name, part in drawn.items() if part is not None}, not_evaluated


def _rows_of(drawn: Mapping[str, DrawnTask]) -> Rows:
    """Return every paper of the rankings and probes, ascending; searches have texts of their own."""
    parts = [part.papers() for part in drawn.values() if not isinstance(part, corpus_tasks.CorpusSearch)]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def _read_task_texts(corpus: Corpus, rows: Rows) -> TaskTexts:
    """Read the texts of papers by rows of the corpus."""
    return TaskTexts(corpus.ids.take(rows), corpus.titles.take(rows), corpus.abstracts.take(rows))


def _as_tasks(drawn: Mapping[str, DrawnTask], rows: Rows, texts: TaskTexts) -> tuple[Task, ...]:
    return tuple(
        part.task
        if isinstance(part, corpus_tasks.CorpusSearch)
        else _make_ranking_task(name, part, rows, texts)
        if isinstance(part, RowPools)
        else _make_probe_task(name, part, rows, texts)
        for name, part in drawn.items()
    )


def _make_ranking_task(name: str, part: RowPools, rows: Rows, texts: TaskTexts) -> RankingTask:
    """Return pools by rows of the corpus as a ranking task over the texts of `rows`, which are ascending."""
    queries = np.searchsorted(rows, part.queries)
    pools = Pools(
        queries,
        part.offsets,
        np.searchsorted(rows, part.candidates),
        part.grades,
        [texts.ids[row] for row in queries.tolist()],
        groups=part.groups,
    )
    return RankingTask(name, texts, pools, RULES.get(name, RULE))


def _make_probe_task(name: str, part: corpus_tasks.RowProbe, rows: Rows, texts: TaskTexts) -> ProbeTask:
    classes = part.kind == "classes"
    return ProbeTask(
        name,
        texts,
        part.kind,
        np.searchsorted(rows, part.train),
        part.train_labels,
        np.searchsorted(rows, part.test),
        part.test_labels,
        rule=SCIDOCS_CLASSES if classes else SCIREPEVAL_NUMBERS,
        metrics={"f1": "f1_macro"} if classes else {"kendalltau": "kendalltau"},
        missing_as="zeros" if classes else "left out",
    )


def _count_held_out(data: SuiteData) -> dict[str, Any]:
    """Count the held-out papers and citations, and the citations left to train on."""
    corpus = data.corpus
    if not data.has_references:
        return {}
    held, outside = data.held_out[corpus.citing], data.held_out[corpus.references_outside("citing")]
    return {
        "held-out papers": int(data.held_out.sum()),
        "held-out papers that cite": len(np.unique(corpus.citing[held])),
        "held-out citations": int(held.sum()),
        "held-out references outside the corpus": int(outside.sum()),
        "citations to train on": int((~held).sum()),
    }


def _note_held_out(data: SuiteData) -> list[str]:
    """Return a warning not to train on held-out citations, as a note of the suite; none where there are no references."""
    counts = _count_held_out(data)
    if not counts:
        return []
    return [
        f"held out by {data.options.held_out} (seed {data.options.seed}): the {counts['held-out citations']:,} "
        f"citations of {counts['held-out papers that cite']:,} papers; a model that was trained on them must not be "
        f"judged here, the other {counts['citations to train on']:,} may be learned from"
    ]


def _notes(data: SuiteData, drawn: Mapping[str, DrawnTask], rows: Rows) -> tuple[str, ...]:
    corpus, notes = data.corpus, _note_held_out(data)
    if without_abstract := int((corpus.abstracts.lengths()[rows] == 0).sum()):
        notes.append(f"{without_abstract:,} of the suite's {len(rows):,} papers have a title and no abstract")
    if untitled := len(corpus) - len(data.order):
        notes.append(f"{untitled:,} papers of the corpus have no title and are left out")
    if "hard_cite" in drawn:
        counts = drawn["hard_cite"].counts
        notes.append(
            f"hard_cite: {counts['second-hop papers']:,} hard papers were found, "
            f"{counts['random papers']:,} random ones fill the pools"
        )
    if "mdcr" in drawn:
        notes.append("mdcr: BM25 chose some of every pool's papers, which works against BM25 and similar models")
    return tuple(notes)


# --- citation intents ------------------------------------------------------------------------------------


def intent_graph(corpus: Corpus, overlay: str | Path | None = None) -> CitationGraph:
    """Return the citations of a corpus with their intents: an overlay's, or those of its source (citations, contexts)."""
    graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus), intents=corpus.intents)
    if overlay is not None:
        return IntentOverlay.open(overlay).on(graph, corpus)
    return graph.with_intents(intents_from_contexts(corpus, graph))


def make_intent_suite(
    corpus: Corpus,
    options: CorpusSuiteOptions | None = None,
    *,
    graph: CitationGraph | None = None,
    reporter: Reporter = QUIET,
) -> Suite:
    """Draw the suite `intents` from a corpus whose citations have intents; the same input gives the same tasks.

    `graph` is all citations of the corpus with their intents, None = those of its source.
    """
    data = SuiteData(corpus, options or CorpusSuiteOptions())
    graph = intent_graph(corpus) if graph is None else graph
    counts = {name: int(((graph.intents & bit) > 0).sum()) for name, bit in INTENTS.items()}
    if not any(counts.values()):
        raise EmptyResultError(
            f"{corpus.folder}: none of its {graph.edges:,} citations has the intent {', '.join(INTENTS)}; "
            f"predict them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/"
        )
    makers = {intent: partial(make_intent_pools, graph=graph, intent=intent) for intent in INTENTS}
    pairs, lost = _draw_tasks(data, makers, "intents", reporter)
    drawn: dict[str, RowPools] = {name: plain for name, (plain, _) in pairs.items()}
    drawn |= {name + MIXED: mixed for name, (_, mixed) in pairs.items()}
    not_evaluated = {name + ending: why for name, why in lost.items() for ending in ("", MIXED)}
    if not drawn:
        raise EmptyResultError(
            f"{corpus.folder} gives no task ({'; '.join(dict.fromkeys(not_evaluated.values()))}); its citations with "
            f"intents are {', '.join(f'{number:,} of {name}' for name, number in counts.items())}"
        )
    rows = np.unique(np.concatenate([part.papers() for part in drawn.values()]))
    texts = _read_task_texts(corpus, rows)
    chance = {name: _random_map(part) for name, part in drawn.items()}
    return Suite(
        INTENT_SUITE,
        tuple(_make_ranking_task(name, part, rows, texts) for name, part in drawn.items()),
        averages=_averages(drawn),
        headline=tuple(f"{name}.map" for name in drawn),
        not_evaluated=not_evaluated,
        notes=(
            *_note_held_out(data),
            *(f"{name}: a random order has map {value:.2f}" for name, value in chance.items()),
        ),
        data={
            "folder": str(corpus.folder),
            "corpus": corpus.hash,
            "options": asdict(data.options),
            "citations": graph.edges,
            "citations with intents": int(((graph.intents & ANY_INTENT) > 0).sum()),
            **{f"citations of {name}": number for name, number in counts.items()},
            **_count_held_out(data),
            "papers of the suite": len(rows),
            "map of a random order": chance,
            "tasks": {name: dict(part.counts) for name, part in drawn.items()},
        },
    )


def make_intent_pools(data: SuiteData, graph: CitationGraph, intent: str) -> tuple[RowPools, RowPools]:
    """Draw a corpus suite's pools of an intent, plain and mixed; `graph` has all citations with their intents."""
    plain, mixed, keys = corpus_pools.PoolBuilder(data, intent), corpus_pools.PoolBuilder(data, intent), data.title_keys
    for query in data.citing_queries.tolist():
        if plain.is_full:
            break
        cited = corpus_pools.find_cited(data, query)
        masks = _read_intent_masks(graph, query, cited)  # (cited papers,)
        is_right = (masks & INTENTS[intent]) != 0
        right = data.first_distinct(cited[is_right], INTENT_RELEVANT, keys[[query]])
        taken = keys[np.append(cited[is_right], query)]
        others = data.first_distinct(cited[~is_right & ((masks & ANY_INTENT) != 0)], OTHERS, taken)
        if not len(right) or not len(others):
            what = "other intent" if len(right) else "paper with this intent"
            plain.counts[f"queries left out: no {what}"] += 1
            continue
        random = _draw_unconnected(data, intent, query)
        for builder, wrong in ((plain, others), (mixed, np.concatenate([others, random]))):
            builder.append(query, right, wrong, intent)
            builder.counts.update({"relevant papers": len(right), "other papers": len(wrong)})
    why_none = f"no held-out paper cites some papers for {intent} and others for something else"
    return plain.finish(grouped=True, why_none=why_none), mixed.finish(grouped=True, why_none=why_none)


def _read_intent_masks(graph: CitationGraph, query: int, cited: Rows) -> NDArray[np.uint8]:
    """Return the intents with which a paper cites each of these papers, all of which it must cite; (cited,)."""
    start = int(graph.cited.offsets[query])
    places = start + np.searchsorted(graph.cited.row(query), cited)
    return np.asarray(graph.intents[places])


def _draw_unconnected(data: SuiteData, intent: str, query: int) -> Rows:
    """Draw random papers that are not connected with the query."""
    banned = data.title_keys[np.append(corpus_pools.find_connected(data, query), query)]
    mixed = data.stream("intents", intent, query).permutation(data.sample)
    return data.first_distinct(mixed, RANDOM, banned)


def _averages(drawn: Mapping[str, RowPools]) -> dict[str, Average]:
    """Return the averages over the intents that have tasks; the notes of a report say which do not."""
    averages = {}
    for ending in ("", MIXED):
        names = [intent + ending for intent in INTENTS if intent + ending in drawn]
        for metric in RULE.metrics:
            parts = tuple(f"{name}.{metric}" for name in names)
            averages[f"all{ending}.{metric}"] = Average(parts, note=f"mean of {', '.join(names)}")
    return averages


def _random_map(part: RowPools) -> float:
    """Return the expected map of a random order of the pools, in percent."""
    relevant = np.add.reduceat(part.grades, part.offsets[:-1])  # (queries,)
    return float(100 * chance_of_average_precision(relevant, np.diff(part.offsets)).mean())
