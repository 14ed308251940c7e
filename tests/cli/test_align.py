"""align as it is typed, with a tiny model; mistakes are one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave import Samples, synthesize
from citeweave.cli import main
from citeweave.corpus.synthetic.literature import SyntheticOptions

from .conftest import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, samples of citing sentences and samples without any."""
    place = tmp_path_factory.mktemp("align")
    synthesize(place / "corpus", SyntheticOptions(papers=200))
    synthesize(place / "other", SyntheticOptions(papers=50))
    for recipe in ("aspire", "specter"):
        words = ["--recipe", recipe, "--set", "mining.anchors=20", "-o", str(place / recipe), "--quiet"]
        with pytest.raises(SystemExit) as end:
            main(["mine", str(place / "corpus"), *words])
        assert not end.value.code
    return place


@pytest.mark.parametrize("by", ["contexts", "abstracts"])
def test_align(by: str, folder: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder / "corpus", "--samples", folder / "aspire", "--model", bert, "--by", by, "--device", "cpu"]
    code, out, err = run(capsys, "align", *words, "-o", tmp_path / "a")
    assert code == 0, err
    assert f"aligned by {by} with tiny-bert" in out
    found = Samples.open(tmp_path / "a")
    assert found.alignment is not None and found.alignment.aligned.all()
    code, out, err = run(capsys, "align", *words, "-o", tmp_path / "a")
    assert code == 0 and "already exists" in err
    code, out, _ = run(capsys, "align", *words, "-o", tmp_path / "a", "--json")
    value = json.loads(out)
    assert value["by"] == by and value["samples"] == 20
    assert value["pairs"] == {"read": 20, "kept": 20, "rejected": {}}


@pytest.mark.parametrize(
    ("corpus", "samples", "words", "message"),
    [
        ("corpus", "aspire", ["--by", "context"], "--by is 'context'; it must be one of abstracts, contexts. Did you"),
        ("other", "aspire", [], "was mined from another corpus than"),
        ("corpus", "corpus", [], "holds corpus, not samples"),
        ("corpus", "nowhere", [], "does not exist; give a folder that holds samples"),
        ("corpus", "specter", [], "pairs: no citing sentence); mine with a recipe whose samples come from citing"),
        ("corpus", "aspire", ["--model", "nowhere"], "the encoder 'nowhere' is not a folder and not a known name"),
    ],
)
def test_mistakes_are_one_line(
    corpus: str,
    samples: str,
    words: list[str],
    message: str,
    folder: Path,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [folder / corpus, "--samples", folder / samples, "--model", bert, "-o", tmp_path / "a", *words, "--quiet"]
    code, _, err = run(capsys, "align", *given)
    assert code == 2 and message in err and err.count("\n") == 1, err
    assert not list(tmp_path.iterdir())
