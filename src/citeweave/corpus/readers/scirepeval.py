"""SciRepEval training and evaluation rows, as one JSON list or as JSON lines.

    triplet         {"query": {...}, "pos": {...}, "neg": {...}}
    ranking         {"query": {...} or "words", "candidates": [{..., "score": 1}]}
    classification  {"corpus_id": 121676082, "title": "T", "abstract": "A", "labels_text": ["Mathematics"]}
    where {...} is  {"corpus_id": 12871252, "sha": "<40 hex digits>", "title": "T", "abstract": "A"}

Every paper of every row is yielded, however often it appears: merging is a later step. Labels of a paper go to
`extra` under the names of their task, fields of study also to `fields`. The query of a triplet cites its positive:
SciRepEval's triplets are those of citation prediction.

Does not read what belongs to a pair and not to a paper (`score`) nor queries made of words: both are noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, number_id, sha_id
from citeweave.corpus.paper import Citation, Paper, Record
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
from citeweave.corpus.readers.json_records import read_json_objects, starts_as_json

_KNOWN = frozenset(
    (
        "corpus_id",
        "doc_id",
        "paper_id",
        "sha",
        "mag_id",
        "title",
        "abstract",
        "venue",
        "year",
        "author_names",
        "authors",
        "n_citations",
        "score",
        "query",
        "candidates",
    )
)
_HAS_TITLES = re.compile(rb'"title"\s*:')
_MAX_LABELS = 32
_MAX_LABEL_LIST = 1000


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds rows of SciRepEval."""
    if not starts_as_json(head) or not _HAS_TITLES.search(head.data):
        return False
    has_query = b'"query"' in head.data
    is_triplet = has_query and b'"pos"' in head.data and b'"neg"' in head.data
    return is_triplet or (has_query and b'"candidates"' in head.data) or b'"corpus_id"' in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of SciRepEval rows."""
    for row in read_json_objects(source, tally, "papers"):
        if "query" not in row:
            yield from _read_papers([row], tally)
            continue
        query = row["query"]
        if isinstance(query, str):
            tally.note("query of words, not a paper")
        else:
            yield from _read_papers([query], tally)
        if "pos" in row:
            yield from _read_papers([row["pos"], row.get("neg")], tally)
            yield from _citation(query, row["pos"], tally)
        candidates = list_of(row.get("candidates"))
        if any("score" in dict_of(candidate) for candidate in candidates):
            tally.note("scores of query and candidates belong to a task, not to papers")
        yield from _read_papers(candidates, tally)


def _read_papers(values: list[object], tally: Tally) -> Iterator[Paper]:
    for value in values:
        paper = _paper(dict_of(value))
        if not paper:
            tally.reject("papers", "no id")
        elif paper.title or paper.abstract:
            yield paper
        else:
            tally.reject("papers", "no title and no abstract")


def _citation(query: object, positive: object, tally: Tally) -> Iterator[Citation]:
    citing, cited = next(iter(_ids(dict_of(query))), None), next(iter(_ids(dict_of(positive))), None)
    if citing and cited:
        yield Citation(citing, cited)
    else:
        tally.reject("citations", "no cited paper" if citing else "no citing paper")


def _ids(record: dict[str, object]) -> tuple[str, ...]:
    doc = record.get("doc_id")
    candidates = [
        number_id("s2", record.get("corpus_id")),
        sha_id(record.get("sha")),
        # the evaluation sets name papers by hash or by corpus id in one field
        sha_id(doc) or number_id("s2", doc),
        sha_id(record.get("paper_id")),
        number_id("mag", record.get("mag_id")),
    ]
    return distinct(candidates)


def _paper(record: dict[str, object]) -> Paper | None:
    ids = _ids(record)
    if not ids:
        return None
    authors = record.get("author_names") or record.get("authors")
    names = [dict_of(author).get("name") or author for author in list_of(authors)]
    return Paper(
        ids[0],
        strip_markup(record.get("title")),
        strip_markup(record.get("abstract")),
        year_of(record.get("year")),
        clean_text(record.get("venue")),
        names_of(names),
        names_of(record.get("labels_text")),
        ids[1:],
        count_of(record.get("n_citations")),
        extra=_labels(record),
    )


def _labels(record: dict[str, object]) -> dict[str, object]:
    """Return what a task says about a paper, under any name: `labels`, `descriptor`, `log_citations`, ..."""
    names = [name for name in record if name not in _KNOWN and name.isidentifier() and len(name) < 64]
    return filled({clean_text(name): _plain(record[name]) for name in names[:_MAX_LABELS]})


def _plain(value: object) -> object:
    """Return texts, finite numbers, booleans and lists of them as they are, None for anything else."""
    if isinstance(value, list):
        plain = [_plain(item) for item in value[:_MAX_LABEL_LIST] if not isinstance(item, list)]
        return [item for item in plain if item is not None]
    if isinstance(value, bool):
        return value
    return clean_text(value) if isinstance(value, str) else number_of(value)
