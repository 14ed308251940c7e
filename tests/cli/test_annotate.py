"""annotate as it is typed, on a made-up literature, whose contexts come with intents; and info of what it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave import Corpus, synthesize
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.graph.intent_overlay import IntentOverlay

from .conftest import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("annotate")
    synthesize(place / "corpus", SyntheticOptions(papers=200))
    return place


def test_annotate_and_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("annotate", folder / "corpus", "-o", folder / "intents", "--classifier", "none")
    code, out, _ = run(capsys, *words, "--json")
    facts = json.loads(out)
    corpus, overlay = Corpus.open(folder / "corpus"), IntentOverlay.open(folder / "intents")
    assert code == 0
    assert facts["corpus"] == overlay.corpus == corpus.hash
    assert facts["citations"]["with_intent"] == int((overlay.mask > 0).sum()) > 0
    assert (overlay.mask[overlay.given] & corpus.intents[overlay.given] == corpus.intents[overlay.given]).all()
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "intents of citations, as in the source" in out
    assert "background, of those with an intent" in out
    code, told, _ = run(capsys, "info", folder / "intents", "--verify")
    assert (code, told) == (0, out)
    code, out, _ = run(capsys, "info", folder / "intents", "--json")
    assert json.loads(out)["kind"] == "intents"
    code, out, _ = run(capsys, "info", folder / "corpus")
    assert code == 0 and "references per paper" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["corpus", "--min-confidence", "7"], "--min-confidence is 7.0; it must be a confidence"),
        (["corpus", "--classifier", "nowhere", "--no-keep-given"], "nowhere does not exist"),
        (["intents"], "holds intents, not corpus"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "annotate", folder / "corpus", "-o", folder / "intents", "--classifier", "none", "--quiet")
    code, out, err = run(capsys, "annotate", folder / words[0], "-o", folder / "x", *words[1:])
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (folder / "x").exists()


def test_a_corpus_without_contexts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "papers.jsonl").write_text(
        '{"id": "a", "title": "One", "references": ["b"]}\n{"id": "b", "title": "Two"}\n'
    )
    run(capsys, "import", tmp_path / "papers.jsonl", "-o", tmp_path / "corpus", "--quiet")
    code, _, err = run(capsys, "annotate", tmp_path / "corpus", "-o", tmp_path / "intents")
    assert code == 2
    for words in ("no citing sentences", "import contexts", "specter_cl"):
        assert words in err
