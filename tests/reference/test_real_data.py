"""The real corpora and samples, imported whole: the counts that come with them, differences explained.

The data's own description counts abstracts of at least 50 signs; we count every abstract, so two more in
each of the two large sets. eLife's contexts hold 22 lines that repeat citing paper and text of another.
"""

from pathlib import Path

import pytest

from citeweave import Corpus, ImportOptions, audit_corpus, import_papers

COUNTS = {
    # papers, abstracts, citations, contexts, contexts that repeat another
    "peerread_plus": (30_678, 23_952 + 2, 65_761, 100_164, 0),
    "elife": (20_338, 20_336 + 2, 18_593, 42_422 - 22, 22),
    "csfcube": (4_205, 4_205, 0, 0, 0),
    "scicite": (0, 0, 0, 9_159, 0),
    "acl_arc": (0, 0, 0, 1_941, 0),
    "acl_anthology": (65_108, 65_108, 0, 0, 0),
    "scitldr": (3_229, 3_229, 0, 0, 0),
    "scirepeval_samples": (2_047, 1_918, 0, 0, 0),
}

SAMPLES = {
    # papers read by the readers, stubs of references included; papers kept
    "acl_anthology": (137, 131), "arxiv": (213, 212), "bibtex": (1_069, 1_062), "crossref": (202, 76),
    "csl_json": (196, 158), "grobid_tei": (58, 3), "jats": (55, 2), "openalex": (24, 11), "pubmed": (15, 15),
    "ris": (111, 111), "s2_graph_api": (228, 122), "s2ag_bulk": (248, 202), "s2orc_20200705": (217, 88),
    "scirepeval": (231, 231), "specter": (72, 72), "unarxive": (6, 6),
}  # fmt: skip


def data_folder(shared: Path, name: str) -> Path:
    folder = shared / "data" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder


@pytest.mark.parametrize("name", COUNTS)
def test_corpora_have_the_counts_that_come_with_them(shared: Path, tmp_path: Path, name: str) -> None:
    corpus = import_papers([data_folder(shared, name)], tmp_path / "corpus").corpus
    papers, abstracts, citations, contexts, repeated = COUNTS[name]
    filled = int((corpus.abstracts.lengths() > 0).sum())
    assert (len(corpus), filled, len(corpus.citing), len(corpus.contexts)) == (papers, abstracts, citations, contexts)
    records = corpus.manifest.facts["records"]
    for count in records.values():
        assert count["read"] == count["kept"] + sum(count["rejected"].values())
    assert sum(records["contexts"]["rejected"].values()) == repeated
    assert not records["papers"]["rejected"] and not records["citations"]["rejected"]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_accounted_for(shared: Path, tmp_path: Path, name: str) -> None:
    corpus = import_papers([shared / "samples" / name], tmp_path / "corpus").corpus
    records = corpus.manifest.facts["records"]
    assert (records["papers"]["read"], records["papers"]["kept"]) == SAMPLES[name]
    for kind, rows in (("papers", len(corpus)), ("citations", len(corpus.citing)), ("contexts", len(corpus.contexts))):
        assert records[kind]["kept"] == rows
        assert records[kind]["read"] == rows + sum(records[kind]["rejected"].values())


def test_reference_lists_make_the_graph_larger(shared: Path, tmp_path: Path) -> None:
    folder = data_folder(shared, "peerread_plus")
    corpus = import_papers([folder], tmp_path / "corpus", ImportOptions(outside="keep")).corpus
    assert len(corpus) > 100_000 and len(corpus.citing) > 200_000
    assert corpus.manifest.facts["skipped_files"] == {}


def test_all_benchmark_papers_are_found(shared: Path, tmp_path: Path) -> None:
    """The flags in the data are the floor: every flagged paper is found, and text finds more than titles."""
    corpus = import_papers([data_folder(shared, "peerread_plus")], tmp_path / "corpus").corpus
    report = audit_corpus(corpus, {"csfcube": data_folder(shared, "csfcube")})
    found = set(report.rows_to_exclude().tolist())
    flagged = {row for row, extra in enumerate(corpus.extras) if '"in_csfcube":true' in extra}
    assert len(flagged) == 998 and flagged <= found
    assert len(found) == 1_029


def test_opening_reads_nothing(shared: Path, tmp_path: Path) -> None:
    import_papers([data_folder(shared, "elife")], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    assert not {"titles", "abstracts", "citing"} & set(vars(corpus)), "columns are opened when first used"
