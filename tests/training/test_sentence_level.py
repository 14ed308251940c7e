"""Sentences in training: where they are, their vectors, and what losses make of them, against plain loops."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.ingest import import_papers  # noqa: E402
from citeweave.corpus.text import sentence_texts  # noqa: E402
from citeweave.encoders.encoder import load_encoder  # noqa: E402
from citeweave.encoders.pooling import text_vectors  # noqa: E402
from citeweave.encoders.sentence_encoder import (  # noqa: E402
    encode_sentences,
    lay_out_sentences,
)
from citeweave.encoders.tokens import TokenStore  # noqa: E402
from citeweave.training import load_data, sentence_objective  # noqa: E402
from citeweave.training.batches import (  # noqa: E402
    Batch,
    allowed_pairs,
    build_batch,
)
from citeweave.training.data import SentenceSpans, TrainingData, make_alignment, make_groups, make_lists, paper_rows  # noqa: E402
from citeweave.training.objective import LossInputs, Objective  # noqa: E402
from citeweave.training.options import TrainingOptions  # noqa: E402
from citeweave.training.step import encode_rows  # noqa: E402
from citeweave.vectors.document_distance import DocumentDistance, match  # noqa: E402
from citeweave.vectors.sentence_distances import PaperPairs  # noqa: E402

COUNTS = [2, 1, 4, 3, 1, 2, 3, 2, 1, 3]


def spans_of(counts: list[int]) -> SentenceSpans:
    """One token a sentence."""
    within = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
    return SentenceSpans(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), within + 1, within + 2, within)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_rows_and_places_are_those_of_loops(counts: list[int], data: st.DataObject) -> None:
    spans = spans_of(counts)
    papers = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=6))
    assert spans.indices(np.array(papers, np.int64)).tolist() == [
        sum(counts[:paper]) + at for paper in papers for at in range(counts[paper])
    ]
    rows, names = paper_rows(spans, np.array(papers, np.int64)), []
    for place, paper in enumerate(papers):
        names += [(place, at) for at in range(-1, counts[paper])]
    assert rows.total == len(names)
    assert [names[row] for row in rows.own.tolist()] == [(place, -1) for place in range(len(papers))]
    chosen = data.draw(st.lists(st.integers(0, len(papers) - 1), max_size=4)) if papers else []
    assert [names[row] for row in rows.all_rows(np.array(chosen, np.int64)).tolist()] == [
        name for place in chosen for name in names if name[0] == place
    ]
    padded = rows.sentence_rows(np.array(chosen, np.int64)).tolist()
    assert [[names[row] for row in line if row >= 0] for line in padded] == [
        [name for name in names if name[0] == place and name[1] >= 0] for place in chosen
    ]
    assert paper_rows(None, np.array(papers, np.int64)).own.tolist() == list(range(len(papers)))


_PAIRS = st.lists(st.tuples(*[st.integers(0, 5)] * 2), max_size=9)


@given(_PAIRS, _PAIRS)
def test_aligned_pairs_are_found(known: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    def columns(pairs: list[tuple[int, int]]) -> tuple[Any, Any]:
        left, right = np.array(pairs, np.int64).reshape(-1, 2).T
        return left, right

    values = np.arange(2 * len(known)).reshape(-1, 2)
    first: dict[tuple[int, int], list[int]] = {}
    for pair, value in zip(known, values.tolist(), strict=True):
        first.setdefault(pair, value)
    found = make_alignment(*columns(known), values).find(*columns(asked))
    assert found.tolist() == [first.get(pair, [-1, -1]) for pair in asked]


LONG = "models learn from data " * 20
PAPERS = [
    ("the cell grows", "We find how models learn. A paper shows that, in graphs. The cell grows."),
    ("models of graphs", ""),
    (LONG, "We find how. The cell grows."),
    ("", "We find data. The cell grows and grows."),
    ("citations", "A paper shows that. " * 30),
]


@pytest.fixture(scope="module")
def small(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("small")
    lines = [{"id": str(n), "title": title, "abstract": text} for n, (title, text) in enumerate(PAPERS)]
    (folder / "papers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    corpus, encoder = import_papers([folder / "papers.jsonl"], folder / "corpus").corpus, load_encoder(bert)
    rows = np.arange(len(corpus))
    tokens, spans = load_data.tokenize_sentences(corpus, rows, encoder.reader, folder / "tokens")
    data = TrainingData(rows, tokens, make_groups([], [], []), make_groups([], [], []), sentences=spans)
    splits = [(corpus.titles[row], sentence_texts(corpus.abstracts[row])) for row in range(len(corpus))]
    return SimpleNamespace(corpus=corpus, encoder=encoder, data=data, splits=splits)


def test_papers_are_read_as_encoders_read_them(small: SimpleNamespace) -> None:
    assert sorted(title for title, _ in small.splits) == sorted(title.strip() for title, _ in PAPERS)
    data, limit = small.data, small.encoder.reader.max_tokens
    for row, (title, texts) in enumerate(small.splits):
        title, texts = (title, texts) if texts else ("", [title])
        [layout] = lay_out_sentences(small.encoder.reader, [title], [texts])
        own = slice(*data.sentences.offsets[row : row + 2])
        assert data.tokens[row].tolist() == layout.tokens.tolist()
        starts, ends, numbers = (column[own].tolist() for column in (data.sentences.starts, data.sentences.ends, data.sentences.numbers))  # fmt: skip
        if len(title) > 100:  # the title fills all that can be read
            assert (starts, ends, numbers) == ([0], [limit], [-1]) and not len(layout.numbers)
        else:
            assert [starts, ends, numbers] == [getattr(layout, name).tolist() for name in ("starts", "ends", "numbers")]
            assert len(numbers) == (1 if not small.splits[row][1] else len(layout.numbers)) > 0


def test_sentences_without_tokens_keep_the_numbers_of_the_others(small: SimpleNamespace) -> None:
    reader = small.encoder.reader
    layouts = lay_out_sentences(reader, ["a cell", "", "x"], [["", "we find", " ", "graphs"], [], ["the cell grows"]])
    records = [load_data._pack(layout) for layout in layouts]
    ends = np.cumsum([0, *map(len, records)])
    tokens, spans = load_data._unpack(TokenStore(np.concatenate(records).astype(np.uint16), ends))
    assert spans.counts().tolist() == [2, 0, 1] and spans.numbers.tolist() == [1, 3, 0]
    assert [tokens[row].tolist() for row in range(3)] == [layout.tokens.tolist() for layout in layouts]
    assert spans.starts.tolist() == [start for layout in layouts for start in layout.starts.tolist()]


def test_numbers_of_sentences_become_places() -> None:
    offsets = np.array([0, 2, 3, 5])
    spans = SentenceSpans(offsets, np.arange(5), np.arange(1, 6), np.array([1, 3, -1, 0, 4]))
    rows = np.array([10, 20, 30])
    pairs = [(10, 30, 3, 4), (10, 30, 1, 0), (30, 10, 4, 2), (20, 10, -1, 1), (30, 10, 0, 3), (20, 30, 0, 0)]
    anchors, positives, ours, theirs = np.array(pairs).T
    picks = SimpleNamespace(rows=positives, owners=lambda: np.arange(len(pairs)))
    aligned = SimpleNamespace(anchor_sentences=ours, sentences=theirs)
    samples: Any = SimpleNamespace(anchors=anchors, positives=picks, alignment=aligned)
    found = load_data.load_alignment(samples, rows, spans)
    assert found is not None and len(found.keys) == 2, "lost sentences align nothing, a pair keeps its first ones"
    assert found.find(np.array([0, 2, 1]), np.array([2, 0, 0])).tolist() == [[1, 1], [0, 1], [-1, -1]]
    samples.alignment = None
    assert load_data.load_alignment(samples, rows, spans) is None


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_rows_are_the_encoders_vectors_padded_or_packed(small: SimpleNamespace, pooling: str) -> None:
    data, encoder = small.data, small.encoder
    for normalize in (False, True):
        how = dataclasses.replace(encoder.settings, pooling=pooling, normalize=normalize)
        papers, found, gradients = np.array([3, 0, 4, 2, 1]), [], []
        for packed in (False, True):
            network = dataclasses.replace(encoder.network, packed=packed)
            assert network.packs is packed
            network.model.zero_grad()
            rows = encode_rows(data, network, how, papers)
            (rows * torch.linspace(-1, 1, rows.numel()).view_as(rows)).sum().backward()
            gradients.append([weight.grad for weight in network.model.parameters() if weight.grad is not None])
            found.append(rows.detach())
        torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
        assert len(gradients[0]) == len(gradients[1]) > 10
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(other, one, atol=1e-5 * float(one.abs().max() + 1), rtol=1e-3)
        layout = paper_rows(data.sentences, papers)
        with torch.no_grad():
            own = text_vectors(encoder.network, data.tokens.take(papers), how)
        torch.testing.assert_close(found[0][layout.own], own, atol=1e-5, rtol=1e-5)
        splits = [(title, texts) if texts else ("", [title]) for title, texts in (small.splits[p] for p in papers)]
        theirs = encode_sentences(encoder, *map(list, zip(*splits, strict=True)))
        ours = [found[0][row] for place, p in enumerate(papers) for row in layout.sentence_rows(np.array([place]))[0]
                if data.sentences.numbers[data.sentences.offsets[p]] >= 0]  # fmt: skip
        torch.testing.assert_close(torch.stack(ours), torch.from_numpy(theirs.matrix), atol=1e-5, rtol=1e-5)


# What losses make of it: a batch of ten papers with COUNTS sentences, vectors of five numbers

BATCH = build_batch(make_groups([0, 2, 0, 7], [[1, 3], [4], [5, 3], [8, 9]], [[6], [5], [], [2]]))
RELATED = make_lists([[4], [8], [], [5], [0], [3], [], [3], [1], []])
SENTENCES = make_alignment(np.array([0, 2, 0]), np.array([1, 4, 5]), np.array([[1, 0], [3, 0], [0, 1]]))
TRIPLETS = ("single", "attention", "transport", "peer")


def drawn(counts: list[int] = COUNTS, seed: int = 0) -> Any:
    size = (sum(counts) + len(counts), 5)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def loss_of(loss: str, batch: Batch = BATCH, counts: list[int] = COUNTS, related: Any = RELATED, **more: Any) -> Any:
    """The objective as a function of the matrix alone."""
    if loss in TRIPLETS:
        more |= {"distance": "transport", "mode": "geomloss"} if loss == "peer" else {"distance": loss}
        loss = "sentence_triplet"
    options = TrainingOptions(losses={loss: more}, unit="groups")
    objective_ = Objective(options.losses, LossInputs(related, sentences=spans_of(counts), alignment=SENTENCES))
    return lambda matrix: objective_(matrix, batch, batch)


def sentences_of(matrix: Any, paper: int, counts: list[int] = COUNTS) -> Any:
    first = sum(counts[:paper]) + paper + 1
    return matrix[first : first + counts[paper]]


def plain_triples(batch: Batch, known: list[list[int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Every pair with the next one whose positive may be its negative."""
    pairs = [(int(a), int(p)) for a, line in zip(batch.anchors, batch.positives, strict=True) for p in line if p >= 0]
    pairs = [(int(batch.papers[a]), int(batch.papers[p])) for a, p in pairs]
    found = []
    for at, (anchor, positive) in enumerate(pairs):
        for other in pairs[at + 1 :] + pairs[:at]:
            banned = {anchor, positive, *known[anchor], *known[positive], *(p for a, p in pairs if a == anchor)}
            if other[1] not in banned:
                found.append(((anchor, positive), other))
                break
    return found


def plain_lists(lists: Any) -> list[list[int]]:
    return [lists.papers[a:b].tolist() for a, b in zip(lists.offsets, lists.offsets[1:], strict=False)]


@settings(max_examples=60)
@given(st.data())
def test_negatives_of_the_batch_are_no_relatives(data: st.DataObject) -> None:
    paper = st.integers(0, 9)
    anchors = data.draw(st.lists(paper, min_size=1, max_size=6))
    positives = [data.draw(st.lists(paper, min_size=1, max_size=3)) for _ in anchors]
    known = make_lists(data.draw(st.lists(st.lists(paper, max_size=2), min_size=10, max_size=10)))
    batch = build_batch(make_groups(anchors, positives, [[]] * len(anchors)))

    def allowed(left: Any, right: Any) -> Any:
        return allowed_pairs(batch.papers[left], batch.papers[right], known)

    found = sentence_objective._in_batch_triplets(batch, allowed, None)
    triples = batch.papers[np.stack(found[:3], axis=1)].tolist() if len(found.anchors) else []
    assert triples == [[*pair, other[1]] for pair, other in plain_triples(batch, plain_lists(known))]
    for anchor, positive, negative in triples:
        own = {p for a, ps in zip(anchors, positives, strict=True) for p in ps if a == anchor}
        assert negative not in {anchor, positive, *own, *plain_lists(known)[anchor], *plain_lists(known)[positive]}


def plain_distances(name: str, matrix: Any, pairs: list[tuple[int, int]]) -> Any:
    sides = [[sentences_of(matrix, pair[side]) for pair in pairs] for side in (0, 1)]
    if name in ("transport", "peer"):  # whose own tests compare it with other code
        distance = DocumentDistance("transport", 0.5, mode="geomloss" if name == "peer" else "exact", start="batch")
        return match(PaperPairs.of(*sides), distance).training
    found = []
    for left, right in zip(*sides, strict=True):
        apart = torch.stack([(x - y).norm() for x in left for y in right])
        found.append(apart.min() if name == "single" else (torch.softmax(-apart / 0.5, 0) * apart).sum())
    return torch.stack(found)


def agree(found: Any, wanted: Any, matrix: Any) -> None:
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5) and found.item() > 0
    gradients = [torch.autograd.grad(value, matrix)[0] for value in (found, wanted)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("negatives", ["batch", "own"])
@pytest.mark.parametrize("name", TRIPLETS)
def test_the_margin_between_papers_is_that_of_loops(name: str, negatives: str) -> None:
    matrix = drawn()
    triples = [(a, p, n) for (a, p), (_, n) in plain_triples(BATCH, plain_lists(RELATED))]
    if negatives == "own":
        triples = [tuple(row) for row in BATCH.papers[BATCH.triplets].tolist()]
    near, far = (plain_distances(name, matrix, [(t[0], t[at]) for t in triples]) for at in (1, 2))
    assert len(triples) > 3
    agree(loss_of(name, negatives=negatives, margin=2.0)(matrix), torch.relu(near - far + 2).mean(), matrix)


@pytest.mark.parametrize("negatives", ["batch", "own"])
def test_the_margin_between_aligned_sentences_is_that_of_loops(negatives: str) -> None:
    matrix, known = drawn(), {(0, 1): (1, 0), (2, 4): (3, 0), (0, 5): (0, 1)}

    def distance(left: int, right: int, ours: int | None, theirs: int | None) -> Any:
        lefts, rights = sentences_of(matrix, left), sentences_of(matrix, right)
        lefts, rights = lefts if ours is None else lefts[[ours]], rights if theirs is None else rights[[theirs]]
        return torch.stack([(x - y).norm() for x in lefts for y in rights]).min()

    triples = plain_triples(BATCH, plain_lists(RELATED))
    if negatives == "own":
        triples = [((a, p), (-1, n)) for a, p, n in BATCH.papers[BATCH.triplets].tolist()]
    assert {pair in known for pair, _ in triples} == {True, False}
    losses = []
    for (anchor, positive), other in triples:
        ours, theirs = known.get((anchor, positive), (None, None))
        near = distance(anchor, positive, ours, theirs)
        far = distance(anchor, other[1], ours, known.get(other, (None, None))[1])
        losses.append(torch.relu(near - far + 2))
    agree(loss_of("aligned_triplet", negatives=negatives, margin=2.0)(matrix), torch.stack(losses).mean(), matrix)


@pytest.mark.parametrize("match_", ["mean_best", "single", "attention"])
def test_matches_in_the_batch_are_those_of_loops(match_: str) -> None:
    matrix, known, losses = drawn(), plain_lists(RELATED), []

    def score(left: int, right: int) -> Any:
        lefts, rights = sentences_of(matrix, left), sentences_of(matrix, right)
        alike = torch.stack([torch.stack([torch.cosine_similarity(x, y, 0) for y in rights]) for x in lefts])
        own = torch.cosine_similarity(matrix[sum(COUNTS[:left]) + left], matrix[sum(COUNTS[:right]) + right], 0)
        weights = torch.softmax(alike.flatten() / 0.05, 0).view_as(alike)
        found = {"mean_best": alike.amax(1).mean(), "single": alike.max(), "attention": (weights * alike).sum()}
        return 0.7 * found[match_] + 0.3 * own

    groups = [(0, [1, 3], [6]), (2, [4], [5]), (0, [5, 3], []), (7, [8, 9], [2])]
    candidates = {paper for _, ups, downs in groups for paper in ups + downs}
    for anchor, ups, downs in groups:
        own = {paper for other, papers, _ in groups if other == anchor for paper in papers}
        rivals = sorted((candidates - own - {anchor, *known[anchor]}) | set(downs))
        for up in ups:
            scores = torch.stack([score(anchor, paper) for paper in (up, *rivals)]) / 0.1
            losses.append(torch.logsumexp(scores, 0) - scores[0])
    found = loss_of("sentence_in_batch", match=match_, whole=0.3, temperature=0.1)(matrix)
    agree(found, torch.stack(losses).mean(), matrix)


EVERY: dict[str, dict[str, float]] = {name: {} for name in (*TRIPLETS, "aligned_triplet", "sentence_in_batch")}
SMOOTH: dict[str, dict[str, Any]] = {
    name: {"margin": 2.0} for name in ("single", "attention", "transport", "aligned_triplet")
}


@pytest.mark.parametrize("name", [*SMOOTH, "sentence_in_batch"])
def test_gradients_are_those_of_small_differences(name: str) -> None:
    loss = loss_of(name, **SMOOTH.get(name, {"temperature": 0.5}))  # margins are of single precision: wide differences
    assert torch.autograd.gradcheck(loss, drawn(seed=3), eps=1e-3, atol=5e-3, rtol=1e-2, fast_mode=True)


@pytest.mark.parametrize("name", EVERY)
def test_a_lone_pair_has_nothing_to_learn(name: str) -> None:
    for groups in (make_groups([0], [[1]], [[]]), make_groups([0, 0], [[1], [3]], [[], []])):
        matrix = drawn([2, 1, 3][: len(build_batch(groups).papers)])
        counts = {2: [2, 1], 3: [2, 1, 9, 3]}[len(build_batch(groups).papers)]
        loss = loss_of(name, build_batch(groups), counts, related=None)(matrix)
        loss.backward()
        assert loss.item() == 0 and not matrix.grad.any()


@pytest.mark.parametrize("name", EVERY)
def test_short_long_and_equal_sentences_stay_finite(name: str) -> None:
    counts = [60, 1, 1, 60, 2, 5, 1, 3, 1, 60]
    for fill in (lambda x: x, torch.ones_like, torch.zeros_like):
        matrix = fill(drawn(counts).detach()).requires_grad_()
        loss = loss_of(name, counts=counts)(matrix)
        loss.backward()
        assert loss.isfinite() and matrix.grad.isfinite().all() and matrix.grad.abs().max() < 1e3


def test_facets_are_runs_and_a_function_of_the_batch() -> None:
    counts = np.array([1, 5, 9, 3] * 50)
    runs = sentence_objective._draw_sentence_runs(counts, 0.5, 7)
    for run, count in zip(runs, counts.tolist(), strict=True):
        places = np.flatnonzero(run)
        assert 1 <= len(places) == places[-1] - places[0] + 1 and places[-1] < count
    whole = (runs.sum(1) == counts)[counts > 1].mean()
    assert 0.5 < whole < 0.75  # half of them, and some runs are all there is
    assert (sentence_objective._draw_sentence_runs(counts, 0.5, 7) == runs).all() and (
        sentence_objective._draw_sentence_runs(counts, 0.5, 8) != runs
    ).any()
    matrix, loss = drawn(), loss_of("sentence_in_batch", facets=1.0)
    assert loss(matrix).item() == loss(matrix).item() != loss_of("sentence_in_batch")(matrix).item()
    assert math.isfinite(loss(matrix).item())
