"""Semantic Scholar Graph API: papers inside papers, nulls, and pages that do not say whose references they list."""

from __future__ import annotations

import json
from pathlib import Path

from citeweave.core.inputs import Source
from citeweave.corpus.paper import Citation, Context, Intent, Paper
from citeweave.corpus.readers import s2_graph_api as reader

A, B, C = "a" * 40, "b" * 40, "c" * 40


def write(folder: Path, content: object, name: str = "response.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_paper_with_references_and_citations_inside(tmp_path, read_all):
    record = {
        "paperId": A,
        "corpusId": 7,
        "externalIds": {"DOI": "10.1000/Own", "CorpusId": 7},
        "title": "A  study",
        "abstract": "We study.",
        "year": 2020,
        "venue": "",
        "journal": {"name": "Journal of Studies"},
        "authors": [{"authorId": "1", "name": "Ada Lovelace"}, {"authorId": None, "name": None}],
        "citationCount": 3,
        "fieldsOfStudy": ["Physics"],
        "s2FieldsOfStudy": [{"category": "Physics", "source": "external"}, {"category": "History"}],
        "isOpenAccess": False,
        "tldr": {"model": "m", "text": "Short."},
        "embedding": {"model": "specter_v2", "vector": [0.1] * 768},
        "references": [
            {"paperId": B, "title": "Cited with abstract", "abstract": "Text."},
            {"paperId": None, "title": "A reference known by its title only", "year": 1999},
            {"paperId": None, "title": "Too short", "year": 1999},
            None,
        ],
        "citations": [{"paperId": C, "title": "Citing", "abstract": None, "isInfluential": True, "intent": ["result"]}],
    }
    found = read_all(reader, write(tmp_path, record))
    by_title = "title:a reference known by its title only|1999"
    assert found.papers == [
        Paper(
            f"s2sha:{A}",
            "A study",
            "We study.",
            2020,
            "Journal of Studies",
            ("Ada Lovelace",),
            ("Physics", "History"),
            ("s2:7", "doi:10.1000/own"),
            citation_count=3,
            extra={"tldr": "Short.", "open_access": False},
        ),
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
    assert found.rejected("citations") == {"reference without usable id": 2}


PAGE = {
    "offset": 0,
    "data": [
        {
            "contexts": ["One  sentence.", ""],
            "intents": ["methodology"],
            "isInfluential": True,
            "citedPaper": {"paperId": B, "title": "Cited"},
        },
        {"contexts": ["Alone."], "intents": ["background"], "citedPaper": {"paperId": C, "title": None}},
    ],
}


def test_a_page_of_references_cannot_know_the_citing_paper(tmp_path, read_all):
    found = read_all(reader, write(tmp_path, PAGE))
    assert found.papers == [Paper(f"s2sha:{B}", "Cited", stub=True)]
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert found.rejected("citations") == {reader.NO_CITING: 2}
    assert found.rejected("contexts") == {reader.NO_CITING: 3}


def test_the_citing_paper_from_the_envelope_or_the_file_name(tmp_path, read_all):
    in_envelope = read_all(reader, write(tmp_path, {"paperId": A, **PAGE}))
    in_name = read_all(reader, write(tmp_path, PAGE, f"{A.upper()}.references.json"))
    for found in (in_envelope, in_name):
        assert found.citations == [
            Citation(f"s2sha:{A}", f"s2sha:{B}", Intent.METHOD, 2.0, True),
            Citation(f"s2sha:{A}", f"s2sha:{C}", Intent.BACKGROUND),
        ]
        assert found.contexts == [
            Context(f"s2sha:{A}", "One sentence.", (f"s2sha:{B}",)),
            Context(f"s2sha:{A}", "Alone.", (f"s2sha:{C}",), intents=Intent.BACKGROUND),
        ]
        assert found.rejected("contexts") == {"empty context": 1}
    ambiguous = read_all(reader, write(tmp_path, PAGE, f"{A}_{B}.json"))
    assert ambiguous.citations == []


def test_intents_of_each_context(tmp_path, read_all):
    entry = {
        "contexts": ["First.", "Second."],
        "intents": [],
        "contextsWithIntent": [
            {"context": "First.", "intents": ["background"]},
            {"context": "Second.", "intents": None},
        ],
        "citingPaper": {"paperId": A, "title": "Citing"},
        "citedPaper": {"paperId": B, "title": "Cited"},
    }
    found = read_all(reader, write(tmp_path, entry))
    assert found.citations == [Citation(f"s2sha:{A}", f"s2sha:{B}", Intent.BACKGROUND, 2.0)]
    assert [c.intents for c in found.contexts] == [Intent.BACKGROUND, Intent.UNKNOWN]


def test_one_response_a_line_with_errors_and_nulls(tmp_path, read_all):
    path = tmp_path / "saved.jsonl"
    lines = [
        {"data": [{"paperId": A, "title": "Found"}, None, 5]},
        {"error": "Paper with id x not found"},
        [None, {"paperId": B, "title": "Of a batch"}],
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n", encoding="utf-8")
    found = read_all(reader, path)
    assert [p.title for p in found.papers] == ["Found", "Of a batch"]
    assert found.rejected("papers") == {
        "id not found at the source": 2,
        "not a JSON object": 1,
        "error response of the API": 1,
        "not valid JSON": 1,
    }


def test_real_full_paper(shared, read_all):
    found = read_all(reader, shared / "samples/s2_graph_api/paper_full_first20_citations.json")
    turing = found.papers[0]
    assert (turing.title, turing.year, turing.citation_count) == ("Computing Machinery and Intelligence", 1950, 10059)
    assert turing.ids == ("s2:14636783", "doi:10.1093/mind/lix.236.433", "dblp:journals/x/Turing50", "mag:2145482038")
    assert turing.extra["types"] == ["JournalArticle", "Review"]
    # 14 references (6 without paperId, one of them known by title and year) and 20 citations
    assert len(found.papers) + 5 == 1 + 14 + 20 and found.rejected("papers") == {"no id": 5}
    assert sum(c.citing == turing.id for c in found.citations) == 9
    assert sum(c.cited == turing.id for c in found.citations) == 20


def test_real_pages(shared, read_all):
    folder = shared / "samples/s2_graph_api"
    counts = {
        "paper_references_contexts.json": (35, {}),
        "paper_references_intents_first28.json": (28, {}),
        "paper_references_contexts_with_intent_page2_first6.json": (6, {}),
        "paper_references_title_only_page1.json": (40, {"no id": 10}),
        "paper_references_title_only_page2.json": (4, {"no id": 13}),
        "paper_search_first20.json": (20, {}),
        "paper_batch_with_null.json": (3, {"id not found at the source": 1}),
        "citation_object.json": (1, {}),
        "reference_object.json": (1, {}),
    }
    for name, (papers, rejected) in counts.items():
        found = read_all(reader, folder / name)
        assert (len(found.papers), found.rejected("papers")) == (papers, rejected), name
        assert found.citations == [] and found.contexts == []


def test_real_page_with_a_known_citing_paper(shared, tmp_path, read_all):
    page = (shared / "samples/s2_graph_api/paper_references_contexts.json").read_bytes()
    path = tmp_path / f"{A}.json"
    path.write_bytes(page)
    found = read_all(reader, path)
    assert len(found.citations) == 35 and len(found.contexts) == sum(
        len(e["contexts"]) for e in json.loads(page)["data"]
    )
    assert found.contexts[0] == Context(
        f"s2sha:{A}",
        "Other VAElike approaches exist [12, 22] but are less closely related to our method.",
        ("s2sha:018300f5f0e679cee5241d9c69c8d88e00e8bf31",),
        intents=Intent.RESULT,
    )


def test_real_legacy_paper(shared, read_all):
    found = read_all(reader, shared / "samples/s2_graph_api/legacy_v1_paper_ACL-W12-3903.json")
    own = found.papers[0]
    assert (own.citation_count, own.extra["topics"][0], own.ids) == (3, "Unsupervised learning", ("s2:2666779",))
    assert len(found.stubs) == 24 and len(found.citations) == 24 + 3
    assert found.rejected("papers") == {} == found.rejected("citations")


def test_recognizes_every_sample(shared):
    for path in (shared / "samples/s2_graph_api").glob("*.json"):
        assert reader.recognizes(Source(path).head()), path.name
    for other in ("openalex/api_work_2026.json", "s2orc_20200705/metadata_sample.first50.jsonl"):
        assert not reader.recognizes(Source(shared / "samples" / other).head())
