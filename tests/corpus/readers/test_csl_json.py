"""CSL JSON: string dates, literal authors, and ids that are names in one file or identifiers everywhere."""

import json

from citeweave.corpus.paper import Paper


def test_entries_are_read_or_counted(read_all):
    entries = json.loads(r"""[{"id": "lovelace1843", "type": "article-journal", "title": "Notes on an <i>engine</i>",
        "author": [{"family": "Lovelace", "given": "Ada"}, {"family": "Neumann", "given": "John",
        "non-dropping-particle": "von"}, {"literal": "The Society"}], "issued": {"date-parts": [["1843", 9]]},
        "container-title": "Memoirs", "DOI": "10/abc123", "URL": "https://doi.org/10.1000/Notes", "PMID": "77",
        "keyword": "engines, notes", "note": "PMCID: PMC9\nsome words"},
        {"id": "doi:10.1000/182", "title": "The handbook", "DOI": "10.1000/182", "issued": {"literal": "2001?"}},
        {"id": "url:https://example.org/a", "type": "webpage", "title": "A page"},
        {"id": 17, "title": "Numbered", "note": "standard_id: arxiv:1407.3561v1"},
        {"title": "No id but a DOI", "DOI": "10.1000/x"}, {"id": "https://doi.org/10.1000/y", "title": "An address"},
        {"id": "s", "title": "Short", "DOI": "10/fqd6hj"},
        {"title": "Nothing"}, {"id": "empty"}, "text"]""")
    found = read_all("csl_json", json.dumps(entries, indent=1))
    authors, ids = ("Ada Lovelace", "John von Neumann", "The Society"), ("doi:10.1000/notes", "pmid:77", "pmcid:9")
    extra = {"type": "article-journal", "url": "https://doi.org/10.1000/Notes", "keywords": ["engines", "notes"]}
    front = ("Notes on an engine", "", 1843, "Memoirs", authors, (), ids)
    assert found.papers == [
        Paper("lovelace1843", *front, extra=extra, local_id=True),
        Paper("doi:10.1000/182", "The handbook", year=2001),
        Paper("url:https://example.org/a", "A page", extra={"type": "webpage"}),
        Paper("17", "Numbered", ids=("arxiv:1407.3561",), local_id=True),
        Paper("doi:10.1000/x", "No id but a DOI"),
        Paper("doi:10.1000/y", "An address"),
        Paper("s", "Short", local_id=True),
    ]
    assert found.notes == {"short DOI that only doi.org could resolve": 1}  # of Short; the first one has another DOI
    assert found.rejected("papers") == {"no id": 1, "no title and no abstract": 1, "not a JSON object": 1}


def test_entries_may_be_wrapped_or_single(read_all):
    entry = {"id": "a", "type": "book", "title": "T"}
    for content in ({"items": [entry]}, entry, [entry]):
        assert [p.id for p in read_all("csl_json", json.dumps(content, indent=1)).papers] == ["a"]
