"""ASPIRE's form: RELISH's splits, what is relevant, files that do not fit together; and TRECCOVID-RF, which is built
from synthetic TREC-COVID files: positives, negatives, splits, and that draws follow the seed."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.evaluation.suites import aspire, treccovid_rf
from citeweave.evaluation.suites.treccovid_rf import RfOptions, build_treccovid_rf
from citeweave.evaluation.tasks import RankingTask

from ..conftest import grades_of, lines, refused, task_of, write_files

ABSTRACTS, POOLS, SPLITS = "abstracts-relish.jsonl", "test-pid2anns-relish.json", "relish-evaluation_splits.json"


@pytest.fixture
def folder(tmp_path) -> Path:
    names = ["a", "b", "c", "d", "q1", "q2", "q3", "q4", "unused"]
    files = {
        ABSTRACTS: [{"paper_id": name, "title": f"On {name}", "abstract": ["One. ", "Two."]} for name in names],
        POOLS: {
            "q1": {"cands": ["c", "b", "a"], "relevance_adju": [2, 1, 0]},
            "q2": {"cands": ["a", "b"], "relevance_adju": [1, 0]},
            "q3": {"cands": ["d", "a"], "relevance_adju": [2, 0]},
            "q4": {"cands": ["a"], "relevance_adju": [2]},
        },
        SPLITS: {"dev": ["q3"], "test": ["q1", "q2"]},
    }
    return write_files(tmp_path, files)


def test_the_test_split(folder):
    suite = aspire.read_suite(folder)
    task = task_of(suite)
    assert (suite.name, task.name, suite.headline) == ("relish", "relish", ("relish.map", "relish.ndcg%20"))
    found = grades_of(task)
    assert found == {"q1": {"a": 0, "b": 1, "c": 2}, "q2": {"a": 1, "b": 0}}
    assert [list(pool) for pool in found.values()] == [["a", "b", "c"], ["a", "b"]]
    assert (task.rule.relevant, task.rule.family, task.rule.distance) == (2, "csfcube", "l2")
    assert not task.folds
    assert suite.data["queries"] == 2 and suite.data["pairs"] == 5 and suite.data["split"] == "test"
    assert set(suite.data["files"]) == {ABSTRACTS, SPLITS, POOLS}
    assert sorted(task.texts.ids) == ["a", "b", "c", "q1", "q2"], "only papers that the split needs are held"
    assert task.texts.paper_texts()[0] == "On a[SEP]One. Two."
    assert list(task.texts.sentences_of(0)) == ["One. ", "Two."]
    assert sorted(suite.notes) == [
        "judged queries left out, since the splits file does not name them: 1",
        "queries without relevant papers, which count as 0: 1",
    ]
    (folder / ABSTRACTS).unlink()  # the pools are still there
    task = task_of(aspire.read_suite(folder))
    assert task.texts.lacking.endswith(ABSTRACTS) and grades_of(task) == found


def test_both_forms_of_the_splits_file(folder):
    lists = aspire.read_suite(folder, split="dev")
    write_files(folder, {SPLITS: {"q1": "test", "q2": "test", "q3": "dev"}})
    names = aspire.read_suite(folder, split="dev")
    assert task_of(lists).pools.names == task_of(names).pools.names == ["q3"]
    write_files(folder, {SPLITS: {"q1": "test", "q2": "training"}})
    refused("the split of query q2 is 'training'; it must be dev or test", aspire.read_suite, folder, error=InputError)
    write_files(folder, {SPLITS: {"test": ["q1", "q8", "q9"], "dev": ["q2", "q3", "q4"]}})
    assert "test queries of the splits file without candidates: 2" in aspire.read_suite(folder).notes
    write_files(folder, {SPLITS: {"test": ["q8"], "dev": []}})
    refused("no test query of relish has candidates", aspire.read_suite, folder, error=EmptyResultError)


def test_numbers_as_ids_and_abstracts_in_one_piece(folder):
    abstracts = [{"paper_id": paper, "title": None, "abstract": "Whole. In one."} for paper in (1, 2)]
    pools = {"1": {"cands": [2], "relevance_adju": [2.0]}}
    task = task_of(aspire.read_suite(write_files(folder, {ABSTRACTS: abstracts, POOLS: pools, SPLITS: {"test": [1]}})))
    assert list(task.texts.ids) == ["1", "2"] and task.pools.grades.tolist() == [2]
    assert list(task.texts.sentences_of(0)) == ["Whole.", "In one."]


TOPICS, SIZE = 6, 8
RELEVANT = {f"{topic}": [f"t{topic}d{number}" for number in range(SIZE)] for topic in range(1, TOPICS + 1)}
SHARED = "t1d0"
"""A paper that is relevant to the second topic too: never a query, a positive of both."""

NO_ABSTRACT = "t3d1"
JUDGMENTS = [(topic, paper, 2) for topic, papers in RELEVANT.items() for paper in papers]
JUDGMENTS += [("2", SHARED, 2), ("1", "partly", 1), ("1", "not", 0), ("1", "t2d1", 0), ("4", "unknown", 2)]
PAPERS = [
    (name, f"On {name}", "" if name == NO_ABSTRACT else f"We see {name}. It is so.")
    for name in [*(paper for topic in RELEVANT.values() for paper in topic), "partly", "not"]
]


@pytest.fixture
def cord(tmp_path) -> Path:
    """TREC-COVID's qrels and CORD-19's table, with its columns and a repeated line."""
    qrels = "".join(f"{topic} 4.5 {paper} {grade}\n" for topic, paper, grade in JUDGMENTS)
    folder = write_files(tmp_path / "cord", {"qrels-covid_d5_j0.5-5.txt": qrels})
    with (folder / "metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["cord_uid", "sha", "title", "abstract", "publish_time"])
        rows.writerows([name, "", title, abstract, "2020"] for name, title, abstract in PAPERS)
        rows.writerow(["t2d2", "", "Another title", "Another, long abstract. " + "x" * 200_000, "2021"])
    return folder


def pools_in(folder: Path) -> dict[str, dict[str, int]]:
    value = json.loads((folder / "test-pid2anns-treccovid.json").read_bytes())
    return {query: dict(zip(pool["cands"], pool["relevance_adju"], strict=True)) for query, pool in value.items()}


def content(folder: Path) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith(("abs", "test", "trec"))}


def test_positives_are_of_the_topic_and_negatives_of_the_others(cord, tmp_path):
    made = build_treccovid_rf(cord, tmp_path / "rf")
    texts = {name for name, _, abstract in PAPERS if abstract and name not in ("partly", "not")}
    pools = pools_in(tmp_path / "rf")
    assert set(pools) == texts - {SHARED}, "each paper of one topic alone is a query, since a topic has fewer than 50"
    of_topic = {topic: {name for name in names if name in texts} for topic, names in RELEVANT.items()}
    of_topic["2"].add(SHARED)
    for query, pool in pools.items():
        (mine,) = [names for topic, names in of_topic.items() if query in names and query != SHARED]
        assert {name for name, grade in pool.items() if grade} == mine - {query}
        assert set(pool) == texts - {query}
        assert list(pool) == sorted(pool), "what is relevant does not come first"
    assert made.papers == len(texts) == TOPICS * SIZE - 1
    assert (made.topics, made.without_text, made.pairs) == (TOPICS, 2, sum(map(len, pools.values())))
    # no topic is in both splits
    parts = json.loads((tmp_path / "rf/treccovid-evaluation_splits.json").read_bytes())
    topics = {split: {query[:2] for query, part in parts.items() if part == split} for split in ("dev", "test")}
    assert len(topics["dev"]) == len(topics["test"]) == TOPICS // 2 and not topics["dev"] & topics["test"]
    assert made.queries == {split: list(parts.values()).count(split) for split in ("dev", "test")}
    seen: set[str] = set()
    for split in ("dev", "test"):
        suite = treccovid_rf.read_suite(tmp_path / "rf", split=split)
        task = task_of(suite)
        assert isinstance(task, RankingTask) and task.name == "treccovid_rf" and not suite.notes
        assert (task.rule.relevant, task.rule.distance, task.texts.without_text) == (1, "l2", 0)
        assert [f"t{topic}" for topic in task.pools.groups or ()] == [name[:2] for name in task.pools.names]
        assert list(task.texts.sentences_of(0)) == [f"We see {task.texts.ids[0]}.", "It is so."]
        seen |= set(task.pools.names)
    assert seen == set(pools)


def test_both_sources_give_the_same_files_and_draws_follow_the_seed(cord, tmp_path):
    corpus = lines({"_id": name, "title": title, "text": text, "metadata": {}} for name, title, text in PAPERS)
    qrels = "".join(f"{topic}\t{paper}\t{grade}\n" for topic, paper, grade in JUDGMENTS)
    header = "query-id\tcorpus-id\tscore\n"
    files = {"qrels/test.tsv": header + qrels, "corpus.jsonl.gz": gzip.compress(corpus.encode())}
    build_treccovid_rf(cord, tmp_path / "full")
    build_treccovid_rf(write_files(tmp_path / "trec-covid", files), tmp_path / "other")
    assert content(tmp_path / "full") == content(tmp_path / "other")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build_treccovid_rf(cord, tmp_path / name, RfOptions(seed=seed, queries=3, negatives=5))
    one, other = content(tmp_path / "a"), content(tmp_path / "c")
    assert one == content(tmp_path / "b")
    assert one["test-pid2anns-treccovid.json"] != other["test-pid2anns-treccovid.json"]
    pools, full = pools_in(tmp_path / "a"), pools_in(tmp_path / "full")
    assert len(pools) == 3 * TOPICS
    for query, pool in pools.items():
        grades = np.array(list(pool.values()))
        assert (grades == 0).sum() == 5
        assert grades.sum() == sum(full[query].values()), "positives are never drawn"
        assert pool.items() <= full[query].items()
    refused("choose another -o or --overwrite", build_treccovid_rf, cord, tmp_path / "full", RfOptions(seed=1))
    build_treccovid_rf(cord, tmp_path / "full", RfOptions(seed=1), overwrite=True)


def test_missing_and_foreign_files_are_named(cord, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file with TREC-COVID's judgments, such as qrels-covid_d5_j0.5-5.txt"):
        build_treccovid_rf(tmp_path / "empty", tmp_path / "rf")
    write_files(cord, {"qrels-other.txt": "1 0 a 2\n"})
    with pytest.raises(InputError, match="qrels-covid_d5_j0.5-5.txt, qrels-other.txt; keep one"):
        build_treccovid_rf(cord, tmp_path / "rf")
    write_files(cord, {"qrels-other.txt": None, "metadata.csv": "id,title,abstract\n"})
    with pytest.raises(InputError, match="metadata.csv has no column 'cord_uid'; is this CORD-19's metadata"):
        build_treccovid_rf(cord, tmp_path / "rf")
    write_files(cord, {"metadata.csv": "cord_uid,title,abstract\nz1,A,B\n"})
    refused("do the files belong together", build_treccovid_rf, cord, tmp_path / "rf", error=EmptyResultError)
    assert not (tmp_path / "rf").exists()
