"""Papers, references and citing sentences as records: what the readers share when they keep or reject them.

    accepted(paper, tally)                              False for a paper without a text, which is counted
    Reference("b3", ids=("doi:10.1/x",), title="A theory of everything", year=1999)
    Paragraph("Intro", "Others disagree [3].", [Marker(17, 18, <xref>)]) -> Context(text="Others disagree [3].", ...)

Does not parse any format: the readers know what a reference and an in-text citation look like.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeGuard
from xml.etree.ElementTree import Element

from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.citation_marks import CitationMark, citing_sentences
from citeweave.corpus.identity import text_id, title_key
from citeweave.corpus.paper import Citation, Context, Paper, Record
from citeweave.corpus.readers.xml_records import RunningText, element_text, walk_elements


@dataclass(slots=True)
class Reference:
    """One entry of the reference list in a full text."""

    key: str
    """Its name inside the file, which in-text citations point at."""

    ids: tuple[str, ...] = ()
    """Strongest first."""

    title: str = ""
    year: int | None = None
    venue: str = ""
    authors: tuple[str, ...] = ()
    mentions: int = 0

    @property
    def id(self) -> str | None:
        return self.ids[0] if self.ids else title_key(self.title, self.year)


@dataclass(slots=True)
class Marker:
    """One in-text citation: its position in the paragraph, and the XML element that makes it."""

    start: int
    end: int
    element: Element


@dataclass(slots=True)
class Paragraph:
    """A paragraph of full text with its section title and in-text citations; it has a text once it is closed."""

    section: str
    text: str = ""
    markers: list[Marker] = field(default_factory=list)
    running: RunningText = field(default_factory=RunningText)
    pending: list[Marker] = field(default_factory=list)

    def begin(self, element: Element) -> None:
        """Start an in-text citation at the current end of the paragraph."""
        self.pending.append(Marker(self.running.length, self.running.length, element))
        self.markers.append(self.pending[-1])

    def end(self, element: Element) -> None:
        """End the in-text citation of an element."""
        if self.pending and self.pending[-1].element is element:
            self.pending.pop().end = self.running.length

    def close(self) -> Paragraph:
        """Set the text of the complete paragraph, and return it."""
        text = self.running.text
        for marker in self.markers:
            marker.start, marker.end = min(marker.start, len(text)), min(marker.end, len(text))
        self.text = _move_punctuation_after_markers(text, self.markers)
        return self


def accepted(
    paper: Paper | None, tally: Tally, citations: int = 0, *, key: str = "", line: int = 0
) -> TypeGuard[Paper]:
    """Return whether a paper has an id (else it is None) and a text; if not, reject it and the citations it lists.

    The rejected entry is named by its id; `key` and `line` are for formats with other names.
    """
    if paper is not None and (paper.title or paper.abstract):
        return True
    reason = "no id" if paper is None else "no title and no abstract"
    tally.reject("papers", reason, key=key or (paper.id if paper else ""), line=line)
    tally.reject("citations", "citing paper rejected", citations)
    return False


def cite_ids(citing: str, ids: Iterable[str | None], tally: Tally) -> Iterator[Citation]:
    """Yield a citation for every id in a reference list, also for repeated ones; None is a reference without an id."""
    for cited in ids:
        if cited:
            yield Citation(citing, cited)
        else:
            tally.reject("citations", "reference without a usable id")


def cite_references(citing: str, references: Iterable[Reference], tally: Tally) -> Iterator[Paper | Citation]:
    """Yield a citation for every reference that can be identified, and a stub for every one with a title."""
    seen: set[str] = set()
    for reference in references:
        cited = reference.id
        if cited is None:
            tally.reject("citations", "reference without a usable id")
            continue
        known = {cited, *reference.ids}
        if known & seen:
            tally.reject("citations", "reference listed twice")
            continue
        seen |= known
        if reference.title:
            yield Paper(
                id=cited,
                title=reference.title,
                year=reference.year,
                venue=reference.venue,
                authors=reference.authors,
                ids=reference.ids[1:],
                stub=True,
            )
        yield Citation(citing, cited, strength=float(max(1, reference.mentions)))


def read_paragraphs(part: Element, layout: PaperLayout) -> Iterator[Paragraph]:
    """Yield the paragraphs (`p`) of a part of a paper, with their section title and in-text citations.

    A paragraph inside a paragraph (a list, a caption) is one of its own and interrupts no sentence.
    """
    section, heading, is_marker, skip = layout
    titles = [""]
    opened: list[Paragraph] = []
    for entering, element in walk_elements(part, skip):
        if element.tag == section and entering:
            titles.append(element_text(element.find(heading), {section, "p"}) or titles[-1])
        elif element.tag == section and element.tag not in skip:
            titles.pop()
        if entering:
            if element.tag == "p":
                opened.append(Paragraph(titles[-1]))
            if opened and is_marker(element):
                opened[-1].begin(element)
            if opened:
                opened[-1].running.enter(element)
            continue
        if opened and element.tag == "p":
            yield opened.pop().close()
        if opened:
            opened[-1].end(element)
            opened[-1].running.leave(element)


class PaperLayout(NamedTuple):
    """Where an XML format of full text has its sections and in-text citations."""

    section: str
    heading: str
    """Tags of a section and of its title."""

    is_marker: Callable[[Element], bool]
    skip: Collection[str]
    """Tags of parts that are no text."""


def read_full_text(
    paper: Paper,
    references: Sequence[Reference],
    parts: Iterable[Element],
    layout: PaperLayout,
    find_cited: Callable[[Paragraph], Iterable[list[Reference]]],
    tally: Tally,
) -> Iterator[Record]:
    """Yield an XML paper, its citations and the contexts in its parts; `find_cited` yields the references of every marker."""
    if not accepted(paper, tally, len(references)):
        return
    yield paper
    # contexts come first to be counted: the number of mentions is the strength of a citation
    contexts: list[Context] = []
    for part in parts:
        outside = sum(map(layout.is_marker, part.iter()))
        for paragraph in read_paragraphs(part, layout):
            outside -= len(paragraph.markers)
            cited = list(find_cited(paragraph))
            for reference in chain.from_iterable(cited):
                reference.mentions += 1
            contexts += _paragraph_contexts(paper.id, paragraph, cited, tally)
        tally.note("in-text citation outside a paragraph", outside)
    yield from cite_references(paper.id, references, tally)
    yield from contexts


def _paragraph_contexts(
    citing: str, paragraph: Paragraph, cited: Sequence[Sequence[Reference]], tally: Tally
) -> Iterator[Context]:
    """Yield one context for every sentence of a paragraph with markers; `cited` has the references of each marker."""
    if paragraph.markers and not paragraph.text:
        tally.reject("contexts", "no text")
        return
    marks: list[CitationMark] = []
    for marker, references in zip(paragraph.markers, cited, strict=True):
        # a link without text still has a position: it borrows one character, as empty marks are ignored
        end = min(max(marker.end, marker.start + 1), len(paragraph.text))
        start = min(marker.start, max(0, end - 1))
        ids = [reference.id for reference in references if reference.id]
        tally.note("in-text citation without a reference", int(not ids))
        marks.extend(CitationMark(start, end, cited_id) for cited_id in ids)
        if not ids:
            marks.append(CitationMark(start, end, None))
    yield from mark_contexts(citing, paragraph.text, marks, paragraph.section, tally)


def mark_contexts(
    citing: str, text: str, marks: Iterable[CitationMark], section: str, tally: Tally
) -> Iterator[Context]:
    """Yield one context for every sentence of a passage with citation marks, if it is known what one of them cites."""
    for sentence in citing_sentences(text, marks):
        if sentence.cited:
            yield Context(citing, sentence.text, sentence.cited, section)
        else:
            tally.reject("contexts", "no cited paper")


def file_id(prefix: str, source: Source, number: int) -> str:
    """Return a local id for the only (or `number`-th, from 0) full text of a file without ids: its file name.

    >>> from pathlib import Path
    >>> file_id("grobid", Source(Path("pdfs/my paper.tei.xml.gz")), 0)
    'grobid:my_paper'
    """
    stem = source.name
    for suffix in (".xml", ".nxml", ".tei", ".grobid"):
        stem = stem.removesuffix(suffix)
    stem = "_".join(stem.split()) + (f"#{number + 1}" if number else "")
    return text_id(prefix, stem) or f"{prefix}:paper"


def _move_punctuation_after_markers(text: str, markers: list[Marker]) -> str:
    """Move raised numbers before the period that they hide: "cells.1,2 Next" becomes "cells1,2. Next"."""
    characters = list(text)
    first = 0
    while first < len(markers):
        start, last = markers[first].start, first
        is_raised = 2 <= start < len(text) and text[start - 1] in ".?!" and text[start].isdigit()
        if not is_raised or not (text[start - 2].isalpha() or text[start - 2] in ")]%"):
            first += 1
            continue
        while last + 1 < len(markers) and _is_list_separator(text[markers[last].end : markers[last + 1].start]):
            last += 1
        end = markers[last].end
        characters[start - 1 : end] = [*text[start:end], text[start - 1]]
        for marker in markers[first : last + 1]:
            marker.start, marker.end = marker.start - 1, marker.end - 1
        first = last + 1
    return "".join(characters)


def _is_list_separator(between: str) -> bool:
    return len(between) < 5 and not between.strip(",;-\u2013\u2010 ")


def cite_pair(citing: str | None, cited: str | None, tally: Tally) -> Iterator[Citation]:
    """Yield the citation of two ids, or count it as rejected where one is missing."""
    if citing and cited:
        yield Citation(citing, cited)
    else:
        tally.reject("citations", "no cited paper" if citing else "no citing paper")
