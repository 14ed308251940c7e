from __future__ import annotations

import gzip
import re
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from citeweave.serve.app import FOLDER, add_pages, read_files


def test_files_are_read_once_and_looked_up(tmp_path: Path) -> None:
    page, secret = tmp_path / "page", tmp_path / "secret.js"
    (page / "parts").mkdir(parents=True)
    secret.write_text("secret")
    (page / "index.html").write_text("<p>start</p>")
    (page / "parts" / "a.js").write_text("let a = 1;\n" * 100)
    (page / "notes.md").write_text("not of the page")
    (page / "link.js").symlink_to(secret)
    app = FastAPI()
    files = read_files(page)
    add_pages(app, files)
    client = TestClient(app, raise_server_exceptions=False)
    assert set(files) == {"/", "/page/index.html", "/page/parts/a.js"}
    start = client.get("/")
    assert start.text == "<p>start</p>" and start.headers["content-type"] == "text/html; charset=utf-8"
    (page / "index.html").write_text("changed")
    assert client.get("/").text == "<p>start</p>"
    assert client.get("/", headers={"if-none-match": start.headers["etag"]}).status_code == 304
    plain = client.get("/page/parts/a.js", headers={"accept-encoding": "identity"})
    packed = client.get("/page/parts/a.js", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and packed.text == plain.text
    assert gzip.decompress(files["/page/parts/a.js"].compressed).decode() == plain.text
    assert plain.headers["etag"] != packed.headers["etag"] and plain.headers["cache-control"] == "no-cache"
    assert client.head("/").status_code == 200


def test_the_real_page_names_files_that_are_served(client: TestClient) -> None:
    if not (FOLDER / "index.html").exists():
        return
    text = client.get("/").text
    named = re.findall(r'(?:src|href)="/?(page/[^"#?]+)"', text)
    assert named and [name for name in named if client.get(f"/{name}").status_code != 200] == []
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == [] and " style=" not in text, "the policy forbids them"


def test_nothing_else_is_served(client: TestClient) -> None:
    for name in (
        "__init__.py",
        "../app.py",
        "%2e%2e/app.py",
        "..%2fapp.py",
        "/etc/passwd",
        "index.html/",
        "INDEX.HTML",
        "",
    ):
        assert client.get(f"/page/{name}").status_code == 404, name
