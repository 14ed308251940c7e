from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from citeweave.core.errors import CiteweaveError
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.int8_tiles import has_instruction
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.update import delete_papers
from citeweave.serve import indexes
from citeweave.serve.app import create_app
from citeweave.serve.indexes import ServedIndexes
from citeweave.serve.metrics import Metrics
from citeweave.serve.options import ServeOptions

from .conftest import PATIENT, client_of, wait_for_model

OPTIONS = ServeOptions(device="cpu")


@pytest.fixture
def copy(place: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place.index, tmp_path / "index"))


def ready(shelf: ServedIndexes) -> Any:
    end = time.monotonic() + 600
    while (opened := shelf.get()).query_encoder is None and not opened.no_encoder:
        assert time.monotonic() < end
        time.sleep(0.01)
    return opened


def test_a_change_is_seen_by_the_next_request(serve: Callable[..., TestClient], copy: Path) -> None:
    client = serve(copy)
    query: dict[str, str | int] = {"q": "models cell", "by": "words", "count": 100}
    before = {hit["id"] for hit in client.get("/search", params=query).json()["hits"]}
    assert client.get("/health").json()["papers"] == 20 and "p:3" in before
    assert delete_papers(copy, ["p:3"]) == 1
    after = {hit["id"] for hit in client.get("/search", params=query).json()["hits"]}
    assert before - after == {"p:3"}
    assert client.get("/health").json()["papers"] == 19 and client.get("/papers/p:3").status_code == 404
    assert sum(client.get("/facets").json()["years"].values()) == 19
    assert 'citeweave_papers{index="main"} 19' in client.get("/metrics").text


@pytest.mark.parametrize("runtime", ["openvino", "int8"])
def test_another_runtime_reads_the_texts(
    place: Any, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model, in eight bits too: its revision says so, its vectors are nearly those of the index."""
    if runtime == "int8" and not has_instruction():
        pytest.skip("this processor cannot compute int8")
    if runtime == "openvino":
        pytest.importorskip("openvino", reason="pip install 'citeweave[runtimes]'")
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    other_options = ServeOptions(device="cpu", runtime=runtime)
    plain, other = (
        ready(ServedIndexes({"main": place.index}, how, Metrics())).query_encoder for how in (OPTIONS, other_options)
    )
    assert other.encoder.revision == plain.encoder.revision + ("-int8" if runtime == "int8" else "")
    one, two = (reader.encode("models learn from data") for reader in (plain, other))
    assert one @ two / np.linalg.norm(one) / np.linalg.norm(two) > (0.99 if runtime == "int8" else 0.99999)
    assert runtime == "int8" or list((tmp_path / "cache").rglob("model.xml")), "torch read both"


def test_running_requests_do_not_wait_for_a_new_state(copy: Path) -> None:
    shelf = ServedIndexes({"main": copy}, OPTIONS, Metrics())
    old = shelf.get().index
    delete_papers(copy, ["p:3"])
    with shelf._opening["main"]:  # another thread is opening the new state
        assert shelf.get().index is old
    assert shelf.get().index.number != old.number


def test_a_state_that_cannot_be_opened_leaves_the_old_one(copy: Path) -> None:
    shelf = ServedIndexes({"main": copy}, OPTIONS, Metrics())
    number = shelf.get().index.number
    (copy / "state.json").write_text("{")
    assert shelf.get().index.number == number


def test_health_is_well_again_once_the_index_is(serve: Callable[..., TestClient], copy: Path, tmp_path: Path) -> None:
    client = serve(copy)
    assert client.get("/health").json()["status"] == "ok"
    copy.rename(tmp_path / "elsewhere")
    assert client.get("/health").json()["status"] == "failing"
    (tmp_path / "elsewhere").rename(copy)
    assert client.get("/health").json()["status"] == "ok"
    delete_papers(copy, ["p:3"])
    health = client.get("/health").json()
    assert (health["status"], health["papers"]) == ("ok", 19)


def test_an_answer_says_what_it_waits_for(
    serve: Callable[..., TestClient], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, load = threading.Event(), indexes.load_query_encoder

    def late(*arguments: Any, **options: Any) -> Any:
        assert may_load.wait(600)
        return load(*arguments, **options)

    monkeypatch.setattr(indexes, "load_query_encoder", late)
    client = serve(copy)
    asked = {"q": "zebras"}
    told = client.get("/search", params=asked).json()
    assert told["hits"] == [] and told["coming"] == "the model is being loaded" and told["by"] == "words"
    assert client.get("/search", params={**asked, "by": "words"}).json()["coming"] == ""
    late_answer = client.get("/search", params={**asked, "by": "vectors"})
    assert late_answer.status_code == 503 and late_answer.json()["error"]["coming"] is True
    may_load.set()
    wait_for_model(client)
    told = client.get("/search", params=asked).json()
    assert told["hits"] and told["coming"] == ""


def test_a_library_whose_papers_are_being_read_says_so(place: Any, tmp_path: Path) -> None:
    index = build_index(Corpus.open(place.corpus), place.model, tmp_path / "words", IndexOptions(vectors=False))

    class Reading:
        index_folder, lacks = index.folder, staticmethod(list)
        working = staticmethod(lambda: {"what": "embedding", "done": 0, "total": 20, "seconds_left": None})

    app = create_app(Reading(), ServeOptions(**PATIENT))
    told = client_of(app).get("/search", params={"q": "zebras"}).json()
    assert told["hits"] == [] and told["coming"] == "the model has not read the papers yet"


def test_an_index_deleted_while_served(
    serve: Callable[..., TestClient], copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(copy)
    assert client.get("/papers/p:1").status_code == 200
    shutil.rmtree(copy)
    for _ in range(3):
        assert client.get("/search", params={"q": "models cell", "by": "words"}).json()["hits"]
    health = client.get("/health").json()
    assert health["status"] == "failing" and health["papers"] == 20
    told = health["lacks"]
    assert any(line.startswith("an older state is served") for line in told)
    assert not any(str(copy.parent) in line for line in told)
    assert sum("cannot be opened" in record.getMessage() for record in caplog.records) == 1


def test_two_indexes_of_one_model_share_it(place: Any) -> None:
    shelf = ServedIndexes({"main": place.index, "other": place.index}, OPTIONS, Metrics())
    first = ready(shelf)
    second = shelf.get("other")
    assert (
        second.query_encoder is not None and second.query_encoder.encoder.batcher is first.query_encoder.encoder.batcher
    )
    shelf.close()


def test_a_model_that_is_gone_leaves_words(serve: Callable[..., TestClient], tmp_path: Path, place: Any) -> None:
    model = Path(shutil.copytree(place.model, tmp_path / "model"))
    build_index(Corpus.open(place.corpus), model, tmp_path / "index", IndexOptions(device="cpu"))
    shutil.rmtree(model)
    client = serve(tmp_path / "index")
    ready(client.app.state.server.indexes)  # type: ignore[attr-defined]
    told = client.get("/health").json()
    assert told["status"] == "ok" and not told["reads_texts"] and any("words only" in line for line in told["lacks"])
    assert str(tmp_path) not in str(told), "folders of the server are not told"
    assert client.get("/search", params={"q": "models", "by": "words"}).json()["hits"]
    found = client.get("/search", params={"q": "models"}).json()
    assert found["hits"] and "words" in found["note"]
    assert client.get("/search", params={"q": "models", "by": "vectors"}).status_code == 503
    assert client.post("/embed", json={"texts": ["a"]}).status_code == 503
    moved = serve(tmp_path / "index", model=str(place.model))
    assert ready(moved.app.state.server.indexes).query_encoder is not None  # type: ignore[attr-defined]


def test_another_model_is_not_read_with(place: Any, save_bert: Callable[..., Path], tmp_path: Path) -> None:
    other = save_bert(tmp_path / "other", seed=1)
    shelf = ServedIndexes({"main": place.index}, ServeOptions(device="cpu", model=str(other)), Metrics())
    opened = ready(shelf)
    assert opened.query_encoder is None and "cannot be compared" in opened.no_encoder


class Making:
    """A library whose index is not there yet."""

    def __init__(self, folder: Path) -> None:
        self.index_folder = folder

    def working(self) -> Mapping[str, Any] | None:
        return {"what": "reading", "done": 3, "total": 10, "seconds_left": 1.5}

    def missing_data(self) -> Sequence[str]:
        return ["there are no citations"]


def test_an_index_that_is_being_made(tmp_path: Path, place: Any) -> None:
    app = create_app(Making(tmp_path / "index"), OPTIONS)
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    told = client.get("/health").json()
    assert told["status"] == "starting" and told["working"]["done"] == 3 and told["lacks"] == ["there are no citations"]
    answer = client.get("/search", params={"q": "a"})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
    shutil.copytree(place.index, tmp_path / "index")
    assert client.get("/search", params={"q": "models", "by": "words"}).json()["hits"]
    assert client.get("/health").json()["status"] == "ok"


def test_words_without_vectors(serve: Callable[..., TestClient], tmp_path: Path, place: Any) -> None:
    build_index(Corpus.open(place.corpus), place.model, tmp_path / "index", IndexOptions(device="cpu", vectors=False))
    client = serve(tmp_path / "index")
    assert client.get("/health").json()["with_vectors"] == 0
    assert client.get("/search", params={"q": "models learn"}).json()["hits"]
    assert "words" in client.get("/similar?paper=p:1").json()["note"]
    assert client.get("/search?q=models&by=vectors").status_code in (400, 503)


@pytest.mark.parametrize("damage", ["nothing", "foreign", "broken"])
def test_what_is_no_index_is_said_at_the_start(copy: Path, damage: str) -> None:
    if damage == "nothing":
        shutil.rmtree(copy)
    elif damage == "foreign":
        shutil.rmtree(copy)
        copy.mkdir()
        (copy / "state.json").write_text('{"format": "something else"}')
    else:
        (copy / "state.json").write_text("\x00")
    with pytest.raises(CiteweaveError):
        create_app({"main": copy}, OPTIONS)


def test_many_threads_open_once(place: Any) -> None:
    shelf = ServedIndexes({"main": place.index}, OPTIONS, Metrics())
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(shelf.get().index)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(index) for index in found}) == 1
