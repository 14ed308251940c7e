"""Maps of an index: what they hold, that they stay in place, and few or no papers."""

import base64
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, Index, IndexOptions
from citeweave.core.artifact import read_manifest
from citeweave.core.errors import ArtifactError
from citeweave.evaluation.paper_map import unit
from citeweave.search import map_groups, map_labels, map_layout
from citeweave.search.build import add_papers, build_index, delete_papers
from citeweave.search.map import MapFrame, PaperMap, find_map, make_map

from .conftest import CPU, corpus_of

TERMS = ["cell", "graphs", "models", "learn", "data", "paper", "shows", "citations"]
TOPICS = ["cell grows", "graphs of citations", "models learn from data"]


def numbered(folder: Path, numbers: range) -> Corpus:
    rng = np.random.default_rng(2)
    texts = [rng.choice(TERMS, 9) for _ in range(100)]
    papers = [{"id": f"p:{n}", "title": f"{TOPICS[n % 3]} {texts[n][0]}", "year": 2000 + n % 5} for n in numbers]
    for paper, n in zip(papers, numbers, strict=True):
        paper |= {"abstract": " ".join(texts[n]), "fields": [f"f{n % 30}"]}
    return corpus_of(folder, papers)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Path:
    place = tmp_path_factory.mktemp("mapped")
    build_index(numbered(place / "first", range(50)), save_bert(place / "model"), place / "index", CPU)
    return place


def decoded(told: dict, name: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(told[name]), dtype)


def test_a_map_is_kept_and_grows_in_place(place):
    index = Index.open(place / "index")
    assert find_map(index) is None
    first = make_map(index, max_landmarks=30)
    assert find_map(index) is None and find_map(index, max_landmarks=30) is not None
    told = json.loads(json.dumps(first.as_json()))
    assert told["points"] == 50 and told["state"] == index.number and "30 papers were placed this way" in told["note"]
    xy = decoded(told, "xy", "<u2").reshape(-1, 2)
    assert np.array_equal(xy, first.xy) and len(np.unique(xy, axis=0)) > 40 and np.ptp(xy, axis=0).max() > 60_000
    rows = decoded(told, "row", "<i4")
    assert rows.tolist() == list(range(50))
    assert decoded(told, "year", "<i2").tolist() == [index.year(row) for row in rows]
    assert len(told["fields"]) == 21 and told["fields"][-1] == "other"
    for row, field in zip(rows.tolist(), decoded(told, "field", "u1").tolist(), strict=True):
        expected = index.paper(row).fields[0]
        assert told["fields"][field] == (expected if expected in told["fields"] else "other")
    groups = decoded(told, "cluster", "u1")
    assert [group["size"] for group in told["clusters"]] == np.bincount(groups).tolist()
    assert len(told["clusters"]) >= 2 and all(group["name"] for group in told["clusters"])
    again = PaperMap.open(index.folder / "maps" / next((index.folder / "maps").iterdir()).name)
    assert again.as_json() == first.as_json()

    delete_papers(index.folder, ["p:3", "p:40"])
    add_papers(index.folder, numbered(place / "second", range(50, 60)))
    newer = index.fresh()
    assert find_map(newer, max_landmarks=30) is None
    second = make_map(newer, max_landmarks=30)
    both, left, right = np.intersect1d(first.keys, second.keys, return_indices=True)
    assert len(second) == 58 and len(both) == 48
    assert np.array_equal(first.xy[left], second.xy[right]) and first.frame == second.frame
    assert [path.name[:6] for path in (index.folder / "maps").iterdir()] == [f"{newer.number:06}"]

    add_papers(index.folder, numbered(place / "third", range(60, 90)))
    third = make_map(newer.fresh(), max_landmarks=30)
    assert third.laid_out == 88 > 1.5 * second.laid_out and third.frame != second.frame


def test_a_damaged_map_is_made_again(place):
    index = Index.open(place / "index")
    made = make_map(index)
    folder = next((index.folder / "maps").iterdir())
    assert read_manifest(folder, "paper_map", 1).recipe["index"] == index.manifest.hash
    (folder / "xy.npy").write_bytes(b"x")
    with pytest.raises(ArtifactError):
        PaperMap.open(folder)
    assert find_map(index) is None
    assert np.array_equal(make_map(index).columns["row"], made.columns["row"])


def test_an_index_without_vectors_or_with_few(tmp_path, place):
    for count in (1, 2, 5):
        corpus = numbered(tmp_path / str(count), range(count))
        index = build_index(corpus, place / "model", tmp_path / f"i{count}", CPU)
        made = make_map(index)
        assert len(made) == count and len(made.groups) == 1 and "principal components" in made.note
        assert find_map(index) is not None
    words = build_index(corpus, place / "model", tmp_path / "words", IndexOptions(vectors=False))
    empty = make_map(words)
    assert len(empty) == 0 and empty.as_json()["clusters"] == [] and "vector" in empty.note


def clouds(rng: np.random.Generator, each: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of vectors of length 1, far apart."""
    owners = np.repeat(np.arange(3), each)
    return unit(np.eye(8)[owners] + 0.05 * rng.normal(size=(3 * each, 8))), owners


def middles(xy: np.ndarray, owners: np.ndarray) -> np.ndarray:
    return np.stack([xy[owners == group].mean(axis=0) for group in range(3)])


def closest(xy: np.ndarray, places: np.ndarray) -> list[int]:
    """The closest of some places to each point."""
    return np.linalg.norm(xy[:, None] - places, axis=2).argmin(axis=1).tolist()


@pytest.mark.parametrize("installed", [True, False])
def test_t_sne_keeps_clouds_apart_and_others_beside_their_like(monkeypatch, installed):
    if installed:
        pytest.importorskip("openTSNE")
    else:
        monkeypatch.setitem(sys.modules, "openTSNE", None)
    rng = np.random.default_rng(0)
    vectors, owners = clouds(rng)
    xy, note = map_layout.lay_out(vectors, seed=0)
    assert "t-SNE" in note and np.array_equal(xy, map_layout.lay_out(vectors, seed=0).xy)
    clusters = middles(xy, owners)
    assert closest(xy, clusters) == owners.tolist()
    others, whose = clouds(rng, each=10)
    keys = rng.integers(1, 1 << 60, len(others)).astype(np.uint64)
    placed = map_layout.place_others(others, vectors, xy, keys)
    assert closest(placed, clusters) == whose.tolist()
    np.testing.assert_allclose(placed[5:9], map_layout.place_others(others[5:9], vectors, xy, keys[5:9]), rtol=1e-9)
    assert np.isfinite(map_layout.place_others(np.zeros((2, 8), np.float32), vectors, xy, keys[:2])).all()
    moved = map_layout.lay_out(vectors, seed=0, start=xy).xy
    assert closest(middles(moved, owners), clusters) == [0, 1, 2]


def test_groups_are_the_clouds():
    vectors, owners = clouds(np.random.default_rng(3))
    centers = map_groups.find_centers(vectors, seed=0)
    found = map_groups.assign_groups(vectors, centers)
    assert len(centers) == 3 == len(set(zip(found.tolist(), owners.tolist(), strict=True)))
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1, rtol=1e-5)
    assert len(map_groups.find_centers(np.ones((9, 4), np.float32) / 2, seed=0)) == 1
    assert map_groups.find_centers(np.zeros((0, 4), np.float32), seed=0).shape == (0, 4)
    assert map_groups.find_centers(np.zeros((7, 4), np.float32), seed=0).shape == (1, 4)
    assert map_groups.assign_groups(vectors, np.zeros((0, 8), np.float32)).tolist() == [0] * 60


def test_the_number_of_groups_follows_the_variety_and_not_the_size():
    rng = np.random.default_rng(1)

    def count(themes: int, each: int) -> int:
        middles = np.repeat(np.linalg.qr(rng.normal(size=(64, 64)))[0][:themes], each, axis=0)
        return len(map_groups.find_centers(unit(middles + 0.08 * rng.normal(size=middles.shape)), seed=0))

    assert 13 <= count(15, 10) <= 17 and 13 <= count(15, 40) <= 17
    assert 4 <= count(5, 60) <= 6
    assert count(1, 100) <= 10


TITLES = {
    0: ["Neural Machine Translation Using Attention", "A Novel Approach Based on Machine Translation"],
    1: ["BERT for Parsing", "Parsing with BERT: a New Method"],
    2: ["Bayesian Networks in Medicine", "Learning Bayesian Networks"],
}


def test_groups_are_labeled_by_phrases_as_running_text_writes_them():
    papers = [(title, "We use Bayesian networks and machine translation.") for own in TITLES.values() for title in own]
    labels = map_labels.label_groups(papers, np.repeat([0, 1, 2], 2), 4)
    assert "machine translation" in labels[0] and "BERT" in labels[1] and "parsing" in labels[1]
    assert "Bayesian networks" in labels[2] and labels[3] == ""
    written = ", ".join(labels).lower().split(", ")
    assert len(set(written)) == len(written) and not {"using", "based", "novel", "approach", "new"} & set(written)
    assert map_labels.label_groups([], np.empty(0, np.uint8), 1) == [""]
    assert map_labels.label_groups([("", ""), ("??", "")], np.zeros(2, np.uint8), 1) == [""]
    [alone] = map_labels.label_groups([("Graph graphs", ""), ("Graphs", "")], np.zeros(2, np.uint8), 1)
    assert alone == "graphs"


def test_an_earlier_map_keeps_its_places_and_gets_new_groups(place):
    index = Index.open(place / "index").fresh()
    made = make_map(index, max_landmarks=25)
    folder = index.folder / "maps" / max(path.name for path in (index.folder / "maps").iterdir())
    # as an earlier version left it: one group of everything
    old = dataclasses.replace(made, grouping=1, centers=made.centers[:1], groups=made.groups[:1])
    old.save(folder, read_manifest(folder, "paper_map", 1).recipe)
    assert PaperMap.open(folder).grouping == 1
    delete_papers(index.folder, ["p:7"])
    newer = make_map(index.fresh(), max_landmarks=25)
    _, left, right = np.intersect1d(made.keys, newer.keys, return_indices=True)
    assert np.array_equal(made.xy[left], newer.xy[right])
    assert newer.grouping == 2 and len(newer.groups) > 1


def test_a_frame_holds_all_places():
    plane = np.array([[-3.0, 1.0], [5.0, 2.0]])
    frame = MapFrame.around(plane)
    xy = frame.to_coordinates(plane)
    np.testing.assert_allclose(frame.to_plane(xy), plane, atol=1e-3)
    assert frame.to_coordinates(plane * 100).tolist() == [[0, 65535], [65535, 65535]]
    assert MapFrame.around(plane[:1]).to_coordinates(plane[:1]).tolist() == [[32768, 32768]]
