"""Citation intents held out: given a paper and a reason to cite, which papers does it cite for that reason?

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

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from citeweave.corpus.corpus import Corpus
from citeweave.errors import EmptyResultError
from citeweave.evaluation.measuring.relevance import chance_of_average_precision
from citeweave.evaluation.suites.corpus import held_out_counts, held_out_notes, ranking_task, texts_of
from citeweave.evaluation.suites.making.holding_out import CorpusSuiteOptions
from citeweave.evaluation.suites.making.intent_pools import INTENTS, KNOWN, make_intent_pools
from citeweave.evaluation.suites.making.material import CannotAskError, Material
from citeweave.evaluation.suites.making.pools import RowPools
from citeweave.evaluation.tasks import Average, Suite
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.context_intents import intents_from_contexts
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.progress import QUIET, Reporter

NAME = "intents"
MIXED = "_mixed"
METRICS = ("map", "ndcg")


def intent_graph(corpus: Corpus, overlay: str | Path | None = None) -> CitationGraph:
    """The citations of a corpus with their intents: an overlay's, or those that its source gave with citations and with
    citing sentences."""
    graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus), intents=corpus.intents)
    if overlay is not None:
        return IntentOverlay.open(overlay).on(graph, corpus)
    return graph.with_intents(intents_from_contexts(corpus, graph))


def make_suite(
    corpus: Corpus,
    options: CorpusSuiteOptions | None = None,
    *,
    graph: CitationGraph | None = None,
    reporter: Reporter = QUIET,
) -> Suite:
    """The tasks of a corpus whose citations have intents; the same corpus, intents and options give the same tasks.

    `graph` is all citations of the corpus with their intents, None = those that its source gave.
    """
    material = Material(corpus, options or CorpusSuiteOptions())
    graph = intent_graph(corpus) if graph is None else graph
    counts = {name: int(((graph.intents & bit) > 0).sum()) for name, bit in INTENTS.items()}
    if not any(counts.values()):
        raise EmptyResultError(
            f"{corpus.folder}: none of its {graph.edges:,} citations has the intent {', '.join(INTENTS)}; "
            f"find them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/"
        )
    made, not_evaluated = _make_all(material, graph, reporter)
    if not made:
        raise EmptyResultError(
            f"{corpus.folder} gives no task ({'; '.join(dict.fromkeys(not_evaluated.values()))}); its citations with "
            f"intents are {', '.join(f'{number:,} of {name}' for name, number in counts.items())}"
        )
    rows = np.unique(np.concatenate([part.papers() for part in made.values()]))
    texts = texts_of(corpus, rows)
    chance = {name: _chance(part) for name, part in made.items()}
    return Suite(
        NAME,
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


def _make_all(
    material: Material, graph: CitationGraph, reporter: Reporter
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
