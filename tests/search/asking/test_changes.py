"""Answers do not show how an index came to be: built at once, or in two segments with papers that were deleted."""

from __future__ import annotations

import json

import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search import update
from citeweave.search.answer import answer
from citeweave.search.build import IndexOptions, build_index, describe_index
from citeweave.search.explain import explain
from citeweave.search.filters import Filter, count_facets, filter_rows
from citeweave.search.index import Index
from citeweave.search.index_model import open_query_encoder
from citeweave.search.map import make_map
from citeweave.search.neighborhood import find_missing_papers, find_neighborhood
from citeweave.search.query import Passage, Query, SentenceQuery
from citeweave.search.suggest import suggest

QUERIES = [
    Query(text="cell data"),
    Query(text="cell data", by="words"),
    Query(text="ghosts", by="words"),
    Query(text="cell ghosts", diversity=0.4),
    Query(paper="a"),
    Query(liked=("a", "d"), disliked=("i",)),
    Query(sentences=SentenceQuery("e", (0, 2))),
    Query(sentences=SentenceQuery(texts=("We find models from data.",))),
    Query(paper="a", diversity=0.5),
    Query(cite=Passage("We find a cell [CIT].")),
]


@pytest.fixture(scope="module")
def grown(library, tmp_path_factory):
    place = tmp_path_factory.mktemp("grown")
    lines = (library.place / "source" / "papers.jsonl").read_text().splitlines(keepends=True)
    early = place / "early"
    early.mkdir()
    gone = {"id": "gone", "title": "cell ghosts", "abstract": "We find models from data.", "year": 1901}
    gone |= {"venue": "Ghosts", "fields": ["ghosts", "cells"], "ids": ["doi:10.1/gone"]}
    (early / "papers.jsonl").write_text("".join([*lines[::2], json.dumps(gone) + "\n"]))
    citations = (library.place / "source" / "citations.tsv").read_text()
    (early / "citations.tsv").write_text(citations + "gone\tx\ngone\ty\ngone\ta\ngone\td\nc\tgone\n")
    import_papers([early], place / "corpus")
    options = IndexOptions(sentences=True, device="cpu", dtype="float32")
    build_index(Corpus.open(place / "corpus"), library.place / "model", place / "index", options)
    with pytest.MonkeyPatch.context() as patch:
        # small segments would be united at once
        patch.setattr(update, "merge_last_segments", lambda *given, **options: None)
        update.add_papers(place / "index", library.corpus)
        update.delete_papers(place / "index", ["gone"])
    index = Index.open(place / "index")
    assert len(index.segments) > 1 and len(index) == len(library.index) < index.size
    return index


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.kind} {query.by}")
def test_answers(library, grown, query):
    wanted = answer(library.index, library.reader, query)
    found = answer(grown, open_query_encoder(grown, device="cpu"), query)
    assert [hit.id for hit in found.hits] == [hit.id for hit in wanted.hits]
    assert [hit.score for hit in found.hits] == pytest.approx([hit.score for hit in wanted.hits], abs=1e-5)
    for one, other in zip(found.hits, wanted.hits, strict=True):
        assert [match.sentence for match in one.matches] == [match.sentence for match in other.matches]


def test_all_else(library, grown):
    """What is counted and proposed beside the answers."""
    for prefix in ("g", "gh", "cell ", "ce"):
        wanted, found = ([(one.text, one.papers) for one in suggest(index, prefix)] for index in (library.index, grown))
        assert found == wanted
    assert count_facets(grown, grown.alive) == count_facets(library.index, library.index.alive)
    for where in (Filter(venues=("Ghosts",)), Filter(fields=("ghosts",)), Filter(years=(1901, 1901))):
        assert not filter_rows(grown, where).any()
    counts = [describe_index(index) for index in (library.index, grown)]
    for name in ("papers", "with_vector", "with_sentences", "with_abstract", "not_embedded", "references"):
        assert counts[0][name] == counts[1][name], name
    assert grown.rows(["gone", "doi:10.1/gone"]).tolist() == [-1, -1]
    points = make_map(grown)
    assert sorted(map(grown.id, points.columns["row"].tolist())) == sorted(map(library.index.id, range(len(grown))))
    with pytest.raises(UserError) as refused:
        grown.row("gone!")
    assert "'gone'" not in str(refused.value)


def test_reasons(library, grown):
    for left, right in ("ad", "ab", "es"):
        one, other = (explain(index, index.row(left), index.row(right)).as_json() for index in (library.index, grown))
        assert one["shared_references"] == other["shared_references"] and one["cites"] == other["cites"]
        assert one["co_cited_by"] == other["co_cited_by"] and one["words"] == other["words"]
    for id in "ad":
        both = [find_neighborhood(index, index.row(id)) for index in (library.index, grown)]
        assert [paper.id for paper in both[0].nodes] == [paper.id for paper in both[1].nodes]
        assert both[0].edges == both[1].edges
    assert find_missing_papers(library.index).as_json() == find_missing_papers(grown).as_json()
