"""What is trained on: where sentences are, which are aligned, that papers are read as encoders read them; batches.

Of batches: every unit once an epoch, every paper once a batch, the same for the same seed.
"""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from citeweave.core.progress import QUIET
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.pooling import text_vectors
from citeweave.encoders.sentence_encoder import encode_sentences, lay_out_sentences
from citeweave.encoders.tokens import TokenStore
from citeweave.graph.citations import graph_from_edges
from citeweave.training import load_data
from citeweave.training.batch_negatives import mark_positives
from citeweave.training.data import (
    AnchorGroups,
    Batches,
    SentenceSpans,
    TrainingData,
    build_batch,
    make_alignment,
    make_groups,
    make_lists,
    paper_rows,
    split_batch,
)
from citeweave.training.distributed import ProcessGroup
from citeweave.training.encoder_task import Validation, encode_rows, held_out_triplets
from citeweave.training.options import TrainingOptions, training_options
from citeweave.training.partial import heads_to_arrays
from citeweave.training.train import prepare_run

from .conftest import SENTENCES


def spans_of(counts: list[int]) -> SentenceSpans:
    """One token a sentence."""
    within = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
    return SentenceSpans(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), within + 1, within + 2, within)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_rows_and_places_are_those_of_loops(counts, data):
    spans = spans_of(counts)
    papers = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=6))
    chosen = data.draw(st.lists(st.integers(0, len(papers) - 1), max_size=4)) if papers else []
    places = np.array(chosen, np.int64)
    expected = [sum(counts[:paper]) + at for paper in papers for at in range(counts[paper])]
    assert spans.places(np.array(papers, np.int64)).tolist() == expected
    rows = paper_rows(spans, np.array(papers, np.int64))
    names = [(place, at) for place, paper in enumerate(papers) for at in range(-1, counts[paper])]
    assert rows.offsets[-1] == len(names)
    assert [names[row] for row in rows.own.tolist()] == [(place, -1) for place in range(len(papers))]
    own = [[name for name in names if name[0] == place] for place in chosen]
    assert [names[row] for row in rows.places(places).tolist()] == [name for line in own for name in line]
    padded = rows.sentence_rows(places).tolist()
    assert [[names[row] for row in line if row >= 0] for line in padded] == [line[1:] for line in own]
    assert paper_rows(None, np.array(papers, np.int64)).own.tolist() == list(range(len(papers)))


_PAIRS = st.lists(st.tuples(*[st.integers(0, 5)] * 2), max_size=9)


@given(_PAIRS, _PAIRS)
def test_aligned_pairs_are_found(known, asked):
    values = np.arange(2 * len(known)).reshape(-1, 2)
    first: dict[tuple[int, int], list[int]] = {}
    for pair, value in zip(known, values.tolist(), strict=True):
        first.setdefault(pair, value)
    columns = [np.array(pairs, np.int64).reshape(-1, 2).T for pairs in (known, asked)]
    found = make_alignment(*columns[0], values).find(*columns[1])
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
def small(bert, tmp_path_factory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("small")
    lines = [{"id": str(n), "title": title, "abstract": text} for n, (title, text) in enumerate(PAPERS)]
    (folder / "papers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    corpus, encoder = import_papers([folder / "papers.jsonl"], folder / "corpus").corpus, load_encoder(bert)
    rows = np.arange(len(corpus))
    tokens, spans = load_data.tokenize_sentences(corpus, rows, encoder.reader, folder / "tokens")
    data = TrainingData(rows, tokens, make_groups([], [], []), make_groups([], [], []), sentences=spans)
    splits = [(corpus.titles[row], sentence_texts(corpus.abstracts[row])) for row in range(len(corpus))]
    return SimpleNamespace(corpus=corpus, encoder=encoder, data=data, splits=splits)


def test_papers_are_read_as_encoders_read_them(small):
    assert sorted(title for title, _ in small.splits) == sorted(title.strip() for title, _ in PAPERS)
    spans = small.data.sentences
    for row, (title, texts) in enumerate(small.splits):
        own, given_ = slice(*spans.offsets[row : row + 2]), (title, texts) if texts else ("", [title])
        [layout] = lay_out_sentences(small.encoder.reader, [given_[0]], [given_[1]])
        assert small.data.tokens[row].tolist() == layout.tokens.tolist()
        found = [column[own].tolist() for column in (spans.starts, spans.ends, spans.numbers)]
        if len(given_[0]) > 100:  # the title fills all that can be read
            assert found == [[0], [small.encoder.reader.max_tokens], [-1]] and not len(layout.numbers)
        else:
            assert found == [column.tolist() for column in (layout.starts, layout.ends, layout.numbers)]
            assert len(found[2]) == (len(layout.numbers) if texts else 1) > 0


def test_sentences_without_tokens_keep_the_numbers_of_the_others(small):
    reader = small.encoder.reader
    layouts = lay_out_sentences(reader, ["a cell", "", "x"], [["", "we find", " ", "graphs"], [], ["the cell grows"]])
    records = [load_data._pack(layout) for layout in layouts]
    ends = np.cumsum([0, *map(len, records)])
    tokens, spans = load_data._unpack(TokenStore(np.concatenate(records).astype(np.uint16), ends))
    assert spans.lengths().tolist() == [2, 0, 1] and spans.numbers.tolist() == [1, 3, 0]
    assert [tokens[row].tolist() for row in range(3)] == [layout.tokens.tolist() for layout in layouts]
    assert spans.starts.tolist() == [start for layout in layouts for start in layout.starts.tolist()]


def test_numbers_of_sentences_become_places():
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
def test_rows_are_the_encoders_vectors_padded_or_packed(small, pooling):
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


def test_aligned_sentences_are_those_of_the_samples(paired, tmp_path):
    _, data = paired.load(tmp_path / "tokens", paired.plan(losses=SENTENCES["aligned"]))
    known, spans = paired.samples.alignment, data.sentences
    anchors = np.searchsorted(data.rows, paired.samples.anchors[paired.samples.positives.owners()])
    positives = np.searchsorted(data.rows, paired.samples.positives.rows)
    found, pairs = data.alignment.find(anchors, positives), list(zip(anchors.tolist(), positives.tolist(), strict=True))
    assert 0.3 < (found[:, 0] >= 0).mean() <= 1
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for pair, *numbers in zip(pairs, known.anchor_sentences, known.sentences, strict=True):
        own = [spans.numbers[spans.offsets[paper] : spans.offsets[paper + 1]].tolist() for paper in pair]
        if all(number in there for number, there in zip(numbers, own, strict=True)):
            first.setdefault(pair, (own[0].index(numbers[0]), own[1].index(numbers[1])))
    assert [tuple(row) for row in found.tolist()] == [first.get(pair, (-1, -1)) for pair in pairs]


def test_pairs_that_are_held_out_meet_papers_of_others():
    groups = make_groups([0, 1, 2, 3], [[4], [5, 6], [7], [8, 9]], [[]] * 4)
    known = make_lists([[8], [], [], [], *[[]] * 6])
    data: Any = TrainingData(np.arange(10), None, groups, groups, related=known)  # type: ignore[arg-type]
    triplets = held_out_triplets(data)[0].tolist()
    assert len(triplets) == 5
    for anchor, positive, negative in triplets:
        assert negative not in (anchor, positive, *known.take(np.array([anchor])).papers)
    alone = dataclasses.replace(data, validation=groups.take(np.array([0])))
    assert held_out_triplets(alone)[0].shape == (0, 3)


def test_accuracy_is_that_of_each_triplet_in_its_space(aspects, tmp_path):
    plan = aspects.plan(losses={"aspect_in_batch": {}})
    start, data = aspects.load(tmp_path / "tokens", plan)
    without = dataclasses.replace(data.validation, negatives=make_lists([[]] * len(data.validation)))
    for validation in (data.validation, without):
        found = dataclasses.replace(data, validation=validation)
        run = prepare_run(start, found, plan, ProcessGroup(), QUIET)
        heads = run.task.stepper.objective.inputs.heads
        lists = (validation.anchors, validation.positives.papers, validation.negatives.papers)
        papers = np.unique(np.concatenate(lists))
        vectors = run.task.stepper.encode_all(papers)
        spaces = [heads_to_arrays(heads).project(vectors, name) for name in heads.names]
        unit = [space / np.linalg.norm(space, axis=1, keepdims=True) for space in spaces]
        right = total = 0
        if validation is data.validation:
            asked = [(n, *row) for n in range(len(validation)) for row in validation.take(np.array([n])).triplets()]
        else:  # the positives of samples half the way further on
            owners = validation.positives.owners()
            ups = validation.positives.papers
            others = np.roll(ups, -1 - len(ups) // 2)
            asked = [
                (n, validation.anchors[n], up, other)
                for n, up, other in zip(owners, ups, others, strict=True)
                if other not in (up, validation.anchors[n])
                and other not in found.related.take(validation.anchors[[n]]).papers
            ]
        for n, *triplet in asked[:5000]:
            anchor, up, down = unit[validation.aspects[n]][np.searchsorted(papers, triplet)]
            right, total = right + int(anchor @ up > anchor @ down), total + 1
        assert total > 20 and Validation(run.task.stepper).evaluate()["accuracy"] == pytest.approx(
            right / total, abs=2 / total
        )


class Column(list[str]):
    def take(self, rows: NDArray[np.int64]) -> list[str]:
        return [self[row] for row in rows.tolist()]


def test_relatives_share_three_references_and_not_two():
    cited = {0: [5, 6, 7], 1: [5, 6, 7], 2: [5, 6]}
    edges = [(paper, other) for paper, others in cited.items() for other in others]
    graph = graph_from_edges(*np.array(edges, np.int32).T, 8)
    titles = Column([f"title {row}" for row in range(8)])
    found = load_data.find_related_papers(SimpleNamespace(titles=titles), graph, np.arange(3))  # type: ignore[arg-type]
    assert [found.take(np.array([row])).papers.tolist() for row in range(3)] == [[1], [0], []]


def made_groups(seed: int, count: int, papers: int = 40) -> AnchorGroups:
    drawn = np.random.default_rng(seed)
    lists = [[drawn.integers(0, papers, drawn.integers(0, 5)).tolist() for _ in range(count)] for _ in range(2)]
    return make_groups(drawn.integers(0, papers, count).tolist(), *lists)


def by_hand(groups: AnchorGroups) -> list[tuple[int, int, int]]:
    """Triplets one by one: the shorter list begun anew."""
    found = []
    for number, anchor in enumerate(groups.anchors.tolist()):
        ups = groups.positives.take(np.array([number])).papers.tolist()
        downs = groups.negatives.take(np.array([number])).papers.tolist()
        count = max(len(ups), len(downs)) if ups and downs else 0
        found += [(anchor, ups[place % len(ups)], downs[place % len(downs)]) for place in range(count)]
    return found


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_triplet_once(seed, count, size, block):
    groups = made_groups(seed, count)
    wanted = by_hand(groups)
    batches = Batches(groups, TrainingOptions(batch=size, block=block, seed=seed))
    assert batches.units == len(wanted)
    for epoch in (0, 1) if wanted else ():
        found = [batches.at(epoch * batches.per_epoch + step) for step in range(batches.per_epoch)]
        rows = [tuple(row) for batch in found for row in batch.papers[batch.triplets].tolist()]
        assert sorted(rows) == sorted(wanted)
        assert all(len(batch.triplets) == size for batch in found[:-1])


def test_a_block_of_one_shuffles_all_triplets_of_all_anchors():
    """As DataLoader(shuffle=True) over triplets: every order of an epoch is as likely as any other."""
    anchors, each = 40, 5
    papers = [[100 * a + n for n in range(1, 2 * each + 1)] for a in range(anchors)]
    groups = make_groups(list(range(0, 100 * anchors, 100)), [p[:each] for p in papers], [p[each:] for p in papers])
    batches = Batches(groups, TrainingOptions(batch=10, block=1))
    rounds, shared, orders = [], [], set()
    for epoch in range(60):
        found = [batches.at(epoch * batches.per_epoch + step) for step in range(batches.per_epoch)]
        order = np.concatenate([batch.papers[batch.triplets] for batch in found])  # (triplets, 3)
        assert sorted(map(tuple, order.tolist())) == sorted(map(tuple, groups.triplets().tolist()))
        rounds.append(order[: len(order) // each, 1] % 100)  # the number of the triplet among those of its anchor
        shared += [len(batch.triplets) - len(set(batch.anchors.tolist())) for batch in found]
        orders.add(tuple(order[:, 1].tolist()))
    assert len(orders) == 60
    # the first fifth of an epoch has triplets of every number alike: 480 of each, standard deviation 18
    assert np.abs(np.bincount(np.concatenate(rounds))[1:] - 480).max() < 90
    # of 10 random triplets 0.86 share an anchor with an earlier one, none in rounds and 8 in blocks; deviation 0.02
    assert 0.7 < np.mean(shared) < 1.05


def test_leftover_triplets_are_dropped_and_counted():
    groups = make_groups(
        [0, 100, 200], [[1, 2, 3, 4, 5], [101], [201, 202, 203, 204]], [[6, 7, 8, 9, 10], [102], [205]]
    )
    kept, dropped = (
        Batches(groups, TrainingOptions(batch=8, block=4, leftovers=leftovers)) for leftovers in ("keep", "drop")
    )
    assert (kept.units, kept.dropped, dropped.units, dropped.dropped) == (10, 0, 8, 2)
    batch = dropped.at(0)
    found = {
        int(batch.papers[a]): p.tolist() for a, p in zip(batch.anchors, batch.papers[batch.positives], strict=True)
    }
    assert found == {0: [1, 2, 3, 4], 200: [201, 202, 203, 204]}


def test_batches_are_functions_of_seed_and_step():
    groups, options = made_groups(3, 30), TrainingOptions(batch=4, seed=5)
    forwards = [Batches(groups, options).at(step).papers.tolist() for step in range(8)]
    batches, other = Batches(groups, options), Batches(groups, dataclasses.replace(options, seed=6))
    assert [batches.at(step).papers.tolist() for step in reversed(range(8))] == forwards[::-1]
    assert [other.at(step).papers.tolist() for step in range(8)] != forwards
    # a share of the samples is drawn by the seed too
    groups = make_groups(list(range(100)), [[100 + i] for i in range(100)], [[200 + i] for i in range(100)])
    tenth = TrainingOptions(batch=100, share=0.1, seed=1)
    first, again, other_tenth = (
        Batches(groups, dataclasses.replace(tenth, seed=seed)).at(0).papers.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other_tenth and len(Batches(groups, tenth).at(0).triplets) == 10


def test_triplets_of_an_anchor_stay_together_and_groups_are_complete():
    groups = make_groups([0, 10, 20], [[1, 2], [11, 12], [21, 22]], [[3, 4], [13, 14], [23, 24]])
    for step in range(3):
        batch = Batches(groups, TrainingOptions(batch=2)).at(step)
        assert len(set(batch.papers[batch.anchors].tolist())) == 1
    assert len(Batches(groups, TrainingOptions(batch=6, block=1)).at(0).anchors) == 6
    groups = make_groups([0, 10, 20], [[1, 2, 2], [11], [21]], [[3], [13, 14], [23]])
    batches = Batches(groups, TrainingOptions(batch=2, unit="groups"))
    assert batches.per_epoch == 2
    found = {}
    for batch in map(batches.at, range(2)):
        for anchor, ups in zip(batch.papers[batch.anchors].tolist(), batch.positives, strict=True):
            found[anchor] = batch.papers[ups[ups >= 0]].tolist()
    assert found == {0: [1, 2, 2], 10: [11], 20: [21]}, "repeats of the samples stay"
    batch = build_batch(groups).with_positives_once()
    assert batch.papers[batch.positives[0, :2]].tolist() == [1, 2] and batch.positives[0, 2] == -1


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_where_pairs_suffice(seed, count, size, block):
    groups = made_groups(seed, count)
    options = TrainingOptions(losses={"in_batch": {}}, batch=size, block=block, unit="groups", seed=seed)
    batches, found, wanted = Batches(groups, options), [], []
    for group in range(count):
        one = groups.take(np.array([group]))
        ups, downs = one.positives.papers.tolist(), sorted(set(one.negatives.papers.tolist()))
        for at in range(0, len(ups), block or len(ups) or 1):
            wanted.append((int(one.anchors[0]), tuple(ups[at : at + (block or len(ups))]), tuple(downs)))
    for step in range(batches.per_epoch):
        batch = batches.at(step)
        assert len(batch.anchors) <= size
        lists = [[tuple(batch.papers[line[line >= 0]].tolist()) for line in part] for part in (batch.positives, batch.negatives)]  # fmt: skip
        found += [
            (a, p, tuple(sorted(n))) for a, p, n in zip(batch.papers[batch.anchors].tolist(), *lists, strict=True)
        ]
    assert sorted(found) == sorted(wanted)
    needs_negatives = dataclasses.replace(options, losses={"in_batch": {}, "triplet": {}})
    assert Batches(groups, needs_negatives).units == int((groups.triplet_counts() > 0).sum())


def test_positives_of_an_anchor_are_known_across_its_groups():
    groups = made_groups(5, 20, papers=12)
    batch = build_batch(groups.take(np.flatnonzero(groups.positives.lengths())))
    pairs = {(int(a), int(p)) for a, line in zip(batch.anchors, batch.positives, strict=True) for p in line if p >= 0}
    places = np.arange(len(batch.papers))
    found = mark_positives(batch, places, places[::-1])
    assert {(int(a), int(places[::-1][p])) for a, p in np.argwhere(found)} == pairs


@pytest.mark.parametrize("budget", [1, 25, 60, 10_000])
def test_parts_hold_whole_groups_within_the_budget(budget):
    groups = made_groups(7, 20)
    whole = build_batch(groups.take(np.flatnonzero(groups.triplet_counts())))
    lengths = np.random.default_rng(0).integers(1, 9, 40)
    parts = split_batch(whole, lengths, budget)
    rows = [row for part in parts for row in part.papers[part.triplets].tolist()]
    assert rows == whole.papers[whole.triplets].tolist()
    for part in parts:
        assert int(lengths[part.papers].sum()) <= budget or len(part.anchors) == 1
    assert (len(parts) == 1) == (budget == 10_000)


def _facts(groups: AnchorGroups) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Anchor, aspect and positive; anchor, aspect, negative and its rule: one after the other."""
    pairs: list[tuple[int, ...]] = []
    rules: list[tuple[int, ...]] = []
    for n, (anchor, aspect) in enumerate(zip(groups.anchors.tolist(), groups.aspects.tolist(), strict=True)):
        ups, downs = (slice(*lists.offsets[n : n + 2]) for lists in (groups.positives, groups.negatives))
        pairs += [(anchor, aspect, paper) for paper in groups.positives.papers[ups].tolist()]
        own = zip(groups.negatives.papers[downs].tolist(), groups.rules[downs].tolist(), strict=True)
        rules += [(anchor, aspect, paper, rule) for paper, rule in own]
    return pairs, rules


@pytest.mark.parametrize(("block", "share"), [(0, 1.0), (1, 1.0), (2, 1.0), (2, 0.5)])
def test_aspects_and_rules_stay_with_their_papers(block, share):
    rng = np.random.default_rng(block)
    counts = rng.integers(1, 6, (2, 30))
    ups, downs = ([rng.choice(90, count, replace=False).tolist() for count in row] for row in counts)
    groups = make_groups(rng.integers(90, 99, 30).tolist(), ups, downs)
    groups = dataclasses.replace(groups, aspects=rng.integers(0, 3, 30), rules=rng.integers(0, 4, int(counts[1].sum())))
    options = {"unit": "groups", "batch": 4, "block": block, "share": share, "losses": {"aspect_in_batch": {}}}
    batches, wanted = Batches(groups, training_options(options)), _facts(groups)
    found = [_facts(batches.at(step).groups) for step in range(batches.per_epoch)]
    pairs, rules = (sorted(fact for part in found for fact in part[kind]) for kind in (0, 1))
    if share == 1:
        assert pairs == sorted(wanted[0]) and set(rules) == set(wanted[1])
    else:
        assert set(pairs) <= set(wanted[0]) and 0 < len(pairs) < len(wanted[0]) and set(rules) < set(wanted[1])
    batch = batches.at(0)
    chosen = zip(batch.papers[batch.anchors].tolist(), batch.with_negatives_by([1]).negatives, strict=True)
    by_rule = {(anchor, paper) for anchor, line in chosen for paper in batch.papers[line[line >= 0]].tolist()}
    assert by_rule == {(anchor, paper) for anchor, _, paper, rule in _facts(batch.groups)[1] if rule == 1}
