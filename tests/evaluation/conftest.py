"""A tiny folder of every suite, all about the same twenty papers, and vectors of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAPERS = [f"p{number:02d}" for number in range(20)]
FACETS = ("background", "method", "result")


def lines(records: Iterable[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def topic(paper: str) -> int:
    """Papers are of two topics in turn."""
    return int(paper[1:]) % 2


def judged_pools() -> dict[str, dict[str, list[Any]]]:
    """ASPIRE's form: three queries over six candidates each; those of the query's topic are relevant."""
    return {
        query: {
            "cands": PAPERS[6:12],
            "relevance_adju": [2 if topic(each) == topic(query) else 0 for each in PAPERS[6:12]],
        }
        for query in PAPERS[:3]
    }


def labeled(papers: Iterable[str], first: str = "pid,class_label") -> str:
    return f"{first}\n" + "".join(f"{paper},{topic(paper)}\n" for paper in papers)


def scidocs() -> dict[str, str]:
    qrel = "".join(
        f"{query} 0 {each} {int(topic(each) == topic(query))}\n" for query in PAPERS[:3] for each in PAPERS[6:12]
    )
    papers = {paper: {"title": f"Title of {paper}", "abstract": f"About topic {topic(paper)}."} for paper in PAPERS}
    return {
        "mag/train.csv": labeled(PAPERS[:12]),
        "mag/test.csv": labeled(PAPERS[12:]),
        "cite/test.qrel": qrel,
        "cocite/test.qrel": qrel,
        "paper_metadata_mag_mesh.json": json.dumps(papers),
        "paper_metadata_view_cite_read.json": json.dumps(papers),
    }


def scirepeval() -> dict[str, str]:
    data = {"meta": "papers.jsonl", "test": "topics"}
    task = {"name": "Topics", "type": "classification", "metrics": ["f1"], "data": data}
    return {
        "scirepeval_tasks.jsonl": lines([{**task, "few_shot": [{"sample_size": 6, "iterations": 2}]}]),
        "topics/train.csv": labeled(PAPERS[:12], "paper_id,label"),
        "topics/test.csv": labeled(PAPERS[12:], "paper_id,label"),
        "papers.jsonl": lines({"doc_id": paper, "title": f"Title of {paper}", "abstract": ""} for paper in PAPERS),
    }


def aspire(name: str, splits: str) -> dict[str, str]:
    abstracts = ({"paper_id": paper, "title": f"On {paper}", "abstract": ["One.", "Two."]} for paper in PAPERS)
    return {
        f"abstracts-{name}.jsonl": lines(abstracts),
        f"test-pid2anns-{name}.json": json.dumps(judged_pools()),
        splits: json.dumps({"dev": PAPERS[:1], "test": PAPERS[1:3]}),
    }


def csfcube() -> dict[str, str]:
    labels = ["background_label", "method_label", "result_label"]
    abstracts = (
        {"paper_id": paper, "title": f"On {paper}", "abstract": ["One.", "Two.", "Three."], "pred_labels": labels}
        for paper in PAPERS
    )
    folds = {
        facet: {
            "fold1_dev": [f"p00_{facet}"],
            "fold2_dev": [f"p01_{facet}", f"p02_{facet}"],
            "fold1_test": [f"p01_{facet}", f"p02_{facet}"],
            "fold2_test": [f"p00_{facet}"],
        }
        for facet in FACETS
    }
    return {
        "abstracts-csfcube-preds.jsonl": lines(abstracts),
        "evaluation_splits.json": json.dumps(folds),
        **{f"test-pid2anns-csfcube-{facet}.json": json.dumps(judged_pools()) for facet in FACETS},
    }


def beir() -> dict[str, str]:
    return {
        "corpus.jsonl": lines({"_id": paper, "title": f"Title of {paper}", "text": "text"} for paper in PAPERS),
        "queries.jsonl": lines({"_id": f"q{number}", "text": f"title {PAPERS[number]}"} for number in range(4)),
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\t{PAPERS[at]}\t1\n" for at in range(4)),
    }


def reviewers() -> dict[str, str]:
    pairs = [
        {"query_id": query, "cand_id": person, "score": int(query == "p00" and person == "r1")}
        for query in PAPERS[:2]
        for person in ("r1", "r2")
    ]
    return {
        "reviewer_metadata.jsonl": lines(
            [{"r_id": "r1", "papers": PAPERS[4:6]}, {"r_id": "r2", "papers": PAPERS[6:8]}]
        ),
        "test_hard_qrel.jsonl": lines(pairs),
        "test_soft_qrel.jsonl": lines(pairs),
    }


def mdcr() -> dict[str, str]:
    lists = {query: {"bm25": PAPERS[6:9], "true": PAPERS[9:12]} for query in PAPERS[:3]}
    papers = ({"paper_id": paper, "title": f"Title of {paper}", "abstract": ""} for paper in PAPERS)
    return {"mdcr_test.json": json.dumps({"Art": lists, "Biology": lists}), "mdcr_test_data.jsonl": lines(papers)}


FOLDERS = {
    "scidocs": scidocs(),
    "scirepeval": scirepeval(),
    "mdcr": mdcr(),
    "csfcube": csfcube(),
    "relish": aspire("relish", "relish-evaluation_splits.json"),
    "treccovid_rf": aspire("treccovid", "treccovid-evaluation_splits.json"),
    "beir": beir(),
    "reviewers": reviewers(),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Suite -> its folder; not to be written to."""
    root = tmp_path_factory.mktemp("suites")
    for suite, files in FOLDERS.items():
        for name, text in files.items():
            path = root / suite / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return {suite: root / suite for suite in FOLDERS}


@pytest.fixture(scope="session")
def vectors() -> dict[str, list[float]]:
    """A vector of every paper: its topic, and some noise."""
    rng = np.random.default_rng(5)
    return {paper: [topic(paper), 1 - topic(paper), *rng.normal(0, 0.3, 4).round(3).tolist()] for paper in PAPERS}
