"""What a query text names in an index: papers by id, key and title, authors, phrases, years and venues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from citeweave import Index, IndexOptions
from citeweave.core.errors import UserError
from citeweave.search.answer import answer, needs_query_encoder
from citeweave.search.author_names import AuthorNames
from citeweave.search.build import build_index
from citeweave.search.look_up import phrase_rows
from citeweave.search.paper_details import cited_counts, details_json
from citeweave.search.query import Filter, Query
from citeweave.search.read_query import id_spellings, parse_years, read_text

from .conftest import corpus_of

PAPERS: list[dict[str, Any]] = [
    {"id": "doi:10.18653/v1/n19-1423", "title": "BERT: Pre-training of transformers", "year": 2019, "venue": "NAACL",
     "authors": ["Jacob Devlin", "Ming-Wei Chang"], "ids": ["arxiv:1810.04805"], "abstract": "A beam  search is not used."},
    {"id": "doi:10.1000/beam", "title": "Beam-search for translation", "year": 2014, "venue": "Proceedings of ACL",
     "authors": ["J. Devlin", "Laurens van der Maaten"], "abstract": "Translation of a search beam."},
    {"id": "pmid:77", "title": "Dialogue of young children", "year": 2016, "venue": "Child", "authors": ["Ada Berg"],
     "abstract": "Young children learn a language.", "key": "Berg2016kids", "tags": ["to read"]},
    {"id": "x:young", "title": "Dialogue systems", "year": 2013, "venue": "ACL", "authors": ["Steve J. Young", "王伟"],
     "abstract": "Partially observed states."},
    {"id": "x:rain", "title": "Rain", "year": 2012, "venue": "Water", "authors": ["Anders Søgaard", "Christopher De Sa"],
     "abstract": "Rain in the young mountains."},
    {"id": "x:other", "title": "A survey of rain", "authors": ["Christopher D. Manning", "Kaiming He"], "abstract": "We look."},
]  # fmt: skip
CITES = [("x:other", "x:rain"), ("x:young", "x:rain"), ("x:rain", "doi:10.1000/beam")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    place = tmp_path_factory.mktemp("names")
    corpus = corpus_of(place / "source", PAPERS, CITES)
    return build_index(corpus, "minilm", place / "index", IndexOptions(vectors=False))


@pytest.fixture
def ask(index: Index) -> Any:
    def found(text: str, **options: Any) -> tuple[list[str], dict[str, Any], str]:
        result = answer(index, None, Query(text=text, by="words", **options))
        assert result.total >= len(result.hits)
        return [hit.title.partition(" ")[0].rstrip(":") for hit in result.hits], result.read, result.note

    return found


@pytest.mark.parametrize(
    "text",
    [
        "10.18653/V1/N19-1423", "doi:10.18653/v1/N19-1423", "DOI: 10.18653/v1/N19-1423.", "(10.18653/v1/n19-1423)",
        "https://doi.org/10.18653/v1/N19-1423", "http://dx.doi.org/10.18653%2Fv1%2FN19-1423", "arXiv:1810.04805v2",
        "1810.04805", "arxiv 1810.04805", "https://arxiv.org/abs/1810.04805v1", "https://arxiv.org/pdf/1810.04805.pdf",
        "https://www.aclweb.org/anthology/doi/10.18653/v1/N19-1423?x=y#z", " DOI 10.18653/v1/N19-1423 ",
    ],
)  # fmt: skip
def test_an_id_in_any_spelling_finds_its_paper_alone(ask, text):
    titles, read, note = ask(text)
    assert titles == ["BERT"] and not note and len(read["ids"]) == 1


def test_ids_keys_and_titles(ask, index):
    assert ask("PMID 77")[0] == ask("https://pubmed.ncbi.nlm.nih.gov/77/")[0] == ask("berg2016KIDS")[0] == ["Dialogue"]
    assert ask("10.1000/beam pmid:77")[0] == ["Beam-search", "Dialogue"]
    assert ask("10.1234/none") == (
        [],
        {"ids": ["doi:10.1234/none"], "text": ""},
        "no paper here has the DOI 10.1234/none",
    )
    assert ask("10.1234/none rain")[2] == "no paper here has the DOI 10.1234/none" and ask("10.1234/none rain")[0]
    assert ask("x:rain")[0][0] == "Rain" and ask("rain")[0] == ["Rain", "A"]
    assert ask("pre-training of Transformers, BERT")[0][0] == "BERT"
    assert ask("bert")[0] == ["BERT"] and ask("beam search for TRANSLATION!")[0][0] == "Beam-search"
    assert not needs_query_encoder(Query(text="pmid:77"), index) and needs_query_encoder(Query(text="rain"), index)


def test_authors_with_and_without_a_prefix(ask):
    both = ["BERT", "Beam-search"]
    for text in ("Devlin", "devlin", "Jacob Devlin", "devlin, jacob", "J. Devlin", "papers by Devlin", "author:devlin"):
        titles, read, note = ask(text)
        assert titles == both and read["authors"] and not note, text
    assert ask("devlin 2014")[0] == ask("Devlin et al. (2014)")[0] == ["Beam-search"]
    assert ask("devlin 1999")[0] == both
    assert ask("devlin translation")[0] == ["Beam-search"] and ask("author:devlin transformers")[0] == ["BERT"]
    assert ask("devlin rain")[0] == ["Rain", "A"], "nobody by that name is about it, and nothing is lost"
    for text, title in (
        ("van der Maaten", "Beam-search"),
        ("sogaard", "Rain"),
        ("De Sa", "Rain"),
        ("王伟", "Dialogue"),
    ):
        assert ask(text)[0] == [title], text
    assert ask("Christopher Manning")[0] == ask("kaiming he")[0] == ["A"] and ask("Ming-Wei Chang")[0] == ["BERT"]
    assert ask("author:Devlyn")[2] == "no paper has the author 'Devlyn', did you mean 'Jacob Devlin'?"
    assert ask("author:devlin author:maaten")[0] == ["Beam-search"]
    assert ask("author:devlin author:berg")[2] == "no paper meets all of these conditions"


def test_an_ordinary_word_stays_a_word(ask):
    titles, _, note = ask("young")
    assert (
        titles == ["Dialogue", "Dialogue", "Rain"]
        and note == "papers by young come first; author:young finds only these"
    )
    assert ask("young children language")[0] == ["Dialogue", "Rain"] and ask("young children")[1] == {}
    assert ask("what does he see")[1] == {} == ask("rain")[1]
    assert ask("author:young")[0] == ["Dialogue"]


def test_phrases_years_and_venues(ask, index):
    assert ask('"beam search"')[0] == ask("“Beam  SEARCH”")[0] == ["Beam-search", "BERT"]
    assert ask('"beam search" pre')[0] == ["BERT", "Beam-search"] and ask('"search beam"')[0] == ["Beam-search"]
    assert ask('"no such thing"')[2] == "no paper has the phrase 'no such thing' in its title or abstract"
    assert ask('rain "of')[2].endswith("read as plain text") and ask('rain "of')[0]
    assert ask("year:2016-")[0] == ["BERT", "Dialogue"] and ask("YEAR: 2012")[0] == ask("year:-2012")[0] == ["Rain"]
    assert ask("venue:acl")[0] == ["Dialogue"] and ask("venue:proceedings")[0] == ["Beam-search"]
    assert ask("venue:acl year:2020-2010 dialogue")[1] == {"venues": ["acl"], "years": [2010, 2020], "text": "dialogue"}
    assert ask("venue:Watre")[2] == "no paper has the venue 'Watre', did you mean 'Water'?"
    assert phrase_rows(index, "of a").sum() == 1


def test_conditions_that_cannot_be_read_are_noted(ask):
    assert ask("year:abc rain")[2].startswith("year:abc is not a year; write year:2019") and ask("year:abc rain")[0]
    assert ask("author:")[2].startswith("author: is without a value") and ask("author:")[0] == []
    for text in (
        '"',
        '""',
        '" "',
        ":",
        "doi:",
        "10.",
        "()",
        "author::::",
        "year:",
        'author:""',
        "%%%",
        '"' * 299,
        "a:" * 100,
    ):
        answer_or_refusal(ask, text)
    for text in ("x" * 9000, "\ud800", "10." * 90, "10.1000/" + "(" * 280, "author:" * 40, "- " * 140, "é" * 300):
        answer_or_refusal(ask, text)


def answer_or_refusal(ask: Any, text: str) -> None:
    try:
        ask(text)
    except UserError as error:
        assert len(str(error)) < 200 and "\n" not in str(error)


def test_pasted_texts_are_left_alone():
    for text in ('Title of Devlin\nAn "abstract" year:2019 10.1/x', "word " * 100 + '"a phrase"'):
        assert read_text(text).is_plain and read_text(text).text == text


def test_orders(index):
    def titles(**options: Any) -> list[str]:
        return [hit.title.partition(" ")[0] for hit in answer(index, None, Query(by="words", **options)).hits]

    assert (
        titles(text="rain", order="newest") == ["Rain", "A"]
        and titles(text="year:2013-", order="oldest")[0] == "Dialogue"
    )
    assert titles(text="author:devlin", order="cited")[0] == "Beam-search"
    assert cited_counts(index)[index.row("x:rain")] == 2
    assert titles(text="rain dialogue", order="cited")[0] == "Rain"
    result = answer(index, None, Query(text="devlin", count=1, offset=1))
    assert result.total == 2 and [hit.title[:4] for hit in result.hits] == ["Beam"]
    assert titles(text="rain", where=Filter(authors=("Manning, C.",))) == ["A"]
    assert titles(text="children", where=Filter(keywords=("To Read",))) == ["Dialogue"]
    for options in ({"order": "newest", "diversity": 0.5}, {"order": "best"}):
        with pytest.raises(UserError, match="order is"):
            Query(text="rain", **options)


def test_names_of_many_kinds():
    names = ["Müller, Jörg", "O'Neil, Ann", "Plato", "J.-B. Li", "María José García", "Devlin J"]
    known = AuthorNames(names)
    written = ("mueller", "jorg muller", "ONEIL", "a. o’neil", "plato", "Li, Jean-Baptiste", "garcia", "Jacob Devlin")
    assert [known.matching(name) for name in written] == [[0], [0], [1], [1], [2], [3], [4], [5]]
    assert known.matching("") == known.matching("...") == known.matching("Karl Li") == []


def test_details_of_damaged_metadata():
    class Paper:
        id, ids = "a", ()
        extra = json.loads(
            '{"bibtex": 7, "url": "javascript:alert(1)", "keywords": [1, null, "a"], "collections": "b", "file": []}'
        )

    empty = {"doi": "", "url": "", "pdf": "", "key": ""}
    assert details_json(Paper()) == {**empty, "keywords": ["a"], "collections": ["b"]}


def test_ids_and_years_by_themselves():
    assert id_spellings("10.1145/1.2")[-1] == "acm:10.1145/1.2" and not id_spellings("and/or")
    assert id_spellings("10.1002/(SICI)1097-0258(19980815)17:15<1661::AID-SIM968>3.0.CO;2-2")
    assert parse_years("<2015") == (None, 2014) and parse_years("20155") is None
