"""TRECCOVID-RF, built from made-up TREC-COVID files: positives, negatives, splits, and that draws follow the seed."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.evaluation.suites.treccovid_rf import RfOptions, build_treccovid_rf, read_suite
from citeweave.evaluation.tasks import RankingTask

TOPICS = 6
SIZE = 8
RELEVANT = {f"{topic}": [f"t{topic}d{number}" for number in range(SIZE)] for topic in range(1, TOPICS + 1)}
SHARED = "t1d0"
"""A paper that is relevant to the second topic too: never a query, a positive of both."""

NO_ABSTRACT = "t3d1"


def judgments() -> list[tuple[str, str, int]]:
    rows = [(topic, paper, 2) for topic, papers in RELEVANT.items() for paper in papers]
    rows += [("2", SHARED, 2), ("1", "partly", 1), ("1", "not", 0), ("1", "t2d1", 0), ("4", "unknown", 2)]
    return rows


def papers() -> list[tuple[str, str, str]]:
    names = [*(paper for topic in RELEVANT.values() for paper in topic), "partly", "not"]
    return [(name, f"On {name}", "" if name == NO_ABSTRACT else f"We see {name}. It is so.") for name in names]


@pytest.fixture
def cord(tmp_path: Path) -> Path:
    """TREC-COVID's qrels and CORD-19's table, with its columns and a repeated line."""
    folder = tmp_path / "cord"
    folder.mkdir()
    lines = [f"{topic} 4.5 {paper} {grade}\n" for topic, paper, grade in judgments()]
    (folder / "qrels-covid_d5_j0.5-5.txt").write_text("".join(lines))
    with (folder / "metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["cord_uid", "sha", "title", "abstract", "publish_time"])
        rows.writerows([name, "", title, abstract, "2020"] for name, title, abstract in papers())
        rows.writerow(["t2d2", "", "Another title", "Another, long abstract. " + "x" * 200_000, "2021"])
    return folder


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """The same in BEIR's form, corpus compressed."""
    folder = tmp_path / "trec-covid"
    (folder / "qrels").mkdir(parents=True)
    lines = "".join(f"{topic}\t{paper}\t{grade}\n" for topic, paper, grade in judgments())
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        for name, title, abstract in papers():
            file.write(json.dumps({"_id": name, "title": title, "text": abstract, "metadata": {}}) + "\n")
    return folder


def pools_in(folder: Path) -> dict[str, dict[str, int]]:
    value = json.loads((folder / "test-pid2anns-treccovid.json").read_bytes())
    return {query: dict(zip(pool["cands"], pool["relevance_adju"], strict=True)) for query, pool in value.items()}


def content(folder: Path) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith(("abs", "test", "trec"))}


def test_positives_are_the_topic_and_negatives_the_others(cord: Path, tmp_path: Path) -> None:
    made = build_treccovid_rf(cord, tmp_path / "rf")
    texts = {name for name, _, abstract in papers() if abstract and name not in ("partly", "not")}
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
    assert (made.topics, made.without_text) == (TOPICS, 2)
    assert made.pairs == sum(map(len, pools.values()))


def test_no_topic_is_in_both_splits(cord: Path, tmp_path: Path) -> None:
    made = build_treccovid_rf(cord, tmp_path / "rf")
    parts = json.loads((tmp_path / "rf" / "treccovid-evaluation_splits.json").read_bytes())
    topics = {split: {query[:2] for query, part in parts.items() if part == split} for split in ("dev", "test")}
    assert len(topics["dev"]) == len(topics["test"]) == TOPICS // 2
    assert not topics["dev"] & topics["test"]
    assert made.queries == {split: list(parts.values()).count(split) for split in ("dev", "test")}


def test_the_suite_reads_what_was_built(cord: Path, tmp_path: Path) -> None:
    build_treccovid_rf(cord, tmp_path / "rf")
    seen: set[str] = set()
    for split in ("dev", "test"):
        suite = read_suite(tmp_path / "rf", split=split)
        (task,) = suite.tasks
        assert isinstance(task, RankingTask) and task.name == "treccovid_rf"
        assert (task.rule.relevant, task.rule.distance) == (1, "l2")
        assert not suite.notes
        assert task.pools.groups is not None
        assert [f"t{topic}" for topic in task.pools.groups] == [name[:2] for name in task.pools.names]
        assert task.texts.without_text == 0
        assert list(task.texts.sentences_of(0)) == [f"We see {task.texts.ids[0]}.", "It is so."]
        seen |= set(task.pools.names)
    assert seen == set(pools_in(tmp_path / "rf"))


def test_both_sources_give_the_same_files(cord: Path, beir: Path, tmp_path: Path) -> None:
    build_treccovid_rf(cord, tmp_path / "one")
    build_treccovid_rf(beir, tmp_path / "other")
    assert content(tmp_path / "one") == content(tmp_path / "other")


def test_draws_follow_the_seed(cord: Path, tmp_path: Path) -> None:
    few = {seed: RfOptions(seed=seed, queries=3, negatives=5) for seed in (0, 1)}
    build_treccovid_rf(cord, tmp_path / "a", few[0])
    build_treccovid_rf(cord, tmp_path / "b", few[0])
    build_treccovid_rf(cord, tmp_path / "c", few[1])
    one, other = content(tmp_path / "a"), content(tmp_path / "c")
    assert one == content(tmp_path / "b")
    assert one["test-pid2anns-treccovid.json"] != other["test-pid2anns-treccovid.json"]
    pools = pools_in(tmp_path / "a")
    assert len(pools) == 3 * TOPICS
    full = pools_in_full(cord, tmp_path)
    for query, pool in pools.items():
        grades = np.array(list(pool.values()))
        assert (grades == 0).sum() == 5
        assert grades.sum() == sum(full[query].values()), "positives are never drawn"
        assert pool.items() <= full[query].items()


def pools_in_full(source: Path, tmp_path: Path) -> dict[str, dict[str, int]]:
    build_treccovid_rf(source, tmp_path / "full")
    return pools_in(tmp_path / "full")


def test_a_finished_folder_is_not_written_over(cord: Path, tmp_path: Path) -> None:
    build_treccovid_rf(cord, tmp_path / "rf")
    with pytest.raises(UserError, match="choose another -o or --overwrite"):
        build_treccovid_rf(cord, tmp_path / "rf", RfOptions(seed=1))
    build_treccovid_rf(cord, tmp_path / "rf", RfOptions(seed=1), overwrite=True)


def test_missing_and_foreign_files_are_named(cord: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file with TREC-COVID's judgments, such as qrels-covid_d5_j0.5-5.txt"):
        build_treccovid_rf(tmp_path / "empty", tmp_path / "rf")
    (cord / "qrels-other.txt").write_text("1 0 a 2\n")
    with pytest.raises(InputError, match="qrels-covid_d5_j0.5-5.txt, qrels-other.txt; keep one"):
        build_treccovid_rf(cord, tmp_path / "rf")
    (cord / "qrels-other.txt").unlink()
    (cord / "metadata.csv").write_text("id,title,abstract\n")
    with pytest.raises(InputError, match="metadata.csv has no column 'cord_uid'; is this CORD-19's metadata"):
        build_treccovid_rf(cord, tmp_path / "rf")
    (cord / "metadata.csv").write_text("cord_uid,title,abstract\nz1,A,B\n")
    with pytest.raises(EmptyResultError, match="do the files belong together"):
        build_treccovid_rf(cord, tmp_path / "rf")
    assert not (tmp_path / "rf").exists()


def test_the_suite_names_the_builder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="build_treccovid_rf writes them from TREC-COVID's files"):
        read_suite(tmp_path)
