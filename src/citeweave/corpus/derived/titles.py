"""Papers together with their titles and abstracts as texts of their own: a title finds its abstract.

    paper 7: "Walks on graphs" / "We walk on graphs. It is fast."       stays, with its citations
    title:7 = "Walks on graphs"        cites        abstract:7 = "We walk on graphs. It is fast."

So papers that cite nothing can be learned from too, and a short text learns to find the long one that it sums up. A
paper, its title and its abstract are cited by a textless hub, `paper:7`, and so are `cocited`: none is a negative of
another one. A title that an earlier paper has too, or of fewer words than asked, finds no abstract; nor does one that is
to be left out, such as a question of a benchmark. Citing sentences stay, so that papers cited close to each other are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived.options import DerivedTexts
from citeweave.corpus.derived.records import DerivedRecords, cites
from citeweave.corpus.derived.sentence_choice import repeat_keys, word_reason
from citeweave.corpus.paper import Context, Intent, Paper, StagedRecord
from citeweave.errors import EmptyResultError
from citeweave.hashing import hash_texts
from citeweave.progress import QUIET, Reporter


def title_records(
    corpus: Corpus, options: DerivedTexts, *, untold: Sequence[str] = (), reporter: Reporter = QUIET
) -> DerivedRecords:
    """The derived corpus as records: papers, titles, abstracts, hubs, citations; `untold` are ids of papers without a title."""
    rejected: dict[str, int] = {}
    split = titled_rows(corpus, options, rejected, reporter=reporter)
    asked = np.isin(split, corpus.rows(list(untold)))  # (titles,)
    if asked.any():
        split, rejected["title: a question of a suite"] = split[~asked], int(asked.sum())
    facts = {"papers": len(corpus), "titles": len(split), "citations": len(corpus.citing), "rejected": rejected}
    return DerivedRecords(_records(corpus, split), facts)


def titled_rows(
    corpus: Corpus, options: DerivedTexts, rejected: dict[str, int], *, reporter: Reporter = QUIET
) -> NDArray[np.int64]:
    """Rows of the papers whose title finds their abstract, ascending."""
    both = np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))
    found, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    with reporter.task("reading", len(both), "titles") as advance:
        for start in range(0, len(both), BLOCK):
            block = both[start : start + BLOCK]
            titles = corpus.titles.take(block)
            reasons = [word_reason(title, options.least_words, options.most_words) for title in titles]
            fits = np.array([not reason for reason in reasons], bool)
            for reason in filter(None, reasons):
                rejected[f"title: {reason}"] = rejected.get(f"title: {reason}", 0) + 1
            found.append(block[fits])
            keys.append(repeat_keys([title.lower() for title, fit in zip(titles, fits, strict=True) if fit]))
            advance(len(block))
    rows, key = np.concatenate(found), np.concatenate(keys)
    first = np.sort(np.unique(key, return_index=True)[1])
    if len(first) < len(rows):
        rejected["title: repeats another one"] = len(rows) - len(first)
    if len(both) < len(corpus):
        rejected["paper: no title or no abstract"] = len(corpus) - len(both)
    if not len(both):
        raise EmptyResultError(f"{corpus.folder} has no paper with a title and an abstract; import a source with both")
    if not len(first):
        told = "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
        raise EmptyResultError(f"no title of {corpus.folder} can be used ({told}); lower texts.least_words")
    return rows[first]


def _records(corpus: Corpus, split: NDArray[np.int64]) -> Iterator[StagedRecord]:
    for start in range(0, len(corpus), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(corpus)))
        columns = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
        for id, title, abstract in zip(*columns, strict=True):
            yield Paper(id, title=title, abstract=abstract)
    for start in range(0, len(corpus.citing), BLOCK):
        yield from cites(*(_keys(corpus, side[start : start + BLOCK]) for side in (corpus.citing, corpus.cited)))
    for start in range(0, len(split), BLOCK):
        yield from _split(corpus, split[start : start + BLOCK])
    yield from _citing_sentences(corpus)


def _split(corpus: Corpus, rows: NDArray[np.int64]) -> Iterator[StagedRecord]:
    """Titles and abstracts of some papers, and what relates them."""
    names = [str(row) for row in rows.tolist()]
    texts = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    for name, id, title, abstract in zip(names, *texts, strict=True):
        yield Paper(f"title:{name}", abstract=title, extra={"paper": id})
        yield Paper(f"abstract:{name}", abstract=abstract, extra={"paper": id})
        yield Paper(f"paper:{name}", stub=True)
    title, abstract, hub = (hash_texts([f"{kind}:{name}" for name in names]) for kind in ("title", "abstract", "paper"))
    yield from cites(title, abstract)
    for side in (title, abstract, _keys(corpus, rows)):
        yield from cites(hub, side)


def _citing_sentences(corpus: Corpus) -> Iterator[Context]:
    """Those that papers of the corpus wrote about papers of the corpus."""
    table = corpus.contexts
    inside = np.flatnonzero((table.citing >= 0) & (np.diff(table.cited_offsets) > 0))  # (contexts,)
    for start in range(0, len(inside), BLOCK):
        numbers = inside[start : start + BLOCK]
        columns = (corpus.ids.take(table.citing[numbers]), table.texts.take(numbers), table.sections.take(numbers))
        for number, citing, text, section in zip(numbers.tolist(), *columns, strict=True):
            cited = tuple(corpus.ids.take(table.cited_rows(number)))
            yield Context(citing, text, cited, section, Intent(int(table.intents[number])))


def _keys(corpus: Corpus, rows: NDArray[np.integer]) -> NDArray[np.uint64]:
    return hash_texts(corpus.ids.take(rows))
