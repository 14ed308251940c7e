"""Training on a small BERT: it learns a rule that needs the mark, the same twice, and survives its folder."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError, UserError
from citeweave.intents.classifier import DELTA, Citance, IntentClassifier, evaluate_classifier
from citeweave.intents.examples import SCICITE, LabeledSet, TrainingSets, section_examples
from citeweave.intents.options import ClassifierOptions

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.intents.train import ClassifierCardNotes, hold_out_dev, train_classifier  # noqa: E402

Planted = Callable[[int, int], LabeledSet]


@pytest.fixture(scope="module")
def options(marked_bert):
    return ClassifierOptions(
        base=str(marked_bert),
        rank=8,
        epochs=6,
        batch=16,
        learning_rate=1e-2,
        span_dropout=0.0,
        max_tokens=32,
        dropout=0.0,
    )


@pytest.fixture(scope="module")
def trained(options, planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "classifier"
    return train_classifier(TrainingSets(planted(300, 1), planted(90, 2)), folder, options)


def test_it_learns_a_rule_that_needs_the_mark(trained, planted):
    unseen = planted(120, 3)
    found = evaluate_classifier(trained.open(), unseen)
    assert found["macro_f1"] > 90
    blind = dataclasses.replace(
        unseen, examples=tuple(dataclasses.replace(row, citance=Citance(row.citance.text)) for row in unseen.examples)
    )
    assert evaluate_classifier(trained.open(), blind)["macro_f1"] < 80  # which citation is asked about is not known


def test_the_folder_gives_what_the_report_says(trained, planted):
    classifier = trained.open()
    dev = planted(90, 2)
    found = evaluate_classifier(classifier, dev)
    assert found["macro_f1"] == trained.report["dev"]["macro_f1"]
    assert found["without_sections"]["macro_f1"] == trained.report["dev_without_sections"]["macro_f1"]
    assert classifier.labels == SCICITE
    card = (trained.folder / "README.md").read_text()
    assert str(found["macro_f1"]) in card and "background" in card
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


def test_int8_and_float16_files_agree(trained, options, planted, tmp_path):
    from citeweave.intents.network import load_delta, save_delta

    delta = load_delta(trained.folder / DELTA)
    save_delta(tmp_path / "int8", delta, "int8")
    again = load_delta(tmp_path / "int8")
    assert again.keys() == delta.keys()
    for name, value in delta.items():
        steps = value.abs().amax(dim=-1, keepdim=True) / 127
        assert ((again[name] - value).abs() <= steps * 0.51 + 1e-6).all(), name
    assert (tmp_path / "int8").stat().st_size < (trained.folder / DELTA).stat().st_size
    short = dataclasses.replace(options, epochs=0.2)
    sets = TrainingSets(planted(40, 1), planted(20, 2))
    citances = [row.citance for row in planted(30, 5).examples]
    half, small = (
        train_classifier(sets, tmp_path / f"as-{name}", short, about=ClassifierCardNotes(precision=name))
        .open()
        .predict(citances)
        for name in ("float16", "int8")
    )
    np.testing.assert_allclose(half, small, atol=0.05)


def test_training_is_the_same_twice(options, planted, tmp_path):
    short = dataclasses.replace(options, epochs=1, dropout=0.1, section_dropout=0.5, span_dropout=0.5)
    sets = TrainingSets(planted(48, 1), planted(24, 2))
    first, second = (train_classifier(sets, tmp_path / name, short).open() for name in ("a", "b"))
    assert first.hash == second.hash
    other = train_classifier(sets, tmp_path / "c", dataclasses.replace(short, seed=1)).open()
    assert other.hash != first.hash


def test_teachers_unlabeled_and_auxiliary_sentences(options, planted, tmp_path):
    train = planted(60, 1)
    citances = [row.citance for row in planted(40, 6).examples]
    arc = LabeledSet(
        "acl_arc", ("uses", "other"), tuple(dataclasses.replace(r, label=r.label % 2) for r in train.examples)
    )
    worth = LabeledSet("worthiness", ("none", "cited"), arc.examples)
    sets = TrainingSets(train, None, (section_examples(citances), arc, worth), tuple(citances))
    asked = dataclasses.replace(
        options, epochs=1, teachers=2, teacher_epochs=1, agreement=0.5, balanced=True, keep="best"
    )
    made = train_classifier(sets, tmp_path / "taught", asked)
    assert made.report["unlabeled"] == 40 and len(made.report["teacher_dev_macro_f1"]) == 2
    classifier = made.open()
    assert classifier.tasks == ("scicite", "acl_arc")  # scaffolds are not kept
    assert classifier.predict(citances, task="acl_arc").shape == (40, 2)
    with pytest.raises(UserError, match="the task is 'section'"):
        classifier.predict(citances, task="section")


@pytest.mark.parametrize("parts", ["all", "head"])
def test_other_parts_survive_their_folder(parts, options, planted, tmp_path):
    short = dataclasses.replace(options, epochs=1, parts=parts, pooling="mark" if parts == "all" else "cls")
    made = train_classifier(TrainingSets(planted(48, 1), planted(40, 2)), tmp_path / "made", short)
    assert evaluate_classifier(made.open(), planted(40, 2))["macro_f1"] == made.report["dev"]["macro_f1"]


def test_a_tenth_of_each_label_is_held_back(planted):
    sets = hold_out_dev(TrainingSets(planted(200, 1)), seed=3)
    assert sets.dev is not None
    whole, kept, held = (found.counts()["labels"] for found in (planted(200, 1), sets.train, sets.dev))
    assert all(whole[name] == kept[name] + held[name] and held[name] == round(whole[name] / 10) for name in whole)
    assert not {id(row) for row in sets.train.examples} & {id(row) for row in sets.dev.examples}


def test_another_encoder_is_refused(trained, save_bert, options, tmp_path):
    classifier = trained.open()
    other = save_bert(tmp_path / "other", seed=7)
    classifier.config = dataclasses.replace(classifier.config, base=str(other))
    with pytest.raises(ArtifactError, match="was trained on .* of revision"):
        classifier.predict([Citance("a paper [3]")])


def test_bad_input_is_named(options, planted, trained, tmp_path):
    one = planted(30, 1)
    one = dataclasses.replace(one, examples=tuple(dataclasses.replace(row, label=1) for row in one.examples))
    with pytest.raises(UserError, match="all 30 labeled sentences are 'method'; training needs at least two labels"):
        train_classifier(TrainingSets(one), tmp_path / "one", options)
    with pytest.raises(UserError, match="--rank is 99; the layers of this encoder allow 1 to 32"):
        train_classifier(TrainingSets(planted(30, 1)), tmp_path / "rank", dataclasses.replace(options, rank=99))
    with pytest.raises(UserError, match="--pooling is 'men'"):
        dataclasses.replace(options, pooling="men")
    with pytest.raises(UserError, match="--section-dropout is 2; it must be from 0 to 1"):
        dataclasses.replace(options, section_dropout=2)
    path = trained.folder / DELTA
    saved = path.read_bytes()
    try:
        path.write_bytes(saved[:-1] + b"x")
        with pytest.raises(ArtifactError, match="delta.safetensors is missing or not what was trained"):
            IntentClassifier.open(trained.folder)
    finally:
        path.write_bytes(saved)
