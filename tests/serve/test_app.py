"""The routes: what they answer over a small real index, in JSON and as files."""

import base64
import csv
import gzip
import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.mining.samples import SampleNames, block_from_lists, new_samples
from citeweave.search.index import Index
from citeweave.serve.app import add_pages, read_files

from ..conftest import refused
from .conftest import STRANGE

HIT = {"id", "title", "abstract", "year", "venue", "authors", "fields", "score", "row", "matches"}


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


@pytest.fixture
def get(client: TestClient) -> Any:
    return lambda path, **params: client.get(path, params=params or None)


@pytest.fixture
def post(client: TestClient) -> Any:
    """Post a query of these parts."""
    return lambda **query: client.post("/search", json=query)


def test_health_says_what_there_is(get):
    health = get("/health").json()
    assert health["status"] == "ok" and health["papers"] == 20 and health["with_vectors"] == 20
    assert health["with_abstract"] == 19 and health["lacks"] == ["1 of 20 papers have no abstract"]
    assert health["indexes"] == ["main", "other"] and health["aspects"] == ["method"]
    assert health["working"] is None and health["samples"] is False and health["model"]


@pytest.mark.parametrize("by", ["", "words", "vectors", "hybrid"])
def test_search_by_a_text(get, post, by):
    got = get("/search", q="the cell grows in data", by=by, count=4)
    found = got.json()
    assert got.status_code == 200 and len(found["hits"]) == 4 and found["facets"] is None
    assert set(found["hits"][0]) >= HIT
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    posted = post(text="the cell grows in data", count=4, **({"by": by} if by else {}))
    assert posted.json()["hits"] == found["hits"]


def test_words_pages_filters_and_facets(get, post):
    assert ids(get("/search", q="shows c", by="words", count=1)) == ["p:2"]
    pages = [ids(get("/search", q="models learn", count=5, offset=at)) for at in (0, 5)]
    assert pages[0] + pages[1] == ids(get("/search", q="models learn", count=10))
    where = {"year_from": 2004, "year_to": 2011, "venue": ["ICML"], "field": "biology"}
    got = get("/search", q="models cell", by="words", count=50, facets=True, **where)
    assert sorted(ids(got)) == ["p:11", "p:5", "p:7"]
    assert got.json()["facets"]["years"] == {"2005": 1, "2007": 1, "2011": 1}
    body = {"years": [2004, 2011], "venues": ["ICML"], "fields": ["biology"]}
    assert ids(post(text="models cell", by="words", count=50, where=body)) == ids(got)
    assert "p:0" in ids(post(text="models", where={"years": [None, 2000]}))
    assert get("/facets").json()["venues"] == [{"name": "Cell", "count": 10}, {"name": "ICML", "count": 10}]


def test_similar_papers_are_those_of_the_vectors_with_reasons(get, post, place):
    index = Index.open(place.index)
    row, vectors = index.row("p:3"), index.take(np.arange(index.size))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    best = [index.id(at) for at in np.argsort(-(unit @ unit[row])) if at != row][:3]
    assert ids(get("/similar", paper="p:3", count=3)) == ids(post(paper="p:3", count=3)) == best
    hits = get("/similar", paper="p:3", count=19, explain=True).json()["hits"]
    whys = {hit["id"]: hit["why"] for hit in hits}
    assert whys["p:7"]["co_cited_by"] == 2 and whys["p:7"]["cites"] == ""
    assert whys["p:2"]["cites"] == "right" and whys["p:0"]["shared_references"] == 0
    assert whys["p:2"]["pairs"] and set(whys["p:2"]["pairs"][0]) >= {"left", "right", "mass"}


def test_other_kinds_of_queries(post):
    assert "p:1" not in ids(post(liked=["p:1", "p:2"], disliked=["p:3"]))
    chosen = post(sentences={"paper": "p:1", "numbers": [1]}, count=3).json()
    assert "hits" in chosen, chosen
    assert len(chosen["hits"]) == 3 and chosen["hits"][0]["matches"][0]["query"] == 0
    hit = chosen["hits"][0]
    assert "Models learn" in hit["sentences"][hit["matches"][0]["sentence"]]
    assert ids(post(sentences={"texts": ["models learn from data."]}, count=3))
    assert ids(post(cite={"text": "we find how models learn [CIT]"}, count=3))
    assert ids(post(paper="p:1", aspect="method", count=3))


def test_several_queries_at_once(client, post):
    queries = [{"text": "models", "by": "words"}, {"paper": "nobody"}, {"text": "a", "aspect": "no"}, {"paper": "p:1"}]
    answers = client.post("/search/batch", json={"queries": queries}).json()["answers"]
    assert [set(answer) & {"hits", "error"} for answer in answers] == [{"hits"}, {"error"}, {"error"}, {"hits"}]
    assert answers[3]["hits"] == post(paper="p:1").json()["hits"]
    assert client.post("/search/batch", json={"queries": [{"text": "a"}] * 65}).status_code == 422


def test_embedded_texts_are_those_of_the_encoder(client, place):
    texts: list[Any] = ["models learn", {"title": "the cell", "abstract": "grows in data."}, ""]
    got = client.post("/embed", json={"texts": texts}).json()
    written = [paper_text("models learn", ""), paper_text("the cell", "grows in data."), ""]
    assert got["dimension"] == 32 and got["model"]
    np.testing.assert_allclose(got["vectors"], load_encoder(place.model, device="cpu").encode(written), atol=1e-5)
    assert client.post("/embed", json={"texts": texts[:1], "aspect": "method"}).json()["dimension"] == 6
    assert client.post("/embed", json={"texts": ["a"], "aspect": "nope"}).status_code == 400


def test_papers_with_their_citations_and_sentences(get):
    got = get("/papers", id=["p:1", "nobody", "doi:10.1/seven"]).json()
    assert [paper["id"] for paper in got["papers"]] == ["p:1", "p:7"] and got["unknown"] == ["nobody"]
    one = get("/papers/p:0").json()
    assert [paper["id"] for paper in one["references"]] == ["p:3", "p:7"] and one["references_unknown"] == 1
    assert one["authors"][1] == "<script>alert(1)</script>", "untrusted input, as it is: the page shows it as text"
    assert [sentence["number"] for sentence in one["sentences"]] == [0, 1, 2]
    cited = get("/papers/p:3").json()
    assert [paper["id"] for paper in cited["cited_by"]] == ["p:0", "p:1", "p:2"] and cited["cited_by_count"] == 3


@pytest.mark.parametrize("id", [id for id in STRANGE if "%" not in id])
def test_ids_of_all_kinds(get, id):
    assert get(f"/papers/{quote(id, safe='')}").json()["id"] == id
    assert get("/papers", id=id).json()["papers"][0]["id"] == id
    assert get("/similar", paper=id).status_code == 200


def test_reasons_neighborhoods_missing_papers_and_suggestions(get):
    why = get("/explain", left="p:0", right="p:1").json()
    assert {paper["id"] for paper in why["shared_references"]["known"]} == {"p:3", "p:7"}
    assert why["shared_references"]["unknown"] == 1
    around = get("/neighborhood", paper="p:0").json()
    assert {node["id"] for node in around["nodes"]} >= {"p:0", "p:3", "p:7"}
    assert {"citing": "p:0", "cited": "p:3"} in around["edges"]
    assert get("/lacking").json()["papers"][0]["count"] == 2
    found = get("/suggest", q="the cell gro").json()["suggestions"]
    assert any(one["id"] == "p:1" and one["title"].startswith("the cell grows") for one in found)


def test_errors_say_what_and_next(get, post):
    unknown = ["/similar?paper=nobody", "/explain?left=p:1&right=nobody", "/neighborhood?paper=nobody"]
    for path in ("/papers/nobody", *unknown, "/search?q=a&index=nobody"):
        answer = get(path)
        error = answer.json()["error"]
        assert answer.status_code == 404 and "nobody" in error["what"] and error["next"], path
    error = get("/search", q="a", count=0).json()["error"]
    assert error == {"what": "count must be at least 1 (it is '0')", "next": "see /docs"}
    assert get("/search", q="a", cuont=3).status_code == 422
    assert post(text="a", paper="b").status_code == 400
    assert get("/samples").status_code == 404


@pytest.mark.parametrize("format", ["bibtex", "csv", "json"])
def test_papers_are_exported(client, format):
    kind = {"bibtex": "application/x-bibtex", "csv": "text/csv", "json": "application/json"}[format]
    answer = client.post("/export", json={"format": format, "ids": ["p:1", "p:0"]})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
    assert answer.headers["content-disposition"].startswith("attachment; ")
    if format == "csv":
        assert [row[0] for row in csv.reader(io.StringIO(answer.text))][1:] == ["p:1", "p:0"]
    assert client.post("/export", json={"format": format, "ids": ["nobody"]}).status_code == 404


def test_a_map_and_its_titles(get):
    end = time.monotonic() + 600
    while (answer := get("/map")).status_code == 202:
        assert answer.json()["working"]["what"] == "mapping" and time.monotonic() < end
        time.sleep(0.05)
    made = answer.json()
    assert answer.status_code == 200 and made["points"] == 20
    xy = np.frombuffer(base64.b64decode(made["xy"]), "<u2").reshape(-1, 2)
    assert xy.shape == (20, 2) and len(np.unique(xy, axis=0)) > 10
    assert sorted(np.frombuffer(base64.b64decode(made["row"]), "<i4").tolist()) == list(range(20))
    titles = get("/map/titles", rows="0,1,999999999").json()["titles"]
    assert set(titles) == {"0", "1"} and titles["0"]["id"]
    assert get("/map/titles", rows="0,-1").status_code == 422


def test_metrics_count_routes_not_addresses(get):
    get("/papers/p:1")
    get("/nowhere/at/all")
    text = get("/metrics").text
    assert 'method="GET",route="/papers/{id:path}",status="200"' in text and "nowhere" not in text
    assert 'citeweave_papers{index="main"} 20.0' in text


def test_concurrent_texts_are_encoded_together(serve):
    with serve(batch_wait=300.0, batch_texts=8) as client:  # ends at the eighth text
        sizes, served, texts = list[int](), client.app.state.server.indexes, [f"models {'cell ' * n}" for n in range(8)]
        while served.get().query_encoder is None:
            threading.Event().wait(0.02)
        batcher = served.get().query_encoder.encoder.batcher
        alone = [batcher.encoder.encode([paper_text(text, "")])[0] for text in texts]
        batcher._on_batch = sizes.append
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda text: client.post("/embed", json={"texts": [text]}).json()["vectors"][0], texts)
            made = list(found)
            assert sizes == [8]
            # text queries wait in the same line
            found = pool.map(lambda n: client.get("/search", params={"q": f"models {n}", "by": "vectors"}), range(8))
            assert {answer.status_code for answer in found} == {200} and sizes == [8, 8]
        np.testing.assert_allclose(made, alone, atol=1e-5)


@pytest.fixture(scope="module")
def samples(place: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    corpus, made = Corpus.open(place.corpus), tmp_path_factory.mktemp("mined") / "samples"
    *anchors, one, two, other = (int(row) for row in corpus.rows(["p:0", "p:1", "p:3", "p:7", "p:5"]))
    papers = {"positives": [[one], [one, two]], "negatives": [[other], [other]]}
    with new_samples(made, SampleNames(rules=("cited", "easy")), corpus=corpus.hash) as writer:
        writer.append(block_from_lists(anchors, **papers, positive_rule=0, negative_rule=1))
        writer.finish()
    return str(made)


def test_samples_are_shown_with_their_rules(serve, samples, place):
    client = serve(samples=samples, corpus=str(place.corpus))
    assert client.get("/health").json()["samples"] is True
    page = client.get("/samples").json()
    assert page["total"] == 2 and [one["anchor"]["id"] for one in page["samples"]] == ["p:0", "p:1"]
    second = page["samples"][1]
    assert [(one["id"], one["rule"]) for one in second["positives"]] == [("p:3", "cited"), ("p:7", "cited")]
    assert [(one["id"], one["rule"]) for one in second["negatives"]] == [("p:5", "easy")]
    assert client.get("/samples", params={"start": 1, "count": 1}).json()["samples"] == [second]
    assert client.get("/samples", params={"anchor": "p:1"}).json() == {"total": 1, "start": 0, "samples": [second]}
    assert client.get("/samples", params={"start": 99}).json()["samples"] == []
    assert client.get("/samples", params={"anchor": "nobody"}).status_code == 404


def test_samples_need_their_corpus(serve, samples, tmp_path):
    refused("--corpus", serve, samples=samples)
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "T"}\n')
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "other")
    refused("another corpus", serve, samples=samples, corpus=str(tmp_path / "other"))


def test_files_of_the_page_are_read_once_and_looked_up(tmp_path):
    page, secret = tmp_path / "page", tmp_path / "secret.js"
    (page / "parts").mkdir(parents=True)
    secret.write_text("secret")
    (page / "index.html").write_text("<p>start</p>")
    (page / "parts" / "a.js").write_text("let a = 1;\n" * 100)
    (page / "notes.md").write_text("not of the page")
    (page / "link.js").symlink_to(secret)
    app, files = FastAPI(), read_files(page)
    add_pages(app, files)
    client = TestClient(app, raise_server_exceptions=False)
    assert set(files) == {"/", "/page/index.html", "/page/parts/a.js"}
    start = client.get("/")
    assert start.text == "<p>start</p>" and start.headers["content-type"] == "text/html; charset=utf-8"
    (page / "index.html").write_text("changed")
    assert client.get("/").text == "<p>start</p>"
    assert client.get("/", headers={"if-none-match": start.headers["etag"]}).status_code == 304
    ways = [{"accept-encoding": encoding} for encoding in ("identity", "gzip")]
    plain, packed = (client.get("/page/parts/a.js", headers=headers) for headers in ways)
    assert packed.headers["content-encoding"] == "gzip" and packed.text == plain.text
    assert gzip.decompress(files["/page/parts/a.js"].compressed).decode() == plain.text
    assert plain.headers["etag"] != packed.headers["etag"] and plain.headers["cache-control"] == "no-cache"
    assert client.head("/").status_code == 200


def test_the_real_page_names_files_that_are_served_and_nothing_else_is(client):
    text = client.get("/").text
    named = re.findall(r'(?:src|href)="/?(page/[^"#?]+)"', text)
    assert named and [name for name in named if client.get(f"/{name}").status_code != 200] == []
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == [] and " style=" not in text, "the policy forbids them"
    for name in ("__init__.py", "../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "index.html/", "INDEX.HTML", ""):  # fmt: skip
        assert client.get(f"/page/{name}").status_code == 404, name
