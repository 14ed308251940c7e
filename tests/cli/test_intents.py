"""citeweave intents train and evaluate, from files to figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave.cli import main

WORDS = {"background": "shows", "method": "learn", "result": "find"}


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["intents", *arguments])
    assert exit_.value.code == 0


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "contexts.jsonl"
    lines = [
        {"text": f"paper {number % 7} data {WORDS[intent]} [3]", "intent": intent, "split": split, "section": "Data"}
        for split, count in (("train", 12), ("dev", 4))
        for number in range(count)
        for intent in WORDS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_train_and_evaluate(sentences: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    asked = ["--base", str(bert), "--rank", "4", "--epochs", "1", "--batch", "8", "--max-tokens", "32"]
    call("train", str(sentences), "-o", str(tmp_path / "c"), *asked, "--set", "smoothing=0.1", "--json")
    trained = json.loads(capsys.readouterr().out)
    assert trained["options"]["smoothing"] == 0.1 and trained["dev"]["sentences"] == 12
    call("evaluate", str(tmp_path / "c"), "--data", str(sentences), "--json")
    assert json.loads(capsys.readouterr().out)["macro_f1"] == trained["dev"]["macro_f1"]
    call("evaluate", str(tmp_path / "c"), "--data", str(sentences))
    assert "macro-F1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "scycite"], "--task is 'scycite'; it must be one of"),
        (["--set", "smoothing"], "--set is 'smoothing'; it must be KEY=VALUE"),
        (["--set", "rank=x"], "--set rank is 'x'; it must be of type int"),
        (["--unlabeled", "x"], "add --teachers 5"),
        (["--auxiliary", "section"], "--auxiliary is 'section'; it must be NAME=PATH"),
        (["--dev", "test"], "no labeled sentence of split 'test' (it has dev, train)"),
    ],
)
def test_errors_name_the_thing(
    arguments: list[str], words: str, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    with pytest.raises(SystemExit) as exit_:
        main(["intents", "train", str(sentences), "-o", str(tmp_path / "c"), *arguments])
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err
