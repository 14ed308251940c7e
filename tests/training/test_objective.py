"""What losses make of a batch, against plain loops: aspects' spaces, negatives of the batch, sentences; and masked tokens."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from citeweave.core.randomness import stream
from citeweave.mining.inputs import MiningInputs
from citeweave.mining.mine import mine_samples
from citeweave.mining.rules import parse_rules
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.training import sentence_objective
from citeweave.training.batch_negatives import allowed_pairs, batch_candidates, mark_negatives
from citeweave.training.data import (
    Batch,
    Batches,
    build_batch,
    make_alignment,
    make_groups,
    make_lists,
)
from citeweave.training.objective import LossInputs, Objective, Settings, mask_tokens
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan, training_options
from citeweave.training.partial import heads_to_arrays, make_heads
from citeweave.vectors.document_distance import DocumentDistance, match
from citeweave.vectors.sentence_distances import PaperPairs

from .conftest import HYBRID, refused
from .test_data import spans_of

WITHIN_BATCH = pytest.mark.parametrize(
    ("name", "settings"), [("in_batch", {}), ("supcon", {"scope": "batch"})], ids=["in_batch", "supcon"]
)
RELATED = make_lists([[1, 2], [0], [0], [], [], []])
"""Paper 0 cites 1 as background and 2 for its method."""


RULES = ("local", "global")


def supcon(vectors: NDArray[np.float64], anchor: int, positive: int, negatives: list[int], t: float = 0.05) -> float:
    """-log softmax of the positive's cosine among all: the thesis's equation 5.1 with one positive, written out."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.exp(unit[[positive, *negatives]] @ unit[anchor] / t)
    return float(-np.log(scores[0] / scores.sum()))


def drawn_vectors(seed: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 4))).float()


def two_reasons() -> Batch:
    """Anchor 0 once as background and once for method, each time with what it cites for the other reason as `local`."""
    groups = make_groups([0, 0, 5], positives=[[1], [2], [4]], negatives=[[2, 3], [1, 3], [2]])
    return build_batch(dataclasses.replace(groups, aspects=np.array([0, 1, 0]), rules=np.array([0, 1, 0, 1, 1])))


@WITHIN_BATCH
def test_the_encoders_space_pushes_nothing_away_that_is_cited_for_another_reason(name, settings):
    losses = training_options({"unit": "groups", "losses": {name: {**settings, "negatives_by": "global"}}}).losses
    objective, vectors = Objective(losses, LossInputs(related=RELATED, rules=RULES)), drawn_vectors(2)
    batch = two_reasons()
    # 2 is a candidate, being a positive of its own group and the global negative of 5; it opposes 5 alone
    triples: list[tuple[int, int, list[int]]] = [(0, 1, [3, 4]), (0, 2, [3, 4]), (5, 4, [1, 2, 3])]
    expected = [supcon(vectors.double().numpy(), *triple) for triple in triples]
    assert float(objective(vectors, batch, batch)) == pytest.approx(np.mean(expected), rel=1e-4)


@WITHIN_BATCH
def test_in_an_aspects_space_what_is_cited_for_another_reason_is_a_negative(name, settings):
    heads = make_heads(("background", "method"), 4, EncoderOptions(heads="linear"), seed=1)
    asked = {f"aspect_{name}": {**settings, "negatives_by": "local"}}
    losses = training_options({"unit": "groups", "losses": asked}).losses
    objective = Objective(losses, LossInputs(related=RELATED, heads=heads, rules=RULES))
    vectors, batch, arrays = drawn_vectors(2), two_reasons(), heads_to_arrays(heads)
    background, method = (arrays.project(vectors.numpy(), name).astype(float) for name in arrays.names)
    # paper 0 is related to 2, and yet it was given as a negative
    expected = [supcon(background, 0, 1, [2, 4]), supcon(method, 0, 2, [1]), supcon(background, 5, 4, [1, 2])]
    assert float(objective(vectors, batch, batch).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_the_hybrid_loss_is_the_formula():
    groups = dataclasses.replace(
        make_groups([0, 0, 5], positives=[[1], [2], [1]], negatives=[[2, 3], [1, 4, 3], [4, 2]]),
        aspects=np.array([0, 1, 1]),
        rules=np.array([1, 2, 1, 2, 2, 1, 2]),  # 1 = local, 2 = global
    )
    heads = make_heads(("background", "method"), 4, EncoderOptions(heads="linear", head_size=3), seed=3)
    losses = training_options({"unit": "groups", "losses": HYBRID}).losses
    objective = Objective(losses, LossInputs(heads=heads, rules=("positive", *RULES)))
    vectors, batch = drawn_vectors(0), build_batch(groups)
    found = float(objective(vectors, batch, batch).detach())
    given, arrays = vectors.double().numpy(), heads_to_arrays(heads)
    spaces = [arrays.project(given, name).astype(float) for name in arrays.names]
    local = [supcon(spaces[0], 0, 1, [2]), supcon(spaces[1], 0, 2, [1]), supcon(spaces[1], 5, 1, [4])]
    wide = [supcon(given, 0, 1, [3]), supcon(given, 0, 2, [4, 3]), supcon(given, 5, 1, [2])]
    assert found == pytest.approx(0.3 * np.mean(local) + 0.7 * np.mean(wide), rel=1e-4)
    parts = [build_batch(groups.take(np.array(which))) for which in ([0, 2], [1])]
    in_parts = sum(float(objective(vectors[part.papers], part, batch).detach()) for part in parts)
    assert in_parts == pytest.approx(found, rel=1e-5)


def test_oversampled_positives_count_as_often():
    """SciAspect thesis, section 5.1: positives are repeated where there are too few, and the loss is a mean over them."""
    vectors = drawn_vectors(0)
    batch = build_batch(make_groups([0], [[1, 2, 1]], [[3, 4]]))
    terms = torch.nn.functional.normalize(vectors, dim=1)
    scores = (terms[0] @ terms[[1, 2, 1, 3, 4]].T) / 0.05
    expected = (scores.logsumexp(0) - scores[:3]).mean()
    settings = training_options({"unit": "groups", "losses": {"supcon": {}}}).losses
    assert Objective(settings)(vectors, batch, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    once = build_batch(make_groups([0], [[1, 2]], [[3, 4]]))
    for name in ("info_nce", "n_pairs", "in_batch"):  # each positive is an example of its own, and counts once
        loss = Objective(training_options({"losses": {name: {}}}).losses)
        assert loss(vectors, batch, batch).item() == pytest.approx(loss(vectors, once, once).item(), rel=1e-6)


def test_negatives_of_the_batch_are_those_of_the_same_aspect():
    groups = make_groups([0, 2, 4], positives=[[1], [3], [5]], negatives=[[]] * 3)
    batch = build_batch(dataclasses.replace(groups, aspects=np.array([0, 0, 1])))
    heads = make_heads(("background", "method"), 4, EncoderOptions(heads="two_layers"), seed=1)
    losses = {"aspect_in_batch": {"weight": 1.0, "temperature": 0.1, "relatives": False, "negatives_by": ""}}
    objective, vectors = Objective(losses, LossInputs(heads=heads)), drawn_vectors(0)
    space = heads_to_arrays(heads).project(vectors.numpy(), "background").astype(float)
    expected = [supcon(space, 0, 1, [3], 0.1), supcon(space, 2, 3, [1], 0.1), 0.0]  # 4 has nobody to differ from
    assert float(objective(vectors, batch, batch).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_what_the_recipe_intent_spaces_pushes_away(literature, tmp_path):
    """Of its own batches, by the graph: nothing connected in the encoder's space, nothing of the aspect in an aspect's."""
    recipe = load_recipe("intent_spaces", ["training.batch=24", f"encoder.init={literature.model}"])
    read, graph = read_recipe(recipe), literature.graph
    rules = parse_rules(recipe.table("mining"))
    samples = mine_samples(literature.corpus, rules, tmp_path / "s", MiningInputs(graph=graph))
    mined = dataclasses.replace(literature, samples=samples)
    _, data = mined.load(tmp_path / "t", TrainingPlan(read.encoder, read.training))
    edges: dict[tuple[int, int], int] = {}
    for a, b, bits in zip(graph.sources().tolist(), graph.cited.targets.tolist(), graph.intents.tolist(), strict=True):
        for pair in ((a, b), (b, a)):
            edges[pair] = edges.get(pair, 0) | bits
    inputs = LossInputs(related=data.related, rules=data.rules)
    batches, losses = Batches(data.groups, read.training), read.training.losses
    locals_seen = 0
    for step in range(3):
        batch = batches.at(step)
        rows = data.rows[batch.papers]
        plain = batch.with_negatives_by([data.rules.index("global")])
        anchors, opposed = _pushed(plain, losses["in_batch"], inputs)
        assert not any((rows[a], rows[b]) in edges for a, b in zip(anchors, opposed, strict=True))
        for number, aspect in enumerate(data.aspects):
            own = batch.with_negatives_by([data.rules.index("local")]).of_aspect(number)
            pairs = zip(*_pushed(own, losses["aspect_in_batch"], inputs), strict=True)
            masks = [edges.get((rows[a], rows[b]), 0) for a, b in pairs]
            bit = {"background": 1, "method": 2, "result": 4}[aspect]
            assert not any(mask & bit for mask in masks)
            locals_seen += sum(mask > 0 for mask in masks)
    assert locals_seen > 20


def _pushed(batch: Batch, settings: Settings, inputs: LossInputs) -> tuple[list[int], list[int]]:
    """Anchors and the candidates that a loss pushes away from them, as places in the batch."""
    candidates, related = batch_candidates(batch), inputs.related if settings["relatives"] else None
    owner, column = np.nonzero(mark_negatives(batch, np.arange(len(batch.anchors)), candidates, related))
    return batch.anchors[owner].tolist(), candidates[column].tolist()


# Sentences: a batch of ten papers with COUNTS sentences, vectors of five numbers

COUNTS = [2, 1, 4, 3, 1, 2, 3, 2, 1, 3]
BATCH = build_batch(make_groups([0, 2, 0, 7], [[1, 3], [4], [5, 3], [8, 9]], [[6], [5], [], [2]]))
CONNECTED = make_lists([[4], [8], [], [5], [0], [3], [], [3], [1], []])
ALIGNED = {(0, 1): (1, 0), (2, 4): (3, 0), (0, 5): (0, 1)}
ALIGNMENT = make_alignment(*np.array([*ALIGNED]).T, np.array([*ALIGNED.values()]))
TRIPLETS = ("single", "attention", "transport", "peer")
EVERY = (*TRIPLETS, "aligned_triplet", "sentence_in_batch")


def drawn(counts: list[int] = COUNTS, seed: int = 0) -> Any:
    size = (sum(counts) + len(counts), 5)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def loss_of(loss: str, batch: Batch = BATCH, counts: list[int] = COUNTS, related: Any = CONNECTED, **more: Any) -> Any:
    """The objective as a function of the matrix alone."""
    if loss in TRIPLETS:
        more |= {"distance": "transport", "mode": "geomloss"} if loss == "peer" else {"distance": loss}
        loss = "sentence_triplet"
    options = TrainingOptions(losses={loss: more}, unit="groups")
    objective_ = Objective(options.losses, LossInputs(related, sentences=spans_of(counts), alignment=ALIGNMENT))
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
def test_negatives_of_the_batch_are_no_relatives(data):
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
def test_the_margin_between_papers_is_that_of_loops(name, negatives):
    matrix = drawn()
    triples = [(a, p, n) for (a, p), (_, n) in plain_triples(BATCH, plain_lists(CONNECTED))]
    if negatives == "own":
        triples = [tuple(row) for row in BATCH.papers[BATCH.triplets].tolist()]
    near, far = (plain_distances(name, matrix, [(t[0], t[at]) for t in triples]) for at in (1, 2))
    assert len(triples) > 3
    agree(loss_of(name, negatives=negatives, margin=2.0)(matrix), torch.relu(near - far + 2).mean(), matrix)


@pytest.mark.parametrize("negatives", ["batch", "own"])
def test_the_margin_between_aligned_sentences_is_that_of_loops(negatives):
    matrix, nothing = drawn(), (None, None)

    def distance(left: int, right: int, ours: int | None, theirs: int | None) -> Any:
        lefts, rights = sentences_of(matrix, left), sentences_of(matrix, right)
        lefts, rights = lefts if ours is None else lefts[[ours]], rights if theirs is None else rights[[theirs]]
        return torch.stack([(x - y).norm() for x in lefts for y in rights]).min()

    triples = plain_triples(BATCH, plain_lists(CONNECTED))
    if negatives == "own":
        triples = [((a, p), (-1, n)) for a, p, n in BATCH.papers[BATCH.triplets].tolist()]
    assert {pair in ALIGNED for pair, _ in triples} == {True, False}
    losses = []
    for pair, other in triples:
        ours, theirs = ALIGNED.get(pair, nothing)
        far = distance(pair[0], other[1], ours, ALIGNED.get(other, nothing)[1])
        losses.append(torch.relu(distance(*pair, ours, theirs) - far + 2))
    agree(loss_of("aligned_triplet", negatives=negatives, margin=2.0)(matrix), torch.stack(losses).mean(), matrix)


@pytest.mark.parametrize("match_", ["mean_best", "single", "attention"])
def test_matches_in_the_batch_are_those_of_loops(match_):
    matrix, known, losses = drawn(), plain_lists(CONNECTED), []

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


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_those_of_small_differences_and_stay_finite(name):
    if name != "peer":
        loss = loss_of(name, **({"temperature": 0.5} if name == "sentence_in_batch" else {"margin": 2.0}))
        # margins are of single precision: wide differences
        assert torch.autograd.gradcheck(loss, drawn(seed=3), eps=1e-3, atol=5e-3, rtol=1e-2, fast_mode=True)
    counts = [60, 1, 1, 60, 2, 5, 1, 3, 1, 60]
    for fill in (lambda x: x, torch.ones_like, torch.zeros_like):
        matrix = fill(drawn(counts).detach()).requires_grad_()
        value = loss_of(name, counts=counts)(matrix)
        value.backward()
        assert value.isfinite() and matrix.grad.isfinite().all() and matrix.grad.abs().max() < 1e3


@pytest.mark.parametrize("name", EVERY)
def test_a_lone_pair_has_nothing_to_learn(name):
    for groups in (make_groups([0], [[1]], [[]]), make_groups([0, 0], [[1], [3]], [[], []])):
        batch = build_batch(groups)
        matrix = drawn([2, 1, 3][: len(batch.papers)])
        loss = loss_of(name, batch, {2: [2, 1], 3: [2, 1, 9, 3]}[len(batch.papers)], related=None)(matrix)
        loss.backward()
        assert loss.item() == 0 and not matrix.grad.any()


def test_facets_are_runs_and_a_function_of_the_batch():
    counts = np.array([1, 5, 9, 3] * 50)
    runs = sentence_objective._draw_sentence_runs(counts, 0.5, 7)
    for run, count in zip(runs, counts.tolist(), strict=True):
        places = np.flatnonzero(run)
        assert 1 <= len(places) == places[-1] - places[0] + 1 and places[-1] < count
    whole = (runs.sum(1) == counts)[counts > 1].mean()
    assert 0.5 < whole < 0.75  # half of them, and some runs are all there is
    same, other = (sentence_objective._draw_sentence_runs(counts, 0.5, seed) for seed in (7, 8))
    assert (same == runs).all() and (other != runs).any()
    matrix, loss = drawn(), loss_of("sentence_in_batch", facets=1.0)
    assert loss(matrix).item() == loss(matrix).item() != loss_of("sentence_in_batch")(matrix).item()
    assert math.isfinite(loss(matrix).item())


SPECIAL, MASK, VOCABULARY = [0, 1, 2], 3, 1000


def masked(tokens, seed=0, **options):
    return mask_tokens(tokens, SPECIAL, VOCABULARY, MASK, stream(seed, "masking"), **options)


def test_shares_are_berts():
    tokens = np.full(200_000, 500, np.uint16)
    found, other = masked(tokens), masked(tokens, 1)
    assert not np.array_equal(found.places, other.places)
    chosen = found.tokens[found.places]
    assert len(found.places) / len(tokens) == pytest.approx(0.15, abs=0.005)
    assert (chosen == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (chosen == 500).mean() == pytest.approx(0.1, abs=0.01)
    drawn = chosen[(chosen != MASK) & (chosen != 500)]
    assert len(drawn) / len(chosen) == pytest.approx(0.1, abs=0.01)
    assert drawn.min() < 20 and 980 < drawn.max() < VOCABULARY


@settings(max_examples=50)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=50), st.integers(0, 9), st.sampled_from([0.0, 0.15, 1.0]))
def test_only_chosen_places_change_and_special_tokens_never(tokens, seed, share):
    tokens = np.array(tokens, np.int64)
    before = tokens.copy()
    found, again = masked(tokens, seed, share=share), masked(tokens, seed, share=share)
    assert np.array_equal(tokens, before) and all(map(np.array_equal, found, again))
    assert np.array_equal(found.targets, before[found.places])
    assert not np.isin(found.targets, SPECIAL).any()
    rest = np.ones(len(tokens), bool)
    rest[found.places] = False
    assert np.array_equal(found.tokens[rest], before[rest])
    if share == 1:
        assert np.array_equal(rest, np.isin(before, SPECIAL))
    refused("share of masked tokens is 15", masked, tokens, share=15)
