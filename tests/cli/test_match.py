"""match as it is typed: a corpus for both, vectors for both, conflicts, and mistakes in one line."""

import csv

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.ingest import import_papers
from citeweave.vectors.vectors import new_vectors

from .conftest import mistakes, write_jsonl

WORDS = ["the cell grows", "models learn", "graphs of citations", "we find data", ""]


@pytest.fixture(scope="module")
def place(tmp_path_factory, save_bert):
    place = tmp_path_factory.mktemp("match")
    for name, ids in (("submissions", ["s:0", "s:1", "p:0"]), ("papers", ["p:0", "p:1", "p:2", "p:3", "p:4"])):
        lines = [{"id": id, "title": WORDS[at], "abstract": "how"[: 3 * bool(WORDS[at])]} for at, id in enumerate(ids)]
        if name == "papers":
            lines[1]["ids"] = ["doi:10.1/one"]
        import_papers(write_jsonl(place / f"{name}.jsonl", lines), place / name)
    people = {"ann": ["p:0", "doi:10.1/one"], "bo": ["p:2", "p:9"], "cy": []}
    write_jsonl(place / "people.jsonl", ({"person": name, "papers": papers} for name, papers in people.items()))
    save_bert(place / "tiny")
    return place


def rows(path):
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_two_corpora(place, cli, tmp_path):
    given = f"--papers {place}/papers --reviewers {place}/people.jsonl --model {place}/tiny --device cpu"
    assert cli.text(f"match {place}/submissions {given} -o {tmp_path}/s.csv --quiet") == ""
    head, *lines = rows(tmp_path / "s.csv")
    assert head == ["submission", "reviewer", "score"]
    # ann wrote p:0, which was submitted too
    pairs = [["p:0", "bo"], ["s:0", "ann"], ["s:0", "bo"], ["s:1", "ann"], ["s:1", "bo"]]
    assert sorted(line[:2] for line in lines) == pairs
    # s:0 is p:0 by another name
    (score,) = [float(line[2]) for line in lines if line[:2] == ["s:0", "ann"]]
    assert 0.5 < score <= 1
    (place / "conflicts.csv").write_text("submission,person\ns:0,bo\n")
    more = f"--conflicts {place}/conflicts.csv --top 1 --rule max"
    found = cli.json(f"match {place}/submissions {given} -o {tmp_path}/c.csv {more}")
    assert found["people"] == 2 and found["left_out"] == 1 and found["unknown_papers"] == 1 and found["scores"] == 3
    first = rows(tmp_path / "c.csv")[1]
    assert first[:2] == ["s:0", "ann"] and float(first[2]) == pytest.approx(1, abs=1e-5)


def test_vectors(cli, tmp_path):
    for name, ids in (("subs", ["a", "b"]), ("pool", ["p:0", "p:1", "p:2"])):
        with new_vectors(tmp_path / name, model="m", revision="r", dtype="float32") as writer:
            writer.append(ids, np.eye(3)[: len(ids)])
            writer.finish()
    (tmp_path / "people.csv").write_text("person,paper\nann,p:0\nbo,p:1;p:2\n")
    given = f"--papers {tmp_path}/pool --reviewers {tmp_path}/people.csv --rule mean"
    assert "mean of cosines" in cli.text(f"match {tmp_path}/subs {given} -o {tmp_path}/s.csv")
    expected = ["a,ann,1.000000", "a,bo,0.000000", "b,bo,0.500000", "b,ann,0.000000"]
    assert [",".join(row) for row in rows(tmp_path / "s.csv")[1:]] == expected


@mistakes(
    ("--papers @papers --rule best", "--rule is 'best'"),
    ("--papers @papers --min-papers 9 --model @tiny", "none of 3 people has 9 papers"),
    ("--papers @papers --top -1", "--top is -1"),
    ("--papers @papers --model nowhere-and-no-name", "is not a folder and not a known name"),
    ("--papers @people.jsonl", "holds neither a corpus nor vectors"),
)
def test_mistakes_are_one_line(place, cli, tmp_path, words, message):
    given = f"match @submissions --reviewers @people.jsonl -o {tmp_path}/s.csv --device cpu --quiet {words}"
    cli.fails(message, given.replace("@", f"{place}/"))
