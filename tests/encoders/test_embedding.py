"""Papers become a folder of vectors, and nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from citeweave.encoders.embedding import NO_TEXT, embed_texts
from citeweave.encoders.encoder import load_encoder
from citeweave.errors import EmptyResultError, UserError
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.vectors import Vectors


class LetterCounts:
    """An encoder of three numbers: how often a, b and c occur."""

    name, revision, dimension = "letters", "1", 3

    def __init__(self) -> None:
        self.read = 0

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        self.read += len(texts)
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32).reshape(-1, 3)


class Recorder(Reporter):
    """Writes down the progress it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.totals: list[int | None] = []
        self.done = 0

    def task(self, label, total=None, unit=""):
        from contextlib import nullcontext

        self.totals.append(total)
        return nullcontext(self._advance)

    def _advance(self, amount: int) -> None:
        self.done += amount


def test_vectors_are_written_with_their_origin(tmp_path, monkeypatch):
    monkeypatch.setattr("citeweave.encoders.embedding.BLOCK", 2)
    encoder, recorder = LetterCounts(), Recorder()
    ids, texts = ["p1", "p2", "p3", "p4", "p5"], ["ab", "", "cc", "xyz", "abc"]
    embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t", reporter=recorder)
    vectors = Vectors.open(tmp_path / "v")
    assert list(vectors.ids) == ["p1", "p3", "p5"]
    assert vectors.matrix.tolist() == [[1, 1, 0], [0, 0, 2], [1, 1, 1]]
    origin = vectors.provenance
    assert (origin.model, origin.revision, origin.text_recipe, origin.dtype) == ("letters", "1", "t", "float32")
    assert vectors.manifest.facts["records"]["vectors"] == {"read": 5, "kept": 3, "rejected": {NO_TEXT: 2}}
    assert recorder.totals == [5] and recorder.done == 5


def test_what_is_there_already_is_not_made_again(tmp_path):
    encoder, ids, texts = LetterCounts(), ["p1", "p2"], ["ab", "c"]
    embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t")
    again = embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t")
    assert encoder.read == 2 and list(again.ids) == ids
    for ids_, texts_, options in (
        (ids, ["ab", "cc"], {}),
        (["p1", "p3"], texts, {}),
        (ids, texts, {"text_recipe": "u"}),
        (ids, texts, {"dtype": "float16"}),
    ):
        with pytest.raises(UserError, match="made from other inputs"):
            embed_texts(encoder, ids_, texts_, tmp_path / "v", **{"text_recipe": "t", **options})
    replaced = embed_texts(encoder, ids, ["ab", "cc"], tmp_path / "v", text_recipe="t", overwrite=True)
    assert replaced.take(["p2"]).tolist() == [[0, 0, 2]]


def test_bad_input(tmp_path):
    with pytest.raises(UserError, match="2 ids for 1 texts"):
        embed_texts(LetterCounts(), ["a", "b"], ["a"], tmp_path / "v", text_recipe="")
    with pytest.raises(EmptyResultError, match="2: no text"):
        embed_texts(LetterCounts(), ["a", "b"], ["", "\ud800"], tmp_path / "v", text_recipe="")
    assert not (tmp_path / "v").exists()


def test_a_real_encoder_reports_its_progress(bert, tmp_path):
    encoder, recorder = load_encoder(bert, batch_tokens=10), Recorder()
    texts = ["the cell grows", "", "data", "how models learn"]
    vectors = embed_texts(encoder, ["a", "b", "c", "d"], texts, tmp_path / "v", text_recipe="t", reporter=recorder)
    assert list(vectors.ids) == ["a", "c", "d"] and recorder.done == 4
    np.testing.assert_allclose(vectors.matrix, encoder.encode(texts)[[0, 2, 3]], atol=1e-5)
    assert vectors.provenance.revision == encoder.revision
