"""The inverse cloze task: a sentence of an abstract against the rest of it (Lee et al., ACL 2019, section 4).

    paper 7: "We walk on graphs. It is fast. It is simple."
    sentence:7.1 = "It is fast."        cites        rest:7.1 = "We walk on graphs. It is simple."

A tenth of the rests keep their sentence, so that shared words count too. All texts of one paper are cited by a textless
hub, `paper:7`, and so are `cocited`: the rest of one sentence is no negative of another one.

A sentence that other abstracts have too says nothing of its own: the first one counts. Abstracts given twice count once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived.options import DerivedTexts
from citeweave.corpus.derived.records import DerivedRecords, cites
from citeweave.corpus.derived.sentence_choice import repeat_keys, word_reason
from citeweave.corpus.paper import Paper, StagedRecord
from citeweave.corpus.text import sentences
from citeweave.errors import EmptyResultError
from citeweave.hashing import hash_texts, mix
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

_SPAN = np.dtype([("row", "<i8"), ("number", "<i4"), ("start", "<i4"), ("end", "<i4")])


@dataclass(frozen=True, slots=True)
class DrawnSentences:
    """Sentences of abstracts, by paper and place in its abstract."""

    spans: NDArray[np.void]
    """`row` of the paper, `number` of the sentence, its `start` and `end` in characters; shape (sentences,)."""

    rejected: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What there is of it, in numbers."""
        papers = len(np.unique(self.spans["row"]))
        return {"sentences": len(self.spans), "papers": papers, "rejected": self.rejected}


def draw_sentences(corpus: Corpus, options: DerivedTexts, *, reporter: Reporter = QUIET) -> DrawnSentences:
    """Up to `per_paper` sentences of every abstract that has enough of them, drawn by the seed."""
    rejected: dict[str, int] = {}
    rows = _abstracts(corpus, rejected)
    found, keys = [np.zeros(0, _SPAN)], [np.zeros(0, np.uint64)]
    with reporter.task("reading", len(rows), "abstracts") as advance:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            texts = corpus.abstracts.take(block)
            usable = _spans(block, texts, options, rejected)
            spans = _drawn(usable, options)
            _reject(rejected, f"sentence: more than {options.per_paper} of an abstract", len(usable) - len(spans))
            own = dict(zip(block.tolist(), texts, strict=True))
            found.append(spans)
            keys.append(repeat_keys([own[row][a:b] for row, _, a, b in spans.tolist()]))
            advance(len(block))
    spans, key = np.concatenate(found), np.concatenate(keys)
    first = np.sort(np.unique(key, return_index=True)[1])
    papers, left = (len(np.unique(rows)) for rows in (spans["row"], spans["row"][first]))
    _reject(rejected, "sentence: repeats another one", len(spans) - len(first))
    _reject(rejected, "abstract: what was drawn of it repeats others", papers - left)
    if not len(first):
        told = "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
        raise EmptyResultError(
            f"no abstract of {corpus.folder} has a sentence and a rest ({told}); import papers with abstracts of at "
            f"least {options.least_sentences} sentences, or lower texts.least_sentences"
        )
    return DrawnSentences(spans[first], rejected)


def cloze_records(corpus: Corpus, options: DerivedTexts, *, reporter: Reporter = QUIET) -> DerivedRecords:
    """The derived corpus as records: sentences, rests, hubs for papers with several of them, citations."""
    drawn = draw_sentences(corpus, options, reporter=reporter)
    return DerivedRecords(_records(corpus, drawn.spans, options), drawn.facts())


def _records(corpus: Corpus, spans: NDArray[np.void], options: DerivedTexts) -> Iterator[StagedRecord]:
    whole = _keys(spans, options, "rest") >= np.uint64(min(options.removed * 2.0**64, 2.0**64 - 2048))
    several = np.zeros(len(corpus), bool)
    several[spans["row"][1:][spans["row"][1:] == spans["row"][:-1]]] = True
    for start in range(0, len(spans), BLOCK):
        block = spans[start : start + BLOCK]
        names = [f"{row}.{number}" for row, number in zip(block["row"].tolist(), block["number"].tolist(), strict=True)]
        texts, ids = corpus.abstracts.take(block["row"]), corpus.ids.take(block["row"])
        for name, text, id, (_, _, a, b), keep in zip(
            names, texts, ids, block.tolist(), whole[start : start + BLOCK].tolist(), strict=True
        ):
            rest = text if keep else f"{text[:a].rstrip()} {text[b:].lstrip()}"
            yield Paper(f"sentence:{name}", abstract=text[a:b].strip(), extra={"paper": id})
            yield Paper(f"rest:{name}", abstract=rest.strip(), extra={"paper": id})
        sentence, rest_of = (hash_texts([f"{kind}:{name}" for name in names]) for kind in ("sentence", "rest"))
        yield from cites(sentence, rest_of)
        hub = several[block["row"]]
        keys = hash_texts([f"paper:{row}" for row in block["row"].tolist()])
        for side in (sentence, rest_of):
            yield from cites(keys[hub], side[hub])
    for row in np.flatnonzero(several).tolist():
        yield Paper(f"paper:{row}", stub=True)


def _reject(rejected: dict[str, int], reason: str, number: int) -> None:
    if number:
        rejected[reason] = rejected.get(reason, 0) + number


def _abstracts(corpus: Corpus, rejected: dict[str, int]) -> NDArray[np.int64]:
    """Rows with an abstract, each text once."""
    filled = np.flatnonzero(corpus.abstracts.lengths() > 0)
    if not len(filled):
        raise EmptyResultError(
            f"{corpus.folder} has no abstracts; import a source that has them, such as S2ORC or PubMed"
        )
    rows = filled[np.sort(np.unique(corpus.abstracts.keys()[filled], return_index=True)[1])]
    counts = {"abstract: none": len(corpus) - len(filled), "abstract: repeats another one": len(filled) - len(rows)}
    rejected |= {reason: number for reason, number in counts.items() if number}
    return rows


def _spans(
    rows: NDArray[np.int64], texts: list[str], options: DerivedTexts, rejected: dict[str, int]
) -> NDArray[np.void]:
    """Every sentence that may be drawn, in order."""
    found: list[tuple[int, int, int, int]] = []
    short = f"abstract: under {options.least_sentences} sentences"
    for row, text in zip(rows.tolist(), texts, strict=True):
        places = [(a, b) for a, b in sentences(text) if text[a:b].strip()]
        if len(places) < options.least_sentences:
            _reject(rejected, short, 1)
            _reject(rejected, f"sentence: of an abstract {short.removeprefix('abstract: ')}", len(places))
            continue
        reasons = [word_reason(text[a:b], options.least_words, options.most_words) for a, b in places]
        for reason in filter(None, reasons):
            _reject(rejected, f"sentence: {reason}", 1)
        _reject(rejected, "abstract: no sentence of fitting length", int(all(reasons)))
        found += [(row, n, a, b) for n, (a, b) in enumerate(places) if not reasons[n]]
    return np.array(found, _SPAN)


def _drawn(spans: NDArray[np.void], options: DerivedTexts) -> NDArray[np.void]:
    """At most `per_paper` of every paper, those of the lowest random keys; in order of paper and place."""
    order = np.lexsort([_keys(spans, options, "sentence"), spans["row"]])
    row = spans["row"][order]
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    place = np.arange(len(row)) - np.repeat(starts, np.diff(np.append(starts, len(row))))
    return spans[np.sort(order[place < options.per_paper])]


def _keys(spans: NDArray[np.void], options: DerivedTexts, purpose: str) -> NDArray[np.uint64]:
    """A random number for every sentence, the same in any block."""
    salt = stream(options.seed, "texts", purpose).integers(2**63, dtype=np.uint64)
    rows, numbers = spans["row"].astype(np.uint64), spans["number"].astype(np.uint64)
    return mix(mix(rows, numbers), np.full(len(spans), salt))
