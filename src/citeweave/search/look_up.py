"""Look up what a query text names in an index: papers by id, citation key or title, authors, phrases, years, venues.

    text                                  papers
    10.18653/V1/N19-1423                  that one; a note where the index does not have it
    devlin2019bert                        the one with this citation key
    Attention is all you need             the one with this title, then all others by the usual search
    devlin                                all by Devlin, the newest first
    devlin bert                           those by Devlin, the best for "bert" first, then all others
    author:devlin year:2018- bert         only those by Devlin since 2018, the best for "bert" first
    "beam search"                         only those with the phrase in title or abstract

Names of authors in a text without `author:` are guessed. A full name, or a last name that is rarer in titles and abstracts
than among authors, puts the papers of its author first and never hides others, unless the text is nothing but the name.
An ordinary word that is somebody's name too ("young", "price") puts papers of that author first only among the best of
the usual search, and the note says how to ask for the author. Does not rank: `answer.py` ranks what is left of the text.
`read_query.py` reads the text; names and ids are looked up in tables that are made once per open index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.plain_text import fold
from citeweave.search.confidence import name_ranking
from citeweave.search.filters import author_rows, names_of, unknown_name
from citeweave.search.index import Index
from citeweave.search.named_authors import AuthorsInText, find_authors
from citeweave.search.paper_details import cited_counts, rows_of_key
from citeweave.search.query import Query
from citeweave.search.rankings import Ranking
from citeweave.search.read_query import MAX_READ, TextQuery, is_pasted, read_text
from citeweave.search.words import ABSENT, titles_with_words
from citeweave.vectors.bm25 import STOP_WORDS, words_of

Mask = NDArray[np.bool_]

ORDERED = 100
"""Best papers of a search that are ordered by year or citations."""

NAMES = "names"
"""What is compared where only ids, names and conditions are."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a query text names in an index, and what is left to be searched."""

    text: str = ""
    """Text to rank papers by; empty: list the allowed papers, or those of `first`."""

    mask: Mask | None = None
    """Papers that may be found, (size,); None: all."""

    first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that come first, in this order, whatever the ranking."""

    depth: int = 0
    """Where not 0: only those of `first` that are among so many best papers come first, in the order of the ranking."""

    is_sure: bool = False
    """With a depth: where none of `first` is among the best, all of them come first."""

    read: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_listing(self) -> bool:
        """Whether nothing is left to be searched, so that no model is needed."""
        return not self.text

    def listed(self, index: Index, allowed: Mask, order: str) -> Ranking:
        """Return the papers of a text that has nothing to rank by: those it names, or all allowed ones, the newest first."""
        rows = self.first if self.mask is None else np.flatnonzero(allowed)
        rows = rows[allowed[rows]]
        if order or self.mask is not None:
            rows = rows[ordered_places(index, rows, order or "newest")]
        return Ranking(rows, np.ones(len(rows)), NAMES)

    def lead(self, ranking: Ranking, allowed: Mask, rank: Callable[[Mask], Ranking]) -> tuple[Ranking, int]:
        """Move the papers that the text names to the front of a ranking; also return how many they are.

        `rank` ranks the papers of a mask by the same text.
        """
        rows = self.first[allowed[self.first]]
        scores = np.ones(len(rows))
        if self.depth:
            places = np.flatnonzero(np.isin(ranking.rows[: self.depth], rows))
            if len(places) or not self.is_sure:
                rows, scores = ranking.rows[places], ranking.scores[places]
            else:
                own = np.zeros(len(allowed), np.bool_)
                own[rows] = True
                rows, scores = rank(own)[:2]
        others = ~np.isin(ranking.rows, rows)
        leading = len(rows)
        ranking = name_ranking(ranking) if leading else ranking
        rows = np.concatenate([rows, ranking.rows[others]])
        return ranking._replace(rows=rows, scores=np.concatenate([scores, ranking.scores[others]])), leading


def look_up(index: Index, query: Query) -> Lookup:
    """Look up what the text of a query names in an index; other kinds of queries name nothing."""
    if query.kind != "text":
        return Lookup(query.text)
    asked = read_text(query.text)
    if asked.is_only_ids:
        return _by_ids(index, asked)
    if (known := _by_name(index, query)) is not None:
        return known
    if asked.is_plain and (is_pasted(query.text) or not (asked.text or asked.note)):
        return Lookup(query.text)
    if asked.is_plain:
        return _plain(index, asked)
    return _by_conditions(index, asked)


# --- ids, keys, titles -----------------------------------------------------------------------------------

_ID_NAMES = {"doi": "DOI", "arxiv": "arXiv id", "pmid": "PubMed id", "pmcid": "PubMed Central id"}


def _rows_of_ids(index: Index, ids: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
    """Return the rows of the papers that have these ids, and notes on those that no paper has."""
    found, notes = list[int](), list[str]()
    for spellings in ids:
        rows = index.rows(spellings).tolist()
        row = next((row for row in rows if row >= 0), -1)
        if row >= 0:
            found.append(row)
        else:
            kind, _, value = spellings[0].partition(":")
            notes.append(f"no paper here has the {_ID_NAMES.get(kind, f'{kind} id')} {value[:100]}")
    return list(dict.fromkeys(found)), notes


def _by_ids(index: Index, asked: TextQuery) -> Lookup:
    """Look up the papers of a text that is nothing but ids."""
    rows, notes = _rows_of_ids(index, asked.ids)
    return Lookup(first=np.array(rows, np.int64), read=_read(asked), notes=tuple(notes))


def _by_name(index: Index, query: Query) -> Lookup | None:
    """Look up the paper of which a text is an id, the citation key or the title; None where it is none of them."""
    text, line = query.text, query.text.strip().strip("@")
    if not line or len(line) > 4 * MAX_READ or "\n" in line:
        return None
    row = int(index.rows([line])[0])
    rows = [row] if row >= 0 else rows_of_key(index, line) if " " not in line else []
    if rows:
        # a key such as "rain" is also a word to search for
        is_word = any(index.words.statistics.frequency(word.encode()) for word in words_of(line))
        return Lookup(text if is_word else "", first=np.array(rows, np.int64), read={} if is_word else {"ids": [line]})
    if query.diversity:
        return None
    titled = _rows_of_title(index, line)
    return Lookup(text, first=titled) if len(titled) else None


def _rows_of_title(index: Index, line: str) -> NDArray[np.int64]:
    """Return the rows of papers with a title, or with a title before its colon, regardless of case and punctuation."""
    folded = fold(line)
    words = words_of(line)
    candidates = titles_with_words(index, words) if words else []
    titles = {row: index.titles[row] for row in candidates}
    same = [row for row, title in titles.items() if fold(title) == folded]
    main = [row for row, title in titles.items() if row not in same and fold(title.partition(":")[0]) == folded]
    rows = np.array([*same, *main], np.int64)
    return rows[ordered_places(index, rows, "cited")] if not same else rows


# --- authors in a plain text -----------------------------------------------------------------------------

_SURE_DEPTH, _DEPTH = 100, 20
"""Best papers among which those by an author come first: where the name surely is one, and where it is also a word."""

_OFTEN = 3
"""A word that so many times more papers have than are by people of that name is none of theirs, unless capitalized."""


def _plain(index: Index, asked: TextQuery) -> Lookup:
    """Look up the authors whom a plain text names."""
    names, frequency = names_of(index, "authors"), index.words.statistics.frequency

    def papers_by(numbers: Sequence[int]) -> int:
        return int(names.rows_numbered(numbers).sum())

    def papers_with(word: str) -> int:
        return frequency(word.encode("utf-8", "replace"))

    text, notes = asked.text, tuple(filter(None, [asked.note]))
    found = find_authors(text, names.authors, papers_with, papers_by)
    if found is None and re.fullmatch(r"\w{3,}", text) and not papers_with(text.lower()):
        numbers = names.authors.matching(text)  # perhaps a first name
        found = AuthorsInText((text,), [numbers], "", None, True) if numbers else None
    if found is None:
        return Lookup(text, notes=notes)
    rows = _rows_of_authors(index, found)
    who = " and ".join(found.names)
    read: dict[str, Any] = {"authors": list(found.names)}
    if found.year is not None:
        read["years"] = [found.year, found.year]
    if found.is_sure and not found.rest:
        return Lookup(first=rows, read=read, notes=notes)
    if found.is_sure:
        return Lookup(
            found.rest, None, rows, _SURE_DEPTH, len(found.rest.split()) <= _OFTEN, {**read, "text": found.rest}, notes
        )
    if found.rest:
        return Lookup(text, None, rows, _DEPTH, notes=notes)
    how = f'author:"{who}" finds only these' if " " in who else f"author:{who} finds only these"
    if who[:1].isupper() or papers_with(text.lower()) <= _OFTEN * len(rows):
        return Lookup(text, first=rows, read=read, notes=(*notes, f"papers by {who} come first; {how}"))
    papers = "1 paper is" if len(rows) == 1 else f"{len(rows):,} papers are"
    return Lookup(text, notes=(*notes, f"{papers} by {who}; {how}"))


def _rows_of_authors(index: Index, found: AuthorsInText) -> NDArray[np.int64]:
    """Return the rows of the papers by all authors of a text, else by any of them, the newest first."""
    names = names_of(index, "authors")
    masks = np.stack([names.rows_numbered(numbers) for numbers in found.numbers])
    mask = masks.all(axis=0) if masks.all(axis=0).any() else masks.any(axis=0)
    if found.year is not None and (mask & (index.years == found.year)).any():
        mask &= index.years == found.year
    rows = np.flatnonzero(mask)
    return rows[ordered_places(index, rows, "newest")]


# --- conditions ------------------------------------------------------------------------------------------


def _by_conditions(index: Index, asked: TextQuery) -> Lookup:
    """Look up what a text names by `author:`, `year:`, `venue:`, quotes and ids; the rest of it is ranked by."""
    mask, notes = np.ones(index.size, np.bool_), [asked.note]
    for author in asked.authors:
        own = author_rows(index, author)
        if not own.any():
            notes.append(unknown_name("author", author, names_of(index, "authors").authors.closest(author)))
        mask &= own
    for venue in asked.venues:
        own = venue_rows(index, venue)
        if not own.any():
            notes.append(unknown_name("venue", venue, names_of(index, "venues").closest(venue)))
        mask &= own
    for phrase in asked.phrases:
        own = phrase_rows(index, phrase)
        if not own.any():
            notes.append(f"no paper has the phrase {phrase[:100]!r} in its title or abstract")
        mask &= own
    first, last = asked.years
    if asked.years != (None, None):
        mask &= (index.years >= max(first or 1, 1)) & (index.years <= (9999 if last is None else last))
    if not any(notes) and not mask.any():
        notes.append("no paper meets all of these conditions")
    rows, unknown = _rows_of_ids(index, asked.ids)
    text = " ".join([*asked.phrases, asked.text]).strip()
    if not text and not (asked.authors or asked.venues or asked.years != (None, None)):
        return _by_ids(index, asked)
    return Lookup(
        text, mask, np.array(rows, np.int64), read=_read(asked), notes=tuple(filter(None, [*notes, *unknown]))
    )


def venue_rows(index: Index, venue: str) -> Mask:
    """Return the mask of papers of the venues whose name is, or has in it as words, the given one, (size,)."""
    names, words = names_of(index, "venues"), f" {fold(venue)} "
    exact = names.rows_with([venue])
    if exact.any() or not words.strip():
        return exact
    return names.rows_numbered([number for number, name in enumerate(names.names) if words in f" {fold(name)} "])


def phrase_rows(index: Index, phrase: str) -> Mask:
    """Return the mask of papers that have a phrase in title or abstract, regardless of case, blanks and hyphens, (size,)."""
    words, mask = words_of(phrase, stop_words=frozenset()), np.ones(index.size, np.bool_)
    wanted = [word.encode("utf-8", "replace") for word in words if word not in STOP_WORDS]
    for place in index.words.find(wanted).tolist() if wanted else ():
        own = np.zeros(index.size, np.bool_)
        if place != ABSENT:
            own[index.words.postings(place).rows] = True
        mask &= own
    if len(words) > 1 or not wanted:
        pattern = re.compile(r"(?<!\w)" + r"[\W_]+".join(map(re.escape, words)) + r"(?!\w)")
        rows = np.flatnonzero(mask)
        texts = zip(index.titles.take(rows), index.abstracts.take(rows), strict=True)
        mask[rows] = [any(pattern.search(text.lower()) for text in pair) for pair in texts]
    return mask


def _read(asked: TextQuery) -> dict[str, Any]:
    """Return how a text was read, as JSON: only what it names, and the rest of it."""
    read: dict[str, Any] = {
        "ids": [spellings[0] for spellings in asked.ids],
        **{name: list(getattr(asked, name)) for name in ("authors", "phrases", "venues")},
        "years": list(asked.years) if asked.years != (None, None) else [],
    }
    read = {name: value for name, value in read.items() if value}
    return {**read, "text": asked.text} if read else {}


# --- order and number of what was found ------------------------------------------------------------------


def order_ranking(index: Index, query: Query, ranking: Ranking, allowed: Mask, leading: int = 0) -> tuple[Ranking, int]:
    """Order the best papers of a ranking by year or citations where the query wants it; also return how many were found.

    The first `leading` papers stay before the others.
    """
    if ranking.by == NAMES:
        return ranking, len(ranking.rows)
    if not len(ranking.rows):
        return ranking, 0
    if not query.order:
        return ranking, max(count_found(index, query, ranking, allowed), len(ranking.rows))
    first, others = ranking.rows[:leading], ranking.rows[leading : max(ORDERED, leading)]
    places = [np.array(ordered_places(index, rows, query.order), np.int64) for rows in (first, others)]
    order = np.concatenate([places[0], places[1] + leading])
    note = "; ".join(filter(None, (ranking.note, f"the {len(order)} best, {_ORDER_WORDS[query.order]}")))
    return ranking._replace(rows=ranking.rows[order], scores=ranking.scores[order], note=note), len(order)


_ORDER_WORDS = {"newest": "newest first", "oldest": "oldest first", "cited": "most cited in this library first"}


def ordered_places(index: Index, rows: NDArray[np.int64], order: str) -> list[int]:
    """Return the places of some rows by year or citations; equal ones stay in their order, unknown years come last."""
    years, cited = index.years[rows].astype(np.int64), cited_counts(index)[rows]
    keys = {"newest": -years, "oldest": np.where(years > 0, years, 10_000), "cited": -cited}
    return [int(place) for place in np.argsort(keys[order], kind="stable")]


def count_found(index: Index, query: Query, ranking: Ranking, allowed: Mask) -> int:
    """Count the papers that a search may list: those with a vector, or that share a word with the text."""
    found = index.with_vector.copy() if ranking.by != "words" else np.zeros(index.size, np.bool_)
    if ranking.by == "sentences":
        found &= index.with_sentences
    if ranking.by in ("words", "hybrid"):
        text = query.text or f"{index.titles[index.row(query.paper)]} {index.abstracts[index.row(query.paper)]}"
        words = list({word.encode("utf-8", "replace") for word in words_of(text)})
        for place in index.words.find(words).tolist() if words else ():
            if place != ABSENT:
                found[index.words.postings(place).rows] = True
    found[[index.row(id) for id in (query.paper, *query.liked, *query.disliked) if id]] = False
    return int((found & allowed).sum())
