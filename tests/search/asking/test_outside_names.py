"""Papers that are cited and not there are called by what is known of them, however the index came to be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, import_papers
from citeweave.core.hash_keys import hash_text, hash_texts
from citeweave.corpus.paper import OUTSIDE_NAMES, NameCollector, OutsideName, OutsideNames
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.index import Index
from citeweave.search.neighborhood import find_missing_papers
from citeweave.search.update import ChangeOptions, add_papers, compact_index, delete_papers

WORDS = IndexOptions(vectors=False)
JATS = """<article><front><article-meta><article-id pub-id-type="doi">10.1000/{own}</article-id><title-group>
<article-title>Paper {own} of the library</article-title></title-group></article-meta></front><back><ref-list>
<ref id="r1"><element-citation><article-title>A classic of the whole field</article-title><year>1990</year>
<pub-id pub-id-type="doi">10.1000/Classic</pub-id></element-citation></ref>
<ref id="r2"><element-citation><article-title>A report that nobody gave an id</article-title><year>1991</year>
</element-citation></ref></ref-list></back></article>"""


def write(path: Path, records: list[dict[str, object]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def shown(index: Index) -> set[tuple[str, str, object]]:
    papers = find_missing_papers(index).as_json()["papers"]
    assert not any(paper["in_index"] for paper in papers)
    return {(paper["id"], paper["title"], paper["year"]) for paper in papers}


@pytest.fixture
def library(tmp_path: Path) -> Corpus:
    """Two papers that cite a DOI and a number outside, by a list of references and by a table."""
    cited = ["doi:10.1000/far", "c"]
    write(tmp_path / "in" / "papers.jsonl", [{"id": id, "title": f"Paper {id}", "references": cited} for id in "abc"])
    (tmp_path / "in" / "more.tsv").write_text("a\t77\nb\t77\n")
    return import_papers(tmp_path / "in", tmp_path / "corpus").corpus


def test_ids_of_reference_lists_and_tables_are_kept(library: Corpus, tmp_path: Path) -> None:
    names = library.outside_names
    assert names is not None and sorted(names.ids) == ["77", "doi:10.1000/far"]
    assert names.keys.tolist() == sorted(hash_texts(["77", "doi:10.1000/far"]).tolist())
    index = build_index(library, "none", tmp_path / "index", WORDS)
    assert shown(index) == {("doi:10.1000/far", "", None), ("77", "", None)}


def test_numbers_in_bulk_are_named_too(tmp_path: Path) -> None:
    write(tmp_path / "in" / "papers.jsonl", [{"corpusid": n, "title": f"Paper {n}"} for n in (1, 2)])
    write(
        tmp_path / "in" / "citations.jsonl",
        [
            {"citingcorpusid": n, "citedcorpusid": 99, "isinfluential": False, "contexts": [], "intents": []}
            for n in (1, 2)
        ],
    )
    corpus = import_papers(tmp_path / "in", tmp_path / "corpus").corpus
    assert shown(build_index(corpus, "none", tmp_path / "index", WORDS)) == {("s2:99", "", None)}


def test_titles_of_reference_lists_are_kept(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for own in "ab":
        (tmp_path / "in" / f"{own}.xml").write_text(JATS.format(own=own))
    corpus = import_papers(tmp_path / "in", tmp_path / "corpus").corpus
    assert len(corpus) == 2
    assert shown(build_index(corpus, "none", tmp_path / "index", WORDS)) == {
        ("doi:10.1000/classic", "A classic of the whole field", 1990),
        ("title:a report that nobody gave an id|1991", "A report that nobody gave an id", 1991),
    }


def test_an_update_keeps_names_and_drops_those_that_came(library: Corpus, tmp_path: Path) -> None:
    write(tmp_path / "new" / "far.jsonl", [{"id": "doi:10.1000/far", "title": "It came", "references": ["z"]}])
    updated = import_papers(tmp_path / "new", tmp_path / "next", update=library.folder).corpus
    assert updated.outside_names is not None and sorted(updated.outside_names.ids) == ["77", "z"]


def test_deleted_and_compacted_papers_keep_their_id(library: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build_index(library, "none", folder, WORDS)
    delete_papers(folder, ["c"])
    assert ("c", "", None) in shown(Index.open(folder))
    compact_index(folder)
    assert ("c", "", None) in shown(Index.open(folder)) and ("77", "", None) in shown(Index.open(folder))
    add_papers(
        folder, library, np.flatnonzero(np.array(list(library.ids)) == "c"), options=ChangeOptions(vectors=False)
    )
    assert shown(Index.open(folder)) == {("doi:10.1000/far", "", None), ("77", "", None)}


def test_the_first_name_wins_and_unknown_keys_have_none(tmp_path: Path) -> None:
    collector = NameCollector(hash_texts(["a", "b", "c"]))
    collector.offer(hash_texts(["b", "x", "a"]), lambda rows: [OutsideName("bxa"[row], "first") for row in rows])
    collector.offer(hash_texts(["a"]), lambda rows: [OutsideName("a", "second") for _ in rows])
    assert collector.write(tmp_path) == 2
    names = OutsideNames.open(tmp_path)
    assert names is not None and names.find(int(hash_text("a"))) == OutsideName("a", "first")
    assert names.find(int(hash_text("c"))) is None and OutsideNames.open(tmp_path / OUTSIDE_NAMES) is None
