"""Whatever a file holds, every reader yields clean records, counts rejections, or raises `InputError`: nothing else.

Files are random bytes, text made of the words that a reader looks for, and valid files with damage. What the
engine makes of them is counted twice, by the reader's own account and by the rows of the corpus.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from citeweave import Corpus, ImportOptions, import_papers
from citeweave.core.errors import InputError, UserError
from citeweave.core.hash_keys import hash_text
from citeweave.core.inputs import Source
from citeweave.core.progress import RECORD_KINDS, Tally
from citeweave.corpus.paper import (
    Citation,
    CitationBlock,
    Context,
    ContextBlock,
    Intent,
    NumberedCitations,
    NumberedPapers,
    Paper,
    StagedRecord,
)
from citeweave.corpus.readers import FORMATS, reader_of, s2ag

SEEDS = {
    format: [path.read_bytes() for path in sorted((Path(__file__).parent / "seeds").glob(f"{format}.*"))]
    for format in FORMATS
}
"""Small valid files of every format, invented and written by hand."""

READS, IMPORTS, SCANS = 40, 5, 300
CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
every_format = pytest.mark.parametrize("format", FORMATS)


def often(examples: int) -> settings:
    return settings(max_examples=examples, suppress_health_check=CALM)


# --- files ---------------------------------------------------------------------------------------------

XML = ("arxiv", "pubmed", "jats", "grobid_tei", "acl_anthology")
TAGGED = ("pubmed", "ris", "bibtex", "edges", "plain")
TEXTS = st.one_of(
    st.text(max_size=12),
    st.text("\x00\x01\t\n\x0b\x1c\x1f\x7f\x80\x85\x9b\xa0\u2028\ufeff\ud800\udfff\U0001f600 a", max_size=6),
    st.sampled_from(
        ["10.1000/x", "10.1000/\x85y", "W1", "1706.03762", "a" * 40, "2018", "NaN", "", " ", "9" * 40, "See [1].", "[]"]
    ),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 30), st.integers(), st.floats(), TEXTS)


def words_of(format: str) -> list[str]:
    """Keys, tags and other short words that stand as literals in a reader: what it looks for in a file."""
    tree = ast.parse(inspect.getsource(reader_of(format)))  # type: ignore[arg-type]
    literals = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [text.decode(errors="ignore") if isinstance(text, bytes) else text for text in literals]
    found = {word for text in texts if isinstance(text, str) for word in re.findall(r"[\w-]+", text[:60])}
    return sorted(word for word in found if 1 < len(word) < 40) + re.findall(r"[\w-]+", SEEDS[format][0].decode())


def json_texts(words: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    values = st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | TEXTS, inner, max_size=8),
        max_leaves=20,
    )
    written = st.builds(lambda value, ascii: json.dumps(value, ensure_ascii=ascii), values, st.booleans())
    lines = st.lists(written, max_size=4).map("\n".join)
    return (lines | written).map(lambda text: text.encode("utf-8", "surrogatepass"))


def xml_texts(words: st.SearchStrategy[str], roots: list[str]) -> st.SearchStrategy[bytes]:
    names = words.map(lambda word: re.sub(r"^[^A-Za-z]+", "x", word))
    inner = TEXTS.map(escape) | st.sampled_from(["&alpha;", "&#1;", "&#x85;", "<![CDATA[x]]>", "<!-- x -->", "<b>"])
    attributes = st.dictionaries(names, TEXTS.map(quoteattr), max_size=2)

    def element(name: str, attributes: dict[str, str], children: list[str]) -> str:
        return f"<{name}{''.join(f' {key}={value}' for key, value in attributes.items())}>{''.join(children)}</{name}>"

    tree = st.recursive(
        inner, lambda below: st.builds(element, names, attributes, st.lists(below, max_size=6)), max_leaves=25
    )
    whole = st.builds(element, st.sampled_from(roots), attributes, st.lists(tree, max_size=6))
    return whole.map(lambda text: text.encode("utf-8", "surrogatepass"))


def tagged_texts(words: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Pieces of BibTeX, RIS, Web of Science, MEDLINE and tables in any order."""
    signs = "@article{|@string(|@|{|}|\"|#| = |,|\n|\r|\t|  - |- |   |\\|%|\\'|\\char|$|~|crossref = |title = {|"
    signs += (
        "\nTY  - JOUR\n|\nER  - \n|\nPT J\n|\nER\n|\nPMID- 7\n|\nTI  - |\nT1  - |\nTI |\nCR |id,title\n|citing\tcited\n"
    )
    pieces = st.lists(st.sampled_from(signs.split("|")) | words | TEXTS, max_size=40)
    return pieces.map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))


def own_words(format: str) -> st.SearchStrategy[bytes]:
    words = st.sampled_from(words_of(format))
    if format in XML:
        roots = re.findall(r"<(\w[\w-]*)", SEEDS[format][-1 if format == "arxiv" else 0].decode())[:1]
        return xml_texts(words, roots) | (tagged_texts(words) if format == "pubmed" else json_texts(words))
    return tagged_texts(words) | json_texts(words) if format in TAGGED else json_texts(words)


POISON = [
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b'"\\u0000"',
    b"9" * 30,
    b"Infinity",
]
RAW_POISON = [
    b"",
    b"\0",
    b"\n",
    b"\t",
    b"\xff",
    b"\xc2\x85",
    b"\xc2\x9b",
    b"\xef\xbb\xbf",
    b"&#1;",
    b"&x;",
    b"{",
    b'"',
    b"<",
]
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
                data = (
                    data[:start]
                    + bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[start : start + 1])
                    + data[start + 1 :]
                )
            case "repeat":
                data = data[:end] + data[start:end] + data[end:]
            case "delete":
                data = data[:start] + data[end:]
            case "put":
                data = data[:start] + draw(st.sampled_from(RAW_POISON + POISON) | st.binary(max_size=4)) + data[start:]
            case "value":
                places = list(_VALUE.finditer(data))
                if places:
                    place = draw(st.sampled_from(places))
                    data = data[: place.start()] + draw(st.sampled_from(POISON + RAW_POISON)) + data[place.end() :]
    return data


def any_file(format: str) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=300), own_words(format), damaged(format))


# --- what must hold ------------------------------------------------------------------------------------

_NOT_CLEAN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def assert_clean(*texts: str) -> None:
    for text in texts:
        assert type(text) is str and not _NOT_CLEAN.search(text), repr(text)


def assert_well_made(record: StagedRecord) -> None:
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
        case NumberedCitations():
            assert len(record.citing) == len(record.cited) and min(record.citing.min(), record.cited.min()) >= 0
            for known in (record.intents, record.strength, record.influential):
                assert known is None or len(known) == len(record.citing)
        case NumberedPapers():
            assert record.years is None or len(record.years) == len(record.numbers)
        case ContextBlock():
            assert len(texts_of(record)) == len(record.citing) == len(record.intents) == len(record.cited_counts)
            assert_clean(*texts_of(record))
        case _:
            raise AssertionError(f"a reader yielded {record!r}")


def texts_of(block: ContextBlock) -> list[str]:
    lengths, data = block.texts
    ends = np.cumsum(lengths)
    assert len(data) == lengths.sum()
    return [bytes(data[end - length : end]).decode() for end, length in zip(ends, lengths, strict=True)]


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
            match record:
                case Paper():
                    tally.keep("papers")
                case NumberedPapers():
                    tally.keep("papers", len(record.numbers))
                case CitationBlock() | NumberedCitations():
                    tally.keep("citations", len(record.citing))
                case Citation():
                    tally.keep("citations")
                case ContextBlock():
                    tally.keep("contexts", len(record.citing))
                case Context():
                    tally.keep("contexts")
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None
    return {kind: tally.counts[kind].read for kind in RECORD_KINDS}


def assert_accounted(corpus: Corpus, read: dict[str, int], outside: str) -> None:
    records = corpus.manifest.facts["records"]
    rows = {"papers": len(corpus), "citations": len(corpus.citing), "contexts": len(corpus.contexts)}
    for kind, count in records.items():
        assert count["read"] == count["kept"] + sum(count["rejected"].values()), kind
        assert count["kept"] == rows[kind], kind
        assert all(number > 0 for number in count["rejected"].values()), kind
        assert count["read"] == read[kind] or (kind == "papers" and outside == "keep"), kind
    papers = [corpus.paper(row) for row in range(len(corpus))]
    assert len({paper.id for paper in papers}) == len(papers)
    for record in [*papers, *(corpus.context(row) for row in range(len(corpus.contexts)))]:
        assert_well_made(record)


# --- every reader --------------------------------------------------------------------------------------


@every_format
def test_seeds_are_valid(format: str) -> None:
    for data in SEEDS[format]:
        with a_file(data) as path:
            read = read_well(format, path)
            assert read and sum(read.values()) > 0


@every_format
@given(data=st.data())
@often(READS // 2)
def test_any_bytes(format: str, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from([b"", *(seed[:60] for seed in SEEDS[format])]))
    with a_file(start + data.draw(st.binary(max_size=300))) as path:
        read_well(format, path)


@every_format
@given(data=st.data())
@often(READS)
def test_its_own_words_in_any_order(format: str, data: st.DataObject) -> None:
    with a_file(data.draw(own_words(format))) as path:
        read_well(format, path)


@every_format
@given(data=st.data())
@often(READS * 2)
def test_damaged_files(format: str, data: st.DataObject) -> None:
    with a_file(data.draw(damaged(format))) as path:
        read_well(format, path)


@every_format
@given(data=st.data())
@often(IMPORTS)
def test_the_corpus_accounts_for_every_record(format: str, data: st.DataObject) -> None:
    outside = data.draw(st.sampled_from(["drop", "keep"]))
    with a_file(data.draw(damaged(format) | any_file(format))) as path:
        read, output = read_well(format, path), path.parent / "corpus"
        try:
            corpus = import_papers([path], output, ImportOptions(format, outside)).corpus
        except UserError as error:
            assert not output.exists() and "\n" not in str(error)
            return
        assert read is not None
        assert_accounted(corpus, read, outside)


# --- the compiled scan of citations gives what the ordinary reader gives -------------------------------

IDS = st.one_of(
    st.none(),
    st.integers(0, 10**6),
    st.integers(0, 10**6).map(str),
    st.sampled_from([0, "007", 10**17, 10**18, 10**19, "", " 7", "x", -1, 1.0, True, [1]]),
)
INTENTS = st.sampled_from(
    ["background", "methodology", "result", "", "backgrounD", "baXXXXXXXd", "uses", "métho", None]
)
SENTENCES = st.one_of(
    st.text(max_size=30),
    st.text(' a\t\n\r"\\/\x00\x08\x0c\x1f\x7f\x80\x85\x9f\xa0\u2003\u2028\u3000\ufeffé\U0001f600', max_size=20),
    st.sampled_from(
        ["As shown in [1], nets hold.", "  two  blanks  ", "x" * 7 + " " + "y" * 8, "\ud83d\ude00", "\ud800"]
    ),
)
LINES = st.fixed_dictionaries(
    {"citingcorpusid": IDS, "citedcorpusid": IDS},
    optional={
        "isinfluential": st.sampled_from([True, False, None, 1, "true"]),
        "contexts": st.none() | st.lists(SENTENCES, max_size=4) | st.lists(st.none() | SENTENCES, max_size=2),
        "intents": st.none()
        | st.lists(INTENTS, max_size=3)
        | st.lists(st.lists(INTENTS, max_size=2), max_size=2)
        | INTENTS,
        "citationid": st.integers() | st.text(max_size=5),
        "": st.none() | st.floats(allow_nan=False) | st.lists(st.integers(), max_size=2),
        "contexts ": st.text('\\"u\n', max_size=4),
    },
)
SPACING = st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " :  "), (",\r", ":\t")])


@st.composite
def citation_lines(draw: st.DrawFn) -> bytes:
    record = draw(LINES)
    ordered = {key: record[key] for key in draw(st.permutations(list(record)))}
    text = json.dumps(ordered, ensure_ascii=draw(st.booleans()), separators=draw(SPACING))
    line = text.encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    if draw(st.integers(0, 3)) == 0:
        place, put = (
            draw(st.integers(0, len(line))),
            draw(st.binary(max_size=2) | st.sampled_from([*RAW_POISON, b"\\", b"0"])),
        )
        line = line[:place] + put.replace(b"\n", b"") + line[place + draw(st.integers(0, 2)) :]
    return draw(st.sampled_from([b"", b" ", b"\t"])) + line + draw(st.sampled_from([b"", b" ", b"\r"]))


Found = tuple[list[tuple[object, ...]], list[tuple[object, ...]], dict[str, dict[str, int]]]


def in_one_form(records: Iterator[StagedRecord], tally: Tally) -> Found:
    """Citations and contexts as rows of values, whether they came one by one or in blocks."""
    citations: list[tuple[object, ...]] = []
    contexts: list[tuple[object, ...]] = []
    for record in records:
        match record:
            case Citation():
                citations.append((record.citing, record.cited, int(record.intents), record.influential))
            case Context():
                cited = [int(hash_text(id)) for id in record.cited]
                contexts.append((int(hash_text(record.citing)), record.text, cited, int(record.intents)))
            case CitationBlock():
                citing, cited_ids = record.ids()
                assert [int(key) for key in record.citing] == [int(hash_text(id)) for id in citing]
                assert [int(key) for key in record.cited] == [int(hash_text(id)) for id in cited_ids]
                citations += zip(citing, cited_ids, record.intents.tolist(), record.influential.tolist(), strict=True)
            case ContextBlock():
                cited_keys = [[key] for key in record.cited.tolist()]
                contexts += zip(
                    record.citing.tolist(), texts_of(record), cited_keys, record.intents.tolist(), strict=True
                )
    return sorted(citations), sorted(contexts), {kind: count.rejected for kind, count in tally.counts.items()}


def scanned(block: bytes) -> tuple[Found, int]:
    """What the compiled scan makes of the lines that it takes, and how many it takes."""
    found, starts, ends = s2ag.scan_citations(block)
    tally = Tally()
    taken = [block[start:end] for start, end, read in zip(starts, ends, found.read, strict=True) if read]
    assert in_one_form(s2ag._blocks(found, found.read, tally), tally) == ordinary(taken)
    return ordinary(taken), len(taken)


def ordinary(lines: list[bytes]) -> Found:
    tally = Tally()
    return in_one_form((record for line in lines for record in s2ag._read_line(line.strip(), tally)), tally)


@given(lines=st.lists(citation_lines(), min_size=1, max_size=6), ends=st.booleans())
@often(SCANS)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"contexts":["a\\q"]}'], ends=True)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"x":"\\q"}'], ends=True)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"x":"\\ud800"}'], ends=True)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"x":007}'], ends=True)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"intents":["baXXXXXXXd"]}'], ends=True)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"\\u0063itingcorpusid":3}'], ends=True)
@example(lines=[b'{"citingcorpusid":1,"citedcorpusid":2,"contexts":["\\u009b \\u0085x"]}'], ends=False)
def test_the_compiled_scan_equals_the_ordinary_reader(lines: list[bytes], ends: bool) -> None:
    block = b"\n".join(lines) + b"\n" * ends
    try:
        block.decode()
    except UnicodeDecodeError:
        pass  # such blocks are not given to the scan
    else:
        scanned(block)
    head = b'{"citingcorpusid":1,"citedcorpusid":2}\n'
    with a_file(head + block) as path:
        tally = Tally()
        assert in_one_form(s2ag.read(Source(path), tally), tally) == ordinary([head, *block.split(b"\n")])


def test_the_compiled_scan_takes_usual_lines() -> None:
    usual = {"citingcorpusid": 1, "citedcorpusid": "2", "isinfluential": True, "contexts": ["Nets é hold."]}
    lines = [json.dumps({**usual, "intents": [intent]}).encode() for intent in ("background", "methodology", "result")]
    (citations, contexts, _), taken = scanned(b"\n".join(lines))
    assert taken == 3
    assert [row[2] for row in citations] == [Intent.BACKGROUND, Intent.METHOD, Intent.RESULT]
    assert {row[1] for row in contexts} == {"Nets é hold."}
