"""What is trained on: where sentences are, which are aligned, that papers are read as encoders read them."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
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
from citeweave.training.data import (
    SentenceSpans,
    TrainingData,
    find_related_papers,
    make_alignment,
    make_groups,
    make_lists,
    paper_rows,
)
from citeweave.training.distributed import ProcessGroup
from citeweave.training.partial import heads_to_arrays
from citeweave.training.step import encode_rows
from citeweave.training.train import prepare_run
from citeweave.training.validation import Validation, held_out_triplets

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
    assert spans.indices(np.array(papers, np.int64)).tolist() == expected
    rows = paper_rows(spans, np.array(papers, np.int64))
    names = [(place, at) for place, paper in enumerate(papers) for at in range(-1, counts[paper])]
    assert rows.total == len(names)
    assert [names[row] for row in rows.own.tolist()] == [(place, -1) for place in range(len(papers))]
    own = [[name for name in names if name[0] == place] for place in chosen]
    assert [names[row] for row in rows.all_rows(places).tolist()] == [name for line in own for name in line]
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
    assert spans.counts().tolist() == [2, 0, 1] and spans.numbers.tolist() == [1, 3, 0]
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
    assert known is not None and spans is not None and data.alignment is not None
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
        assert heads is not None and validation.aspects is not None
        lists = (validation.anchors, validation.positives.papers, validation.negatives.papers)
        papers = np.unique(np.concatenate(lists))
        vectors = Validation(run.task.stepper)._encode(papers)
        spaces = [heads_to_arrays(heads).project(vectors, name) for name in heads.names]
        unit = [space / np.linalg.norm(space, axis=1, keepdims=True) for space in spaces]
        right = total = 0
        if validation is data.validation:
            asked = [(n, *row) for n in range(len(validation)) for row in validation.take(np.array([n])).triplets()]
        else:  # the positives of samples half the way further on
            owners = np.repeat(np.arange(len(validation)), validation.positives.counts())
            ups = validation.positives.papers
            others = np.roll(ups, -1 - len(ups) // 2)
            assert found.related is not None
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
    found = find_related_papers(SimpleNamespace(titles=titles), graph, np.arange(3))  # type: ignore[arg-type]
    assert [found.take(np.array([row])).papers.tolist() for row in range(3)] == [[1], [0], []]
