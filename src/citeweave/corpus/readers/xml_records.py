"""XML records, one at a time within memory bounds, and the plain text inside XML elements.

Knows no format: a reader names the outermost elements it accepts and the elements that are records.
Does not fetch DTDs or external entities, and does not keep records after yielding them.

    <set><paper><title>On <i>E. coli</i></title></paper></set>
    xml_records(source, roots={"set"}, records={"paper"}, what="a set") -> one <paper>; element_text(title) -> "On E. coli"

Names lose their prefix: `tei:title` is `title`, `xml:id` is `id`; namespaces are not resolved.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from html.entities import name2codepoint
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers.expat import ExpatError, ParserCreate

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.corpus.plain_text import clean_text, names_of

MAX_RECORD = 64 * 2**20
"""Largest record, in bytes of XML; a file with a larger one is refused: its tree would fill the memory."""

MAX_ELEMENTS = 2_000_000
"""Most elements and attributes of a record: empty ones take thirty times their size in the file."""

MAX_MARKUP = 2**20
"""Largest tag, comment or prologue, in bytes: the parser rereads it from its start with every piece."""

MAX_NAMES = 100_000
"""Most distinct names of elements and attributes of a file: the parser keeps them until its end."""

_PIECE = 2**14
_MAX_DEFAULTS = 10_000
"""Most characters of all declared default attributes: every tag may have them."""

_MAX_ENTITY = 2**16
"""Most characters that an entity may expand to."""

_MAX_NESTING = 20
_REFERENCE = re.compile(r"&([^&;#]+);")

_ROOT = re.compile(rb"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")
_PROLOGUE = {b"<?": b"?>", b"<!": b">"}
_BLOCKS = {
    *("p", "title", "sec", "div", "head", "label", "list", "list-item", "def-list", "def-item", "break", "br"),
    *("tr", "td", "th", "disp-formula", "disp-quote", "ab"),
}


def root_name(head: FileHead) -> str:
    """Return the outermost element of a file that looks like XML, without its namespace; "" for anything else.

    >>> root_name(FileHead("x.xml", b"<?xml version='1.0'?><!DOCTYPE a><tei:TEI xmlns:tei='x'>"))
    'TEI'
    """
    data = head.data.lstrip()[:MAX_MARKUP]  # a longer prologue is refused
    if not data.startswith(b"<"):
        return ""
    start = 0
    while (close := _PROLOGUE.get(data[start : start + 2])) and (end := data.find(close, start)) > 0:
        start = end + len(close)
        while data[start : start + 1].isspace():
            start += 1
    match = _ROOT.search(data, start)
    return match.group(1).decode("ascii", errors="replace") if match else ""


def xml_records(source: Source, *, roots: Collection[str], records: Collection[str], what: str) -> Iterator[Element]:
    """Yield the outermost elements named in `records`, each complete, in the order of the XML file."""
    with source.open() as stream:
        parser = _RecordParser(source, roots, records, what)
        try:
            data = stream.read(_PIECE)
            # blank lines before the XML declaration are common in saved responses, and fatal to the parser
            data = data.removeprefix(b"\xef\xbb\xbf").lstrip() or data
            while data:
                yield from parser.feed(data)
                data = stream.read(_PIECE)
            yield from parser.close()
        # ValueError and LookupError: an encoding declaration that expat does not know
        except (ExpatError, ValueError, LookupError) as error:
            raise InputError(
                f"{source.path} is not complete, well-formed XML ({clean_text(str(error))[:200]}); get the file again"
            ) from None


def walk_elements(element: Element, skip: Collection[str] = ()) -> Iterator[tuple[bool, Element]]:
    """Yield (True, element) on entering and (False, element) on leaving every XML element, without recursion.

    Elements named in `skip` are only left, never entered: their own text is dropped, the text after them stays.
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


def outermost_elements(element: Element, tag: str) -> Iterator[Element]:
    """Yield the elements of a name below `element` that are not inside another one of that name, in order."""
    nested: set[Element] = set()
    for found in element.iter(tag):
        if found is not element and found not in nested:
            nested.update(found.iter(tag))
            yield found


class RunningText:
    """Text of XML elements that grows piece by piece with white space already collapsed, so that offsets stay true."""

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


def element_text(element: Element | None, skip: Collection[str] = ()) -> str:
    """Return the text of an XML element without markup; blocks are separated by a blank, formulas run together.

    >>> from xml.etree.ElementTree import fromstring
    >>> element_text(fromstring("<a><p>Mass of <math> <mi>x</mi> <mn>2</mn> </math> kg</p><p>next<b/></p></a>"))
    'Mass of x2 kg next'
    """
    if element is None:
        return ""
    if not len(element):
        return clean_text(element.text)
    running = RunningText()
    for entering, inner in walk_elements(element, skip):
        if entering:
            running.enter(inner)
        elif inner is not element:
            running.leave(inner)
    return running.text


def text_at(element: Element, path: str, skip: Collection[str] = ()) -> str:
    """Return the text of the first XML element at a path below an element, without markup; "" where there is none."""
    return element_text(element.find(path), skip)


def joined_texts(element: Element, *paths: str, separator: str = " ") -> str:
    """Return the texts of the first XML elements at some paths, such as the parts of a name, in one line."""
    return separator.join(text for path in paths if (text := text_at(element, path)))


def find_or_empty(element: Element, path: str) -> Element:
    """Return the first XML element at a path, an empty one where there is none."""
    found = element.find(path)
    return Element("none") if found is None else found


def texts_by_kind(elements: Iterable[Element], attribute: str) -> dict[str, str]:
    """Return the texts of XML elements that hold ids, by the kind of id that an attribute names; the first of each kind."""
    by_kind: dict[str, str] = {}
    for element in elements:
        by_kind.setdefault(element.get(attribute, "").lower(), element_text(element))
    return by_kind


def element_texts(elements: Iterable[Element]) -> tuple[str, ...]:
    """Return the plain texts of XML elements, empty and repeated ones left out."""
    return names_of(list(map(element_text, elements)))


class _RecordParser:
    """Builds XML records from pieces of a file, and refuses what would fill the memory or never end.

    Entities and default attributes, which only the file itself can declare, take no bytes where they are used: their length
    is added for every reference and every tag. Namespaces are not resolved, so a long one costs nothing.
    """

    def __init__(self, source: Source, roots: Collection[str], records: Collection[str], what: str) -> None:
        self._source, self._roots, self._records, self._what = source, roots, records, what
        self._names: dict[str, str] = {}
        self._expat = ParserCreate(intern=self._names)
        self._expat.buffer_text = True
        if hasattr(self._expat, "SetReparseDeferralEnabled"):  # expat 2.6: MAX_MARKUP bounds what is parsed again
            self._expat.SetReparseDeferralEnabled(False)
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.EntityDeclHandler = self._declare_entity
        self._expat.AttlistDeclHandler = self._declare_attribute
        self._entities: dict[str, str] = {}
        self._default_size = self._entity_size = 0
        self._builder = TreeBuilder()
        self._depth = 0
        self._complete: list[Element] = []
        self._has_root = False
        self._fed = self._taken = self._elements = 0

    def feed(self, data: bytes) -> list[Element]:
        """Parse a piece of the XML file and return the records that end in it."""
        self._fed += len(data)
        self._taken += len(data) + data.count(b"&") * self._entity_size + data.count(b"<") * self._default_size
        if self._taken > MAX_RECORD:
            raise self._refusal(f"has a record larger than {MAX_RECORD >> 20} MiB")
        self._expat.Parse(data, False)
        if self._fed - self._expat.CurrentByteIndex > MAX_MARKUP:
            raise self._refusal(f"has a tag or a comment larger than {MAX_MARKUP >> 20} MiB")
        if not self._has_root and self._fed > MAX_MARKUP:
            raise self._refusal(f"has more than {MAX_MARKUP >> 20} MiB before its outermost element")
        if len(self._names) > MAX_NAMES:
            raise self._refusal(f"has more than {MAX_NAMES:,} different names of elements and attributes")
        complete, self._complete = self._complete, []
        return complete

    def close(self) -> list[Element]:
        """End the XML file and return the records that the parser had put off to the end."""
        self._expat.Parse(b"", True)
        return self._complete

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2] if ":" in tag else tag
        if not self._has_root:
            self._begin(name)
        self._elements += 1 + len(attributes)
        if self._elements > MAX_ELEMENTS:
            raise self._refusal(f"has a record of more than {MAX_ELEMENTS:,} elements")
        if self._depth or name in self._records:
            if not self._depth:
                self._builder = TreeBuilder()
                self._expat.CharacterDataHandler = self._builder.data
                self._expat.DefaultHandlerExpand = self._named_character
            self._depth += 1
            self._builder.start(name, _plain_names(attributes) if attributes else attributes)

    def _end(self, tag: str) -> None:
        if not self._depth:
            return
        self._builder.end(tag.rpartition(":")[2] if ":" in tag else tag)
        self._depth -= 1
        if not self._depth:
            self._expat.CharacterDataHandler = self._expat.DefaultHandlerExpand = None
            self._complete.append(self._builder.close())
            self._taken = self._elements = 0

    def _begin(self, root: str) -> None:
        if root not in self._roots:
            raise InputError(
                f"{self._source.path} is not {self._what}: its outermost element is {root[:40]!r}, not one of "
                f"{', '.join(sorted(self._roots))}; name its format with --format"
            )
        self._has_root = True
        self._entity_size = _largest_expansion(self._entities)
        if self._entity_size > _MAX_ENTITY:
            raise self._refusal(f"declares an entity of more than {_MAX_ENTITY:,} characters")

    def _named_character(self, markup: str) -> None:
        """Add the character of an entity that a DTD would define; other markup that arrives here is no text."""
        if markup.startswith("&"):
            code = name2codepoint.get(markup[1:-1])
            if code is None:
                raise ExpatError(f"undefined entity {markup[:40]}")
            self._builder.data(chr(code))

    def _declare_entity(self, name: str, is_parameter: bool, value: str | None, *_: object) -> None:
        if value is not None and not is_parameter:
            self._entities.setdefault(name, value)

    def _declare_attribute(self, element: str, name: str, kind: str, default: str | None, *_: object) -> None:
        self._default_size += len(default or "")
        if self._default_size > _MAX_DEFAULTS:
            raise self._refusal(f"declares attributes of more than {_MAX_DEFAULTS:,} characters")

    def _refusal(self, problem: str) -> InputError:
        return InputError(f"{self._source.path} {problem}; split the file or leave it out")


def _plain_names(attributes: dict[str, str]) -> dict[str, str]:
    """Return attributes with prefixes removed from their names; namespace declarations are left out.

    >>> _plain_names({"xml:id": "a", "id": "b", "xmlns:x": "u", "n": "1"})
    {'id': 'a', 'n': '1'}
    """
    if "xmlns" not in attributes and not any(":" in name for name in attributes):
        return attributes
    plain = {name: value for name, value in attributes.items() if ":" not in name and name != "xmlns"}
    apart = ((*name.rpartition(":")[::2], value) for name, value in attributes.items() if ":" in name)
    return plain | {name: value for prefix, name, value in apart if prefix != "xmlns"}


def _largest_expansion(entities: dict[str, str]) -> int:
    """Return the most characters that one entity reference can expand to, nested entities included.

    >>> _largest_expansion({"a": "xy", "b": "&a;&a;"}), _largest_expansion({"a": "&a;"}) >= MAX_RECORD
    (10, True)
    """
    sizes = {name: len(value) for name, value in entities.items()}
    for _ in range(_MAX_NESTING):
        expanded = {
            name: len(value) + sum(sizes.get(inner, 1) for inner in _REFERENCE.findall(value))
            for name, value in entities.items()
        }
        if expanded == sizes:
            return max(sizes.values(), default=0)
        sizes = expanded
    return MAX_RECORD
