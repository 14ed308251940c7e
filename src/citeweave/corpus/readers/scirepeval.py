"""SciRepEval: the rows of its tasks, of which every paper is read.

    triplet         {"query": {...}, "pos": {...}, "neg": {...}}
    ranking         {"query": {...} or "words", "candidates": [{..., "score": 1}]}
    classification  {"corpus_id": 121676082, "title": "T", "abstract": "A", "labels_text": ["Mathematics"]}
    where {...} is  {"corpus_id": 12871252, "sha": "<40 hex digits>", "title": "T", "abstract": "A"}

A file is one JSON list or JSON lines. Every paper of every row is yielded, however often it appears: merging is a later
step. Labels of a paper go to `extra` under the names of their task, fields of study also to `fields`. The query of a triplet
cites its positive: SciRepEval's triplets are those of citation prediction. What belongs to a pair and not to a paper
(`score`) and queries made of words are noted, not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, spell_ids
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    count_of,
    dict_of,
    filled,
    list_of,
    names_of,
    number_of,
    strip_markup,
    year_of,
)
from citeweave.corpus.readers.json_records import value_at
from citeweave.corpus.readers.paper_records import accepted, cite_pair

_KNOWN = {
    *("corpus_id", "doc_id", "paper_id", "sha", "mag_id", "title", "abstract", "venue", "year"),
    *("author_names", "authors", "n_citations", "score", "query", "candidates"),
}
_HAS_TITLES = re.compile(rb'"title"\s*:')
_MAX_LABELS = 32
_MAX_LABEL_LIST = 1000


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds rows of SciRepEval."""
    known = (("query", "pos", "neg"), ("query", "candidates"), ("corpus_id",))
    return any(starts_as_json(head, *keys) for keys in known) and _HAS_TITLES.search(head.data) is not None


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of SciRepEval rows."""
    for row in read_json_objects(source, tally, "papers"):
        if "query" not in row:
            yield from _row_papers([row], tally)
            continue
        query = row["query"]
        if isinstance(query, str):
            tally.note("query of words, not a paper")
        else:
            yield from _row_papers([query], tally)
        if "pos" in row:
            yield from _row_papers([row["pos"], row.get("neg")], tally)
            citing, cited = (next(iter(_row_ids(dict_of(paper))), None) for paper in (query, row["pos"]))
            yield from cite_pair(citing, cited, tally)
        candidates = list_of(row.get("candidates"))
        if any("score" in dict_of(candidate) for candidate in candidates):
            tally.note("scores of query and candidates belong to a task, not to papers")
        yield from _row_papers(candidates, tally)


def _row_papers(values: list[object], tally: Tally) -> Iterator[Paper]:
    for value in values:
        paper = _row_paper(dict_of(value))
        if accepted(paper, tally):
            yield paper


def _row_ids(record: dict[str, object]) -> tuple[str, ...]:
    own = spell_ids(s2=record.get("corpus_id"), s2sha=record.get("sha"))
    # the evaluation sets name papers by hash or by corpus id in one field
    doc = spell_ids(s2sha=record.get("doc_id"), s2=record.get("doc_id"))[:1]
    return distinct([*own, *doc, *spell_ids(s2sha=record.get("paper_id"), mag=record.get("mag_id"))])


def _row_paper(record: dict[str, object]) -> Paper | None:
    ids = _row_ids(record)
    if not ids:
        return None
    authors = list_of(record.get("author_names") or record.get("authors"))
    return Paper(
        ids[0],
        strip_markup(record.get("title")),
        strip_markup(record.get("abstract")),
        year_of(record.get("year")),
        clean_text(record.get("venue")),
        names_of([value_at(author, "name") or author for author in authors]),
        names_of(record.get("labels_text")),
        ids[1:],
        count_of(record.get("n_citations")),
        extra=_labels(record),
    )


def _labels(record: dict[str, object]) -> dict[str, object]:
    """Return what a task says about a paper, under any name: `labels`, `descriptor`, `log_citations`, ..."""
    names = [name for name in record if name not in _KNOWN and name.isidentifier() and len(name) < 64]
    return filled({clean_text(name): _label(record[name]) for name in names[:_MAX_LABELS]})


def _label(value: object) -> object:
    """Return texts, finite numbers, booleans and lists of them as they are, None for anything else."""
    if isinstance(value, list):
        plain = [_label(item) for item in value[:_MAX_LABEL_LIST] if not isinstance(item, list)]
        return [item for item in plain if item is not None]
    if isinstance(value, bool):
        return value
    return clean_text(value) if isinstance(value, str) else number_of(value)
