"""Search benchmarks: BEIR folders, SciTLDR's summaries and graded lists, with what is odd in them counted."""

import gzip
from pathlib import Path

import pytest

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.evaluation.suites.beir import normalize_words, read_suite, scitldr_to_beir
from citeweave.evaluation.tasks import RankingTask, SearchTask

from ..conftest import grades_of, lines, refused, task_of, write_files

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """q2 has nothing relevant, q3's paper is not in the corpus, q9 has no text, q4 is not judged."""
    corpus = [{"_id": f"p{number}", "title": f"Title {number}", "text": f"Text {number}."} for number in range(1, 4)]
    files = {
        "corpus.jsonl.gz": gzip.compress(lines(corpus).encode()),
        "queries.jsonl": [{"_id": f"q{number}", "text": f"ask {number}"} for number in range(1, 5)],
        "qrels/test.tsv": f"{HEADER}q1\tp1\t2\nq1\tp2\t0\nq2\tp2\t0\nq3\tlost\t1\nq9\tp1\t1\n",
    }
    return write_files(tmp_path, files)


def test_a_folder_of_beir(folder):
    suite = read_suite(folder)
    task = task_of(suite)
    assert isinstance(task, SearchTask)
    assert grades_of(task) == {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 0}, "q3": {"lost": 1}}
    assert [task.texts.ids[row] for row in task.candidates] == ["p1", "p2", "p3"], "what the corpus lacks is not there"
    assert [task.texts.titles[row] for row in task.queries] == ["ask 1", "ask 2", "ask 3"]
    assert task.texts.paper_texts()[:2] == ["Title 1[SEP]Text 1.", "Title 2[SEP]Text 2."]
    assert task.queries.tolist() == task.judgments.queries.tolist()
    assert (task.name, task.rule.family, task.depth) == ("search", "trec", 1000)
    assert suite.headline == ("search.ndcg_cut_10",) and task.rule.metrics[0] == "ndcg_cut_10"
    assert (suite.data["papers"], suite.data["queries"], suite.data["pairs"]) == (3, 3, 4)
    assert suite.notes == (
        "judged questions left out, since their text is missing: 1",
        "questions without relevant papers, which count as 0: 1",
        "judged papers that the corpus lacks, which cannot be found: 1",
    )
    with pytest.raises(InputError, match=r"qrels/dev.tsv is missing; the folder has the splits test: use --split"):
        read_suite(folder, split="dev")
    write_files(folder, {"qrels/test.tsv": f"{HEADER}z\tp1\t1\n"})
    refused("do questions and judgments belong to different benchmarks", read_suite, folder, error=EmptyResultError)


def test_questions_with_the_id_of_a_paper_get_rows_of_their_own(folder):
    questions = [{"_id": "p1", "text": "ask 1"}, {"_id": "q2", "text": "ask 2"}]
    write_files(folder, {"queries.jsonl": questions, "qrels/test.tsv": f"{HEADER}p1\tp1\t1\nq2\tp2\t1\n"})
    suite = read_suite(folder)
    task = task_of(suite)
    assert list(task.texts.ids) == ["p1", "p2", "p3", "query:p1", "query:q2"]
    assert grades_of(task) == {"p1": {"p1": 1}, "q2": {"p2": 1}}
    assert task.queries.tolist() == [3, 4]
    assert suite.notes == ("questions with the id of a paper: 1",)


def test_a_summary_asks_for_its_paper(tmp_path):
    """s3 repeats its own abstract; s4 and s5 are one work under two ids; s6 is of another split."""
    rows = [
        ("s1", "Nets", ["Speed for nets.", "How nets get fast."], "test"),
        ("s3", "Games", ["we  make nets FAST"], "test"),
        ("s4", "Twice told", ["Told in two places."], "test"),
        ("s5", "Twice  Told", ["A second telling."], "train"),
        ("s6", "Rest", ["Something else."], "dev"),
    ]
    fixed = {"abstract": "Nets learn slowly. We make nets fast, and show why."}
    records = [{"id": row[0], "title": row[1], "tldr": row[2], "split": row[3], **fixed} for row in rows]
    summaries = write_files(tmp_path / "scitldr", {"papers.jsonl": records})
    suite = read_suite(summaries)
    task = task_of(suite)
    assert grades_of(task) == {"s1#1": {"s1": 1}, "s1#2": {"s1": 1}, "s4#1": {"s4": 1, "s5": 1}}
    assert [task.texts.ids[row] for row in task.candidates] == ["s1", "s3", "s4", "s5", "s6"]
    assert task.texts.titles[task.queries[0]] == "Speed for nets."
    assert set(suite.notes) == {
        "summaries left out, since they stand word for word in their paper: 1",
        "questions with several papers, the same work under other ids: 1",
    }
    assert list(grades_of(task_of(read_suite(summaries, split="dev")))) == ["s6#1"]
    refused("has no split 'val'; it has dev, test, train", read_suite, summaries, split="val", error=InputError)
    written = scitldr_to_beir(summaries, tmp_path / "beir")  # the written folder asks the same
    for split in ("dev", "test", "train"):
        direct, read = (task_of(read_suite(place, split=split)) for place in (summaries, written))
        assert direct.texts.hash == read.texts.hash and grades_of(direct) == grades_of(read)


def test_graded_lists_are_ordered_one_by_one(tmp_path):
    first = {"query_text": "what", "candidates": ["p1", "p2"], "relevance": [1, 0]}
    lists = [first, {"query_text": "why", "candidates": ["p2"], "relevance": [0]}]
    paper = {"id": "p1", "title": "A", "abstract": "B"}
    suite = read_suite(write_files(tmp_path, {"papers.jsonl": [paper], "judgements.jsonl": lists}))
    task = task_of(suite)
    assert isinstance(task, RankingTask) and list(task.texts.ids) == ["p1", "p2", "query:1", "query:2"]
    assert task.pools.candidates.tolist() == [0, 1, 1] and task.pools.grades.tolist() == [1, 0, 0]
    assert "questions without relevant papers, which count as 0: 1" in suite.notes
    assert "papers without text, which only the lists name: 1" in suite.notes
    refused("has no splits", read_suite, tmp_path, split="dev", error=InputError)
    write_files(tmp_path, {"judgements.jsonl": [{**first, "relevance": [1]}]})
    refused("record 1 has 2 candidates and 1 grades", read_suite, tmp_path, error=InputError)
    foreign = {"query": "q", "facet": "method", "candidates": [], "relevance": []}
    write_files(tmp_path, {"papers.jsonl": None, "judgements.jsonl": [foreign]})
    refused("its judgements.jsonl belongs to csfcube; use --suite csfcube", read_suite, tmp_path, error=InputError)
    write_files(tmp_path, {"judgements.jsonl": None})
    refused("it needs corpus.jsonl, queries.jsonl and qrels/test.tsv", read_suite, tmp_path, error=InputError)


def test_real_data(shared):
    folders = shared / "data/scitldr", shared / "data/scirepeval_samples"
    if not all(folder.is_dir() for folder in folders):
        pytest.skip(f"{folders} are not here")
    task = task_of(read_suite(folders[0]))
    assert (len(task.candidates), len(task.judgments)) == (3_229, 1_967 - 32)
    for number in range(0, len(task.judgments), 7):
        question = normalize_words(task.texts.titles[task.queries[number]])
        for row in task.judgments.candidates[slice(*task.judgments.offsets[number : number + 2])].tolist():
            text = normalize_words(task.texts.titles[row] + ". " + task.texts.abstracts[row])
            assert question not in text, "no question stands in its paper"
    suite = read_suite(folders[1])
    assert (suite.data["queries"], suite.data["pairs"], suite.data["papers"]) == (100, 1_000, 1_000)
