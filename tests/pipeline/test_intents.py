"""Intents in a run: those of the corpus, those of an overlay of it, or found where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave import Corpus, synthesize
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.evaluation.suites.from_corpus import held_out_rows
from citeweave.graph.citations import build_graph
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.intents.annotate import annotate_intents
from citeweave.intents.citances import Citance
from citeweave.mining.inputs import IntentSource
from citeweave.pipeline.recipe import Recipe, load_recipe, read_recipe
from citeweave.pipeline.run_folder import RunFolder, RunOptions
from citeweave.pipeline.stages import (
    DataStages,
    TrainingInputs,
    annotate_stage,
    find_intents,
    intents_key,
    needs_classifier,
)
from citeweave.pipeline.suites import Suites

SMALL = ["graph.dimension=16", "mining.every_aspect=false", "training.losses.supcon.temperature=0.05"]


class ByWord:
    """Tells the intent by the first word of a sentence."""

    name, hash, labels = "by word", "1", ("background", "method", "result")

    def predict(self, citances: Sequence[Citance], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        words = [citance.text.split()[0] for citance in citances]
        return np.array([[word == label for label in self.labels] for word in words], np.float32)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("intents") / "corpus", SyntheticOptions(papers=300))


def stages(corpus: Corpus, recipe: Recipe, folder: Path, options: RunOptions) -> DataStages:
    run = RunFolder(folder, {}, QUIET)
    run.open()
    return DataStages(run, recipe, read_recipe(recipe), options, QUIET, original=corpus)


def made(found: DataStages, corpus: Corpus) -> TrainingInputs:
    return found.make(corpus, Suites(corpus, found.options))


def intents_in(corpus: Corpus, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    rows = zip(corpus.citing.tolist(), corpus.cited.tolist(), corpus.intents.tolist(), strict=True)
    return {(a, b): bits for a, b, bits in rows if (a, b) in pairs}


def test_an_overlay_is_mapped_to_what_is_trained_on(corpus: Corpus, tmp_path: Path) -> None:
    overlay = annotate_intents(corpus, tmp_path / "intents", None)
    options = RunOptions(intents=str(tmp_path / "intents"), queries=10)
    recipe = load_recipe("sciaspect_bands", SMALL)
    found = stages(corpus, recipe, tmp_path / "run", options)
    material = made(found, corpus)
    assert material.corpus.hash != corpus.hash == overlay.corpus
    graph = material.inputs.graph
    assert graph is not None and set(material.inputs.vectors) == {"graph", *(f"graph-{n}" for n in ("background", "method", "result"))}  # fmt: skip
    pairs = list(zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True))
    wanted = intents_in(corpus, set(pairs))
    assert [wanted[pair] for pair in pairs] == graph.intents.tolist()
    assert options.suite_options is not None
    held = set(np.flatnonzero(held_out_rows(corpus, options.suite_options)).tolist())
    assert held and not held & {a for a, _ in pairs} and not held & set(material.samples.anchors.tolist())
    facts = found.run.stage_metadata("samples")
    assert set(facts["bands"]["aspects"]) == {"background", "method", "result"}
    assert facts["bands"]["aspects"]["method"]["written"] == {"positives": [20, 25], "far": 4000}
    # the same again makes nothing
    again = stages(corpus, recipe, tmp_path / "run", options)
    made(again, corpus)
    assert again.run.executed == []
    assert intents_key(options) == {"intents": overlay.hash} and intents_key(RunOptions()) == {}


def test_an_overlay_of_another_corpus_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    stranger = synthesize(tmp_path / "stranger", SyntheticOptions(papers=300, seed=5))
    annotate_intents(stranger, tmp_path / "intents", None)
    found = stages(
        corpus, load_recipe("sciaspect", SMALL), tmp_path / "run", RunOptions(intents=str(tmp_path / "intents"))
    )
    with pytest.raises(UserError, match="an overlay fits only the corpus it was made from"):
        made(found, corpus)
    with pytest.raises(UserError, match="--classifier finds intents, but --intents corpus provides them"):
        RunOptions(intents="corpus", classifier=tmp_path)


def told(folder: Path) -> Corpus:
    """Papers that cite each other in sentences that say why; nobody gave the intents."""
    folder.mkdir()
    names = range(12)
    (folder / "papers.jsonl").write_text(
        "".join(f'{{"id": "{n}", "title": "paper {n}", "abstract": "text"}}\n' for n in names)
    )
    pairs = [(a, b) for a in names for b in names if a > b]
    (folder / "citations.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    line = '{{"citing": "{}", "cited": ["{}"], "text": "{} is why {} cites [{}]"}}\n'
    words = [ByWord.labels[(a + b) % 3] for a, b in pairs]
    (folder / "contexts.jsonl").write_text(
        "".join(line.format(a, b, word, a, b) for (a, b), word in zip(pairs, words, strict=True))
    )
    return import_papers(folder, folder.with_name("told")).corpus


def test_intents_are_found_where_there_are_none(corpus: Corpus, tmp_path: Path) -> None:
    plain = told(tmp_path / "in")
    rules = read_recipe(load_recipe("sciaspect")).rules
    assert needs_classifier(rules, plain) and not needs_classifier(rules, corpus)
    assert not needs_classifier(read_recipe(load_recipe("sciaspect_relations")).rules, plain)
    run = RunFolder(tmp_path / "run", {}, QUIET)
    run.open()
    folder = annotate_stage(run, plain, ByWord(), RunOptions(), QUIET)
    overlay = IntentOverlay.open(folder)
    assert (folder, overlay.corpus) == (tmp_path / "run" / "intents", plain.hash)
    graph = IntentSource(str(folder)).annotate(build_graph(plain, tmp_path / "graph"), plain)
    ids = [int(name) for name in plain.ids]
    bits = [1 << ((ids[a] + ids[b]) % 3) for a, b in zip(graph.sources(), graph.cited.targets, strict=True)]
    assert graph.intents.tolist() == bits
    annotate_stage(run, plain, ByWord(), RunOptions(), QUIET)
    assert (run.executed, run.skipped) == (["intents"], ["intents"])
    # a corpus that has intents, or rules that need none, are left alone
    assert find_intents(run, rules, corpus, corpus, RunOptions(), QUIET) == IntentSource()
    assert run.executed == ["intents"]
