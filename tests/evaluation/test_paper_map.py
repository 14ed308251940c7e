"""The map of papers: near vectors lie near, the same seed gives the same map, and a page holds what it was given."""

import base64
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import MissingExtraError
from citeweave.core.randomness import stream
from citeweave.evaluation import paper_map
from citeweave.evaluation.html import one_line, render_report
from citeweave.evaluation.paper_map import map_quality

from .conftest import HOSTILE, Page, refused


def clusters(papers: int = 90, topics: int = 3) -> tuple[np.ndarray, list[str]]:
    """(papers, 12) vectors around centers far apart, and the names of their topics."""
    rng = stream(0, "test of maps")
    which = np.arange(papers) % topics
    matrix = 6 * np.eye(12)[which] + 0.3 * rng.normal(size=(papers, 12))
    return matrix.astype(np.float32), [f"topic {number}" for number in which]


def unpacked(page: str) -> tuple[np.ndarray, list[str], list[str]]:
    """What a browser reads: (n, 2) places, and the topic and title of each point."""
    scripts = Page(page).scripts
    data = json.loads(scripts["data"])
    xy = np.frombuffer(base64.b64decode(data["xy"]), "<u2").reshape(-1, 2)
    names = re.findall(r"<span>(.*?)</span>", page)
    topics = [unescape(names[number]) for number in base64.b64decode(data["topic"])]
    return xy, topics, json.loads(scripts["titles"]).split("\n")


@pytest.fixture(scope="module", params=["openTSNE", "scikit-learn"])
def engine(request) -> Iterator[None]:
    """What places the papers."""
    if request.param == "openTSNE":
        pytest.importorskip("openTSNE", reason="pip install 'citeweave[maps]'")
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "openTSNE":
            patch.setitem(sys.modules, "openTSNE", None)
        yield


@pytest.fixture(scope="module")
def made(engine) -> paper_map.MapData:
    matrix, labels = clusters()
    return paper_map.project_papers(matrix, labels, [f"paper {row}" for row in range(len(matrix))], seed=1)


def test_papers_of_a_topic_lie_together(made):
    """Clusters of one topic alone, and at most a quarter of the papers in none, which `map_quality` sets: 0.75 or more."""
    assert made.xy.shape == (90, 2) and made.xy.dtype == np.float32 and "t-SNE" in made.note
    distances = np.linalg.norm(made.xy[:, None] - made.xy[None], axis=-1) + 1e9 * np.eye(90)  # (n, n)
    assert all(made.labels[row] == made.labels[near] for row, near in enumerate(distances.argmin(axis=1)))
    assert made.homogeneity > 0.74 and 0 <= made.completeness <= 1
    shuffled = stream(0, "shuffled topics").permutation(made.labels)
    assert map_quality(made.xy, shuffled).homogeneity < 0.2
    matrix, labels = clusters()
    again = paper_map.project_papers(4 * matrix, labels, labels, seed=1)  # lengths do not matter to a cosine
    assert np.array_equal(again.xy, made.xy)
    assert not np.array_equal(paper_map.project_papers(matrix, labels, labels, seed=2).xy, made.xy)


@pytest.mark.parametrize("papers", [1, 2, 3, 6, paper_map.MIN_T_SNE_PAPERS - 1])
@pytest.mark.parametrize("dimension", [1, 2, 12])
def test_few_papers_are_placed_by_principal_components(papers, dimension):
    matrix = stream(0, "few", papers).normal(size=(papers, dimension))
    found = paper_map.project_papers(matrix, [("a", "b")[row % 2] for row in range(papers)], ["t"] * papers)
    assert found.xy.shape == (papers, 2) and np.isfinite(found.xy).all() and "principal" in found.note
    assert math.isnan(found.homogeneity) == (papers < 5) and paper_map.MIN_MEASURED_POINTS == 5
    paper_map.map_as_page(found)
    paper_map.preview(found)
    one, none = (paper_map.project_papers(matrix, [label] * papers, ["t"] * papers) for label in ("one", ""))
    assert math.isnan(one.homogeneity) and math.isnan(none.completeness)  # measured only where there are two topics


def test_the_smallest_map_by_t_sne_is_finite(engine):
    matrix, labels = clusters(paper_map.MIN_T_SNE_PAPERS, 2)
    matrix[3:9] = matrix[3]  # papers on one spot
    matrix[0] = 0
    found = paper_map.project_papers(matrix, labels, labels)
    assert np.isfinite(found.xy).all() and "1 papers have a vector of zeros" in found.note


def test_a_sample_keeps_papers_with_their_titles():
    matrix, labels = clusters(60)
    titles = [f"{label} paper {row}" for row, label in enumerate(labels)]
    samples = (paper_map.project_papers(matrix, labels, titles, max_papers=15, seed=seed) for seed in (3, 3, 4))
    found, again, other = samples
    assert len(found.titles) == len(found.xy) == 15 and "sample of 15 of 60" in found.note
    assert all(title.startswith(label) for title, label in zip(found.titles, found.labels, strict=True))
    rows = [int(title.split()[-1]) for title in found.titles]
    assert rows == sorted(set(rows)) and rows != list(range(15))
    assert list(again.titles) == list(found.titles) != list(other.titles)


def test_bad_input_is_told(monkeypatch):
    matrix, labels = clusters(30)
    refused("30 vectors, 29 topics", paper_map.project_papers, matrix, labels[1:], labels)
    refused("shape", paper_map.project_papers, np.zeros((0, 3)), [], [])
    refused("at most 0", paper_map.project_papers, matrix, labels, labels, max_papers=0)
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    monkeypatch.setattr(paper_map, "_MAX_WITHOUT_OPENTSNE", 29)
    with pytest.raises(MissingExtraError, match=r"pip install 'citeweave\[maps\]'"):
        paper_map.project_papers(matrix, labels, labels)
    matrix[4, 2] = np.nan
    refused("1 vectors hold NaN or infinity, such as row 4", paper_map.project_papers, matrix, labels, labels)


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2), min_size=1, max_size=40))
def test_packing_keeps_places(points):
    xy = np.array(points, np.float64)
    packed = paper_map.pack_points(xy).astype(np.float64)
    size = float(np.ptp(xy, axis=0).max()) or 1.0
    back = (packed / 65535 - 0.5) * size + (xy.min(axis=0) + xy.max(axis=0)) / 2
    assert np.abs(back - xy).max() <= 0.51 * size / 65535 + 1e-6 * size


def test_a_page_holds_every_point_with_its_title_and_topic():
    labels = [("physics", "biology", "")[row % 3] for row in range(300)]
    xy = stream(0, "page of a map").normal(size=(300, 2)).astype(np.float32)
    made = paper_map.MapData(xy, labels, [f"paper {row}" for row in range(300)], 0.4, 0.7)
    page = paper_map.map_as_page(made, back="report.html")
    places, topics, found = unpacked(page)
    row = np.array([int(title.split()[1]) for title in found])
    assert sorted(row.tolist()) == list(range(300))
    assert np.array_equal(places, paper_map.pack_points(xy)[row])
    assert topics == [labels[number] or paper_map.NO_TOPIC for number in row]
    texts = Page(page).texts
    assert [texts[texts.index(name) + 1] for name in ("biology", "physics", paper_map.NO_TOPIC)] == ["100"] * 3
    assert row.tolist() != sorted(row)  # else the last topic lies over the others


def test_hostile_titles_and_topics_stay_text():
    plain = paper_map.MapData(np.eye(5, 2, dtype=np.float32), [*"abcde"], ["t"] * 5, math.nan, math.nan)
    hostile = paper_map.MapData(plain.xy, HOSTILE, HOSTILE, 0.1, 0.2, HOSTILE[0])
    page = paper_map.map_as_page(hostile, title=HOSTILE[0], back=HOSTILE[1])
    usual = paper_map.map_as_page(plain, back="x")
    assert Page(page).tags == Page(usual).tags
    _, topics, titles = unpacked(page)
    assert sorted(titles) == sorted(one_line(title, 80) for title in HOSTILE)
    assert set(topics) == {one_line(title, 80) for title in HOSTILE}
    assert "<!--" not in page.replace("<!DOCTYPE", "")
    # a page loads nothing and runs only its own script
    usual = paper_map.map_as_page(paper_map.MapData(plain.xy, plain.labels, plain.titles, 0.5, 0.5))
    assert not re.search(r"https?://|url\(|@import|\bsrc=", usual)
    assert "default-src 'none'" in usual and "unsafe" not in usual and "<noscript>" in usual
    code = Page(usual).scripts["code"]
    assert code == paper_map.map_script()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(|import\(", code)


def test_a_hundred_thousand_papers_fit_into_ten_megabytes():
    many = 100_000
    xy = stream(0, "many").normal(size=(many, 2)).astype(np.float32)
    labels = [f"topic {row % 300}" for row in range(many)]
    long = paper_map.MapData(xy, labels, ["t" * 200] * many, 0.4, 0.7)
    assert 8e6 < len(paper_map.map_as_page(long).encode()) < 10e6
    wide = paper_map.MapData(xy, labels, ["\U0001f9ea" * 30 + "<" * 30] * many, 0.4, 0.7)
    assert len(paper_map.map_as_page(wide).encode()) < 11e6
    assert len(render_report(("", "", ""), {"Map": [("preview", paper_map.preview(long))]})) < 70_000


def test_many_topics_share_the_last_entry():
    names, colors, topics = paper_map.number_topics([f"topic {row % 400:03d}" for row in range(4000)] + [""])
    assert len(names) == len(colors) == paper_map.MAX_TOPICS + 2 and names[-1] == paper_map.NO_TOPIC
    assert names[-2] == "150 smaller topics" and (topics == paper_map.MAX_TOPICS).sum() == 1500


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_the_script_is_well_formed(tmp_path):
    (tmp_path / "map.mjs").write_text(paper_map.map_script(), encoding="utf-8")
    subprocess.run(["node", "--check", tmp_path / "map.mjs"], check=True, capture_output=True)


def test_a_map_that_shows_its_topics_is_told_from_one_that_does_not():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 6, 600)
    topics = [f"topic {code}" for code in codes]
    centers = 10 * np.stack([np.arange(6) % 3, np.arange(6) // 3], axis=1)
    xy = centers[codes] + rng.normal(size=(600, 2))
    good, bad = map_quality(xy, topics), map_quality(xy, rng.permutation(topics).tolist())
    assert good.homogeneity > 0.8 and good.completeness > 0.7 and bad.homogeneity < 0.1
    assert map_quality(1000 * xy, topics) == pytest.approx(good)
    assert map_quality(np.zeros((20, 2)), topics[:20]) == (0, 1)
