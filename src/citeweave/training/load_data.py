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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.paper_texts import PaperTexts
from citeweave.encoders.sentence_encoder import SentenceLayout, lay_out_sentences
from citeweave.encoders.tokens import TextReader, Tokens, TokenStore, make_token_store
from citeweave.training.data import (
    AlignedPairs,
    AnchorGroups,
    Numbers,
    PaperLists,
    RankingPools,
    SentenceSpans,
    TrainingData,
    find_related_papers,
    make_alignment,
)
from citeweave.training.options import EncoderOptions, TrainingOptions, negative_rules

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.tasks import Suite
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.samples import Samples
    from citeweave.vectors.vectors import Vectors


Split = tuple[str, list[str]]
"""Title and sentences of a paper."""


def tokenize_sentences(
    corpus: Corpus, rows: Numbers, reader: TextReader, folder: Path, *, reporter: Reporter = QUIET
) -> tuple[TokenStore, SentenceSpans]:
    """Load papers to train on sentence by sentence: tokenize them into `folder`; return tokens and sentence spans."""
    records = make_token_store(
        _LayoutReader(reader),  # type: ignore[arg-type]  # reads split papers instead of texts
        _SplitPapers(corpus, rows),  # type: ignore[arg-type]
        folder,
        recipe={"corpus": corpus.hash, "text_recipe": "title and sentences", "rows": hash_json(rows.tolist())},
        overwrite=True,
        reporter=reporter,
    )
    return _unpack(records)


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
    owner = np.repeat(np.arange(len(spans.offsets) - 1), spans.counts())  # (sentences,)
    known = owner * width + spans.numbers + 1  # ascending: numbers ascend within a paper
    wanted = papers * width + numbers + 1
    at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
    hit = (known[at] == wanted) & (numbers >= 0) if len(known) else np.zeros(len(papers), bool)
    return np.where(hit, at - spans.offsets[papers], -1)


class _SplitPapers(Sequence[Split]):
    """Titles and sentences of the training papers, read from the corpus slice by slice."""

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
        papers = [_split_paper(title, sentence_texts(abstract)) for title, abstract in pairs]
        return papers if isinstance(part, slice) else papers[0]


def _split_paper(title: str, sentences: list[str]) -> Split:
    """Return title and sentences of a paper; without an abstract its title is the only sentence.

    >>> _split_paper("A title", ["One."]), _split_paper("A title alone", [])
    (('A title', ['One.']), ('', ['A title alone']))
    """
    return (title, sentences) if any(text.strip() for text in sentences) else ("", [title] if title else [])


@dataclass(frozen=True)
class _LayoutReader:
    """Reader of papers into token records: number of sentences, their starts, ends and numbers, then the tokens."""

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
        layouts = lay_out_sentences(self.reader, [title for title, _ in papers], [sentences for _, sentences in papers])
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


# Training data

QUERIES = 200
"""Maximum number of queries per task that validation ranks."""


@dataclass(frozen=True, slots=True)
class DataSources:
    """Sources to load training data from besides samples: citation graph, teacher's vectors, suite for validation."""

    graph: CitationGraph | None = None
    """For losses with in-batch negatives, which leave out related papers."""

    teacher: Vectors | None = None
    """Vectors for the student-teacher loss, such as a graph's node vectors."""

    suite: Suite | None = None
    """Suite whose ranking tasks become pools for validation."""

    queries: int = QUERIES

    def hashes(self) -> dict[str, Any]:
        """Return hashes of the sources that training data is loaded from, for the manifest of a training run."""
        graph, teacher, suite = self.graph, self.teacher, self.suite
        return {
            "graph": None if graph is None else _hash(graph.cited.offsets, graph.cited.targets),
            "teacher": None if teacher is None else teacher.manifest.hash,
            "suite": None if suite is None else {**suite.data, "folder": "", "queries": self.queries},
        }


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
    _check_sources(options, sources)
    groups, pools = _load_groups(samples, options), _load_pools(corpus, sources)
    rows = np.unique(np.concatenate([_papers(groups), *(_pool_papers(pool) for pool in pools.values())]))
    tokens, spans = _tokenize(corpus, rows, reader, encoder, options, folder, reporter)
    readable, left_out = _drop_unreadable(
        _renumber_groups(groups, rows), tokens.lengths() > 0, pairs_suffice=options.pairs_suffice
    )
    held_out = _select_validation(rows[readable.anchors], options)
    training, validation = (readable.take(np.flatnonzero(part)) for part in (~held_out, held_out))
    training, validation, aspects = _number_aspects(training, validation, samples.names.aspects, reporter)
    return TrainingData(
        rows=rows,
        tokens=tokens,
        groups=training,
        validation=validation,
        related=(
            find_related_papers(corpus, sources.graph, rows)
            if _needs_related(options) and sources.graph is not None
            else None
        ),
        sentences=spans,
        alignment=None if spans is None else load_alignment(samples, rows, spans),
        aspects=aspects,
        rules=samples.names.rules if options.reads_rules else (),
        teacher=_load_teacher(corpus, sources.teacher, rows),
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


def _tokenize(
    corpus: Corpus,
    rows: Numbers,
    reader: TextReader,
    encoder: EncoderOptions,
    options: TrainingOptions,
    folder: Path,
    reporter: Reporter,
) -> tuple[TokenStore, SentenceSpans | None]:
    """Tokenize the training papers; with spans of their sentences if a loss reads them."""
    if options.reads_sentences:
        if encoder.text != ("title", "abstract"):
            raise UserError(
                f"encoder.text is {list(encoder.text)}; losses on sentences read title and abstract: set encoder.text to these"
            )
        return tokenize_sentences(corpus, rows, reader, folder, reporter=reporter)
    tokens = make_token_store(
        reader,
        _TextSlices(PaperTexts(corpus, encoder.text_recipe), rows),
        folder,
        recipe={"corpus": corpus.hash, "text_recipe": encoder.text_recipe.hash, "rows": hash_json(rows.tolist())},
        overwrite=True,
        reporter=reporter,
    )
    return tokens, None


def _check_sources(options: TrainingOptions, sources: DataSources) -> None:
    """Refuse losses that need a citation graph or a teacher's vectors without them."""
    if _needs_related(options) and sources.graph is None:
        names = ", ".join(name for name, settings in options.losses.items() if settings.get("relatives"))
        raise UserError(
            f"the loss {names} takes the batch's other papers as negatives and needs the citation graph to leave out "
            "related papers; give --graph, or set its relatives=false"
        )
    if "student_teacher" in options.losses and sources.teacher is None:
        raise UserError(
            "the loss student_teacher needs a teacher's vectors; give --teacher with a folder of vectors, such as "
            "graph/vectors"
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


def _number_aspects(
    training: AnchorGroups, validation: AnchorGroups, names: tuple[str, ...], reporter: Reporter
) -> tuple[AnchorGroups, AnchorGroups, tuple[str, ...]]:
    """Renumber the aspects of groups by those that training samples have, and return their names."""
    if training.aspects is None:
        return training, validation, ()
    present = np.unique(training.aspects)  # (aspects,)
    if absent := [name for number, name in enumerate(names) if number not in present]:
        reporter.say(f"no sample has the aspect {', '.join(absent)}: the model gets no space for it")

    def renumber(groups: AnchorGroups) -> AnchorGroups:
        assert groups.aspects is not None
        trained = groups.take(np.flatnonzero(np.isin(groups.aspects, present)))
        assert trained.aspects is not None
        return dataclasses.replace(trained, aspects=np.searchsorted(present, trained.aspects))

    return renumber(training), renumber(validation), tuple(names[number] for number in present.tolist())


def _check_rules(samples: Samples, options: TrainingOptions) -> None:
    """Refuse a loss whose `negatives_by` names a rule that chose no negatives."""
    counts = np.bincount(samples.negatives.rules, minlength=len(samples.names.rules))  # (rules,)
    rules = [name for name, count in zip(samples.names.rules, counts.tolist(), strict=True) if count]
    for name, settings in options.losses.items():
        for rule in negative_rules(settings):
            choose(rule, rules, f"training.losses.{name}.negatives_by: rules that chose negatives")


def _papers(groups: AnchorGroups) -> Numbers:
    return np.concatenate([groups.anchors, groups.positives.papers, groups.negatives.papers])


def _pool_papers(pool: RankingPools) -> Numbers:
    return np.concatenate([pool.queries, pool.candidates.papers])


def _renumber_groups(groups: AnchorGroups, rows: Numbers) -> AnchorGroups:
    """Renumber the papers of groups from corpus rows to papers of the data."""

    def lists(old: PaperLists) -> PaperLists:
        return PaperLists(old.offsets, np.searchsorted(rows, old.papers))

    return dataclasses.replace(
        groups,
        anchors=np.searchsorted(rows, groups.anchors),
        positives=lists(groups.positives),
        negatives=lists(groups.negatives),
    )


def _drop_unreadable(
    groups: AnchorGroups, has_text: NDArray[np.bool_], *, pairs_suffice: bool
) -> tuple[AnchorGroups, dict[str, int]]:
    """Drop papers without text from the groups, and count what was left out by reason."""

    def lists(old: PaperLists) -> PaperLists:
        keep = has_text[old.papers]
        owner = np.repeat(np.arange(len(old)), old.counts())
        counts = np.bincount(owner[keep], minlength=len(old))
        return PaperLists(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), old.papers[keep])

    rules = None if groups.rules is None else groups.rules[has_text[groups.negatives.papers]]
    reduced = dataclasses.replace(
        groups, positives=lists(groups.positives), negatives=lists(groups.negatives), rules=rules
    )
    has_anchor = has_text[groups.anchors]
    fits = reduced.positives.counts() > 0 if pairs_suffice else reduced.triplet_counts() > 0  # (samples,)
    complete = has_anchor & fits
    dropped = len(_papers(groups)) - len(groups) - len(reduced.positives.papers) - len(reduced.negatives.papers)
    reasons = {
        "positives and negatives without text": int(dropped),
        "samples whose anchor has no text": int((~has_anchor).sum()),
        "samples without a positive or a negative": int((has_anchor & ~complete).sum()),
    }
    if not complete.any():
        counts = "; ".join(f"{number:,} {reason}" for reason, number in reasons.items())
        raise EmptyResultError(
            f"none of the {len(groups):,} samples can be trained on ({counts}); import papers with text"
        )
    return reduced.take(np.flatnonzero(complete)), {reason: number for reason, number in reasons.items() if number}


def _select_validation(rows: Numbers, options: TrainingOptions) -> NDArray[np.bool_]:
    """Select the samples held out for validation: a share of the anchors, drawn by their rows."""
    # independent of the seed, so that validations of several seeds can be compared
    keys = mix_keys(rows.astype(np.uint64), np.full(len(rows), 0x5EED, np.uint64))  # (samples,)
    held_out = (
        keys < np.uint64(options.validation * float(2**64 - 1)) if options.validation else np.zeros(len(rows), bool)
    )
    return np.zeros_like(held_out) if held_out.all() else held_out


def _load_teacher(corpus: Corpus, vectors: Vectors | None, rows: Numbers) -> NDArray[np.float32] | None:
    """Load the teacher's vectors of the papers, (papers, its dimension); zeros where it has none."""
    if vectors is None:
        return None
    at = vectors.rows(corpus.ids.take(rows))
    if not (at >= 0).any():
        raise UserError(f"{vectors.folder} has no vector of any paper of the samples; give vectors of this corpus")
    matrix = np.asarray(vectors.matrix[np.maximum(at, 0)], np.float32)
    matrix[at < 0] = 0
    return matrix


def _load_pools(corpus: Corpus, sources: DataSources) -> dict[str, RankingPools]:
    """Load the ranking tasks of the suite as pools of corpus rows, with a limited number of queries each."""
    if sources.suite is None:
        return {}
    from citeweave.evaluation.tasks import RankingTask

    tasks = [task for task in sources.suite.tasks if isinstance(task, RankingTask)]
    return {task.name: _load_pool(corpus, task, sources.queries) for task in tasks}


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
    return RankingPools(
        np.searchsorted(rows, pool.queries),
        PaperLists(pool.candidates.offsets, np.searchsorted(rows, pool.candidates.papers)),
        pool.relevant,
    )


class _TextSlices(Sequence[str]):
    """Texts of the training papers, read from the corpus slice by slice."""

    def __init__(self, texts: PaperTexts, rows: Numbers) -> None:
        self._texts, self._rows = texts, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, part: int) -> str: ...
    @overload
    def __getitem__(self, part: slice) -> list[str]: ...
    def __getitem__(self, part: int | slice) -> str | list[str]:
        texts = self._texts.take(np.atleast_1d(self._rows[part]))
        return texts if isinstance(part, slice) else texts[0]


def _hash(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:16]
