"""Intents of an overlay reach the very citations they are of, whichever papers left, and none of those held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave import Corpus, Samples
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.ingest import import_papers
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, held_out_rows
from citeweave.evaluation.tasks import RankingTask, Suite
from citeweave.graph.intent_overlay import LABELS, IntentOverlay
from citeweave.intents.annotate import annotate_intents
from citeweave.intents.citances import Citance
from citeweave.mining.inputs import IntentSource
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.pipeline.run_folder import RunFolder, RunOptions
from citeweave.pipeline.stages import DataStages, TrainingInputs
from citeweave.pipeline.suites import Suites

PAPERS = 90
HELD_OUT = "share:0.3"
Pair = tuple[str, str]


class ByWord:
    """Tells the intent by the first word of a sentence."""

    name, hash, labels = "by word", "1", ("result", "method", "background")

    def predict(self, citances: Sequence[Citance], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        words = [citance.text.split()[0] for citance in citances]
        return np.array([[word == label for label in self.labels] for word in words], np.float32)


def citations() -> list[Pair]:
    draw = np.random.default_rng(0)
    pairs = {(int(a), int(b)) for a, b in draw.integers(0, PAPERS, (PAPERS * 9, 2)) if a != b}  # some both ways
    return [(f"p{a}", f"p{b}") for a, b in sorted(pairs)]


def words(seed: int) -> str:
    """Made-up words, other ones for every paper: the audit takes texts that are alike for one."""
    letters = np.random.default_rng(seed).integers(97, 123, (9, 6))
    return " ".join("".join(map(chr, word)) for word in letters.tolist())


def imported(folder: Path, *, shift: frozenset[str] = frozenset()) -> Corpus:
    """Papers that say in a sentence why they cite; those of `shift` give every citation another reason."""
    folder.mkdir()
    papers = [{"id": f"p{n}", "title": words(n), "abstract": words(n + PAPERS)} for n in range(PAPERS)]
    contexts = []
    for citing, cited in citations():
        label = LABELS[(int(citing[1:]) + int(cited[1:]) + (citing in shift)) % 3]
        contexts.append({"citing": citing, "cited": [cited], "text": f"{label} is why {citing} cites {cited}"})
    for name, lines in (("papers", papers), ("contexts", contexts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "citations.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in citations()))
    return import_papers(folder, folder.with_name(f"{folder.name}-corpus")).corpus


def suite_of_few(folder: Path, corpus: Corpus) -> Path:
    """A published suite with papers of the corpus, which leave it: rows become others."""
    (folder / "qrels").mkdir(parents=True)
    papers = [corpus.paper(row) for row in (0, 7, 31)]
    lines = [json.dumps({"_id": each.id, "title": each.title, "text": each.abstract}) for each in papers]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "paper number"}))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{papers[0].id}\t1\n")
    return folder


@dataclass(frozen=True)
class Run:
    """What a run made of a corpus and an overlay of it."""

    audited: Corpus
    material: TrainingInputs
    asked: Suite


def run(corpus: Corpus, overlay: IntentOverlay, beir: Path, folder: Path) -> Run:
    options = RunOptions(
        intents=str(overlay.folder), intent_suite=overlay.folder, suites={"beir": beir}, held_out=HELD_OUT
    )
    recipe = load_recipe("intent_spaces", ["mining.negatives.local.count=5", "mining.positives.count=5"])
    place = RunFolder(folder, {}, QUIET)
    place.open()
    stages = DataStages(place, recipe, read_recipe(recipe), options, QUIET)
    audited = stages.audit(corpus)
    suites = Suites(audited, options, QUIET, corpus)
    return Run(audited, stages.make(audited, suites), suites.read("intents"))


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    corpus = imported(tmp_path_factory.mktemp("held") / "in")
    rows = np.flatnonzero(held_out_rows(corpus, CorpusSuiteOptions(held_out=HELD_OUT)))
    return frozenset(corpus.ids[row] for row in rows.tolist())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("leaks")
    corpus = imported(folder / "in")
    overlay = annotate_intents(corpus, folder / "intents", ByWord())
    return run(corpus, overlay, suite_of_few(folder / "beir", corpus), folder / "run")


def reason(citing: str, cited: str) -> str:
    return LABELS[(int(citing[1:]) + int(cited[1:])) % 3]


def picks(found: Samples, ids: Sequence[str], rule: str = "") -> list[tuple[str, str, str]]:
    """Aspect, anchor and pick of the positives, or of a rule's negatives."""
    chosen = found.negatives if rule else found.positives
    owner = np.repeat(np.arange(len(found)), np.diff(chosen.offsets))
    rows = zip(owner.tolist(), chosen.rows.tolist(), chosen.rules.tolist(), strict=True)
    return [
        (found.names.aspects[found.aspects[sample]], ids[found.anchors[sample]], ids[row])
        for sample, row, number in rows
        if not rule or found.names.rules[number] == rule
    ]


def test_every_trained_citation_has_the_intents_of_the_same_pair(made: Run, held: frozenset[str]) -> None:
    corpus, ids = made.material.corpus, list(made.material.corpus.ids)
    assert len(corpus) == PAPERS - 3
    edges = {(ids[a], ids[b]) for a, b in zip(corpus.citing.tolist(), corpus.cited.tolist(), strict=True)}
    assert edges == {(a, b) for a, b in citations() if a in ids and b in ids and a not in held}
    ups = picks(made.material.samples, ids)
    assert {aspect for aspect, _, _ in ups} == set(LABELS) and len(ups) > 100
    for aspect, anchor, other in ups:
        known = {pair for pair in ((anchor, other), (other, anchor)) if pair in edges}
        assert aspect in {reason(*pair) for pair in known}
    downs = picks(made.material.samples, ids, "local")
    assert len(downs) > 100
    for aspect, anchor, other in downs:
        known = {pair for pair in ((anchor, other), (other, anchor)) if pair in edges}
        assert known and aspect not in {reason(*pair) for pair in known}


def test_what_is_asked_is_held_out_and_in_no_sample(made: Run, held: frozenset[str]) -> None:
    ids = list(made.material.corpus.ids)
    trained = {frozenset((a, b)) for _, a, b in picks(made.material.samples, ids)}
    trained |= {frozenset((a, b)) for _, a, b in picks(made.material.samples, ids, "local")}
    asked, known = 0, set(citations())
    for task in made.asked.tasks:
        assert isinstance(task, RankingTask)
        pools, names = task.pools, task.texts.ids
        for at, query in enumerate(pools.queries.tolist()):
            for place in range(int(pools.offsets[at]), int(pools.offsets[at + 1])):
                pair = names[query], names[pools.candidates[place]]
                cites = pair in known
                assert pair[0] in held and frozenset(pair) not in trained
                right = cites and reason(*pair) == task.name.removesuffix("_mixed")
                assert bool(pools.grades[place]) == right and (cites or task.name.endswith("_mixed"))
                asked += cites
    assert asked > 100


def test_why_a_held_out_paper_cites_changes_no_sample(made: Run, held: frozenset[str], tmp_path: Path) -> None:
    other = imported(tmp_path / "in", shift=held & set(made.audited.ids))
    overlay = annotate_intents(other, tmp_path / "intents", ByWord())
    again = run(other, overlay, suite_of_few(tmp_path / "beir", other), tmp_path / "run")
    # nor is there anything of it for a classifier to read: the corpora that are trained on are one
    assert again.material.corpus.hash == made.material.corpus.hash
    old, new = made.material.samples, again.material.samples
    assert np.array_equal(old.anchors, new.anchors) and np.array_equal(old.aspects, new.aspects)
    assert np.array_equal(old.positives.rows, new.positives.rows)
    assert np.array_equal(old.negatives.rows, new.negatives.rows)
    tasks = made.asked.tasks[0], again.asked.tasks[0]
    assert isinstance(tasks[0], RankingTask) and isinstance(tasks[1], RankingTask)
    assert not np.array_equal(tasks[0].pools.candidates, tasks[1].pools.candidates)


def test_an_overlay_of_the_smaller_corpus_alone_is_refused(made: Run, tmp_path: Path) -> None:
    """Rows of another corpus must never be taken for its own."""
    from citeweave.core.errors import UserError
    from citeweave.graph.citations import graph_from_edges

    overlay = annotate_intents(made.audited, tmp_path / "intents", ByWord())
    corpus = made.material.corpus
    graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
    with pytest.raises(UserError, match="an overlay fits only the corpus it was made from"):
        IntentSource(str(overlay.folder)).annotate(graph, corpus)
