"""Search by words: the words are those of `words_of`, the scores those of bm25s."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.columns import TextColumn, TextWriter
from citeweave.core.errors import ArtifactError
from citeweave.search import words as words_module
from citeweave.search.explain import shared_words
from citeweave.search.words import WordTable, search_words, searchable_text, suggest
from citeweave.search.write_words import Vocabulary, write_words
from citeweave.vectors.bm25 import STOP_WORDS, Bm25, words_of

KNOWN = [*words_of("deep learning graph neural network protein cell naïve größe Σίσυφος bayes 2019 x_1"), "the", "of"]


@dataclass(frozen=True)
class Paper:
    title: str
    abstract: str

    @property
    def text(self) -> str:
        return searchable_text(self.title, self.abstract)


class Papers:
    """Papers with a real words folder, without all else that an index has."""

    def __init__(self, place: Path, papers: Sequence[Paper]) -> None:
        self.papers = list(papers)
        write_words(place, [paper.text for paper in papers])
        titles = TextWriter(place, "title")
        titles.append([paper.title for paper in papers])
        titles.close()
        self.words, self.titles = WordTable(place), TextColumn(place, "title")

    def id(self, row: int) -> str:
        return f"p:{(row * 7919) % 1000:03}"  # another order than that of the rows

    def paper(self, row: int) -> Paper:
        return self.papers[row]


def some_papers(count: int, seed: int = 0) -> list[Paper]:
    rng = np.random.default_rng(seed)
    return [
        Paper(" ".join(rng.choice(KNOWN, rng.integers(0, 5))), ", ".join(rng.choice(KNOWN, rng.integers(0, 9))).upper())
        for _ in range(count)
    ]


def held(words: WordTable) -> list[Counter[str]]:
    """The words of every paper, as the folder has them."""
    papers: list[Counter[str]] = [Counter() for _ in range(words.size)]
    for place, word in enumerate(words.words):
        rows, marks = words.postings(place)
        assert rows.tolist() == sorted(set(rows.tolist()))
        for row, mark in zip(rows.tolist(), marks.tolist(), strict=True):
            papers[row][word] = mark >> 1
    return papers


ANY = st.characters() | st.characters(max_codepoint=127)
RARE = st.sampled_from("aA_9 \nThe.,-ΣσςİıßẞKÅȺⱥéÉ–’\u0307\u2028\ud800😀𝒙𝐗Ⓐ①²ªǅﬁ\x00\x1c\x85")
ODD = st.text(ANY | RARE, max_size=40)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ODD, max_size=6))
def test_the_words_are_those_of_words_of(texts):
    vocabulary = Vocabulary(sorted(STOP_WORDS))
    counted = vocabulary.count(texts, first_row=0)
    found: list[Counter[str]] = [Counter() for _ in texts]
    for term, row, mark in zip(counted.terms.tolist(), counted.rows.tolist(), counted.marks.tolist(), strict=True):
        found[row][vocabulary.word(term).decode()] = mark >> 1
    assert found == [Counter(words_of(text)) for text in texts]
    assert counted.lengths.tolist() == [len(words_of(text)) for text in texts]


def test_every_letter_of_unicode_is_read_as_python_reads_it():
    letters = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    texts = ["a" + " a".join(letters[start : start + 500]) for start in range(0, len(letters), 500)]
    vocabulary, expected = Vocabulary([]), [words_of(text, stop_words=frozenset()) for text in texts]
    assert vocabulary.count(texts, first_row=0).lengths.tolist() == [len(words) for words in expected]
    assert set(vocabulary.words()) == {word.encode() for words in expected for word in words}


def test_a_vocabulary_grows_and_takes_words_of_any_length():
    texts = [" ".join(f"w{number}" for number in range(start, start + 3000)) for start in range(0, 60_000, 2000)]
    vocabulary = Vocabulary(sorted(STOP_WORDS))
    found = vocabulary.count([*texts, "x" * 300_000 + " y"], first_row=5)
    assert vocabulary.size == vocabulary.stops + 61_000 + 2 and found.rows.max() == 35
    assert len(vocabulary.words()[-2]) == 300_000
    papers = vocabulary.papers[: vocabulary.size]
    assert papers[: vocabulary.stops].sum() == 0 and papers.sum() == len(found.terms)


@pytest.mark.parametrize(("block", "merged"), [(1 << 22, 1 << 24), (50, 1), (1, 7), (400, 30)])
def test_a_folder_holds_the_same_whatever_the_blocks(tmp_path, block, merged):
    papers = some_papers(60)
    count = write_words(tmp_path / "w", (paper.text for paper in papers), block=block, merged=merged)
    words = WordTable(tmp_path / "w")
    assert held(words) == [Counter(words_of(paper.text)) for paper in papers]
    assert words.lengths.tolist() == [len(words_of(paper.text)) for paper in papers]
    known = list(words.words)
    assert len(known) == count and known == sorted(known, key=str.encode) and not STOP_WORDS & set(known)
    files = {"word.utf8", "word.offsets.npy", "start.npy", "row.npy", "mark.npy", "length.npy"}
    assert {path.name for path in (tmp_path / "w").iterdir()} == files
    for place, word in enumerate(known):
        rows, marks = words.postings(place)
        assert (marks & 1).astype(bool).tolist() == [word in words_of(papers[row].title) for row in rows]


@pytest.mark.parametrize(("times", "dtype"), [(127, "uint8"), (128, "uint16"), (40_000, "uint32")])
def test_a_word_may_stand_very_often(tmp_path, times, dtype):
    write_words(tmp_path, ["\n" + "cell " * times, "cell"])
    words = WordTable(tmp_path)
    assert words.marks.dtype == dtype and words.marks.tolist() == [2 * times, 3]


SEVEN = ["deep deeper deepest dee élan zz 𝒙𝒙", "deep"]


@pytest.mark.parametrize(("texts", "count"), [(SEVEN, 7), ([], 0), ([""], 0), (["", "the of"], 0)])
def test_words_are_found_whole_and_by_their_beginning(tmp_path, texts, count):
    assert write_words(tmp_path, texts) == count
    words = WordTable(tmp_path)
    known = list(words.words)
    assert words.size == len(texts) and len(known) == count
    queries = [*known, "nowhere", "", "deepe", "zzz", "\U0010ffff"]
    expected = [known.index(word) if word in known else -1 for word in queries]
    assert words.find([word.encode() for word in queries]).tolist() == expected
    for prefix in ("d", "deep", "deepe", "é", "zzz", "", "\U0010ffff"):
        low, high = words.prefix_range(prefix.encode())
        assert known[low:high] == [word for word in known if word.startswith(prefix)]


def expected_ranking(
    index: Papers | SimpleNamespace, query: str, allowed: np.ndarray | None = None
) -> list[tuple[int, float]]:
    """By bm25s over the texts."""
    if not index.papers:
        return []
    texts = [paper.text for paper in index.papers]
    scores = Bm25(texts).scores([query], np.array([0, len(texts)]), np.arange(len(texts)))
    kept = [
        (round(float(-score), 12), index.id(row), row, float(score))
        for row, (text, score) in enumerate(zip(texts, scores, strict=True))
        if set(words_of(query)) & set(words_of(text)) and (allowed is None or allowed[row])
    ]
    return [(row, score) for _, _, row, score in sorted(kept)]


QUERIES = st.lists(st.sampled_from([*KNOWN, "unknown"]), max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), size=st.integers(0, 40), query=QUERIES, limited=st.booleans())
def test_scores_are_those_of_bm25(tmp_path_factory, seed, size, query, limited):
    rng, papers = np.random.default_rng(seed), some_papers(size, seed)
    index = Papers(tmp_path_factory.mktemp("words"), papers)
    allowed = rng.random(len(papers)) < 0.6 if limited else None
    expected = expected_ranking(index, " ".join(query), allowed)
    for count in (3, 100):
        found = search_words(index, " ".join(query), count, allowed=allowed)
        assert found.rows.tolist() == [row for row, _ in expected[:count]]
        np.testing.assert_allclose(found.scores, [score for _, score in expected[:count]], rtol=1e-9)


def test_a_ranking_does_not_depend_on_the_order_of_the_words(tmp_path):
    index = Papers(tmp_path, some_papers(40, seed=3))
    one, other = (search_words(index, query, 40) for query in ("graph cell DEEP deep", "deep graph cell deep"))
    assert one.rows.tolist() == other.rows.tolist() and one.scores.tobytes() == other.scores.tobytes()
    assert search_words(index, "", 5).rows.tolist() == [] == search_words(index, "deep", 0).rows.tolist()


DAMAGES = [
    ("row.npy", lambda array: np.full_like(array, 1 << 30)),
    ("mark.npy", lambda array: array.astype(np.float32)),
    ("length.npy", lambda array: array[:3]),
    *[
        (name, lambda array: np.concatenate([array[:1], array[1:-1][::-1] + (1 << 40), array[-1:]]))
        for name in ("start.npy", "word.offsets.npy")
    ],
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_damaged_tables_are_an_error_and_no_crash(tmp_path, name, damage):
    index = Papers(tmp_path, some_papers(30))
    path = tmp_path / name
    np.save(path, damage(np.load(path)))
    with pytest.raises(ArtifactError, match="again"):
        index.words = WordTable(tmp_path)
        for word in KNOWN:
            search_words(index, word, 3)


def test_suggestions_complete_words_and_titles(tmp_path):
    titles = ["Graph neural networks", "A survey of graph neural networks", "Neurons as a graph", "Deep forests"]
    papers = [Paper(title, "graph neural cell neuron neuron") for title in [*titles, "Graph neurology", "Graphs"]]
    index = Papers(tmp_path, [*papers[:4], papers[5]])
    found = suggest(index, "Graph neu")
    completed = [("Graph neural", 5), ("Graph neuron", 5), ("Graph neurons", 1)]
    assert [(one.text, one.papers) for one in found if one.row is None] == completed
    assert [(one.text, one.row) for one in found if one.row is not None] == list(zip(titles, range(3), strict=False))
    assert [one.text for one in suggest(index, "graph neural ")] == titles[:2]
    assert [one.text for one in suggest(index, "of gra") if one.row is not None] == [titles[1]]
    assert [suggest(index, typed) for typed in ("", " - ", "zzz")] == [[], [], []]
    assert suggest(index, "x", max_suggestions=0) == [] and len(suggest(index, "g", max_suggestions=2)) == 2
    assert found[0].as_json()["row"] is None
    assert suggest(index, "\ud800graph neu" + "\x00" * 500) is not None


def test_the_most_frequent_words_and_the_shortest_titles_are_suggested(tmp_path, monkeypatch):
    monkeypatch.setattr(words_module, "_MAX_TITLES", 3)
    rng, words = np.random.default_rng(3), ["gas", "gate", "gene", "genome", "graph", "gravity", "grid", "ground"]
    papers = [Paper(" ".join(rng.choice(words, 3)), " ".join(rng.choice(words, 4))) for _ in range(30)]
    index = Papers(tmp_path, papers)
    counts = Counter(word for paper in papers for word in set(words_of(paper.text)) if word.startswith("gr"))
    expected = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    completed = [(one.text, one.papers) for one in suggest(index, "gr") if one.row is None]
    assert completed and completed == expected[: len(completed)]
    titles = [paper.title for paper in papers if paper.title.startswith("graph") or " graph" in paper.title]
    shown = [one.text for one in suggest(index, "graph ")]
    assert shown and {len(title) for title in shown} <= {len(title) for title in sorted(titles, key=len)[:3]}


def test_shared_words_weigh_much_in_both_papers(tmp_path):
    papers = [Paper("Rare protein", "the common word, common"), Paper("rare", "common and rare")]
    papers += [Paper("", "common words here")] * 8
    index = Papers(tmp_path, papers)
    found = shared_words(index, 0, 1)
    assert [one.word for one in found] == ["rare", "common"] and found[0].score > found[1].score > 0
    parts = Bm25([paper.text for paper in papers]).scores(["rare"], np.array([0, 2]), np.array([0, 1]))
    assert found[0].score == pytest.approx(parts.min(), rel=1e-9)
    assert shared_words(index, 0, 1, max_words=1) == found[:1] and found == shared_words(index, 1, 0)


def test_a_real_index_is_searched_by_its_words(library):
    index, query = library.words, "cell data models"
    papers = [Paper(paper.title, paper.abstract) for paper in map(index.paper, range(index.size))]
    expected = expected_ranking(SimpleNamespace(papers=papers, id=index.id), query)
    found = search_words(index, query, 20)
    assert found.rows.tolist() == [row for row, _ in expected] and len(expected) > 5
    np.testing.assert_allclose(found.scores, [score for _, score in expected], rtol=1e-9)
    assert "cell" in suggest(index, "cel")[0].text and shared_words(index, *found.rows[:2])
