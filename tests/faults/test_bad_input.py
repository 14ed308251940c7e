"""Bad input through the real command line: one clear line or a counted rejection, in bounded time and memory.

`counted/test_bombs.py` has compressed files and XML that grow, `counted/test_corruption.py` damaged files of every format.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .counted.commands import CommandServer

MB = 2**20
SECONDS, MEMORY = 600, 1000 * MB
Import = Callable[..., "Ran"]


@dataclass(frozen=True)
class Ran:
    """One run of the command line."""

    code: int
    out: str
    err: str
    memory: int
    output: Path

    @property
    def report(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        return json.loads(self.out)  # type: ignore[no-any-return]

    def rejected(self, kind: str) -> dict[str, int]:
        records = self.report["records"][kind]
        assert records["read"] == records["kept"] + sum(records["rejected"].values())
        return records["rejected"]  # type: ignore[no-any-return]

    def assert_refused(self, *words: str) -> None:
        """The user's mistake: one line that says so, and nothing that looks like a corpus."""
        assert (self.code, self.out) == (2, ""), self.err
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err and "internal error" not in self.err
        assert all(word in self.err for word in words), self.err
        assert not self.output.exists()


@cache
def server() -> CommandServer:
    """The process that starts the commands of this one."""
    folder = Path(tempfile.mkdtemp(prefix="citeweave-commands-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = CommandServer(folder, light=True)
    atexit.register(made.close)
    return made


def run_import(output: Path, *arguments: object, **how: Any) -> Ran:
    words = ["import", *map(str, arguments), "-o", str(output), "--json"]
    ran = server().run(words, kill_after=SECONDS, **how)
    assert ran.seconds < SECONDS, f"no end after {SECONDS} seconds: {words}"
    return Ran(ran.status, ran.out, ran.told.removeprefix(ran.out), ran.memory, output)


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import a path, or bytes put into a file of a name, or files put into a folder; every run must stay in bounds."""

    def run(name: str | Path, content: bytes | str | dict[str, Any] | None = None, *options: str) -> Ran:
        path = tmp_path / name
        if isinstance(content, dict):
            path.mkdir(exist_ok=True)
        files = (
            {path / inner: data for inner, data in content.items()} if isinstance(content, dict) else {path: content}
        )
        for file, data in files.items():
            if data is not None:
                file.write_bytes(data if isinstance(data, bytes) else data.encode())
        ran = run_import(tmp_path / "corpus", path, *options)
        assert ran.memory < MEMORY, f"{ran.memory / MB:.0f} MB"
        return ran

    return run


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


PAPERS = lines(*({"id": f"p{n}", "title": f"Paper number {n}", "abstract": "x" * n} for n in range(500)))


# --- encodings and names -------------------------------------------------------------------------------


def test_wrong_encodings(imported: Import) -> None:
    entry = "@article{{k{0}, title={{Über naïve Knoten und Netze {0}}}, year={{2000}}}}\n"
    encodings = ("utf-8-sig", "utf-16", "cp1252")
    files = {f"{number}.bib": entry.format(number).encode(encoding) for number, encoding in enumerate(encodings)}
    record = '{"id": "%d", "title": "Ü"}\n'
    files["p.jsonl"] = (record % 1).encode() + (record % 2).encode("cp1252")
    ran = imported("in", {**files, "t.csv": "id,title\n3,Knöten\n".encode("cp1252")})
    assert ran.rejected("papers") == {"not valid JSON": 1}
    assert ran.report["notes"] == {"file is not UTF-8, read as Latin-1": 1, "line is not UTF-8, read as Latin-1": 1}
    titles = (ran.output / "papers" / "title.utf8").read_text()
    assert titles.count("Über naïve Knoten") == 3 and "Knöten" in titles


@pytest.mark.parametrize(("declared", "written"), [("utf-8", "cp1252"), ("no-such", "utf-8")])
def test_xml_that_lies_about_its_encoding(imported: Import, declared: str, written: str) -> None:
    feed = f'<?xml version="1.0" encoding="{declared}"?><feed xmlns:a="http://arxiv.org/x"><entry><id>Ü</id></entry></feed>'
    imported("a.xml", feed.encode(written)).assert_refused("a.xml is not complete, well-formed XML")


def test_odd_file_names(imported: Import) -> None:
    imported("two\nlines.jsonl", "hello").assert_refused("two lines.jsonl is in no format")
    try:
        ran = imported(os.fsdecode(b"bad\xffname.jsonl"), lines({"id": "a", "title": "T"}))
    except OSError:
        pytest.skip("this file system takes no such names")
    assert ran.report["papers"] == 1


def test_garbage_after_a_gzip_stream(imported: Import) -> None:
    ran = imported("papers.jsonl.gz", gzip.compress(PAPERS.encode()) + b"\x1f\x8b garbage")
    ran.assert_refused("papers.jsonl.gz is damaged or truncated")


# --- sizes ---------------------------------------------------------------------------------------------

GOOD = b'{"id": "a", "title": "Good"}\n'
EDGE = b'{"citingcorpusid": 1, "citedcorpusid": 2}\n'
TOO_LONG = "line longer than 64 MiB"
LARGE = "is larger than 512 MiB once decompressed"


def gzip_of(start: bytes, piece: bytes, megabytes: int, end: bytes = b"") -> bytes:
    """A small file that becomes a large one: `piece` again and again between `start` and `end`."""
    members = [gzip.compress(part) for part in (start, piece * (10 * MB // len(piece)), end)]
    return members[0] + members[1] * (megabytes // 10) + members[2]


@pytest.mark.parametrize(
    ("name", "kind", "start", "end", "rejected"),
    [
        ("papers.jsonl.gz", "papers", GOOD + b'{"id": "b", "title": "', b'"}\n' + GOOD, "same paper as another record (merged)"),
        ("citations.jsonl.gz", "citations", EDGE + b'{"citingcorpusid": 3, "citedcorpusid": 4, "contexts": ["', b'"]}\n' + EDGE, "same citation given again (merged)"),
        ("papers.csv.gz", "papers", b"id,title\na,Good\nb,", b"\nc,Good too\n", ""),
    ],
)  # fmt: skip
def test_a_line_of_200_megabytes(
    imported: Import, name: str, kind: str, start: bytes, end: bytes, rejected: str
) -> None:
    options = ("--outside", "keep") if kind == "citations" else ()
    ran = imported(name, gzip_of(start, b"x", 200, end), *options)
    assert ran.rejected(kind) == {TOO_LONG: 1, **({rejected: 1} if rejected else {})}


@pytest.mark.parametrize(
    ("name", "start", "piece", "words"),
    [
        ("a.jsonl.gz", b'{"id": "a", "title": "', b"x", "is in no format"),
        ("a.json.gz", b'[{"paperId": null, "title": "', b"x", LARGE),
        ("a.bib.gz", b"@article{a, title={", b"x ", LARGE),
        ("a.ris.gz", b"TY  - JOUR\nT1  - ", b"x\n", LARGE),
        ("a.xml.gz", b"<PubmedArticleSet><PubmedArticle>", b"<a/>", "has a record of more than 2,000,000 elements"),
        ("b.xml.gz", b"<PubmedArticleSet>", b" ", "has a record larger than 64 MiB"),
    ],
)
def test_what_a_bomb_is_told(imported: Import, name: str, start: bytes, piece: bytes, words: str) -> None:
    imported(name, gzip_of(start, piece, 1000)).assert_refused(f"{name} {words}")


# --- nesting -------------------------------------------------------------------------------------------

DEEP = 100_000


@pytest.mark.parametrize("core", ["1", "NaN"])
def test_json_nested_deeply(imported: Import, core: str) -> None:
    bombs = ['{"id": "b", "title": ' + "[" * DEEP + core + "]" * DEEP + "}", '{"a":' * DEEP + core + "}" * DEEP]
    # the last is deeper than metadata of a paper can be written, shallower than what is refused
    kept = '{"id": "b", "title": "T", "good": "kept", "deep": ' + "[" * 500 + "]" * 500 + "}"
    ran = imported("papers.jsonl", GOOD + "\n".join([*bombs, kept]).encode())
    assert ran.rejected("papers") == {"nested too deeply": 2} and ran.report["papers"] == 2


def test_a_json_document_nested_deeply(imported: Import) -> None:
    text = '[\n{"paperId":\n' + "[" * DEEP + "]" * DEEP + "}]"
    imported("a.json", text).assert_refused("a.json is not one JSON document (nested too deeply)")


@pytest.mark.parametrize("tag", ["sec", "p", "title", "x", "article", "xref"])
def test_xml_nested_deeply(imported: Import, tag: str) -> None:
    bomb = f"<{tag}>" * DEEP + "text" + f"</{tag}>" * DEEP
    front = "<front><article-meta><title-group><article-title>T</article-title></title-group></article-meta></front>"
    ran = imported("a.xml", f"<article>{front}<body>{bomb}</body></article>")
    assert (ran.code == 0 and ran.report["papers"] == 1) or ran.assert_refused("a.xml") is None


@pytest.mark.parametrize(
    "value", ["{" * DEEP + "x" + "}" * DEEP, "\\textbf{" * DEEP + "}" * DEEP, '"' * DEEP, "#" * DEEP]
)
def test_bibtex_nested_deeply(imported: Import, value: str) -> None:
    ran = imported("a.bib", f"@article{{a, title={{Good}}, abstract={{{value}}}}}\n@article{{b, title={{Good too}}}}\n")
    assert ran.report["records"]["papers"]["read"] == 2


def test_a_billion_positions(imported: Import) -> None:
    work = {"title": "T", "publication_year": 2000, "referenced_works": []}
    bombs = [{"w": [10**9]}, {"w": list(range(200_000))}, {"w" * 1000: [1] * 90_000}, {"w": [-1]}, {"w": "x"}]
    works = [{**work, "id": f"https://openalex.org/W{n}", "abstract_inverted_index": b} for n, b in enumerate(bombs)]
    ran = imported("works.jsonl", lines(*works), "--same-title", "never")
    assert ran.report["papers"] == 5 and ran.report["abstracts"] == 0
    assert ran.report["notes"] == {"abstract left out: impossible word positions": 5}


# --- records -------------------------------------------------------------------------------------------


def test_ids_citations_and_years(imported: Import) -> None:
    nan = float("nan")
    papers = [
        {"id": "a", "title": "First", "year": nan, "references": ["a", "b", "nowhere", "", None, float("inf")]},
        {"id": "b", "title": "Second", "year": float("-inf")},
        {"id": "b", "title": "Second again", "year": 10**30},
        *({"id": id, "title": "Nameless"} for id in ("", None, nan, "  ")),
        {"id": "c", "title": "", "abstract": None},
        {"id": "d", "title": "Fourth", "year": "NaN", "strange": "\ud800", "large": 10**30, "nan": nan},
    ]
    citations = "b\ta\tnan\nb\tb\t1\nnowhere\ta\nnowhere\telse\nb\ta\tinf\nb\t\n"
    ran = imported("in", {"papers.jsonl": lines(*papers), "citations.tsv": citations})
    assert (ran.report["papers"], ran.report["with_year"], ran.report["citations"]) == (3, 0, 2)
    merged = "same paper as another record (merged)"
    assert ran.rejected("papers") == {"no id": 4, "no title and no abstract": 1, merged: 1}
    assert ran.rejected("citations") == {
        "no cited paper": 4, "paper cites itself": 2, "cited paper not in the corpus": 1, "citing paper not in the corpus": 1,
        "citing and cited paper not in the corpus": 1, "same citation given again (merged)": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"id": "", "title": "T"}, "1 papers: no id"),
        ({"corpusid": 1, "sha": "a" * 40, "primary": True}, "1 papers: known only as a reference"),
    ],
)
def test_nothing_but_rejections_is_an_error(imported: Import, record: dict[str, Any], why: str) -> None:
    imported("p.jsonl", lines(record)).assert_refused("nothing to write", why)


# --- other files ---------------------------------------------------------------------------------------


def _parquet(columns: dict[str, list[object]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


FOREIGN = {
    "photo.jpg": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(range(256)) * 20,
    "paper.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
    "table.parquet": _parquet({"color": ["red"], "weight": [1.5]}),
    "data.sqlite": b"SQLite format 3\0" + bytes(4096),
    "program": b"\x7fELF" + bytes(range(256)) * 8,
    "page.html": b"<!DOCTYPE html><html><body><p>404 Not Found</p></body></html>",
    "error.json": b'{"detail": "Not authorised"}',
    "notes.txt": b"Dear all,\nplease find the papers, as promised, below.\n",
}


def test_files_of_no_known_format(imported: Import) -> None:
    for name in ("photo.jpg", "page.html"):
        imported(name, FOREIGN[name]).assert_refused(f"{name} is in no format that citeweave knows")
    report = imported("in", {**FOREIGN, "papers.jsonl": PAPERS}).report
    assert report["papers"] == 500 and report["skipped_files"] == dict.fromkeys(FOREIGN, "no known format")


def test_a_damaged_parquet_file_of_a_folder_is_not_skipped(imported: Import) -> None:
    """It may be the shard of citations that broke on its way."""
    whole = _parquet({"citing": list(range(99)), "cited": list(range(1, 100))})
    for content in (whole[: len(whole) // 2], b"PAR1" + bytes(range(256)) * 4 + b"PAR1"):
        imported("in", {"papers.jsonl": PAPERS, "edges.parquet": content}).assert_refused("edges.parquet is damaged")


@pytest.mark.parametrize(
    ("name", "content", "formats"),
    [
        ("a.jsonl", PAPERS.encode(), ("bibtex", "pubmed")),
        ("a.bib", b"@article{a, title={T}}", ("openalex", "plain", "specter")),
        ("a.xml", b"<feed><entry/></feed>", ("acl_anthology",)),
        ("photo.jpg", FOREIGN["photo.jpg"], ("crossref",)),
    ],
)
def test_a_file_that_is_another_format(imported: Import, name: str, content: bytes, formats: tuple[str, ...]) -> None:
    for format in formats:
        imported(name, content, "--format", format).assert_refused(name)


@pytest.mark.parametrize("content", [b"", b" \n\n", gzip.compress(b"", mtime=0)], ids=["nothing", "blanks", "gzip"])
def test_an_empty_file(imported: Import, content: bytes) -> None:
    for options in ((), ("--format", "bibtex")):
        imported("empty.jsonl", content, *options).assert_refused("empty.jsonl is empty")


def test_an_empty_folder(imported: Import) -> None:
    imported("in", {}).assert_refused("in: no file of a known format found")


# --- places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--format", "plain")])
def test_pipes_devices_and_links_that_lead_nowhere(imported: Import, tmp_path: Path, options: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "circle.jsonl").symlink_to(tmp_path / "circle.jsonl")
    imported("pipe.jsonl", None, *options).assert_refused("pipe.jsonl is a pipe or a device")
    imported(Path("/dev/zero"), None, *options).assert_refused("/dev/zero is a pipe or a device")
    if not options:
        imported("nowhere.jsonl").assert_refused("nowhere.jsonl does not exist")
        imported("circle.jsonl").assert_refused("circle.jsonl cannot be read")
        imported("x" * 300).assert_refused("cannot be read")


def test_a_folder_with_such_things_in_it(imported: Import, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (folder / "round").symlink_to(folder)
    report = imported("in", {"papers.jsonl": PAPERS, "empty.jsonl": ""}).report
    assert report["papers"] == 500
    assert report["skipped_files"].keys() >= {"pipe.jsonl", "nowhere.jsonl", "empty.jsonl"}


def test_a_folder_where_the_output_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "papers.jsonl").write_text(PAPERS)
    (tmp_path / "occupied").write_text("mine")
    for output in ("occupied", "occupied/corpus"):
        ran = run_import(tmp_path / output, tmp_path / "papers.jsonl")
        assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err
    assert (tmp_path / "occupied").read_text() == "mine"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="citeweave-"))
    folder.chmod(0o777)
    yield folder
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o777)
    shutil.rmtree(folder)


def test_without_permission(open_folder: Path) -> None:
    """Root may read everything: it goes on as nobody."""
    locked, folder, output = open_folder / "locked.jsonl", open_folder / "folder", open_folder / "corpus"
    (folder / "inner").mkdir(parents=True)
    for path in (locked, folder / "papers.jsonl", folder / "inner" / "papers.jsonl"):
        path.write_text(PAPERS)
    locked.chmod(0)

    def check(path: Path, words: str) -> None:
        for options in ((), ("--format", "plain")):
            ran = run_import(output, path, *options, nobody=os.geteuid() == 0)
            ran.assert_refused(f"{words}: Permission")

    check(locked, "locked.jsonl cannot be opened")
    folder.chmod(0)
    check(folder, "folder cannot be read")
    check(folder / "papers.jsonl", "cannot be read")
    folder.chmod(0o444)  # names can be listed, files cannot be reached
    check(folder, "cannot be read")
    folder.chmod(0o755)
    (folder / "inner").chmod(0)
    check(folder, "inner cannot be read")
    (folder / "inner").chmod(0o755)
