"""Which files are read: formats are guessed however a file is packed, and files that are left out are counted."""

import gzip
import json
from pathlib import Path

import pytest

from citeweave import ImportOptions, import_papers
from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.corpus.input_files import find_inputs
from citeweave.corpus.readers import guess_format


def write(path: Path, *numbers: int, authors: int = 1) -> Path:
    """Papers of Semantic Scholar, the first one with many authors."""
    names = [{"authorId": str(at), "name": f"Somebody Long {at}"} for at in range(authors)]
    records = [{"corpusid": n, "authors": names if n == numbers[0] else [], "title": f"Paper {n}"} for n in numbers]
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_a_paper_of_many_authors_does_not_hide_its_file(tmp_path):
    write(tmp_path / "in/a.jsonl", *range(1, 6))
    long = write(tmp_path / "in/b.jsonl", *range(6, 12), authors=1500)
    imported = import_papers(tmp_path / "in", tmp_path / "corpus")
    assert len(imported.corpus) == 11 and not imported.inputs.left_aside
    assert len(import_papers(long, tmp_path / "plain", ImportOptions(format="plain")).corpus) == 6
    packed = write(tmp_path / "packed/b.jsonl.gz", 6, 7, authors=5000)
    (found,) = find_inputs([packed.parent], None, keep_outside=False).files
    assert found.format == "s2ag"


ENTRIES = {"ris": "TY  - JOUR\nTI  - A title\nER  - \n", "bibtex": "@article{a, title = {A title}}\n"}


@pytest.mark.parametrize(("encoding", "mark"), [("utf-16", b""), ("utf-16-be", b"\xfe\xff")])
@pytest.mark.parametrize("name", ENTRIES)
def test_utf_16_with_its_mark_is_read(tmp_path, name, encoding, mark):
    (tmp_path / "in.txt").write_bytes(mark + ENTRIES[name].encode(encoding))
    assert guess_format(Source(tmp_path / "in.txt")) == name
    assert list(import_papers(tmp_path / "in.txt", tmp_path / "corpus").corpus.titles) == ["A title"]


@pytest.fixture
def mixed(tmp_path):
    """A folder of which two files are not read, both of one name."""
    write(tmp_path / "in/papers.jsonl", 1)
    (tmp_path / "in/notes.txt").write_text("remember the milk\n")
    (tmp_path / "in/old").mkdir()
    (tmp_path / "in/old/notes.txt").write_text("and the bread\n")
    return tmp_path / "in"


def test_files_left_out_and_their_bytes_are_in_the_manifest(mixed, tmp_path):
    facts = import_papers(mixed, tmp_path / "corpus").corpus.manifest.facts
    size = (mixed / "papers.jsonl").stat().st_size
    assert facts["files"] == {"read": 1, "bytes_read": size, "left_aside": 2, "bytes_not_read": 32}
    assert facts["skipped_files"] == {"notes.txt": "no known format", "old/notes.txt": "no known format"}
    base = import_papers(mixed / "papers.jsonl", tmp_path / "base").corpus.folder
    more = write(tmp_path / "more.jsonl", 2)
    updated = import_papers(more, tmp_path / "next", update=base, delete=[mixed])  # files to delete are counted too
    assert updated.corpus.manifest.facts["files"]["bytes_not_read"] == 32


def test_json_output_has_them_under_quiet_and_where_nothing_was_done(mixed, tmp_path, cli):
    command = "import --quiet", mixed, "-o", tmp_path / "corpus"
    assert cli.json(*command)["files"]["bytes_not_read"] == 32
    (mixed / "more.txt").write_text("not known before\n")
    again = cli.json(*command)
    assert again["skipped"] and again["files"]["bytes_not_read"] == 49 and "more.txt" in again["skipped_files"]


def test_strict_refuses_before_any_work(mixed, tmp_path):
    with pytest.raises(InputError, match=r"2 files \(32 bytes\) would not be read .*notes.txt: no known format"):
        import_papers(mixed, tmp_path / "corpus", ImportOptions(strict=True))
    assert not list(tmp_path.glob("corpus*"))
    (mixed / "notes.txt").unlink()
    (mixed / "old/notes.txt").unlink()
    (mixed / "references.jsonl").write_text('{"citing": "s2:1", "cited": ["s2:2"]}\n')  # --outside drop asks for this
    assert len(import_papers(mixed, tmp_path / "corpus", ImportOptions(strict=True)).corpus) == 1
