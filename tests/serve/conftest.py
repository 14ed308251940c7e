"""A server over a small real index: twenty papers with venues and fields, a tiny model, abstract sentences."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")
pytest.importorskip("httpx", reason="pip install httpx")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.search.build import build_index
from citeweave.search.options import IndexOptions
from citeweave.serve.app import create_app
from citeweave.serve.options import ServeOptions

STRANGE = ["doi:10.1/a b", "https://x.org/W1?q=1#f", "q\"uo'te", "../../etc/passwd", "ünï/çødé", "a%2Fb", "<b>"]
"""Ids that are hard to put into an address."""

TITLES = ["graphs of citations learn how models grow", "the cell grows in data"]
TITLES += ["a paper shows that models learn", "we find how citations learn from graphs"]


def papers() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for row in range(20):
        abstract = f"We find how the cell grows {row}. Models learn from data. Graphs of a paper."
        made.append({"id": f"p:{row}" if row < 13 else STRANGE[row - 13], "abstract": "" if row == 5 else abstract})
        made[-1] |= {"title": f"{TITLES[row % 4]} {'abcdefghijklmnopqrst'[row]}", "year": 2000 + row}
        made[-1] |= {"venue": "ICML" if row % 2 else "Cell", "authors": ["Ada Lovelace", "<script>alert(1)</script>"]}
        made[-1]["fields"] = ["biology"] if row % 3 else ["computer science"]
    made[7]["ids"] = ["doi:10.1/seven"]
    return made


def write_source(folder: Path, made: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in made))
    pairs = [("0", "7"), ("0", "3"), ("1", "7"), ("1", "3"), ("2", "3"), ("4", "5")]
    cited = [f"p:{citing}\tp:{cited}\n" for citing, cited in pairs] + ["p:0\toutside:1\n", "p:1\toutside:1\n"]
    (folder / "citations.tsv").write_text("".join(cited))
    return folder


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("serve")
    import_papers([write_source(folder / "source", papers())], folder / "corpus")
    model = save_bert(folder / "model")
    rng = np.random.default_rng(1)
    layer = (rng.normal(size=(6, 32)).astype(np.float32), rng.normal(size=6).astype(np.float32))
    save_heads(model, AspectHeads(("method",), {"method": (layer,)}))
    options = IndexOptions(device="cpu", sentences=True)
    build_index(Corpus.open(folder / "corpus"), model, folder / "index", options)
    return SimpleNamespace(folder=folder, corpus=folder / "corpus", model=model, index=folder / "index")


PATIENT = {"device": "cpu", "time_limit": 600.0}
"""Options of servers in tests: the first search of its kind is compiled, which a busy machine may take a minute for."""


def client_of(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def wait_for_model(client: TestClient) -> None:
    """The model is loaded by a thread; texts can be encoded when it is there."""
    end = time.monotonic() + 600
    while not client.get("/health").json()["reads_texts"]:
        assert time.monotonic() < end, client.get("/health").json()
        time.sleep(0.02)


@pytest.fixture(scope="session")
def serve(place: Any) -> Callable[..., TestClient]:
    """A client of an application with options of its own; it does not wait for the model."""

    def make(index: Path | None = None, **options: Any) -> TestClient:
        return client_of(create_app({"main": index or place.index}, ServeOptions(**{**PATIENT, **options})))

    return make


@pytest.fixture(scope="session")
def app(place: Any) -> FastAPI:
    return create_app({"main": place.index, "other": place.index}, ServeOptions(**PATIENT))


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[TestClient]:
    with client_of(app) as client:
        wait_for_model(client)
        yield client
