"""The pure parts of benchmarks/weaving: mixing, masking, averaging, standardised sums, the choice by the other fold."""

from __future__ import annotations

import doctest
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from citeweave.errors import UserError

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = ("batches", "bundle", "cube", "exploring", "files", "judging", "losses", "network", "plan", "relatives")
MODULES += ("signals", "table", "teachers", "training")


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"weaving.{name}")).failed == 0


@pytest.fixture
def bundle() -> Any:
    """Papers 0 to 3 of peerread_plus, 4 outside with a title, 5 of elife, 6 of ACL; node 7 has no text."""
    from weaving.bundle import Bundle

    lengths, nothing = [30, 30, 30, 30, 6, 30, 30], (np.zeros(0, int),) * 3
    return Bundle(
        {
            "tokens": np.arange(sum(lengths)) + 1000,
            "keys": np.arange(7),
            "lengths": np.array(lengths),
            "heads": np.array([6] * 7),
            "starts": np.array([6, 18] * 7),
            "counts": np.array([2] * 7),
            "numbers": np.array([0, 1] * 7),
            "parts": {"peerread_plus": (0, 4), "peerread_plus-refs": (4, 5), "elife": (5, 6), "acl": (6, 7)},
            "tasks": {"peerread_plus": [], "elife": []},
            "nodes": 8,
            "lists": {
                "peerread_plus": {
                    "references": (np.array([0, 1]), np.array([1, 2, 4, 7, 2, 3]), np.array([4, 2])),
                    "contexts": (np.array([0, 0]), np.array([1, 2, 4, 3]), np.array([3, 1])),
                },
                "elife": {"references": nothing, "contexts": nothing},
            },
            "banned": np.array([3]),
        }
    )


def test_signals_are_the_lists(bundle: Any) -> None:
    from weaving.bundle import ABSTRACT, TITLE
    from weaving.signals import Signals

    def pairs(name: str) -> list[tuple[int, int]]:
        return sorted(zip(found[name].left.tolist(), found[name].right.tolist(), strict=True))

    found = Signals(bundle)
    assert pairs("cite:p") == [(0, 1), (0, 2), (1, 2), (1, 3)]
    assert pairs("ref:p") == [(0, 4)]  # node 7 has no text
    assert pairs("cosent:p") == [(1, 2), (1, 4), (2, 4)]
    assert found["cosent:p"].weights.sum() == pytest.approx(1)
    assert pairs("title:p") == [(0, 0), (1, 1), (2, 2)]  # 3 is never trained on
    assert found["title:p"].views == (TITLE, ABSTRACT)
    with pytest.raises(UserError, match="a signal of mix"):
        found["cites:p"]


def test_strongest_neighbours_share_enough() -> None:
    from weaving.signals import strongest

    found = strongest(sp.csr_matrix(np.array([[1.0, 1, 0], [1, 1, 1], [0, 0, 1]])), fewest=2)
    assert found.left.tolist() == [0, 1] and found.right.tolist() == [1, 0]
    assert found.weights == pytest.approx(2 / np.sqrt(6))


def test_a_batch_is_mixed_by_shares(bundle: Any) -> None:
    from weaving.batches import draw, shares_of
    from weaving.plan import Plan
    from weaving.signals import Signals

    random = np.random.default_rng(0)
    grouped = {tuple(shares_of({"cite:p": 1, "cosent:p": 1, "title:acl": 2}, True, random)) for _ in range(30)}
    assert grouped == {(0.5, 0.5, 0.0), (0.0, 0.0, 1.0)}

    class Start:
        dimension, nearest = 2, np.tile(np.array([6]), (7, 200))

        def along(self, direction: Any) -> Any:
            return np.arange(7)

    plan = Plan("a", mix={"cite:p": 3, "title:acl": 1}, batch=400, hard=1, hard_band=(0, 5))
    batch = draw(plan, Signals(bundle), Start(), random)
    left, right, near = np.split(batch.papers, 3)
    assert batch.pairs == 400 and (near == 6).all()
    titles = (left == 6) & (right == 6)
    assert 60 < titles.sum() < 140
    assert set(batch.views[:400][titles]) == {1, 2} and set(batch.views[:400][~titles]) == {0}
    assert (batch.views[:400][titles] + batch.views[400:800][titles] == 3).all()  # one title and one abstract each
    topical = draw(Plan("b", mix={"cite:p": 1}, batch=5, topical=8), Signals(bundle), Start(), random)
    assert topical.pairs == 5 and len(np.unique(topical.papers[:5])) <= 2


def test_relatives_are_no_negatives(bundle: Any) -> None:
    from weaving.relatives import allowed_pairs

    papers, keys = np.array([0, 3, 4, 6, 6]), np.array([0, 1, 2, 3, 4, 5, 6])
    allowed = allowed_pairs(papers, keys, bundle.memberships)
    assert not allowed[0, 2] and not allowed[3, 4]  # one list has both; the same paper twice
    assert allowed[0, 1] and allowed[0, 3]
    assert allowed_pairs(papers, keys, bundle.memberships, masked=False)[0, 2]
    keys[6] = keys[0]
    assert not allowed_pairs(papers, keys, bundle.memberships, masked=False)[0, 3]  # equal titles


def test_texts_read_in_parts_give_the_same_gradients() -> None:
    from weaving.losses import batch_loss
    from weaving.plan import Plan
    from weaving.training import cached_backward

    layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
    torch.manual_seed(1)
    texts, teacher = torch.randn(6, 3), torch.randn(6, 5)
    plan, allowed = Plan("a", distill=2.0, graph=1.0), ~torch.eye(6, dtype=torch.bool)

    def gradients(parts: list[Any]) -> Any:
        layer.zero_grad()
        torch.manual_seed(0)
        cached_backward(layer, parts, lambda vectors: batch_loss(plan, vectors, 2, allowed, teacher, teacher))
        return layer[0].weight.grad.clone()

    layer[1].p = 0.0
    in_parts, whole = gradients([texts[:2], texts[2:5], texts[5:]]), gradients([texts])
    torch.testing.assert_close(in_parts, whole, rtol=1e-3, atol=1e-4)
    layer[1].p = 0.5
    cached = gradients([texts])
    layer.zero_grad()
    torch.manual_seed(0)
    batch_loss(plan, layer(texts), 2, allowed, teacher, teacher).backward()
    torch.testing.assert_close(cached, layer[0].weight.grad, rtol=1e-3, atol=1e-4)  # the same dropout in both readings


def test_the_other_fold_chooses() -> None:
    from weaving.cube import Answer, choose_by_other_fold, standardised, sum_of, summary

    facets = ("background", "method", "result")
    answers = {
        name: [Answer(facet, fold, value[fold], value[fold]) for facet in facets for fold in (0, 1)]
        for name, value in {"w": (0.2, 0.6), "b": (0.4, 0.2)}.items()
    }
    chosen, kept = choose_by_other_fold(answers)
    assert chosen == ["w", "b"]
    assert summary(kept) == [20.0] * 5  # fold 0 by w, fold 1 by b: the choice did not see what it is judged by
    offsets = np.array([0, 3])
    parts = {"b": np.array([0.0, 1.0, 2.0]), "t": np.array([0.9, 0.5, 0.1])}
    assert standardised(parts["b"], offsets).std() == pytest.approx(1)
    assert sum_of(parts, "bt", offsets) == pytest.approx(np.zeros(3))
    assert sum_of(parts, "t", offsets) is parts["t"]


def test_runs_of_a_file(tmp_path: Path) -> None:
    from weaving.exploring import open_runs
    from weaving.plan import plan_of, read_plans

    (tmp_path / "runs.json").write_text(json.dumps([{"name": "a", "seeds": [0, 1]}, {"name": "b", "shares": [0.3]}]))
    (tmp_path / "log.jsonl").write_text(json.dumps({"key": "a/1/0.4"}) + "\n")
    plans = read_plans(tmp_path / "runs.json")
    left = open_runs(plans, "0/1", tmp_path / "log.jsonl")
    assert [(plan.name, seed) for plan, seed in left] == [("a", 0), ("b", 0)] and left[1][0].shares == (0.3,)
    assert [plan.name for plan, _ in open_runs(plans, "1/2", tmp_path / "none")] == ["a"]
    with pytest.raises(UserError, match="a run has the key 'tokens'; keys of a run are name, mix"):
        plan_of({"name": "ltok", "tokens": 1})


def test_lines_become_a_table(tmp_path: Path) -> None:
    from weaving.cube import READINGS
    from weaving.table import table

    cube: dict[str, Any] = {name: [40.0, 61.0, 50.0, 27.0, 41.0] for name in READINGS}
    cube["other_fold"] = [39.0, 60.0, 50.0, 26.0, 41.0, "b", "bt"]
    line = {"key": "a/0/0", "cube": cube, "means": {"peerread_plus": 70.0, "elife": None}, "seconds": 12.3}
    (tmp_path / "log.jsonl").write_text(json.dumps({**line, "suites": {"scitldr.search": 76.0}}) + "\n")
    last = table([tmp_path / "log.jsonl"]).splitlines()[-1]
    assert last.endswith("| 39.00 / 60.00 (26.0) b, bt | 70.00 | - | 76.00 | 12 |")
