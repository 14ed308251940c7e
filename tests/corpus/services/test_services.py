"""OpenAlex and Semantic Scholar over a server that answers in their formats; every record goes through the readers."""

import json
from pathlib import Path
from typing import Any

import pytest

from citeweave.corpus.ingest import import_papers
from citeweave.corpus.services.client import Client, HttpOptions, ServiceStoppedError, write_records
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import BATCH, SemanticScholar

from ..conftest import refused


def openalex(server: Any, cache: Path | None = None) -> OpenAlex:
    return OpenAlex(Client(server.openalex(), cache, HttpOptions(tries=2), pause=lambda seconds: None))


def semantic_scholar(server: Any, cache: Path | None = None) -> SemanticScholar:
    return SemanticScholar(Client(server.s2(), cache, HttpOptions(tries=2), pause=lambda seconds: None))


def paged(server: Any, works: list[Any], size: int) -> Any:
    """Answers with pages of works, the cursor being the place of the next one."""

    def answer(request: Any) -> Any:
        start = 0 if request.query["cursor"] == "*" else int(request.query["cursor"])
        following = str(start + size) if start + size < len(works) else None
        return server.reply({"meta": {"next_cursor": following}, "results": works[start : start + size]})

    return answer


def test_a_search_is_read_page_by_page_and_resumes_where_it_stopped(server, tmp_path):
    works = [server.work(n, f"A paper about moths number {n}", cites=(1,), abstract="Moths fly.") for n in range(1, 8)]
    server.answer = paged(server, works, 3)
    page = server.reply({"meta": {"next_cursor": "3"}, "results": works[:3]})
    server.script = [page, server.reply({}, 429, {"X-RateLimit-Remaining": "0"})]
    file = tmp_path / "fetched" / "search.jsonl"
    first = write_records(openalex(server, tmp_path / "cache").search("  moths   light ", 6), file)
    assert first.count == 3 and "kept" in first.stopped and len(file.read_text().splitlines()) == 3
    second = write_records(openalex(server, tmp_path / "cache").search("moths light", 6), file)
    assert (second.count, second.stopped) == (6, "")
    assert {one.query["search"] for one in server.requests} == {"moths light"}
    assert [one.query["cursor"] for one in server.requests] == ["*", "3", "3"]  # the first page is not requested twice
    corpus = import_papers(tmp_path / "fetched", tmp_path / "corpus").corpus
    assert len(corpus) == 6 and len(corpus.citing) == 5 and corpus.abstracts[0] == "Moths fly."


@pytest.mark.parametrize("cursors", [["again"] * 10, [str(n) for n in range(10)]])
def test_a_list_without_new_records_ends(server, cursors):
    page = {"results": [server.work(1, "T")]}
    server.script = [server.reply({"meta": {"next_cursor": cursor}, **page}) for cursor in cursors]
    assert len(list(openalex(server).search("moths", 1000))) == 1 and server.script


@pytest.mark.parametrize("value", [None, [], {"results": "x", "data": 7}, {"message": "all is well"}, "text"])
def test_responses_of_another_shape_are_refused(server, tmp_path, value):
    server.answer = lambda request: server.reply(value)
    scholar = semantic_scholar(server, tmp_path)
    lists = (openalex(server, tmp_path).search("moths", 10), scholar.search("moths", 10))
    for records in (*lists, scholar.citing(["s2sha:" + "a" * 40], 10)):
        refused("expected form", list, records, error=ServiceStoppedError)
    assert len(server.requests) == 6 and not list(tmp_path.rglob("*.json"))  # tried again, and none is kept


def test_what_is_no_record_in_a_page_is_left_out_and_missing_lists_are_named(server, tmp_path):
    server.answer = lambda request: server.reply({"results": [None, 3], "data": [None, 3], "meta": 7})
    assert list(openalex(server).search("moths", 10)) == []
    assert list(semantic_scholar(server).search("moths", 10)) == []
    server.requests.clear()
    server.answer = lambda request: server.reply({"error": "not found"}, 404)
    for _ in range(2):  # not kept either
        message = r"has no /works at its address \(status 404\); check \$CITEWEAVE_OPENALEX_URL"
        refused(message, list, openalex(server, tmp_path).search("moths", 10))
    refused("no /paper/batch", list, semantic_scholar(server).by_ids(["doi:10.1/a"]))
    assert len(server.requests) == 3


def test_repeated_pages_lose_and_double_nothing(server):
    works = [server.work(n, f"T{n}") for n in range(12)]

    def page(start, following):
        return server.reply({"meta": {"count": 12, "next_cursor": following}, "results": works[start : start + 4]})

    server.script = [page(0, "b"), page(0, "b"), page(3, "c"), page(0, "d"), page(7, "d"), page(11, "e")]
    found = list(openalex(server).search("moths", 1000))
    assert [one["id"] for one in found] == [one["id"] for one in works]
    assert [request.query["cursor"] for request in server.requests] == ["*", "b", "b", "c", "c", "d"]


def test_openalex_takes_ids_of_every_kind_in_lists(server):
    ids = [f"doi:10.1/{n}" for n in range(70)] + ["arxiv:1706.03762", "pmid:7", "doi:10.1/a,is_oa:true", "s2:5", "key"]
    list(openalex(server).by_ids(ids))
    filters = [request.query["filter"] for request in server.requests]
    assert [one.split(":")[0] for one in filters] == ["doi", "doi", "pmid"]
    assert filters[0].count("|") == 49 and filters[1].endswith("|10.48550/arxiv.1706.03762") and filters[2] == "pmid:7"
    assert not any("is_oa" in one for one in filters)  # a comma in an id would add a filter


def test_openalex_lists_with_a_bad_id_are_halved(server):
    def answer(request):
        if "10.1/3" in request.query["filter"].split(":", 1)[1].split("|"):
            return server.reply({"error": "Invalid query"}, 400)
        return server.reply({"results": [server.work(len(server.requests), "T")]})

    server.answer = answer
    assert len(list(openalex(server).by_ids([f"doi:10.1/{n}" for n in range(8)]))) == 3
    assert [request.query["filter"].count("|") + 1 for request in server.requests] == [8, 4, 2, 2, 1, 1, 4]


def test_openalex_citing_works_are_bounded(server):
    server.answer = paged(server, [server.work(n, f"T{n}") for n in range(500, 800)], 100)
    found = list(openalex(server).citing([f"openalex:W{n}" for n in range(120)] + ["doi:10.1/x"], 50))
    assert len(found) == 50
    assert [request.query["filter"].count("|") + 1 for request in server.requests] == [50, 50, 20]


def test_semantic_scholar_search_brings_references(server, tmp_path):
    papers = [server.paper(n, f"A paper about moths number {n}", cites=(1, 99)) for n in range(1, 5)]

    def answer(request):
        if request.path == "/paper/search/bulk":
            rest = request.query.get("token") == "more"
            short = [{key: value for key, value in one.items() if key != "references"} for one in papers]
            data = {"token": None, "data": short[2:]} if rest else {"token": "more", "data": short[:2]}
            return server.reply({"total": 4, **data})
        assert request.path == "/paper/batch" and "references.paperId" in request.query["fields"]
        return server.reply([one if one["paperId"] in request.body["ids"] else None for one in papers])

    server.answer = answer
    written = write_records(semantic_scholar(server).search("moths", 10), tmp_path / "fetched" / "search.jsonl")
    assert written.count == 4
    corpus = import_papers(tmp_path / "fetched", tmp_path / "corpus").corpus
    assert len(corpus) == 4 and len(corpus.citing) == 3 and len(corpus.references_outside("key")) == 4


def test_semantic_scholar_batches_are_halved_where_they_are_too_large(server):
    def answer(request):
        ids = request.body["ids"]
        return server.reply({"error": "too large"}, 400) if len(ids) > 30 else server.reply([None] * len(ids))

    server.answer = answer
    assert list(semantic_scholar(server).by_ids([f"doi:10.1/{n}" for n in range(BATCH + 1)])) == []
    assert [len(one.body["ids"]) for one in server.requests] == [100, 50, 25, 25, 50, 25, 25, 1]
    assert server.requests[-1].body["ids"] == ["DOI:10.1/100"]


def test_semantic_scholar_citations_name_the_cited_paper(server, tmp_path):
    cited = server.paper(7, "The paper that is cited by others")
    entry = {"contexts": ["Moths fly [7]."], "intents": ["background"]}
    entry["citingPaper"] = server.paper(8, "A citing paper of moths")
    server.answer = lambda request: server.reply({"offset": 0, "data": [entry, None, entry]})
    found = list(semantic_scholar(server).citing(["s2sha:" + cited["paperId"], "doi:10.1/x"], 1))
    first = server.requests[0]
    assert first.path == f"/paper/{cited['paperId']}/citations" and first.query["limit"] == "1"
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [cited, *found]))
    corpus = import_papers(tmp_path / "all.jsonl", tmp_path / "corpus").corpus
    assert [corpus.citation(0).citing, corpus.citation(0).cited] == [f"s2sha:{8:040x}", f"s2sha:{7:040x}"]
    assert corpus.contexts.texts[0] == "Moths fly [7]."


@pytest.mark.parametrize("id", ["../../x", "W1,title.search:x", "W1|W2", "a\r\nX-Evil: 1", "\u2603", "?x=1#"])
def test_ids_of_citing_papers_are_never_more_than_ids(server, id):
    assert list(openalex(server).citing([f"openalex:{id}"], 5)) == []
    assert list(semantic_scholar(server).citing([f"s2sha:{id}"], 5)) == []
    assert server.requests == []


def test_a_cursor_that_is_no_text_stays_a_parameter(server):
    for n, meta in enumerate([{"next_cursor": "\ud800&x=1"}, {}]):
        page = {"meta": meta, "results": [server.work(n, "T")]}
        server.script.append(server.reply(raw=json.dumps(page).encode()))
    assert len(list(openalex(server).search("x", 5))) == 2
    assert server.requests[1].query["cursor"] == "?&x=1" and server.requests[1].path == "/works"


def test_no_file_is_left_where_nothing_was_received(tmp_path):
    (tmp_path / "a.jsonl").write_text("old\n")
    assert write_records([], tmp_path / "a.jsonl").count == 0
    assert list(tmp_path.iterdir()) == []


def test_untrusted_characters_can_be_written(server, tmp_path):
    data = json.dumps({"results": [server.work(1, "A \ud800 b\u2028c")]}).encode()
    server.answer = lambda request: server.reply(raw=data)
    assert write_records(openalex(server).search("x", 5), tmp_path / "a.jsonl").count == 1
    assert len(import_papers(tmp_path / "a.jsonl", tmp_path / "corpus").corpus) == 1
