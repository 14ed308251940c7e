"""match as it is typed: a corpus for both, vectors for both, conflicts, and mistakes in one line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.ingest import import_papers
from citeweave.vectors.vectors import new_vectors

from .conftest import run

WORDS = ["the cell grows", "models learn", "graphs of citations", "we find data", ""]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Path:
    place = tmp_path_factory.mktemp("match")
    for name, ids in (("submissions", ["s:0", "s:1", "p:0"]), ("papers", ["p:0", "p:1", "p:2", "p:3", "p:4"])):
        lines = [{"id": id, "title": WORDS[at], "abstract": "how"[: 3 * bool(WORDS[at])]} for at, id in enumerate(ids)]
        if name == "papers":
            lines[1]["ids"] = ["doi:10.1/one"]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        import_papers([place / f"{name}.jsonl"], place / name)
    people = [{"person": "ann", "papers": ["p:0", "doi:10.1/one"]}, {"person": "bo", "papers": ["p:2", "p:9"]}]
    (place / "people.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in [*people, {"person": "cy", "papers": []}])
    )
    save_bert(place / "tiny")
    return place


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_two_corpora(place, capsys, tmp_path):
    command = ("match", place / "submissions", "--papers", place / "papers", "--reviewers", place / "people.jsonl")
    code, out, err = run(
        capsys, *command, "--model", place / "tiny", "-o", tmp_path / "s.csv", "--device", "cpu", "--quiet"
    )
    assert code == 0 and not out, err
    head, *lines = rows(tmp_path / "s.csv")
    assert head == ["submission", "reviewer", "score"]
    # ann wrote p:0, which was submitted too
    assert sorted(line[:2] for line in lines) == sorted(
        [["s:0", "ann"], ["s:0", "bo"], ["s:1", "ann"], ["s:1", "bo"], ["p:0", "bo"]]
    )
    # s:0 is p:0 by another name
    (score,) = [float(line[2]) for line in lines if line[:2] == ["s:0", "ann"]]
    assert 0.5 < score <= 1
    (place / "conflicts.csv").write_text("submission,person\ns:0,bo\n")
    code, out, _ = run(
        capsys, *command, "--model", place / "tiny", "-o", tmp_path / "c.csv", "--device", "cpu", "--json",
        "--conflicts", place / "conflicts.csv", "--top", 1, "--rule", "max",
    )  # fmt: skip
    told = json.loads(out)
    assert code == 0 and told["people"] == 2 and told["left_out"] == 1 and told["unknown_papers"] == 1
    assert rows(tmp_path / "c.csv")[1][:2] == ["s:0", "ann"] and told["scores"] == 3
    assert float(rows(tmp_path / "c.csv")[1][2]) == pytest.approx(1, abs=1e-5)


def test_vectors(place, capsys, tmp_path):
    for name, ids in (("subs", ["a", "b"]), ("pool", ["p:0", "p:1", "p:2"])):
        with new_vectors(tmp_path / name, model="m", revision="r", dtype="float32") as writer:
            writer.append(ids, np.eye(3)[: len(ids)])
            writer.finish()
    (tmp_path / "people.csv").write_text("person,paper\nann,p:0\nbo,p:1;p:2\n")
    code, out, err = run(
        capsys, "match", tmp_path / "subs", "--papers", tmp_path / "pool", "--reviewers", tmp_path / "people.csv",
        "-o", tmp_path / "s.csv", "--rule", "mean",
    )  # fmt: skip
    assert code == 0, err
    assert rows(tmp_path / "s.csv")[1:] == [
        ["a", "ann", "1.000000"],
        ["a", "bo", "0.000000"],
        ["b", "bo", "0.500000"],
        ["b", "ann", "0.000000"],
    ]
    assert "mean of cosines" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "best"], "--rule is 'best'"),
        (["--min-papers", "9", "--model", "MODEL"], "none of 3 people has 9 papers"),
        (["--top", "-1"], "--top is -1"),
        (["--model", "nowhere-and-no-name"], "is not a folder and not a known name"),
        (["--papers", "people.jsonl"], "holds neither a corpus nor vectors"),
    ],
)
def test_mistakes(place, capsys, tmp_path, arguments, said):
    arguments = [str(place / "tiny") if one == "MODEL" else one for one in arguments]
    arguments = [str(place / one) if one == "people.jsonl" else one for one in arguments]
    if "--papers" not in arguments:
        arguments += ["--papers", str(place / "papers")]
    code, out, err = run(
        capsys, "match", place / "submissions", "--reviewers", place / "people.jsonl", "-o", tmp_path / "s.csv",
        "--device", "cpu", "--quiet", *arguments,
    )  # fmt: skip
    assert code == 2 and not out and said in err and len(err.splitlines()) == 1
