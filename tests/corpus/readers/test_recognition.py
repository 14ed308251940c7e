"""A format is recognized however long the first record is, and a file that is not recognized is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from citeweave import ImportOptions, import_papers
from citeweave.cli import main
from citeweave.core.errors import InputError
from citeweave.core.inputs import Source, parse_json
from citeweave.core.progress import Tally
from citeweave.corpus.input_files import find_inputs
from citeweave.corpus.readers import FORMATS, guess_format, plain, s2ag

SEEDS = sorted(path for path in (Path(__file__).parent / "seeds").iterdir() if path.suffix in (".json", ".jsonl"))
PAD = ["a long value"] * 20_000
LAYOUTS = ("line", "list", "indented", "indented list")


def padded(value: Any) -> Any:
    """The first object with a value of 300 kB behind its first key, or behind that of the first object inside."""
    if isinstance(value, list):
        return [padded(value[0]), *value[1:]]
    first = next(iter(value))
    inner = value[first]
    if isinstance(inner, dict) and inner:
        return {**value, first: padded(inner)}
    return {first: inner, "zz": PAD, **value}


def laid_out(value: Any, layout: str) -> str:
    value = [value] if layout.endswith("list") and not isinstance(value, list) else value
    return json.dumps(value, indent=2 if layout.startswith("indented") else None) + "\n"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_the_length_of_the_first_record_does_not_matter(seed: Path, layout: str, tmp_path: Path) -> None:
    value = parse_json(seed.read_bytes() if seed.suffix == ".json" else seed.read_bytes().split(b"\n")[0])
    short, long = (tmp_path / f"{name}.json" for name in ("short", "long"))
    short.write_text(laid_out(value, layout))
    long.write_text(laid_out(padded(value), layout))
    assert long.stat().st_size > 2**17
    assert guess_format(Source(long)) == guess_format(Source(short))
    if layout == "line" and seed.suffix == ".jsonl":
        assert guess_format(Source(short)) == seed.name.split(".")[0]


def paper(number: int, authors: int = 1) -> dict[str, object]:
    names = [{"authorId": str(at), "name": f"Somebody Long {at}"} for at in range(authors)]
    return {"corpusid": number, "authors": names, "title": f"Paper {number}", "year": 2020}


def write(path: Path, records: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_paper_of_1500_authors_does_not_hide_its_file(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", [paper(number) for number in range(1, 6)])
    write(tmp_path / "in" / "b.jsonl", [paper(6, authors=1500), *map(paper, range(7, 12))])
    imported = import_papers(tmp_path / "in", tmp_path / "corpus")
    assert len(imported.corpus) == 11 and not imported.inputs.left_aside
    named = import_papers(tmp_path / "in" / "b.jsonl", tmp_path / "plain", ImportOptions(format="plain"))
    assert len(named.corpus) == 6


def test_a_first_line_that_is_too_long_to_read_costs_that_line_only(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("citeweave.core.inputs.MAX_LINE", 2**17)
    write(tmp_path / "in" / "a.jsonl", [paper(1, authors=4000), paper(2)])
    assert guess_format(Source(tmp_path / "in" / "a.jsonl")) == "s2ag"
    tally = Tally()
    assert [one.id for one in s2ag.read(Source(tmp_path / "in" / "a.jsonl"), tally)] == ["s2:2"]
    assert tally.counts["papers"].rejected == {"line longer than 64 MiB": 1}


def test_blank_lines_at_the_top_do_not_make_a_file_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n" * 100_000 + b'{"id": "a", "title": "One"}\n')
    assert guess_format(Source(tmp_path / "a.jsonl")) == "plain"
    assert [one.id for one in plain.read(Source(tmp_path / "a.jsonl"), Tally())] == ["a"]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of which two files are not read, both of one name."""
    write(tmp_path / "in" / "papers.jsonl", [paper(1)])
    (tmp_path / "in" / "notes.txt").write_text("remember the milk\n")
    (tmp_path / "in" / "old").mkdir()
    (tmp_path / "in" / "old" / "notes.txt").write_text("and the bread\n")
    return tmp_path / "in"


def test_files_left_aside_and_their_bytes_are_in_the_manifest(mixed: Path, tmp_path: Path) -> None:
    facts = import_papers(mixed, tmp_path / "corpus").corpus.manifest.facts
    size = (mixed / "papers.jsonl").stat().st_size
    assert facts["files"] == {"read": 1, "bytes_read": size, "left_aside": 2, "bytes_not_read": 32}
    assert facts["skipped_files"] == {"notes.txt": "no known format", "old/notes.txt": "no known format"}


def run(command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code


def test_json_shows_them_under_quiet_and_where_nothing_was_done(mixed: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["import", str(mixed), "-o", str(tmp_path / "corpus"), "--quiet", "--json"]
    run(command)
    assert json.loads(capsys.readouterr().out)["files"]["bytes_not_read"] == 32
    (mixed / "more.txt").write_text("not known before\n")
    run(command)
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] and report["files"]["bytes_not_read"] == 49 and "more.txt" in report["skipped_files"]


def test_strict_refuses_before_any_work(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2 files \(32 bytes\) would not be read .*notes.txt: no known format"):
        import_papers(mixed, tmp_path / "corpus", ImportOptions(strict=True))
    assert not (tmp_path / "corpus").exists() and not list(tmp_path.glob("corpus*"))
    (mixed / "notes.txt").unlink()
    (mixed / "old" / "notes.txt").unlink()
    (mixed / "references.jsonl").write_text('{"citing": "s2:1", "cited": ["s2:2"]}\n')  # --outside drop asks for this
    assert len(import_papers(mixed, tmp_path / "corpus", ImportOptions(strict=True)).corpus) == 1


def test_files_to_delete_are_counted_too(mixed: Path, tmp_path: Path) -> None:
    base = import_papers(mixed / "papers.jsonl", tmp_path / "base").corpus.folder
    write(tmp_path / "more.jsonl", [paper(2)])
    updated = import_papers(tmp_path / "more.jsonl", tmp_path / "next", update=base, delete=[mixed])
    assert updated.corpus.manifest.facts["files"]["bytes_not_read"] == 32


def test_utf_16_with_its_mark_is_guessed_where_it_can_be_read(tmp_path: Path) -> None:
    texts = {
        "ris": "TY  - JOUR\nTI  - A title\nER  - \n",
        "bibtex": "@article{a, title = {A title}}\n",
    }
    for name, text in texts.items():
        for encoding in ("utf-16", "utf-16-be"):
            mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
            path = tmp_path / f"{name}-{encoding}.txt"
            path.write_bytes(mark + text.encode(encoding))
            assert guess_format(Source(path)) == name
            assert list(import_papers(path, tmp_path / path.stem).corpus.titles) == ["A title"]


def test_long_records_are_recognized_inside_compressed_files(tmp_path: Path) -> None:
    lines = json.dumps(paper(6, authors=5000)) + "\n" + json.dumps(paper(7)) + "\n"
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (found,) = find_inputs([tmp_path], None, keep_outside=False).files
    assert found.format == "s2ag" in FORMATS
