"""The articles in examples/ are sound, and the demo's functions work on a share of them."""

import gzip
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from citeweave import import_papers, load_recipe
from citeweave.pipeline.recipe import read_recipe

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ELIFE = EXAMPLES / "elife"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(ELIFE / name, "rt", encoding="utf-8") as opened:
        return [json.loads(line) for line in opened]


def test_articles_import_without_rejects(tmp_path):
    imported = import_papers(
        [ELIFE / f"{name}.gz" for name in ("papers.jsonl", "citations.tsv", "contexts.jsonl")], tmp_path / "corpus"
    )
    corpus, records = imported.corpus, imported.corpus.manifest.facts["records"]
    assert {kind: (found["read"], found["kept"]) for kind, found in records.items() if found["read"]} == {
        "papers": (2000, 2000),
        "citations": (4637, 4637),
        "contexts": (10203, 10203),
    }
    assert corpus.row("doi:10.7554/elife.00013") == corpus.row("elife:00013")
    assert max(corpus.years) <= 2023


def test_articles_are_attributed_and_small():
    assert sum(path.stat().st_size for path in ELIFE.iterdir()) < 3_000_000
    page = (ELIFE / "README.md").read_text()
    assert "eLife" in page and "https://creativecommons.org/licenses/by/4.0/" in page and "https://doi.org/" in page
    papers = lines("papers.jsonl.gz")
    assert all(paper["doi"] == f"10.7554/eLife.{paper['id'].removeprefix('elife:')}" for paper in papers)
    subjects = Counter(paper["subjects"][0] for paper in papers)
    assert dict(re.findall(r"^\| ([A-Z][\w ]+) \| (\d+) \|$", page, re.MULTILINE)) == {
        name: str(count) for name, count in subjects.items()
    }
    assert subjects == load("elife_papers").SUBJECTS


def test_a_dense_share_is_chosen():
    chooser = load("elife_papers")
    chooser.SUBJECTS = {"Ecology": 3}
    papers = {id: {"field": "Ecology"} for id in "abcde"}
    edges = [("b", "a", "1"), ("c", "a", "1"), ("c", "b", "2"), ("d", "c", "0"), ("e", "d", "1")]
    assert chooser.choose(papers, edges) == {"a", "b", "c"}


def test_the_recipe_of_the_demo_trains_one_layer():
    options = read_recipe(load_recipe(str(EXAMPLES / "one_layer.toml")))
    assert options.training is not None and options.training.parts == "heads"


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1 and "was not made by `make demo`" in ran.stderr
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["notes.txt"]


def test_story(tmp_path, capsys):
    demo = load("demo")
    demo.begin_folder(tmp_path / "demo")
    demo.begin_folder(tmp_path / "demo")  # its own folder is taken again
    story = demo.Story(tmp_path / "demo")
    story.title("A story")
    assert "specter" in story.run("citeweave recipes")
    with pytest.raises(SystemExit, match=r"nowhere.*\nerror: .*\nSee .*log.txt"):
        story.run("citeweave info nowhere")
    difference = {
        "first": "before",
        "second": "after",
        "metric": "cite.map",
        "low": -3.0,
        "high": -1.0,
        "significant": True,
    }
    rows = demo.scores(
        {"values": {"before": {"cite.map": 90.0}, "after": {"cite.map": 92.0}}, "differences": [difference]}
    )
    assert [(row.before, row.after, row.low, row.high) for row in rows] == [(90.0, 92.0, 1.0, 3.0)]
    story.picture("scores.svg", "Scores", demo.draw_scores(rows))
    names = [demo.Name("cells & <genes>", 65535, 0)]
    story.picture("map.svg", "Map", demo.draw_map(np.array([[0, 0], [65535, 9]]), ["A", "B"], names))
    story.end()
    for name in ("scores.svg", "map.svg"):
        assert ElementTree.fromstring((tmp_path / "demo" / name).read_text()).tag.endswith("svg")
        assert f"]({name})" in (tmp_path / "demo" / "story.md").read_text()
    assert len(capsys.readouterr().out.splitlines()) < 15
