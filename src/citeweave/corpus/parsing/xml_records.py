"""Records of an XML file, one at a time, and the plain text inside them.

Knows no format: a reader names the outermost elements it accepts and the elements that are records.
Does not fetch DTDs or external entities, and does not keep records that were handed out.

    <set><paper><title>On <i>E. coli</i></title></paper></set>
    xml_records(source, roots={"set"}, records={"paper"}, what="a set") -> one <paper>; plain_text(title) -> "On E. coli"

Names lose their namespace: `{http://www.tei-c.org/ns/1.0}title` is `title`, `xml:id` is `id`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from html.entities import name2codepoint
from typing import BinaryIO
from xml.etree.ElementTree import Element, ParseError, XMLParser, iterparse

from citeweave.corpus.cleaning import clean_text
from citeweave.errors import InputError
from citeweave.opening import Head, Source

MAX_RECORD = 64 * 2**20
"""Largest record, in bytes of XML; a file with a larger one is refused, for its tree would fill the memory."""

MAX_ELEMENTS = 2_000_000
"""Most elements of a record: empty ones take thirty times as much memory as they take in the file."""

_ROOT = re.compile(rb"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")
_PROLOGUE = {b"<?": b"?>", b"<!": b">"}
_BLOCKS = frozenset(
    [
        "p",
        "title",
        "sec",
        "div",
        "head",
        "label",
        "list",
        "list-item",
        "def-list",
        "def-item",
        "break",
        "br",
        "tr",
        "td",
        "th",
        "disp-formula",
        "disp-quote",
        "ab",
    ]
)


def root_name(head: Head) -> str:
    """The outermost element of a file that looks like XML, without its namespace; "" for anything else.

    >>> root_name(Head("x.xml", b"<?xml version='1.0'?><!DOCTYPE a><tei:TEI xmlns:tei='x'>"))
    'TEI'
    """
    data = head.data.lstrip()
    if not data.startswith(b"<"):
        return ""
    start = 0
    while (close := _PROLOGUE.get(data[start : start + 2])) and (end := data.find(close, start)) > 0:
        start = end + len(close)
        while data[start : start + 1].isspace():
            start += 1
    found = _ROOT.search(data, start)
    return found.group(1).decode("ascii", errors="replace") if found else ""


def xml_records(source: Source, *, roots: Collection[str], records: Collection[str], what: str) -> Iterator[Element]:
    """The outermost elements named in `records`, each complete, in the order of the file."""
    with source.open() as stream:
        bounded = _Bounded(source, stream)
        parser = XMLParser()
        # named signs that a DTD would define; the DTD itself is never read
        parser.entity.update({name: chr(code) for name, code in name2codepoint.items()})
        try:
            root: Element | None = None
            open_records = 0
            for event, element in iterparse(bounded, events=("start", "end"), parser=parser):
                if root is None:
                    root = element
                    _check_root(source, root, roots, what)
                bounded.count(event == "start")
                tag = element.tag
                if tag not in records and ("}" not in tag or _local(tag) not in records):
                    continue
                open_records += 1 if event == "start" else -1
                if event == "end" and open_records == 0:
                    _drop_namespaces(element)
                    yield element
                    # the parser holds on to what it is still building, so clearing the root loses no later record
                    element.clear()
                    root.clear()
                    bounded.taken = bounded.elements = 0
        # ValueError and LookupError: an encoding declaration that expat does not know
        except (ParseError, ValueError, LookupError) as error:
            raise InputError(
                f"{source.path} is not complete, well-formed XML ({clean_text(str(error))[:200]}); get the file again"
            ) from None


def walk(element: Element, skip: Collection[str] = ()) -> Iterator[tuple[bool, Element]]:
    """Enter (True) and leave (False) every element in order, without recursion.

    What is named in `skip` is only left, never entered: its own text goes, the text after it stays.
    """
    yield True, element
    path = [(element, iter(element))]
    while path:
        parent, children = path[-1]
        child = next(children, None)
        if child is None:
            path.pop()
            yield False, parent
        elif child.tag in skip:
            yield False, child
        else:
            yield True, child
            path.append((child, iter(child)))


def outermost(element: Element, tag: str) -> Iterator[Element]:
    """The elements of that name below `element` that do not lie inside another one, in order."""
    path = [iter(element)]
    while path:
        child = next(path[-1], None)
        if child is None:
            path.pop()
        elif child.tag == tag:
            yield child
        else:
            path.append(iter(child))


class RunningText:
    """Text that grows piece by piece with white space already collapsed, so that offsets into it stay true."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._ends_blank = True
        self._math = 0
        self.length = 0

    def enter(self, element: Element) -> None:
        self._math += element.tag == "math"
        if element.tag in _BLOCKS:
            self.add(" ")
        text = element.text or ""
        # indentation inside a formula is no white space of the text, except where a formula says so itself
        self.add(text if not self._math or element.tag == "mtext" else text.strip())

    def leave(self, element: Element) -> None:
        self._math = max(0, self._math - (element.tag == "math"))
        if element.tag in _BLOCKS:
            self.add(" ")
        if not self._math:
            self.add(element.tail or "")

    def add(self, raw: str) -> None:
        # the two letters keep the outer blanks, which clean_text would strip
        text = clean_text(f"x{raw}x")[1:-1]
        if self._ends_blank:
            text = text.removeprefix(" ")
        if text:
            self._parts.append(text)
            self._ends_blank = text.endswith(" ")
            self.length += len(text)

    @property
    def text(self) -> str:
        return "".join(self._parts).rstrip()


def plain_text(element: Element | None, skip: Collection[str] = ()) -> str:
    """The text of an element without its markup; blocks are kept apart by a blank, formulas are run together.

    >>> from xml.etree.ElementTree import fromstring
    >>> plain_text(fromstring("<a><p>Mass of <math> <mi>x</mi> <mn>2</mn> </math> kg</p><p>next<b/></p></a>"))
    'Mass of x2 kg next'
    """
    if element is None:
        return ""
    if not len(element):
        return clean_text(element.text)
    running = RunningText()
    for entering, inner in walk(element, skip):
        if entering:
            running.enter(inner)
        elif inner is not element:
            running.leave(inner)
    return running.text


def texts_of(elements: Iterator[Element] | list[Element]) -> tuple[str, ...]:
    """The plain texts of elements, empty and repeated ones left out."""
    return tuple(dict.fromkeys(text for text in map(plain_text, elements) if text))


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _drop_namespaces(record: Element) -> None:
    for element in record.iter():
        if "}" in element.tag:
            element.tag = _local(element.tag)
        for name in list(element.attrib):
            if "}" in name:
                element.set(_local(name), element.attrib.pop(name))


def _check_root(source: Source, root: Element, roots: Collection[str], what: str) -> None:
    name = _local(root.tag)
    if name not in roots:
        raise InputError(
            f"{source.path} is not {what}: its outermost element is {name[:40]!r}, not one of "
            f"{', '.join(sorted(roots))}; name its format with --format"
        )


class _Bounded:
    """A stream that refuses to go on when one record has taken more bytes or elements than it may."""

    def __init__(self, source: Source, stream: BinaryIO) -> None:
        self._source = source
        self._stream = stream
        self._started = False
        self._limit = MAX_RECORD
        self._tail = b""
        self.taken = self.elements = 0

    def count(self, elements: int) -> None:
        self.elements += elements
        if self.elements > MAX_ELEMENTS:
            raise InputError(
                f"{self._source.path} has a record of more than {MAX_ELEMENTS:,} elements; split the file or leave it out"
            )

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        if not self._started:
            # blank lines before the XML declaration are common in saved answers, and fatal to the parser
            self._started = True
            data = data.removeprefix(b"\xef\xbb\xbf").lstrip() or data
        self.taken += len(data)
        # a file that defines entities may swell a hundredfold before the parser objects
        if b"<!ENTITY" in (self._tail + data).replace(b"\0", b""):
            self._limit = MAX_RECORD // 16
        self._tail = data[-16:]
        if self.taken > self._limit:
            raise InputError(
                f"{self._source.path} has a record larger than {self._limit >> 20} MiB; split the file or leave it out"
            )
        return data
