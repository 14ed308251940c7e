"""Reasons, neighborhoods and missing papers against the small list of citations that the library was made of; papers
outside the corpus are called by what is known of them, however the index came to be."""

import numpy as np
import pytest

from citeweave import Corpus, ImportOptions, Index, IndexOptions, import_papers
from citeweave.core.hash_keys import hash_text, hash_texts
from citeweave.corpus.paper import OUTSIDE_NAMES, NameCollector, OutsideName, OutsideNames
from citeweave.search.answer import allowed_rows
from citeweave.search.build import ChangeOptions, add_papers, build_index, delete_papers
from citeweave.search.explain import (
    ABSTRACT_DISTANCE,
    explain,
    find_citing_papers,
    find_missing_papers,
    find_neighborhood,
    shared_words,
)
from citeweave.search.query import Filter, Passage, Query
from citeweave.vectors.document_distance import explain_pair
from citeweave.vectors.sentence_vectors import SentenceVectors

from ..conftest import refused
from .conftest import write_records

WORDS_ONLY = IndexOptions(vectors=False)


def why(index: Index, left: str, right: str):
    return explain(index, index.row(left), index.row(right))


def test_reasons_are_citations_and_words(library):
    index = library.index
    found = why(index, "a", "d")
    # both cite b, c and x; x is not in the library; e and f cite both
    assert [paper.id for paper in found.shared] == ["b", "c"] and found.shared_unknown == 1
    assert [paper.id for paper in found.citing] == ["e", "f"] and found.cites == ""
    names = ("left_references", "right_references", "shared_references", "left_cited_by", "right_cited_by")
    assert found.counts == {**dict(zip(names, (3, 4, 3, 3, 2), strict=True)), "co_cited_by": 2}
    assert [why(index, *pair).cites for pair in ("ac", "ca", "ab")] == ["left", "right", "both"]
    assert found.words == [one.word for one in shared_words(index, index.row("a"), index.row("d"))]
    words = why(library.words, "a", "d")
    assert words.pairs == [] and words.distance is None and "no sentences are matched" in words.note
    assert [paper.id for paper in words.shared] == ["b", "c"]


def test_reasons_match_sentences(library):
    index, found = library.index, why(library.index, "a", "e")
    vectors = SentenceVectors.of(["a", "e"], [index.sentence_vectors(index.row(id)) for id in "ae"])
    wanted = explain_pair(vectors, "a", "e", ABSTRACT_DISTANCE)
    assert found.distance == pytest.approx(wanted.total, abs=1e-5)
    for pair in found.pairs:
        assert pair.mass == pytest.approx(wanted.plan[pair.left, pair.right] / wanted.plan.sum(), abs=1e-4)
    assert sum(pair.mass for pair in found.pairs) == pytest.approx(1, abs=1e-2)
    assert found.left_sentences == ["A cell grows.", "We find models from data."]
    said = found.as_json()
    assert said["pairs"][0].keys() == {"left", "right", "mass", "distance"}
    assert said["matches"] and said["matches"][0].keys() == {"left", "right", "cosine", "strength"}
    assert said["shared_references"].keys() == {"known", "unknown"}
    assert said["left"]["sentences"] == found.left_sentences
    assert found.brief()["pairs"][0].keys() == {"left", "right", "mass"}


def test_a_neighborhood_is_that_of_the_citations(library):
    index, row = library.index, library.index.row("a")
    found = find_neighborhood(index, row)
    names = [paper.id for paper in found.nodes]
    assert names[0] == "a" and set(names) == {"a", "b", "c", "e", "f"} and found.outside == 1 and not found.left_out
    inside = {edge for edge in library.edges if set(edge) <= set(names)}
    assert {(names[one], names[two]) for one, two in found.edges} == inside
    few = find_neighborhood(index, row, max_papers=2)
    # b is linked twice to a, the others once
    assert [paper.id for paper in few.nodes] == ["a", "b", "c"] and few.left_out == 2
    assert few.as_json()["edges"] == [{"citing": citing, "cited": cited} for citing, cited in ("ab", "ac", "ba")]
    assert find_neighborhood(index, index.row("s")).edges == []
    refused("0 papers are asked for", find_neighborhood, index, row, max_papers=0)


def test_missing_papers_are_those_that_several_cite(library):
    found = find_missing_papers(library.index)
    keys = hash_texts(["x", "y"]).tolist()
    assert sorted((int(paper.key), paper.count) for paper in found) == sorted(zip(keys, [2, 2], strict=True))
    said = [paper.as_json() for paper in found]
    assert not found[0].in_index and said[0]["title"] == "" and not any(paper["in_index"] for paper in said)
    assert sorted(paper["id"] for paper in said) == ["x", "y"], "what is known of them is shown, no hashes"
    assert len(find_missing_papers(library.index, max_papers=1)) == 1
    assert find_missing_papers(library.index, min_citing=3) == []


def test_references_that_are_rows(library, tmp_path):
    """x and y are papers of the index now, but known only because others cite them."""
    sources = [library.place / "source" / name for name in ("papers.jsonl", "citations.tsv")]
    corpus = import_papers(sources, tmp_path / "corpus", ImportOptions(outside="keep")).corpus
    index = build_index(corpus, library.place / "model", tmp_path / "index", WORDS_ONLY)
    found = find_missing_papers(index)
    assert sorted((paper.known.id, paper.count) for paper in found if paper.in_index) == [("x", 2), ("y", 2)]
    assert find_citing_papers(index) == []  # x and y cite nothing
    stubs = index.rows(["x", "y"])
    for query, has_stubs in (
        (Query(text="cell"), False),
        (Query(text="cell", outside=True), True),
        (Query(text="cell", where=Filter(local=False)), True),
        (Query(cite=Passage("cell")), True),
    ):
        assert allowed_rows(index, query)[stubs].tolist() == [has_stubs] * 2


# --- names of papers outside the corpus ----------------------------------------------------------------------

JATS = """<article><front><article-meta><article-id pub-id-type="doi">10.1000/{own}</article-id><title-group>
<article-title>Paper {own} of the library</article-title></title-group></article-meta></front><back><ref-list>
<ref id="r1"><element-citation><article-title>A classic of the whole field</article-title><year>1990</year>
<pub-id pub-id-type="doi">10.1000/Classic</pub-id></element-citation></ref>
<ref id="r2"><element-citation><article-title>A report that nobody gave an id</article-title><year>1991</year>
</element-citation></ref></ref-list></back></article>"""


def shown(index: Index) -> set[tuple[str, str, object]]:
    papers = [paper.as_json() for paper in find_missing_papers(index)]
    assert not any(paper["in_index"] for paper in papers)
    return {(paper["id"], paper["title"], paper["year"]) for paper in papers}


@pytest.fixture
def citing(tmp_path) -> Corpus:
    """Three papers that cite a DOI and a number outside, by a list of references and by a table."""
    cited = ["doi:10.1000/far", "c"]
    papers = [{"id": id, "title": f"Paper {id}", "references": cited} for id in "abc"]
    write_records(tmp_path / "in" / "papers.jsonl", papers)
    (tmp_path / "in" / "more.tsv").write_text("a\t77\nb\t77\n")
    return import_papers(tmp_path / "in", tmp_path / "corpus").corpus


def test_ids_of_reference_lists_and_tables_are_kept_whatever_changes(citing, tmp_path):
    names, folder = citing.outside_names, tmp_path / "index"
    assert names is not None and sorted(names.ids) == ["77", "doi:10.1000/far"]
    assert names.keys.tolist() == sorted(hash_texts(["77", "doi:10.1000/far"]).tolist())
    outside = {("doi:10.1000/far", "", None), ("77", "", None)}
    assert shown(build_index(citing, "none", folder, WORDS_ONLY)) == outside
    delete_papers(folder, ["c"])
    assert {("c", "", None), ("77", "", None)} <= shown(Index.open(folder))
    row = np.flatnonzero(np.array(list(citing.ids)) == "c")
    add_papers(folder, citing, row, options=ChangeOptions(vectors=False))
    assert shown(Index.open(folder)) == outside
    # a new corpus keeps the names and drops those that came
    record = {"id": "doi:10.1000/far", "title": "It came", "references": ["z"]}
    write_records(tmp_path / "new" / "far.jsonl", [record])
    updated = import_papers(tmp_path / "new", tmp_path / "next", update=citing.folder).corpus
    assert updated.outside_names is not None and sorted(updated.outside_names.ids) == ["77", "z"]


def test_numbers_in_bulk_are_named_too(tmp_path):
    write_records(tmp_path / "in" / "papers.jsonl", [{"corpusid": n, "title": f"Paper {n}"} for n in (1, 2)])
    none = {"isinfluential": False, "contexts": [], "intents": []}
    pairs = [{"citingcorpusid": n, "citedcorpusid": 99, **none} for n in (1, 2)]
    write_records(tmp_path / "in" / "citations.jsonl", pairs)
    corpus = import_papers(tmp_path / "in", tmp_path / "corpus").corpus
    assert shown(build_index(corpus, "none", tmp_path / "index", WORDS_ONLY)) == {("s2:99", "", None)}


def test_titles_of_reference_lists_are_kept(tmp_path):
    (tmp_path / "in").mkdir()
    for own in "ab":
        (tmp_path / "in" / f"{own}.xml").write_text(JATS.format(own=own))
    corpus = import_papers(tmp_path / "in", tmp_path / "corpus").corpus
    assert len(corpus) == 2
    assert shown(build_index(corpus, "none", tmp_path / "index", WORDS_ONLY)) == {
        ("doi:10.1000/classic", "A classic of the whole field", 1990),
        ("title:a report that nobody gave an id|1991", "A report that nobody gave an id", 1991),
    }


def test_the_first_name_wins_and_unknown_keys_have_none(tmp_path):
    collector = NameCollector(hash_texts(["a", "b", "c"]))
    collector.offer(hash_texts(["b", "x", "a"]), lambda rows: [OutsideName("bxa"[row], "first") for row in rows])
    collector.offer(hash_texts(["a"]), lambda rows: [OutsideName("a", "second") for _ in rows])
    assert collector.write(tmp_path) == 2
    names = OutsideNames.open(tmp_path)
    assert names is not None and names.find(int(hash_text("a"))) == OutsideName("a", "first")
    assert names.find(int(hash_text("c"))) is None and OutsideNames.open(tmp_path / OUTSIDE_NAMES) is None
