from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.mining.samples import SampleNames, block_from_lists, new_samples


@pytest.fixture(scope="module")
def folder(place: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus, made = Corpus.open(place.corpus), tmp_path_factory.mktemp("mined") / "samples"
    rows = [int(row) for row in corpus.rows(["p:0", "p:1", "p:3", "p:7", "p:5"])]
    with new_samples(made, SampleNames(rules=("cited", "easy")), corpus=corpus.hash) as writer:
        anchors, positives, negatives = rows[:2], [[rows[2]], [rows[2], rows[3]]], [[rows[4]], [rows[4]]]
        writer.append(
            block_from_lists(anchors, positives=positives, negatives=negatives, positive_rule=0, negative_rule=1)
        )
        writer.finish()
    return made


def test_samples_are_shown_with_their_rules(serve: Callable[..., TestClient], folder: Path, place: Any) -> None:
    client = serve(samples=str(folder), corpus=str(place.corpus))
    assert client.get("/health").json()["samples"] is True
    page = client.get("/samples").json()
    assert page["total"] == 2 and [one["anchor"]["id"] for one in page["samples"]] == ["p:0", "p:1"]
    second = page["samples"][1]
    assert [(one["id"], one["rule"]) for one in second["positives"]] == [("p:3", "cited"), ("p:7", "cited")]
    assert [(one["id"], one["rule"]) for one in second["negatives"]] == [("p:5", "easy")]
    assert client.get("/samples", params={"start": 1, "count": 1}).json()["samples"] == [second]
    assert client.get("/samples", params={"anchor": "p:1"}).json() == {"total": 1, "start": 0, "samples": [second]}
    assert client.get("/samples", params={"start": 99}).json()["samples"] == []
    assert client.get("/samples", params={"anchor": "nobody"}).status_code == 404


def test_samples_need_their_corpus(serve: Callable[..., TestClient], folder: Path, tmp_path: Path) -> None:
    from citeweave.corpus.ingest import import_papers

    with pytest.raises(UserError, match="--corpus"):
        serve(samples=str(folder))
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "T"}\n')
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "other")
    with pytest.raises(UserError, match="another corpus"):
        serve(samples=str(folder), corpus=str(tmp_path / "other"))
