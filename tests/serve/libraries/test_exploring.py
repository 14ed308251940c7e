"""Libraries from their sources to vectors; no test here leaves this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

import citeweave
from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.corpus.ingest import import_papers
from citeweave.search.index import Index
from citeweave.search.words import search_words
from citeweave.serve.library import Library, open_library
from citeweave.serve.prepare_library import LibraryOptions

from ...cli.conftest import run

TITLES = [
    "how models learn from data",
    "the cell grows in graphs",
    "citations of a paper that we find",
    "data of the cell",
]


def bibtex(titles: list[str]) -> str:
    return "".join(
        f"@article{{k{number}, title={{{title}}}, year={{2019}}, doi={{10.1000/{number}}}"
        + (", abstract={We find that the cell grows.}" if number == 0 else "")
        + "}\n"
        for number, title in enumerate(titles)
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "my.bib"
    path.write_text(bibtex(TITLES))
    return path


@pytest.fixture
def options(bert: Path) -> LibraryOptions:
    return LibraryOptions(model=str(bert), runtime="torch")


@pytest.fixture
def opened(source: Path, tmp_path: Path, options: LibraryOptions) -> Callable[..., Any]:
    """Open the library of the file, or of another source."""

    def open_it(named: str = "", how: LibraryOptions = options, reporter: Reporter | None = None) -> Any:
        return open_library(named or str(source), tmp_path / "library", how, reporter=reporter or Reporter(quiet=True))

    return open_it


def words(library: Library, query: str) -> list[str]:
    index = Index.open(library.index_folder)
    return [index.id(int(row)) for row in search_words(index, query, 10).rows]


def with_vectors(library: Library) -> int:
    index = Index.open(library.index_folder)
    return int((index.with_vector & index.alive).sum())


def test_words_at_once_and_vectors_after(opened: Callable[..., Any]) -> None:
    with opened() as library:
        assert set(words(library, "cell")) == {"k0", "k1", "k3"}
        assert with_vectors(library) == 0 and library.working() is None
        assert library.missing_data()[:2] == [
            "3 of 4 papers have no abstract",
            "4 of 4 papers have no references, so none in common with others",
        ]
        assert "--enrich openalex" in library.missing_data()[2]
        library.finish()
        assert with_vectors(library) == 4


def test_an_unchanged_source_is_not_read_again(opened: Callable[..., Any], tmp_path: Path) -> None:
    with opened() as library:
        library.finish()
    stamps = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "library").rglob("*")
        if path.name != ".lock" and path.is_file()
    }
    with opened() as library:
        library.finish()
    changed = [path.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp]
    assert set(changed) <= {"library.json"}


def test_a_changed_source_costs_what_is_new(opened: Callable[..., Any], source: Path) -> None:
    with opened() as library:
        library.finish()
    source.write_text(bibtex([*TITLES[:3], "data of the moon", "we find a new paper"]))
    with opened() as library:
        assert set(words(library, "moon new")) == {"k3", "k4"} and words(library, "models") == ["k0"]
        assert with_vectors(library) == 3  # those of the three that did not change are kept
        library.finish()
        assert with_vectors(library) == 5
    source.write_text(bibtex(TITLES[:1]))
    with opened() as library:
        assert len(Index.open(library.index_folder)) == 1


def test_the_work_behind_is_a_process_that_tells_how_far_it_is(
    opened: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded = tmp_path / "downloaded"  # a module beside somebody's papers is not run
    downloaded.mkdir()
    (downloaded / "numpy.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(Path(citeweave.__file__).parents[1]))
    monkeypatch.chdir(downloaded)
    with opened() as library:
        library.start()
        told = library.working()
        assert told is None or set(told) == {"what", "done", "total", "seconds_left"}
        library.wait(1200)
        assert (
            library.working() is None and with_vectors(library) == 4 and "code" not in " ".join(library.missing_data())
        )


def test_the_work_behind_ends_with_the_process_that_started_it(
    opened: Callable[..., Any], options: LibraryOptions
) -> None:
    """Its standard input ends then; here it does at once, before there is a vector."""
    asked = [json.dumps(dataclasses.asdict(options))]
    with opened() as library:
        command = [sys.executable, "-m", "citeweave.serve.library", str(library.folder.folder), *asked]
        source = {**os.environ, "PYTHONPATH": str(Path(citeweave.__file__).parents[1])}
        subprocess.run(command, env=source, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        assert with_vectors(library) == 0


def test_work_that_fails_is_told_with_its_cure(
    opened: Callable[..., Any], bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(bert, tmp_path / "my model"))
    with opened(how=LibraryOptions(model=str(model), runtime="torch")):
        pass
    shutil.rmtree(model)
    cure = f"--model {model} --runtime torch; choose another, such as `--model weave --runtime auto`"
    with opened(how=LibraryOptions()) as library:  # it remembers its model
        assert words(library, "models") == ["k0"]  # words need no model
        with pytest.raises(UserError, match=re.escape(cure)):
            library.finish()
        library.start()
        library.wait(1200)
        assert any(cure in line for line in library.missing_data())
        assert cure in capsys.readouterr().err  # although it is quiet
    with opened(how=LibraryOptions(model=str(bert), runtime="torch")) as library:
        library.finish()
        assert with_vectors(library) == 4


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (LibraryOptions(model="weav"), "the encoder 'weav' is not a folder and not a known name"),
        (LibraryOptions(runtime="trch"), "--runtime is 'trch'"),
        (LibraryOptions(model="@empty", runtime="torch"), "empty"),
        (LibraryOptions(model="@broken", runtime="torch"), "broken"),
    ],
)
def test_a_model_that_is_not_there_changes_nothing(
    opened: Callable[..., Any], source: Path, bert: Path, tmp_path: Path, wrong: LibraryOptions, reason: str
) -> None:
    (tmp_path / "empty").mkdir()
    (shutil.copytree(bert, tmp_path / "broken") / "model.safetensors").write_bytes(b"no weights")
    wrong = dataclasses.replace(wrong, model=wrong.model.replace("@", f"{tmp_path}/"))
    if reason != "broken":  # which shows when it is loaded; words do not wait for that where there is nothing to lose
        with pytest.raises(UserError, match=reason), opened(how=wrong):
            pass
        assert not (tmp_path / "library").exists()
    with opened() as library:
        library.finish()
    source.write_text(bibtex(TITLES[:3]))
    before = tree(tmp_path / "library")
    with pytest.raises(UserError, match=reason), opened(how=wrong):
        pass
    assert tree(tmp_path / "library") == before
    with opened(how=LibraryOptions()) as library:  # and nothing wrong is remembered
        library.finish()
        assert with_vectors(library) == 3


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_another_runtime_keeps_the_model(opened: Callable[..., Any], bert: Path) -> None:
    with opened(how=LibraryOptions(model=str(bert))) as library:
        library.finish()
    with opened(how=LibraryOptions(runtime="torch")) as library:
        assert Index.open(library.index_folder).model == str(bert)


def test_work_that_is_stopped_goes_on_later(opened: Callable[..., Any]) -> None:
    with opened() as library:
        library.start()
        library.stop()
        assert library.working() is None
        library.start()  # too late: whoever stopped it is about to leave
        assert library.working() is None
    with opened() as library:
        library.finish()
        assert with_vectors(library) == 4


def test_what_was_left_out_is_told(source: Path, opened: Callable[..., Any]) -> None:
    damaged = "@article{x, year={2019}}\n@article{y, title={The cell grows, year={2019}\n"
    source.write_text(bibtex(TITLES[:2]) + damaged)
    with opened() as library:
        assert library.missing_data()[0].startswith("2 of 4 entries of the source are left out: ")
        assert "no title (1)" in library.missing_data()[0]


def test_one_process_at_a_time_and_one_source(opened: Callable[..., Any], tmp_path: Path) -> None:
    with opened() as _, pytest.raises(UserError, match="already being explored"), opened():
        pass
    other = tmp_path / "other.bib"
    other.write_text(bibtex(TITLES))
    with pytest.raises(UserError, match="holds the library of"), opened(str(other)):
        pass


def test_folder_with_files_of_others_is_refused(opened: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "library" / "corpus").mkdir(parents=True)
    thesis = tmp_path / "library" / "corpus" / "thesis.txt"
    thesis.write_text("precious")
    with pytest.raises(UserError, match="holds 'corpus' and no library.json"), opened():
        pass
    assert [path for path in (tmp_path / "library").rglob("*") if path.is_file()] == [thesis]


def test_failed_start_leaves_the_folder_to_other_sources(opened: Callable[..., Any], tmp_path: Path) -> None:
    empty = tmp_path / "empty.bib"
    empty.write_text("nothing\n")
    with pytest.raises(UserError), opened(str(empty)):
        pass
    with opened() as library:
        assert words(library, "cell")


def test_another_model_makes_other_vectors(
    opened: Callable[..., Any], save_bert: Callable[..., Path], tmp_path: Path
) -> None:
    with opened() as library:
        library.finish()
        first = Index.open(library.index_folder).provenance
    with opened(how=LibraryOptions()) as library:  # no model is named: it keeps its own
        assert with_vectors(library) > 0
    other = save_bert(tmp_path / "other-bert", seed=3)
    with opened(how=LibraryOptions(model=str(other), runtime="torch")) as library:
        assert with_vectors(library) == 0
        library.finish()
        assert Index.open(library.index_folder).provenance != first


def test_a_corpus_and_an_index_are_taken_as_they_are(
    opened: Callable[..., Any], source: Path, tmp_path: Path, options: LibraryOptions
) -> None:
    corpus = import_papers(source, tmp_path / "corpus").corpus
    with opened(str(corpus.folder)) as library:
        assert not (tmp_path / "library" / "corpus").exists() and words(library, "models") == ["k0"]
    index = tmp_path / "library" / "index"
    with open_library(str(index)) as library:
        assert library.index_folder == index and library.missing_data() == [] and library.working() is None
        library.start()
        library.finish()
    with (
        pytest.raises(UserError, match="cannot be enriched"),
        open_library(str(index), None, LibraryOptions(enrich="s2")),
    ):
        pass


class FakeOpenAlex:
    """Answers as OpenAlex does, from this machine."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.is_dry = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = dict(parse_qsl(urlsplit(self.path).query))
                outer.asked.append(query)
                data = json.dumps({"meta": {"next_cursor": None}, "results": outer.works(query)}).encode()
                self.send_response(429 if outer.is_dry else 200)
                if outer.is_dry:
                    self.send_header("X-RateLimit-Remaining", "0")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def works(self, query: dict[str, str]) -> list[Any]:
        asked = query.get("filter", "")
        if asked.startswith("doi:") or "search" in query:
            return [self.work(number, title, [70, 71]) for number, title in enumerate(TITLES)]
        if asked.startswith("cites:"):
            return [self.work(80, "we find citations of the cell", [0, 1, 3])]
        return [self.work(70, "a paper that the library lacks", [])]

    def work(self, number: int, title: str, cites: list[int]) -> Any:
        return {
            "id": f"https://openalex.org/W{number}",
            "doi": f"https://doi.org/10.1000/{number}",
            "title": title,
            "publication_year": 2019,
            "abstract_inverted_index": {"Graphs": [0], "grow": [1]},
            "referenced_works": [f"https://openalex.org/W{cited}" for cited in cites],
        }


@pytest.fixture
def openalex(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAlex]:
    for name in ("OPENALEX_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeOpenAlex()
    monkeypatch.setenv("CITEWEAVE_OPENALEX_URL", f"http://127.0.0.1:{fake.server.server_port}")
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def test_enrichment(
    source: Path,
    opened: Callable[..., Any],
    options: LibraryOptions,
    openalex: FakeOpenAlex,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with opened() as library:
        library.finish()
    assert openalex.asked == []  # a local source asks nobody
    richer = LibraryOptions(options.model, options.runtime, enrich="openalex")
    with opened(how=richer, reporter=Reporter()) as library:
        library.finish(Reporter())
        index = Index.open(library.index_folder)
        assert with_vectors(library) == len(index) == 6 and library.missing_data() == []
        own = [row for row in range(index.size) if index.alive[row] and not index.paper(row).stub]
        assert sorted(index.id(row) for row in own) == ["k0", "k1", "k2", "k3"]
        assert words(library, "graphs") and index.paper(index.row("k3")).abstract == "Graphs grow"
        citing = index.citing(index.key_of(index.row("k3")))
        assert [index.id(int(row)) for row in citing] == ["openalex:W80"]
    assert (
        "4 of 4 papers found, 0 not, 0 ambiguous; 1 citing papers and 1 that the library cites"
        in capsys.readouterr().err
    )
    asked = len(openalex.asked)
    with opened() as library:  # what was fetched stays, without asking again
        assert len(Index.open(library.index_folder)) == 6
    assert len(openalex.asked) == asked
    source.write_text(bibtex(TITLES[:3]))
    with opened() as library:  # a paper that left the library is one around it
        index = Index.open(library.index_folder)
        assert [index.paper(index.row(id)).stub for id in ("k0", "doi:10.1000/3", "openalex:W80")] == [
            False,
            True,
            True,
        ]


def test_an_enrichment_that_fails_is_an_error_of_that_start(
    opened: Callable[..., Any],
    options: LibraryOptions,
    openalex: FakeOpenAlex,
    capsys: pytest.CaptureFixture[str],
    source: Path,
    tmp_path: Path,
) -> None:
    openalex.is_dry = True
    richer = dataclasses.replace(options, enrich="openalex")
    with opened(how=richer) as library:
        library.start()
        library.wait(1200)
        assert with_vectors(library) == 4  # the rest is done all the same
        assert any("allowance is used up" in line for line in library.missing_data())
    assert "error: --enrich openalex: " in capsys.readouterr().err  # although it is quiet
    words = (source, "--folder", tmp_path / "library", "--enrich", "openalex", "--once")
    for more in ("--quiet", "--json"):
        code, out, err = run(capsys, "explore", *words, more)
        assert code == 1 and "error: --enrich openalex: " in err and "allowance is used up" in err
    assert any("allowance is used up" in line for line in json.loads(out)["lacks"])
    with opened() as library:  # without --enrich it is no matter any more, but can be tried again
        assert not any("allowance" in line for line in library.missing_data())
        assert "`citeweave explore --enrich openalex` fetches" in library.missing_data()[-1]


def test_a_damaged_index_is_made_anew(opened: Callable[..., Any]) -> None:
    with opened() as library:
        library.finish()
        folder = library.index_folder
    for damage in ("{", '{"format": "citeweave-index", "version": 2, "number": 1, "segments": [], "facts": {}}'):
        (folder / "state.json").write_text(damage)
        with opened() as library:
            assert words(library, "models") == ["k0"]
    next(folder.glob("segments/*/manifest.json")).unlink()
    with opened() as library:
        assert words(library, "models") == ["k0"]


def test_a_query_is_asked_once(opened: Callable[..., Any], options: LibraryOptions, openalex: FakeOpenAlex) -> None:
    with opened("openalex:cells and graphs") as library:
        assert library.name == "cells and graphs" and len(Index.open(library.index_folder)) == 4
        assert library.missing_data() == []
    assert [query["search"] for query in openalex.asked] == ["cells and graphs"]
    openalex.is_dry = True
    with opened("openalex:cells and graphs") as library:
        assert len(Index.open(library.index_folder)) == 4
    assert len(openalex.asked) == 1
    fresh = LibraryOptions(options.model, options.runtime, refresh=True)
    with pytest.raises(UserError, match="allowance is used up"), opened("openalex:cells and graphs", fresh):
        pass


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="--enrich is 'openalx'.*Did you mean 'openalex'"):
        LibraryOptions(enrich="openalx")
    with pytest.raises(UserError, match="--max-papers is 0"):
        LibraryOptions(max_papers=0)
