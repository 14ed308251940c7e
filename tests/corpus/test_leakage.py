"""The audit: every rule, equality with plain Python sets, and real papers."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.corpus.leakage import LeakageEvidence, LeakageOptions, LeakageReport, ListedPapers, audit_leakage
from citeweave.corpus.near_duplicates import DuplicateThreshold, ShingleIndex, shingle_texts

ABSTRACT = (
    "We present a method that learns vectors of scientific papers from their citations and their text. "
    "It needs no labels, runs on a laptop, and improves search by two points over strong baselines on four sets."
)


def pairs_of(report: LeakageReport, name: str = "b") -> list[tuple[int, int, LeakageEvidence]]:
    return [(match.corpus_row, match.benchmark_row, match.evidence) for match in report.benchmarks[name]]


def audit(corpus: ListedPapers, benchmark: ListedPapers, **options: object) -> list[tuple[int, int, LeakageEvidence]]:
    return pairs_of(audit_leakage(corpus, {"b": benchmark}, LeakageOptions(**options)))  # type: ignore[arg-type]


def years(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class TestIds:
    def test_prefixed_ids_count(self) -> None:
        found = audit(ListedPapers(["s2:1", "s2:2"]), ListedPapers(["s2:2"]))
        assert found == [(1, 0, LeakageEvidence.ID | LeakageEvidence.OTHER_ID)]

    def test_bare_ids_count_only_in_one_id_space(self) -> None:
        corpus, benchmark = ListedPapers(["1", "2"]), ListedPapers(["2"])
        assert audit(corpus, benchmark) == []
        assert audit(corpus, benchmark, same_id_space=True) == [(1, 0, LeakageEvidence.ID)]

    def test_an_own_id_may_be_the_others_other_id(self) -> None:
        corpus = ListedPapers(["s2:1"], other_ids=[("doi:10.1000/ABC", "arxiv:1706.03762")])
        assert audit(corpus, ListedPapers(["doi:10.1000/abc"])) == [(0, 0, LeakageEvidence.OTHER_ID)]
        assert audit(corpus, ListedPapers(["doi:10.48550/arXiv.1706.03762"])) == [(0, 0, LeakageEvidence.OTHER_ID)]

    def test_a_repeated_id_is_believed_but_not_multiplied(self) -> None:
        found = audit(ListedPapers(["s2:1"] * 20), ListedPapers(["s2:1"] * 20))
        assert [pair[:2] for pair in found] == [(row, 0) for row in range(20)]


class TestTitles:
    def test_case_signs_and_accents_do_not_matter(self) -> None:
        corpus = ListedPapers(["a"], ["Naïve Bayes — a (re)view of methods"])
        assert audit(corpus, ListedPapers(["b"], ["NAIVE BAYES: A RE VIEW OF METHODS."])) == [
            (0, 0, LeakageEvidence.TITLE)
        ]

    @pytest.mark.parametrize(("year", "expected"), [(2015, 1), (2017, 1), (2018, 0), (0, 0)])
    def test_short_titles_need_near_years(self, year: int, expected: int) -> None:
        corpus = ListedPapers(["a"], ["Visual Dialog"], years=years(2015))
        assert len(audit(corpus, ListedPapers(["b"], ["Visual dialog"], years=years(year)))) == expected

    def test_one_word_is_no_title(self) -> None:
        corpus = ListedPapers(["a"], ["Editorial"], years=years(2015))
        assert audit(corpus, corpus) == []

    def test_generic_titles_count_for_nothing(self) -> None:
        corpus = ListedPapers([str(i) for i in range(11)], ["A letter to the editor"] * 11)
        report = audit_leakage(corpus, {"b": ListedPapers(["x"], ["A letter to the editor"])})
        assert pairs_of(report) == []
        assert report.benchmarks["b"].generic_titles == 1

    def test_empty_titles_do_not_match(self) -> None:
        assert audit(ListedPapers(["a"]), ListedPapers(["b"])) == []


class TestNearDuplicates:
    def test_another_title_and_a_cut_abstract(self) -> None:
        cut = ABSTRACT[: len(ABSTRACT) * 3 // 4].upper()
        corpus = ListedPapers(["a", "c"], ["Paper vectors", "Fish"], [cut, "Salmon swim up the river. " * 9])
        report = audit_leakage(corpus, {"b": ListedPapers(["b"], ["Vectors for papers"], [ABSTRACT])})
        (match,) = report.benchmarks["b"]
        assert (match.corpus_row, match.benchmark_row, match.strongest) == (0, 0, LeakageEvidence.TEXT)
        assert match.similarity > 0.8

    def test_long_titles_decide_where_an_abstract_is_missing(self) -> None:
        title = "Using summarization to discover argument facets in online {} dialog"
        corpus = ListedPapers(["a"], [title.format("idealogical")])
        benchmark = ListedPapers(["b"], [title.format("ideological")], [ABSTRACT])
        assert audit(corpus, benchmark) == [(0, 0, LeakageEvidence.NEAR_TITLE)]
        with_text = ListedPapers(
            ["a"], corpus.titles, ["Salmon swim up the river to the place of their birth. " * 3 + title]
        )
        assert audit(with_text, benchmark) == []

    def test_short_titles_do_not_decide(self) -> None:
        corpus = ListedPapers(["a"], ["Question answering based on semantic structures"])
        assert audit(corpus, ListedPapers(["b"], ["Question answering based on semantic roles"])) == []

    def test_can_be_switched_off(self) -> None:
        corpus = ListedPapers(["a"], ["x y"], [ABSTRACT])
        assert audit(corpus, ListedPapers(["b"], ["y z"], [ABSTRACT]), near_duplicates=False) == []

    def test_passes_do_not_change_the_result(self) -> None:
        texts = [ABSTRACT.replace("method", f"method {i}") for i in range(7)]
        table = ListedPapers([f"x:{i}" for i in range(7)], [f"Title number {i} of these" for i in range(7)], texts)
        one = audit_leakage(table, {"b": table, "c": table}, LeakageOptions(papers_per_pass=14))
        many = audit_leakage(table, {"b": table, "c": table}, LeakageOptions(papers_per_pass=3))
        for name in "bc":
            assert pairs_of(one, name) == pairs_of(many, name)
        assert len(pairs_of(one)) == 49


class TestReport:
    def report(self) -> LeakageReport:
        corpus = ListedPapers(["s2:1", "s2:2", "s2:3"], ["One title of the four", "", ""], ["", ABSTRACT, ""])
        benchmark = ListedPapers(["s2:1", "x", "y"], ["One title of the four", "", ""], ["", ABSTRACT, ABSTRACT])
        return audit_leakage(corpus, {"b": benchmark, "none": ListedPapers([])})

    def test_counts(self) -> None:
        counts = self.report().as_json()
        assert json.loads(json.dumps(counts)) == counts
        assert counts["exclude"] == 2
        assert counts["benchmarks"]["b"] == {  # type: ignore[index]
            "papers": 3,
            "papers_found": 3,
            "corpus_papers": 2,
            "strongest": {"id": 1, "other_id": 0, "title": 0, "text": 1, "near_title": 0},
            "evidence": {"id": 1, "other_id": 1, "title": 1, "text": 1, "near_title": 0},
            "generic_titles": 0,
        }

    def test_rows_to_exclude_by_evidence(self) -> None:
        report = self.report()
        assert report.rows_to_exclude().tolist() == [0, 1]
        assert report.rows_to_exclude(LeakageEvidence.TITLE | LeakageEvidence.ID).tolist() == [0]

    def test_prints_a_table(self) -> None:
        lines = str(self.report()).splitlines()
        assert lines[1].split() == ["b", "3", "3", "2", "1", "0", "0", "1", "0"]
        assert lines[-1].startswith("2 of 3 corpus papers")


class LazyColumn(Sequence[str]):
    """What a memory-mapped column offers at least."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        assert isinstance(row, int)
        return self.texts[row]


def test_lazy_columns_will_do() -> None:
    ids, titles, abstracts = LazyColumn(["s2:1"]), LazyColumn(["Some title"]), LazyColumn([ABSTRACT])
    corpus = ListedPapers(ids, titles, abstracts)
    assert len(audit(corpus, ListedPapers(["x"], ["Other"], [ABSTRACT]))) == 1


def test_wrong_options_and_tables_are_refused() -> None:
    with pytest.raises(UserError, match="containment is 0; it must be above 0"):
        LeakageOptions(containment=0)
    with pytest.raises(UserError, match="papers_per_pass is 0"):
        LeakageOptions(papers_per_pass=0)
    with pytest.raises(UserError, match="short has 2 ids and 1 titles"):
        audit_leakage(ListedPapers([]), {"short": ListedPapers(["a", "b"], ["one"])})


def test_words_of_other_scripts() -> None:
    def number(text: str) -> int:
        return int(shingle_texts([text], words=1).bounds[-1])

    assert number("深度学习 方法") == 6
    assert number("état\u2013nation «über» naïve") == 4
    assert number("a\u00a0b \u2014 c_d") == 4
    assert number("\ud800") == 0  # a lone surrogate becomes a question mark
    assert number("") == 0


WORDS = st.lists(st.sampled_from(list("abcdefg")), max_size=14).map(" ".join)


@settings(max_examples=200)
@given(st.lists(WORDS, max_size=8), st.lists(WORDS, max_size=8), st.integers(1, 3), st.integers(1, 4))
def test_equals_plain_sets(known: list[str], asked: list[str], words: int, boilerplate: int) -> None:
    def shingles(text: str) -> set[tuple[str, ...]]:
        parts = re.findall("[a-z]", text)
        return {tuple(parts[i : i + words]) for i in range(len(parts) - words + 1)}

    sets = [shingles(text) for text in known]
    common = {s for s in set().union(*sets) if sum(s in other for other in sets) > boilerplate}
    expected = {}
    for query, text in enumerate(asked):
        for row, other in enumerate(sets):
            left, right = shingles(text) - common, other - common
            both = len(left & right)
            if min(len(left), len(right)) >= 2 and both and both >= 0.4 * min(len(left), len(right)):
                expected[query, row] = (both, both / min(len(left), len(right)), both / len(left | right))
    index = ShingleIndex.build(shingle_texts(known, words), boilerplate)
    found = index.find(shingle_texts(asked, words), DuplicateThreshold(containment=0.4, minimum=2))
    keys = list(zip(found.queries.tolist(), found.rows.tolist(), strict=True))
    assert set(keys) == set(expected) and len(keys) == len(expected)
    for place, key in enumerate(keys):
        given = found.shared[place], found.containment[place], found.jaccard[place]
        assert given == pytest.approx(expected[key], rel=1e-6)


def test_more_pairs_than_room() -> None:
    texts = ["we learn vectors of papers"] * 90
    index = ShingleIndex.build(shingle_texts(texts, 2))
    assert len(index.find(shingle_texts(texts, 2), DuplicateThreshold(containment=0.5)).queries) == 90 * 90


def read_papers(folder: Path) -> tuple[ListedPapers, list[bool]]:
    with gzip.open(folder / "papers.jsonl.gz", "rt", encoding="utf-8") as lines:
        papers = [json.loads(line) for line in lines]
    columns = ListedPapers(
        ids=[paper["id"] for paper in papers],
        titles=[paper["title"] or "" for paper in papers],
        abstracts=[paper["abstract"] or "" for paper in papers],
        years=np.array([paper["year"] or 0 for paper in papers], np.int32),
        other_ids=[tuple(paper.get("other_ids", ())) for paper in papers],
    )
    return columns, [bool(paper.get("in_csfcube")) for paper in papers]


def test_finds_csfcube_in_peerread_plus(shared: Path) -> None:
    if not (shared / "data" / "peerread_plus").is_dir():
        pytest.skip("no data/peerread_plus")
    corpus, flags = read_papers(shared / "data" / "peerread_plus")
    benchmark, _ = read_papers(shared / "data" / "csfcube")
    report = audit_leakage(corpus, {"csfcube": benchmark})
    flagged = set(np.flatnonzero(flags).tolist())
    found = set(report.rows_to_exclude().tolist())
    assert len(flagged) == 998 and flagged <= found
    added = {(corpus.titles[m.corpus_row], benchmark.titles[m.benchmark_row]) for m in report.benchmarks["csfcube"]}
    assert len(found) >= 1025  # renamed and extended versions that no title gives away
    assert (
        "Active Discriminative Text Representation Learning",
        "Active Discriminative Word Embedding Learning",
    ) in added
