"""A tiny folder of every suite, all about the same twenty papers, vectors of them, and what tests of suites share."""

import json
import shutil
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.encoders.aspects import AspectHeads, save_heads

from ..cli.conftest import cli as cli
from ..conftest import VOCABULARY
from ..conftest import corpus_of as corpus_of
from ..conftest import refused as refused

PAPERS = [f"p{number:02d}" for number in range(20)]
FACETS = ("background", "method", "result")
LABELS = [f"{facet}_label" for facet in FACETS]


def lines(records: Iterable[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_files(folder: Path, files: Mapping[str, Any]) -> Path:
    """Text and bytes as they are, other values as JSON, lists in .jsonl one per line; None removes, (old, new) changes."""
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if value is None:
            path.unlink(missing_ok=True)
        elif isinstance(value, bytes):
            path.write_bytes(value)
        elif isinstance(value, tuple):
            assert value[0] in path.read_text()
            path.write_text(path.read_text().replace(*value))
        elif isinstance(value, str):
            path.write_text(value)
        else:
            path.write_text(lines(value) if name.endswith(".jsonl") else json.dumps(value))
    return folder


def task_of(suite: Any, name: str = "") -> Any:
    """The task of this name, or the only one."""
    (task,) = [task for task in suite.tasks if name in ("", task.name)]
    return task


def grades_of(task: Any) -> dict[str, dict[str, int]]:
    """Back to the form of the files: query -> candidate -> grade, in the order of the pools."""
    pools = getattr(task, "judgments", None) or task.pools
    pairs = [(task.texts.ids[row], grade) for row, grade in zip(pools.candidates, pools.grades.tolist(), strict=True)]
    found = {name: dict(pairs[slice(*pools.offsets[at : at + 2])]) for at, name in enumerate(pools.names)}
    assert sum(map(len, found.values())) == len(pairs), "no candidate stands twice in a pool"
    return found


def topic(paper: str) -> int:
    """Papers are of two topics in turn."""
    return int(paper[1:]) % 2


def labeled(papers: Iterable[str], first: str = "pid,class_label") -> str:
    return f"{first}\n" + "".join(f"{paper},{topic(paper)}\n" for paper in papers)


# three queries over six candidates each; those of the query's topic are relevant
GRADES = {query: {each: int(topic(each) == topic(query)) for each in PAPERS[6:12]} for query in PAPERS[:3]}
POOLS = {q: {"cands": [*own], "relevance_adju": [2 * grade for grade in own.values()]} for q, own in GRADES.items()}
QREL = "".join(f"{query} 0 {each} {grade}\n" for query, grades in GRADES.items() for each, grade in grades.items())
TEXTS = {paper: {"title": f"Title of {paper}", "abstract": f"About topic {topic(paper)}."} for paper in PAPERS}
TOPICS: dict[str, Any] = {"name": "Topics", "type": "classification", "metrics": ["f1"]}
TOPICS |= {"data": {"meta": "papers.jsonl", "test": "topics"}, "few_shot": [{"sample_size": 6, "iterations": 2}]}
SCORES = {("p00", "r1"): 1, ("p00", "r2"): 0, ("p01", "r1"): 0, ("p01", "r2"): 0}
PAIRS = [{"query_id": query, "cand_id": person, "score": score} for (query, person), score in SCORES.items()]
LISTS = {query: {"bm25": PAPERS[6:9], "true": PAPERS[9:12]} for query in PAPERS[:3]}


_DRAW = np.random.default_rng(1)


def sentences(count: int) -> list[str]:
    """Of words that small models know and can tell apart."""
    return [" ".join(_DRAW.choice(VOCABULARY.split(), 6)) for _ in range(count)]


def folds(facet: str) -> dict[str, list[str]]:
    first, second = [f"p00_{facet}"], [f"p01_{facet}", f"p02_{facet}"]
    return {"fold1_dev": first, "fold2_dev": second, "fold1_test": second, "fold2_test": first}


def aspire(name: str) -> dict[str, Any]:
    """With titles that must not become markup."""
    papers = [
        {"paper_id": paper, "title": f"On {paper} </title><script>", "abstract": sentences(1 + at % 4)}
        for at, paper in enumerate(PAPERS)
    ]
    return {
        f"abstracts-{name}.jsonl": papers,
        f"test-pid2anns-{name}.json": POOLS,
        f"{name}-evaluation_splits.json": {"dev": PAPERS[:1], "test": PAPERS[1:3]},
    }


FOLDERS: dict[str, dict[str, Any]] = {
    "scidocs": {
        "mag/train.csv": labeled(PAPERS[:12]),
        "mag/test.csv": labeled(PAPERS[12:]),
        "cite/test.qrel": QREL,
        "cocite/test.qrel": QREL,
        "paper_metadata_mag_mesh.json": TEXTS,
        "paper_metadata_view_cite_read.json": TEXTS,
    },
    "scirepeval": {
        "scirepeval_tasks.jsonl": [TOPICS],
        "topics/train.csv": labeled(PAPERS[:12], "paper_id,label"),
        "topics/test.csv": labeled(PAPERS[12:], "paper_id,label"),
        "papers.jsonl": [{"doc_id": paper, "title": f"Title of {paper}", "abstract": ""} for paper in PAPERS],
    },
    "mdcr": {
        "mdcr_test.json": {"Art": LISTS, "Biology": LISTS},
        "mdcr_test_data.jsonl": [{"paper_id": p, "title": f"Title of {p}", "abstract": ""} for p in PAPERS],
    },
    "csfcube": {
        "abstracts-csfcube-preds.jsonl": [
            {"paper_id": p, "title": f"On {p}", "abstract": sentences(3), "pred_labels": LABELS} for p in PAPERS
        ],
        "evaluation_splits.json": {facet: folds(facet) for facet in FACETS},
        **{f"test-pid2anns-csfcube-{facet}.json": POOLS for facet in FACETS},
    },
    "relish": aspire("relish"),
    "treccovid_rf": aspire("treccovid"),
    "beir": {
        "corpus.jsonl": [{"_id": paper, "title": f"Title of {paper}", "text": "text"} for paper in PAPERS],
        "queries.jsonl": [{"_id": f"q{at}", "text": f"title {PAPERS[at]}"} for at in range(4)],
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\t{PAPERS[at]}\t1\n" for at in range(4)),
    },
    "reviewers": {
        "reviewer_metadata.jsonl": [{"r_id": "r1", "papers": PAPERS[4:6]}, {"r_id": "r2", "papers": PAPERS[6:8]}],
        "test_hard_qrel.jsonl": PAIRS,
        "test_soft_qrel.jsonl": PAIRS,
    },
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Suite -> its folder; not to be written to."""
    root = tmp_path_factory.mktemp("suites")
    return {suite: write_files(root / suite, files) for suite, files in FOLDERS.items()}


@pytest.fixture(scope="session")
def vectors() -> dict[str, list[float]]:
    """A vector of every paper: its topic, and some noise."""
    rng = np.random.default_rng(5)
    return {paper: [topic(paper), 1 - topic(paper), *rng.normal(0, 0.3, 4).round(3).tolist()] for paper in PAPERS}


@pytest.fixture(scope="session")
def aspect_model(bert, tmp_path_factory) -> Path:
    """A small model with a head for every facet."""
    folder, draw = shutil.copytree(bert, tmp_path_factory.mktemp("aspects") / "model"), np.random.default_rng(0)
    layers = {name: ((draw.normal(size=(8, 32)).astype("f4"), draw.normal(size=8).astype("f4")),) for name in FACETS}
    save_heads(folder, AspectHeads(FACETS, layers))
    return folder


HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"quotes\" and 'single' & <b onmouseover=alert(1)>",
    "<!-- line\u2028 and\u2029 paragraph \u202e\n turned -->",
    "\U0001f468\u200d\U0001f52c emoji \ud800 lone",
    "a very long title " * 40,
]
VOID = {"meta", "br", "input", "img", "hr", "link"}


class Page(HTMLParser):
    """Fails on tags that do not match; keeps elements, texts, attributes, and scripts by their id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.tags, self.texts, self.scripts = list[str](), list[str](), list[str](), dict[str, str]()
        self.attributes: list[tuple[str, str, str]] = []
        page.encode()
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._id = dict(attrs).get("id") or "code"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] == "script":
            self.scripts[self._id] = self.scripts.get(self._id, "") + data
