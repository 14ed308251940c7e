r"""ACL Anthology XML: one collection per file, with its volumes and their papers.

Does not read events, author pages or full text; the Anthology lists no references.

    <collection id="2024.demo"><volume id="1">
      <meta><booktitle>Proceedings of Demo</booktitle><year>2024</year><venue>demo</venue></meta>
      <paper id="7"><title>Parsing <fixed-case>E</fixed-case>nglish</title><doi>10.18653/v1/2024.demo-1.7</doi></paper>
    </volume></collection>
    -> Paper(id="acl:2024.demo-1.7", title="Parsing English", year=2024, venue="Proceedings of Demo", ...)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import spell_ids, text_id
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import day_of, filled, names_of, year_of
from citeweave.corpus.readers import xml_records as xml
from citeweave.corpus.readers.paper_records import accepted

_OLD_COLLECTION = re.compile(r"[A-Z]\d{2}")
_NUMBER = re.compile(r"\d{1,6}")
_TEX_STYLE = re.compile(r"\\(?:text|math)[a-z]*\{([^{}]*)\}")


def recognizes(head: FileHead) -> bool:
    """Return whether a file is ACL Anthology XML: a collection with volumes."""
    return xml.root_name(head) == "collection" and b"<volume" in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers of an ACL Anthology collection."""
    # a collection is one record: ids of papers are made of all three levels, and no file is large
    for collection in xml.xml_records(
        source, roots={"collection"}, records={"collection"}, what="an ACL Anthology collection"
    ):
        for tex in collection.iter("tex-math"):
            tex.text = _TEX_STYLE.sub(r"\1", tex.text or "")
        for volume in collection.findall("volume"):
            tally.reject("papers", "front matter, no paper", len(volume.findall("frontmatter")))
            for element in volume.findall("paper"):
                paper_id = _anthology_id(*(level.get("id", "") for level in (collection, volume, element)))
                paper = _paper(paper_id, element, volume) if paper_id else None
                if accepted(paper, tally):
                    yield paper


def _anthology_id(collection: str, volume: str, paper: str) -> str | None:
    """Return the Anthology id of a paper; until 2019 volume and paper shared four digits, split after the first or second.

    >>> _anthology_id("2024.mrl", "1", "15"), _anthology_id("F14", "1", "1"), _anthology_id("W14", "3", "21")
    ('acl:2024.mrl-1.15', 'acl:F14-1001', 'acl:W14-0321')
    """
    if not (collection and volume and paper):
        return None
    if not _OLD_COLLECTION.fullmatch(collection):
        return text_id("acl", f"{collection}-{volume}.{paper}")
    if not (_NUMBER.fullmatch(volume) and _NUMBER.fullmatch(paper)):
        return None
    two_digits = collection[0] == "W" or collection == "C69" or (collection == "D19" and int(volume) >= 5)
    return f"acl:{collection}-{volume:0>2}{paper:0>2}" if two_digits else f"acl:{collection}-{volume}{paper:0>3}"


def _paper(paper_id: str, element: Element, volume: Element) -> Paper:
    meta = xml.find_or_empty(volume, "meta")
    return Paper(
        id=paper_id,
        title=xml.text_at(element, "title"),
        abstract=xml.text_at(element, "abstract"),
        year=year_of(xml.text_at(element, "year")) or year_of(xml.text_at(meta, "year")),
        venue=xml.text_at(meta, "journal-title") or xml.text_at(meta, "booktitle"),
        authors=names_of([xml.joined_texts(author, "first", "last") for author in element.findall("author")]),
        ids=spell_ids(doi=xml.text_at(element, "doi")),
        updated=_updated(element, volume),
        extra=_extra(element, meta),
    )


def _updated(element: Element, volume: Element) -> int:
    """Return the day of the last revision, erratum or retraction, else the day the volume was ingested."""
    changes = [day_of(e.get("date")) for e in element if e.tag in ("revision", "erratum", "retracted", "removed")]
    return max([*changes, day_of(volume.get("ingest-date"))])


def _extra(element: Element, meta: Element) -> dict[str, object]:
    extra: dict[str, object] = {
        "venues": list(xml.element_texts(meta.findall("venue"))),
        "bibkey": xml.text_at(element, "bibkey"),
        "language": xml.text_at(element, "language"),
        "awards": list(xml.element_texts(element.findall("award"))),
    }
    for flag in ("retracted", "removed"):
        notice = element.find(flag)
        if notice is not None:
            extra[flag] = True
            extra[f"{flag}_reason"] = xml.element_text(notice)
    return filled(extra)
