"""Training on a small BERT: it learns a rule that needs the mark, the same twice, and survives its folder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError, UserError
from citeweave.intents.classifier import Citance, IntentClassifier, evaluate_classifier
from citeweave.intents.examples import SCICITE, LabeledSet, TrainingSets, section_examples
from citeweave.intents.options import ClassifierOptions

from ..conftest import refused

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")

from citeweave.intents.fit import IntentTask  # noqa: E402
from citeweave.intents.train import ClassifierCardNotes, hold_out_dev, train_classifier  # noqa: E402


def changed(labeled, change):
    return replace(labeled, examples=tuple(map(change, labeled.examples)))


@pytest.fixture(scope="module")
def options(marked_bert):
    training = {"epochs": 6, "batch": 16, "learning_rate": 1e-2, "span_dropout": 0.0, "dropout": 0.0}
    return ClassifierOptions(base=str(marked_bert), rank=8, max_tokens=32, **training)


@pytest.fixture(scope="module")
def trained(options, planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "classifier"
    return train_classifier(TrainingSets(planted(300, 1), planted(90, 2)), folder, options)


def test_it_learns_a_rule_that_needs_the_mark_and_reports_what_the_folder_gives(trained, planted):
    unseen, classifier = planted(120, 3), trained.open()
    assert evaluate_classifier(classifier, unseen)["macro_f1"] > 90
    blind = changed(unseen, lambda row: replace(row, citance=Citance(row.citance.text)))
    assert evaluate_classifier(classifier, blind)["macro_f1"] < 80  # which citation is asked about is not known
    dev = planted(90, 2)
    found = evaluate_classifier(classifier, dev)
    assert found["macro_f1"] == trained.report["dev"]["macro_f1"]
    assert found["without_sections"]["macro_f1"] == trained.report["dev_without_sections"]["macro_f1"]
    assert classifier.labels == SCICITE
    card = (trained.folder / "README.md").read_text()
    assert f"{found['macro_f1']:g}" in card and "background" in card
    probabilities = classifier.predict([row.citance for row in dev.examples])
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)


def test_predictions_do_not_depend_on_batches_or_order(trained, planted):
    classifier = trained.open()
    citances = [row.citance for row in planted(40, 4).examples] + [Citance(""), Citance("  "), Citance("paper " * 2000)]
    together = classifier.predict(citances)
    np.testing.assert_allclose(together[40:42], 1 / 3, atol=1e-6)
    alone = np.concatenate([classifier.predict([citance]) for citance in reversed(citances)])[::-1]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, classifier.predict(citances, batch_tokens=64), atol=1e-5)
    assert classifier.predict([]).shape == (0, 3)


def test_training_is_the_same_twice(options, planted, tmp_path):
    short = replace(options, epochs=1, dropout=0.1, section_dropout=0.5, span_dropout=0.5)
    sets = TrainingSets(planted(48, 1), planted(24, 2))
    first, second = (train_classifier(sets, tmp_path / name, short).open() for name in ("a", "b"))
    assert first.hash == second.hash
    other = train_classifier(sets, tmp_path / "c", replace(short, seed=1)).open()
    assert other.hash != first.hash


@pytest.mark.parametrize("stop", [2, 9])
def test_an_interrupted_run_resumes_exactly(options, planted, tmp_path, monkeypatch, stop):
    """Step 2 belongs to the teacher, step 9 to the classifier, which has a head that not every step trains."""
    short = replace(options, epochs=2, dropout=0.1, section_dropout=0.5, keep="best", teachers=1, teacher_epochs=1)
    auxiliary = section_examples([row.citance for row in planted(20, 6).examples])
    sets = TrainingSets(planted(48, 1), planted(24, 2), (auxiliary,))
    notes = ClassifierCardNotes("Invented", "citeweave intents train", precision="int8")
    expected = train_classifier(sets, tmp_path / "whole", short, about=notes)
    backward, steps, seen = IntentTask.backward, list[int](), list[int]()

    def interrupted(self, step):
        if len(steps) == stop:
            raise KeyboardInterrupt
        steps.append(step)
        return backward(self, step)

    def recorded(self, step):
        seen.append(step)
        return backward(self, step)

    monkeypatch.setattr("citeweave.training.trainer.CHECKPOINTS", 1000)  # after every step
    monkeypatch.setattr("citeweave.training.trainer.SAVE_INTERVAL", 0)
    monkeypatch.setattr(IntentTask, "backward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(sets, tmp_path / "cut", short, about=notes)
    monkeypatch.setattr(IntentTask, "backward", recorded)
    found = train_classifier(sets, tmp_path / "cut", short, about=notes)
    assert found.open().hash == expected.open().hash and found.report == expected.report
    assert len(steps) + len(seen) == 4 + 2 * 4  # no step is taken twice


def test_teachers_unlabeled_and_auxiliary_sentences(options, planted, tmp_path):
    train = planted(60, 1)
    citances = [row.citance for row in planted(40, 6).examples]
    halves = changed(train, lambda row: replace(row, label=row.label % 2)).examples
    arc = LabeledSet("acl_arc", ("uses", "other"), halves)
    worth = LabeledSet("worthiness", ("none", "cited"), arc.examples)
    sets = TrainingSets(train, None, (section_examples(citances), arc, worth), tuple(citances))
    teachers = {"teachers": 2, "teacher_epochs": 1, "agreement": 0.5}
    taught = replace(options, epochs=1, balanced=True, keep="best", **teachers)
    made = train_classifier(sets, tmp_path / "taught", taught)
    assert made.report["unlabeled"] == 40 and len(made.report["teacher_dev_macro_f1"]) == 2
    classifier = made.open()
    assert classifier.tasks == ("scicite", "acl_arc")  # scaffolds are not kept
    assert classifier.predict(citances, task="acl_arc").shape == (40, 2)
    refused("the task is 'section'", classifier.predict, citances, task="section")


def test_a_tenth_of_each_label_is_held_back(planted):
    sets = hold_out_dev(TrainingSets(planted(200, 1)), seed=3)
    whole, kept, held = (found.counts()["labels"] for found in (planted(200, 1), sets.train, sets.dev))
    assert all(whole[name] == kept[name] + held[name] and held[name] == round(whole[name] / 10) for name in whole)
    assert not {id(row) for row in sets.train.examples} & {id(row) for row in sets.dev.examples}


def test_another_encoder_and_bad_input_are_refused(trained, save_bert, options, planted, tmp_path):
    copied = shutil.copytree(trained.folder, tmp_path / "copied")
    content = json.loads((copied / "delta.json").read_text()) | {"base": str(save_bert(tmp_path / "other", seed=7))}
    (copied / "delta.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="is a delta of revision .*other', and revision .* is here; get the base"):
        IntentClassifier.open(copied).predict([Citance("a paper [3]")])
    one = changed(planted(30, 1), lambda row: replace(row, label=1))
    with pytest.raises(UserError, match="all 30 labeled sentences are 'method'; training needs at least two labels"):
        train_classifier(TrainingSets(one), tmp_path / "one", options)
    with pytest.raises(UserError, match="--rank is 99; the layers of this encoder allow 1 to 32"):
        train_classifier(TrainingSets(planted(30, 1)), tmp_path / "rank", replace(options, rank=99))
    for wrong, message in (
        ({"pooling": "men"}, "--pooling is 'men'"),
        ({"section_dropout": 2}, "--section-dropout is 2; it must be from 0 to 1"),
    ):
        refused(message, replace, options, **wrong)
    for name in ("delta.safetensors", "heads.safetensors"):
        saved = (copied / name).read_bytes()
        (copied / name).write_bytes(saved[:-1] + b"x")
        refused(f"{name} is missing or not what was trained", IntentClassifier.open, copied, error=ArtifactError)
        (copied / name).write_bytes(saved)
    manifest = json.loads((copied / "manifest.json").read_text()) | {"version": 1}
    (copied / "manifest.json").write_text(json.dumps(manifest))
    message = (
        "of format version 1; .* Make it again with `citeweave intents train`, or use the release .* citeweave 0.1.0"
    )
    refused(message, IntentClassifier.open, copied, error=ArtifactError)
