from typing import Any

import pytest

from citeweave.corpus.corpus import STUB
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.services.client import Client, HttpOptions
from citeweave.corpus.services.enrich import EnrichOptions, enrich_library, incomplete_rows, join_fetched
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import SemanticScholar

from ..conftest import refused

BIB = """
@article{doi, title={A study of moths near bright lamps}, year={2019}, doi={10.1000/MOTH}}
@article{preprint, title={How the moon guides insects at night}, year={2020}, eprint={2001.00001}, archiveprefix={arXiv}}
@article{title, title={Lamps, streets and the {Insects} they kill}, year={2018}}
@article{twins, title={One title that several papers bear}, year={2015}}
@article{other, title={A paper whose identifier is another}, year={2016}, doi={10.1000/mine}}
@article{short, title={Moths}, year={2001}}
@article{gone, title={A paper that no service has heard of}, year={2001}}
"""


@pytest.fixture
def library(tmp_path):
    (tmp_path / "my.bib").write_text(BIB)
    return import_papers(tmp_path / "my.bib", tmp_path / "corpus").corpus


def records(make: Any) -> list[Any]:
    return [
        make(1, "A study of moths near bright lamps", 2019, "10.1000/moth", (50, 60), "Moths like lamps."),
        make(2, "How the moon guides insects at night", 2020, "10.48550/arXiv.2001.00001", (50, 1), "The moon guides."),
        make(3, "Lamps, Streets, and the Insects They Kill.", 2019, "10.1000/street", (50, 60), "Lamps kill."),
        make(4, "One title that several papers bear", 2014, "10.1000/t1"),
        make(5, "One title that several papers bear", 2016, "10.1000/t2"),
        make(6, "A paper whose identifier is another", 2016, "10.1000/theirs", (), "Not mine."),
        make(7, "Lamps, streets and the insects they kill: a reply", 2018, "10.1000/reply", (), "No."),
    ]


def openalex_answers(server: Any, works: list[Any]) -> Any:
    citing = server.work(90, "A review of insects and lamps", 2022, "10.1000/review", (1, 2, 3, 4), "We review.")
    lacking = {n: server.work(n, f"A classic of the field number {n}", 1990, abstract="A classic.") for n in (50, 60)}

    def answer(request: Any) -> Any:
        kind, _, value = request.query["filter"].partition(":")
        if kind == "doi":
            found = [one for one in works if one["doi"].lower().removeprefix("https://doi.org/") in value.split("|")]
        elif kind == "title.search":
            words = set(value.split()) & {"streets", "bear", "identifier"}
            found = [one for one in works if words & set(one["title"].lower().replace(",", "").split())]
        elif kind == "cites":
            found = [citing]
        else:
            found = [lacking[int(name[1:])] for name in value.split("|")]
        return server.reply({"meta": {"next_cursor": None}, "results": found})

    return answer


def test_openalex_fills_a_library(server, library, tmp_path):
    assert len(incomplete_rows(library)) == 7
    server.answer = openalex_answers(server, records(server.work))
    service = OpenAlex(Client(server.openalex(), tmp_path / "cache", pause=lambda seconds: None))
    report = enrich_library(library, service, tmp_path / "fetched")
    assert (report.asked, report.found, report.ambiguous, report.not_found) == (7, 3, 1, 3)
    assert (report.citing, report.lacking, report.stopped) == (1, 2, "")
    richer = join_fetched(library, tmp_path / "fetched", tmp_path / "richer")
    assert len(richer) == 7 + 1 + 2  # every record joined its paper; the review and the two classics are new
    assert [richer.ids[row] for row in range(7)] == [library.ids[row] for row in range(7)]
    by_name = {richer.ids[row]: row for row in range(len(richer))}
    assert richer.abstracts[by_name["title"]] == "Lamps kill." and richer.years[by_name["title"]] == 2018
    assert richer.abstracts[by_name["preprint"]] == "The moon guides."
    assert richer.abstracts[by_name["other"]] == "" and richer.abstracts[by_name["twins"]] == ""
    cited = {(richer.citation(n).citing, richer.citation(n).cited) for n in range(len(richer.citing))}
    assert {("preprint", "doi"), ("openalex:W90", "title"), ("title", "openalex:W50")} <= cited
    assert len(incomplete_rows(richer)) < 10
    assert [bool(richer.flags[row] & STUB) for row in range(10)] == [False] * 7 + [True] * 3
    again = enrich_library(library, OpenAlex(Client(server.openalex(), tmp_path / "cache")), tmp_path / "fetched")
    assert again == report and len(server.requests) == service.client.requests  # all out of the cache


def test_only_ids_and_titles_are_sent(server, library, tmp_path):
    enrich_library(library, OpenAlex(Client(server.openalex(), pause=lambda seconds: None)), tmp_path / "fetched")
    assert all(request.query.keys() == {"filter", "select", "per_page", "cursor"} for request in server.requests)
    titles = [request.query["filter"] for request in server.requests if request.query["filter"].startswith("title")]
    assert "title.search:lamps streets and the insects they kill" in titles
    assert not any(title.endswith(":moths") for title in titles)


def test_semantic_scholar_fills_a_library(server, library, tmp_path):
    papers = records(server.paper)
    papers[1]["externalIds"] = {"ArXiv": "2001.00001"}
    known = {f"DOI:{one['externalIds'].get('DOI', '')}": one for one in papers}
    known |= {one["paperId"]: one for one in papers}
    known["ARXIV:2001.00001"] = papers[1]
    review = {"data": [{"contexts": [], "citingPaper": server.paper(90, "A review of insects and lamps", 2022)}]}

    def answer(request):
        if request.path == "/paper/batch":
            return server.reply([known.get(id) for id in request.body["ids"]])
        if request.path == "/paper/search/match":
            is_known = "streets" in request.query["query"]
            return server.reply({"data": [papers[2]]}) if is_known else server.reply({"error": "no match"}, 404)
        return server.reply(review)

    server.answer = answer
    service = SemanticScholar(Client(server.s2(), pause=lambda seconds: None))
    report = enrich_library(library, service, tmp_path / "fetched")
    assert (report.found, report.ambiguous, report.not_found, report.citing) == (3, 0, 4, 3)
    richer = join_fetched(library, tmp_path / "fetched", tmp_path / "richer")
    assert len(richer) == 8 and richer.abstracts[richer.row("title")] == "Lamps kill."


def test_a_stop_keeps_what_was_received(server, library, tmp_path):
    answers = openalex_answers(server, records(server.work))
    stop = server.reply({}, 429, {"X-RateLimit-Remaining": "0"})
    server.answer = lambda request: stop if request.query["filter"].startswith("title") else answers(request)
    report = enrich_library(library, OpenAlex(Client(server.openalex())), tmp_path / "fetched")
    assert (report.found, report.not_found, report.citing) == (2, 0, 0) and "renewed" in report.stopped
    assert (tmp_path / "fetched" / "openalex_papers.jsonl").read_text().count("\n") == 2


def test_requests_stay_within_their_limits(server, library, tmp_path):
    service = OpenAlex(Client(server.openalex(), options=HttpOptions(tries=1)))
    enrich_library(library, service, tmp_path / "fetched", EnrichOptions(titles=1, citing=0, lacking=0))
    assert sum(request.query["filter"].startswith("title") for request in server.requests) == 1
    refused("enrichment.titles is -1; it must be at least 0", EnrichOptions, titles=-1)
