"""A corpus's bundle: one file with the papers' texts, the samples of every system and the suites.

    write_bundle(path, Bundle(...))          here, where the data are
    bundle = read_bundle(path)               there, where the GPU is

    about.json      the corpus, the version of the data, what every system trains with
    papers.json     titles and abstracts, in the order of the corpus; derived texts that some systems train on
    suites.json     tasks, see `plain.py`
    arrays.npz      samples, citations to train on, and the suites' arrays

A tar compressed by xz with a window that is larger than the texts: what a suite repeats of the papers costs nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.table.packing import pack, unpack
from benchmarks.table.plain import decode, encode
from benchmarks.table.splitting import Boundaries
from citeweave.core.errors import ArtifactError
from citeweave.core.files import hash_json
from citeweave.evaluation.tasks import Suite, fingerprint
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.mining.samples import Alignment, Picks, SampleNames, Samples

FORMAT = 1
_BOUNDARIES = ("keys", "offsets", "ends")
_TEXTS = ("titles", "abstracts", "venues", "authors")
_ALIGNED = ("anchor_sentences", "sentences")
PARTS = ("about.json", "papers.json", "suites.json", "arrays.npz")


@dataclass(frozen=True)
class Column:
    """Texts by row, as a column of a corpus gives them."""

    texts: Sequence[str]

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        return [self.texts[row] for row in rows.tolist()]


@dataclass(frozen=True)
class PackedCorpus:
    """What training reads of a corpus."""

    hash: str
    titles: Column
    abstracts: Column
    venues: Column = Column(())
    authors: Column = Column(())
    folder: str = "the bundle"

    def __post_init__(self) -> None:
        for name in ("venues", "authors"):
            if not getattr(self, name).texts:
                object.__setattr__(self, name, Column([""] * len(self)))

    def __len__(self) -> int:
        return len(self.titles.texts)

    @property
    def ids(self) -> Column:
        return Column(range(len(self)))  # type: ignore[arg-type]  # a paper's id is its row


@dataclass(frozen=True)
class PackedTeacher:
    """Vectors of a bundle's papers for the student-teacher loss, which reads their cosines: whole numbers up to 127."""

    matrix: NDArray[np.int8]
    folder: str = "the bundle"

    def rows(self, ids: Sequence[int]) -> NDArray[np.int64]:
        return np.asarray(ids, np.int64)

    @classmethod
    def of(cls, vectors: NDArray[np.float32]) -> PackedTeacher:
        """
        >>> PackedTeacher.of(np.array([[0.5, -1.0], [0, 0]], np.float32)).matrix.tolist()
        [[64, -127], [0, 0]]
        """
        largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
        return cls(np.round(127 * vectors / largest).astype(np.int8))


@dataclass(frozen=True)
class PackedSamples:
    """What training reads of samples; `citeweave.mining.samples.Samples` on disk has more."""

    names: SampleNames
    anchors: NDArray[np.int32]
    aspects: NDArray[np.uint8]
    positives: Picks
    negatives: Picks
    alignment: Alignment | None
    hash: str
    folder: str = "the bundle"

    def check_corpus(self, corpus: str, folder: object) -> None:
        """They came with their corpus."""

    def __len__(self) -> int:
        return len(self.anchors)


@dataclass(frozen=True)
class DerivedTexts:
    """Other texts than a bundle's papers, which some systems train on: titles, citing sentences, papers of suites."""

    papers: PackedCorpus
    """Rows that no sample names are empty."""

    edges: tuple[NDArray[np.int32], NDArray[np.int32]]

    @cached_property
    def graph(self) -> CitationGraph:
        return graph_from_edges(*self.edges, len(self.papers))


@dataclass(frozen=True)
class Bundle:
    """All that a run reads."""

    corpus: str
    """Its name in the table."""

    papers: PackedCorpus
    edges: tuple[NDArray[np.int32], NDArray[np.int32]]
    """Citing and cited papers of the citations that may be learned from."""

    suites: Mapping[str, Suite]
    samples: Mapping[str, PackedSamples]
    """By their hash; systems that train on the same samples share them."""

    systems: Mapping[str, Mapping[str, Any]]
    """System -> its `encoder` and `training` tables, the hash of its `samples`, its `bands`."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    boundaries: Boundaries | None = None
    """Where sentences end, for machines that cannot tell."""

    teacher: PackedTeacher | None = None
    derived: Mapping[str, DerivedTexts] = field(default_factory=dict)
    """By the hash that systems name."""

    def texts_of(self, system: str) -> Bundle | DerivedTexts:
        """Return what has the papers and the graph that a system trains on."""
        name = self.systems[system].get("derived", "")
        return self.derived[name] if name else self

    @cached_property
    def marks(self) -> dict[str, dict[str, str]]:
        """Suite -> task -> what it asks, as a hash."""
        return {name: {task.name: fingerprint(task) for task in suite.tasks} for name, suite in self.suites.items()}

    @cached_property
    def version(self) -> str:
        """Of the data: the same papers, the same questions."""
        return hash_json([self.corpus, self.papers.hash, self.marks])[:16]

    @cached_property
    def graph(self) -> CitationGraph:
        citing, cited = self.edges
        return graph_from_edges(citing, cited, len(self.papers))


def bundle_path(folder: Path, corpus: str, texts: str = "") -> Path:
    """
    >>> bundle_path(Path("table"), "elife", "titles").name, bundle_path(Path("table"), "elife").name
    ('elife.titles.bundle', 'elife.bundle')
    """
    return folder / ".".join(filter(None, (corpus, texts, "bundle")))


def bundles_of(folder: Path, corpus: str) -> list[Path]:
    """The bundles of a corpus that are there, the one of whole papers first."""
    return [path for texts in ("", "titles") if (path := bundle_path(folder, corpus, texts)).exists()]


def packed(samples: Samples, keep: NDArray[np.bool_] | None = None) -> PackedSamples:
    """Samples without scores and citing sentences; `keep` (samples,) leaves some out."""
    which = np.arange(len(samples)) if keep is None else np.flatnonzero(keep)
    alignment = None
    if samples.alignment is not None:
        places = _places(samples.positives.offsets, which)
        alignment = _aligned(*(np.asarray(getattr(samples.alignment, name))[places] for name in _ALIGNED))
    return PackedSamples(
        samples.names,
        np.asarray(samples.anchors)[which],
        np.asarray(samples.aspects)[which],
        _picks(samples.positives, which),
        _picks(samples.negatives, which),
        alignment,
        samples.hash if keep is None else hash_json([samples.hash, hashlib.sha256(keep.tobytes()).hexdigest()]),
    )


def kept_samples(samples: PackedSamples, keep: NDArray[np.bool_]) -> PackedSamples:
    """Some of the samples, `keep` (samples,)."""
    which = np.flatnonzero(keep)
    return dataclasses.replace(
        samples,
        anchors=samples.anchors[which],
        aspects=samples.aspects[which],
        positives=_picks(samples.positives, which),
        negatives=_picks(samples.negatives, which),
        hash=hash_json([samples.hash, hashlib.sha256(keep.tobytes()).hexdigest()]),
    )


def _places(offsets: NDArray[np.int64], which: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.diff(offsets)[which]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(within + np.repeat(offsets[:-1][which], counts))


def _picks(picks: Picks, which: NDArray[np.int64]) -> Picks:
    places, counts = _places(np.asarray(picks.offsets), which), np.diff(picks.offsets)[which]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Picks(offsets, np.asarray(picks.rows)[places], np.asarray(picks.rules)[places], np.zeros(0, np.float32))


def write_bundle(path: Path, bundle: Bundle) -> None:
    """One file; written whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {"edges": np.stack(bundle.edges).astype(np.int32)}
    if bundle.boundaries is not None:
        arrays |= {f"sentences.{name}": getattr(bundle.boundaries, name) for name in _BOUNDARIES}
    if bundle.teacher is not None:
        arrays["teacher"] = bundle.teacher.matrix
    arrays |= {f"{name}.edges": np.stack(own.edges).astype(np.int32) for name, own in bundle.derived.items()}
    suites = encode(dict(bundle.suites), arrays)
    about = {
        "format": FORMAT,
        "corpus": bundle.corpus,
        "version": bundle.version,
        "papers": bundle.papers.hash,
        "systems": dict(bundle.systems),
        "facts": dict(bundle.facts),
        "marks": bundle.marks,
        "samples": {key: _samples_out(samples, key, arrays) for key, samples in bundle.samples.items()},
    }
    texts: dict[str, Any] = _texts_out(bundle.papers)
    texts["derived"] = {name: _texts_out(own.papers) for name, own in bundle.derived.items()}
    stored = io.BytesIO()
    np.savez(stored, **arrays)  # type: ignore[arg-type]  # arrays by name
    parts = [json.dumps(part, ensure_ascii=False).encode() for part in (about, texts, suites)]
    pack(path, dict(zip(PARTS, [*parts, stored.getvalue()], strict=True)))


def read_bundle(path: Path) -> Bundle:
    """The bundle of a file; one whose suites are not those that it says is refused."""
    parts = unpack(path)
    if set(PARTS) - parts.keys():
        raise ArtifactError(f"{path} is no bundle of the table: it lacks {sorted(set(PARTS) - parts.keys())[0]}")
    about, texts, suites = (json.loads(parts[name]) for name in PARTS[:3])
    if about["format"] != FORMAT:
        raise ArtifactError(
            f"{path} has the format {about['format']}, and this program reads {FORMAT}; prepare it again"
        )
    with np.load(io.BytesIO(parts["arrays.npz"]), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored}
    bundle = Bundle(
        about["corpus"],
        _texts_in(about["papers"], texts),
        (arrays["edges"][0], arrays["edges"][1]),
        decode(suites, arrays),
        {key: _samples_in(own, key, arrays) for key, own in about["samples"].items()},
        about["systems"],
        about["facts"],
        Boundaries(*(arrays[f"sentences.{name}"] for name in _BOUNDARIES)) if "sentences.keys" in arrays else None,
        PackedTeacher(arrays["teacher"]) if "teacher" in arrays else None,
        {
            name: DerivedTexts(_texts_in(name, own), (arrays[f"{name}.edges"][0], arrays[f"{name}.edges"][1]))
            for name, own in texts.get("derived", {}).items()
        },
    )
    if bundle.marks != about["marks"]:
        raise ArtifactError(f"{path} is damaged: its suites are not those that it was made with; prepare it again")
    return bundle


def _texts_out(papers: PackedCorpus) -> dict[str, list[str]]:
    return {name: list(getattr(papers, name).texts) for name in _TEXTS}


def _texts_in(name: str, texts: Mapping[str, Any]) -> PackedCorpus:
    return PackedCorpus(name, *(Column(texts.get(each, ())) for each in _TEXTS))


def _aligned(anchor_sentences: NDArray[np.int16], sentences: NDArray[np.int16]) -> Alignment:
    """Training reads the sentences alone."""
    none: NDArray[Any] = np.zeros(0)
    return Alignment(anchor_sentences, sentences, none, none, none, none)


def _samples_out(samples: PackedSamples, key: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    own: dict[str, NDArray[Any]] = {"anchors": samples.anchors, "aspects": samples.aspects}
    for side, picks in (("positives", samples.positives), ("negatives", samples.negatives)):
        own |= {f"{side}.counts": np.diff(picks.offsets).astype(np.int32), f"{side}.rows": picks.rows}
        own[f"{side}.rules"] = picks.rules
    if samples.alignment is not None:
        own |= {name: getattr(samples.alignment, name) for name in _ALIGNED}
    arrays |= {f"{key}.{name}": values for name, values in own.items()}
    return {**dataclasses.asdict(samples.names), "aligned": samples.alignment is not None}


def _samples_in(about: Mapping[str, Any], key: str, arrays: Mapping[str, NDArray[Any]]) -> PackedSamples:
    def picks(side: str) -> Picks:
        ends = np.cumsum(arrays[f"{key}.{side}.counts"], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), ends])
        return Picks(offsets, arrays[f"{key}.{side}.rows"], arrays[f"{key}.{side}.rules"], np.zeros(0, np.float32))

    names = SampleNames(*(tuple(about[name]) for name in ("rules", "aspects", "tasks")))
    alignment = _aligned(*(arrays[f"{key}.{name}"] for name in _ALIGNED)) if about["aligned"] else None
    return PackedSamples(
        names,
        arrays[f"{key}.anchors"],
        arrays[f"{key}.aspects"],
        picks("positives"),
        picks("negatives"),
        alignment,
        key,
    )
