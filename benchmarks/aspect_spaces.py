"""Do the ten nearest papers in an aspect space share the aspect? precision@10 in a synthetic literature, and cite.map.

    citeweave synthesize -o synthetic/ --papers 2000
    citeweave run sciaspect_hybrid --corpus synthetic/ --init minilm -o run/
    python benchmarks/aspect_spaces.py run/model/ --corpus synthetic/

Rows are plain MiniLM, the model's own vector, and its spaces. problem, method and finding are the tasks `*_space` of the
suite `aspects` (docs/evaluation.md): whom the whole literature's nearest ten papers share it with. A row `matching` asks
for problems in the space of backgrounds, for methods in that of methods, for findings in that of results. cite.map is
the suite `corpus`, held out as in the run. Every paper is read once a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from citeweave import Corpus
from citeweave.core.progress import Reporter
from citeweave.corpus.text import paper_text
from citeweave.encoders.aspects import open_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.evaluation.encoder_systems import aspect_spaces
from citeweave.evaluation.run_tasks import run_task
from citeweave.evaluation.suites import aspects, from_corpus
from citeweave.evaluation.suites.from_corpus import INTENTS
from citeweave.evaluation.systems import NoAnswerError, System, VectorSystem
from citeweave.evaluation.tasks import Suite


def read_papers(name: str, papers: Corpus, device: str) -> VectorSystem:
    """Vectors of all papers by one model."""
    encoder = load_encoder(name, device=device)
    texts = [paper_text(title, text) for title, text in zip(papers.titles, papers.abstracts, strict=True)]
    return VectorSystem(list(papers.ids), encoder.encode(texts, reporter=Reporter()), name=name)


def systems(plain: str, model: str, papers: Corpus, device: str) -> Iterator[tuple[str, System]]:
    yield plain, read_papers(plain, papers, device)
    yield from aspect_spaces(read_papers(model, papers, device), open_heads(model)).items()


def values_of(system: System, suite: Suite, wanted: dict[str, str]) -> Iterator[str]:
    """Task -> metric; a dash where this cannot be answered."""
    tasks = {task.name: task for task in suite.tasks}
    for name, metric in wanted.items():
        try:
            yield f"{run_task(tasks[name], system, '', 'wrong').metrics[metric]:.1f}"
        except (NoAnswerError, KeyError):
            yield "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a trained model with aspect heads")
    parser.add_argument("--corpus", type=Path, required=True, help="the synthetic literature, whole")
    parser.add_argument("--plain", default="minilm")
    parser.add_argument("--queries", type=int, default=500, help="queries a task")
    parser.add_argument("--held-out", default="share:0.1", help="as in the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    papers = Corpus.open(given.corpus)
    asked = from_corpus.CorpusSuiteOptions(held_out=given.held_out, queries=given.queries, seed=given.seed)
    planted = aspects.make_suite(papers, aspects.AspectSuiteOptions(len(papers), given.queries, given.seed))
    held = from_corpus.make_suite(papers, asked)
    told = from_corpus.make_intent_suite(papers, asked)
    nearest = {f"{name}{aspects.SPACE}": aspects.SPACE_RULE.metrics[0] for name in aspects.TASKS}
    columns = [*(f"{name} p@10" for name in aspects.TASKS), "cite.map", *(f"intent {name}" for name in INTENTS)]
    print(f"| {' | '.join(['vectors', *columns])} |\n|{'---|' * (len(columns) + 1)}")
    for label, system in systems(given.plain, given.model, papers, given.device):
        row = [
            *values_of(system, planted, nearest),
            *values_of(system, held, {"cite": "map"}),
            *values_of(system, told, dict.fromkeys(INTENTS, "map")),
        ]
        print(f"| {' | '.join([label, *row])} |", flush=True)
    chance = told.data["map of a random order"]
    print(f"| a random order | - | - | - | - | {' | '.join(f'{chance[name]:.1f}' for name in INTENTS)} |")


if __name__ == "__main__":
    main()
