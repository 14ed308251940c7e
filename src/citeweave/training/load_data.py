"""The tokens of papers with their sentences: what training on sentences reads of a corpus.

    tokens, spans = read_sentences(corpus, rows, reader, folder)

A paper is read as `encoders/sentence_encoder.py` reads it: title, separator, the sentences of its abstract; the title is the
one sentence where there is no abstract. A paper of whose sentences none fits into the reader's length has one sentence:
all of its tokens. Tokens go to disk block by block and an interrupted run goes on.

From a corpus and its samples to training data: which papers take part, their tokens, who is whose.

A paper without text cannot be read: it leaves the samples, and a sample that loses its anchor, or all of its positives
or negatives, leaves altogether. All of it is counted. Samples are split by anchor into training and validation, so that
no anchor is in both.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import mix
from citeweave.encoders.embed import PaperTexts
from citeweave.encoders.sentence_encoder import SentenceLayout, lay_out
from citeweave.encoders.tokens import TextReader, Tokens, TokenStore, make_token_store
from citeweave.training.data import (
    AlignedPairs,
    AnchorGroups,
    Numbers,
    PaperLists,
    RankingPools,
    SentenceSpans,
    TrainingData,
    find_relatives,
    make_alignment,
)
from citeweave.training.options import EncoderOptions, TrainingOptions, rules_of

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.tasks import Suite
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.samples import Samples
    from citeweave.vectors.vectors import Vectors


Split = tuple[str, list[str]]
"""A title and sentences."""


def read_sentences(
    corpus: Corpus, rows: Numbers, reader: TextReader, folder: Path, *, reporter: Reporter = QUIET
) -> tuple[TokenStore, SentenceSpans]:
    """Tokens of these papers, and where their sentences are; `folder` keeps what was tokenized."""
    records = make_token_store(
        _LayoutReader(reader),  # type: ignore[arg-type]  # it reads papers in sentences instead of texts
        _Splits(corpus, rows),  # type: ignore[arg-type]
        folder,
        recipe={"corpus": corpus.hash, "text_recipe": "title and sentences", "rows": hash_json(rows.tolist())},
        overwrite=True,
        reporter=reporter,
    )
    return _unpack(records)


def align(samples: Samples, rows: Numbers, spans: SentenceSpans) -> AlignedPairs | None:
    """The alignment of samples by places among the sentences that have tokens; pairs that lost theirs are left out."""
    found = samples.alignment
    if found is None:
        return None
    anchors = np.searchsorted(rows, np.asarray(samples.anchors, np.int64)[samples.positives.owners()])
    positives = np.searchsorted(rows, np.asarray(samples.positives.rows, np.int64))
    sentences = np.stack(
        [
            _places(spans, anchors, np.asarray(found.anchor_sentences, np.int64)),
            _places(spans, positives, np.asarray(found.sentences, np.int64)),
        ],
        axis=1,
    )  # (picks, 2)
    keep = (sentences >= 0).all(axis=1)
    return make_alignment(anchors[keep], positives[keep], sentences[keep])


def _places(spans: SentenceSpans, papers: Numbers, numbers: Numbers) -> Numbers:
    """Where a paper's sentence of this number is among those that have tokens, -1 where it is not."""
    width = int(max(spans.numbers.max(initial=0), numbers.max(initial=0))) + 2
    owner = np.repeat(np.arange(len(spans.offsets) - 1), spans.counts())  # (sentences,)
    known = owner * width + spans.numbers + 1  # ascending: numbers ascend within a paper
    wanted = papers * width + numbers + 1
    at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
    hit = (known[at] == wanted) & (numbers >= 0) if len(known) else np.zeros(len(papers), bool)
    return np.where(hit, at - spans.offsets[papers], -1)


class _Splits(Sequence[Split]):
    """Titles and sentences of some papers, read slice by slice."""

    def __init__(self, corpus: Corpus, rows: Numbers) -> None:
        self._corpus, self._rows = corpus, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, part: int) -> Split: ...
    @overload
    def __getitem__(self, part: slice) -> list[Split]: ...
    def __getitem__(self, part: int | slice) -> Split | list[Split]:
        from citeweave.corpus.text import sentence_texts

        rows = np.atleast_1d(self._rows[part])
        pairs = zip(self._corpus.titles.take(rows), self._corpus.abstracts.take(rows), strict=True)
        found = [_split(title, sentence_texts(abstract)) for title, abstract in pairs]
        return found if isinstance(part, slice) else found[0]


def _split(title: str, sentences: list[str]) -> Split:
    """
    >>> _split("A title", ["One."]), _split("A title alone", [])
    (('A title', ['One.']), ('', ['A title alone']))
    """
    return (title, sentences) if any(text.strip() for text in sentences) else ("", [title] if title else [])


@dataclass(frozen=True)
class _LayoutReader:
    """Reads papers into records of a token store: how many sentences, their starts, ends and numbers, then the tokens."""

    reader: TextReader

    @property
    def tokenizer(self) -> object:
        return self.reader.tokenizer

    @property
    def max_tokens(self) -> int:
        return self.reader.max_tokens

    @property
    def lower(self) -> bool:
        return self.reader.lower

    @property
    def prompt(self) -> str:
        return self.reader.prompt

    def read(self, papers: Sequence[Split]) -> list[Tokens]:
        layouts = lay_out(self.reader, [title for title, _ in papers], [sentences for _, sentences in papers])
        return [_record(layout) for layout in layouts]


def _record(layout: SentenceLayout) -> Tokens:
    if not len(layout.tokens):
        return layout.tokens
    starts, ends, numbers = layout.starts, layout.ends, layout.numbers
    if not len(numbers):
        starts, ends, numbers = np.array([0]), np.array([len(layout.tokens)]), np.array([-1])
    return np.concatenate([[len(numbers)], starts, ends, numbers + 1, layout.tokens])


def _unpack(records: TokenStore) -> tuple[TokenStore, SentenceSpans]:
    """Tokens and spans apart.

    >>> record = _record(SentenceLayout(np.array([7, 8, 9]), np.array([1]), np.array([2]), np.array([4])))
    >>> store, spans = _unpack(TokenStore(record.astype(np.uint16), np.array([0, len(record)])))
    >>> store[0].tolist(), spans.starts.tolist(), spans.ends.tolist(), spans.numbers.tolist()
    ([7, 8, 9], [1], [2], [4])
    """
    begins, lengths = records.offsets[:-1], records.lengths()
    counts = np.zeros(len(records), np.int64)  # (papers,)
    counts[lengths > 0] = records.ids[begins[lengths > 0]]
    heads = np.where(lengths > 0, 1 + 3 * counts, 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)  # (sentences,)
    columns = [
        records.ids[np.repeat(begins + 1 + column * counts, counts) + within].astype(np.int64) for column in range(3)
    ]
    is_token = np.ones(len(records.ids), bool)
    marks = np.repeat(begins - (np.cumsum(heads) - heads), heads) + np.arange(int(heads.sum()))
    is_token[marks] = False
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths - heads)])
    tokens = TokenStore(np.asarray(records.ids)[is_token], ends)
    return tokens, SentenceSpans(offsets, columns[0], columns[1], columns[2] - 1)


# From a corpus and its samples to training data: which papers take part, their tokens, who is whose.

QUERIES = 200
"""Queries of a task that validation ranks."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What training data may be made of beside samples."""

    graph: CitationGraph | None = None
    """For losses that take the batch's other papers as negatives: known relatives are left out."""

    teacher: Vectors | None = None
    """For the student-teacher loss, such as a graph's node vectors."""

    suite: Suite | None = None
    """Its rankings become pools of the validation."""

    queries: int = QUERIES

    def hashes(self) -> dict[str, Any]:
        """What training depends on, for its manifest."""
        graph, teacher, suite = self.graph, self.teacher, self.suite
        return {
            "graph": None if graph is None else _hash(graph.cited.offsets, graph.cited.targets),
            "teacher": None if teacher is None else teacher.manifest.hash,
            "suite": None if suite is None else {**suite.data, "folder": "", "queries": self.queries},
        }


def gather(
    corpus: Corpus,
    samples: Samples,
    reader: TextReader,
    encoder: EncoderOptions,
    options: TrainingOptions,
    folder: Path,
    sources: Sources | None = None,
    *,
    reporter: Reporter = QUIET,
) -> TrainingData:
    """Training data of a corpus and samples; the tokens are written to `folder`, or opened where they are there."""
    samples.check_corpus(corpus.hash, corpus.folder)
    sources = sources or Sources()
    _check_sources(options, sources)
    groups, pools = _groups(samples, options), _pools(corpus, sources)
    rows = np.unique(np.concatenate([_papers(groups), *(_pool_papers(pool) for pool in pools.values())]))
    tokens, spans = _read(corpus, rows, reader, encoder, options, folder, reporter)
    kept, left_out = _readable(_renumbered(groups, rows), tokens.lengths() > 0, pairs_suffice=options.pairs_suffice)
    held = _held_back(rows[kept.anchors], options)
    training, validation = (kept.take(np.flatnonzero(part)) for part in (~held, held))
    training, validation, aspects = _taught(training, validation, samples.names.aspects, reporter)
    return TrainingData(
        rows=rows,
        tokens=tokens,
        groups=training,
        validation=validation,
        relatives=_relatives(corpus, sources.graph, rows, options),
        sentences=spans,
        alignment=None if spans is None else align(samples, rows, spans),
        aspects=aspects,
        rules=samples.names.rules if options.reads_rules else (),
        teacher=_teacher(corpus, sources.teacher, rows),
        pools={name: _renumbered_pools(pool, rows) for name, pool in pools.items()},
        facts={
            "corpus": corpus.hash,
            "samples": samples.hash,
            "papers": len(rows),
            "tokens": len(tokens.ids),
            "samples for training": len(training),
            "samples for validation": len(validation),
            "left out": left_out,
        },
    )


def _read(
    corpus: Corpus,
    rows: Numbers,
    reader: TextReader,
    encoder: EncoderOptions,
    options: TrainingOptions,
    folder: Path,
    reporter: Reporter,
) -> tuple[TokenStore, SentenceSpans | None]:
    """Tokens of the papers, and where their sentences are if a loss reads them."""
    if options.reads_sentences:
        if encoder.text != ("title", "abstract"):
            raise UserError(f"encoder.text is {list(encoder.text)}; losses on sentences read title and abstract")
        return read_sentences(corpus, rows, reader, folder, reporter=reporter)
    tokens = make_token_store(
        reader,
        _TextSlices(PaperTexts(corpus, encoder.text_recipe), rows),
        folder,
        recipe={"corpus": corpus.hash, "text_recipe": encoder.text_recipe.hash, "rows": hash_json(rows.tolist())},
        overwrite=True,
        reporter=reporter,
    )
    return tokens, None


def _check_sources(options: TrainingOptions, sources: Sources) -> None:
    if _asks_for_relatives(options) and sources.graph is None:
        names = ", ".join(name for name, settings in options.losses.items() if settings.get("relatives"))
        raise UserError(
            f"the loss {names} takes the batch's other papers as negatives and needs the citation graph to leave known "
            "relatives out; give --graph, or set its relatives=false"
        )
    if "student_teacher" in options.losses and sources.teacher is None:
        raise UserError(
            "the loss student_teacher needs a teacher's vectors; give --teacher with a folder of vectors, such as "
            "graph/vectors"
        )


def _asks_for_relatives(options: TrainingOptions) -> bool:
    return any(
        settings.get("relatives") and "own" not in (settings.get("scope"), settings.get("negatives"))
        for settings in options.losses.values()
    )


def _groups(samples: Samples, options: TrainingOptions) -> AnchorGroups:
    positives, negatives = (
        PaperLists(np.asarray(picks.offsets, np.int64), np.asarray(picks.rows, np.int64))
        for picks in (samples.positives, samples.negatives)
    )
    if options.reads_aspects and not all(samples.names.aspects):
        raise UserError(
            f"a loss in aspect spaces needs samples with aspects, and {samples.folder} has none; mine by a recipe with "
            "mining.aspects, such as sciaspect"
        )
    _check_rules(samples, options)
    aspects = np.asarray(samples.aspects, np.int64) if options.reads_aspects else None
    rules = np.asarray(samples.negatives.rules, np.int64) if options.reads_rules else None
    return AnchorGroups(np.asarray(samples.anchors, np.int64), positives, negatives, aspects, rules)


def _taught(
    training: AnchorGroups, validation: AnchorGroups, names: tuple[str, ...], reporter: Reporter
) -> tuple[AnchorGroups, AnchorGroups, tuple[str, ...]]:
    """Groups with their aspects numbered anew, and the names of those that some sample teaches; others have no space."""
    if training.aspects is None:
        return training, validation, ()
    present = np.unique(training.aspects)  # (aspects,)
    if left := [name for number, name in enumerate(names) if number not in present]:
        reporter.say(f"no sample is of the aspect {', '.join(left)}: the model gets no space for it")

    def renumbered(groups: AnchorGroups) -> AnchorGroups:
        assert groups.aspects is not None
        known = groups.take(np.flatnonzero(np.isin(groups.aspects, present)))
        assert known.aspects is not None
        return dataclasses.replace(known, aspects=np.searchsorted(present, known.aspects))

    return renumbered(training), renumbered(validation), tuple(names[number] for number in present.tolist())


def _check_rules(samples: Samples, options: TrainingOptions) -> None:
    """Refuse a loss whose negatives no rule chose."""
    chose = np.bincount(samples.negatives.rules, minlength=len(samples.names.rules))  # (rules,)
    known = [name for name, count in zip(samples.names.rules, chose.tolist(), strict=True) if count]
    for name, settings in options.losses.items():
        for rule in rules_of(settings):
            choose(rule, known, f"training.losses.{name}.negatives_by: rules that chose negatives")


def _papers(groups: AnchorGroups) -> Numbers:
    return np.concatenate([groups.anchors, groups.positives.papers, groups.negatives.papers])


def _pool_papers(pool: RankingPools) -> Numbers:
    return np.concatenate([pool.queries, pool.candidates.papers])


def _renumbered(groups: AnchorGroups, rows: Numbers) -> AnchorGroups:
    def lists(old: PaperLists) -> PaperLists:
        return PaperLists(old.offsets, np.searchsorted(rows, old.papers))

    return dataclasses.replace(
        groups,
        anchors=np.searchsorted(rows, groups.anchors),
        positives=lists(groups.positives),
        negatives=lists(groups.negatives),
    )


def _readable(
    groups: AnchorGroups, has_text: NDArray[np.bool_], *, pairs_suffice: bool
) -> tuple[AnchorGroups, dict[str, int]]:
    """Groups without papers that cannot be read, and what was left out why."""

    def lists(old: PaperLists) -> PaperLists:
        keep = has_text[old.papers]
        owner = np.repeat(np.arange(len(old)), old.counts())
        counts = np.bincount(owner[keep], minlength=len(old))
        return PaperLists(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), old.papers[keep])

    rules = None if groups.rules is None else groups.rules[has_text[groups.negatives.papers]]
    thinner = dataclasses.replace(
        groups, positives=lists(groups.positives), negatives=lists(groups.negatives), rules=rules
    )
    has_anchor = has_text[groups.anchors]
    fits = thinner.positives.counts() > 0 if pairs_suffice else thinner.triplet_counts() > 0  # (samples,)
    whole = has_anchor & fits
    dropped = len(_papers(groups)) - len(groups) - len(thinner.positives.papers) - len(thinner.negatives.papers)
    reasons = {
        "positives and negatives without text": int(dropped),
        "samples whose anchor has no text": int((~has_anchor).sum()),
        "samples without a positive or a negative": int((has_anchor & ~whole).sum()),
    }
    if not whole.any():
        told = "; ".join(f"{number:,} {reason}" for reason, number in reasons.items())
        raise EmptyResultError(
            f"none of the {len(groups):,} samples can be trained on ({told}); import papers with text"
        )
    return thinner.take(np.flatnonzero(whole)), {reason: number for reason, number in reasons.items() if number}


def _held_back(rows: Numbers, options: TrainingOptions) -> NDArray[np.bool_]:
    """Which samples are for validation: a share of the anchors, drawn by their rows."""
    # the same for every seed of a run: their validations can be compared
    keys = mix(rows.astype(np.uint64), np.full(len(rows), 0x5EED, np.uint64))  # (samples,)
    held = keys < np.uint64(options.validation * float(2**64 - 1)) if options.validation else np.zeros(len(rows), bool)
    return np.zeros_like(held) if held.all() else held


def _relatives(
    corpus: Corpus, graph: CitationGraph | None, rows: Numbers, options: TrainingOptions
) -> PaperLists | None:
    if not _asks_for_relatives(options):
        return None
    assert graph is not None, "_check_sources asks for it"
    return find_relatives(corpus, graph, rows)


def _teacher(corpus: Corpus, vectors: Vectors | None, rows: Numbers) -> NDArray[np.float32] | None:
    """The teacher's vectors of every paper, zeros where it has none; (papers, its dimension)."""
    if vectors is None:
        return None
    at = vectors.rows(corpus.ids.take(rows))
    if not (at >= 0).any():
        raise UserError(f"{vectors.folder} has no vector of any paper of the samples; give vectors of this corpus")
    found = np.asarray(vectors.matrix[np.maximum(at, 0)], np.float32)
    found[at < 0] = 0
    return found


def _pools(corpus: Corpus, sources: Sources) -> dict[str, RankingPools]:
    """Rankings of the suite by rows of the corpus, at most so many queries each."""
    if sources.suite is None:
        return {}
    from citeweave.evaluation.tasks import RankingTask

    tasks = [task for task in sources.suite.tasks if isinstance(task, RankingTask)]
    return {task.name: _pool(corpus, task, sources.queries) for task in tasks}


def _pool(corpus: Corpus, task: Any, most: int) -> RankingPools:
    rows = corpus.rows(task.texts.ids).astype(np.int64)  # (papers of the suite,)
    if (rows < 0).any():
        raise UserError(f"the task {task.name} asks about papers that {corpus.folder} lacks; make it from this corpus")
    pools, count = task.pools, min(most, len(task.pools.queries))
    end = int(pools.offsets[count])
    candidates = PaperLists(np.asarray(pools.offsets[: count + 1], np.int64), rows[pools.candidates[:end]])
    return RankingPools(rows[pools.queries[:count]], candidates, pools.grades[:end] > 0)


def _renumbered_pools(pool: RankingPools, rows: Numbers) -> RankingPools:
    return RankingPools(
        np.searchsorted(rows, pool.queries),
        PaperLists(pool.candidates.offsets, np.searchsorted(rows, pool.candidates.papers)),
        pool.relevant,
    )


class _TextSlices(Sequence[str]):
    """Some of the texts, read slice by slice."""

    def __init__(self, texts: PaperTexts, rows: Numbers) -> None:
        self._texts, self._rows = texts, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, part: int) -> str: ...
    @overload
    def __getitem__(self, part: slice) -> list[str]: ...
    def __getitem__(self, part: int | slice) -> str | list[str]:
        found = self._texts.take(np.atleast_1d(self._rows[part]))
        return found if isinstance(part, slice) else found[0]


def _hash(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:16]
