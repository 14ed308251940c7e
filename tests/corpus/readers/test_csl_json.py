"""CSL JSON: string dates, literal authors, and ids that are names in one file or identifiers everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.corpus.paper import Paper
from citeweave.corpus.readers import csl_json as reader


def write(folder: Path, content: object) -> Path:
    path = folder / "references.json"
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


def test_entries(tmp_path, read_all):
    entries = [
        {
            "id": "lovelace1843",
            "type": "article-journal",
            "title": "Notes on an <i>engine</i>",
            "author": [
                {"family": "Lovelace", "given": "Ada"},
                {"family": "Neumann", "given": "John", "non-dropping-particle": "von"},
                {"literal": "The Society"},
            ],
            "issued": {"date-parts": [["1843", 9]]},
            "container-title": "Memoirs",
            "DOI": "10/abc123",
            "URL": "https://doi.org/10.1000/Notes",
            "PMID": "77",
            "keyword": "engines, notes",
            "note": "PMCID: PMC9\nsome words",
        },
        {"id": "doi:10.1000/182", "title": "The handbook", "DOI": "10.1000/182", "issued": {"literal": "2001?"}},
        {"id": "url:https://example.org/a", "type": "webpage", "title": "A page"},
        {"id": 17, "title": "Numbered", "note": "standard_id: arxiv:1407.3561v1"},
        {"title": "No id but a DOI", "DOI": "10.1000/x"},
        {"title": "Nothing"},
        {"id": "empty"},
        "text",
    ]
    found = read_all(reader, write(tmp_path, entries))
    assert found.papers == [
        Paper(
            "lovelace1843",
            "Notes on an engine",
            year=1843,
            venue="Memoirs",
            authors=("Ada Lovelace", "John von Neumann", "The Society"),
            ids=("doi:10.1000/notes", "pmid:77", "pmcid:9"),
            extra={"type": "article-journal", "url": "https://doi.org/10.1000/Notes", "keywords": ["engines", "notes"]},
            local_id=True,
        ),
        Paper("doi:10.1000/182", "The handbook", year=2001),
        Paper("url:https://example.org/a", "A page", extra={"type": "webpage"}),
        Paper("17", "Numbered", ids=("arxiv:1407.3561",), local_id=True),
        Paper("doi:10.1000/x", "No id but a DOI"),
    ]
    assert found.rejected("papers") == {"no id": 1, "no title and no abstract": 1, "not a JSON object": 1}


def test_a_short_doi_is_noted_where_nothing_resolves_it(tmp_path, read_all):
    found = read_all(reader, write(tmp_path, [{"id": "a", "title": "T", "DOI": "10/fqd6hj"}]))
    assert found.papers[0].ids == () and found.tally.notes == {"short DOI that only doi.org could resolve": 1}


def test_wrapped_and_single(tmp_path, read_all):
    entry = {"id": "a", "type": "book", "title": "T"}
    for content in ({"items": [entry]}, entry, [entry]):
        assert [p.id for p in read_all(reader, write(tmp_path, content)).papers] == ["a"]


def test_a_broken_document_names_the_file(tmp_path, read_all):
    path = tmp_path / "cut.json"
    path.write_text('[\n {"id": "a", "title": "T"},\n {"id": ', encoding="utf-8")
    with pytest.raises(InputError, match=r"cut\.json"):
        read_all(reader, path)


def test_real_zotero(shared, read_all):
    found = read_all(reader, shared / "samples/csl_json/zotero_better_csl_1179.json")
    assert len(found.papers) == 26 and all(p.local_id and p.year for p in found.papers)
    assert sum(bool(p.ids) for p in found.papers) == 13
    assert found.papers[0].authors == ("Ian Brittain",) and found.papers[0].ids == ("doi:10.1177/0193723504268729",)
    assert {p.id: p.authors for p in found.papers}["iaaf2019"] == ("IAAF",)


def test_real_manubot(shared, read_all):
    found = read_all(reader, shared / "samples/csl_json/manubot_references_2019-09-10.json")
    assert len(found.papers) == 129 and found.rejected("papers") == {}
    assert sum(bool(p.abstract) for p in found.papers) == 31
    assert sum(not p.authors for p in found.papers) == 6
    # one entry without `issued`, one where it is {}
    assert sum(p.year is None for p in found.papers) == 2
    assert (found.papers[0].id, found.papers[0].ids) == ("16kozZ9Ys", ("arxiv:1407.3561",))
    assert not any("<" in p.title + p.abstract for p in found.papers)


def test_real_manual_references(shared, read_all):
    found = read_all(reader, shared / "samples/csl_json/manubot_manual_references.json")
    assert len(found.papers) == 41 and not any(p.local_id for p in found.papers)
    assert sum(p.id.startswith("doi:") for p in found.papers) == 6
    assert found.papers[0].id == "url:https://github.com/manubot/rootstock"


def test_recognizes_its_samples_and_no_others(shared):
    for path in (shared / "samples/csl_json").iterdir():
        assert reader.recognizes(Source(path).head()), path.name
    for folder in ("openalex", "crossref", "s2_graph_api", "unarxive", "scirepeval", "s2orc_20200705"):
        for path in (shared / "samples" / folder).glob("*.json*"):
            assert not reader.recognizes(Source(path).head()), path.name
