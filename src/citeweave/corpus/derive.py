"""Derive a corpus of other texts: citing sentences, cloze sentences, or titles and abstracts as papers.

    texts = derive_corpus(Corpus.open("corpus/"), "texts/", DerivedTexts(of="contexts"))
    texts.ids[0], texts.abstracts[0]       ("context:12", "Graphs can be matched [3, 7].")

Everything that works on papers then works on these texts. Derived texts have no title, and texts that must not be
negatives of each other are related by textless hubs; `mining.text = "either"` keeps hubs out of samples. The kinds:

contexts    citing sentences; those that cite the same papers are paraphrases (`derived_texts.py`)

cloze       the inverse cloze task: a sentence of an abstract finds the rest of it (Lee et al., ACL 2019, section 4)

    paper 7: "We walk on graphs. It is fast. It is simple."
    sentence:7.1 = "It is fast."        cites        rest:7.1 = "We walk on graphs. It is simple."

    A tenth of the rests keep their sentence, so that shared words count too. All texts of one paper are cited by a
    textless hub, `paper:7`, and so are `cocited`: the rest of one sentence is no negative of another sentence. Repeated
    sentences and repeated abstracts count once.

titles      papers together with their titles and abstracts as texts of their own: a title finds its abstract

    paper 7: "Walks on graphs" / "We walk on graphs. It is fast."       stays, with its citations
    title:7 = "Walks on graphs"        cites        abstract:7 = "We walk on graphs. It is fast."

    Papers that cite nothing become useful for training, and a short text learns to find the long one that it
    summarizes. A paper, its title and its abstract are cited by a textless hub, `paper:7`, so that none is a negative of
    another. A title is left out where an earlier paper has the same one, where it has too few words, or where it is
    excluded, such as a query of a benchmark. Citing sentences stay, so that papers cited close together are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, new_artifact
from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import Keys, hash_texts, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import KIND, VERSION, Corpus
from citeweave.corpus.derived_texts import (
    DerivedRecords,
    candidate_contexts,
    citation_blocks,
    context_records,
    draw_per_group,
    is_first,
    list_rejected,
    random_keys,
    repeat_keys,
    word_reason,
)
from citeweave.corpus.ingest import build_corpus
from citeweave.corpus.options import CLOZE, CONTEXTS, PAPERS, TITLES, DerivedTexts, ImportOptions
from citeweave.corpus.paper import Context, Intent, Paper, StagedRecord
from citeweave.corpus.staged_parts import PartWriter, StagedFile
from citeweave.corpus.text import sentences

Numbers = NDArray[np.int64]


def derive_corpus(
    corpus: Corpus,
    folder: str | Path,
    options: DerivedTexts,
    *,
    before: Corpus | None = None,
    excluded_titles: Sequence[str] = (),
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Corpus:
    """Derive a corpus from other texts of a corpus and write it to a folder; the same call again opens it.

    `before` is the corpus before papers were excluded from it, such as those of a benchmark: their sentences are left
    out. `excluded_titles` are ids of papers whose title is not paired with its abstract, such as queries of a benchmark.
    """
    folder = Path(folder)
    if options.of == PAPERS:
        raise UserError(f"texts.of is {PAPERS!r}, which derives nothing; name {CONTEXTS}, {CLOZE} or {TITLES}")
    recipe = {"of": corpus.hash, "texts": options.as_recipe(), "before": None if before is None else before.hash}
    if excluded_titles:
        recipe["untold"] = hash_json(sorted(excluded_titles))
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            if options.of == CONTEXTS:
                derived = context_records(corpus, options, before, reporter)
            elif options.of == CLOZE:
                derived = cloze_records(corpus, options, reporter)
            else:
                derived = title_records(corpus, options, excluded_titles, reporter)
            part = PartWriter(writer.scratch_folder("texts"), keep_ids=False)
            part.add(derived.records)
            part.finish({"name": f"{options.of} of a corpus", "format": "derived"})
            # hubs are known only by their citations and must stay
            build_corpus(
                writer, [StagedFile(part.folder)], ImportOptions(same_title="never", outside="keep"), reporter=reporter
            )
            writer.facts |= {"derived": {"texts": options.of, "of": corpus.hash, **derived.counts}}
            writer.finish()
    return Corpus.open(folder)


@dataclass(frozen=True, slots=True)
class ExpectedTexts:
    """Estimated number and mean length of the texts that would be derived from a corpus."""

    anchors: int
    characters: float
    """Mean length of a text, in bytes."""


def estimate_texts(corpus: Corpus, options: DerivedTexts) -> ExpectedTexts:
    """Estimate how many texts would be derived from a corpus, at most, without reading any text."""
    if options.of == CONTEXTS:
        lengths = corpus.contexts.texts.lengths()[candidate_contexts(corpus, options)]
        return ExpectedTexts(len(lengths), float(lengths.mean()) if len(lengths) else 0.0)
    lengths = corpus.abstracts.lengths()
    lengths = lengths[lengths > 0]
    # a sentence and its rest make up one abstract, and so do a title and it, nearly: half of it on average
    characters = float(lengths.mean()) / 2 if len(lengths) else 0.0
    anchors = len(corpus) + 2 * len(lengths) if options.of == TITLES else options.per_paper * len(lengths)
    return ExpectedTexts(anchors, characters)


# --- cloze: a sentence and the rest of its abstract ------------------------------------------------

_SPAN = np.dtype([("row", "<i8"), ("number", "<i4"), ("start", "<i4"), ("end", "<i4")])


def cloze_records(corpus: Corpus, options: DerivedTexts, reporter: Reporter) -> DerivedRecords:
    """Return the records of a cloze corpus: sentences, the rests of their abstracts, hubs for papers, citations."""
    rejected: Counter[str] = Counter()
    spans = _draw_sentences(corpus, options, rejected, reporter)
    counts = {"sentences": len(spans), "papers": len(np.unique(spans["row"])), "rejected": dict(+rejected)}
    return DerivedRecords(_cloze_records(corpus, spans, options), counts)


def _draw_sentences(
    corpus: Corpus, options: DerivedTexts, rejected: Counter[str], reporter: Reporter
) -> NDArray[np.void]:
    """Draw up to `per_paper` cloze sentences from every abstract that has enough of them."""
    rows = _abstract_rows(corpus, rejected)
    drawn, keys = [np.zeros(0, _SPAN)], [np.zeros(0, np.uint64)]
    with reporter.task("reading", len(rows), "abstracts") as advance:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            texts = corpus.abstracts.take(block)
            usable = _usable_sentences(block, texts, options, rejected)
            chosen = draw_per_group(usable["row"], _span_keys(usable), options.per_paper, options.seed, "sentence")
            rejected[f"sentence: more than {options.per_paper} of an abstract"] += int((~chosen).sum())
            text_of = dict(zip(block.tolist(), texts, strict=True))
            drawn.append(usable[chosen])
            keys.append(repeat_keys([text_of[row][a:b] for row, _, a, b in drawn[-1].tolist()]))
            advance(len(block))
    spans = np.concatenate(drawn)
    distinct = spans[is_first(np.concatenate(keys))]
    papers, left = (len(np.unique(table["row"])) for table in (spans, distinct))
    rejected["sentence: repeats another one"] += len(spans) - len(distinct)
    rejected["abstract: what was drawn of it repeats others"] += papers - left
    if not len(distinct):
        raise EmptyResultError(
            f"no abstract of {corpus.folder} has a sentence and a rest ({list_rejected(rejected)}); import papers with abstracts of at "
            f"least {options.min_sentences} sentences, or lower texts.min_sentences"
        )
    return distinct


def _cloze_records(corpus: Corpus, spans: NDArray[np.void], options: DerivedTexts) -> Iterator[StagedRecord]:
    """Yield every cloze sentence and its rest as papers, with the citations between them and hubs of their papers."""
    drawn = random_keys(_span_keys(spans), options.seed, "rest")
    complete = drawn >= np.uint64(min(options.removed * 2.0**64, 2.0**64 - 2048))
    several = np.zeros(len(corpus), bool)
    several[spans["row"][1:][spans["row"][1:] == spans["row"][:-1]]] = True
    for start in range(0, len(spans), BLOCK):
        block = spans[start : start + BLOCK]
        names = [f"{row}.{number}" for row, number in zip(block["row"].tolist(), block["number"].tolist(), strict=True)]
        texts, ids = corpus.abstracts.take(block["row"]), corpus.ids.take(block["row"])
        for name, text, id, (_, _, a, b), keep in zip(
            names, texts, ids, block.tolist(), complete[start : start + BLOCK].tolist(), strict=True
        ):
            rest = text if keep else f"{text[:a].rstrip()} {text[b:].lstrip()}"
            yield Paper(f"sentence:{name}", abstract=text[a:b].strip(), extra={"paper": id})
            yield Paper(f"rest:{name}", abstract=rest.strip(), extra={"paper": id})
        sentence, rest_of = (hash_texts([f"{kind}:{name}" for name in names]) for kind in ("sentence", "rest"))
        yield from citation_blocks(sentence, rest_of)
        hub = several[block["row"]]
        keys = hash_texts([f"paper:{row}" for row in block["row"].tolist()])
        for side in (sentence, rest_of):
            yield from citation_blocks(keys[hub], side[hub])
    for row in np.flatnonzero(several).tolist():
        yield Paper(f"paper:{row}", stub=True)


def _abstract_rows(corpus: Corpus, rejected: Counter[str]) -> Numbers:
    """Return the rows of papers with an abstract, each distinct abstract once."""
    filled = np.flatnonzero(corpus.abstracts.lengths() > 0)
    if not len(filled):
        raise EmptyResultError(
            f"{corpus.folder} has no abstracts; import a source that has them, such as S2ORC or PubMed"
        )
    rows = filled[is_first(corpus.abstracts.keys()[filled])]
    rejected["abstract: none"] += len(corpus) - len(filled)
    rejected["abstract: repeats another one"] += len(filled) - len(rows)
    return rows


def _usable_sentences(
    rows: Numbers, texts: list[str], options: DerivedTexts, rejected: Counter[str]
) -> NDArray[np.void]:
    """Return the spans of all sentences of these abstracts that may be drawn for the cloze task, in order."""
    spans: list[tuple[int, int, int, int]] = []
    short = f"abstract: under {options.min_sentences} sentences"
    for row, text in zip(rows.tolist(), texts, strict=True):
        places = [(a, b) for a, b in sentences(text) if text[a:b].strip()]
        if len(places) < options.min_sentences:
            rejected[short] += 1
            rejected[f"sentence: of an abstract {short.removeprefix('abstract: ')}"] += len(places)
            continue
        reasons = [word_reason(text[a:b], options.min_words, options.max_words) for a, b in places]
        rejected.update(f"sentence: {reason}" for reason in reasons if reason)
        rejected["abstract: no sentence of fitting length"] += all(reasons)
        spans += [(row, n, a, b) for n, (a, b) in enumerate(places) if not reasons[n]]
    return np.array(spans, _SPAN)


def _span_keys(spans: NDArray[np.void]) -> Keys:
    """Return a key for every cloze sentence, by paper and number."""
    return mix_keys(spans["row"].astype(np.uint64), spans["number"].astype(np.uint64))


# --- titles: a title and its abstract --------------------------------------------------------------


def title_records(
    corpus: Corpus, options: DerivedTexts, excluded_titles: Sequence[str], reporter: Reporter
) -> DerivedRecords:
    """Derive the records of a corpus: papers, titles as papers that cite their abstracts, and hubs."""
    rejected: Counter[str] = Counter()
    split = _titled_rows(corpus, options, rejected, reporter)
    excluded = np.isin(split, corpus.rows(list(excluded_titles)))  # (titles,)
    split, rejected["title: a question of a suite"] = split[~excluded], int(excluded.sum())
    counts = {"papers": len(corpus), "titles": len(split), "citations": len(corpus.citing), "rejected": dict(+rejected)}
    return DerivedRecords(_title_records(corpus, split), counts)


def _titled_rows(corpus: Corpus, options: DerivedTexts, rejected: Counter[str], reporter: Reporter) -> Numbers:
    """Return the rows of the papers whose title can be paired with their abstract, ascending."""
    both = np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))
    if not len(both):
        raise EmptyResultError(f"{corpus.folder} has no paper with a title and an abstract; import a source with both")
    fits, keys = np.zeros(len(both), bool), np.zeros(len(both), np.uint64)
    with reporter.task("reading", len(both), "titles") as advance:
        for start in range(0, len(both), BLOCK):
            titles = corpus.titles.take(both[start : start + BLOCK])
            reasons = [word_reason(title, options.min_words, options.max_words) for title in titles]
            rejected.update(f"title: {reason}" for reason in reasons if reason)
            fits[start : start + BLOCK] = [not reason for reason in reasons]
            keys[start : start + BLOCK] = repeat_keys([title.lower() for title in titles])
            advance(len(titles))
    first = is_first(keys[fits])
    rejected["title: repeats another one"] += int((~first).sum())
    rejected["paper: no title or no abstract"] += len(corpus) - len(both)
    if not first.any():
        raise EmptyResultError(
            f"no title of {corpus.folder} can be used ({list_rejected(rejected)}); lower texts.min_words"
        )
    return both[fits][first]


def _title_records(corpus: Corpus, split: Numbers) -> Iterator[StagedRecord]:
    """Yield the papers and citations of the corpus, then titles and abstracts of the rows to split, then contexts."""
    for start in range(0, len(corpus), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(corpus)))
        columns = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
        for id, title, abstract in zip(*columns, strict=True):
            yield Paper(id, title=title, abstract=abstract)
    for start in range(0, len(corpus.citing), BLOCK):
        yield from citation_blocks(
            *(_id_keys(corpus, side[start : start + BLOCK]) for side in (corpus.citing, corpus.cited))
        )
    for start in range(0, len(split), BLOCK):
        yield from _split_records(corpus, split[start : start + BLOCK])
    yield from _context_records(corpus)


def _split_records(corpus: Corpus, rows: Numbers) -> Iterator[StagedRecord]:
    """Yield the titles and abstracts of these papers as separate papers, with hubs and citations that relate them."""
    names = [str(row) for row in rows.tolist()]
    texts = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    for name, id, title, abstract in zip(names, *texts, strict=True):
        yield Paper(f"title:{name}", abstract=title, extra={"paper": id})
        yield Paper(f"abstract:{name}", abstract=abstract, extra={"paper": id})
        yield Paper(f"paper:{name}", stub=True)
    title, abstract, hub = (hash_texts([f"{kind}:{name}" for name in names]) for kind in ("title", "abstract", "paper"))
    yield from citation_blocks(title, abstract)
    for side in (title, abstract, _id_keys(corpus, rows)):
        yield from citation_blocks(hub, side)


def _context_records(corpus: Corpus) -> Iterator[Context]:
    """Yield the citing sentences whose citing and cited papers are in the corpus."""
    table = corpus.contexts
    inside = np.flatnonzero((table.citing >= 0) & (np.diff(table.cited_offsets) > 0))  # (contexts,)
    for start in range(0, len(inside), BLOCK):
        numbers = inside[start : start + BLOCK]
        columns = (corpus.ids.take(table.citing[numbers]), table.texts.take(numbers), table.sections.take(numbers))
        for number, citing, text, section in zip(numbers.tolist(), *columns, strict=True):
            cited = tuple(corpus.ids.take(table.cited_rows(number)))
            yield Context(citing, text, cited, section, Intent(int(table.intents[number])))


def _id_keys(corpus: Corpus, rows: NDArray[np.integer]) -> Keys:
    return hash_texts(corpus.ids.take(rows))
