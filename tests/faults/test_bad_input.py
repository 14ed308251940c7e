"""Bad input through the real command line: one clear line or a counted rejection, in bounded time and memory."""

from __future__ import annotations

import atexit
import bz2
import gzip
import io
import json
import lzma
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"
MB = 2**20
SECONDS, MEMORY = 600, 1000 * MB


@dataclass(frozen=True)
class Ran:
    """One run of the command line."""

    code: int
    out: str
    err: str
    memory: int
    """Largest resident memory in bytes."""
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
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err and "internal error" not in self.err
        assert all(word in self.err for word in words), self.err
        assert not self.output.exists()


PARENT = """
import concurrent.futures.process, contextlib, io, json, os, sys, traceback
import citeweave.corpus.importing, citeweave.corpus.summary
from citeweave.cli import main
from citeweave.corpus.readers import FORMATS, reader_of
all(map(reader_of, FORMATS))
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["import", "--help"])

def run(words, files, is_nobody):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, file in zip((1, 2), files):
        os.dup2(os.open(file, os.O_WRONLY | os.O_TRUNC), descriptor)
    if is_nobody:
        os.setegid(65534), os.seteuid(65534)
    try:
        main(words)
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        sys.stdout.flush(), sys.stderr.flush()

for line in sys.stdin:
    child = os.fork()
    if not child:
        os._exit(run(*json.loads(line)))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Each command is a fork of a process that has loaded the code, which takes longer than most imports. Root may read everything:
it goes on as nobody where that matters."""


@cache
def parent() -> subprocess.Popen[bytes]:
    """The process that starts the commands of this one."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    made = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    atexit.register(made.communicate)
    return made


def peak_memory(pid: int) -> int:
    """Largest resident memory of a process so far, in bytes; what it was forked from does not count."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)


def run_import(output: Path, *arguments: object, is_nobody: bool = False) -> Ran:
    words = ["import", *map(str, arguments), "-o", str(output), "--json"]
    pipes = parent()
    assert pipes.stdin is not None and pipes.stdout is not None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        pipes.stdin.write(json.dumps([words, [out.name, err.name], is_nobody]).encode() + b"\n")
        child = int(pipes.stdout.readline())
        deadline, memory = time.monotonic() + SECONDS, 0
        while not select.select([pipes.stdout], [], [], 0.02)[0]:
            memory = max(memory, peak_memory(child))
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
        code = int(pipes.stdout.readline())
        assert time.monotonic() <= deadline, f"no end after {SECONDS} seconds: {words}"
        return Ran(code, out.read().decode(), err.read().decode(), memory, output)


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Ran]:
    """Import a path, or bytes put into a file of a name; every run must stay in bounds."""

    def run(name: str | Path, content: bytes | str | None = None, *options: str) -> Ran:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        ran = run_import(tmp_path / "corpus", path, *options)
        assert ran.memory < MEMORY, f"{ran.memory / MB:.0f} MB"
        return ran

    return run


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


PAPERS = lines(*({"id": f"p{n}", "title": f"Paper number {n}", "abstract": "x" * n} for n in range(500)))


# --- damage --------------------------------------------------------------------------------------------

COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize(("kind", "cut"), [("gz", 1), ("gz", 800), ("bz2", 800), ("xz", 800), ("zst", 800)])
def test_truncated_compression(imported: Callable[..., Ran], kind: str, cut: int) -> None:
    ran = imported(f"papers.jsonl.{kind}", COMPRESS[kind](PAPERS.encode())[:-cut])
    ran.assert_refused(f"papers.jsonl.{kind} is damaged or truncated")


@pytest.mark.parametrize("kind", COMPRESS)
def test_changed_bytes_in_compression(imported: Callable[..., Ran], kind: str) -> None:
    whole = bytearray(COMPRESS[kind](PAPERS.encode()))
    for place in range(len(whole) // 2, len(whole) // 2 + 20):
        whole[place] ^= 0x55
    imported(f"papers.jsonl.{kind}", bytes(whole)).assert_refused(f"papers.jsonl.{kind} is damaged or truncated")


def test_garbage_after_a_gzip_stream(imported: Callable[..., Ran]) -> None:
    ran = imported("papers.jsonl.gz", gzip.compress(PAPERS.encode()) + b"\x1f\x8b garbage")
    ran.assert_refused("papers.jsonl.gz is damaged or truncated")


def test_wrong_encodings(imported: Callable[..., Ran], tmp_path: Path) -> None:
    entry = "@article{{k{0}, title={{Über naïve Knoten und Netze {0}}}, year={{2000}}}}\n"
    folder = tmp_path / "in"
    folder.mkdir()
    for number, encoding in enumerate(("utf-8-sig", "utf-16", "cp1252")):
        (folder / f"{number}.bib").write_bytes(entry.format(number).encode(encoding))
    record = '{"id": "%d", "title": "Ü"}\n'
    (folder / "p.jsonl").write_bytes((record % 1).encode() + (record % 2).encode("cp1252"))
    (folder / "t.csv").write_bytes("id,title\n3,Knöten\n".encode("cp1252"))
    ran = imported("in")
    assert ran.rejected("papers") == {"not valid JSON": 1}
    assert ran.report["notes"] == {"file is not UTF-8, read as Latin-1": 1, "line is not UTF-8, read as Latin-1": 1}
    titles = (ran.output / "papers" / "title.utf8").read_text()
    assert titles.count("Über naïve Knoten") == 3 and "Knöten" in titles


def test_xml_that_lies_about_its_encoding(imported: Callable[..., Ran]) -> None:
    feed = '<?xml version="1.0" encoding="{}"?><feed xmlns:a="http://arxiv.org/x"><entry><id>Ü</id></entry></feed>'
    imported("a.xml", feed.format("utf-8").encode("cp1252")).assert_refused("a.xml is not complete, well-formed XML")
    imported("b.xml", feed.format("no-such")).assert_refused("b.xml is not complete, well-formed XML")


def test_a_file_name_that_is_no_text(imported: Callable[..., Ran], tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xffname.jsonl")
    try:
        (tmp_path / name).write_text(lines({"id": "a", "title": "T"}))
    except OSError:
        pytest.skip("this file system takes no such names")
    assert imported(name).report["papers"] == 1


def test_a_file_name_of_two_lines(imported: Callable[..., Ran]) -> None:
    imported("two\nlines.jsonl", "hello").assert_refused("two lines.jsonl is in no format")


# --- sizes ---------------------------------------------------------------------------------------------


def gzip_of(path: Path, start: bytes, piece: bytes, megabytes: int, end: bytes) -> Path:
    """A small file that becomes a large one: `piece` again and again between `start` and `end`."""
    members = [gzip.compress(part) for part in (start, piece * (10 * MB // len(piece)), end)]
    path.write_bytes(members[0] + members[1] * (megabytes // 10) + members[2])
    return path


GOOD = b'{"id": "a", "title": "Good"}\n'
EDGE = b'{"citingcorpusid": 1, "citedcorpusid": 2}\n'
TOO_LONG = "line longer than 64 MiB"


def test_a_line_of_200_megabytes(imported: Callable[..., Ran], tmp_path: Path) -> None:
    gzip_of(tmp_path / "papers.jsonl.gz", GOOD + b'{"id": "b", "title": "', b"x", 200, b'"}\n' + GOOD)
    ran = imported("papers.jsonl.gz")
    assert ran.rejected("papers") == {TOO_LONG: 1, "same paper as another record (merged)": 1}


def test_a_long_line_of_citations(imported: Callable[..., Ran], tmp_path: Path) -> None:
    start = EDGE + b'{"citingcorpusid": 3, "citedcorpusid": 4, "contexts": ["'
    gzip_of(tmp_path / "citations.jsonl.gz", start, b"x", 200, b'"]}\n' + EDGE)
    ran = imported("citations.jsonl.gz", None, "--outside", "keep")
    assert ran.rejected("citations") == {TOO_LONG: 1, "same citation given again (merged)": 1}


def test_a_long_row_of_a_table(imported: Callable[..., Ran], tmp_path: Path) -> None:
    gzip_of(tmp_path / "papers.csv.gz", b"id,title\na,Good\nb,", b"x", 200, b"\nc,Good too\n")
    assert imported("papers.csv.gz").rejected("papers") == {TOO_LONG: 1}


@pytest.mark.parametrize(
    ("name", "start", "piece", "words"),
    [
        ("a.jsonl.gz", b'{"id": "a", "title": "', b"x", "is in no format"),
        ("a.json.gz", b'[{"paperId": null, "title": "', b"x", "is larger than 512 MiB once decompressed"),
        ("a.bib.gz", b"@article{a, title={", b"x ", "is larger than 512 MiB once decompressed"),
        ("a.ris.gz", b"TY  - JOUR\nT1  - ", b"x\n", "is larger than 512 MiB once decompressed"),
        ("a.xml.gz", b"<PubmedArticleSet><PubmedArticle>", b"<a/>", "has a record of more than 2,000,000 elements"),
        ("b.xml.gz", b"<PubmedArticleSet>", b" ", "has a record larger than 64 MiB"),
        ("zeros.gz", b"", b"\0", "is in no format"),
    ],
)
def test_a_gzip_bomb(
    imported: Callable[..., Ran], tmp_path: Path, name: str, start: bytes, piece: bytes, words: str
) -> None:
    path = gzip_of(tmp_path / name, start, piece, 1000, b"")
    assert path.stat().st_size < 20 * MB
    imported(name).assert_refused(f"{name} {words}")


def test_a_bomb_of_zeros_after_a_good_line(imported: Callable[..., Ran], tmp_path: Path) -> None:
    gzip_of(tmp_path / "papers.jsonl.gz", GOOD, b"\0", 1000, b"")
    assert imported("papers.jsonl.gz").rejected("papers") == {TOO_LONG: 1}


# --- nesting -------------------------------------------------------------------------------------------

DEEP = 100_000


@pytest.mark.parametrize("core", ["1", "NaN"])
def test_json_nested_deeply(imported: Callable[..., Ran], core: str) -> None:
    bombs = ['{"id": "b", "title": ' + "[" * DEEP + core + "]" * DEEP + "}", '{"a":' * DEEP + core + "}" * DEEP]
    ran = imported("papers.jsonl", GOOD + "\n".join(bombs).encode())
    assert ran.rejected("papers") == {"nested too deeply": 2}


def test_a_json_document_nested_deeply(imported: Callable[..., Ran]) -> None:
    text = '[\n{"paperId":\n' + "[" * DEEP + "]" * DEEP + "}]"
    imported("a.json", text).assert_refused("a.json is not one JSON document (nested too deeply)")


def test_json_nested_as_deeply_as_is_read(imported: Callable[..., Ran]) -> None:
    """Deeper than facts about a paper can be written, shallower than what is refused."""
    text = '{"id": "b", "title": "T", "good": "kept", "deep": ' + "[" * 500 + "]" * 500 + "}\n"
    assert imported("papers.jsonl", GOOD + text.encode()).report["papers"] == 2


def test_billion_laughs(imported: Callable[..., Ran]) -> None:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    text = f'<?xml version="1.0"?><!DOCTYPE feed [<!ENTITY l0 "lol">{entities}]>'
    text += '<feed xmlns:a="http://arxiv.org/x"><entry><title>&l9;</title></entry></feed>'
    imported("a.xml", text, "--format", "arxiv").assert_refused("a.xml")


def test_an_external_entity_is_not_read(imported: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    text = f'<!DOCTYPE feed [<!ENTITY s SYSTEM "file://{tmp_path}/secret">]><feed xmlns:a="http://arxiv.org/x"><entry>'
    text += "<id>http://arxiv.org/abs/0704.0001</id><title>T&s;</title></entry></feed>"
    ran = imported("a.xml", text)
    assert ran.code == 2 or "secret" not in (ran.output / "papers" / "title.utf8").read_text()


@pytest.mark.parametrize("tag", ["sec", "p", "title", "x", "article", "xref"])
def test_xml_nested_deeply(imported: Callable[..., Ran], tag: str) -> None:
    bomb = f"<{tag}>" * DEEP + "text" + f"</{tag}>" * DEEP
    front = "<front><article-meta><title-group><article-title>T</article-title></title-group></article-meta></front>"
    ran = imported("a.xml", f"<article>{front}<body>{bomb}</body></article>")
    assert (ran.code == 0 and ran.report["papers"] == 1) or ran.assert_refused("a.xml") is None


@pytest.mark.parametrize(
    "value", ["{" * DEEP + "x" + "}" * DEEP, "\\textbf{" * DEEP + "}" * DEEP, '"' * DEEP, "#" * DEEP]
)
def test_bibtex_nested_deeply(imported: Callable[..., Ran], value: str) -> None:
    ran = imported("a.bib", f"@article{{a, title={{Good}}, abstract={{{value}}}}}\n@article{{b, title={{Good too}}}}\n")
    assert ran.report["records"]["papers"]["read"] == 2


def test_a_billion_positions(imported: Callable[..., Ran]) -> None:
    work = {"id": "https://openalex.org/W1", "title": "T", "publication_year": 2000, "referenced_works": []}
    bombs = [{"w": [10**9]}, {"w": list(range(200_000))}, {"w" * 1000: [1] * 90_000}, {"w": [-1]}, {"w": "x"}]
    works = [{**work, "id": f"https://openalex.org/W{n}", "abstract_inverted_index": b} for n, b in enumerate(bombs)]
    ran = imported("works.jsonl", lines(*works), "--same-title", "never")
    assert ran.report["papers"] == 5 and ran.report["abstracts"] == 0
    assert ran.report["notes"] == {"abstract left out: impossible word positions": 5}


# --- records -------------------------------------------------------------------------------------------


def test_ids_citations_and_years(imported: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    papers = [
        {
            "id": "a",
            "title": "First",
            "year": float("nan"),
            "references": ["a", "b", "nowhere", "", None, float("inf")],
        },
        {"id": "b", "title": "Second", "year": float("-inf")},
        {"id": "b", "title": "Second again", "year": 10**30},
        {"id": "", "title": "Nameless"},
        {"id": None, "title": "Nameless"},
        {"id": float("nan"), "title": "Nameless"},
        {"id": "  ", "title": "Nameless"},
        {"id": "c", "title": "", "abstract": None},
        {"id": "d", "title": "Fourth", "year": "NaN", "strange": "\ud800", "large": 10**30, "nan": float("nan")},
    ]
    (folder / "papers.jsonl").write_text(lines(*papers))
    (folder / "citations.tsv").write_text("b\ta\tnan\nb\tb\t1\nnowhere\ta\nnowhere\telse\nb\ta\tinf\nb\t\n")
    ran = imported("in")
    assert ran.report["papers"] == 3 and ran.report["with_year"] == 0
    assert ran.rejected("papers") == {
        "no id": 4,
        "no title and no abstract": 1,
        "same paper as another record (merged)": 1,
    }
    assert ran.report["citations"] == 2
    assert ran.rejected("citations") == {
        "no cited paper": 4,
        "paper cites itself": 2,
        "cited paper not in the corpus": 1,
        "citing paper not in the corpus": 1,
        "citing and cited paper not in the corpus": 1,
        "same citation given again (merged)": 1,
    }


def test_nothing_but_rejections_is_an_error(imported: Callable[..., Ran]) -> None:
    imported("p.jsonl", lines({"id": "", "title": "T"})).assert_refused("nothing to write", "1 papers: no id")


def test_nothing_but_names_of_papers_is_an_error(imported: Callable[..., Ran]) -> None:
    ran = imported("ids.jsonl", lines({"corpusid": 1, "sha": "a" * 40, "primary": True}))
    ran.assert_refused("nothing to write", "1 papers: known only as a reference")


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


@pytest.mark.parametrize("name", ["photo.jpg", "page.html"])
def test_a_file_of_no_known_format(imported: Callable[..., Ran], name: str) -> None:
    imported(name, FOREIGN[name]).assert_refused(f"{name} is in no format that citeweave knows")


def test_a_folder_with_files_of_no_known_format(imported: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in {**FOREIGN, "papers.jsonl": PAPERS.encode()}.items():
        (folder / name).write_bytes(content)
    report = imported("in").report
    assert report["papers"] == 500 and report["skipped_files"] == dict.fromkeys(FOREIGN, "no known format")


def test_a_damaged_parquet_file_of_a_folder_is_not_skipped(imported: Callable[..., Ran], tmp_path: Path) -> None:
    """It may be the shard of citations that broke on its way."""
    whole = _parquet({"citing": list(range(99)), "cited": list(range(1, 100))})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "papers.jsonl").write_text(PAPERS)
    for content in (whole[: len(whole) // 2], b"PAR1" + bytes(range(256)) * 4 + b"PAR1"):
        (tmp_path / "in" / "edges.parquet").write_bytes(content)
        imported("in").assert_refused("edges.parquet is damaged")


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("a.jsonl", PAPERS.encode(), "bibtex"),
        ("a.jsonl", PAPERS.encode(), "pubmed"),
        ("a.bib", b"@article{a, title={T}}", "openalex"),
        ("a.bib", b"@article{a, title={T}}", "plain"),
        ("a.bib", b"@article{a, title={T}}", "specter"),
        ("a.xml", b"<feed><entry/></feed>", "acl_anthology"),
        ("photo.jpg", FOREIGN["photo.jpg"], "crossref"),
    ],
)
def test_a_file_that_is_another_format(imported: Callable[..., Ran], name: str, content: bytes, format: str) -> None:
    imported(name, content, "--format", format).assert_refused(name)


@pytest.mark.parametrize("content", [b"", b" \n\n", gzip.compress(b"", mtime=0)], ids=["nothing", "blanks", "gzip"])
@pytest.mark.parametrize("options", [(), ("--format", "bibtex")])
def test_an_empty_file(imported: Callable[..., Ran], content: bytes, options: tuple[str, ...]) -> None:
    imported("empty.jsonl", content, *options).assert_refused("empty.jsonl is empty")


def test_an_empty_folder(imported: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    imported("in").assert_refused("in: no file of a known format found")


# --- places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--format", "plain")])
def test_pipes_devices_and_links_that_lead_nowhere(
    imported: Callable[..., Ran], tmp_path: Path, options: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "circle.jsonl").symlink_to(tmp_path / "circle.jsonl")
    imported("pipe.jsonl", None, *options).assert_refused("pipe.jsonl is a pipe or a device")
    imported(Path("/dev/zero"), None, *options).assert_refused("/dev/zero is a pipe or a device")
    if not options:
        imported("nowhere.jsonl").assert_refused("nowhere.jsonl does not exist")
        imported("circle.jsonl").assert_refused("circle.jsonl cannot be read")
        imported("x" * 300).assert_refused("cannot be read")


def test_a_folder_with_such_things_in_it(imported: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (folder / "round").symlink_to(folder)
    (folder / "papers.jsonl").write_text(PAPERS)
    (folder / "empty.jsonl").touch()
    report = imported("in").report
    assert report["papers"] == 500
    assert report["skipped_files"].keys() >= {"pipe.jsonl", "nowhere.jsonl", "empty.jsonl"}


def test_a_folder_where_the_output_cannot_be(imported: Callable[..., Ran], tmp_path: Path) -> None:
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
    who = {"is_nobody": os.geteuid() == 0}
    locked, folder, output = open_folder / "locked.jsonl", open_folder / "folder", open_folder / "corpus"
    (folder / "inner").mkdir(parents=True)
    for path in (locked, folder / "papers.jsonl", folder / "inner" / "papers.jsonl"):
        path.write_text(PAPERS)
    locked.chmod(0)
    for options in ((), ("--format", "plain")):
        run_import(output, locked, *options, **who).assert_refused("locked.jsonl cannot be opened: Permission")
        folder.chmod(0)
        run_import(output, folder, *options, **who).assert_refused("folder cannot be read: Permission")
        run_import(output, folder / "papers.jsonl", *options, **who).assert_refused("cannot be read: Permission")
        folder.chmod(0o444)  # names can be listed, files cannot be reached
        run_import(output, folder, *options, **who).assert_refused("cannot be read: Permission")
        folder.chmod(0o755)
        (folder / "inner").chmod(0)
        run_import(output, folder, *options, **who).assert_refused("inner cannot be read: Permission")
        (folder / "inner").chmod(0o755)
