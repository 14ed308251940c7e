"""Semantic Scholar Graph API: papers inside papers, nulls, and pages that do not say whose references they list."""

import json

import pytest

from citeweave.corpus.paper import Citation, Context, Intent, Paper
from citeweave.corpus.readers import s2_graph_api as reader

A, B, C = "a" * 40, "b" * 40, "c" * 40


def test_a_paper_is_read_with_the_references_and_citations_inside(read_all):
    record = json.loads("""{"corpusId": 7, "externalIds": {"DOI": "10.1000/Own", "CorpusId": 7}, "title": "A  study",
        "abstract": "We study.", "year": 2020, "venue": "", "journal": {"name": "Journal of Studies"},
        "authors": [{"authorId": "1", "name": "Ada Lovelace"}, {"authorId": null, "name": null}], "citationCount": 3,
        "fieldsOfStudy": ["Physics"], "s2FieldsOfStudy": [{"category": "Physics", "source": "external"},
        {"category": "History"}], "isOpenAccess": false, "tldr": {"model": "m", "text": "Short."},
        "embedding": {"model": "specter_v2", "vector": [0.1, 0.1]}}""")
    references = [
        {"paperId": B, "title": "Cited with abstract", "abstract": "Text."},
        {"paperId": None, "title": "A reference known by its title only", "year": 1999},
        {"paperId": None, "title": "Too short", "year": 1999},
        None,
    ]
    citing = {"paperId": C, "title": "Citing", "abstract": None, "isInfluential": True, "intent": ["result"]}
    found = read_all("s2_graph_api", [{"paperId": A, **record, "references": references, "citations": [citing]}])
    venue, authors, fields = "Journal of Studies", ("Ada Lovelace",), ("Physics", "History")
    ids, extra = ("s2:7", "doi:10.1000/own"), {"tldr": "Short.", "open_access": False}
    by_title = "title:a reference known by its title only|1999"
    assert found.papers == [
        Paper(f"s2sha:{A}", "A study", "We study.", 2020, venue, authors, fields, ids, 3, extra=extra),
        Paper(f"s2sha:{B}", "Cited with abstract", "Text."),
        Paper(by_title, "A reference known by its title only", year=1999, stub=True),
        Paper(f"s2sha:{C}", "Citing"),
    ]
    assert found.citations == [
        Citation(f"s2sha:{A}", f"s2sha:{B}"),
        Citation(f"s2sha:{A}", by_title),
        Citation(f"s2sha:{C}", f"s2sha:{A}", Intent.RESULT, influential=True),
    ]
    assert found.rejected("papers") == {"no id": 2}
    assert found.rejected("citations") == {"reference without a usable id": 2}


CITED = {"contexts": ["One  sentence.", ""], "intents": ["methodology"], "citedPaper": {"paperId": B, "title": "Cited"}}
ALONE = {"contexts": ["Alone."], "intents": ["background"], "citedPaper": {"paperId": C, "title": None}}
PAGE = {"offset": 0, "data": [{**CITED, "isInfluential": True}, ALONE]}


@pytest.mark.parametrize("name", ["response.json", f"{A}_{B}.json"])
def test_a_page_of_references_cannot_know_the_citing_paper(read_all, name):
    found = read_all("s2_graph_api", [PAGE], name)
    assert found.papers == [Paper(f"s2sha:{B}", "Cited", stub=True)] and found.citations == []
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert found.rejected("citations") == {reader.NO_CITING: 2}
    assert found.rejected("contexts") == {reader.NO_CITING: 3}


@pytest.mark.parametrize("page", [({"paperId": A, **PAGE}, "response.json"), (PAGE, f"{A.upper()}.references.json")])
def test_the_citing_paper_comes_from_the_envelope_or_the_file_name(read_all, page):
    found = read_all("s2_graph_api", [page[0]], page[1])
    a, b, c = (f"s2sha:{paper}" for paper in (A, B, C))
    assert found.citations == [Citation(a, b, Intent.METHOD, 2.0, True), Citation(a, c, Intent.BACKGROUND)]
    alone = Context(a, "Alone.", (c,), intents=Intent.BACKGROUND)
    assert found.contexts == [Context(a, "One sentence.", (b,)), alone]
    assert found.rejected("contexts") == {"empty context": 1}


def test_each_context_has_its_own_intents(read_all):
    ends = {"citingPaper": {"paperId": A, "title": "Citing"}, "citedPaper": {"paperId": B, "title": "Cited"}}
    intents = [{"context": "First.", "intents": ["background"]}, {"context": "Second.", "intents": None}]
    entry = {"contexts": ["First.", "Second."], "intents": [], "contextsWithIntent": intents, **ends}
    found = read_all("s2_graph_api", [entry])
    assert found.citations == [Citation(f"s2sha:{A}", f"s2sha:{B}", Intent.BACKGROUND, 2.0)]
    assert [c.intents for c in found.contexts] == [Intent.BACKGROUND, Intent.UNKNOWN]


def test_responses_one_per_line_may_hold_errors_and_nulls(read_all):
    batch = [None, {"paperId": B, "title": "Of a batch"}]
    lines = [{"data": [{"paperId": A, "title": "Found"}, None, 5]}, {"error": "Paper with id x not found"}, batch]
    found = read_all("s2_graph_api", "\n".join(map(json.dumps, lines)) + "\n{broken\n")
    assert [p.title for p in found.papers] == ["Found", "Of a batch"]
    counts = {"not a JSON object": 1, "error response of the API": 1, "not valid JSON": 1}
    assert found.rejected("papers") == {"id not found at the source": 2, **counts}
