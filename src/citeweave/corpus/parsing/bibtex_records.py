"""The entries of a BibTeX file as it stands: kind, key and raw field values, damage left out and counted.

    >>> entries = read_entries("@string{m = {Mind}} @article(turing1950, journal = m # { 59}, year = 1950)", Tally())
    >>> next(entries)
    BibtexEntry(kind='article', key='turing1950', fields={'journal': 'Mind 59', 'year': '1950'})

Every text is read in linear time: an entry ends at the latest before the next line that begins with `@type{`.
Does not interpret values: LaTeX, names and years stay as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from citeweave.corpus.cleaning import clean_text
from citeweave.tally import Tally

MAX_MACRO = 500
"""Longest expansion of one macro, and `20 * MAX_MACRO` that of one field: macros of macros must not fill the memory."""

HEADER = re.compile(r"(?<![\w.])@\s{0,99}([A-Za-z][\w:+-]{0,60})\s{0,99}([{(])")
"""What begins an entry: `@article{`."""

_LINE_START = re.compile(r"^[ \t]{0,99}@\s{0,99}[A-Za-z][\w:+-]{0,60}\s{0,99}[{(]", re.MULTILINE)
_KEY = re.compile(r"""\s*([^,={}"]{0,500})""")
_BLANK = re.compile(r"(?:[\s,]++|%[^\n]*+)*+")
_FIELD = re.compile(r"""([^\s=,{}"'#()@\\%]{1,100})\s*=\s*""")
_BARE = re.compile(r"""[^\s,#{}"()=]+""")
_JOIN = re.compile(r"\s*#\s*")
_NEXT_FIELD = re.compile(r"[,})]")
_BRACE = re.compile(r"[{}]")
_BRACE_OR_QUOTE = re.compile(r'[{}"]')
_NOT_PAPERS = ("comment", "preamble", "string")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(slots=True)
class BibtexEntry:
    """One entry; names of kinds and fields in small letters, the first of two equal fields kept."""

    kind: str
    key: str
    """Empty where the entry has none."""

    fields: dict[str, str] = field(default_factory=dict)


class _UnbalancedError(ValueError):
    """The entry does not end where it should."""


def read_entries(text: str, tally: Tally) -> Iterator[BibtexEntry]:
    """The entries that are papers, in order; a broken one is rejected and reading goes on at the next `@` line."""
    macros = {month[:3].lower(): month for month in _MONTHS}
    line_starts = (found.start() for found in _LINE_START.finditer(text))
    limit = at = 0
    while header := HEADER.search(text, at):
        while limit <= header.start():
            limit = next(line_starts, len(text) + 1)
        at = header.end()
        if _commented_out(text, header.start()):
            tally.note("entry behind a percent sign left out")
            continue
        kind = header[1].lower()
        try:
            if kind in ("comment", "preamble"):
                # as in BibTeX, entries inside a comment count where they begin a line
                at = _skip_group(text, header, min(limit, len(text)))
                continue
            entry, at = _parse_entry(text, header, min(limit, len(text)), macros, tally)
        except _UnbalancedError:
            at = max(at, min(limit, len(text)))
            if kind not in _NOT_PAPERS:
                tally.reject("papers", "unbalanced braces")
            continue
        if kind == "string":
            macros.update({name: value[:MAX_MACRO] for name, value in entry.fields.items()})
        else:
            yield entry


def _commented_out(text: str, at: int) -> bool:
    line_start = text.rfind("\n", max(0, at - 200), at) + 1
    return text[line_start or max(0, at - 200) : at].lstrip().startswith("%")


def _skip_group(text: str, header: re.Match[str], limit: int) -> int:
    if header[2] == "(":
        end = text.find(")", header.end(), limit)
        return limit if end < 0 else end + 1
    return _closing_brace(text, header.end(), limit) + 1


def _parse_entry(
    text: str, header: re.Match[str], limit: int, macros: dict[str, str], tally: Tally
) -> tuple[BibtexEntry, int]:
    """The entry and the position behind it."""
    entry = BibtexEntry(header[1].lower(), "")
    at = header.end()
    closing = "}" if header[2] == "{" else ")"
    if entry.kind != "string":
        entry.key, at = _parse_key(text, at, limit, closing)
    while at < limit:
        at = _BLANK.match(text, at, limit).end()  # type: ignore[union-attr]
        if found := _FIELD.match(text, at, limit):
            value, at = _parse_value(text, found.end(), limit, macros)
            name = found[1].lower()
            if value and not entry.fields.get(name):
                entry.fields[name] = value
            continue
        stop = _NEXT_FIELD.search(text, at, limit)
        if not stop:
            break
        if text[at : stop.start()].strip():
            tally.note("damaged field left out")
        at = stop.end()
        if stop.group() == closing:
            return entry, at
    raise _UnbalancedError


def _parse_key(text: str, at: int, limit: int, closing: str) -> tuple[str, int]:
    """The key, empty where there is none, and where the fields begin."""
    found = _KEY.match(text, at, limit)
    if not found:
        return "", at
    key, end = found[1], found.end()
    if text[end : end + 1] == "=":
        # "key author = ..." lacks its comma, "author = ..." its key
        key = key.split()[0] if len(key.split()) > 1 else ""
        end = text.index(key, at) + len(key)
    elif closing in key:
        key = key[: key.index(closing)]
        end = found.start(1) + len(key)
    return clean_text(key), end


def _parse_value(text: str, at: int, limit: int, macros: dict[str, str]) -> tuple[str, int]:
    """A field's value, its parts joined where `#` stands between them."""
    parts: list[str] = []
    room = 20 * MAX_MACRO
    while at < limit:
        if text[at] == "{":
            end = _closing_brace(text, at + 1, limit)
            parts.append(text[at + 1 : end])
            at = end + 1
        elif text[at] == '"':
            end = _closing_quote(text, at + 1, limit)
            parts.append(text[at + 1 : end])
            at = end + 1
        elif bare := _BARE.match(text, at, limit):
            value = macros.get(bare.group().lower(), bare.group())
            room -= len(value)
            if room > 0:
                parts.append(value)
            at = bare.end()
        joined = _JOIN.match(text, at, limit)
        if not joined:
            break
        at = joined.end()
    return "".join(parts).strip(), at


def _closing_brace(text: str, at: int, limit: int) -> int:
    depth = 1
    for brace in _BRACE.finditer(text, at, limit):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return brace.start()
    raise _UnbalancedError


def _closing_quote(text: str, at: int, limit: int) -> int:
    depth = 0
    for sign in _BRACE_OR_QUOTE.finditer(text, at, limit):
        here = sign.start()
        if sign.group() != '"':
            depth += 1 if sign.group() == "{" else -1
        elif depth <= 0 and not (text[here - 1] == "\\" and text[here + 1 : here + 2].isalpha()):
            return here  # but G\"odel is an umlaut, although BibTeX wants braces around it
    raise _UnbalancedError
