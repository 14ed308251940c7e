"""`citeweave store` fills a store, brings it up to date, and says in one line what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from citeweave.cli import main

pytest.importorskip("lancedb", reason="pip install 'citeweave[stores]'")


def test_a_store_is_made_and_brought_up_to_date(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["store", str(made.index.folder), "--lance", str(tmp_path / "papers.lance")]
    for added in (19, 0):
        with pytest.raises(SystemExit):
            main([*arguments, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert (told["papers"], told["added"], told["unchanged"]) == (19, added, 19 - added)
    with pytest.raises(SystemExit):
        main(arguments)
    assert "unchanged  19" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "either --lance FOLDER or --milvus ADDRESS"),
        (["--lance", "a", "--milvus", "b.db"], "either --lance FOLDER or --milvus ADDRESS"),
        (["--milvus", "b.db", "--collection", "x; drop"], "--collection is 'x; drop'"),
    ],
)
def test_mistakes(made: Any, options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", str(made.index.folder), *options])
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_the_token_is_not_told(made: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pymilvus", reason="pip install 'citeweave[stores]'")
    monkeypatch.setenv("CITEWEAVE_MILVUS_TOKEN", "root:verysecret")
    with pytest.raises(SystemExit) as ended:
        main(["store", str(made.index.folder), "--milvus", "http://127.0.0.1:9"])
    said = "".join(capfd.readouterr())
    assert ended.value.code == 2 and "does not respond" in said and "verysecret" not in said and "Traceback" not in said


def test_a_search_through_a_store_finds_what_the_index_finds(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, place = made.index, str(tmp_path / "papers.lance")
    asked = ["search", str(index.folder), "--paper", index.id(0), "--count", "5", "--year", "1990-", "--json"]
    found = []
    for arguments in (
        ["store", str(index.folder), "--lance", place, "--json"],
        asked,
        [*asked, "--store", f"lance:{place}"],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        found.append(json.loads(capsys.readouterr().out))
    _, own, through = found
    assert own["hits"] and [hit["id"] for hit in through["hits"]] == [hit["id"] for hit in own["hits"]]
    assert [hit["score"] for hit in through["hits"]] == pytest.approx([hit["score"] for hit in own["hits"]], abs=1e-5)


def test_a_store_has_no_words(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["search", str(made.index.folder), "rain", "--by", "words", "--store", f"lance:{tmp_path}/x"])
    assert ended.value.code == 2 and "--store holds vectors of papers" in capsys.readouterr().err
