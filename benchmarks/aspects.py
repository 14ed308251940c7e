"""Who shares a problem, a method or a finding: whole papers, words, and sentences of the aspect; map and ndcg%20.

    python benchmarks/aspects.py --papers 800 --queries 200          plain MiniLM, 2,000 synthetic papers
    python benchmarks/aspects.py --model my/model

The suite is `aspects` (docs/evaluation.md). `whole` asks with the whole paper, `aspect` with its sentences of the
aspect; candidates are always whole. `in context` are the vectors of `encoders/sentence_encoder.py`, which have read title and
abstract; `alone` reads each sentence by itself. `all sentences` is the control: sentence vectors, no aspect chosen.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave import synthesize
from citeweave.core.progress import Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.options import SyntheticOptions
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.open_system import SENTENCE_TOKENS
from citeweave.evaluation.run_tasks import run_ranking
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.suites.aspects import AspectSuiteOptions, make_suite
from citeweave.evaluation.systems import Bm25System, System, VectorSystem
from citeweave.evaluation.tasks import Pools, RankingTask, TaskTexts
from citeweave.vectors.bm25 import Bm25
from citeweave.vectors.sentence_vectors import SentenceVectors

TEMPERATURE = 0.5
MATCHES = (("mean_best", "cosine"), ("single", "cosine"), ("single", "l2"), ("attention", "l2"), ("transport", "l2"))


class ComparedSystem(NamedTuple):
    label: str
    system: System
    distance: str = ""
    by_aspect: bool = True


class AspectWords(Bm25System):
    """BM25 that asks with the words of the chosen sentences alone."""

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        assert pools.sentences is not None
        asked = []
        for row, chosen in zip(pools.queries.tolist(), pools.sentences, strict=True):
            sentences = texts.sentences_of(row)
            asked.append(" ".join(sentences if chosen is None else [sentences[at] for at in chosen.tolist()]))
        papers = [f"{title} {abstract}" for title, abstract in zip(texts.titles, texts.abstracts, strict=True)]
        return Bm25(papers).scores(asked, pools.offsets, pools.candidates)


def in_context(encoder: TorchEncoder, texts: TaskTexts) -> SentenceVectors:
    split = [texts.sentences_of(row) for row in range(len(texts))]
    found = encode_sentences(encoder, texts.titles, split, reporter=Reporter())
    papers = [found.matrix[slice(*found.offsets[row : row + 2])] for row in range(len(texts))]
    numbers = [found.numbers[slice(*found.offsets[row : row + 2])] for row in range(len(texts))]
    return SentenceVectors.of(texts.ids, papers, numbers=numbers, model=f"{encoder.name} in context")


def alone(encoder: TorchEncoder, texts: TaskTexts) -> SentenceVectors:
    """Every sentence as a text without title; those that several papers have are read once."""
    split = [texts.sentences_of(row) for row in range(len(texts))]
    place = {text: at for at, text in enumerate(dict.fromkeys(text for part in split for text in part))}
    found = encode_sentences(encoder, [""] * len(place), [[text] for text in place], reporter=Reporter())
    assert not found.lost
    papers = [found.matrix[[place[text] for text in part]] for part in split]
    return SentenceVectors.of(texts.ids, papers, model=f"{encoder.name} alone")


def systems(model: str, texts: TaskTexts) -> Iterator[ComparedSystem]:
    drawn = stream(0, "benchmark", "aspects").standard_normal((len(texts), 64))
    yield ComparedSystem("random vectors", VectorSystem(texts.ids, drawn, name="random"), "cosine", False)
    yield ComparedSystem("BM25, whole", Bm25System(), "", False)
    yield ComparedSystem("BM25, aspect", AspectWords())
    with tempfile.TemporaryDirectory() as cache:
        encoder = load_encoder(model, device="cpu")
        yield ComparedSystem(
            f"{model}, whole", EncoderSystem(encoder, cache=Path(cache), reporter=Reporter()), "cosine", False
        )
    encoder = load_encoder(model, max_tokens=SENTENCE_TOKENS, device="cpu")
    assert isinstance(encoder, TorchEncoder)
    for how, vectors in (("in context", in_context(encoder, texts)), ("alone", alone(encoder, texts))):
        yield ComparedSystem(
            f"{how}, all sentences: mean_best cosine", SentenceSystem(vectors, metric="cosine"), "mean_best", False
        )
        for distance, metric in MATCHES:
            by_sentence = SentenceSystem(vectors, metric=metric, temperature=TEMPERATURE)
            yield ComparedSystem(f"{how}, aspect: {distance} {metric}", by_sentence, distance)


def row_of(compared: ComparedSystem, tasks: list[RankingTask]) -> list[str]:
    values = []
    for task in tasks:
        asked = task if compared.by_aspect else replace(task, pools=replace(task.pools, sentences=None))
        found = run_ranking(asked, compared.system, compared.distance, "wrong").metrics
        values.append(f"{found['map']:.1f} / {found['ndcg%20']:.1f}")
    return [compared.label, *values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--literature", type=int, default=2000, help="synthetic papers")
    parser.add_argument("--papers", type=int, default=800, help="papers that are read")
    parser.add_argument("--queries", type=int, default=200, help="queries an aspect")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = synthesize(
            Path(folder) / "corpus", SyntheticOptions(papers=given.literature, seed=given.seed), workers=1
        )
        suite = make_suite(corpus, AspectSuiteOptions(given.papers, given.queries, given.seed))
        tasks = [task for task in suite.tasks if isinstance(task, RankingTask)]
        print(f"| {' | '.join(['map / ndcg%20', *(task.name for task in tasks)])} |\n|{'---|' * (len(tasks) + 1)}")
        for compared in systems(given.model, tasks[0].texts):
            print(f"| {' | '.join(row_of(compared, tasks))} |", flush=True)


if __name__ == "__main__":
    main()
