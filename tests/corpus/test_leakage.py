"""The audit for leakage: every rule, and real papers."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.leakage import LeakageEvidence, LeakageReport, PaperTable, audit_leakage
from citeweave.corpus.options import LeakageOptions

from .conftest import refused

ABSTRACT = (
    "We present a method that learns vectors of scientific papers from their citations and their text. "
    "It needs no labels, runs on a laptop, and improves search by two points over strong baselines on four sets."
)


def pairs_of(report: LeakageReport, name: str = "b") -> list[tuple[int, int, LeakageEvidence]]:
    return [(match.corpus_row, match.benchmark_row, match.evidence) for match in report.benchmarks[name]]


def audit(corpus: PaperTable, benchmark: PaperTable, **options: object) -> list[tuple[int, int, LeakageEvidence]]:
    return pairs_of(audit_leakage(corpus, {"b": benchmark}, LeakageOptions(**options)))  # type: ignore[arg-type]


def years(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


PREFIXED, NEAR_TITLE = LeakageEvidence.ID | LeakageEvidence.OTHER_ID, LeakageEvidence.NEAR_TITLE
BY_TITLE, BY_OTHER_ID = [(0, 0, LeakageEvidence.TITLE)], [(0, 0, LeakageEvidence.OTHER_ID)]
SHORT = PaperTable(["a"], ["Visual Dialog"], years=years(2015))
ALIASES = PaperTable(["s2:1"], other_ids=[("doi:10.1000/ABC", "arxiv:1706.03762")])
ARGUMENTS = "Using summarization to discover argument facets in online {} dialog"
BAYES = PaperTable(["a"], ["Naïve Bayes — a (re)view of methods"])
EDITORIAL = PaperTable(["a"], ["Editorial"], years=years(2015))
QUESTIONS = "Question answering based on semantic"
MISSPELLED, SPELLED = ([ARGUMENTS.format(word)] for word in ("idealogical", "ideological"))
RIVER = "Salmon swim up the river to the place of their birth. "


RULES = [
    (PaperTable(["s2:1", "s2:2"]), PaperTable(["s2:2"]), {}, [(1, 0, PREFIXED)]),
    # bare ids count only in one id space
    (PaperTable(["1", "2"]), PaperTable(["2"]), {}, []),
    (PaperTable(["1", "2"]), PaperTable(["2"]), {"same_id_space": True}, [(1, 0, LeakageEvidence.ID)]),
    (ALIASES, PaperTable(["doi:10.1000/abc"]), {}, BY_OTHER_ID),
    (ALIASES, PaperTable(["doi:10.48550/arXiv.1706.03762"]), {}, BY_OTHER_ID),
    # a repeated id is believed but not multiplied
    (PaperTable(["s2:1"] * 20), PaperTable(["s2:1"] * 20), {}, [(row, 0, PREFIXED) for row in range(20)]),
    # case, punctuation and accents of titles do not matter
    (BAYES, PaperTable(["b"], ["NAIVE BAYES: A RE VIEW OF METHODS."]), {}, BY_TITLE),
    # short titles need near years
    (SHORT, PaperTable(["b"], ["Visual dialog"], years=years(2015)), {}, BY_TITLE),
    (SHORT, PaperTable(["b"], ["Visual dialog"], years=years(2017)), {}, BY_TITLE),
    (SHORT, PaperTable(["b"], ["Visual dialog"], years=years(2018)), {}, []),
    (SHORT, PaperTable(["b"], ["Visual dialog"], years=years(0)), {}, []),
    # one word is no title, and an empty title matches nothing
    (EDITORIAL, EDITORIAL, {}, []),
    (PaperTable(["a"]), PaperTable(["b"]), {}, []),
    # long titles decide where an abstract is missing, short ones do not
    (PaperTable(["a"], MISSPELLED), PaperTable(["b"], SPELLED, [ABSTRACT]), {}, [(0, 0, NEAR_TITLE)]),
    (PaperTable(["a"], MISSPELLED, [RIVER * 3 + ARGUMENTS]), PaperTable(["b"], SPELLED, [ABSTRACT]), {}, []),
    (PaperTable(["a"], [QUESTIONS + " structures"]), PaperTable(["b"], [QUESTIONS + " roles"]), {}, []),
    (PaperTable(["a"], ["x"], [ABSTRACT]), PaperTable(["b"], ["y"], [ABSTRACT]), {"near_duplicates": False}, []),
]


@pytest.mark.parametrize(("corpus", "benchmark", "options", "expected"), RULES)
def test_evidence_follows_the_rules(corpus, benchmark, options, expected):
    assert audit(corpus, benchmark, **options) == expected


def test_generic_titles_count_for_nothing():
    corpus = PaperTable([str(i) for i in range(11)], ["A letter to the editor"] * 11)
    report = audit_leakage(corpus, {"b": PaperTable(["x"], ["A letter to the editor"])})
    assert pairs_of(report) == [] and report.benchmarks["b"].generic_titles == 1


def test_another_title_and_a_cut_abstract_are_near_duplicates():
    cut = ABSTRACT[: len(ABSTRACT) * 3 // 4].upper()
    corpus = PaperTable(["a", "c"], ["Paper vectors", "Fish"], [cut, "Salmon swim up the river. " * 9])
    report = audit_leakage(corpus, {"b": PaperTable(["b"], ["Vectors for papers"], [ABSTRACT])})
    (match,) = report.benchmarks["b"]
    assert (match.corpus_row, match.benchmark_row, match.strongest) == (0, 0, LeakageEvidence.TEXT)
    assert match.similarity > 0.8


def test_passes_do_not_change_the_result():
    texts = [ABSTRACT.replace("method", f"method {i}") for i in range(7)]
    table = PaperTable([f"x:{i}" for i in range(7)], [f"Title number {i} of these" for i in range(7)], texts)
    passes = (LeakageOptions(papers_per_pass=size) for size in (14, 3))
    one, many = (audit_leakage(table, {"b": table, "c": table}, options) for options in passes)
    assert [pairs_of(one, name) for name in "bc"] == [pairs_of(many, name) for name in "bc"]
    assert len(pairs_of(one)) == 49


def test_the_report_counts_lists_rows_and_prints_a_table():
    corpus = PaperTable(["s2:1", "s2:2", "s2:3"], ["One title of the four", "", ""], ["", ABSTRACT, ""])
    benchmark = PaperTable(["s2:1", "x", "y"], ["One title of the four", "", ""], ["", ABSTRACT, ABSTRACT])
    report = audit_leakage(corpus, {"b": benchmark, "none": PaperTable([])})
    counts = report.as_json()
    assert json.loads(json.dumps(counts)) == counts and counts["exclude"] == 2
    assert counts["benchmarks"]["b"] == {
        **{"papers": 3, "papers_found": 3, "corpus_papers": 2, "generic_titles": 0},
        "strongest": {"id": 1, "other_id": 0, "title": 0, "text": 1, "near_title": 0},
        "evidence": {"id": 1, "other_id": 1, "title": 1, "text": 1, "near_title": 0},
    }
    assert report.rows_to_exclude().tolist() == [0, 1]
    assert report.rows_to_exclude(LeakageEvidence.TITLE | LeakageEvidence.ID).tolist() == [0]
    lines = str(report).splitlines()
    assert lines[1].split() == ["b", "3", "3", "2", "1", "0", "0", "1", "0"]
    assert lines[-1].startswith("2 of 3 corpus papers")


def test_memory_mapped_columns_of_a_corpus_will_do(write, tmp_path):
    path = write("papers.jsonl", {"id": "s2:1", "title": "Some title", "abstract": ABSTRACT})
    corpus = PaperTable.of_corpus(import_papers(path, tmp_path / "corpus").corpus)
    assert audit(corpus, PaperTable(["x"], ["Other"], [ABSTRACT])) == [(0, 0, LeakageEvidence.TEXT)]


def test_wrong_options_and_tables_are_refused():
    refused("containment is 0; it must be greater than 0 and at most 1", LeakageOptions, containment=0)
    refused("papers_per_pass is 0", LeakageOptions, papers_per_pass=0)
    with pytest.raises(UserError, match="short has 2 ids and 1 titles"):
        audit_leakage(PaperTable([]), {"short": PaperTable(["a", "b"], ["one"])})


def read_papers(folder: Path) -> tuple[PaperTable, list[bool]]:
    with gzip.open(folder / "papers.jsonl.gz", "rt", encoding="utf-8") as lines:
        papers = [json.loads(line) for line in lines]
    columns = PaperTable(
        ids=[paper["id"] for paper in papers],
        titles=[paper["title"] or "" for paper in papers],
        abstracts=[paper["abstract"] or "" for paper in papers],
        years=np.array([paper["year"] or 0 for paper in papers], np.int32),
        other_ids=[tuple(paper.get("other_ids", ())) for paper in papers],
    )
    return columns, [bool(paper.get("in_csfcube")) for paper in papers]


def test_finds_csfcube_in_peerread_plus(shared):
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
    renamed = ("Active Discriminative Text Representation Learning", "Active Discriminative Word Embedding Learning")
    assert renamed in added
