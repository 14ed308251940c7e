"""Recommendations from clicks: the files, the features, the network and its evaluation."""

import gzip
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import InputError
from citeweave.evaluation import click_ranker
from citeweave.evaluation.click_ranker import Metadata
from citeweave.evaluation.clicks import (
    ClickData,
    ClickLog,
    ClickResult,
    evaluate_clicks,
    normalize_propensities,
    propensity_of,
    recommend,
)
from citeweave.evaluation.suites.scidocs import read_clicks, read_metadata, read_propensities, read_suite

from .conftest import refused, task_of, write_files

HEADER = "pid,clicked_pid,similar_papers_avail_at_time\n"


class Table:
    """Vectors by id."""

    def __init__(self, vectors: dict[str, np.ndarray], dim: int) -> None:
        self.vectors, self.dim = vectors, dim

    def __call__(self, ids):
        rows = [self.vectors.get(name, np.full(self.dim, np.nan)) for name in ids]
        return np.array(rows).reshape(-1, self.dim), np.array([name in self.vectors for name in ids], bool)


NOTHING = Table({}, 3)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_a_click_log_and_its_propensities_are_read(tmp_path):
    text = '\ufeffclicked_pid,pid,extra,similar_papers_avail_at_time\nb,q,1,"a,b,c"\n\nc,r,2,c\n'
    write_files(tmp_path, {"test.csv": gzip.compress(text.encode()), "p.json": {"scores": [0.3, 0.1, 0.1, 0.1]}})
    clicks, propensities = read_clicks(tmp_path / "test.csv"), read_propensities(tmp_path / "p.json")
    assert (list(clicks.queries), list(clicks.shown)) == (["q", "r"], ["a", "b", "c", "c"])
    assert (clicks.offsets.tolist(), clicks.places.tolist()) == ([0, 3, 4], [1, 0])
    assert (clicks.clicked, clicks.at.tolist(), clicks.owners.tolist()) == (["b", "c"], [1, 3], [0, 0, 0, 1])
    assert clicks.is_other().tolist() == [True, False, True, False]
    assert clicks.papers() == {"q", "r", "a", "b", "c"}
    assert propensities == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])  # of mean 1
    assert propensity_of(np.array([0, 3, 9]), propensities) == pytest.approx([2, 2 / 3, 2 / 3])


BAD_LOGS = [
    ("", "has no column pid, clicked_pid, similar_papers_avail_at_time; it has none"),
    ("pid,clicked\nq,a\n", "has no column clicked_pid, similar_papers_avail_at_time; it has pid, clicked"),
    (HEADER, "holds no clicks"),
    (HEADER + 'q,b,"a,b"\nq,z,"a,b"\n', "line 3: the clicked paper 'z' is not among the 2 papers shown"),
    (HEADER + 'q,b,"a,b"\nq,b\n', "line 3 has 2 columns instead of 3"),
    (HEADER + "q,b," + "x" * 200_000 + "\n", "line 2: the clicked paper 'b' is not among the 1 papers shown"),
    (HEADER + "q,b," + "x" * (2**24 + 1) + "\n", "line 2 cannot be read"),
    (b"pid,\xff\n", "line 0 cannot be read"),
]
BAD_PROPENSITIES = ["[0.3]", "{}", '{"scores": []}', '{"scores": ["a"]}', '{"scores": [0.1, 0]}', "{"]


def test_bad_files_are_refused(tmp_path):
    path = tmp_path / "m.json"
    for text, message in BAD_LOGS:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        refused(message, read_clicks, path, error=InputError)
    for text in BAD_PROPENSITIES:
        path.write_text(text)
        refused("m.json", read_propensities, path, error=InputError)


def test_only_wanted_papers_are_kept(tmp_path):
    (tmp_path / "m.json").write_text(
        '{"a": {"title": "One  two", "abstract": "A.", "year": 2001, "cited_by": ["x", "x", 7, null, {}]},'
        '"b": {"title": "\\ud800", "authors": ["\\ud800"], "year": "1e999"}, "c": {"title": "no"}, "d": [],'
        '"a2": {"title": null, "references": null, "year": true}}'
    )
    known = read_metadata(tmp_path / "m.json", {"a", "b", "d", "a2", "z"})
    assert (list(known.ids), list(known.titles)) == (["a", "b", "a2"], ["One two", "", ""])
    assert list(known.abstracts) == ["A.", "", ""] and known.rows(["a2", "c", "d"]).tolist() == [2, -1, -1]
    assert known.cited_by.lengths().tolist() == [2, 0, 0] and known.authors.lengths().tolist() == [0, 1, 0]
    assert known.years[0] == 2001 and np.isnan(known.years[1:]).all()


def test_the_whole_folder_is_read_or_what_is_missing_is_named(tmp_path):
    logs = [("train", "a"), ("val", "b"), ("test", "c")]
    files = {f"recomm/{name}.csv": HEADER + f'{name},{paper},"x,{paper}"\n' for name, paper in logs}
    write_files(tmp_path, {**files, "recomm/propensity_scores.json": {"scores": [2, 1]}, "cite/test.qrel": "q 0 p 1\n"})
    assert read_suite(tmp_path).not_evaluated["recomm"].startswith("recomm needs paper_metadata_recomm.json, which is")
    write_files(tmp_path, {"paper_metadata_recomm.json": {"a": {"title": "A"}, "c": {"title": "C"}}})
    data, tuning = (task_of(read_suite(tmp_path, split=split), "recomm").clicks for split in ("test", "val"))
    assert list(data.metadata.ids) == ["a", "c"] and data.val is not None
    assert (data.train.clicked, data.val.clicked, data.test.clicked) == (["a"], ["b"], ["c"])
    assert tuning.val is None and tuning.test.clicked == ["b"] and list(tuning.metadata.ids) == ["a"]


def overlap(left: list, right: list) -> float:
    either = set(left) | set(right)
    return len(set(left) & set(right)) / len(either) if either else 0.0


def plain_features(query: str, candidate: str, papers: dict[str, dict], vectors: dict[str, np.ndarray]) -> list[float]:
    """The definitions, one pair at a time."""
    one, other = papers.get(query), papers.get(candidate)
    q, c = one or {}, other or {}

    def shared(name: str, words=lambda value: value) -> float:
        return overlap(words(q[name]), words(c[name])) if one is not None and other is not None else 0.0

    def aged(difference: float | None) -> float:
        return 0.0 if difference is None else max(-1.0, min(1.0, difference / 20))

    cosine = 0.0
    if query in vectors and candidate in vectors:
        x, y = vectors[query].astype(float), vectors[candidate].astype(float)
        norms = np.linalg.norm(x) * np.linalg.norm(y)
        cosine = float(x @ y / norms) if norms else 0.0
    year, query_year = c.get("year"), q.get("year")
    return [
        shared("authors"),
        0.0,
        shared("title", click_ranker.title_words),
        cosine,
        shared("cited_by"),
        shared("references"),
        float(candidate in q.get("cited_by", []) or query in c.get("references", [])),
        float(query in c.get("cited_by", []) or candidate in q.get("references", [])),
        aged(None if year is None else 2020 - year),
        aged(None if year is None or query_year is None else query_year - year),
        math.log(1 + len(set(c.get("cited_by", [])))) / 10,
    ]


def made_up(rng: np.random.Generator, names: list[str]) -> dict[str, dict]:
    def some(pool: list[str], most: int) -> list[str]:
        return rng.choice(pool, rng.integers(0, most + 1)).tolist()

    return {
        name: {
            "title": " ".join(some(["Deep", "deep", "graph", "of", "net-works", "(2)"], 5)),
            "authors": some(["1", "2", "3"], 2),
            "references": some(names, 6),
            "cited_by": some(names, 6),
            "year": None if rng.random() < 0.2 else int(rng.integers(1950, 2045)),
        }
        for name in names
        if rng.random() < 0.9
    }


def test_features_are_those_of_the_definitions(monkeypatch):
    rng = np.random.default_rng(3)
    names = [f"p{i}" for i in range(12)]
    papers = made_up(rng, names)
    vectors = {name: rng.normal(size=4).astype(np.float16) for name in names if rng.random() < 0.9}
    vectors["p3"] = np.zeros(4)
    queries, candidates = rng.choice(names, 200).tolist(), rng.choice(names, 200).tolist()
    pairs = list(zip(queries, candidates, strict=True))
    metadata = Metadata.of(papers.items())
    found = click_ranker.pair_features(queries, candidates, metadata, Table(vectors, 4))
    assert found.matrix.shape == (200, 11) and found.matrix.dtype == np.float32
    np.testing.assert_allclose(found.matrix, [plain_features(*pair, papers, vectors) for pair in pairs], atol=1e-6)
    assert np.flatnonzero(~found.matrix.any(axis=0)).tolist() == [1], "every feature but the place is tested"
    assert found.without_metadata == set(names) - papers.keys() and found.without_vector == set(names) - vectors.keys()
    assert found.zero_vectors == {"p3"}
    assert found.has_vectors.tolist() == [q in vectors and c in vectors for q, c in pairs]
    monkeypatch.setattr(click_ranker, "_FEATURE_BLOCK", 7)
    again = click_ranker.pair_features(queries, candidates, metadata, Table(vectors, 4))
    assert np.array_equal(again.matrix, found.matrix) and again.without_vector == found.without_vector


def test_vectors_that_are_not_finite_and_titles_that_are_empty_share_nothing():
    vectors = {"q": [1.0, 0], "a": [np.inf, 0], "b": [0, np.nan], "c": [3e38, 0]}
    table = Table({name: np.array(vector) for name, vector in vectors.items()}, 2)
    found = click_ranker.pair_features(["q"] * 3, ["a", "b", "c"], Metadata.of([]), table)
    assert found.matrix[:, 3].tolist() == [0, 0, 1] and found.has_vectors.tolist() == [False, False, True]
    assert found.without_vector == {"a", "b"} and found.without_metadata == {"q", "a", "b", "c"}
    untitled = click_ranker.pair_features(["a"], ["b"], Metadata.of([("a", {}), ("b", {"title": None})]), NOTHING)
    assert not untitled.matrix.any()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=7), st.integers(0, 6)), min_size=1))
def test_clicks_are_evaluated_as_one_by_one(lists):
    clicks = ClickLog.of([("q", papers[at % len(papers)], papers) for papers, at in lists])
    scores = np.array([ord(paper) % 3 for paper in clicks.shown]) / 3
    propensities = normalize_propensities(np.array([5.0, 2.0, 1.0]))
    evaluated = evaluate_clicks(clicks, scores, propensities)
    above, others = [], []
    for click, clicked in enumerate(clicks.clicked):
        span = slice(clicks.offsets[click], clicks.offsets[click + 1])
        true = scores[span][clicks.places[click]]
        rest = [s for s, paper in zip(scores[span], clicks.shown[span], strict=True) if paper != clicked]
        above.append(sum(1 if score > true else 0.5 if score == true else 0 for score in rest))
        others.append(len(rest))
    weights = [1 / propensities[min(place, 2)] for place in clicks.places]
    assert evaluated.above.tolist() == above and evaluated.others.tolist() == others
    assert evaluated.weights == pytest.approx(weights)
    sums, wholes = dict.fromkeys(evaluated.metrics(), 0.0), dict.fromkeys(evaluated.metrics(), 0.0)
    for higher, rivals, weight in zip(above, others, weights, strict=True):
        values = {"ndcg": 1 / math.log2(2 + higher), "mrr": 1 / (1 + higher), "p@1": float(higher == 0)}
        for name in sums:
            plain, factor = name.removeprefix("adj-").lower(), weight if name.startswith("adj-") else 1.0
            sums[name] += factor * values.get(plain, rivals - higher)
            wholes[name] += factor * (1 if plain in values else rivals)
    expected = {name: sums[name] / wholes[name] if wholes[name] else math.nan for name in sums}
    assert len(expected) == 8 and evaluated.metrics() == pytest.approx(expected, nan_ok=True)


def test_rows_tell_every_click_and_unanswered_ones_are_lost():
    clicks = ClickLog.of([("q", "a", ["a", "b", "c"]), ("q", "b", ["a", "b"]), ("r", "a", ["a"])])
    scores, propensities = np.array([3, 2, 1, 2, 1, 5]), np.array([1.5, 0.5])
    evaluated = evaluate_clicks(clicks, scores, propensities, np.array([False, True, True]))
    assert list(evaluated.rows()) == ["q", "q#2", "r"] and evaluated.has_vectors.tolist() == [False, True, True]
    assert evaluated.above.tolist() == [2, 1, 0]
    row = {"ndcg": 0.5, "mrr": 1 / 3, "p@1": 0.0, "above": 2.0, "others": 2, "weight": 1 / 1.5}
    assert evaluated.rows()["q"] == {"clicked": "a", **{name: pytest.approx(value) for name, value in row.items()}}
    assert evaluate_clicks(clicks, scores, propensities).above.tolist() == [0, 1, 0]
    for bad in (scores[:-1], np.full(6, np.nan)):
        refused("each of the 6 shown papers needs a score", evaluate_clicks, clicks, bad, propensities)


def test_triplets_are_the_first_ten_others():
    papers = [f"p{i}" for i in range(14)]
    clicks = ClickLog.of([("q", "p2", papers), ("r", "p0", ["p0"]), ("s", "p1", ["p1", "p0", "p1"])])
    clicked, others = clicks.triplet_rows()
    assert clicked.tolist() == [2] * 10 + [15] and others.tolist() == [0, 1, *range(3, 11), 16]


def random_triplets(number: int, seed: int = 0) -> click_ranker.ClickTriplets:
    """The clicked paper has the higher number 3; the rest is noise."""
    rng = np.random.default_rng(seed)
    pairs = rng.random((2, number, 11)).astype(np.float32)
    swap = pairs[0, :, 3] < pairs[1, :, 3]
    pairs[:, swap] = pairs[::-1, swap]
    return click_ranker.ClickTriplets(pairs[0], pairs[1], np.full(number, 0.5, np.float32))


def test_training_is_that_of_torch(torch):
    """The same start, one batch an epoch, no dropout: torch's own layers, loss and clipping reach the same weights."""
    weights = np.random.default_rng(1).uniform(0.3, 2, 100).astype(np.float32)
    data = replace(random_triplets(100), propensities=weights)
    start = click_ranker.train_ranker(data, recipe=click_ranker.RankerRecipe(epochs=0))
    assert start.epoch == 0 and np.abs(start.inner).max() <= 11**-0.5 and np.abs(start.outer).max() <= 50**-0.5
    net = torch.nn.Sequential(torch.nn.Linear(11, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1), torch.nn.Sigmoid())
    values = start.inner.T, start.inner_bias, start.outer[None], [start.outer_bias]
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(np.array(value)))
    margin = torch.nn.MarginRankingLoss(margin=0.1, reduction="none")
    optimizer = torch.optim.Adadelta(net.parameters(), rho=0.95)
    clicked, others = torch.tensor(data.clicked), torch.tensor(data.others)
    losses = []
    for _ in range(20):
        loss = (margin(net(clicked), net(others), torch.ones(100, 1)) / torch.tensor(weights)[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ranker = click_ranker.train_ranker(data, recipe=click_ranker.RankerRecipe(epochs=20, dropout=0.0))
    assert ranker.train_losses == pytest.approx(losses, abs=1e-5)
    np.testing.assert_allclose(ranker.inner, net[0].weight.detach().numpy().T, atol=1e-4)
    np.testing.assert_allclose(ranker.scores(data.clicked), net(clicked).detach().numpy()[:, 0], atol=1e-4)
    loud = replace(data, propensities=np.full(100, 1e-4, np.float32))  # derivatives are cut
    recipes = (click_ranker.RankerRecipe(epochs=3, **clip) for clip in ({}, {"clip": 1e9}))
    cut, free = (click_ranker.train_ranker(loud, recipe=recipe).inner for recipe in recipes)
    assert not np.allclose(cut, free, atol=1e-6)


def same(one: click_ranker.Ranker, other: click_ranker.Ranker) -> bool:
    return np.array_equal(one.inner, other.inner) and one.outer_bias == other.outer_bias


def test_a_seed_is_a_ranker_whatever_the_threads(torch):
    data = random_triplets(300)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    one = click_ranker.train_ranker(data, seed=7)
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        assert same(one, click_ranker.train_ranker(data, seed=7)) and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(before)
    assert not same(one, click_ranker.train_ranker(data, seed=8))
    refused("no order to learn", click_ranker.train_ranker, random_triplets(0))


def test_the_epoch_of_the_lowest_validation_loss_is_kept(torch):
    data = random_triplets(300)
    upside_down = click_ranker.ClickTriplets(data.others, data.clicked, data.propensities)
    ranker = click_ranker.train_ranker(data, upside_down)
    assert len(ranker.val_losses) == 5 and ranker.epoch == 1 + int(np.argmin(ranker.val_losses)) < 5
    assert same(ranker, click_ranker.train_ranker(data, recipe=click_ranker.RankerRecipe(epochs=ranker.epoch)))
    stopped = click_ranker.train_ranker(data, upside_down, recipe=click_ranker.RankerRecipe(epochs=50, patience=2))
    assert len(stopped.val_losses) == stopped.epoch + 2
    agreeing = click_ranker.train_ranker(data, random_triplets(100, seed=5))
    assert agreeing.epoch == 5 and agreeing.val_losses[-1] < agreeing.val_losses[0]


def test_equal_papers_have_equal_scores(monkeypatch):
    rng = np.random.default_rng(0)
    ranker = click_ranker.Ranker(rng.normal(size=(11, 50)), rng.normal(size=50), rng.normal(size=50), 0.1, 1, (), ())
    rows = rng.random((5, 11)).astype(np.float32)
    scores = ranker.scores(np.tile(rows, (1000, 1))).reshape(1000, 5)
    assert (scores == scores[0]).all() and scores.dtype == np.float64
    monkeypatch.setattr(click_ranker, "_RANKER_BLOCK", 3)
    assert np.array_equal(ranker.scores(rows), scores[0]) and ranker.scores(rows[:0]).shape == (0,)
    hidden = np.maximum(rows @ ranker.inner + ranker.inner_bias, 0)
    assert scores[0] == pytest.approx(1 / (1 + np.exp(-(hidden @ ranker.outer + 0.1))))


PROPENSITIES = normalize_propensities(1 / np.arange(1, 9))


def planted(seed: int = 0, dim: int = 8) -> tuple[ClickData, Table]:
    """A reader looks at the places by their propensity and clicks the nearest paper among those looked at."""
    rng = np.random.default_rng(seed)
    vectors: dict[str, np.ndarray] = {}

    def log(name: str, number: int) -> ClickLog:
        rows = []
        for click in range(number):
            query, papers = f"{name}{click}", [f"{name}{click}-{i}" for i in range(8)]
            vectors.update({paper: rng.normal(size=dim) for paper in [query, *papers]})
            closeness = np.array([np.dot(vectors[query], v) / np.linalg.norm(v) for v in map(vectors.get, papers)])
            looked = rng.random(8) < np.maximum(PROPENSITIES / PROPENSITIES[0], 0.4)
            looked[rng.integers(8)] = True
            rows.append((query, papers[int(np.argmax(np.where(looked, closeness, -np.inf)))], papers))
        return ClickLog.of(rows)

    train, val, test = log("t", 500), log("v", 80), log("e", 300)
    noise = list(made_up(rng, [f"x{i}" for i in range(40)]).values())
    metadata = Metadata.of((paper, noise[rng.integers(len(noise))]) for paper in vectors)
    return ClickData(train, val, test, PROPENSITIES, metadata), Table(vectors, dim)


@pytest.fixture(scope="module")
def log() -> tuple[ClickData, Table]:
    pytest.importorskip("torch")
    return planted()


@pytest.fixture(scope="module")
def learned(log) -> ClickResult:
    return recommend(*log)


def test_a_planted_taste_is_learned(log, learned):
    data, vectors = log
    clicks = data.test
    chance = np.mean([1 / math.log2(2 + above) for above in range(8)])
    blind = recommend(data, NOTHING, missing="peers")
    assert learned.metrics["adj-NDCG"] > 0.7 > 0.6 > blind.metrics["adj-NDCG"] > chance - 0.06
    assert learned.metrics["adj-P@1"] > 2 * blind.metrics["adj-P@1"] and learned.metrics["accuracy"] > 0.8
    queries = [clicks.queries[click] for click in clicks.owners]
    cosines = click_ranker.pair_features(queries, clicks.shown, Metadata.of([]), vectors).matrix[:, 3]
    by_cosine = evaluate_clicks(clicks, cosines, PROPENSITIES).metrics()
    assert learned.metrics["adj-NDCG"] > by_cosine["adj-NDCG"] - 0.05, "nearly as good as the planted taste itself"


def test_a_task_is_the_same_again_means_over_seeds_and_weighs_by_propensity(log, learned):
    data, vectors = log
    several = recommend(data, vectors, seeds=(7, 8))
    assert np.array_equal(several.runs[0].scores, learned.runs[0].scores) and several.seeds == (7, 8)
    assert not np.array_equal(several.runs[1].scores, several.runs[0].scores)
    for name, value in several.metrics.items():
        assert value == pytest.approx(np.mean([evaluated.metrics()[name] for evaluated in several.runs])), name
    assert learned.coverage["training triplets"] == 500 * 7 and learned.coverage["papers"] == 880 * 9
    weighed = recommend(data, vectors, weighting="propensity")
    assert not same(weighed.rankers[0], learned.rankers[0])
    even = replace(data, propensities=np.full(8, PROPENSITIES[-1]))
    assert same(recommend(even, vectors, weighting="propensity").rankers[0], learned.rankers[0])
    refused("must be one of peer, propensity", recommend, data, vectors, weighting="none")


def test_what_is_missing_is_counted_and_wrong(log, learned):
    data, vectors = log
    hidden = [data.test.queries[0], data.test.clicked[1], data.test.shown[data.test.offsets[2]]]
    assert hidden[2] != data.test.clicked[2]
    fewer = Table({name: vector for name, vector in vectors.vectors.items() if name not in hidden}, vectors.dim)
    wrong, peers = (recommend(data, fewer, missing=missing) for missing in ("wrong", "peers"))
    assert wrong.runs[0].above[:2].tolist() == [7, 7]
    assert wrong.runs[0].has_vectors[:3].tolist() == [False, False, True]
    assert peers.runs[0].has_vectors.all() and peers.metrics["ndcg"] >= wrong.metrics["ndcg"]
    assert wrong.coverage["clicks without vectors"] == 2 and wrong.coverage["papers without vector"] == 3
    assert learned.coverage["clicks without vectors"] == learned.coverage["papers without vector"] == 0
    refused("must be one of peers, wrong", recommend, data, vectors, missing="drop")


def test_short_logs_and_deep_clicks_are_counted(torch):
    deep = ClickLog.of([("q", "c", ["a", "b", "c"]), ("r", "a", ["a"])])
    data = ClickData(deep, None, deep, np.array([1.5, 0.5]), Metadata.of([("a", {"title": "A"})]))
    result = recommend(data, Table({"a": np.zeros(3)}, 3), recipe=click_ranker.RankerRecipe(epochs=1))
    assert result.coverage == {
        **{"clicks": 2, "training clicks": 2, "validation clicks": 0, "training triplets": 2, "papers": 5},
        **{"clicks deeper than the propensities": 2, "papers without vector": 4, "papers without metadata": 4},
        **{"papers with a vector of zeros": 1, "clicks without vectors": 2, "clicks on the only paper shown": 1},
    }
    assert result.rankers[0].val_losses == ()
