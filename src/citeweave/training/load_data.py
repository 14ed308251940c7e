"""Load training data from a corpus and its samples: tokenize papers, split off validation, find related papers.

A paper without text cannot be read: it is dropped from the samples, and a sample that loses its anchor, or all of its
positives or negatives, is left out. Everything left out is counted. Samples are split by anchor into training and
validation, so that no anchor is in both.

For losses on sentences a paper is read as `encoders/sentence_encoder.py` reads it: title, separator, the sentences of
its abstract; without an abstract the title is the only sentence. A paper none of whose sentences fits into the maximum
length has one sentence: all of its tokens. Tokens are written to disk in blocks, so an interrupted run resumes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import hash_texts, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import count_owners, owners_of, spans, to_offsets
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.paper_texts import PaperTexts
from citeweave.encoders.sentence_encoder import SentenceLayout, lay_out_sentences
from citeweave.encoders.tokens import TextReader, Tokens, TokenStore, make_token_store
from citeweave.graph.signals import Signal, related
from citeweave.training.data import (
    AlignedPairs,
    AnchorGroups,
    Mask,
    Numbers,
    PaperLists,
    RankingPools,
    SentenceSpans,
    TrainingData,
    join_groups,
    make_alignment,
)
from citeweave.training.options import TEACHER_LOSSES, EncoderOptions, TrainingOptions, negative_rules
from citeweave.vectors.vectors import unit_rows

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.tasks import Suite
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.samples import Samples
    from citeweave.vectors.vectors import Vectors


Split = tuple[str, list[str]]
"""Title and sentences of a paper."""


def _tokenize(
    corpus: Corpus, rows: Numbers, reader: TextReader, encoder: EncoderOptions, folder: Path, reporter: Reporter
) -> TokenStore:
    """Tokenize the texts of the training papers into `folder`."""
    texts = PaperTexts(corpus, encoder.text_recipe)
    return _make_store(corpus, rows, reader, texts.take, encoder.text_recipe.hash, folder, reporter)


def tokenize_sentences(
    corpus: Corpus, rows: Numbers, reader: TextReader, folder: Path, *, reporter: Reporter = QUIET
) -> tuple[TokenStore, SentenceSpans]:
    """Load papers to train on sentence by sentence: tokenize them into `folder`; return tokens and sentence spans."""

    def take(some: Numbers) -> list[Split]:
        pairs = zip(corpus.titles.take(some), corpus.abstracts.take(some), strict=True)
        return [_split_paper(title, sentence_texts(abstract)) for title, abstract in pairs]

    layouts = _LayoutReader(**{field.name: getattr(reader, field.name) for field in fields(reader)})
    return _unpack(_make_store(corpus, rows, layouts, take, "title and sentences", folder, reporter))


def _make_store(
    corpus: Corpus,
    rows: Numbers,
    reader: TextReader,
    take: Callable[[Numbers], list[Any]],
    text: str,
    folder: Path,
    reporter: Reporter,
) -> TokenStore:
    """Tokenize what `take` reads of the training papers into a token store; `text` identifies it."""
    recipe = {"corpus": corpus.hash, "text_recipe": text, "rows": hash_json(rows.tolist())}
    return make_token_store(reader, _Slices(rows, take), folder, recipe=recipe, overwrite=True, reporter=reporter)


class _Slices(Sequence[Any]):
    """What a function reads of the training papers, slice by slice."""

    def __init__(self, rows: Numbers, take: Callable[[Numbers], list[Any]]) -> None:
        self._rows, self._take = rows, take

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: Any) -> Any:
        entries = self._take(np.atleast_1d(self._rows[part]))
        return entries if isinstance(part, slice) else entries[0]


def load_alignment(samples: Samples, rows: Numbers, spans: SentenceSpans) -> AlignedPairs | None:
    """Load the aligned sentences of samples, numbered among the sentences that have tokens; others are left out."""
    alignment = samples.alignment
    if alignment is None:
        return None
    anchors = np.searchsorted(rows, np.asarray(samples.anchors, np.int64)[samples.positives.owners()])
    positives = np.searchsorted(rows, np.asarray(samples.positives.rows, np.int64))
    sentences = np.stack(
        [
            _find_sentences(spans, anchors, np.asarray(alignment.anchor_sentences, np.int64)),
            _find_sentences(spans, positives, np.asarray(alignment.sentences, np.int64)),
        ],
        axis=1,
    )  # (picks, 2)
    keep = (sentences >= 0).all(axis=1)
    return make_alignment(anchors[keep], positives[keep], sentences[keep])


def _find_sentences(spans: SentenceSpans, papers: Numbers, numbers: Numbers) -> Numbers:
    """Find each paper's sentence of this number among its tokenized sentences, -1 where it has no tokens."""
    width = int(max(spans.numbers.max(initial=0), numbers.max(initial=0))) + 2
    known = spans.owners() * width + spans.numbers + 1  # (sentences,), ascending: numbers ascend within a paper
    wanted = papers * width + numbers + 1
    at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
    hit = (known[at] == wanted) & (numbers >= 0) if len(known) else np.zeros(len(papers), bool)
    return np.where(hit, at - spans.offsets[papers], -1)


def _split_paper(title: str, sentences: list[str]) -> Split:
    """Return title and sentences of a paper; without an abstract its title is the only sentence.

    >>> _split_paper("A title", ["One."]), _split_paper("A title alone", [])
    (('A title', ['One.']), ('', ['A title alone']))
    """
    return (title, sentences) if any(text.strip() for text in sentences) else ("", [title] if title else [])


class _LayoutReader(TextReader):
    """Reader of papers into token records: number of sentences, their starts, ends and numbers, then the tokens."""

    def read(self, papers: Sequence[Any]) -> list[Tokens]:
        layouts = lay_out_sentences(self, [title for title, _ in papers], [sentences for _, sentences in papers])
        return [_pack(layout) for layout in layouts]


def _pack(layout: SentenceLayout) -> Tokens:
    """Pack the tokens of a paper and the spans of its sentences into one record of a token store."""
    if not len(layout.tokens):
        return layout.tokens
    starts, ends, numbers = layout.starts, layout.ends, layout.numbers
    if not len(numbers):
        starts, ends, numbers = np.array([0]), np.array([len(layout.tokens)]), np.array([-1])
    return np.concatenate([[len(numbers)], starts, ends, numbers + 1, layout.tokens])


def _unpack(records: TokenStore) -> tuple[TokenStore, SentenceSpans]:
    """Unpack the records of a token store into tokens and sentence spans.

    >>> record = _pack(SentenceLayout(np.array([7, 8, 9]), np.array([1]), np.array([2]), np.array([4])))
    >>> store, spans = _unpack(TokenStore(record.astype(np.uint16), np.array([0, len(record)])))
    >>> store[0].tolist(), spans.starts.tolist(), spans.ends.tolist(), spans.numbers.tolist()
    ([7, 8, 9], [1], [2], [4])
    """
    begins, lengths = records.offsets[:-1], records.lengths()
    counts = np.zeros(len(records), np.int64)  # (papers,)
    counts[lengths > 0] = records.ids[begins[lengths > 0]]
    heads = np.where(lengths > 0, 1 + 3 * counts, 0)
    starts, ends, numbers = (
        records.ids[spans(begins + 1 + column * counts, counts)].astype(np.int64) for column in range(3)
    )  # (sentences,) each
    is_token = np.ones(len(records.ids), bool)
    is_token[spans(begins, heads)] = False
    tokens = TokenStore(np.asarray(records.ids)[is_token], to_offsets(lengths - heads))
    return tokens, SentenceSpans(to_offsets(counts), starts, ends, numbers - 1)


# Training data

QUERIES = 200
"""Maximum number of queries per task that validation ranks."""


@dataclass(frozen=True, slots=True)
class DataSources:
    """Sources to load training data from besides samples: citation graph, teachers' vectors, suite for validation."""

    graph: CitationGraph | None = None
    """For losses with in-batch negatives, which leave out related papers."""

    teachers: tuple[Vectors, ...] = ()
    """Vectors for a loss that follows a teacher, such as a graph's node vectors or those of a larger model.

    With several, the loss follows the mean of their cosines."""

    suite: Suite | None = None
    """Suite whose ranking tasks become pools for validation."""

    validation: tuple[Samples, ...] = ()
    """Other samples of the corpus, whose samples of held-out anchors are validated on too."""

    queries: int = QUERIES

    def hashes(self) -> dict[str, Any]:
        """Return hashes of the sources that training data is loaded from, for the manifest of a training run."""
        graph, suite = self.graph, self.suite
        teachers = [vectors.manifest.hash for vectors in self.teachers]
        return {
            "graph": None if graph is None else _hash(graph.cited.offsets, graph.cited.targets),
            "teacher": teachers if len(teachers) > 1 else next(iter(teachers), None),
            "suite": None if suite is None else {**suite.data, "folder": "", "queries": self.queries},
        } | ({"validation": [samples.hash for samples in self.validation]} if self.validation else {})


def load_training_data(
    corpus: Corpus,
    samples: Samples,
    reader: TextReader,
    encoder: EncoderOptions,
    options: TrainingOptions,
    folder: Path,
    sources: DataSources | None = None,
    *,
    reporter: Reporter = QUIET,
) -> TrainingData:
    """Load the training data of a corpus and samples; tokens are written to `folder`, or reused if they exist."""
    samples.check_corpus(corpus.hash, corpus.folder)
    sources = sources or DataSources()
    _check_sources(options, sources, encoder)
    graph = sources.graph if _needs_related(options) else None
    groups, pools = _load_groups(samples, options), _load_pools(corpus, sources)
    joined = _load_other_validation(corpus, sources, options)
    read = [groups.papers(), *(part.papers() for part in joined), *(pool.papers() for pool in pools.values())]
    rows = np.unique(np.concatenate(read))
    sentences = None
    if options.reads_sentences:
        tokens, sentences = tokenize_sentences(corpus, rows, reader, folder, reporter=reporter)
    else:
        tokens = _tokenize(corpus, rows, reader, encoder, folder, reporter)
    readable, left_out = _drop_unreadable(
        _renumber_groups(groups, rows), tokens.lengths() > 0, pairs_suffice=options.pairs_suffice
    )
    held_out = _select_validation(rows[readable.anchors], options)
    training, validation = (readable.take(np.flatnonzero(part)) for part in (~held_out, held_out))
    for other in joined:
        more = _drop_unreadable(
            _renumber_groups(other, rows), tokens.lengths() > 0, pairs_suffice=options.pairs_suffice
        )
        validation = join_groups([validation, more[0]])
    training, validation, aspects = _number_aspects(training, validation, samples.names.aspects, reporter)
    return TrainingData(
        rows=rows,
        tokens=tokens,
        groups=training,
        validation=validation,
        related=None if graph is None else find_related_papers(corpus, graph, rows),
        sentences=sentences,
        alignment=None if sentences is None else load_alignment(samples, rows, sentences),
        aspects=aspects,
        rules=samples.names.rules if options.reads_rules else (),
        teacher=_load_teachers(corpus, sources.teachers, rows, reporter),
        pools={name: _renumber_pools(pool, rows) for name, pool in pools.items()},
        metadata={
            "corpus": corpus.hash,
            "samples": samples.hash,
            "papers": len(rows),
            "tokens": len(tokens.ids),
            "samples for training": len(training),
            "samples for validation": len(validation),
            "left out": left_out,
        },
    )


def _check_sources(options: TrainingOptions, sources: DataSources, encoder: EncoderOptions) -> None:
    """Refuse losses that need a citation graph, a teacher's vectors or other texts without them."""
    if options.reads_sentences and encoder.text != ("title", "abstract"):
        raise UserError(
            f"encoder.text is {list(encoder.text)}; losses on sentences read title and abstract: set encoder.text to these"
        )
    if _needs_related(options) and sources.graph is None:
        names = ", ".join(name for name, settings in options.losses.items() if settings.get("relatives"))
        raise UserError(
            f"the loss {names} takes the batch's other papers as negatives and needs the citation graph to leave out "
            "related papers; give --graph, or set its relatives=false"
        )
    if (taught := set(TEACHER_LOSSES) & options.losses.keys()) and not sources.teachers:
        raise UserError(
            f"the loss {', '.join(sorted(taught))} needs a teacher's vectors; give --teacher with a folder of vectors, such as "
            "graph/vectors or an output of `citeweave embed`"
        )


def _needs_related(options: TrainingOptions) -> bool:
    return any(
        settings.get("relatives") and "own" not in (settings.get("scope"), settings.get("negatives"))
        for settings in options.losses.values()
    )


def _load_groups(samples: Samples, options: TrainingOptions) -> AnchorGroups:
    """Load the samples as groups of corpus rows, with aspects and rules where a loss needs them."""
    positives, negatives = (
        PaperLists(np.asarray(picks.offsets, np.int64), np.asarray(picks.rows, np.int64))
        for picks in (samples.positives, samples.negatives)
    )
    if options.reads_aspects and not all(samples.names.aspects):
        raise UserError(
            f"a loss in aspect spaces needs samples with aspects, and {samples.folder} has none; mine with a recipe that has "
            "mining.aspects, such as sciaspect"
        )
    _check_rules(samples, options)
    aspects = np.asarray(samples.aspects, np.int64) if options.reads_aspects else None
    rules = np.asarray(samples.negatives.rules, np.int64) if options.reads_rules else None
    return AnchorGroups(np.asarray(samples.anchors, np.int64), positives, negatives, aspects, rules)


def _load_other_validation(corpus: Corpus, sources: DataSources, options: TrainingOptions) -> list[AnchorGroups]:
    """Load held-out samples of other samples folders; anchors are held out by their rows, so the same ones everywhere."""
    if sources.validation and (options.reads_aspects or options.reads_rules):
        raise UserError(
            "--validation-samples cannot be joined for losses in aspect spaces or with negatives_by; leave it out"
        )
    found = []
    for samples in sources.validation:
        samples.check_corpus(corpus.hash, corpus.folder)
        groups = _load_groups(samples, options)
        held_out = groups.take(np.flatnonzero(_select_validation(groups.anchors, options)))
        found += [held_out] if len(held_out) else []
    return found


def _number_aspects(
    training: AnchorGroups, validation: AnchorGroups, names: tuple[str, ...], reporter: Reporter
) -> tuple[AnchorGroups, AnchorGroups, tuple[str, ...]]:
    """Renumber the aspects of groups by those that training samples have, and return their names."""
    if training.aspects is None:
        return training, validation, ()
    present = np.unique(training.aspects)  # (aspects,)
    if absent := [name for number, name in enumerate(names) if number not in present]:
        reporter.say(f"no sample has the aspect {', '.join(absent)}: the model gets no space for it")

    renumbered = []
    for groups in (training, validation):
        assert groups.aspects is not None
        which = np.flatnonzero(np.isin(groups.aspects, present))
        aspects = np.searchsorted(present, groups.aspects[which])
        renumbered.append(dataclasses.replace(groups.take(which), aspects=aspects))
    return renumbered[0], renumbered[1], tuple(names[number] for number in present.tolist())


def _check_rules(samples: Samples, options: TrainingOptions) -> None:
    """Refuse a loss whose `negatives_by` names a rule that chose no negatives."""
    counts = np.bincount(samples.negatives.rules, minlength=len(samples.names.rules))  # (rules,)
    rules = [name for name, count in zip(samples.names.rules, counts.tolist(), strict=True) if count]
    for name, settings in options.losses.items():
        for rule in negative_rules(settings):
            choose(rule, rules, f"training.losses.{name}.negatives_by: rules that chose negatives")


def _renumber_groups(groups: AnchorGroups, rows: Numbers) -> AnchorGroups:
    """Renumber the papers of groups from corpus rows to papers of the data."""
    return dataclasses.replace(
        groups,
        anchors=np.searchsorted(rows, groups.anchors),
        positives=groups.positives.renumber(rows),
        negatives=groups.negatives.renumber(rows),
    )


def _drop_unreadable(
    groups: AnchorGroups, has_text: Mask, *, pairs_suffice: bool
) -> tuple[AnchorGroups, dict[str, int]]:
    """Drop papers without text from the groups, and count what was left out by reason."""
    positives, negatives = (lists.keep(has_text[lists.papers]) for lists in (groups.positives, groups.negatives))
    rules = None if groups.rules is None else groups.rules[has_text[groups.negatives.papers]]
    reduced = dataclasses.replace(groups, positives=positives, negatives=negatives, rules=rules)
    has_anchor = has_text[groups.anchors]
    complete = has_anchor & reduced.can_train(pairs_suffice=pairs_suffice)  # (samples,)
    reasons = {
        "positives and negatives without text": len(groups.papers()) - len(reduced.papers()),
        "samples whose anchor has no text": int((~has_anchor).sum()),
        "samples without a positive or a negative": int((has_anchor & ~complete).sum()),
    }
    if not complete.any():
        counts = "; ".join(f"{number:,} {reason}" for reason, number in reasons.items())
        raise EmptyResultError(
            f"none of the {len(groups):,} samples can be trained on ({counts}); import papers with text"
        )
    return reduced.take(np.flatnonzero(complete)), {reason: number for reason, number in reasons.items() if number}


def _select_validation(rows: Numbers, options: TrainingOptions) -> Mask:
    """Select the samples held out for validation: a share of the anchors, drawn by their rows."""
    # independent of the seed, so that validations of several seeds can be compared
    keys = mix_keys(rows.astype(np.uint64), np.full(len(rows), 0x5EED, np.uint64))  # (samples,)
    held_out = (
        keys < np.uint64(options.validation * float(2**64 - 1)) if options.validation else np.zeros(len(rows), bool)
    )
    return np.zeros_like(held_out) if held_out.all() else held_out


def _load_teachers(
    corpus: Corpus, teachers: Sequence[Vectors], rows: Numbers, reporter: Reporter
) -> NDArray[np.float32] | None:
    """Load the teachers' vectors side by side, (papers, their dimensions): the mean of their cosines; 0 where one lacks a paper."""
    parts = [_load_teacher(corpus, vectors, rows, reporter) for vectors in teachers]
    if len(parts) < 2:
        return next(iter(parts), None)
    joined = np.concatenate(list(map(unit_rows, parts)), axis=1)
    joined[~np.all([part.any(axis=1) for part in parts], axis=0)] = 0
    return joined


def _load_teacher(corpus: Corpus, vectors: Vectors, rows: Numbers, reporter: Reporter) -> NDArray[np.float32]:
    """Load a teacher's vectors of the papers, (papers, its dimension); zeros where it has none."""
    at = vectors.rows(corpus.ids.take(rows))
    if not (at >= 0).any():
        raise UserError(f"{vectors.folder} has no vector of any paper of the samples; give vectors of this corpus")
    if missing := int((at < 0).sum()):
        reporter.say(f"{vectors.folder} has no vector of {missing:,} of {len(at):,} papers: they follow no teacher")
    matrix = np.asarray(vectors.matrix[np.maximum(at, 0)], np.float32)
    matrix[at < 0] = 0
    return matrix


def _load_pools(corpus: Corpus, sources: DataSources) -> dict[str, RankingPools]:
    """Load the ranking tasks of the suite as pools of corpus rows, with a limited number of queries each."""
    if sources.suite is None:
        return {}
    from citeweave.evaluation.tasks import RankingTask

    return {
        task.name: _load_pool(corpus, task, sources.queries)
        for task in sources.suite.tasks
        if isinstance(task, RankingTask)
    }


def _load_pool(corpus: Corpus, task: Any, max_queries: int) -> RankingPools:
    rows = corpus.rows(task.texts.ids).astype(np.int64)  # (papers of the suite,)
    if (rows < 0).any():
        raise UserError(
            f"the task {task.name} has papers that are not in {corpus.folder}; make the suite from this corpus"
        )
    pools, count = task.pools, min(max_queries, len(task.pools.queries))
    end = int(pools.offsets[count])
    candidates = PaperLists(np.asarray(pools.offsets[: count + 1], np.int64), rows[pools.candidates[:end]])
    return RankingPools(rows[pools.queries[:count]], candidates, pools.grades[:end] > 0)


def _renumber_pools(pool: RankingPools, rows: Numbers) -> RankingPools:
    return RankingPools(np.searchsorted(rows, pool.queries), pool.candidates.renumber(rows), pool.relevant)


# Related papers


def find_related_papers(corpus: Corpus, graph: CitationGraph, rows: Numbers) -> PaperLists:
    """Find the training data's related papers, which must not be in-batch negatives of each other.

    Related are papers by citation, co-citation, shared references, or equal titles.
    """
    owners, others = _find_same_titles(corpus, rows)
    # two shared references may be chance
    for signal in (Signal("connected"), Signal("cocited"), Signal("coupled", least=3)):
        neighbors = related(graph, signal, rows)
        owner = owners_of(neighbors.offsets)
        place = np.minimum(np.searchsorted(rows, neighbors.targets), len(rows) - 1)
        inside = rows[place] == neighbors.targets
        owners, others = np.concatenate([owners, owner[inside]]), np.concatenate([others, place[inside]])
    pairs = np.unique(np.stack([owners, others], axis=1), axis=0)  # (pairs, 2)
    return PaperLists(count_owners(pairs[:, 0], len(rows)), pairs[:, 1])


def _find_same_titles(corpus: Corpus, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Find pairs of papers with equal titles up to case and whitespace, in both directions."""
    titles = [" ".join(title.lower().split()) for title in corpus.titles.take(rows)]
    keys = np.where([bool(title) for title in titles], hash_texts(titles), np.arange(len(rows), dtype=np.uint64))
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    twins = [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)], strict=True) if b - a > 1]
    pairs = [(int(left), int(right)) for same in twins for left in same for right in same if left != right]
    owners, others = np.array(pairs, np.int64).reshape(-1, 2).T
    return owners, others


def _hash(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:16]
