"""Samples for contrastive training: anchors with positives and negatives, and the rule that selected each.

    samples/
      anchor.npy, aspect.npy, task.npy          one entry per sample
      positives/offsets.npy row.npy rule.npy score.npy     ragged: the papers selected for every sample
      negatives/...                                        the same
      contexts/offsets.npy number.npy           the citing sentences behind a sample, if it has some
      positives/sentence.npy anchor_sentence.npy ...       aligned sentences, if they were aligned
      pool.npy                                  the rows that could be selected, if the pool was restricted
      manifest.json                             the corpus's hash, the rules, papers requested and selected

Rows are rows of one corpus, named by its hash. A sample holds a group; `triplets()` pairs positives with
negatives for losses that want one of each.

    >>> from tempfile import mkdtemp
    >>> names = SampleNames(rules=("cited", "easy"))
    >>> with new_samples(Path(mkdtemp()) / "s", names, corpus="hash of a corpus") as writer:
    ...     writer.append(block_from_lists([7], [[1, 2]], [[5, 6]], positive_rule=0, negative_rule=1))
    ...     samples = writer.finish()
    >>> samples.triplets().rows().tolist()
    [[7, 1, 5], [7, 2, 6]]

Some samples in memory are a block:

    >>> block = block_from_lists([7, 8], positives=[[1, 2], [3]], negatives=[[4], []])
    >>> block.positives.of(0).tolist(), take_samples(block, np.array([False, True])).anchors.tolist()
    ([1, 2], [8])

A block is a file as soon as it is mined, with counts of the anchors that were skipped and why:

    >>> counts = MiningCounts()
    >>> counts.skip("no positive", 3)
    >>> counts.add(MiningCounts(used=2, skipped={"no positive": 1}))
    >>> counts.used, counts.skipped
    (2, {'no positive': 4})

Does not select papers: `mine.py` does.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, new_artifact, read_manifest
from citeweave.core.columns import NumberWriter, offsets_fit, open_numbers, read_saved_arrays, write_numbers
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.core.ragged import Ragged, number_within, to_offsets


@dataclass(frozen=True, slots=True)
class Picks(Ragged):
    """The papers selected for each of some samples, as ragged lists with rule and score."""

    rows: NDArray[np.int32]
    rules: NDArray[np.uint8]
    """Which rule selected it: index into `SampleNames.rules`."""

    scores: NDArray[np.float32]
    """What the rule ranked by (similarity, co-citation count, ...), higher is nearer; NaN if it did not rank."""

    def of(self, sample: int) -> NDArray[np.int32]:
        """Return the papers selected for one sample."""
        return self.rows[self.span(sample)]

    def take(self, mask: NDArray[np.bool_]) -> Picks:
        """Return the papers selected for some of the samples; shape of the mask (samples,)."""
        at = self.places(np.flatnonzero(mask))
        return Picks(to_offsets(self.lengths()[mask]), self.rows[at], self.rules[at], self.scores[at])


@dataclass(frozen=True, slots=True)
class Alignment:
    """Aligned sentences of samples, one per positive, (picks,): those in which it and its anchor are alike.

    If a pair is not aligned, sentences and contexts are -1, similarities NaN.
    """

    anchor_sentences: NDArray[np.int16]
    """Number of the sentence of the anchor's abstract, as `corpus.text.sentence_texts` splits it."""

    sentences: NDArray[np.int16]
    """The same of the positive's abstract."""

    anchor_contexts: NDArray[np.int64]
    """The context to which the anchor's sentence is nearest, -1 also if alignment is by abstracts."""

    contexts: NDArray[np.int64]
    """The same of the positive's sentence."""

    anchor_similarities: NDArray[np.float32]
    """Dot product of the anchor's sentence with its context, or with the other sentence."""

    similarities: NDArray[np.float32]

    @property
    def aligned(self) -> NDArray[np.bool_]:
        """Which positives have aligned sentences."""
        return self.sentences >= 0


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """A block of samples in memory."""

    anchors: NDArray[np.int32]
    positives: Picks
    negatives: Picks
    aspects: NDArray[np.uint8]
    tasks: NDArray[np.uint8]
    context_offsets: NDArray[np.int64]
    contexts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.anchors)


def take_samples(block: SampleBlock, mask: NDArray[np.bool_]) -> SampleBlock:
    """Return some samples of a block; shape of the mask (samples,)."""
    contexts = Ragged(block.context_offsets)
    return SampleBlock(
        anchors=block.anchors[mask],
        positives=block.positives.take(mask),
        negatives=block.negatives.take(mask),
        aspects=block.aspects[mask],
        tasks=block.tasks[mask],
        context_offsets=to_offsets(contexts.lengths()[mask]),
        contexts=block.contexts[contexts.places(np.flatnonzero(mask))],
    )


def block_from_lists(
    anchors: Sequence[int],
    positives: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[int]],
    *,
    positive_rule: int = 0,
    negative_rule: int = 0,
) -> SampleBlock:
    """Make a block of samples from plain lists; one rule selected all positives and another all negatives."""
    return new_block(anchors, _picks_from_lists(positives, positive_rule), _picks_from_lists(negatives, negative_rule))


def new_block(anchors: Sequence[int] | NDArray[np.integer[Any]], positives: Picks, negatives: Picks) -> SampleBlock:
    """Return a block of samples of the first aspect and task, without contexts."""
    number = len(anchors)
    return SampleBlock(
        anchors=np.array(anchors, np.int32),
        positives=positives,
        negatives=negatives,
        aspects=np.zeros(number, np.uint8),
        tasks=np.zeros(number, np.uint8),
        context_offsets=np.zeros(number + 1, np.int64),
        contexts=np.zeros(0, np.int64),
    )


def _picks_from_lists(lists: Sequence[Sequence[int]], rule: int) -> Picks:
    rows = np.array([row for picks in lists for row in picks], np.int32)
    return Picks(
        to_offsets([len(picks) for picks in lists]),
        rows,
        np.full(len(rows), rule, np.uint8),
        np.full(len(rows), np.nan, np.float32),
    )


# Blocks saved while samples are mined.


@dataclass
class MiningCounts:
    """Counts of mined blocks: anchors used and skipped by reason, papers requested and selected by each rule."""

    used: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    """Papers that each rule was to select, for the samples that were made ..."""

    got: dict[str, int] = field(default_factory=dict)
    """... and papers that it selected."""

    aspects: dict[str, dict[str, int]] = field(default_factory=dict)
    """Aspect -> reason -> anchors without a sample in this aspect."""

    def skip(self, reason: str, number: int) -> None:
        """Count anchors that were skipped for a reason."""
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number

    def add(self, other: MiningCounts) -> None:
        """Add the counts of another mined block or task."""
        self.used += other.used
        for reason, number in other.skipped.items():
            self.skip(reason, number)
        pairs = [(self.asked, other.asked), (self.got, other.got)]
        pairs += [(self.aspects.setdefault(aspect, {}), reasons) for aspect, reasons in other.aspects.items()]
        for own, others in pairs:
            for name, number in others.items():
                own[name] = own.get(name, 0) + number


_PICKS = tuple(entry.name for entry in fields(Picks))
_PLAIN = ("anchors", "aspects", "tasks", "context_offsets", "contexts")


def encode_part(block: SampleBlock, counts: MiningCounts) -> bytes:
    """Encode a mined block of samples and its counts as the bytes of its file."""
    columns = {name: getattr(block, name) for name in _PLAIN}
    columns |= {f"up_{name}": getattr(block.positives, name) for name in _PICKS}
    columns |= {f"down_{name}": getattr(block.negatives, name) for name in _PICKS}
    columns["account"] = np.frombuffer(json.dumps(asdict(counts)).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


def read_part(path: Path) -> tuple[SampleBlock, MiningCounts]:
    """Read a saved block of mined samples and its counts."""
    picked = [f"{side}_{name}" for side in ("up", "down") for name in _PICKS]
    columns = read_saved_arrays(path, [*_PLAIN, *picked, "account"])
    positives, negatives = (Picks(*(columns[f"{side}_{name}"] for name in _PICKS)) for side in ("up", "down"))
    plain = {name: columns[name] for name in _PLAIN}
    counts = MiningCounts(**json.loads(columns["account"].tobytes()))
    return SampleBlock(positives=positives, negatives=negatives, **plain), counts


# The folder of samples.

KIND, VERSION, POOL = "samples", 1, "pool.npy"
ALIGNMENT_COLUMNS = {
    "anchor_sentences": ("positives/anchor_sentence.npy", np.int16),
    "sentences": ("positives/sentence.npy", np.int16),
    "anchor_contexts": ("positives/anchor_context.npy", np.int64),
    "contexts": ("positives/context.npy", np.int64),
    "anchor_similarities": ("positives/anchor_similarity.npy", np.float32),
    "similarities": ("positives/similarity.npy", np.float32),
}
"""Attributes of `Alignment`, their files and types; all of them exist or none."""


@dataclass(frozen=True, slots=True)
class SampleNames:
    """Names of the rules, aspects and tasks that samples refer to by number."""

    rules: tuple[str, ...]
    aspects: tuple[str, ...] = ("",)
    """The aspect in which anchor and positive are alike, "" = in no aspect in particular."""

    tasks: tuple[str, ...] = ("",)
    """The task of a mixture that a sample comes from."""


@dataclass(frozen=True, slots=True)
class Triplets:
    """Triplets that samples give, of one anchor, one positive and one negative each; all of shape (triplets,)."""

    anchors: NDArray[np.int32]
    positives: NDArray[np.int32]
    negatives: NDArray[np.int32]
    positive_rules: NDArray[np.uint8]
    negative_rules: NDArray[np.uint8]
    samples: NDArray[np.int64]
    """The sample that each comes from."""

    def __len__(self) -> int:
        return len(self.anchors)

    def rows(self) -> NDArray[np.int32]:
        """Return anchor, positive and negative of every triplet, shape (triplets, 3)."""
        return np.stack([self.anchors, self.positives, self.negatives], axis=1)


class Samples:
    """Training samples: anchors with their positives and negatives, as rows of a corpus, memory-mapped in a folder."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        try:
            facts = manifest.facts
            self.names = SampleNames(*(tuple(map(str, facts[name])) for name in ("rules", "aspects", "tasks")))
            self.corpus = str(facts["corpus"])
        except (KeyError, TypeError):
            raise ArtifactError(f"{folder}/manifest.json does not describe samples: it is damaged") from None
        self.anchors: NDArray[np.int32] = open_numbers(folder / "anchor.npy", np.int32)
        self.aspects: NDArray[np.uint8] = open_numbers(folder / "aspect.npy", np.uint8)
        self.tasks: NDArray[np.uint8] = open_numbers(folder / "task.npy", np.uint8)
        self.positives, self.negatives = (self._picks(name) for name in ("positives", "negatives"))
        self.context_offsets: NDArray[np.int64] = open_numbers(folder / "contexts" / "offsets.npy", np.int64)
        self.contexts: NDArray[np.int64] = open_numbers(folder / "contexts" / "number.npy", np.int64)
        self.pool: NDArray[np.int32] | None = None
        """The rows that could be selected, ascending; None if the pool was not restricted."""
        if POOL in manifest.files:
            self.pool = open_numbers(folder / POOL, np.int32)
        self.alignment = self._alignment()
        """Sentences aligned by `align.py`; None if nothing was aligned."""
        self._check()

    @classmethod
    def open(cls, folder: str | Path) -> Samples:
        manifest = read_manifest(Path(folder), KIND, VERSION)
        check_files(Path(folder), manifest)
        return cls(Path(folder), manifest)

    @property
    def hash(self) -> str:
        return self.manifest.hash

    def __len__(self) -> int:
        return len(self.anchors)

    def __repr__(self) -> str:
        picks = f"{len(self.positives.rows):,} positives, {len(self.negatives.rows):,} negatives"
        return f"Samples({str(self.folder)!r}: {len(self):,} samples, {picks})"

    def check_corpus(self, corpus_hash: str, folder: Path) -> None:
        """Refuse a corpus other than the one the samples were mined from."""
        if self.corpus != corpus_hash:
            raise UserError(
                f"{self.folder} was mined from another corpus than {folder} (hash {self.corpus[:12]}, not "
                f"{corpus_hash[:12]}); give the corpus it was mined from, or mine again"
            )

    def triplets(self) -> Triplets:
        """Turn samples into triplets: positives paired with negatives of the same sample, first with first, the shorter list repeated."""
        ups, downs = self.positives.lengths(), self.negatives.lengths()  # (samples,)
        counts = np.where((ups > 0) & (downs > 0), np.maximum(ups, downs), 0)
        owner, place = np.repeat(np.arange(len(counts)), counts), number_within(counts)  # (triplets,)
        up = self.positives.offsets[owner] + place % ups[owner]
        down = self.negatives.offsets[owner] + place % downs[owner]
        return Triplets(
            anchors=self.anchors[owner],
            positives=self.positives.rows[up],
            negatives=self.negatives.rows[down],
            positive_rules=self.positives.rules[up],
            negative_rules=self.negatives.rules[down],
            samples=owner,
        )

    def _picks(self, name: str) -> Picks:
        folder = self.folder / name
        types = {"offsets": np.int64, "row": np.int32, "rule": np.uint8, "score": np.float32}
        return Picks(*(open_numbers(folder / f"{column}.npy", dtype) for column, dtype in types.items()))

    def _alignment(self) -> Alignment | None:
        if ALIGNMENT_COLUMNS["sentences"][0] not in self.manifest.files:
            return None
        return Alignment(*(open_numbers(self.folder / name, dtype) for name, dtype in ALIGNMENT_COLUMNS.values()))

    def _check(self) -> None:
        valid = len(self.aspects) == len(self.tasks) == len(self)
        valid = valid and all(
            offsets_fit(picks.offsets, len(self), len(picks.rows)) for picks in (self.positives, self.negatives)
        )
        valid = valid and offsets_fit(self.context_offsets, len(self), len(self.contexts))
        if self.alignment is not None:
            columns = [getattr(self.alignment, attribute) for attribute in ALIGNMENT_COLUMNS]
            valid = valid and all(len(column) == len(self.positives.rows) for column in columns)
        if not valid:
            raise ArtifactError(f"{self.folder} is damaged: its columns do not fit together; mine the samples again")


@dataclass(slots=True)
class SamplesWriter:
    """Appends blocks of samples to a new folder; made by `new_samples`."""

    folder: Path
    artifact: ArtifactWriter
    names: SampleNames
    facts: dict[str, Any]
    count: int = 0
    _columns: dict[str, NumberWriter] = field(default_factory=dict)
    _ends: dict[str, int] = field(default_factory=dict)

    def write_pool(self, rows: NDArray[np.int64]) -> None:
        """Write the rows that could be selected, for later audits of the samples."""
        write_numbers(self.artifact.folder / POOL, np.unique(rows), np.int32)

    def append(self, block: SampleBlock) -> None:
        """Append a block of samples to the columns of the folder."""
        self.count += len(block)
        self._write("anchor", block.anchors, np.int32)
        self._write("aspect", block.aspects, np.uint8)
        self._write("task", block.tasks, np.uint8)
        for name, picks in (("positives", block.positives), ("negatives", block.negatives)):
            self._write_offsets(name, picks.offsets)
            self._write(f"{name}/row", picks.rows, np.int32)
            self._write(f"{name}/rule", picks.rules, np.uint8)
            self._write(f"{name}/score", picks.scores, np.float32)
        self._write_offsets("contexts", block.context_offsets)
        self._write("contexts/number", block.contexts, np.int64)

    def finish(self) -> Samples:
        """Close the columns of the samples, write the manifest and publish the folder; raise if there is no sample."""
        if not self.count:
            raise EmptyResultError(f"{self.folder}: no sample could be made{self._skip_reasons()}")
        for column in self._columns.values():
            column.close()
        self.artifact.facts |= {name: list(value) for name, value in asdict(self.names).items()} | self.facts
        self.artifact.facts["samples"] = self.count
        return Samples(self.folder, self.artifact.finish())

    def _skip_reasons(self) -> str:
        skipped: dict[str, int] = self.facts.get("skipped", {})
        reasons = "; ".join(f"{number:,} anchors: {reason}" for reason, number in skipped.items())
        return f" ({reasons}); loosen the rules or give more papers" if reasons else "; check the input"

    def _write(self, name: str, values: NDArray[Any], dtype: Any) -> None:
        if name not in self._columns:
            self._columns[name] = NumberWriter(self.artifact.folder / f"{name}.npy", dtype)
        self._columns[name].append(values)

    def _write_offsets(self, name: str, offsets: NDArray[np.int64]) -> None:
        column, end = f"{name}/offsets", self._ends.get(name)
        if end is None:
            self._write(column, np.zeros(1, np.int64), np.int64)
            end = 0
        self._write(column, offsets[1:] + end, np.int64)
        self._ends[name] = end + int(offsets[-1])


@contextmanager
def new_samples(
    folder: str | Path,
    names: SampleNames,
    *,
    corpus: str,
    recipe: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[SamplesWriter]:
    """Open a writer of samples into a new folder; call `writer.finish()` at the end. `corpus` is the corpus's hash."""
    recipe = {"corpus": corpus, "rules": list(names.rules)} if recipe is None else recipe
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as artifact:
        yield SamplesWriter(Path(folder), artifact, names, {"corpus": corpus, **(facts or {})})
