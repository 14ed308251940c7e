"""S2ORC full texts: Semantic Scholar's bulk datasets `s2orc` and `s2orc_v2`.

    s2orc     {"corpusid": 1, "externalids": {"doi": "10.1/x"}, "content": {"source": {...}, "text": "T A. See [1].",
               "annotations": {"title": "[{\\"start\\":0,\\"end\\":1}]", "bibentry": null, ...}}, "updated": "..."}
    s2orc_v2  {"corpusid": 1, "title": "T", "openaccessinfo": {...}, "body": {"text": "See [1].", "annotations":
               {"bib_ref": "[{\\"start\\":4,\\"end\\":7,\\"attributes\\":{\\"ref_id\\":\\"b0\\"}}]", ...}},
               "bibliography": {"text": "...", "annotations": {"bib_entry": "[...]", ...}}}

Every list of annotations is a JSON string inside the JSON, or null; the second version writes its names with underscores.
Tables, figures and formulas are not read.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from citeweave.core.inputs import BadRecordError, FileHead, Source, parse_json
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.citation_marks import CitationMark
from citeweave.corpus.identity import distinct, doi_id, number_id, only_arxiv_in, only_doi_in, semantic_scholar_ids
from citeweave.corpus.paper import Citation, Context, Paper, Record
from citeweave.corpus.plain_text import day_of, dict_of, list_of, names_of, strip_markup
from citeweave.corpus.readers.json_records import extra_of, value_at
from citeweave.corpus.readers.paper_records import Reference, accepted, cite_references, mark_contexts

# a line is often longer than the head of a file, so only the beginning of the record can be checked
_FULL_TEXT = re.compile(rb'"(?:content|body)"\s*:\s*\{\s*"(?:source|text|annotations)"\s*:')
_YEAR_IN_BRACKETS = re.compile(r"\((?:[^()\d]{0,20}\s)?(1[89]\d\d|20\d\d)[a-z]?\)")
_YEAR_ALONE = re.compile(r"(?<![\d.:/\u2013-])(1[89]\d\d|20\d\d)(?![\d/\u2013-]|\.\d)")
_FOOTNOTE_MARKS = " *\u2217\u2020\u2021\u00a7\u00b6"


@dataclass(frozen=True, slots=True)
class _Span:
    """An annotation of S2ORC: positions in a text, and attributes."""

    start: int
    end: int
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """One S2ORC text with its annotations; the first version has one part, the second a body and a bibliography."""

    text: str
    annotations: dict[str, list[_Span]]
    """By name without underscores, in the order of the text; those of one name do not overlap."""

    def spans(self, name: str) -> list[_Span]:
        return self.annotations.get(name, [])

    def read(self, span: _Span) -> str:
        return strip_markup(self.text[span.start : span.end])

    def first(self, name: str) -> str:
        return next(filter(None, map(self.read, self.spans(name))), "")


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds S2ORC full texts."""
    return starts_as_json(head, "corpusid") and bool(_FULL_TEXT.search(head.data))


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of S2ORC full texts."""
    for record in read_json_objects(source, tally, "papers"):
        own = number_id("s2", record.get("corpusid"))
        if own:
            yield from _read_record(own, record, tally)
        else:
            tally.reject("papers", "no id")


def _read_record(own: str, record: dict[str, object], tally: Tally) -> Iterator[Record]:
    if "content" in record:
        body = bibliography = _part(record["content"], tally)
    else:
        body, bibliography = _part(record.get("body"), tally), _part(record.get("bibliography"), tally)
    paper = _paper(own, record, body)
    if accepted(paper, tally):
        yield paper
    references = _references(bibliography)
    marks = _marks(body, references)
    mentions = Counter(mark.cited for mark in marks if mark.cited)
    for reference in references:
        reference.mentions = mentions.pop(reference.id or "", 0)
    yield from cite_references(own, references, tally)
    # marks of the second version may name a paper that the bibliography does not list
    yield from (Citation(own, cited, strength=float(count)) for cited, count in mentions.items() if cited)
    yield from _contexts(own, body, marks, tally)


def _part(value: object, tally: Tally) -> _Part:
    text, groups = value_at(value, "text"), dict_of(value_at(value, "annotations"))
    text = text if isinstance(text, str) else ""
    annotations = {name.replace("_", ""): _spans(group, len(text), tally) for name, group in groups.items()}
    return _Part(text, annotations)


def _spans(group: object, length: int, tally: Tally) -> list[_Span]:
    if isinstance(group, str):
        try:
            group = parse_json(group.encode("utf-8", "replace"))
        except BadRecordError:
            tally.note("annotations that are not valid JSON")
            return []
    spans = []
    for annotation in map(dict_of, list_of(group)):
        start, end = annotation.get("start"), annotation.get("end")
        if not (type(start) is int and type(end) is int and 0 <= start <= end <= length):
            tally.note("annotation outside its text")
            start = end = 0  # an entry of the bibliography may still say which paper it is
        spans.append(_Span(start, end, dict_of(annotation.get("attributes"))))
    spans.sort(key=lambda span: (span.start, span.end))
    # overlaps are cut, so that all spans together are never longer than the text
    ends = [min(span.end, after.start) for span, after in pairwise(spans)] + [span.end for span in spans[-1:]]
    return [_Span(span.start, end, span.attributes) for span, end in zip(spans, ends, strict=True)]


def _group(outer: list[_Span], inner: list[_Span]) -> list[list[_Span]]:
    """Return for every outer span the inner ones that begin in it."""
    starts = [span.start for span in outer]
    groups: list[list[_Span]] = [[] for _ in outer]
    for span in inner:
        at = bisect_right(starts, span.start) - 1
        if at >= 0 and span.start < outer[at].end:
            groups[at].append(span)
    return groups


def _paper(own: str, record: dict[str, object], body: _Part) -> Paper:
    access = dict_of(record.get("openaccessinfo")) or value_at(record, "content.source.oainfo")
    return Paper(
        own,
        (strip_markup(record.get("title")) or body.first("title")).rstrip(_FOOTNOTE_MARKS),
        " ".join(filter(None, map(body.read, body.spans("abstract")))),
        venue=body.first("venue"),
        authors=_names(_people(body, "author")),
        ids=_other_ids(own, record),
        updated=day_of(record.get("updated")),
        extra=extra_of(access, {"license": "license", "status": "status"}),
    )


def _other_ids(own: str, record: dict[str, object]) -> tuple[str, ...]:
    external = dict_of(record.get("externalids")) or dict_of(value_at(record, "openaccessinfo.externalids"))
    return tuple(id for id in semantic_scholar_ids(external) if id != own)


def _people(part: _Part, name: str) -> list[_Span]:
    """Return the spans of people, each with the `name` from the spans of first and last names in it."""
    people = part.spans(name)
    names = sorted(part.spans(f"{name}firstname") + part.spans(f"{name}lastname"), key=lambda span: span.start)
    called = [" ".join(map(part.read, inside)) for inside in _group(people, names)]
    # affiliation marks such as "#" are annotated as people
    named = [(person, call) for person, call in zip(people, called, strict=True) if _is_name(call)]
    return [_Span(person.start, person.end, {"name": call}) for person, call in named]


def _is_name(text: str) -> bool:
    return sum(map(str.isalpha, text)) > 1


def _names(people: list[_Span]) -> tuple[str, ...]:
    return names_of([person.attributes["name"] for person in people])


def _references(part: _Part) -> list[Reference]:
    entries = part.spans("bibentry")
    titles, venues = _group(entries, part.spans("bibtitle")), _group(entries, part.spans("bibvenue"))
    people = _group(entries, _people(part, "bibauthor"))
    references = []
    for number, (entry, title, venue, authors) in enumerate(zip(entries, titles, venues, people, strict=True)):
        text = part.text[entry.start : entry.end]
        # a match may be wrong: the ids in the text are not tied to it
        known = [_matched(entry) or doi_id(entry.attributes.get("doi")) or only_doi_in(text) or only_arxiv_in(text)]
        if not title and venue and venue[0].start == entry.start:
            title, venue = venue[:1], venue[1:]  # the title of a book is marked as a venue
        reference = Reference(_key(entry.attributes.get("id")) or f"#{number}", distinct(known))
        reference.title = " ".join(filter(None, map(part.read, title)))
        reference.venue = " ".join(filter(None, map(part.read, venue)))
        reference.year, reference.authors = _year(text[:20_000]), _names(authors)
        references.append(reference)
    return references


def _year(text: str) -> int | None:
    """Return the year of a reference, None where its text leaves it open.

    >>> _year('Kalai, E. (1977): "Proportional solutions," Econometrica, 1623-1630.'), _year("1999, see also 2001")
    (1977, None)
    """
    for pattern in (_YEAR_IN_BRACKETS, _YEAR_ALONE):
        if years := set(pattern.findall(text)):
            return int(years.pop()) if len(years) == 1 else None
    return None


def _key(value: object) -> str:
    """Return the name of a bibliography entry inside its record, a text or a number."""
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _marks(body: _Part, references: list[Reference]) -> list[CitationMark]:
    ids = {reference.key: reference.id for reference in references}
    marks = []
    for span in body.spans("bibref"):
        cited = ids.get(_key(span.attributes.get("ref_id"))) or _matched(span)
        marks.append(CitationMark(span.start, span.end, cited))
    return marks


def _matched(span: _Span) -> str | None:
    return number_id("s2", span.attributes.get("matched_paper_id"))


def _contexts(own: str, body: _Part, marks: list[CitationMark], tally: Tally) -> Iterator[Context]:
    """Yield the citing sentences, first of paragraphs, then of lines outside them: footnotes and captions."""
    headers = body.spans("sectionheader")
    starts = [header.start for header in headers]
    remaining = marks
    for name in ("abstract", "paragraph", "line"):
        passages = _lines_of(body.text, remaining) if name == "line" else body.spans(name)
        is_titled = name == "paragraph"
        inside, remaining = _marks_by_passage(passages, remaining)
        for passage, marks_inside in zip(passages, inside, strict=True):
            if not marks_inside:
                continue
            header = bisect_right(starts, passage.start) - 1
            section = body.read(headers[header]) if is_titled and header >= 0 else ""
            yield from mark_contexts(own, body.text[passage.start : passage.end], marks_inside, section, tally)
    if remaining:
        tally.note("citation mark outside any line", len(remaining))


def _marks_by_passage(
    passages: list[_Span], marks: list[CitationMark]
) -> tuple[list[list[CitationMark]], list[CitationMark]]:
    """Return the marks by the passage that holds them, counted from its start, and the marks that none holds."""
    starts = [passage.start for passage in passages]
    inside: list[list[CitationMark]] = [[] for _ in passages]
    outside = []
    for mark in marks:
        at = bisect_right(starts, mark.start) - 1
        if at >= 0 and mark.start < mark.end <= passages[at].end:
            inside[at].append(CitationMark(mark.start - starts[at], mark.end - starts[at], mark.cited))
        else:
            outside.append(mark)
    return inside, outside


def _lines_of(text: str, marks: list[CitationMark]) -> list[_Span]:
    """Return the lines in which marks begin, without an object for every other line: a text may be all line breaks."""
    if not marks:
        return []
    ends = [match.start() for match in re.finditer("\n", text)] + [len(text)]
    held = sorted({bisect_left(ends, mark.start) for mark in marks})
    return [_Span(ends[at - 1] + 1 if at else 0, ends[at]) for at in held]
