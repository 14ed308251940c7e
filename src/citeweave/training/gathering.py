"""From a corpus and its samples to training data: which papers take part, their tokens, who is whose.

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

from citeweave.encoders.reading import TextReader
from citeweave.encoders.streaming.paper_texts import PaperTexts
from citeweave.encoders.token_store import TokenStore, make_token_store
from citeweave.errors import EmptyResultError, UserError, choose
from citeweave.files import hash_json
from citeweave.hashing import mix
from citeweave.progress import QUIET, Reporter
from citeweave.training.data import Groups, Lists, Numbers, RankingPools, TrainingData
from citeweave.training.loss_settings import rules_of
from citeweave.training.options import EncoderOptions, TrainingOptions
from citeweave.training.relatives import find_relatives
from citeweave.training.sentence_level.reading import align, read_sentences
from citeweave.training.sentence_level.spans import SentenceSpans

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.tasks import Suite
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.samples import Samples
    from citeweave.similarity.vectors import Vectors

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
        _Chosen(PaperTexts(corpus, encoder.text_recipe), rows),
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


def _groups(samples: Samples, options: TrainingOptions) -> Groups:
    positives, negatives = (
        Lists(np.asarray(picks.offsets, np.int64), np.asarray(picks.rows, np.int64))
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
    return Groups(np.asarray(samples.anchors, np.int64), positives, negatives, aspects, rules)


def _taught(
    training: Groups, validation: Groups, names: tuple[str, ...], reporter: Reporter
) -> tuple[Groups, Groups, tuple[str, ...]]:
    """Groups with their aspects numbered anew, and the names of those that some sample teaches; others have no space."""
    if training.aspects is None:
        return training, validation, ()
    present = np.unique(training.aspects)  # (aspects,)
    if left := [name for number, name in enumerate(names) if number not in present]:
        reporter.say(f"no sample is of the aspect {', '.join(left)}: the model gets no space for it")

    def renumbered(groups: Groups) -> Groups:
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


def _papers(groups: Groups) -> Numbers:
    return np.concatenate([groups.anchors, groups.positives.papers, groups.negatives.papers])


def _pool_papers(pool: RankingPools) -> Numbers:
    return np.concatenate([pool.queries, pool.candidates.papers])


def _renumbered(groups: Groups, rows: Numbers) -> Groups:
    def lists(old: Lists) -> Lists:
        return Lists(old.offsets, np.searchsorted(rows, old.papers))

    return dataclasses.replace(
        groups,
        anchors=np.searchsorted(rows, groups.anchors),
        positives=lists(groups.positives),
        negatives=lists(groups.negatives),
    )


def _readable(groups: Groups, has_text: NDArray[np.bool_], *, pairs_suffice: bool) -> tuple[Groups, dict[str, int]]:
    """Groups without papers that cannot be read, and what was left out why."""

    def lists(old: Lists) -> Lists:
        keep = has_text[old.papers]
        owner = np.repeat(np.arange(len(old)), old.counts())
        counts = np.bincount(owner[keep], minlength=len(old))
        return Lists(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), old.papers[keep])

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


def _relatives(corpus: Corpus, graph: CitationGraph | None, rows: Numbers, options: TrainingOptions) -> Lists | None:
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
    candidates = Lists(np.asarray(pools.offsets[: count + 1], np.int64), rows[pools.candidates[:end]])
    return RankingPools(rows[pools.queries[:count]], candidates, pools.grades[:end] > 0)


def _renumbered_pools(pool: RankingPools, rows: Numbers) -> RankingPools:
    return RankingPools(
        np.searchsorted(rows, pool.queries),
        Lists(pool.candidates.offsets, np.searchsorted(rows, pool.candidates.papers)),
        pool.relevant,
    )


class _Chosen(Sequence[str]):
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
