"""Reading is linear in the size of a file: four times the file, four times the work. Work is counted, not timed.

Counted are the calls that reading makes, of Python and of C, and the characters that pass through `clean_text`.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus import plain_text
from citeweave.corpus.paper import Context
from citeweave.corpus.readers import bibtex, jats, plain, ris, s2orc, xml_records

SMALL = 20_000
TITLE = "<title-group><article-title>T</article-title></title-group>"
HEAD = f"<article><front><article-meta>{TITLE}</article-meta></front>"
REFERENCES = '<ref-list><ref id="r1"><mixed-citation>x 10.1000/x</mixed-citation></ref></ref-list>'


CITING = "<p>" * 90 + 'It is so <xref ref-type="bibr" rid="r1">1</xref>. And so. ' + "</p>" * 90
VOLUME = "@inproceedings{{a{0}, title={{T {0}}}, crossref={{v{0}}}}}\n@proceedings{{v{0}, title={{P}}, year=2000}}\n"


def jats_text(body: str) -> str:
    return f"{HEAD}<body>{body}</body><back>{REFERENCES}</back></article>"


def full_text(text: str, every: int, **more: object) -> str:
    marks = [{"start": at, "end": at + 1, "attributes": {"ref_id": "b0"}} for at in range(0, len(text), every)]
    entry = [{"start": 0, "end": 5, "attributes": {"id": "b0", "matched_paper_id": 5}}]
    annotations = {"bibref": marks, "bibentry": entry, **more}
    content = {"text": text, "annotations": {name: json.dumps(spans) for name, spans in annotations.items()}}
    return json.dumps({"corpusid": 1, "title": "T", "content": content}) + "\n"


def one_paragraph(text: str) -> str:
    return full_text(text, 40, paragraph=[{"start": 0, "end": len(text)}])


def chain(size: int) -> str:
    return "".join(f"@proceedings{{v{n}, title={{P}}, crossref={{v{n + 1}}}}}\n" for n in range(size // 45))


SHAPES: dict[str, tuple[ModuleType, Callable[[int], str]]] = {
    "nested paragraphs": (jats, lambda size: jats_text("<p>a " * (size // 9) + "</p>" * (size // 9))),
    "nested paragraphs that cite": (jats, lambda size: jats_text(CITING * (size // len(CITING)))),
    "empty lines": (s2orc, lambda size: one_paragraph("\n\n" * (size // 5))),
    "short lines": (s2orc, lambda size: one_paragraph("a\n\n" * (size // 6))),
    "children of volumes": (bibtex, lambda size: "".join(VOLUME.format(number) for number in range(size // 90))),
    "a chain of volumes": (bibtex, chain),
    "entries without an end": (bibtex, lambda size: "crossref " + "@a{v, crossref={v} " * (size // 19)),
    "quotes never closed": (plain, lambda size: "id,title\n" + 'a,"b\n' * (size // 5)),
}


def work_of(reader: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Calls and cleaned characters of reading a file."""
    calls = characters = 0
    clean = plain_text.clean_text

    def counted(value: object) -> str:
        nonlocal characters
        characters += len(value) if isinstance(value, str) else 0
        return clean(value)

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with monkeypatch.context() as patched:
        for module in (plain_text, reader, xml_records):
            if hasattr(module, "clean_text"):
                patched.setattr(module, "clean_text", counted)
        sys.setprofile(count)
        try:
            for _ in reader.read(Source(path), Tally()):
                pass
        finally:
            sys.setprofile(None)
    return calls, characters


@pytest.mark.parametrize("name", SHAPES)
def test_four_times_the_file_is_four_times_the_work(name, tmp_path, monkeypatch):
    reader, make = SHAPES[name]
    work = []
    for size in (SMALL, 4 * SMALL):
        (tmp_path / "file").write_text(make(size))
        work_of(reader, tmp_path / "file", monkeypatch)  # the first time imports and compiles
        work.append(work_of(reader, tmp_path / "file", monkeypatch))
    (calls, characters), (more_calls, more_characters) = work
    assert calls > SMALL / 100, "the shape is read at all"
    assert more_calls <= 4.4 * calls + 1000 and more_characters <= 4.4 * characters + 1000


def test_lines_that_cite_nothing_cost_no_objects(tmp_path, monkeypatch):
    """An object for every line made the collector of garbage look at all of them again and again."""
    made = 0

    class Counted(s2orc._Span):
        def __init__(self, *arguments):
            nonlocal made
            made += 1
            super().__init__(*arguments)

    monkeypatch.setattr(s2orc, "_Span", Counted)
    (tmp_path / "file").write_text(full_text("a\n\n" * 10_000, 3000))
    contexts = [one for one in s2orc.read(Source(tmp_path / "file"), Tally()) if isinstance(one, Context)]
    assert len(contexts) == 10 and made < 100


BIBTEX = ["{", "@", "@a{", "@a{x,", ",", "%", "}", "a=", "#", "\\", "@comment(", "\n@a{", '"', "@string{a=a#a}\n", " "]
BIBTEX += ["and "]
RIS = ["\n", "\r", "TY  - J\n", "AU  - A, B\n", "x\n", " ", ",", "TI  - T\n", "ER  -\n", "TY  - J"]
BIBTEX_OPENINGS = ["@article{k, author = ", "@article{k, title = {T}, author = {", ""]
OPENINGS = {bibtex: BIBTEX_OPENINGS, ris: ["TY  - JOUR\nTI  - T\n"]}


@pytest.mark.parametrize(("reader", "unit"), [*((bibtex, unit) for unit in BIBTEX), *((ris, unit) for unit in RIS)])
def test_one_piece_repeated_takes_no_quadratic_time(reader, unit, tmp_path):
    for opening in OPENINGS[reader]:
        (tmp_path / "file").write_text(opening + unit * (500_000 // len(unit)))
        begin = time.process_time()
        with contextlib.suppress(InputError):
            list(reader.read(Source(tmp_path / "file"), Tally()))
        assert time.process_time() - begin < 10  # takes about a second; quadratic behavior takes minutes
