"""Annotating by an executor: the same bytes as without one, resumed block by block."""

import numpy as np
import pytest

from citeweave import synthesize
from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.intents.annotate import AnnotateOptions, annotate_intents
from citeweave.intents.examples import TrainingSets

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.intents.classifier import IntentClassifier
from citeweave.intents.options import ClassifierOptions
from citeweave.intents.train import train_classifier

from ..conftest import Told, content


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("remote") / "corpus", SyntheticOptions(papers=80))


@pytest.fixture(scope="module")
def classifier(marked_bert, planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote") / "classifier"
    options = ClassifierOptions(base=str(marked_bert), epochs=1, rank=2, max_tokens=40)
    train_classifier(TrainingSets(planted(24, 1), planted(12, 2)), folder, options, device="cpu")
    return IntentClassifier.open(folder, device="cpu")


OPTIONS = AnnotateOptions(keep_given=False, block=70)


@pytest.fixture(scope="module")
def alone(corpus, classifier, tmp_path_factory):
    """What a run without an executor writes."""
    folder = tmp_path_factory.mktemp("remote") / "alone"
    annotate_intents(corpus, folder, classifier, OPTIONS)
    return content(folder)


def test_the_same_bytes(corpus, classifier, alone, tmp_path):
    executor = Told()
    overlay = annotate_intents(corpus, tmp_path / "a", classifier, OPTIONS, executor=executor)
    assert content(tmp_path / "a") == alone
    assert len(executor.made) == -(-len(corpus.contexts) // 70) >= 4
    assert overlay.confidence.any()
    assert executor.works[0].unit == "contexts" and not executor.works[0].gpu


def test_failed_blocks_are_read_by_the_next_run(corpus, classifier, alone, tmp_path):
    with pytest.raises(ShardError, match=r"annotating: 2 of .* \(0, 2; "):
        annotate_intents(corpus, tmp_path / "a", classifier, OPTIONS, executor=Told(failing=(0, 2)))
    assert not (tmp_path / "a").exists()
    executor = Told(failing=(2,))
    with pytest.raises(ShardError):
        annotate_intents(corpus, tmp_path / "a", classifier, OPTIONS, executor=executor)
    assert executor.made == [0]
    annotate_intents(corpus, tmp_path / "a", classifier, OPTIONS)  # the last one is read here
    assert content(tmp_path / "a") == alone


def test_blocks_in_which_nothing_is_read_are_not_sent(classifier, tmp_path):
    corpus = synthesize(tmp_path / "corpus", SyntheticOptions(papers=25))
    options, executor = AnnotateOptions(keep_given=False, max_contexts=1, block=1), Told()
    overlay = annotate_intents(corpus, tmp_path / "a", classifier, options, executor=executor)
    read = np.flatnonzero(overlay.context_confidence.any(axis=1))
    assert sorted(executor.made) == read.tolist()
    assert 0 < len(executor.made) < len(corpus.contexts)
    nobody = Told()
    annotate_intents(corpus, tmp_path / "b", classifier, AnnotateOptions(), executor=nobody)  # the source gave them all
    assert not nobody.works


class Words:
    """A classifier without a folder."""

    name, hash, labels = "words", "1", ("background", "method", "result")

    def predict(self, citances, **more):
        return np.full((len(citances), 3), 1 / 3, np.float32)


def test_a_classifier_without_a_folder_is_refused(corpus, tmp_path):
    with pytest.raises(UserError, match="classifier words exists only in this process"):
        annotate_intents(corpus, tmp_path / "a", Words(), OPTIONS, executor=Told())


@pytest.mark.parametrize(("key", "value"), [("expected", "0" * 64), ("corpus", "0" * 64)])
def test_others_in_the_same_place_are_refused(key, value, corpus, classifier, tmp_path):
    executor = Told(failing=range(99))
    with pytest.raises(ShardError):
        annotate_intents(corpus, tmp_path / "a", classifier, OPTIONS, executor=executor)
    changed = dict(executor.works[0].arguments)
    changed[key] = value if key == "expected" else [changed["corpus"][0], value]
    with pytest.raises(UserError, match="differs from the one where annotating began"):
        next(LocalExecutor().make(ShardTask(executor.works[0].maker, changed), [0]))
