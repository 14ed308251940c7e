"""Bad input through the real command line: one clear line or a counted rejection, in bounded time and memory.

`counted/test_bombs.py` has compressed files and XML that grow, `counted/test_corruption.py` damaged files of every format.
"""

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

from .counted.commands import CommandServer, Run

MB = 2**20
SECONDS, MEMORY = 600, 1000 * MB


@dataclass(frozen=True)
class Import(Run):
    """One import."""

    output: Path

    @property
    def report(self) -> dict[str, Any]:
        assert self.status == 0, self.err
        return json.loads(self.out)

    def rejected(self, kind: str = "papers") -> dict[str, int]:
        records = self.report["records"][kind]
        assert records["read"] == records["kept"] + sum(records["rejected"].values())
        return records["rejected"]

    def assert_refused(self, *words: str) -> None:
        """The user's mistake: one line that says so, and nothing that looks like a corpus."""
        assert (self.status, self.out) == (2, ""), self.err
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


def run_import(output: Path, *arguments: object, **how: Any) -> Import:
    words = ["import", *map(str, arguments), "-o", str(output), "--json"]
    ran = server().run(words, kill_after=SECONDS, **how)
    assert ran.seconds < SECONDS, f"no end after {SECONDS} seconds: {words}"
    return Import(**vars(ran), output=output)


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Import]:
    """Import a path, or bytes put into a file of a name, or files put into a folder; every run must stay in bounds."""

    def run(name: str | Path, content: Any = None, *options: str) -> Import:
        files = {f"{name}/{inner}": data for inner, data in content.items()} if isinstance(content, dict) else {}
        if isinstance(content, dict):
            (tmp_path / name).mkdir(exist_ok=True)
        for file, data in (files if isinstance(content, dict) else {name: content}).items():
            if data is not None:
                (tmp_path / file).write_bytes(data if isinstance(data, bytes) else data.encode())
        ran = run_import(tmp_path / "corpus", tmp_path / name, *options)
        assert ran.memory < MEMORY, f"{ran.memory / MB:.0f} MB"
        return ran

    return run


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def gzip_of(start: bytes, piece: bytes, megabytes: int, end: bytes = b"") -> bytes:
    """A small file that becomes a large one: `piece` again and again between `start` and `end`."""
    members = [gzip.compress(part) for part in (start, piece * (10 * MB // len(piece)), end)]
    return members[0] + members[1] * (megabytes // 10) + members[2]


def _parquet(columns: dict[str, list[object]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


PAPERS = lines(*({"id": f"p{n}", "title": f"Paper number {n}", "abstract": "x" * n} for n in range(500)))
GOOD = b'{"id": "a", "title": "Good"}\n'
EDGE = b'{"citingcorpusid": 1, "citedcorpusid": 2}\n'
FEED = '<?xml version="1.0" encoding="{}"?><feed xmlns:a="http://arxiv.org/x"><entry><id>Ü</id></entry></feed>'
EDGES = _parquet({"citing": list(range(99)), "cited": list(range(1, 100))})
TOO_LONG = "line longer than 64 MiB"
LARGE = "is larger than 512 MiB once decompressed"
DEEP = 100_000
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
UNKNOWN = "is in no format that citeweave recognizes"

REFUSED: list[tuple[Any, ...]] = [
    ("a.xml", FEED.format("utf-8").encode("cp1252"), "a.xml is not complete, well-formed XML"),
    ("a.xml", FEED.format("no-such"), "a.xml is not complete, well-formed XML"),
    ("two\nlines.jsonl", "hello", "two lines.jsonl is in no format"),
    ("papers.jsonl.gz", gzip.compress(PAPERS.encode()) + b"\x1f\x8b garbage", "papers.jsonl.gz is damaged or truncated"),
    ("a.jsonl.gz", lambda: gzip_of(b'{"id": "a", "title": "', b"x", 1000), "a.jsonl.gz is in no format"),
    ("a.json.gz", lambda: gzip_of(b'[{"paperId": null, "title": "', b"x", 1000), f"a.json.gz {LARGE}"),
    ("a.bib.gz", lambda: gzip_of(b"@article{a, title={", b"x ", 1000), f"a.bib.gz {LARGE}"),
    ("a.ris.gz", lambda: gzip_of(b"TY  - JOUR\nT1  - ", b"x\n", 1000), f"a.ris.gz {LARGE}"),
    ("a.xml.gz", lambda: gzip_of(b"<PubmedArticleSet><PubmedArticle>", b"<a/>", 1000), "a.xml.gz has a record of more than 2,000,000 elements"),
    ("b.xml.gz", lambda: gzip_of(b"<PubmedArticleSet>", b" ", 1000), "b.xml.gz has a record larger than 64 MiB"),
    ("a.json", '[\n{"paperId":\n' + "[" * DEEP + "]" * DEEP + "}]", "a.json is not one JSON document (nested too deeply)"),
    ("p.jsonl", '{"id": "", "title": "T"}\n', "nothing to write", "1 papers: no id"),
    ("p.jsonl", lines({"corpusid": 1, "sha": "a" * 40, "primary": True}), "nothing to write", "1 papers: known only as a reference"),
    *((name, FOREIGN[name], f"{name} {UNKNOWN}") for name in ("photo.jpg", "page.html")),
    # it may be the shard of citations that broke on its way
    *(("in", {"papers.jsonl": PAPERS, "edges.parquet": damaged}, "edges.parquet is damaged")
      for damaged in (EDGES[: len(EDGES) // 2], b"PAR1" + bytes(range(256)) * 4 + b"PAR1")),
    *(("a.jsonl --format " + format, PAPERS, "a.jsonl") for format in ("bibtex", "pubmed")),
    *(("a.bib --format " + format, "@article{a, title={T}}", "a.bib") for format in ("openalex", "plain", "specter")),
    ("a.xml --format acl_anthology", "<feed><entry/></feed>", "a.xml"),
    ("photo.jpg --format crossref", FOREIGN["photo.jpg"], "photo.jpg"),
    *((f"empty.jsonl{option}", content, "empty.jsonl is empty")
      for content in (b"", b" \n\n", gzip.compress(b"", mtime=0)) for option in ("", " --format bibtex")),
    ("in", {}, "in: no file of a known format found"),
]  # fmt: skip
"""A name with options, what is there, and words of the one line."""


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_file_that_cannot_be_meant_is_refused_in_one_line(imported, number):
    name, content, *words = REFUSED[number]
    name, *options = name.split(" ")
    imported(name, content() if callable(content) else content, *options).assert_refused(*words)


def test_wrong_encodings_are_noted(imported):
    entry = "@article{{k{0}, title={{Über naïve Knoten und Netze {0}}}, year={{2000}}}}\n"
    encodings = ("utf-8-sig", "utf-16", "cp1252")
    files = {f"{number}.bib": entry.format(number).encode(encoding) for number, encoding in enumerate(encodings)}
    record = '{"id": "%d", "title": "Ü"}\n'
    files["p.jsonl"] = (record % 1).encode() + (record % 2).encode("cp1252")
    ran = imported("in", {**files, "t.csv": "id,title\n3,Knöten\n".encode("cp1252")})
    assert ran.rejected() == {"not valid JSON": 1}
    assert ran.report["notes"] == {"file is not UTF-8, read as Latin-1": 1, "line is not UTF-8, read as Latin-1": 1}
    titles = (ran.output / "papers" / "title.utf8").read_text()
    assert titles.count("Über naïve Knoten") == 3 and "Knöten" in titles


def test_a_name_of_odd_bytes_is_read(imported):
    try:
        ran = imported(os.fsdecode(b"bad\xffname.jsonl"), lines({"id": "a", "title": "T"}))
    except OSError:
        pytest.skip("this file system takes no such names")
    assert ran.report["papers"] == 1


LONG_LINES = [
    ("papers.jsonl.gz", "papers", GOOD + b'{"id": "b", "title": "', b'"}\n' + GOOD, "same paper as another record (merged)"),
    ("citations.jsonl.gz", "citations", EDGE + b'{"citingcorpusid": 3, "citedcorpusid": 4, "contexts": ["', b'"]}\n' + EDGE, "same citation given again (merged)"),
    ("papers.csv.gz", "papers", b"id,title\na,Good\nb,", b"\nc,Good too\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "start", "end", "rejected"), LONG_LINES)
def test_a_line_of_200_megabytes_costs_that_line_only(imported, name, kind, start, end, rejected):
    options = ("--outside", "keep") if kind == "citations" else ()
    ran = imported(name, gzip_of(start, b"x", 200, end), *options)
    assert ran.rejected(kind) == {TOO_LONG: 1, **({rejected: 1} if rejected else {})}


@pytest.mark.parametrize("core", ["1", "NaN"])
def test_json_nested_deeply_costs_its_line_only(imported, core):
    bombs = ['{"id": "b", "title": ' + "[" * DEEP + core + "]" * DEEP + "}", '{"a":' * DEEP + core + "}" * DEEP]
    # the last is deeper than metadata of a paper can be written, shallower than what is refused
    kept = '{"id": "b", "title": "T", "good": "kept", "deep": ' + "[" * 500 + "]" * 500 + "}"
    ran = imported("papers.jsonl", GOOD + "\n".join([*bombs, kept]).encode())
    assert ran.rejected() == {"nested too deeply": 2} and ran.report["papers"] == 2


@pytest.mark.parametrize("tag", ["sec", "p", "title", "x", "article", "xref"])
def test_xml_nested_deeply_is_read_or_refused(imported, tag):
    bomb = f"<{tag}>" * DEEP + "text" + f"</{tag}>" * DEEP
    front = "<front><article-meta><title-group><article-title>T</article-title></title-group></article-meta></front>"
    ran = imported("a.xml", f"<article>{front}<body>{bomb}</body></article>")
    assert (ran.status == 0 and ran.report["papers"] == 1) or ran.assert_refused("a.xml") is None


@pytest.mark.parametrize(
    "value", ["{" * DEEP + "x" + "}" * DEEP, "\\textbf{" * DEEP + "}" * DEEP, '"' * DEEP, "#" * DEEP]
)
def test_bibtex_nested_deeply_is_read(imported, value):  # fmt: skip
    ran = imported("a.bib", f"@article{{a, title={{Good}}, abstract={{{value}}}}}\n@article{{b, title={{Good too}}}}\n")
    assert ran.report["records"]["papers"]["read"] == 2


def test_odd_ids_citations_and_years_are_counted(imported):
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
    assert ran.rejected() == {"no id": 4, "no title and no abstract": 1, merged: 1}
    assert ran.rejected("citations") == {
        "no cited paper": 4, "paper cites itself": 2, "cited paper not in the corpus": 1, "citing paper not in the corpus": 1,
        "citing and cited paper not in the corpus": 1, "same citation given again (merged)": 1,
    }  # fmt: skip


def test_files_of_no_known_format_in_a_folder_are_skipped(imported):
    report = imported("in", {**FOREIGN, "papers.jsonl": PAPERS}).report
    assert report["papers"] == 500 and report["skipped_files"] == dict.fromkeys(FOREIGN, "no known format")


# --- places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--format", "plain")])
def test_pipes_devices_and_links_that_lead_nowhere_are_refused(imported, tmp_path, options):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "circle.jsonl").symlink_to(tmp_path / "circle.jsonl")
    imported("pipe.jsonl", None, *options).assert_refused("pipe.jsonl is a pipe or a device")
    imported(Path("/dev/zero"), None, *options).assert_refused("/dev/zero is a pipe or a device")
    if not options:
        imported("nowhere.jsonl").assert_refused("nowhere.jsonl does not exist")
        imported("circle.jsonl").assert_refused("circle.jsonl cannot be read")
        imported("x" * 300).assert_refused("cannot be read")


def test_such_things_in_a_folder_are_skipped(imported, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (folder / "round").symlink_to(folder)
    report = imported("in", {"papers.jsonl": PAPERS, "empty.jsonl": ""}).report
    assert report["papers"] == 500
    assert report["skipped_files"].keys() >= {"pipe.jsonl", "nowhere.jsonl", "empty.jsonl"}


def test_an_output_where_no_folder_can_be_is_refused(tmp_path):
    (tmp_path / "papers.jsonl").write_text(PAPERS)
    (tmp_path / "occupied").write_text("mine")
    for output in ("occupied", "occupied/corpus"):
        ran = run_import(tmp_path / output, tmp_path / "papers.jsonl")
        assert ran.status == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err
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


def test_without_permission_the_place_is_named(open_folder):
    """Root may read everything: it goes on as nobody."""
    locked, folder, output = open_folder / "locked.jsonl", open_folder / "folder", open_folder / "corpus"
    inner = folder / "inner"
    inner.mkdir(parents=True)
    for path in (locked, folder / "papers.jsonl", inner / "papers.jsonl"):
        path.write_text(PAPERS)
    for changed, mode, path, words in (
        (locked, 0, locked, "locked.jsonl cannot be opened"),
        (folder, 0, folder, "folder cannot be read"),
        (folder, 0, folder / "papers.jsonl", "cannot be read"),
        (folder, 0o444, folder, "cannot be read"),  # names can be listed, files cannot be reached
        (inner, 0, folder, "inner cannot be read"),
    ):
        folder.chmod(0o755)
        changed.chmod(mode)
        for options in ((), ("--format", "plain")):
            ran = run_import(output, path, *options, nobody=os.geteuid() == 0)
            ran.assert_refused(f"{words}: Permission")
    inner.chmod(0o755)
