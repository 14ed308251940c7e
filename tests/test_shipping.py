"""The pure parts of benchmarks/shipping/compressing.py: facts of the card, provenance, texts, differences."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import UserError
from citeweave.corpus.ingest import import_papers

from .conftest import refused

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")


@pytest.fixture
def shipping(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks.shipping import compressing

    return compressing


def written(path: Path, facts: object) -> Path:
    path.write_text(json.dumps(facts))
    return path


WRONG_FACTS = [
    ([1], "is no table of facts"),
    ({"provenance": "here"}, "its provenance is none"),
    ({"name": "mine"}, "gives name, which is not to be chosen"),
    ({"licnse": "MIT"}, "Did you mean 'license'"),
    ({"seeds": 3}, "the field seeds of a model card is '3'; it must be a list"),
    ({"results": {"MAP": [1]}}, "the result 'MAP' is .1.; it must be two numbers"),
    ({"results": {"MAP": ["1", 2]}}, "must be two numbers"),
]


@pytest.mark.parametrize(("facts", "message"), WRONG_FACTS)
def test_facts_that_a_card_cannot_say(shipping, tmp_path, facts, message):
    with pytest.raises(UserError, match=message):
        shipping.read_facts(written(tmp_path / "facts.json", facts))
    refused("cannot be read as JSON", shipping.read_facts, tmp_path / "none.json")


def test_provenance_is_given_or_read_and_must_be_whole(shipping, tmp_path):
    with new_artifact(tmp_path / "model", "encoder", 1, {"corpus": "abc"}) as writer:
        writer.facts = {"recipe": "weave", "seed": 4}
        writer.finish()
    found = shipping.provenance_of(tmp_path / "model", {"commit": "77aa", "seed": 5})
    assert found["recipe"] == "weave" and found["seed"] == 5 and found["corpora"] == {"training": "abc"}
    refused("lacks commit; add", shipping.provenance_of, tmp_path / "model", {})
    refused("lacks commit, recipe, corpora, seed", shipping.provenance_of, tmp_path / "elsewhere", {})


def test_texts_are_drawn_alike_from_every_corpus(shipping, tmp_path):
    corpora = []
    for name in "ab":
        lines = [{"id": f"{name}{n}", "title": f"{name} {n}", "abstract": "Told." if n else ""} for n in range(9)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        corpora.append(import_papers([tmp_path / f"{name}.jsonl"], tmp_path / name).corpus)
    texts = shipping.drawn_texts(corpora, 10, 0)
    assert sorted(text[0] for text in texts) == ["a"] * 5 + ["b"] * 5 and len(set(texts)) == 10
    assert texts == shipping.drawn_texts(corpora, 10, 0) != shipping.drawn_texts(corpora, 10, 1)
    assert all("Told." in text for text in texts)


def test_differences_become_the_trained_model(shipping, bert, tmp_path):
    from benchmarks.shipping.training import add_differences, differences, read_differences, write_differences
    from citeweave.encoders.encoder import load_encoder

    trained, again = (load_encoder(bert, pooling="mean", device="cpu") for _ in range(2))
    before = {name: weight.detach().clone() for name, weight in trained.network.model.named_parameters()}
    with torch.no_grad():
        for weight in trained.network.model.parameters():
            weight += 0.25
    write_differences(tmp_path / "shipped-0", differences(before, trained))
    add_differences(again, read_differences(tmp_path / "shipped-0"))
    np.testing.assert_allclose(again.encode(["the cell grows"]), trained.encode(["the cell grows"]), atol=1e-3)
    refused("is no stem of differences", read_differences, tmp_path / "shipped-1")
    with pytest.raises(UserError, match="change another.weight, which the start does not have"):
        add_differences(again, {"another.weight": torch.zeros(2)})


def test_papers_of_a_benchmarks_title_stay_out_of_the_anthology(shipping, tmp_path):
    from benchmarks.shipping.preparing import write_anthology

    papers = [
        {"id": "a", "title": "Semantic Role Labeling", "year": 2019},
        {"id": "b", "title": "Another title", "year": 2019},
        {"id": "c", "title": "An old one", "year": 2012},
        {"id": "d", "title": "Flagged", "year": 2019, "in_csfcube": True},
    ]
    (tmp_path / "acl_anthology").mkdir()
    with gzip.open(tmp_path / "acl_anthology" / "papers.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(paper) + "\n" for paper in papers)
    folder = write_anthology(tmp_path, tmp_path / "kept", {"semanticrolelabeling"})
    assert [json.loads(line)["id"] for line in (folder / "papers.jsonl").open()] == ["b"]


def small_bundle():
    """Three papers, two of them anchors."""
    from benchmarks.shipping import SYSTEM
    from benchmarks.table.bundle import Bundle, Column, PackedCorpus, PackedSamples
    from citeweave.mining.samples import Picks, SampleNames

    none = np.zeros(0, np.float32)
    positives = Picks(np.array([0, 1, 2]), np.array([1, 2], np.int32), np.zeros(2, np.uint8), none)
    negatives = Picks(np.zeros(3, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8), none)
    names = SampleNames(("cited",), ("",), ())
    samples = PackedSamples(names, np.array([0, 2], np.int32), np.zeros(2, np.uint8), positives, negatives, None, "s")
    papers = PackedCorpus("c", Column(["Maps", "", "Rain"]), Column(["Of cities.", "A mast.", ""]))
    facts = {"sources": [["elife", 2], ["acl_anthology", 1]]}
    return Bundle("joint", papers, (none, none), {}, {"s": samples}, {SYSTEM: {"samples": "s"}}, facts)  # type: ignore[arg-type]


def test_a_source_is_left_out_and_an_unknown_one_refused(shipping):
    from benchmarks.shipping.training import samples_without

    bundle = small_bundle()
    assert samples_without(bundle, []).anchors.tolist() == [0, 2]
    left = samples_without(bundle, ["elife"])
    assert left.anchors.tolist() == [2] and left.positives.rows.tolist() == [2] and left.hash != "s"
    refused("it must be one of acl_anthology, elife", samples_without, bundle, ["eliffe"])


def test_a_teachers_vectors_are_those_of_the_texts_that_are_learned(shipping, bert):
    from benchmarks.shipping.training import taught_vectors
    from citeweave.corpus.text import paper_text
    from citeweave.encoders.encoder import load_encoder

    teacher = load_encoder(bert, pooling="mean", device="cpu")
    taught = taught_vectors(small_bundle(), teacher)
    assert taught.known.tolist() == [0, 1, 2] and taught.rows([2, 0]).tolist() == [2, 0]
    own = teacher.encode([paper_text("Maps", "Of cities."), paper_text("", "A mast."), paper_text("Rain", "")])
    np.testing.assert_allclose(taught.matrix, own, atol=2e-3)


def test_values_in_fields_left_out(shipping):
    """The docstrings' examples, and a draw of queries that keeps what belongs to each."""
    import doctest

    from benchmarks.shipping import fields

    examples = doctest.testmod(fields)
    assert examples.attempted >= 4 and not examples.failed
    every = fields.Collection(["a", "b", "c"], ["qa", "qb", "qc"], [[0], [1], [2]], [2, 0, 1])
    some = every.some(2, np.random.default_rng(0))
    rows = [every.queries.index(query) for query in some.queries]
    assert len(rows) == 2 and some.texts == every.texts
    assert some.answers == [every.answers[row] for row in rows] and some.own == [every.own[row] for row in rows]
    assert fields.difference(np.full(20, -0.02)) == "-2.0*"


def test_vectors_of_a_saved_student_are_normalized_as_it_ships(shipping, bert, tmp_path):
    how = shipping.Compressing(bert, [], tmp_path / "facts.json", tmp_path / "out", max_tokens=20)
    folder = shipping.trained_folder(how, tmp_path / "whole")
    assert (folder / "2_Normalize").is_dir() and (folder / "reading.json").is_file()
