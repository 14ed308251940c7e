"""Libraries from their sources to vectors; no test here leaves this machine."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

import citeweave
from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.corpus.ingest import import_papers
from citeweave.search.explain import discoveries_as_json
from citeweave.search.index import Index
from citeweave.search.words import search_words
from citeweave.serve.library import Library, open_library
from citeweave.serve.options import LibraryOptions
from citeweave.serve.prepare_library import data_folder, find_source, library_folder

from ..cli.conftest import run
from ..faults.counted.services import LocalServer

TITLES = ["how models learn from data", "the cell grows in graphs"]
TITLES += ["citations of a paper that we find", "data of the cell"]
PACKAGE = str(Path(citeweave.__file__).parents[1])


def bibtex(titles: list[str]) -> str:
    abstracts = [", abstract={We find that the cell grows.}"] + [""] * len(titles)
    return "".join(
        f"@article{{k{number}, title={{{title}}}, year={{2019}}, doi={{10.1000/{number}}}{abstracts[number]}}}\n"
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


@pytest.fixture
def refused(opened: Callable[..., Any]) -> Callable[..., None]:
    """Opening it is refused in these words."""

    def refuse(words: str, *named: str, **how: LibraryOptions) -> None:
        with pytest.raises(UserError, match=words), opened(*named, **how):
            pass

    return refuse


def words(library: Library, query: str) -> list[str]:
    index = Index.open(library.index_folder)
    return [index.id(int(row)) for row in search_words(index, query, 10).rows]


def with_vectors(library: Library) -> int:
    index = Index.open(library.index_folder)
    return int(index.with_vector.sum())


def test_words_come_at_once_and_vectors_after_and_a_changed_source_costs_what_is_new(opened, source, tmp_path):
    with opened() as library:
        assert set(words(library, "cell")) == {"k0", "k1", "k3"}
        assert with_vectors(library) == 0 and library.working() is None
        abstracts, references, more = library.missing_data()
        assert abstracts == "3 of 4 papers have no abstract" and "--enrich openalex" in more
        assert references == "4 of 4 papers have no references, so none are shared with other papers"
        library.finish()
        assert with_vectors(library) == 4
    files = [path for path in (tmp_path / "library").rglob("*") if path.name != ".lock" and path.is_file()]
    stamps = {path: path.stat().st_mtime_ns for path in files}
    with opened() as library:  # an unchanged source is not read again
        library.finish()
    assert {path.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp} <= {"library.json"}
    source.write_text(bibtex([*TITLES[:3], "data of the moon", "we find a new paper"]))
    with opened() as library:
        assert set(words(library, "moon new")) == {"k3", "k4"} and words(library, "models") == ["k0"]
        assert with_vectors(library) == 3  # those of the three that did not change are kept
        library.finish()
        assert with_vectors(library) == 5
    source.write_text(bibtex(TITLES[:1]))
    with opened() as library:
        assert len(Index.open(library.index_folder)) == 1


def test_the_work_behind_is_a_process_that_tells_how_far_it_is(opened, tmp_path, monkeypatch):
    downloaded = tmp_path / "downloaded"  # a module beside somebody's papers is not run
    downloaded.mkdir()
    (downloaded / "numpy.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", PACKAGE)
    monkeypatch.chdir(downloaded)
    with opened() as library:
        library.start()
        status = library.working()
        assert status is None or set(status) == {"what", "done", "total", "seconds_left"}
        library.wait(1200)
        assert library.working() is None and with_vectors(library) == 4
        assert "code" not in " ".join(library.missing_data())


def test_the_work_behind_ends_with_the_process_that_started_it(opened, options):
    """Its standard input ends then; here it does at once, before there is a vector."""
    with opened() as library:
        command = [sys.executable, "-m", "citeweave.serve.library", str(library.folder.folder)]
        command.append(json.dumps(dataclasses.asdict(options)))
        here = {**os.environ, "PYTHONPATH": PACKAGE}
        subprocess.run(command, env=here, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        assert with_vectors(library) == 0


def test_work_that_fails_is_told_with_its_cure(opened, bert, tmp_path, capsys):
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
    with opened() as library:
        library.finish()
        assert with_vectors(library) == 4


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


WRONG_MODELS = [
    ({"model": "weav"}, "the encoder 'weav' is not a folder and not a known name"),
    ({"runtime": "trch"}, "--runtime is 'trch'"),
    ({"model": "@empty", "runtime": "torch"}, "empty"),
    ({"model": "@broken", "runtime": "torch"}, "broken"),
]


@pytest.mark.parametrize(("wrong", "reason"), WRONG_MODELS)
def test_a_model_that_is_not_there_changes_nothing(opened, refused, source, bert, tmp_path, wrong, reason):
    (tmp_path / "empty").mkdir()
    (shutil.copytree(bert, tmp_path / "broken") / "model.safetensors").write_bytes(b"no weights")
    how = LibraryOptions(**{name: value.replace("@", f"{tmp_path}/") for name, value in wrong.items()})
    if reason != "broken":  # which shows when it is loaded; words do not wait for that where there is nothing to lose
        refused(reason, how=how)
        assert not (tmp_path / "library").exists()
    with opened() as library:
        library.finish()
    source.write_text(bibtex(TITLES[:3]))
    before = tree(tmp_path / "library")
    refused(reason, how=how)
    assert tree(tmp_path / "library") == before
    with opened(how=LibraryOptions()) as library:  # and nothing wrong is remembered
        library.finish()
        assert with_vectors(library) == 3


def test_another_runtime_keeps_the_model_and_another_model_makes_other_vectors(opened, bert, save_bert, tmp_path):
    with opened(how=LibraryOptions(model=str(bert))) as library:
        library.finish()
    with opened(how=LibraryOptions(runtime="torch")) as library:
        assert Index.open(library.index_folder).model == str(bert)
        library.finish()
        first = Index.open(library.index_folder).provenance
    with opened(how=LibraryOptions()) as library:  # no model is named: it keeps its own
        assert with_vectors(library) > 0
    other = save_bert(tmp_path / "other-bert", seed=3)
    with opened(how=LibraryOptions(model=str(other), runtime="torch")) as library:
        assert with_vectors(library) == 0
        library.finish()
        assert Index.open(library.index_folder).provenance != first


def test_work_that_is_stopped_resumes_later(opened):
    with opened() as library:
        library.start()
        library.stop()
        assert library.working() is None
        library.start()  # too late: whoever stopped it is about to leave
        assert library.working() is None
    with opened() as library:
        library.finish()
        assert with_vectors(library) == 4


def test_what_was_left_out_is_told(source, opened):
    damaged = "@article{x, year={2019}}\n@article{y, title={The cell grows, year={2019}\n"
    source.write_text(bibtex(TITLES[:2]) + damaged)
    with opened() as library:
        said = library.missing_data()[0]
        named = [(entry.key, entry.line, entry.reason) for entry in library.rejected]
    first = source.read_text()[: -len(damaged)].count("\n") + 1
    assert named == [("x", first, "no title"), ("y", first + 1, "unbalanced braces")]
    assert said.startswith("2 of 4 entries of the source are left out: ") and "no title (1)" in said


def test_one_process_at_a_time_and_one_source(opened, refused, tmp_path):
    empty, other = tmp_path / "empty.bib", tmp_path / "other.bib"
    empty.write_text("nothing\n")
    other.write_text(bibtex(TITLES))
    refused("empty.bib", str(empty))  # a start that failed leaves the folder to other sources
    with opened() as library:
        assert words(library, "cell")
        refused("already being explored")
    refused("holds the library of", str(other))


def test_a_folder_with_files_of_others_is_refused(refused, tmp_path):
    thesis = tmp_path / "library" / "corpus" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("precious")
    refused("holds 'corpus' and no library.json")
    assert [path for path in (tmp_path / "library").rglob("*") if path.is_file()] == [thesis]


def test_a_corpus_and_an_index_are_taken_as_they_are(opened, source, tmp_path):
    corpus = import_papers(source, tmp_path / "corpus").corpus
    with opened(str(corpus.folder)) as library:
        assert not (tmp_path / "library" / "corpus").exists() and words(library, "models") == ["k0"]
    index = tmp_path / "library" / "index"
    with open_library(str(index)) as library:
        assert library.index_folder == index and library.missing_data() == [] and library.working() is None
        library.start()
        library.finish()
    enriched = LibraryOptions(enrich="s2")
    with pytest.raises(UserError, match="cannot be enriched"), open_library(str(index), None, enriched):
        pass


def test_a_damaged_index_is_made_anew(opened):
    with opened() as library:
        library.finish()
        folder = library.index_folder
    for damage in ("{", '{"format": "citeweave-index", "version": 3, "number": 1, "generation": "", "hash": ""}', ""):
        if damage:
            (folder / "state.json").write_text(damage)
        else:
            next(folder.glob("generations/*/manifest.json")).unlink()
        with opened() as library:
            assert words(library, "models") == ["k0"]


def test_options_are_checked():
    with pytest.raises(UserError, match="enrich is 'openalx'.*Did you mean 'openalex'"):
        LibraryOptions(enrich="openalx")
    with pytest.raises(UserError, match="max_papers is 0"):
        LibraryOptions(max_papers=0)


# --- papers and citations from a service ---------------------------------------------------------------------


class FakeOpenAlex(LocalServer):
    """Answers as OpenAlex does, from this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query, is_dry = dict(parse_qsl(urlsplit(self.path).query)), self.service.is_dry
            self.service.queries.append(query)
            data = json.dumps({"meta": {"next_cursor": None}, "results": self.service.works(query)}).encode()
            self.send_response(429 if is_dry else 200)
            for name, value in {
                "Content-Length": len(data),
                **({"X-RateLimit-Remaining": 0} if is_dry else {}),
            }.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

    def __init__(self) -> None:
        self.queries, self.is_dry = list[dict[str, str]](), False
        super().__init__(self.Handler)

    def works(self, query: dict[str, str]) -> list[Any]:
        wanted = query.get("filter", "")
        if wanted.startswith("doi:") or "search" in query:
            return [self.work(number, title, [70, 71]) for number, title in enumerate(TITLES)]
        if wanted.startswith("cites:"):
            return [self.work(80, "we find citations of the cell", [0, 1, 3])]
        return [self.work(70, "a paper that the library lacks", [])]

    def work(self, number: int, title: str, cites: list[int]) -> Any:
        work = {"id": f"https://openalex.org/W{number}", "doi": f"https://doi.org/10.1000/{number}", "title": title}
        work |= {"publication_year": 2019, "abstract_inverted_index": {"Graphs": [0], "grow": [1]}}
        return work | {"referenced_works": [f"https://openalex.org/W{cited}" for cited in cites]}


@pytest.fixture
def openalex(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAlex]:
    for name in ("OPENALEX_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeOpenAlex()
    monkeypatch.setenv("CITEWEAVE_OPENALEX_URL", fake.base)
    yield fake
    fake.close()


def test_a_library_is_enriched_once(source, opened, options, openalex, capsys):
    with opened() as library:
        library.finish()
    assert openalex.queries == []  # a local source asks nobody
    with opened(how=dataclasses.replace(options, enrich="openalex"), reporter=Reporter()) as library:
        library.finish(Reporter())
        index = Index.open(library.index_folder)
        assert with_vectors(library) == len(index) == 6 and library.missing_data() == []
        own = [row for row in range(index.size) if not index.paper(row).stub]
        assert sorted(index.id(row) for row in own) == ["k0", "k1", "k2", "k3"]
        assert words(library, "graphs") and index.paper(index.row("k3")).abstract == "Graphs grow"
        citing = index.citing(index.key_of(index.row("k3")))
        assert [index.id(int(row)) for row in citing] == ["openalex:W80"]
        found = discoveries_as_json(index)
        assert [(paper["id"], paper["count"], paper["year"]) for paper in found["citing"]] == [
            ("openalex:W80", 3, 2019)
        ]
        assert all(
            paper["in_index"] and paper["title"] for paper in found["papers"] if paper["id"].startswith("openalex:")
        )
    counts = "4 of 4 papers found, 0 not, 0 ambiguous; 1 citing papers and 1 that the library cites"
    assert counts in capsys.readouterr().err
    count = len(openalex.queries)
    with opened() as library:  # what was fetched stays, without asking again
        assert len(Index.open(library.index_folder)) == 6
    assert len(openalex.queries) == count
    source.write_text(bibtex(TITLES[:3]))
    with opened() as library:  # a paper that left the library is one around it
        index = Index.open(library.index_folder)
        stubs = {id: index.paper(index.row(id)).stub for id in ("k0", "doi:10.1000/3", "openalex:W80")}
        assert stubs == {"k0": False, "doi:10.1000/3": True, "openalex:W80": True}


def test_an_enrichment_that_fails_is_an_error_of_that_start(opened, options, openalex, capsys, source, tmp_path):
    openalex.is_dry = True
    with opened(how=dataclasses.replace(options, enrich="openalex")) as library:
        library.start()
        library.wait(1200)
        assert with_vectors(library) == 4  # the rest is done all the same
        assert any("allowance is used up" in line for line in library.missing_data())
    assert "error: --enrich openalex: " in capsys.readouterr().err  # although it is quiet
    arguments = (source, "--folder", tmp_path / "library", "--enrich", "openalex", "--once")
    for more in ("--quiet", "--json"):
        code, out, err = run(capsys, "explore", *arguments, more)
        assert code == 1 and "error: --enrich openalex: " in err and "allowance is used up" in err
    assert any("allowance is used up" in line for line in json.loads(out)["lacks"])
    with opened() as library:  # without --enrich it is no matter any more, but can be tried again
        assert not any("allowance" in line for line in library.missing_data())
        assert "`citeweave explore --enrich openalex` fetches" in library.missing_data()[-1]


def test_a_query_is_sent_once(opened, refused, options, openalex):
    for is_dry in (False, True):
        openalex.is_dry = is_dry
        with opened("openalex:cells and graphs") as library:
            assert library.name == "cells and graphs" and len(Index.open(library.index_folder)) == 4
            assert library.missing_data() == []
        assert [query["search"] for query in openalex.queries] == ["cells and graphs"]
    fresh = dataclasses.replace(options, refresh=True)
    refused("allowance is used up", "openalex:cells and graphs", how=fresh)


# --- sources -----------------------------------------------------------------------------------------------

BIB = "@article{a, title={A study of moths near bright lamps}, year={2019}}\n"


def test_a_file_is_a_source_and_its_stamp_changes_with_it(tmp_path):
    file = tmp_path / "my.bib"
    file.write_text(BIB)
    source = find_source(str(file))
    assert (source.kind, source.name, source.files) == ("files", "my", (file,))
    before = source.stamp()
    assert before == find_source(str(file)).stamp()
    file.write_text(BIB * 2)
    assert source.stamp() != before


def test_a_folder_is_a_source_of_its_exports_or_of_zotero(tmp_path):
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "paper.pdf").write_bytes(b"%PDF-1.5")
    (tmp_path / "My Library.bib").write_text(BIB)
    (tmp_path / "package.json").write_text('{"name": "x", "version": 1}')
    assert [path.name for path in find_source(str(tmp_path)).files] == ["My Library.bib"]
    database = tmp_path / "zotero.sqlite"
    database.write_bytes(b"x")
    for named in (tmp_path, tmp_path / "storage", database):
        source = find_source(str(named))
        assert (source.kind, source.place, source.files) == ("zotero", str(tmp_path), (database,))


def test_a_query_is_a_source_and_anything_else_is_refused(tmp_path):
    source = find_source("openalex:  citation   recommendation ")
    assert (source.kind, source.service, source.query) == ("query", "openalex", "citation recommendation")
    assert find_source("s2: moths").place == "s2:moths"
    wrong = {"scopus:moths": "is not a service", "s2:": "no words"}
    wrong |= {"gone.bib": "does not exist", "https://x": "does not exist"}
    older = "an index of an older format; build it again with `citeweave index`"
    for kind, reason in (("intent_classifier", "holds intent classifier, which cannot be explored"), ("index", older)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "manifest.json").write_text(json.dumps({"kind": kind, "version": 1}))
        wrong[str(tmp_path / kind)] = reason
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "my.bib")
        wrong[str(tmp_path / "my.bib")] = r"my\.bib is neither a file nor a folder but a pipe or a device; save"
    for text, reason in wrong.items():
        with pytest.raises(UserError, match=reason):
            find_source(text)


def test_every_source_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CITEWEAVE_DATA", str(tmp_path / "data"))
    places = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "../" / name / "my library.bib"
        file.write_text(BIB)
        places.append(library_folder(find_source(str(file))))
        assert library_folder(find_source(str(file.resolve()))) == places[-1]
    assert len(set(places)) == 2 and all(place.parent == tmp_path / "data" for place in places)
    assert all(place.name.startswith("my-library-") for place in places)
    hostile = library_folder(find_source("openalex:../../etc/passwd\x00; rm -rf ~"))
    assert hostile.parent == tmp_path / "data" and "/" not in hostile.name and "\x00" not in hostile.name
    monkeypatch.delenv("CITEWEAVE_DATA")
    assert data_folder().name == "citeweave"
