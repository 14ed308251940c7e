"""annotate, and intents train and evaluate, as they are typed; and info of what annotate makes."""

import pytest

from citeweave import Corpus
from citeweave.graph.intent_overlay import IntentOverlay

from .conftest import mistakes, write_jsonl

WORDS = {"background": "shows", "method": "learn", "result": "find"}


def test_annotate_and_info(literature, tmp_path, cli):
    """The contexts of a synthetic literature come with intents."""
    folder, intents = literature(200), tmp_path / "intents"
    command = f"annotate {folder} -o {intents} --classifier none"
    facts = cli.json(command)
    corpus, overlay = Corpus.open(folder), IntentOverlay.open(intents)
    assert facts["corpus"] == overlay.corpus == corpus.hash
    assert facts["citations"]["with_intent"] == int((overlay.mask > 0).sum()) > 0
    assert (overlay.mask[overlay.given] & corpus.intents[overlay.given] == corpus.intents[overlay.given]).all()
    out = cli.text(command)
    assert "intents of citations, as in the source" in out and "background, of those with an intent" in out
    assert cli.text("info", intents, "--verify") == out
    assert cli.json("info", intents)["kind"] == "intents"
    assert "references per paper" in cli.text("info", folder)
    for words, message in [
        (f"{folder} --min-confidence 7", "--min-confidence is 7.0; it must be a confidence"),
        (f"{folder} --classifier nowhere --no-keep-given", "nowhere does not exist"),
        (str(intents), "holds intents, not corpus"),
    ]:
        cli.fails(message, f"annotate {words} -o {tmp_path}/x")
        assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    lines = [
        {"text": f"paper {number % 7} data {WORDS[intent]} [3]", "intent": intent, "split": split, "section": "Data"}
        for split, count in (("train", 12), ("dev", 4))
        for number in range(count)
        for intent in WORDS
    ]
    return write_jsonl(tmp_path_factory.mktemp("data") / "contexts.jsonl", lines)


def test_train_and_evaluate(sentences, bert, tmp_path, cli):
    words = f"--base {bert} --rank 4 --epochs 1 --batch 8 --max-tokens 32 --set smoothing=0.1"
    trained = cli.json(f"intents train {sentences} -o {tmp_path}/c {words}")
    assert trained["options"]["smoothing"] == 0.1 and trained["dev"]["sentences"] == 12
    command = f"intents evaluate {tmp_path}/c --data {sentences}"
    assert cli.json(command)["macro_f1"] == trained["dev"]["macro_f1"]
    assert "macro-F1" in cli.text(command)


@mistakes(
    ("--task scycite", "--task is 'scycite'; it must be one of"),
    ("--set smoothing", "--set is 'smoothing'; it must be KEY=VALUE"),
    ("--set rank=x", "--set: rank is 'x'; it must be a whole number"),
    ("--unlabeled x", "add --teachers 5"),
    ("--auxiliary section", "--auxiliary is 'section'; it must be NAME=PATH"),
)
def test_mistakes_of_train_are_one_line(words, message, sentences, tmp_path, cli):
    cli.fails(message, f"intents train {sentences} -o {tmp_path}/c {words}")
