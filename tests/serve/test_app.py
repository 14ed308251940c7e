from __future__ import annotations

import base64
import csv
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient

from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.search.index import Index
from citeweave.serve.app import create_app
from citeweave.serve.options import ServeOptions

HIT = {"id", "title", "abstract", "year", "venue", "authors", "fields", "score", "row", "matches"}


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


def test_health(client: TestClient) -> None:
    told = client.get("/health").json()
    assert told["status"] == "ok" and told["papers"] == 20 and told["with_vectors"] == 20
    assert told["with_abstract"] == 19 and told["lacks"] == ["1 of 20 papers have no abstract"]
    assert told["indexes"] == ["main", "other"] and told["aspects"] == ["method"]
    assert told["working"] is None and told["samples"] is False and told["model"]


@pytest.mark.parametrize("by", ["", "words", "vectors", "hybrid"])
def test_search_by_a_text(client: TestClient, by: str) -> None:
    got = client.get("/search", params={"q": "the cell grows in data", "by": by, "count": 4})
    found = got.json()
    assert got.status_code == 200 and len(found["hits"]) == 4 and found["facets"] is None
    assert set(found["hits"][0]) >= HIT
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    posted = client.post("/search", json={"text": "the cell grows in data", "count": 4} | ({"by": by} if by else {}))
    assert posted.json()["hits"] == found["hits"]


def test_words_find_the_title(client: TestClient) -> None:
    assert ids(client.get("/search", params={"q": "shows c", "by": "words", "count": 1})) == ["p:2"]


def test_filters_and_facets(client: TestClient) -> None:
    where = {"year_from": 2004, "year_to": 2011, "venue": ["ICML"], "field": "biology"}
    got = client.get("/search", params={"q": "models cell", "by": "words", "count": 50, "facets": True, **where})
    assert sorted(ids(got)) == ["p:11", "p:5", "p:7"]
    assert got.json()["facets"]["years"] == {"2005": 1, "2007": 1, "2011": 1}
    body = {"years": [2004, 2011], "venues": ["ICML"], "fields": ["biology"]}
    assert ids(client.post("/search", json={"text": "models cell", "by": "words", "count": 50, "where": body})) == ids(
        got
    )
    assert "p:0" in ids(client.post("/search", json={"text": "models", "where": {"years": [None, 2000]}}))
    all_facets = client.get("/facets").json()
    assert all_facets["venues"] == [{"name": "Cell", "count": 10}, {"name": "ICML", "count": 10}]


def test_pages_of_hits_follow_each_other(client: TestClient) -> None:
    whole = ids(client.get("/search", params={"q": "models learn", "count": 10}))
    parts = [ids(client.get("/search", params={"q": "models learn", "count": 5, "offset": at})) for at in (0, 5)]
    assert parts[0] + parts[1] == whole


def test_similar_papers_are_those_of_the_vectors(client: TestClient, place: Any) -> None:
    index = Index.open(place.index)
    row = index.row("p:3")
    vectors = index.take(np.arange(index.size))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    best = [index.id(at) for at in np.argsort(-(unit @ unit[row])) if at != row][:3]
    assert ids(client.get("/similar", params={"paper": "p:3", "count": 3})) == best
    assert ids(client.post("/search", json={"paper": "p:3", "count": 3})) == best


def test_similar_papers_with_reasons(client: TestClient) -> None:
    hits = client.get("/similar", params={"paper": "p:3", "count": 19, "explain": True}).json()["hits"]
    whys = {hit["id"]: hit["why"] for hit in hits}
    assert whys["p:7"]["co_cited_by"] == 2 and whys["p:7"]["cites"] == ""
    assert whys["p:2"]["cites"] == "right" and whys["p:0"]["shared_references"] == 0
    assert whys["p:2"]["pairs"] and set(whys["p:2"]["pairs"][0]) >= {"left", "right", "mass"}


def test_other_kinds_of_queries(client: TestClient) -> None:
    assert "p:1" not in ids(client.post("/search", json={"liked": ["p:1", "p:2"], "disliked": ["p:3"]}))
    chosen = client.post("/search", json={"sentences": {"paper": "p:1", "numbers": [1]}, "count": 3}).json()
    assert "hits" in chosen, chosen
    assert len(chosen["hits"]) == 3 and chosen["hits"][0]["matches"][0]["query"] == 0
    hit = chosen["hits"][0]
    assert "Models learn" in hit["sentences"][hit["matches"][0]["sentence"]]
    assert ids(client.post("/search", json={"sentences": {"texts": ["models learn from data."]}, "count": 3}))
    assert ids(client.post("/search", json={"cite": {"text": "we find how models learn [CIT]"}, "count": 3}))
    assert ids(client.post("/search", json={"paper": "p:1", "aspect": "method", "count": 3}))


def test_batch(client: TestClient) -> None:
    queries = [
        {"text": "models", "by": "words"},
        {"paper": "nobody"},
        {"text": "a", "aspect": "nope"},
        {"paper": "p:1"},
    ]
    answers = client.post("/search/batch", json={"queries": queries}).json()["answers"]
    assert [set(answer) & {"hits", "error"} for answer in answers] == [{"hits"}, {"error"}, {"error"}, {"hits"}]
    assert answers[3]["hits"] == client.post("/search", json={"paper": "p:1"}).json()["hits"]
    assert client.post("/search/batch", json={"queries": [{"text": "a"}] * 65}).status_code == 422


def test_embed_is_what_the_encoder_says(client: TestClient, place: Any) -> None:
    texts: list[Any] = ["models learn", {"title": "the cell", "abstract": "grows in data."}, ""]
    got = client.post("/embed", json={"texts": texts}).json()
    wanted = load_encoder(place.model, device="cpu").encode(
        [paper_text("models learn", ""), paper_text("the cell", "grows in data."), ""]
    )
    assert got["dimension"] == 32 and got["model"]
    np.testing.assert_allclose(got["vectors"], wanted, atol=1e-5)
    in_space = client.post("/embed", json={"texts": texts[:1], "aspect": "method"}).json()
    assert in_space["dimension"] == 6
    assert client.post("/embed", json={"texts": ["a"], "aspect": "nope"}).status_code == 400


def test_papers(client: TestClient) -> None:
    got = client.get("/papers", params={"id": ["p:1", "nobody", "doi:10.1/seven"]}).json()
    assert [paper["id"] for paper in got["papers"]] == ["p:1", "p:7"] and got["unknown"] == ["nobody"]
    one = client.get("/papers/p:0").json()
    assert [paper["id"] for paper in one["references"]] == ["p:3", "p:7"] and one["references_unknown"] == 1
    assert one["authors"][1] == "<script>alert(1)</script>", "text of strangers, as it is: the page shows it as text"
    assert [sentence["number"] for sentence in one["sentences"]] == [0, 1, 2]
    cited = client.get("/papers/p:3").json()
    assert [paper["id"] for paper in cited["cited_by"]] == ["p:0", "p:1", "p:2"] and cited["cited_by_count"] == 3


@pytest.mark.parametrize("id", ["doi:10.1/a b", "https://x.org/W1?q=1#f", 'q"uo\'te', "../../etc/passwd", "ünï/çødé", "<b>"])  # fmt: skip
def test_ids_of_all_kinds(client: TestClient, id: str) -> None:
    assert client.get(f"/papers/{quote(id, safe='')}").json()["id"] == id
    assert client.get("/papers", params={"id": id}).json()["papers"][0]["id"] == id
    assert client.get("/similar", params={"paper": id}).status_code == 200


def test_explain_and_around(client: TestClient) -> None:
    why = client.get("/explain", params={"left": "p:0", "right": "p:1"}).json()
    assert {paper["id"] for paper in why["shared_references"]["known"]} == {"p:3", "p:7"}
    assert why["shared_references"]["unknown"] == 1
    around = client.get("/neighborhood", params={"paper": "p:0"}).json()
    assert {node["id"] for node in around["nodes"]} >= {"p:0", "p:3", "p:7"}
    assert {"citing": "p:0", "cited": "p:3"} in around["edges"]
    assert client.get("/lacking").json()["papers"][0]["count"] == 2


def test_suggest(client: TestClient) -> None:
    found = client.get("/suggest", params={"q": "the cell gro"}).json()["suggestions"]
    assert any(one["id"] == "p:1" and one["title"].startswith("the cell grows") for one in found)


@pytest.mark.parametrize("path", ["/papers/nobody", "/similar?paper=nobody", "/explain?left=p:1&right=nobody", "/neighborhood?paper=nobody", "/search?q=a&index=nobody"])  # fmt: skip
def test_what_is_not_there(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404 and "nobody" in answer.json()["error"]["what"] and answer.json()["error"]["next"]


def test_errors_say_what_and_next(client: TestClient) -> None:
    error = client.get("/search", params={"q": "a", "count": 0}).json()["error"]
    assert error == {"what": "count: Input should be greater than or equal to 1 (it is '0')", "next": "see /docs"}
    assert client.get("/search", params={"q": "a", "cuont": 3}).status_code == 422
    assert client.post("/search", json={"text": "a", "paper": "b"}).status_code == 400
    assert client.get("/samples").status_code == 404


@pytest.mark.parametrize(("format", "kind"), [("bibtex", "application/x-bibtex"), ("csv", "text/csv"), ("json", "application/json")])  # fmt: skip
def test_export(client: TestClient, format: str, kind: str) -> None:
    answer = client.post("/export", json={"format": format, "ids": ["p:1", "p:0"]})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
    assert answer.headers["content-disposition"].startswith("attachment; ")
    if format == "csv":
        assert [row[0] for row in csv.reader(io.StringIO(answer.text))][1:] == ["p:1", "p:0"]
    assert client.post("/export", json={"format": format, "ids": ["nobody"]}).status_code == 404


def test_map(client: TestClient) -> None:
    end = time.monotonic() + 600
    while (answer := client.get("/map")).status_code == 202:
        assert answer.json()["working"]["what"] == "mapping" and time.monotonic() < end
        time.sleep(0.05)
    made = answer.json()
    assert answer.status_code == 200 and made["points"] == 20
    places = np.frombuffer(base64.b64decode(made["xy"]), "<u2").reshape(-1, 2)
    assert places.shape == (20, 2) and len(np.unique(places, axis=0)) > 10
    rows = np.frombuffer(base64.b64decode(made["row"]), "<i4")
    assert sorted(rows.tolist()) == list(range(20))


def test_map_titles(client: TestClient) -> None:
    titles = client.get("/map/titles", params={"rows": "0,1,999999999"}).json()["titles"]
    assert set(titles) == {"0", "1"} and titles["0"]["id"]
    assert client.get("/map/titles", params={"rows": "0,-1"}).status_code == 422


def test_metrics_count_routes_not_addresses(client: TestClient) -> None:
    client.get("/papers/p:1")
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'route="/papers/{id:path}",method="GET",status="200"' in text and "nowhere" not in text
    assert 'citeweave_papers{index="main"} 20' in text


def test_the_description_needs_nobody_else(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html") and "/similar" in page.text
    assert "<script" not in page.text and "//" not in page.text.replace("http://", "").replace("doi:", "")
    tag = page.headers["etag"]
    assert client.get("/docs", headers={"if-none-match": tag}).status_code == 304
    assert set(client.get("/openapi.json").json()["paths"]) >= {"/search", "/similar", "/embed", "/papers", "/explain"}


def test_concurrent_texts_are_encoded_together(serve: Callable[..., TestClient]) -> None:
    with serve(batch_wait=300.0, batch_texts=8) as client:  # ends at the eighth text
        alone = {}
        calls: list[int] = []
        server: Any = client.app.state.server  # type: ignore[attr-defined]
        while server.indexes.get().query_encoder is None:
            threading.Event().wait(0.02)
        batcher = server.indexes.get().query_encoder.encoder.batcher
        encoder = batcher.encoder
        for n in range(8):
            alone[n] = encoder.encode([paper_text(f"models learn {'cell ' * n}", "")])[0]
        batcher._on_batch = calls.append

        def one(n: int) -> list[float]:
            body = {"texts": [f"models learn {'cell ' * n}"]}
            found: list[float] = client.post("/embed", json=body).json()["vectors"][0]
            return found

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(one, range(8)))
        assert calls == [8]
        with ThreadPoolExecutor(8) as pool:  # text queries wait in the same line
            asked = list(
                pool.map(lambda n: client.get("/search", params={"q": f"models {n}", "by": "vectors"}), range(8))
            )
        assert calls == [8, 8] and {answer.status_code for answer in asked} == {200}
        np.testing.assert_allclose(made, [alone[n] for n in range(8)], atol=1e-5)


def test_a_body_too_long(serve: Callable[..., TestClient]) -> None:
    client = serve(max_body=2000)
    assert client.post("/search", json={"text": "a" * 3000}).status_code == 413
    assert client.post("/search", json={"text": "models", "by": "words"}).status_code == 200


def test_time_and_rate(serve: Callable[..., TestClient]) -> None:
    client = serve(time_limit=0.05, rate=1000)
    app: Any = client.app
    done = threading.Event()

    @app.get("/slow")
    async def slow() -> None:
        await app.state.server.workers.run(done.wait, 600)

    assert client.get("/slow").status_code == 503
    done.set()
    limited = serve(rate=0.001)
    assert [limited.get("/facets").status_code for _ in range(3)] == [200, 429, 429]
    assert limited.get("/health").status_code == 200


def test_no_folder_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="index"):
        create_app({"main": tmp_path / "nothing"}, ServeOptions())
