"""Losses: padding and masks, what has nothing to contrast, precision, and gradients by differences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.training import contrastive_losses as contrastive
from citeweave.training import pairwise_losses as pairwise

from .conftest import refused


def vectors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def cos(x, y):
    return torch.nn.functional.cosine_similarity(x, y, dim=-1).item()


LABELS = torch.tensor([1.0, 0.0, 0.5, 1.0])
MASK = torch.tensor([[True, True, False], [True, False, True], [True, True, True], [False, True, False]])
MATCHED = [(4, 3, 6), (3, 4, 6)]


def matched(queries, candidates, name):
    return pairwise.match_scores(queries, candidates, MASK, MASK.T, match=name)


ALL = {
    "triplet": (pairwise.triplet, [(4, 6)] * 3),
    "triplet cosine": (lambda *x: pairwise.triplet(*x, distance="cosine"), [(4, 6)] * 3),
    "n_pairs": (lambda *x: contrastive.n_pairs(*x, negative_mask=MASK), [(4, 6), (4, 6), (4, 3, 6)]),
    "n_pairs product": (lambda *x: contrastive.n_pairs(*x, similarity="product", temperature=1), [(4, 6), (4, 6)]),
    "info_nce": (
        lambda *x: contrastive.info_nce(*x, positive_mask=MASK, negative_mask=~MASK),
        [(4, 6)] + [(4, 3, 6)] * 2,
    ),
    "supcon": (lambda *x: contrastive.supcon(*x, positive_mask=MASK, negative_mask=~MASK), [(4, 6)] + [(4, 3, 6)] * 2),
    "supcon_in_batch": (lambda *x: contrastive.supcon_in_batch(*x, MASK), [(4, 6), (3, 6)]),
    "in_batch": (lambda *x: contrastive.in_batch(*x, torch.tensor([2, 0, 1, -1])), [(4, 6), (3, 6)]),
    "gte": (lambda a, p, n: contrastive.gte(a, p, negatives=n, negative_mask=MASK), [(4, 6), (4, 6), (4, 3, 6)]),
    "cosent": (lambda *x: pairwise.cosent(*x, LABELS), [(4, 6)] * 2),
    "angle": (lambda *x: pairwise.angle(*x, LABELS), [(4, 5)] * 2),
    "angle_sum": (lambda *x: pairwise.angle_sum(*x, LABELS, weights=(1, 2, 3)), [(4, 6)] * 2),
    "student_teacher": (pairwise.student_teacher, [(4, 6), (4, 3)]),
    "similarity": (pairwise.similarity, [(4, 6), (4, 3)]),
    "match mean_best": (lambda *x: contrastive.scores_in_batch(matched(*x, "mean_best"), torch.eye(4, 3) > 0), MATCHED),
    "match single": (lambda *x: contrastive.scores_in_batch(matched(*x, "single"), torch.eye(4, 3) > 0), MATCHED),
    "match attention": (lambda *x: contrastive.scores_in_batch(matched(*x, "attention"), torch.eye(4, 3) > 0), MATCHED),
    "masked_language": (lambda x: pairwise.masked_language(x, torch.tensor([1, 0, 3, 3])), [(4, 6)]),
}


@pytest.mark.parametrize("name", ALL)
def test_gradients_precision_and_papers_that_coincide(name):
    loss, shapes = ALL[name]
    assert torch.autograd.gradcheck(loss, vectors(1, *shapes))
    halves = [x.detach().to(torch.bfloat16) for x in vectors(2, *shapes)]
    expected = loss(*(x.double() for x in halves))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(*halves)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(expected.item(), rel=1e-4)
    for fill in (torch.zeros, torch.ones):
        inputs = [fill(shape, requires_grad=True) for shape in shapes]
        value = loss(*inputs)
        value.backward()
        assert value.isfinite() and all(x.grad.isfinite().all() and x.grad.abs().max() < 1e3 for x in inputs)


@pytest.mark.parametrize(
    "name", ["triplet cosine", "info_nce", "supcon", "gte", "cosent", "angle", "student_teacher", "similarity"]
)
def test_a_vector_of_zeros_among_others_has_no_huge_gradient(name):
    loss, shapes = ALL[name]
    inputs = vectors(16, *shapes)
    inputs[0] = (inputs[0].detach() * torch.tensor([[0.0], [1.0], [1.0], [1.0]])).requires_grad_()
    gradient = torch.autograd.grad(loss(*inputs), inputs[0])[0]
    assert gradient.isfinite().all() and gradient.abs().max() < 1e3


def test_a_triplet_at_distance_0_has_no_gradient_there():
    anchor = torch.tensor([[1.0, 2.0]], requires_grad=True)
    positive, negative = anchor.detach().clone().requires_grad_(), torch.tensor([[1.0, 2.5]], requires_grad=True)
    loss = pairwise.triplet(anchor, positive, negative)
    loss.backward()
    assert loss.item() == 0.5 and not positive.grad.any()
    assert negative.grad.tolist() == [[0.0, -1.0]] and anchor.grad.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("name", ["mean_best", "single", "attention"])
def test_matches_do_not_see_padding_and_have_their_bounds(name):
    queries, candidates = vectors(20, *MATCHED)
    found = matched(queries, candidates, name)
    with torch.no_grad():
        filled = [torch.where(mask[:, :, None], x, 7.0) for x, mask in ((queries, MASK), (candidates, MASK.T))]
    torch.testing.assert_close(matched(*filled, name), found)
    assert ((matched(queries, queries[:3, [0, 1, 2, 0]], name) - 1).abs() < 1e-3).any()  # a paper matches itself
    assert found.abs().max() <= 1 and (matched(queries, candidates, "single") >= found - 1e-12).all()


def test_infinite_distances_that_are_masked_have_no_gradient():
    near, far = vectors(21, (4,), (4,))
    apart = torch.tensor([0.0, torch.inf, 0.0, 0.0], dtype=torch.float64)
    found = pairwise.distance_margin(near + apart, far + apart, margin=3.0, mask=torch.isfinite(apart))
    assert found.item() == pytest.approx(sum(max(0.0, near[n].item() - far[n].item() + 3) for n in (0, 2, 3)) / 3)
    gradient = torch.autograd.grad(found, near)[0]
    assert gradient.isfinite().all() and not gradient[1]


def test_triplets_of_ragged_groups():
    anchors, positives, negatives = vectors(3, (4, 1, 6), (4, 1, 6), (4, 3, 6))
    found = pairwise.triplet(anchors, positives, negatives, mask=MASK, margin=3.0)
    pairs = MASK.nonzero().tolist()
    alone = [pairwise.triplet(anchors[g], positives[g], negatives[g, n : n + 1], margin=3.0).item() for g, n in pairs]
    assert found.item() == pytest.approx(sum(alone) / len(alone))


def exponents(anchor, papers, mask, t):
    return [math.exp(cos(anchor, paper) / t) for paper, there in zip(papers, mask, strict=True) if there]


def plain_info_nce(anchors, positives, negatives, wanted, opposed, t):
    found = []
    for g, anchor in enumerate(anchors):
        rivals = exponents(anchor, negatives[g], opposed[g], t)
        if rivals:
            found += [-math.log(hit / (hit + sum(rivals))) for hit in exponents(anchor, positives[g], wanted[g], t)]
    return sum(found) / len(found) if found else 0.0


def plain_supcon(anchors, positives, negatives, wanted, opposed, t):
    found = []
    for g, anchor in enumerate(anchors):
        hits, rivals = exponents(anchor, positives[g], wanted[g], t), exponents(anchor, negatives[g], opposed[g], t)
        if hits and rivals:
            found.append(sum(-math.log(hit / (sum(hits) + sum(rivals))) for hit in hits) / len(hits))
    return sum(found) / len(found) if found else 0.0


masks = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=2).map(torch.tensor)


@settings(max_examples=40)
@given(masks, masks, st.integers(0, 99), st.sampled_from([0.05, 1.0]))
def test_ragged_groups_equal_plain_sums_and_ignore_padding(wanted, opposed, seed, temperature):
    anchors, positives, negatives = vectors(seed, (2, 4), (2, 3, 4), (2, 3, 4))
    for loss, plain in ((contrastive.info_nce, plain_info_nce), (contrastive.supcon, plain_supcon)):

        def ours(p, n, loss=loss):
            return loss(anchors, p, n, positive_mask=wanted, negative_mask=opposed, temperature=temperature)

        found = ours(positives, negatives)
        expected = plain(anchors, positives, negatives, wanted, opposed, temperature)
        assert found.item() == pytest.approx(expected, abs=1e-9)
        gradients = torch.autograd.grad(found, [anchors, positives, negatives])
        assert all(x.isfinite().all() for x in gradients)
        assert not gradients[1][~wanted].any() and not gradients[2][~opposed].any()
        rubbish = ours(*(x.masked_fill(~m[..., None], 1e6) for x, m in ((positives, wanted), (negatives, opposed))))
        assert rubbish.item() == found.item()


def test_nothing_to_contrast_is_no_loss():
    anchors, positives, negatives = vectors(4, (3, 4), (3, 2, 4), (3, 2, 4))
    for loss in (contrastive.info_nce, contrastive.supcon):
        assert loss(anchors, positives[:, :0], negatives).item() == 0
        nothing = loss(anchors, positives, negatives, positive_mask=torch.zeros(3, 2, dtype=torch.bool))
        assert nothing.item() == 0 and not torch.autograd.grad(nothing, [anchors])[0].any()
    x, y = vectors(14, (4, 6), (4, 6))
    assert pairwise.cosent(x, y, torch.ones(4)).item() == pairwise.cosent(x[:0], y[:0], torch.ones(0)).item() == 0
    loss = pairwise.masked_language(torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0


def test_one_positive_makes_the_softmax_losses_one():
    anchors, positives, negatives = vectors(5, (4, 6), (4, 6), (4, 3, 6))
    known = [
        contrastive.supcon(anchors, positives[:, None], negatives, negative_mask=MASK),
        contrastive.info_nce(anchors, positives, negatives, negative_mask=MASK, temperature=0.05),
        contrastive.n_pairs(anchors, positives, negatives, negative_mask=MASK),
    ]
    assert known[0].item() == pytest.approx(known[1].item()) == pytest.approx(known[2].item())
    among_positives = contrastive.in_batch(anchors, positives, torch.arange(4))
    assert contrastive.n_pairs(anchors, positives).item() == pytest.approx(among_positives.item())


def test_n_pairs_with_products_is_sohns_sum():
    anchors, positives = vectors(6, (4, 6), (4, 6))
    products = (anchors @ positives.T).tolist()
    terms = [math.log(1 + sum(math.exp(products[i][j] - products[i][i]) for j in range(4) if j != i)) for i in range(4)]
    found = contrastive.n_pairs(anchors, positives, similarity="product", temperature=1.0)
    assert found.item() == pytest.approx(sum(terms) / 4)


def test_known_relatives_are_no_negatives_but_the_positive_stays():
    anchors, candidates = vectors(7, (2, 5), (4, 5))
    allowed = torch.tensor([[False, False, True, False], [True, True, True, True]])
    found = contrastive.in_batch(anchors, candidates, torch.tensor([0, -1]), allowed=allowed, temperature=0.5)
    hit, rival = (math.exp(cos(anchors[0], candidates[at]) / 0.5) for at in (0, 2))
    assert found.item() == pytest.approx(-math.log(hit / (hit + rival)))
    gradient = torch.autograd.grad(found, candidates)[0]
    assert not gradient[[1, 3]].any() and gradient[[0, 2]].any(1).all()
    # an anchor whose every other candidate is a relative is left out
    anchors, candidates = vectors(8, (2, 5), (3, 5))
    places, allowed = torch.tensor([0, 1]), torch.tensor([[False] * 3, [True] * 3])
    found = contrastive.in_batch(anchors, candidates, places, allowed=allowed)
    assert found.item() == pytest.approx(contrastive.in_batch(anchors[1:], candidates, places[1:]).item())
    assert contrastive.in_batch(anchors[:1], candidates[:1], places[:1]).item() == 0


def plain_gte(q, d, allowed, t):
    count, texts, found = len(q), torch.cat([q, d]), []
    for i in range(count):
        z = 2 * math.exp(cos(q[i], d[i]) / t)
        for left in (i, count + i):
            apart = [j for j in range(2 * count) if j % count != i and allowed[left, j]]
            z += sum(math.exp(cos(texts[left], texts[j]) / t) for j in apart)
        found.append(-math.log(math.exp(cos(q[i], d[i]) / t) / z))
    return sum(found) / count


def test_gte_equals_plain_sums_and_ignores_padded_negatives():
    q, d, n = vectors(10, (4, 5), (4, 5), (4, 3, 5))
    allowed = torch.rand(8, 8, generator=torch.Generator().manual_seed(1)) < 0.7
    for mask in (allowed, torch.ones_like(allowed)):
        assert contrastive.gte(q, d, allowed=mask, temperature=0.3).item() == pytest.approx(plain_gte(q, d, mask, 0.3))
    assert contrastive.gte(q[:1], d[:1]).item() == 0
    found = contrastive.gte(q, d, negatives=n, negative_mask=torch.tensor([[True, False, False]] * 4), temperature=0.1)
    assert found.item() == pytest.approx(contrastive.gte(q, d, negatives=n[:, :1], temperature=0.1).item())


def test_the_in_batch_term_of_angle_equals_plain_sums():
    x, y = vectors(12, (3, 4), (3, 4))
    labels, texts, total = torch.tensor([1.0, 0.0, 1.0]), torch.cat([x, y]), 0.0
    for i in (0, 2, 3, 5):
        scores = {j: math.exp(7 * cos(texts[i], texts[j])) for j in range(6) if j != i}
        total -= math.log(scores[(i + 3) % 6] / sum(scores.values()))
    assert contrastive.pairs_in_batch(x, y, labels, scale=7.0).item() == pytest.approx(total / 6)


def test_angle_sum_is_the_sum_of_its_terms():
    x, y = vectors(13, (4, 6), (4, 6))
    allowed = torch.rand(8, 8, generator=torch.Generator().manual_seed(2)) < 0.8
    found = pairwise.angle_sum(x, y, LABELS, weights=(0.5, 2.0, 3.0), scales=(20.0, 10.0, 1.0), allowed=allowed)
    pairs = contrastive.pairs_in_batch(x, y, LABELS, scale=10.0, allowed=allowed)
    terms = 0.5 * pairwise.cosent(x, y, LABELS) + 2 * pairs + 3 * pairwise.angle(x, y, LABELS, scale=1.0)
    assert found.item() == pytest.approx(terms.item())


def test_neighbors_follow_the_teacher_as_loops_do():
    student, teacher = vectors(17, (5, 6), (5, 3))
    known = torch.tensor([True, True, False, True, True])
    found = pairwise.similarity(student, teacher, temperature=0.1, teacher_temperature=0.2, known=known)
    terms = []
    for row in (0, 1, 3, 4):
        others = [at for at in (0, 1, 3, 4) if at != row]
        own, taught = (
            torch.softmax(torch.stack([torch.cosine_similarity(x[row], x[at], dim=0) / t for at in others]), 0)
            for x, t in ((student, 0.1), (teacher, 0.2))
        )
        terms.append((taught * (taught.log() - own.log())).sum())
    assert found.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-9)
    assert pairwise.similarity(student, 3 * student).item() == pytest.approx(0, abs=1e-12)
    assert pairwise.similarity(student, teacher, known=known & False).item() == 0
    assert pairwise.similarity(student[:1], teacher[:1]).item() == 0


def test_the_teacher_may_not_know_every_paper():
    student, teacher = vectors(15, (4, 6), (4, 3))
    known = torch.tensor([True, False, True, True])
    found = pairwise.student_teacher(student, teacher, known=known)
    assert found.item() == pytest.approx(pairwise.student_teacher(student[known], teacher[known]).item())
    assert not torch.autograd.grad(found, student)[0][1].any()
    assert pairwise.student_teacher(student, teacher, known=known & False).item() == 0
    assert pairwise.student_teacher(student, 3 * student).item() == pytest.approx(0, abs=1e-12)


def test_extreme_scores_stay_finite():
    x = torch.eye(4, requires_grad=True)
    wrong = torch.tensor([1, 2, 3, 0])
    for loss in (
        contrastive.in_batch(x, x.roll(1, 0), wrong, temperature=1e-4),
        contrastive.supcon(x, -x[:, None], x[:, None], temperature=1e-4),
        pairwise.cosent(x, -x, LABELS, scale=1e5),
        contrastive.n_pairs(x, -x, x[:, None], temperature=1e-4),
    ):
        assert loss.isfinite() and torch.autograd.grad(loss, x, retain_graph=True)[0].isfinite().all()


def test_a_weighted_sum_leaves_out_what_has_no_weight():
    terms = {"triplet": (2.0, torch.tensor(1.5)), "mlm": (0.0, torch.tensor(torch.nan))}
    assert pairwise.weighted_sum(terms).item() == 3.0


OUT_OF_RANGE = [
    (lambda x: contrastive.in_batch(x, x, torch.arange(2), temperature=0), "temperature is 0"),
    (lambda x: pairwise.cosent(x, x, torch.ones(2), scale=-1), "scale is -1"),
    (lambda x: pairwise.triplet(x, x, x, distance="cosin"), "Did you mean 'cosine'"),
    (lambda x: pairwise.match_scores(x[None], x[None], x[None, 0] > 0, x[None, 0] > 0, match="singel"), "Did you mean 'single'"),
    (lambda x: pairwise.angle_sum(x, x, torch.ones(2), weights=(0.0, 0.0, 0.0)), "angle term"),
    (lambda x: pairwise.weighted_sum({"triplet": (0.0, torch.tensor(1.0))}), "triplet"),
    (lambda x: pairwise.weighted_sum({}), "no weight"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "message"), OUT_OF_RANGE)
def test_settings_out_of_range_are_named(loss, message):
    refused(message, loss, torch.eye(2))
