"""OpenAlex: inverted abstracts that may be bombs, three outer shapes, two ages of the layout."""

import json
import tracemalloc

import pytest

from citeweave.corpus.paper import Citation, Paper
from citeweave.corpus.readers import openalex as reader


def test_a_work_is_read(read_all):
    work = json.loads("""{"id": "https://openalex.org/W12", "doi": "https://doi.org/10.1000/ABC",
        "title": "On <i>things</i>", "publication_year": 2021, "ids": {"openalex": "https://openalex.org/W12",
        "mag": "12", "pmid": "https://pubmed.ncbi.nlm.nih.gov/99"}, "abstract_inverted_index": {"things.": [3],
        "We": [0], "study": [1], "small": [2]}, "primary_location": {"source": {"display_name": "Journal"}},
        "locations": [{"landing_page_url": "http://arxiv.org/abs/2101.00001v2"}],
        "authorships": [{"author": {"display_name": "Ada Lovelace"}}, {"author": null}],
        "topics": [{"display_name": "Rings", "field": {"display_name": "Mathematics"}}],
        "concepts": [{"display_name": "Old concept", "score": 0.4}], "cited_by_count": 5,
        "updated_date": "2024-02-03T01:02:03.000", "is_retracted": true, "type": "article",
        "referenced_works": ["https://openalex.org/W1", "nothing", "W2"]}""")
    pages = [{"landing_page_url": f"https://arxiv.org/abs/2101.0000{n}"} for n in (1, 2)]  # are two papers
    found = read_all("openalex", [work, {"id": "W1", "title": "T", "locations": pages}])
    front = ("On things", "We study small things.", 2021, "Journal", ("Ada Lovelace",), ("Mathematics", "Rings"))
    ids = ("doi:10.1000/abc", "arxiv:2101.00001", "pmid:99", "mag:12")
    extra = {"type": "article", "is_retracted": True}
    assert found.papers == [Paper("openalex:W12", *front, ids, 5, 20240203, extra), Paper("openalex:W1", "T")]
    assert found.citations == [Citation("openalex:W12", "openalex:W1"), Citation("openalex:W12", "openalex:W2")]
    assert found.rejected("citations") == {"reference without a usable id": 1}


IMPOSSIBLE = [{"bomb": [10**9]}, {"bomb": [reader.MAX_POSITION + 1]}, {"below": [-1]}, {"words": ["0"]}, {"number": 3}]
IMPOSSIBLE += [{"truth": [True]}, {"w" * 20_000: list(range(100))}, {"w": [0] * (reader.MAX_POSITION + 2)}]


@pytest.mark.parametrize("index", IMPOSSIBLE)
def test_an_impossible_abstract_is_left_out(read_all, index):
    found = read_all("openalex", [{"id": "W1", "title": "Kept", "abstract_inverted_index": index}])
    assert found.papers == [Paper("openalex:W1", "Kept")]
    assert found.notes == {"abstract left out: impossible word positions": 1}


def test_the_highest_position_is_fine_and_a_bomb_takes_no_memory(read_all):
    index = {"first": [0], "last": [reader.MAX_POSITION]}
    found = read_all("openalex", [{"id": "W1", "abstract_inverted_index": index}])
    assert found.papers[0].abstract == "first last" and found.notes == {}
    # one word of a megabyte at a hundred thousand positions would be 100 GB of text
    bomb = {"x" * 2**20: list(range(100_000)), "y": [10**9]}
    tracemalloc.start()
    assert reader._words_in_order(bomb) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**16


def test_envelopes_are_opened_and_what_is_no_work_is_counted(read_all):
    page = {"meta": {"count": 2}, "results": [{"id": "W1", "title": "T"}, None, {"id": "https://openalex.org/A5"}]}
    found = read_all("openalex", [page, {"id": "W2", "title": None}, [1]])
    assert [p.id for p in found.papers] == ["openalex:W1"]
    assert found.rejected("papers") == {"no OpenAlex work id": 2, "no title and no abstract": 1, "not a JSON object": 1}
