"""A suite made from a corpus of one's own, with the field's protocols: what do these vectors know of these papers?

    suite = make_suite(Corpus.open("corpus/"), CorpusSuiteOptions(held_out="year:2016"))

    cite, cocite, hard_cite, couple   pools of up to 5 relevant papers and 25 others (SciDocs); map, ndcg
    mdcr                              pools of up to 5 and 55 that are near in several ways, by field; map, recall_5
    field                             a linear probe for classes (SciDocs); macro F1
    year, citations                   linear probes for numbers (SciRepEval); Kendall's tau
    title, summary                    search: a title asks for its abstract, a summary for its paper

The references of held-out papers are asked for: a model that was trained on them must not be judged by this suite.
`training_graph` and `held_out_rows` are the other side of that line. Pools of other seeds are other pools: compare
models by one. Does not judge.

Citation intents held out: given a paper and a reason to cite, which papers does it cite for that reason?

    suite = make_suite(corpus, CorpusSuiteOptions(held_out="share:0.1"), graph=intent_graph(corpus, "intents/"))

    background, method, result                            among what the paper cites for other reasons
    background_mixed, method_mixed, result_mixed          and among 25 random papers too
    all, all_mixed                                        means of the three

Queries are the held-out papers of the `corpus` suite: a corpus that leaves out what that one asks for leaves out what
this one asks for. A model with one vector a paper does not see the intent that is asked for; `--aspect matching` answers
each query in its space. Pools are small, and the notes tell the map of a random order.
Does not judge, and does not find intents: `citeweave annotate` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.errors import EmptyResultError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.evaluation.ranking_metrics import chance_of_average_precision
from citeweave.evaluation.suites.corpus_data import (
    CannotAskError,
    CorpusSuiteOptions,
    Rows,
    SuiteData,
    held_out_rows,
    training_graph,
)
from citeweave.evaluation.suites.corpus_pools import (
    INTENTS,
    KNOWN,
    RowPools,
    make_cite,
    make_cocite,
    make_couple,
    make_hard_cite,
    make_intent_pools,
)
from citeweave.evaluation.suites.corpus_tasks import (
    RowProbe,
    Search,
    make_citations,
    make_field,
    make_mdcr,
    make_summary,
    make_title,
    make_year,
)
from citeweave.evaluation.tasks import Average, Pools, ProbeTask, RankingRule, RankingTask, Suite, Task, TaskTexts
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.intent_overlay import IntentOverlay, intents_from_contexts

__all__ = ["CorpusSuiteOptions", "held_out_rows", "make_suite", "training_graph"]

NAME = "corpus"

Made = RowPools | RowProbe | Search
MAKERS: Mapping[str, Callable[[SuiteData], Made | None]] = {
    "cite": make_cite,
    "cocite": make_cocite,
    "hard_cite": make_hard_cite,
    "couple": make_couple,
    "mdcr": make_mdcr,
    "field": make_field,
    "year": make_year,
    "citations": make_citations,
    "title": make_title,
    "summary": make_summary,
}
HEADLINE = {
    **dict.fromkeys(("cite", "cocite", "hard_cite", "couple", "mdcr"), "map"),
    "field": "f1",
    **dict.fromkeys(("year", "citations"), "kendalltau"),
    **dict.fromkeys(("title", "summary"), "ndcg_cut_10"),
}
"""Task -> the metric that stands for it."""

RULES = {"mdcr": RankingRule(metrics=("map", "recall_5"), distance="cosine")}
RULE = RankingRule(metrics=("map", "ndcg"), distance="cosine")


def make_suite(corpus: Corpus, options: CorpusSuiteOptions | None = None, *, reporter: Reporter = QUIET) -> Suite:
    """The tasks that the corpus can give; the same corpus and options give the same tasks."""
    options = options or CorpusSuiteOptions()
    material = SuiteData(corpus, options)
    made, not_evaluated = _make_corpus_tasks(material, reporter)
    if not made:
        reasons = "; ".join(f"{name}: {why}" for name, why in not_evaluated.items())
        raise EmptyResultError(f"{corpus.folder} gives no task ({reasons}); import papers with titles and citations")
    rows = _rows_of(made)
    tasks = _as_tasks(made, rows, texts_of(corpus, rows))
    headline = tuple(f"{task.name}.{HEADLINE[task.name]}" for task in tasks)
    return Suite(
        NAME,
        tasks,
        averages={"average": Average(headline, note=f"mean of the {len(headline)} tasks' main metrics")},
        headline=headline,
        not_evaluated=not_evaluated,
        notes=_notes(material, made, rows),
        data={
            "folder": str(corpus.folder),
            "corpus": corpus.hash,
            "options": asdict(options),
            "papers": len(corpus),
            "papers with title": len(material.order),
            "papers of the suite": len(rows),
            **held_out_counts(material),
            "tasks": {name: dict(part.counts) for name, part in made.items()},
        },
    )


def _make_corpus_tasks(material: SuiteData, reporter: Reporter) -> tuple[dict[str, Made], dict[str, str]]:
    made: dict[str, Made] = {}
    not_evaluated: dict[str, str] = {}
    with reporter.task("making the suite", total=len(MAKERS), unit="tasks") as advance:
        for name, maker in MAKERS.items():
            try:
                part = maker(material)
                if part is not None:
                    made[name] = part
            except CannotAskError as error:
                not_evaluated[name] = str(error)
            advance(1)
    return made, not_evaluated


def _rows_of(made: Mapping[str, Made]) -> Rows:
    """Every paper of the rankings and probes, ascending; searches have texts of their own."""
    parts = [part.papers() for part in made.values() if not isinstance(part, Search)]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def texts_of(corpus: Corpus, rows: Rows) -> TaskTexts:
    """The papers of some rows."""
    return TaskTexts(corpus.ids.take(rows), corpus.titles.take(rows), corpus.abstracts.take(rows))


def _as_tasks(made: Mapping[str, Made], rows: Rows, texts: TaskTexts) -> tuple[Task, ...]:
    return tuple(
        part.task
        if isinstance(part, Search)
        else ranking_task(name, part, rows, texts)
        if isinstance(part, RowPools)
        else _probe(name, part, rows, texts)
        for name, part in made.items()
    )


def ranking_task(name: str, part: RowPools, rows: Rows, texts: TaskTexts) -> RankingTask:
    """Pools by rows of the corpus as a task over the texts of `rows`, which are ascending."""
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


def _probe(name: str, part: RowProbe, rows: Rows, texts: TaskTexts) -> ProbeTask:
    from citeweave.evaluation.probes import SCIDOCS_CLASSES, SCIREPEVAL_NUMBERS

    classes = part.kind == "classes"
    return ProbeTask(
        name,
        texts,
        part.kind,
        np.searchsorted(rows, part.train),
        part.train_answers,
        np.searchsorted(rows, part.test),
        part.test_answers,
        rule=SCIDOCS_CLASSES if classes else SCIREPEVAL_NUMBERS,
        metrics={"f1": "f1_macro"} if classes else {"kendalltau": "kendalltau"},
        missing_as="zeros" if classes else "left out",
    )


def held_out_counts(material: SuiteData) -> dict[str, Any]:
    """What is held out, and what is left to train on."""
    corpus = material.corpus
    if not material.has_references:
        return {}
    held, outside = material.held[corpus.citing], material.held[corpus.references_outside("citing")]
    return {
        "held-out papers": int(material.held.sum()),
        "held-out papers that cite": len(np.unique(corpus.citing[held])),
        "held-out citations": int(held.sum()),
        "held-out references outside the corpus": int(outside.sum()),
        "citations to train on": int((~held).sum()),
    }


def held_out_notes(material: SuiteData) -> list[str]:
    """A warning not to train on what is asked for; none where there are no references."""
    counts = held_out_counts(material)
    if not counts:
        return []
    return [
        f"held out by {material.options.held_out} (seed {material.options.seed}): the {counts['held-out citations']:,} "
        f"citations of {counts['held-out papers that cite']:,} papers; a model that was trained on them must not be "
        f"judged here, the other {counts['citations to train on']:,} may be learned from"
    ]


def _notes(material: SuiteData, made: Mapping[str, Made], rows: Rows) -> tuple[str, ...]:
    corpus, notes = material.corpus, held_out_notes(material)
    if bare := int((corpus.abstracts.lengths()[rows] == 0).sum()):
        notes.append(f"{bare:,} of the suite's {len(rows):,} papers have a title and no abstract")
    if unread := len(corpus) - len(material.order):
        notes.append(f"{unread:,} papers of the corpus have no title and are not asked about")
    if "hard_cite" in made:
        filled = made["hard_cite"].counts
        notes.append(
            f"hard_cite: {filled['second-hop papers']:,} hard papers were found, "
            f"{filled['random papers']:,} random ones fill the pools"
        )
    if "mdcr" in made:
        notes.append("mdcr: BM25 chose some of every pool's papers, which works against BM25 and what is like it")
    return tuple(notes)


# Citation intents held out: given a paper and a reason to cite, which papers does it cite for that reason?

INTENT_SUITE = "intents"
MIXED = "_mixed"
METRICS = ("map", "ndcg")


def intent_graph(corpus: Corpus, overlay: str | Path | None = None) -> CitationGraph:
    """The citations of a corpus with their intents: an overlay's, or those that its source gave with citations and with
    citing sentences."""
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
    """The tasks of a corpus whose citations have intents; the same corpus, intents and options give the same tasks.

    `graph` is all citations of the corpus with their intents, None = those that its source gave.
    """
    material = SuiteData(corpus, options or CorpusSuiteOptions())
    graph = intent_graph(corpus) if graph is None else graph
    counts = {name: int(((graph.intents & bit) > 0).sum()) for name, bit in INTENTS.items()}
    if not any(counts.values()):
        raise EmptyResultError(
            f"{corpus.folder}: none of its {graph.edges:,} citations has the intent {', '.join(INTENTS)}; "
            f"find them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/"
        )
    made, not_evaluated = _make_intent_tasks(material, graph, reporter)
    if not made:
        raise EmptyResultError(
            f"{corpus.folder} gives no task ({'; '.join(dict.fromkeys(not_evaluated.values()))}); its citations with "
            f"intents are {', '.join(f'{number:,} of {name}' for name, number in counts.items())}"
        )
    rows = np.unique(np.concatenate([part.papers() for part in made.values()]))
    texts = texts_of(corpus, rows)
    chance = {name: _chance(part) for name, part in made.items()}
    return Suite(
        INTENT_SUITE,
        tuple(ranking_task(name, part, rows, texts) for name, part in made.items()),
        averages=_averages(made),
        headline=tuple(f"{name}.map" for name in made),
        not_evaluated=not_evaluated,
        notes=(
            *held_out_notes(material),
            *(f"{name}: a random order has map {value:.2f}" for name, value in chance.items()),
        ),
        data={
            "folder": str(corpus.folder),
            "corpus": corpus.hash,
            "options": asdict(material.options),
            "citations": graph.edges,
            "citations with intents": int(((graph.intents & KNOWN) > 0).sum()),
            **{f"citations of {name}": number for name, number in counts.items()},
            **held_out_counts(material),
            "papers of the suite": len(rows),
            "map of a random order": chance,
            "tasks": {name: dict(part.counts) for name, part in made.items()},
        },
    )


def _make_intent_tasks(
    material: SuiteData, graph: CitationGraph, reporter: Reporter
) -> tuple[dict[str, RowPools], dict[str, str]]:
    plain, mixed = {}, {}
    not_evaluated: dict[str, str] = {}
    with reporter.task("making the suite", total=len(INTENTS), unit="intents") as advance:
        for intent in INTENTS:
            try:
                plain[intent], mixed[intent + MIXED] = make_intent_pools(material, graph, intent)
            except CannotAskError as error:
                not_evaluated |= {intent: str(error), intent + MIXED: str(error)}
            advance(1)
    return {**plain, **mixed}, not_evaluated


def _averages(made: Mapping[str, RowPools]) -> dict[str, Average]:
    """Over the intents that can be asked for; the notes of a report say which cannot."""
    found = {}
    for ending in ("", MIXED):
        names = [intent + ending for intent in INTENTS if intent + ending in made]
        for metric in METRICS:
            parts = tuple(f"{name}.{metric}" for name in names)
            found[f"all{ending}.{metric}"] = Average(parts, note=f"mean of {', '.join(names)}")
    return found


def _chance(part: RowPools) -> float:
    relevant = np.add.reduceat(part.grades, part.offsets[:-1])  # (queries,)
    return float(100 * chance_of_average_precision(relevant, np.diff(part.offsets)).mean())
