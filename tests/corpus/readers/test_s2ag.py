"""Semantic Scholar's bulk datasets: hand-written records, the real samples, and the two ways through citations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from citeweave.core.hash_keys import hash_texts
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, CitationBlock, Context, ContextBlock, Intent, Paper
from citeweave.corpus.readers import s2ag

ReadAll = Callable[[ModuleType, Path], Any]

PAPER = {
    "corpusid": 108228682,
    "externalids": {
        "ACL": None,
        "DBLP": None,
        "ArXiv": "1806.00001",
        "MAG": "29",
        "CorpusId": "108228682",
        "PubMed": None,
        "DOI": "10.1000/ABC",
    },
    "title": "On  sorting\nthings",
    "authors": [{"authorId": "9", "name": "Ada One"}, {"authorId": None, "name": None}],
    "venue": "",
    "year": None,
    "publicationdate": "2018-03-01",
    "citationcount": 7,
    "s2fieldsofstudy": [
        {"category": "Chemistry", "source": "external"},
        {"category": "Chemistry", "source": "s2-fos-model"},
    ],
    "publicationtypes": ["Review"],
    "journal": {"name": "Journal of Sorting", "pages": None, "volume": ""},
    "updated": "2022-01-26T17:14:15.989Z",
}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return path


def test_a_paper(tmp_path: Path, read_all: ReadAll) -> None:
    found = read_all(s2ag, write(tmp_path / "papers.jsonl", PAPER))
    assert found.papers == [
        Paper(
            id="s2:108228682",
            title="On sorting things",
            year=2018,
            venue="Journal of Sorting",
            authors=("Ada One",),
            fields=("Chemistry",),
            ids=("doi:10.1000/abc", "arxiv:1806.00001", "mag:29"),
            citation_count=7,
            updated=20220126,
            extra={"types": ("Review",)},
        )
    ]


def test_abstracts_ids_and_tldrs_are_records_of_the_same_paper(tmp_path: Path, read_all: ReadAll) -> None:
    abstract = {
        "corpusid": 1,
        "openaccessinfo": {"externalids": {"DOI": "10.1000/x"}},
        "abstract": "We sort.",
        "updated": None,
    }
    found = read_all(s2ag, write(tmp_path / "abstracts.jsonl", abstract))
    assert found.papers == [Paper("s2:1", abstract="We sort.", ids=("doi:10.1000/x",))]
    sha = "894be9b4ea46a5c422e81ef3c241072d4c73fdc0"
    found = read_all(s2ag, write(tmp_path / "ids.jsonl", {"corpusid": 1, "sha": sha, "primary": True}))
    assert found.papers == [Paper("s2:1", ids=(f"s2sha:{sha}",), stub=True)]
    found = read_all(s2ag, write(tmp_path / "tldrs.jsonl", {"corpusid": 1, "model": "m", "text": "Sorting."}))
    assert found.papers == [Paper("s2:1", extra={"tldr": "Sorting."}, stub=True)]


def test_bad_papers_are_counted(tmp_path: Path, read_all: ReadAll) -> None:
    bad = [{"corpusid": None, "title": "T"}, {"corpusid": 2, "title": None}, "{broken", "[1]"]
    found = read_all(s2ag, write(tmp_path / "papers.jsonl", PAPER, *bad))
    assert len(found.papers) == 1
    assert found.rejected("papers") == {
        "no id": 1,
        "no title and no abstract": 1,
        "not valid JSON": 1,
        "not a JSON object": 1,
    }


def citations_of(path: Path) -> tuple[list[Citation], list[Context], Tally]:
    """Everything the reader makes of a file of citations, blocks spelled out as records."""
    citations: list[Citation] = []
    contexts: list[Context] = []
    tally = Tally()
    names: dict[int, str] = {}
    for record in s2ag.read(Source(path), tally):
        match record:
            case CitationBlock():
                citing, cited = record.ids()
                assert hash_texts(citing).tolist() == record.citing.tolist()
                assert hash_texts(cited).tolist() == record.cited.tolist()
                names |= dict(zip(record.citing.tolist(), citing, strict=True))
                names |= dict(zip(record.cited.tolist(), cited, strict=True))
                columns = zip(citing, cited, record.intents.tolist(), record.influential.tolist(), strict=True)
                citations += [Citation(a, b, Intent(i), influential=bool(f)) for a, b, i, f in columns]
            case ContextBlock():
                ends = np.cumsum(record.texts[0])
                texts = [
                    bytes(record.texts[1][end - size : end]).decode()
                    for end, size in zip(ends, record.texts[0], strict=True)
                ]
                columns = zip(
                    record.citing.tolist(), texts, record.cited.tolist(), record.intents.tolist(), strict=True
                )
                contexts += [Context(names[a], t, (names[b],), intents=Intent(i)) for a, t, b, i in columns]
            case Citation():
                citations.append(record)
            case Context():
                contexts.append(record)
    return citations, contexts, tally


LINES = [
    {
        "citationid": 1,
        "citingcorpusid": 101,
        "citedcorpusid": 202,
        "isinfluential": False,
        "contexts": ["One\n two \u00e9\ud83d\ude00.", ""],
        "intents": ["background"],
    },
    {
        "citingcorpusid": "101",
        "citedcorpusid": "203",
        "isinfluential": True,
        "contexts": ['Three \\ "four"\u00a0five'],
        "intents": ["methodology", "result"],
    },
    {"citingcorpusid": 101, "citedcorpusid": None, "isinfluential": False, "contexts": ["lost"], "intents": None},
    {"citingcorpusid": None, "citedcorpusid": 5, "isinfluential": False, "contexts": None, "intents": None},
    {
        "citingcorpusid": 7,
        "citedcorpusid": 8,
        "isinfluential": False,
        "contexts": ["a", "b"],
        "intents": [["result"], None],
    },
]


def test_citations_with_contexts_and_intents(tmp_path: Path) -> None:
    citations, contexts, tally = citations_of(
        write(tmp_path / "citations.jsonl", *LINES, '{"citingcorpusid": 1, "cited', "", "null")
    )
    assert citations == [
        Citation("s2:101", "s2:202", Intent.BACKGROUND),
        Citation("s2:101", "s2:203", Intent.METHOD | Intent.RESULT, influential=True),
        Citation("s2:7", "s2:8", Intent.RESULT),
    ]
    assert contexts == [
        Context("s2:101", "One two é😀.", ("s2:202",)),  # two contexts: which one the intent is about is not said
        Context("s2:101", 'Three \\ "four" five', ("s2:203",), intents=Intent.METHOD | Intent.RESULT),
        Context("s2:7", "a", ("s2:8",), intents=Intent.RESULT),
        Context("s2:7", "b", ("s2:8",)),
    ]
    assert tally.counts["citations"].rejected == {
        "no cited paper": 1,
        "no citing paper": 1,
        "not valid JSON": 1,
        "not a JSON object": 1,
    }
    assert tally.counts["contexts"].rejected == {"citation without both papers": 1, "no text": 1}


def test_a_bad_byte_costs_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "citations.jsonl", *LINES)
    path.write_bytes(path.read_bytes() + b'{"citingcorpusid": 1, "citedcorpusid": 2, "contexts": ["\xff"]}\n')
    citations, contexts, tally = citations_of(path)
    assert len(citations) == 3 and len(contexts) == 4
    assert tally.counts["citations"].rejected["not valid JSON"] == 1


def test_real_samples(shared: Path, read_all: ReadAll) -> None:
    folder = shared / "samples" / "s2ag_bulk"
    papers = read_all(s2ag, folder / "papers-sample.jsonl")
    assert len(papers.papers) == 100
    assert sum(paper.year is None for paper in papers.papers) == 3
    assert sum(not any(id.startswith("doi:") for id in paper.ids) for paper in papers.papers) == 80
    abstracts = read_all(s2ag, folder / "abstracts-sample.jsonl")
    assert len(abstracts.papers) == 100 and all(paper.abstract for paper in abstracts.papers)
    citations, contexts, tally = citations_of(folder / "citations-sample.jsonl")
    assert len(citations) + sum(tally.counts["citations"].rejected.values()) == 100
    assert tally.counts["citations"].rejected == {"no cited paper": 23}
    records = [json.loads(line) for line in (folder / "citations-sample.jsonl").read_text().splitlines()]
    texts = [text for record in records for text in record["contexts"] or []]
    assert len(contexts) + sum(tally.counts["contexts"].rejected.values()) == len(texts)
    assert sum(citation.influential for citation in citations) == sum(
        r["isinfluential"] for r in records if r["citedcorpusid"]
    )
