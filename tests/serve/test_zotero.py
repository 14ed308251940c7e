"""Databases and exports of Zotero, made here in its own layout."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from citeweave.core.errors import InputError
from citeweave.corpus.ingest import import_papers
from citeweave.serve.zotero import write_csl, write_csl_from_rdf

from ..conftest import refused

SCHEMA = """
CREATE TABLE itemTypes (itemTypeID INTEGER PRIMARY KEY, typeName TEXT);
CREATE TABLE items (itemID INTEGER PRIMARY KEY, itemTypeID INT, libraryID INT, key TEXT);
CREATE TABLE fields (fieldID INTEGER PRIMARY KEY, fieldName TEXT);
CREATE TABLE itemDataValues (valueID INTEGER PRIMARY KEY, value);
CREATE TABLE itemData (itemID INT, fieldID INT, valueID INT);
CREATE TABLE creators (creatorID INTEGER PRIMARY KEY, firstName TEXT, lastName TEXT, fieldMode INT);
CREATE TABLE itemCreators (itemID INT, creatorID INT, creatorTypeID INT, orderIndex INT);
CREATE TABLE deletedItems (itemID INTEGER PRIMARY KEY);
INSERT INTO itemTypes VALUES (1, 'journalArticle'), (2, 'attachment'), (3, 'case');
INSERT INTO fields VALUES (1, 'title'), (2, 'abstractNote'), (3, 'date'), (4, 'DOI'), (5, 'publicationTitle'), (6, 'caseName'), (7, 'extra');
INSERT INTO items VALUES (1, 1, 1, 'AAAA1111'), (2, 1, 1, 'BBBB2222'), (3, 2, 1, 'CCCC3333'), (4, 1, 1, 'DDDD4444'), (5, 3, 1, 'EEEE5555');
INSERT INTO itemDataValues VALUES (1, 'A study of moths near lamps'), (2, 'Moths <i>fly</i>.'), (3, '2019-03-00 March 2019'),
  (4, '10.1000/Moth'), (5, 'Journal of Lamps'), (6, 'A second paper about the moon'), (7, 'Full text PDF'), (8, 'In the trash'),
  (9, 'Lamp v. Moth'), (10, 'PMID: 123'), (11, 1950);
INSERT INTO itemData VALUES (1,1,1),(1,2,2),(1,3,3),(1,4,4),(1,5,5),(2,1,6),(2,7,10),(2,3,11),(3,1,7),(4,1,8),(5,6,9);
INSERT INTO creators VALUES (1, 'Ada', 'Lovelace', 0), (2, '', 'The Moth Group', 1);
INSERT INTO itemCreators VALUES (1, 2, 1, 1), (1, 1, 1, 0);
INSERT INTO deletedItems VALUES (4);
"""


LISTS = """
CREATE TABLE tags (tagID INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE itemTags (itemID INT, tagID INT, type INT);
CREATE TABLE collections (collectionID INTEGER PRIMARY KEY, collectionName TEXT, parentCollectionID INT);
CREATE TABLE collectionItems (collectionID INT, itemID INT, orderIndex INT);
CREATE TABLE itemAttachments (itemID INTEGER PRIMARY KEY, parentItemID INT, linkMode INT, contentType TEXT, path TEXT);
INSERT INTO tags VALUES (1, 'moths, large'), (2, 'lamps');
INSERT INTO itemTags VALUES (1, 1, 0), (1, 2, 0), (4, 2, 0);
INSERT INTO collections VALUES (1, 'Insects', NULL);
INSERT INTO collectionItems VALUES (1, 1, 0);
INSERT INTO itemAttachments VALUES (3, 1, 0, 'application/pdf', 'storage:moth.pdf');
INSERT INTO itemDataValues VALUES (12, 'Citation Key: ada2019moths');
INSERT INTO itemData VALUES (1, 7, 12);
"""


def test_tags_collections_keys_and_files(database, tmp_path):
    with closing(sqlite3.connect(database)) as made:
        made.executescript(LISTS)
    assert write_csl(database, tmp_path / "zotero.json") == 3
    corpus = import_papers(tmp_path / "zotero.json", tmp_path / "corpus").corpus
    extra = corpus.paper(corpus.row("doi:10.1000/moth")).extra
    assert (extra["keywords"], extra["collections"], extra["key"]) == (
        ["lamps", "moths, large"],
        ["Insects"],
        "ada2019moths",
    )
    assert Path(extra["file"]) == database.parent / "storage" / "CCCC3333" / "moth.pdf"
    assert "collections" not in corpus.paper(corpus.row("pmid:123")).extra


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "Zotero" / "zotero.sqlite"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as made:
        made.executescript(SCHEMA)
    return path


def test_items_become_papers(database, tmp_path):
    assert write_csl(database, tmp_path / "zotero.json") == 3
    corpus = import_papers(tmp_path / "zotero.json", tmp_path / "corpus").corpus
    paper = corpus.paper(corpus.row("doi:10.1000/moth"))
    assert (paper.id, paper.title, paper.abstract) == ("zotero-AAAA1111", "A study of moths near lamps", "Moths fly.")
    assert (paper.year, paper.venue, paper.authors) == (2019, "Journal of Lamps", ("Ada Lovelace", "The Moth Group"))
    assert corpus.paper(corpus.row("pmid:123")).year == 1950
    titles = ["A second paper about the moon", "A study of moths near lamps", "Lamp v. Moth"]
    assert sorted(corpus.titles[row] for row in range(3)) == titles


def test_zotero_may_be_running(database, tmp_path):
    """A change that is under way is neither seen nor disturbed, and the database is not written to."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("DELETE FROM items")
        other.execute("PRAGMA cache_spill = ON")
        before = database.read_bytes()
        assert write_csl(database, tmp_path / "zotero.json") == 3
        assert database.read_bytes() == before
        other.execute("ROLLBACK")
    assert sorted(path.name for path in database.parent.iterdir()) == ["zotero.sqlite"]


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00" + b"\xff" * 200])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "zotero.sqlite"
    path.write_bytes(content)
    refused(r"zotero.sqlite is not a database of Zotero", write_csl, path, tmp_path / "out.json", error=InputError)
    assert not (tmp_path / "out.json").exists()


RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:z="http://www.zotero.org/namespaces/export#"
 xmlns:dcterms="http://purl.org/dc/terms/" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:bib="http://purl.org/net/biblio#"
 xmlns:foaf="http://xmlns.com/foaf/0.1/">
 <bib:Article rdf:about="http://example.org/a"><z:itemType>journalArticle</z:itemType>
  <dcterms:isPartOf><bib:Journal><dc:title>Journal of Lamps</dc:title><dc:identifier>DOI 10.1000/moth</dc:identifier></bib:Journal></dcterms:isPartOf>
  <bib:authors><rdf:Seq><rdf:li><foaf:Person><foaf:surname>Lovelace</foaf:surname><foaf:givenName>Ada</foaf:givenName></foaf:Person></rdf:li></rdf:Seq></bib:authors>
  <dc:title>A study of moths near lamps</dc:title><dcterms:abstract>Moths fly.</dcterms:abstract><dc:date>March 2019</dc:date></bib:Article>
 <bib:Article rdf:about="#b"><z:itemType>journalArticle</z:itemType><dcterms:isPartOf rdf:resource="urn:issn:1"/><dc:title>The moon</dc:title></bib:Article>
 <bib:Journal rdf:about="urn:issn:1"><dc:title>Moon Letters</dc:title></bib:Journal>
 <z:Attachment rdf:about="#c"><z:itemType>attachment</z:itemType><dc:title>PDF</dc:title></z:Attachment>
</rdf:RDF>"""


def test_an_export_as_rdf(tmp_path):
    export = tmp_path / "My Library.rdf"
    export.write_text(RDF)
    assert write_csl_from_rdf(export, tmp_path / "rdf.json") == 2
    first, second = json.loads((tmp_path / "rdf.json").read_text())
    assert first["DOI"] == "10.1000/moth"
    assert [one["container-title"] for one in (first, second)] == ["Journal of Lamps", "Moon Letters"]
    corpus = import_papers(tmp_path / "rdf.json", tmp_path / "corpus").corpus
    paper = corpus.paper(corpus.row("doi:10.1000/moth"))
    assert (paper.abstract, paper.year, paper.authors) == ("Moths fly.", 2019, ("Ada Lovelace",))
    export.write_text(RDF.replace("journalArticle", "note"))
    refused("no item with a title", write_csl_from_rdf, export, tmp_path / "rdf.json", error=InputError)
