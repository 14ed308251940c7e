"""What holds for every reader: it recognizes its own files, and whatever a file holds, it yields clean records, counts
rejections, or raises `InputError`: nothing else.

Files are random bytes, text made of the words that a reader looks for, and valid files with damage. Their records are
counted twice, by the reader's own account and by the rows of the corpus.
"""

import ast
import functools
import inspect
import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave import Corpus, ImportOptions, import_papers
from citeweave.core.errors import InputError, UserError
from citeweave.core.inputs import FileHead, Source, parse_json
from citeweave.core.progress import RECORD_KINDS, Tally
from citeweave.corpus import paper as records
from citeweave.corpus.paper import Citation, CitationBlock, Context, ContextBlock, Paper
from citeweave.corpus.readers import FORMATS, guess_format, reader_of

SEED_FILES = sorted((Path(__file__).parent / "seeds").iterdir())
SEEDS = {format: [path.read_bytes() for path in SEED_FILES if path.name.startswith(f"{format}.")] for format in FORMATS}
"""Small valid files of every format, invented and written by hand."""

XML = ("arxiv", "pubmed", "jats", "grobid_tei", "acl_anthology")
TAGGED = ("pubmed", "ris", "bibtex", "edges", "plain")
JSON = ("s2_graph_api", "openalex", "crossref", "csl_json", "unarxive", "s2orc", "s2orc_2020", "specter", "scirepeval")
every_format = pytest.mark.parametrize("format", FORMATS)


def often(examples: int) -> settings:
    calm = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=examples, suppress_health_check=calm)


# --- recognizing a format ---

PAPER = '{"id": "a", "title": "One"}\n'
HEADS = [
    ("bibtex", "x.txt", b"% note\n\n  @Article{key,\n title={T}}", True),
    ("bibtex", "x.BIB", b"", True),
    ("bibtex", "x.java", b'@SuppressWarnings("x") class A {}', False),
    ("bibtex", "x.json", b'{"bibtex": "@article{a, title={T}}"}', False),
    ("bibtex", "x.txt", b"", False),
    ("ris", "x", b"\r\n1.\r\nTY  - JOUR\r\nTI  - T\r\nER  - \r\n", True),
    ("ris", "x", b"FN Clarivate\nVR 1.0\nPT J\n", True),
    ("ris", "x", b"PT J\nAU A\n", True),
    ("ris", "x", b"\nPMID- 123\nOWN - NLM\nPT  - Journal Article\nTI  - T\n", False),
    ("ris", "x", b'{"ris": "\\nTY  - JOUR"}', False),
    ("ris", "x", b"", False),
    ("jats", "x", b"<article><title>DocBook</title></article>", False),
    ("arxiv", "x", b'<feed xmlns="http://www.w3.org/2005/Atom"><title>blog</title></feed>', False),
    ("arxiv", "x", b'{"id": 1, "abstract": "x"}', False),
    ("pubmed", "x", b"\n\nPMID- 12230038\nOWN - NLM", True),
    ("pubmed", "x", b"<article><front>", False),
    ("pubmed", "x", b"TY  - JOUR\nTI  - PMID- 12", False),
    ("grobid_tei", "x", b"<feed><entry/></feed>", False),
    ("acl_anthology", "x", b"<collection><record/></collection>", False),
    ("specter", "x.json", b'{"title": "T", "abstract": "A"}', False),
]


@pytest.mark.parametrize(("format", "name", "data", "expected"), HEADS)
def test_a_head_is_recognized_by_its_reader_alone(format, name, data, expected):
    assert reader_of(format).recognizes(FileHead(name, data)) is expected


def test_every_format_has_a_seed():
    assert [f"seeds/{name}.1.*" for name, seeds in SEEDS.items() if not seeds] == []


@pytest.mark.parametrize("path", SEED_FILES, ids=lambda path: path.name)
def test_seeds_are_recognized_and_valid(path):
    format = path.name.split(".")[0]
    # the others are a table for the plain reader and a page without a work's keys
    assert path.name in ("edges.1.tsv", "openalex.2.json") or reader_of(format).recognizes(Source(path).head())
    counts = read_well(format, path)
    assert counts and sum(counts.values()) > 0


def padded(value: Any) -> Any:
    """The first object with a value of 300 kB behind its first key, or behind that of the first object inside."""
    if isinstance(value, list):
        return [padded(value[0]), *value[1:]]
    first = next(iter(value))
    inner = value[first]
    if isinstance(inner, dict) and inner:
        return {**value, first: padded(inner)}
    return {first: inner, "zz": ["a long value"] * 20_000, **value}


def laid_out(value: Any, layout: str) -> str:
    value = [value] if layout.endswith("list") and not isinstance(value, list) else value
    return json.dumps(value, indent=2 if layout.startswith("indented") else None) + "\n"


@pytest.mark.parametrize("layout", ["line", "list", "indented", "indented list"])
@pytest.mark.parametrize("seed", [path for path in SEED_FILES if ".json" in path.name], ids=lambda path: path.name)
def test_the_length_of_the_first_record_does_not_matter(seed, layout, tmp_path):
    value = parse_json(seed.read_bytes() if seed.suffix == ".json" else seed.read_bytes().split(b"\n")[0])
    short, long = (tmp_path / f"{name}.json" for name in ("short", "long"))
    short.write_text(laid_out(value, layout))
    long.write_text(laid_out(padded(value), layout))
    assert long.stat().st_size > 2**17
    assert guess_format(Source(long)) == guess_format(Source(short))
    if layout == "line" and seed.suffix == ".jsonl":
        assert guess_format(Source(short)) == seed.name.split(".")[0]


def test_a_first_line_that_is_too_long_to_read_costs_that_line_only(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr("citeweave.core.inputs.MAX_LINE", 2**17)
    authors = [{"authorId": str(number), "name": f"Somebody Long {number}"} for number in range(4000)]
    found = read_all("s2ag", [{"corpusid": n, "authors": authors[n:], "title": "T"} for n in (1, 3999)])
    assert guess_format(Source(tmp_path / "file")) == "s2ag"
    assert [paper.id for paper in found.papers] == ["s2:3999"]
    assert found.rejected("papers") == {"line longer than 64 MiB": 1}


def test_blank_lines_at_the_top_do_not_make_a_file_empty(tmp_path, read_all):
    assert [one.id for one in read_all("plain", "\n" * 100_000 + PAPER).papers] == ["a"]
    assert guess_format(Source(tmp_path / "file")) == "plain"


# --- files ---

TEXTS = st.one_of(
    st.text(max_size=12),
    st.text("\x00\x01\t\n\x0b\x1c\x1f\x7f\x80\x85\x9b\xa0\u2028\ufeff\ud800\udfff\U0001f600 a", max_size=6),
    st.sampled_from([*["10.1000/x", "W1", "1706.03762", "2018", "NaN", "[]"], "", " ", "a" * 40, "9" * 40, "See [1]."]),
    st.just("10.1000/\x85y"),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 30), st.integers(), st.floats(), TEXTS)


@functools.cache
def words_of(format: str) -> list[str]:
    """Keys, tags and other short words that stand as literals in a reader: what it looks for in a file."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(reader_of(format).read)))
    literals = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [text.decode(errors="ignore") if isinstance(text, bytes) else text for text in literals]
    found = {word for text in texts if isinstance(text, str) for word in re.findall(r"[\w-]+", text[:60])}
    return sorted(word for word in found if 1 < len(word) < 40) + re.findall(r"[\w-]+", SEEDS[format][0].decode())


def json_texts(words: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=4) | st.dictionaries(words | TEXTS, inner, max_size=8)

    values = st.recursive(SCALARS, around, max_leaves=20)
    written = st.builds(lambda value, ascii: json.dumps(value, ensure_ascii=ascii), values, st.booleans())
    lines = st.lists(written, max_size=4).map("\n".join)
    return (lines | written).map(lambda text: text.encode("utf-8", "surrogatepass"))


def xml_texts(words: st.SearchStrategy[str], roots: list[str]) -> st.SearchStrategy[bytes]:
    names = words.map(lambda word: re.sub(r"^[^A-Za-z]+", "x", word))
    inner = TEXTS.map(escape) | st.sampled_from(["&alpha;", "&#1;", "&#x85;", "<![CDATA[x]]>", "<!-- x -->", "<b>"])
    attributes = st.dictionaries(names, TEXTS.map(quoteattr), max_size=2)

    def element(name: str, attributes: dict[str, str], children: list[str]) -> str:
        return f"<{name}{''.join(f' {key}={value}' for key, value in attributes.items())}>{''.join(children)}</{name}>"

    def around(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(element, names, attributes, st.lists(below, max_size=6))

    tree = st.recursive(inner, around, max_leaves=25)
    documents = st.builds(element, st.sampled_from(roots), attributes, st.lists(tree, max_size=6))
    return documents.map(lambda text: text.encode("utf-8", "surrogatepass"))


def tagged_texts(words: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Pieces of BibTeX, RIS, Web of Science, MEDLINE and tables in any order."""
    signs = "@article{|@string(|@comment|@|{|}|(|)|\"|#| = |,|=|%| and |\n|\r|\t|  - |- |   |\\|\\'|\\char|$|~|\0|"
    signs += "crossref = |title = {|\nTY  - JOUR\n|\nER  - \n|\nPT J\n|\nER\n|\nEF\n|\nPMID- 7\n|\nTI  - |\nT1  - |"
    signs += "\nAU  - |\nTI |\nCR |DOI |10.1000/x|id,title\n|citing\tcited\n"
    pieces = st.lists(st.sampled_from(signs.split("|")) | words | TEXTS, max_size=40)
    return pieces.map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))


@functools.cache
def own_words(format: str) -> st.SearchStrategy[bytes]:
    words = st.sampled_from(words_of(format))
    if format in XML:
        roots = re.findall(r"<(\w[\w-]*)", SEEDS[format][-1 if format == "arxiv" else 0].decode())[:1]
        return xml_texts(words, roots) | (tagged_texts(words) if format == "pubmed" else json_texts(words))
    return tagged_texts(words) | json_texts(words) if format in TAGGED else json_texts(words)


POISON = [*b'null NaN -1 1e999 true [] {} "" "\\ud800" "\\u0000" Infinity'.split(), b"9" * 30]
RAW_POISON = [*b'\xff \xc2\x85 \xc2\x9b \xef\xbb\xbf &#1; &x; { " <'.split(b" "), b"", b"\0", b"\n", b"\t"]
_VALUE = re.compile(rb'(?<=": )(?:"[^"]*"|\d+|null|true)|(?<=>)[^<>\n]+(?=<)|(?<== )\{[^{}]*\}|(?<=  - )[^\n]+')


@st.composite
def damaged(draw: st.DrawFn, format: str) -> bytes:
    """A valid file with one to four faults."""
    data = draw(st.sampled_from(SEEDS[format]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 60)))
        match draw(st.sampled_from(["cut", "flip", "repeat", "delete", "put", "value", "value"])):
            case "cut":
                data = data[:start]
            case "flip":
                flipped = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[start : start + 1])
                data = data[:start] + flipped + data[start + 1 :]
            case "repeat":
                data = data[:end] + data[start:end] + data[end:]
            case "delete":
                data = data[:start] + data[end:]
            case "put":
                data = data[:start] + draw(st.sampled_from(RAW_POISON + POISON) | st.binary(max_size=4)) + data[start:]
            case "value":
                if places := list(_VALUE.finditer(data)):
                    place = draw(st.sampled_from(places))
                    data = data[: place.start()] + draw(st.sampled_from(POISON + RAW_POISON)) + data[place.end() :]
    return data


# --- what must hold ---

_NOT_CLEAN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def assert_clean(*texts: str) -> None:
    for text in texts:
        assert type(text) is str and not _NOT_CLEAN.search(text), repr(text)


def assert_well_made(record: records.StagedRecord) -> None:
    match record:
        case Paper():
            assert record.id and all(record.ids) and all(record.authors) and all(record.fields)
            assert_clean(record.id, record.title, record.abstract, record.venue)
            assert_clean(*record.authors, *record.fields, *record.ids)
            assert record.year is None or (type(record.year) is int and 1000 <= record.year <= 2100)
            assert record.citation_count is None or 0 <= record.citation_count < 2**31
            assert 0 <= record.updated < 2**31
        case Citation():
            assert record.citing and record.cited
            assert_clean(record.citing, record.cited)
            assert 0 <= record.strength < 1e10 and 0 <= record.intents < 256
        case Context():
            assert record.text and all(record.cited)
            assert_clean(record.citing, record.text, record.section, *record.cited)
        case CitationBlock():
            citing, cited = record.ids()
            assert all(citing) and all(cited)
            columns = (record.citing, record.cited, record.intents, record.strength, record.influential, citing, cited)
            assert len({len(column) for column in columns}) == 1
        case records.NumberedCitations():
            assert len(record.citing) == len(record.cited) and min(record.citing.min(), record.cited.min()) >= 0
            for known in (record.intents, record.strength, record.influential):
                assert known is None or len(known) == len(record.citing)
        case records.NumberedPapers():
            assert record.years is None or len(record.years) == len(record.numbers)
        case ContextBlock():
            lengths, data = record.texts
            assert len(data) == lengths.sum()
            ends = zip(np.cumsum(lengths), lengths, strict=True)
            assert_clean(*(bytes(data[end - length : end]).decode() for end, length in ends))
            assert len(lengths) == len(record.citing) == len(record.intents) == len(record.cited_counts)
        case _:
            raise AssertionError(f"a reader yielded {record!r}")


@contextmanager
def a_file(data: bytes) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="citeweave-"))
    try:
        path = folder / "input file"
        path.write_bytes(data)
        yield path
    finally:
        shutil.rmtree(folder)


def read_well(format: str, path: Path) -> dict[str, int] | None:
    """How many records of each kind the reader accounts for; None where it refuses the file."""
    reader, tally, source = reader_of(format), Tally(), Source(path)
    try:
        reader.recognizes(source.head())
        for record in reader.read(source, tally):
            assert_well_made(record)
            if format in JSON and isinstance(record, Paper | Context):  # plain tables pass on what their authors wrote
                json.dumps(record.extra, allow_nan=False, ensure_ascii=False).encode()
            match record:
                case Paper() | records.NumberedPapers():
                    assert isinstance(record, records.NumberedPapers) or record.title or format != "bibtex"
                    tally.keep("papers", 1 if isinstance(record, Paper) else len(record.numbers))
                case Citation() | CitationBlock() | records.NumberedCitations():
                    tally.keep("citations", 1 if isinstance(record, Citation) else len(record.citing))
                case Context() | ContextBlock():
                    tally.keep("contexts", 1 if isinstance(record, Context) else len(record.citing))
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None
    return {kind: tally.counts[kind].read for kind in RECORD_KINDS}


def assert_accounted(corpus: Corpus, read: dict[str, int], outside: str) -> None:
    rows = {"papers": len(corpus), "citations": len(corpus.citing), "contexts": len(corpus.contexts)}
    for kind, count in corpus.manifest.facts["records"].items():
        assert count["read"] == count["kept"] + sum(count["rejected"].values()), kind
        assert count["kept"] == rows[kind], kind
        assert all(number > 0 for number in count["rejected"].values()), kind
        assert count["read"] == read[kind] or (kind == "papers" and outside == "keep"), kind
    papers = [corpus.paper(row) for row in range(len(corpus))]
    assert len({paper.id for paper in papers}) == len(papers)
    for record in [*papers, *(corpus.context(row) for row in range(len(corpus.contexts)))]:
        assert_well_made(record)


# --- every reader, any file ---


@every_format
@given(data=st.data())
@often(180)
def test_any_bytes_its_own_words_and_damaged_files_are_read_or_refused(format, data):
    starts = st.sampled_from([b"", b"", *(seed[:60] for seed in SEEDS[format])])
    words = st.binary(max_size=300) | own_words(format) | own_words(format)
    with a_file(data.draw(st.builds(bytes.__add__, starts, words) | damaged(format))) as path:
        read_well(format, path)


@every_format
@given(data=st.data())
@often(5)
def test_the_corpus_accounts_for_every_record(format, data):
    outside = data.draw(st.sampled_from(["drop", "keep"]))
    files = st.one_of(damaged(format), st.binary(max_size=300), own_words(format), damaged(format))
    with a_file(data.draw(files)) as path:
        read, output = read_well(format, path), path.parent / "corpus"
        try:
            corpus = import_papers([path], output, ImportOptions(format, outside)).corpus
        except UserError as error:
            assert not output.exists() and "\n" not in str(error)
            return
        assert read is not None
        assert_accounted(corpus, read, outside)


CUT_OR_FOREIGN = [
    *((format, SEEDS[format][-1].rstrip()[:-9]) for format in XML if format != "pubmed"),
    *((format, content) for format in ("pubmed", "grobid_tei") for content in (b"", b"plain", b"<html></html>")),
    ("pubmed", SEEDS["pubmed"][0].rstrip()[:-9]),
    ("pubmed", b"TI  - no PMID"),
    ("pubmed", b"<?xml version='1.0' encoding='x'?><a/>"),
    ("grobid_tei", b'<?xml version="1.0"?><!DOCTYPE TEI [<!ENTITY a "b">]><TEI>&c;</TEI>'),
    ("csl_json", b'[\n {"id": "a", "title": "T"},\n {"id": '),
]


@pytest.mark.parametrize(("format", "content"), CUT_OR_FOREIGN)
def test_a_file_that_is_cut_or_of_another_format_is_refused_by_name(format, content):
    with a_file(content) as path, pytest.raises(InputError, match="input file"):
        list(reader_of(format).read(Source(path), Tally()))


@pytest.mark.parametrize("format", JSON)
def test_deep_nesting_is_read_or_refused(format):
    for text in ('{"references": ' * 50_000 + "1" + "}" * 50_000, '{"a": ' + "[" * 50_000 + "NaN" + "]" * 50_000 + "}"):
        with a_file(text.encode()) as path:
            read_well(format, path)


BAD_VALUES = (None, True, -1, 10**30, float("nan"), "", "\ud800", "9" * 50)
BAD_VALUES += ([], [None], [[[]]], {}, {"": None}, {"text": [1]})


def spoil(document: object, draw: random.Random, times: int) -> None:
    """Replace or delete values anywhere inside a document."""
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        listed = enumerate(node) if isinstance(node, list) else ()
        items = list(node.items()) if isinstance(node, dict) else list(listed)
        places += [(node, key) for key, _ in items]
        waiting += [value for _, value in items]
    for node, key in draw.sample(places, min(times, len(places))):
        if isinstance(node, dict) and draw.random() < 0.2:
            node.pop(key, None)
        else:
            node[key] = json.loads(json.dumps(draw.choice(BAD_VALUES)))


@pytest.mark.parametrize("format", JSON)
def test_spoiled_real_records_are_read_or_refused(shared, format):
    draw = random.Random(7)
    folder = {"s2orc_2020": "s2orc_20200705", "specter": "specter/training", "s2orc": "s2ag_bulk"}.get(format, format)
    for sample in sorted((shared / "samples" / folder).glob("s2orc*" if format == "s2orc" else "*.json*"))[:4]:
        raw = sample.read_bytes()
        lines = [raw] if not sample.name.endswith("l") else raw.splitlines()[:3]
        for times in (1, 20, 300):
            documents = [json.loads(line) for line in lines]
            for document in documents:
                spoil(document, draw, times)
            for data in ("\n".join(map(json.dumps, documents)).encode(), raw[: draw.randrange(len(raw))]):
                with a_file(data) as path:
                    read_well(format, path)
