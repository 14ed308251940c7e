"""A model's own reading: written by training, followed by every command unless told otherwise, refused when damaged."""

from __future__ import annotations

import json
import shutil

import pytest

from citeweave import import_papers
from citeweave.core.errors import InputError, UserError
from citeweave.encoders.delta import base_revision, open_model
from citeweave.encoders.encoder import load_encoder, own_reading
from citeweave.encoders.save import write_merged_model
from citeweave.evaluation.open_system import own_distance
from citeweave.evaluation.suites import read_suite
from citeweave.vectors.own_distance import FILE, Reading, read_reading, write_reading
from citeweave.vectors.sentence_vectors import SentenceVectors


@pytest.fixture
def carrying(bert, tmp_path):
    """A model that is best compared by the mean of best matches, by cosine."""
    folder = tmp_path / "carrying"
    shutil.copytree(bert, folder)
    write_reading(folder, Reading("mean_best", "cosine", 40))
    return folder


def test_the_shipped_model_carries_the_reading_of_its_recipe():
    assert own_reading("weave") == Reading("mean_best+token_best", "cosine", 512)
    assert not own_reading("minilm")


def test_a_reading_changes_no_vector_and_is_copied_with_the_model(carrying, bert, tmp_path):
    assert base_revision(open_model(carrying)) == base_revision(open_model(bert))
    first = write_merged_model(carrying, tmp_path / "copy")
    assert write_merged_model(carrying, tmp_path / "copy") == first, "the same again changes nothing"
    assert load_encoder(tmp_path / "copy", device="cpu").reading == Reading("mean_best", "cosine", 40)


def test_only_models_and_suites_of_sentences_have_a_distance_of_their_own(carrying, folders, tmp_path):
    suite = read_suite("csfcube", folders["csfcube"])
    assert own_distance(str(carrying), suite) == "mean_best"
    assert own_distance("weave", suite) == "mean_best+token_best"
    assert own_distance(str(carrying), read_suite("scidocs", folders["scidocs"])) == ""
    (tmp_path / "vectors.jsonl").write_text("{}")
    assert {own_distance(name, suite) for name in ("bm25", str(tmp_path / "vectors.jsonl"), "minilm")} == {""}


def test_evaluation_follows_the_model_unless_told_otherwise(carrying, folders, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))

    def report(name, *words):
        asked = "evaluate --suite csfcube --device cpu --data", folders["csfcube"], "-o", tmp_path / name, carrying
        found = cli.json(*asked, *words)
        return found["metrics"], found["model"]["revision"], found["options"]["distance"]

    own = report("own")
    assert own == report("same", "--distance mean_best --sentence-metric cosine --max-tokens 40")
    assert own == report("part", "--distance mean_best") and own[2] == "mean_best"
    assert own[1] != report("metric", "--distance mean_best --sentence-metric l2")[1]
    assert own[1] != report("length", "--max-tokens 30")[1]
    assert report("vectors", "--distance l2")[2] == "l2"


def test_sentence_vectors_remember_how_their_model_is_read(carrying, tmp_path, cli):
    text = [{"title": f"On {w}", "abstract": f"We count {w}. The {w} grow. It is fast."} for w in ("moths", "cells")]
    lines = [json.dumps({"id": str(at), **paper}) for at, paper in enumerate(text)]
    (tmp_path / "papers.jsonl").write_text("\n".join(lines))
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus")
    cli.json("embed", tmp_path / "corpus", "--sentences --model", carrying, "-o", tmp_path / "sentences")
    vectors = SentenceVectors.open(tmp_path / "sentences")
    assert vectors.reading == Reading("mean_best", "cosine", 40)
    assert vectors.provenance.revision == load_encoder(carrying, device="cpu", max_tokens=40).revision
    found = cli.json("similar", tmp_path / "sentences", "--paper 0")
    assert (found["distance"], found["metric"]) == ("mean_best", "cosine")
    told = cli.json("similar", tmp_path / "sentences", "--paper 0 --distance single --metric l2")
    assert (told["distance"], told["metric"]) == ("single", "l2")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON; copy the complete folder"),
        ('{"distance": "best"}', "distance is 'best'"),
        ('{"metric": "dot"}', "metric is 'dot'"),
        ('{"max_tokens": -1}', "max_tokens is -1"),
        ('{"distanse": "single"}', "key is 'distanse'"),
        ("[]", "a table of keys and values"),
    ],
)
def test_a_damaged_reading_is_refused(tmp_path, content, reason):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InputError, match=reason):
        read_reading(tmp_path)


def test_a_recipe_cannot_name_an_unknown_distance():
    with pytest.raises(UserError, match=r"encoder\.reading\.distance is 'best'"):
        Reading("best")
