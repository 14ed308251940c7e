"""What whole runs share: a small synthetic literature, a tiny start model, recipes made small."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave import Corpus, Samples, synthesize
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.paper import Paper
from citeweave.intents.citances import Citance
from citeweave.pipeline.recipe import Recipe, load_recipe
from citeweave.pipeline.run import RunResult, prepare_recipe, run_identity, run_recipe
from citeweave.pipeline.run_folder import RunFolder, RunOptions
from citeweave.pipeline.stages import DataStages
from citeweave.pipeline.suites import Suites

TINY = [
    *("training.steps=2", "training.batch=4", "training.warmup=0", "training.validation=0.1"),
    *("encoder.max_tokens=24", "graph.dimension=16", "graph.edges.epochs=1", "mining.anchors=60"),
]


@dataclass(frozen=True)
class Place:
    """What the runs share."""

    folder: Path
    corpus: Corpus
    options: RunOptions


@pytest.fixture(scope="session")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("pipeline")
    corpus = synthesize(folder / "corpus", SyntheticOptions(papers=300))
    draw = np.random.default_rng(0)
    for name in ("coviews", "coreads"):
        pairs = [(row, int(other)) for row in range(len(corpus)) for other in draw.integers(0, len(corpus), 6)]
        lines = [f"{corpus.ids[row]}\t{corpus.ids[other]}\t{draw.integers(1, 9)}" for row, other in pairs]
        (folder / f"{name}.tsv").write_text("\n".join(lines))
    options = RunOptions(
        init=str(bert), tasks=("cite",), seeds=1, queries=12, device="cpu", resamples=100, shared=folder / "shared"
    )
    return Place(folder, corpus, options)


def tiny(name: str, *more: str) -> Recipe:
    """A recipe made small; overrides that a mixture does not know are left out."""
    mixture = "tasks" in load_recipe(name).table("mining")
    return load_recipe(name, [*(entry for entry in TINY if not (mixture and entry.startswith("mining"))), *more])


def options_for(place: Place, recipe: Recipe) -> RunOptions:
    named = [name for name in ("coviews", "coreads") if f"'{name}'" in str(recipe.tables)]
    aligner = place.options.init if recipe.table("alignment") else ""
    return replace(place.options, tables={name: place.folder / f"{name}.tsv" for name in named}, aligner=aligner)


def mined(place: Place, recipe: Recipe, output: Path, options: RunOptions) -> tuple[Samples, RunFolder]:
    """The stages before training."""
    recipe, read = prepare_recipe(recipe, options)
    run = RunFolder(output, run_identity(recipe, place.corpus, options), options)
    run.open()
    stages = DataStages(run, recipe, read)
    return stages.make(place.corpus, Suites(place.corpus, options)).samples, run


@pytest.fixture(scope="session")
def long_bert(save_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads some sentences of an abstract behind its title."""
    return save_bert(tmp_path_factory.mktemp("models") / "long-bert", length=200)


@pytest.fixture(scope="session")
def ran(place: Place) -> RunResult:
    return run_recipe(tiny("scincl"), place.corpus.folder, place.folder / "ran", replace(place.options, shared=None))


class ByWord:
    """Predicts the intent from the first word of a sentence."""

    name, hash = "by word", "1"

    def __init__(self, *labels: str) -> None:
        self.labels = labels

    def predict(self, citances: Sequence[Citance], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        words = [citance.text.split()[0] for citance in citances]
        return np.array([[word == label for label in self.labels] for word in words], np.float32)


def write_beir(folder: Path, papers: Mapping[str, Paper]) -> Path:
    """A suite as others publish it: these papers, with ids of its own, and one query that the first one answers."""
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": id, "title": each.title, "text": each.abstract}) for id, each in papers.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "error variance"}))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{next(iter(papers))}\t1\n")
    return folder
