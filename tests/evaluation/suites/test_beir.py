"""Search benchmarks: BEIR folders, SciTLDR's summaries and graded lists, with what is odd in them counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.evaluation.suites.beir import normalize_words, read_suite, scitldr_to_beir
from citeweave.evaluation.tasks import RankingTask, SearchTask, Suite

QRELS = "query-id\tcorpus-id\tscore\nq1\tp1\t2\nq1\tp2\t0\nq2\tp2\t0\nq3\tlost\t1\nq9\tp1\t1\n"


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """q2 has nothing relevant, q3's paper is not in the corpus, q9 has no text, q4 is not judged."""
    corpus = [{"_id": f"p{number}", "title": f"Title {number}", "text": f"Text {number}."} for number in range(1, 4)]
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in corpus)
    write_lines(tmp_path / "queries.jsonl", [{"_id": f"q{number}", "text": f"ask {number}"} for number in range(1, 5)])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    return tmp_path


def search_of(suite: Suite) -> SearchTask:
    (task,) = suite.tasks
    assert isinstance(task, SearchTask)
    return task


def judged(task: SearchTask) -> dict[str, dict[str, int]]:
    pools = task.judgments
    return {
        name: {
            task.texts.ids[pools.candidates[pair]]: int(pools.grades[pair])
            for pair in range(pools.offsets[number], pools.offsets[number + 1])
        }
        for number, name in enumerate(pools.names)
    }


def test_a_folder_of_beir(folder: Path) -> None:
    suite = read_suite(folder)
    task = search_of(suite)
    assert judged(task) == {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 0}, "q3": {"lost": 1}}
    assert [task.texts.ids[row] for row in task.candidates] == ["p1", "p2", "p3"], "what the corpus lacks is not there"
    assert [task.texts.titles[row] for row in task.queries] == ["ask 1", "ask 2", "ask 3"]
    assert task.texts.paper_texts()[:2] == ["Title 1[SEP]Text 1.", "Title 2[SEP]Text 2."]
    assert task.queries.tolist() == task.judgments.queries.tolist()
    assert (task.name, suite.headline, task.rule.family, task.depth) == (
        "search",
        ("search.ndcg_cut_10",),
        "trec",
        1000,
    )
    assert task.rule.metrics[0] == "ndcg_cut_10"
    assert (suite.data["papers"], suite.data["queries"], suite.data["pairs"]) == (3, 3, 4)
    assert suite.notes == (
        "judged questions left out, since their text is missing: 1",
        "questions without relevant papers, which count as 0: 1",
        "judged papers that the corpus lacks, which cannot be found: 1",
    )


def test_questions_with_the_id_of_a_paper_get_rows_of_their_own(folder: Path) -> None:
    write_lines(folder / "queries.jsonl", [{"_id": "p1", "text": "ask 1"}, {"_id": "q2", "text": "ask 2"}])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\np1\tp1\t1\nq2\tp2\t1\n")
    suite = read_suite(folder)
    task = search_of(suite)
    assert list(task.texts.ids) == ["p1", "p2", "p3", "query:p1", "query:q2"]
    assert judged(task) == {"p1": {"p1": 1}, "q2": {"p2": 1}}
    assert task.queries.tolist() == [3, 4]
    assert suite.notes == ("questions with the id of a paper: 1",)


def test_a_missing_split_is_named_with_those_that_are_there(folder: Path) -> None:
    with pytest.raises(InputError, match=r"qrels/dev.tsv is missing; the folder has the splits test: use --split"):
        read_suite(folder, split="dev")
    (folder / "qrels" / "test.tsv").unlink()
    with pytest.raises(InputError, match="qrels/test.tsv is missing: it holds which papers answer which question"):
        read_suite(folder)


@pytest.mark.parametrize(("name", "holds"), [("corpus.jsonl.gz", "the papers"), ("queries.jsonl", "the questions")])
def test_a_missing_file_is_named(folder: Path, name: str, holds: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name.removesuffix('.gz')} is missing: it holds {holds}"):
        read_suite(folder)


BAD_QRELS = {
    "two columns": ("q1\tp1\n", "line 2 has 2 of the 3 columns query-id, corpus-id, score"),
    "blanks": ("q1 p1 1\n", "line 2 has 1 of the 3 columns"),
    "no number": ("q1\tp1\tyes\n", "line 2: the score is 'yes'"),
    "two minds": ("q1\tp1\t1\nq1\tp1\t0\n", "line 3 gives q1 and p1 another score"),
    "nothing": ("", "has no judgments"),
}


@pytest.mark.parametrize("case", BAD_QRELS)
def test_damaged_judgments_are_named(folder: Path, case: str) -> None:
    lines, message = BAD_QRELS[case]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    with pytest.raises(InputError, match=message):
        read_suite(folder)


def test_judgments_of_another_set(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nz\tp1\t1\n")
    with pytest.raises(EmptyResultError, match="do questions and judgments belong to different benchmarks"):
        read_suite(folder)


def test_a_corpus_that_is_cut_off(folder: Path) -> None:
    (folder / "corpus.jsonl.gz").unlink()
    (folder / "corpus.jsonl").write_text('{"_id": "p1", "text": "A"}\n{"_id": "p2", "te')
    with pytest.raises(
        InputError, match="corpus.jsonl line 2 is not valid JSON; the file is damaged or half downloaded"
    ):
        read_suite(folder)
    (folder / "corpus.jsonl").write_text('{"id": "p1", "text": "A"}\n')
    with pytest.raises(InputError, match="corpus.jsonl line 1 has no '_id'"):
        read_suite(folder)


# --- summaries ---------------------------------------------------------------------------------------


@pytest.fixture
def summaries(tmp_path: Path) -> Path:
    """s3 repeats its own abstract; s4 and s5 are one work under two ids; s6 is of another split."""
    folder = tmp_path / "scitldr"
    folder.mkdir()
    abstract = "Nets learn slowly. We make nets fast, and show why."
    rows = [
        ("s1", "Nets", ["Speed for nets.", "How nets get fast."], "test"),
        ("s3", "Games", ["we  make nets FAST"], "test"),
        ("s4", "Twice told", ["Told in two places."], "test"),
        ("s5", "Twice  Told", ["A second telling."], "train"),
        ("s6", "Rest", ["Something else."], "dev"),
    ]
    records = [
        {"id": name, "title": title, "abstract": abstract, "tldr": texts, "split": split}
        for name, title, texts, split in rows
    ]
    write_lines(folder / "papers.jsonl", records)
    return folder


def test_a_summary_asks_for_its_paper(summaries: Path) -> None:
    suite = read_suite(summaries)
    task = search_of(suite)
    assert judged(task) == {"s1#1": {"s1": 1}, "s1#2": {"s1": 1}, "s4#1": {"s4": 1, "s5": 1}}
    assert [task.texts.ids[row] for row in task.candidates] == ["s1", "s3", "s4", "s5", "s6"]
    assert task.texts.titles[task.queries[0]] == "Speed for nets."
    assert set(suite.notes) == {
        "summaries left out, since they stand word for word in their paper: 1",
        "questions with several papers, the same work under other ids: 1",
    }
    assert list(judged(search_of(read_suite(summaries, split="dev")))) == ["s6#1"]
    with pytest.raises(InputError, match="has no split 'val'; it has dev, test, train"):
        read_suite(summaries, split="val")


def test_the_written_folder_asks_the_same(summaries: Path, tmp_path: Path) -> None:
    written = scitldr_to_beir(summaries, tmp_path / "beir")
    for split in ("dev", "test", "train"):
        direct, read = search_of(read_suite(summaries, split=split)), search_of(read_suite(written, split=split))
        assert direct.texts.hash == read.texts.hash
        assert judged(direct) == judged(read)


def test_no_question_stands_in_its_paper(shared: Path) -> None:
    folder = shared / "data" / "scitldr"
    if not folder.is_dir():
        pytest.skip(f"no SciTLDR at {folder}")
    suite = read_suite(folder)
    task = search_of(suite)
    assert (len(task.candidates), len(task.judgments)) == (3_229, 1_967 - 32)
    for number in range(0, len(task.judgments), 7):
        question = task.texts.titles[task.queries[number]]
        for pair in range(task.judgments.offsets[number], task.judgments.offsets[number + 1]):
            row = int(task.judgments.candidates[pair])
            assert normalize_words(question) not in normalize_words(
                task.texts.titles[row] + ". " + task.texts.abstracts[row]
            )


# --- graded lists ------------------------------------------------------------------------------------


def test_graded_lists_are_ordered_one_by_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "papers.jsonl", [{"id": "p1", "title": "A", "abstract": "B"}])
    lists = [
        {"query_text": "what", "candidates": ["p1", "p2"], "relevance": [1, 0]},
        {"query_text": "why", "candidates": ["p2"], "relevance": [0]},
    ]
    write_lines(tmp_path / "judgements.jsonl", lists)
    suite = read_suite(tmp_path)
    (task,) = suite.tasks
    assert isinstance(task, RankingTask)
    assert list(task.texts.ids) == ["p1", "p2", "query:1", "query:2"]
    assert task.pools.candidates.tolist() == [0, 1, 1] and task.pools.grades.tolist() == [1, 0, 0]
    assert "questions without relevant papers, which count as 0: 1" in suite.notes
    assert "papers without text, which only the lists name: 1" in suite.notes
    with pytest.raises(InputError, match="has no splits"):
        read_suite(tmp_path, split="dev")
    write_lines(tmp_path / "judgements.jsonl", [{**lists[0], "relevance": [1]}])
    with pytest.raises(InputError, match="record 1 has 2 candidates and 1 grades"):
        read_suite(tmp_path)


def test_the_samples_of_scirepeval(shared: Path) -> None:
    folder = shared / "data" / "scirepeval_samples"
    if not folder.is_dir():
        pytest.skip(f"no samples at {folder}")
    suite = read_suite(folder)
    assert (suite.data["queries"], suite.data["pairs"], suite.data["papers"]) == (100, 1_000, 1_000)


def test_another_benchmark_is_recognized(tmp_path: Path) -> None:
    write_lines(tmp_path / "judgements.jsonl", [{"query": "q", "facet": "method", "candidates": [], "relevance": []}])
    with pytest.raises(InputError, match="its judgements.jsonl belongs to csfcube; use --suite csfcube"):
        read_suite(tmp_path)
    (tmp_path / "judgements.jsonl").unlink()
    with pytest.raises(InputError, match="it needs corpus.jsonl, queries.jsonl and qrels/test.tsv"):
        read_suite(tmp_path)
