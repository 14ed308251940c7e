"""Training of the model that ships, on a machine with a GPU: every seed, and their mean, is judged by the table's suites.

    train_shipped(Shipping(Path("table"), seeds=(0, 1, 2), steps=1000, teachers=("base/",)))
    average_shipped(Shipping(Path("table"), seeds=(0, 1, 2), steps=1000))     the mean of their weights, Wortsman et al. 2022

The folder holds the start model, the joint bundle and those of the single corpora. What comes out are reports beside the
table's, and of every seed the differences from the start, in float16, in files of at most 15 MB. Teachers are models' folders:
their vectors of all texts are followed by the loss `similarity` (`changes` name its weight). `init` is another start model, such as
the teacher's own; `without` leaves out a source, to judge a model on a field that it has not seen.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.shipping import NAME, SYSTEM
from benchmarks.table.bundle import Bundle, PackedSamples, bundles_of, kept_samples, read_bundle
from benchmarks.table.judging import Answering, inside_of, judge, reading_once, titles_seen, trained_titles
from benchmarks.table.reports import RunReport, pack_runs, write_run
from benchmarks.table.splitting import provide
from benchmarks.table.start_model import unpack_start
from benchmarks.table.systems import CORPORA, START
from benchmarks.table.worker import NEVER, line_of, train_in_place
from citeweave.core.errors import UserError
from citeweave.corpus.text import paper_text
from citeweave.encoders.delta import keep_layers
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.save import save_encoder
from citeweave.training.data import Batches
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan, encoder_options, training_options
from citeweave.training.train import describe_hardware, load_start_model

PART = 15_000_000
"""Bytes of one file of differences, at most."""


@dataclass(frozen=True)
class Shipping:
    """What is to be trained."""

    folder: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 800
    device: str = "auto"
    name: str = SYSTEM
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Values of the training table in place of the recipe's."""

    is_judged: bool = True
    """Evaluate every seed; else its differences are written and no more."""

    init: str = ""
    """Folder of another start model than that of the table."""

    teachers: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Sources whose papers are no anchors."""

    save: Path | None = None
    """Folder for the last seed's model, or for the mean."""

    share: float = 1.0
    """Part of the mean of the differences that is kept."""

    stem: str = "shipped"
    """Beginning of the names of the files of differences."""

    layers: tuple[int, ...] = ()
    """Layers of the start model to begin with, for a smaller student; all where none is named."""


def train_shipped(asked: Shipping) -> None:
    """Train and judge every seed."""
    bundle = read_bundle(asked.folder / f"{NAME}.bundle")
    with tempfile.TemporaryDirectory(prefix="ship-") as made:
        work = Path(made)
        encoder = _encoder(asked, bundle, work)
        samples = samples_without(bundle, asked.without)
        teachers = tuple(
            taught_vectors(bundle, packed_encoder(asked.folder, name, asked.device, work)) for name in asked.teachers
        )
        data = None
        for seed in asked.seeds:
            start, options = start_of(encoder, asked), _options(asked, bundle, seed)
            data = data or load_training_data(
                bundle.papers,  # type: ignore[arg-type]  # it has what training reads of a corpus
                samples,  # type: ignore[arg-type]
                start.reader,
                encoder,
                options,
                work / "tokens",
                DataSources(graph=bundle.graph, teachers=teachers),  # type: ignore[arg-type]
            )
            before = {name: weight.detach().clone() for name, weight in start.network.model.named_parameters()}
            begun = time.monotonic()
            train_in_place(start, data, TrainingPlan(encoder, options), work)
            seconds = time.monotonic() - begun
            write_differences(stem_of(asked, seed), differences(before, start))
            batches = Batches(data.groups, options)
            cost = {
                "steps": asked.steps,
                "epochs": round(asked.steps / batches.per_epoch, 2),
                "seconds": round(seconds, 2),
                "device": describe_hardware(start.network.device),
            }
            if asked.save is not None:
                save_trained(asked, start, data.metadata)
            if asked.is_judged:
                papers = asked.steps * len(batches.at(0).papers)
                judge_shipped(asked, start, bundle, System(seed, papers, cost))


def average_shipped(asked: Shipping) -> None:
    """The mean of the seeds' weights, judged, as differences with the stem `shipped-mean`."""
    bundle = read_bundle(asked.folder / f"{NAME}.bundle")
    mean = mean_of([read_differences(stem_of(asked, seed)) for seed in asked.seeds], asked.share)
    write_differences(stem_of(asked, "mean"), mean)
    with tempfile.TemporaryDirectory(prefix="ship-") as made:
        start = start_of(_encoder(asked, bundle, Path(made)), asked)
        add_differences(start, mean)
        if asked.save is not None:
            save_trained(asked, start, {})
        if not asked.is_judged:
            return
        cost = {
            "steps": asked.steps * len(asked.seeds),
            "seconds": 0.0,
            "device": describe_hardware(start.network.device),
        }
        judge_shipped(asked, start, bundle, System(0, 0, cost))


@dataclass(frozen=True)
class System:
    """What a report says beside the values."""

    seed: int
    papers: int
    cost: Mapping[str, Any]


def judge_shipped(asked: Shipping, trained: TorchEncoder, bundle: Bundle, about: System) -> None:
    """By the suites of every corpus; reports are written beside the table's."""
    named = dataclasses.replace(trained, name=asked.name)
    titles = trained_titles(bundle.papers, trained_rows(bundle))
    tokens: dict[Any, Any] = {}
    for corpus in CORPORA:
        own = read_bundle(bundles_of(asked.folder, corpus)[0])
        if own.boundaries is not None:
            provide(own.boundaries)
        begun = time.monotonic()
        views = judge(Answering(reading_once(named, own, tokens), inside=inside_of(named)), own)
        cost = {**about.cost, "seconds of judging": round(time.monotonic() - begun, 2)}
        saw = titles_seen(titles, own)
        report = RunReport(corpus, asked.name, about.seed, own.version, views, about.papers, cost, saw)
        write_run(asked.folder, report)
        pack_runs(asked.folder, corpus)
        print(line_of(report), flush=True)


def trained_rows(bundle: Bundle) -> NDArray[np.int64]:
    """Papers that a sample names."""
    samples = bundle.samples[bundle.systems[SYSTEM]["samples"]]
    return np.unique(np.concatenate([samples.anchors, samples.positives.rows])).astype(np.int64)


def save_trained(asked: Shipping, trained: TorchEncoder, metadata: Mapping[str, Any]) -> None:
    """A sentence-transformers folder with a card."""
    assert asked.save is not None
    asked.save.mkdir(parents=True)
    card = ModelCard(
        asked.save.name,
        about=f"{asked.init or 'minilm'}, trained by the recipe weave on papers of computing and biomedicine.",
        recipe=f"weave, {asked.steps} steps, {dict(asked.changes)}",
        base=asked.init,
        data=dict(metadata),
    )
    save_encoder(asked.save, trained.network, trained.reader.tokenizer, trained.settings, card=card, dtype="float16")


@dataclass(frozen=True)
class TaughtVectors:
    """A teacher's vectors of the texts that are learned from, in the order of their rows."""

    known: NDArray[np.int64]
    matrix: NDArray[np.float16]
    folder: str = "the teacher"

    def rows(self, ids: Sequence[int]) -> NDArray[np.int64]:
        return np.searchsorted(self.known, np.asarray(ids, np.int64))


def taught_vectors(bundle: Bundle, teacher: TorchEncoder) -> TaughtVectors:
    """A teacher's vectors of all texts that a sample names."""
    rows = trained_rows(bundle)
    titles, abstracts = bundle.papers.titles.take(rows), bundle.papers.abstracts.take(rows)
    texts = [paper_text(title, abstract) for title, abstract in zip(titles, abstracts, strict=True)]
    with torch.autocast("cuda", torch.float16, enabled=teacher.network.device.startswith("cuda")):
        return TaughtVectors(rows, teacher.encode(texts).astype(np.float16))


def samples_without(bundle: Bundle, sources: Sequence[str]) -> PackedSamples:
    """The samples whose anchor is of no such source; all where none is named."""
    samples = bundle.samples[bundle.systems[SYSTEM]["samples"]]
    names = [name for name, count in bundle.facts["sources"] for _ in range(count)]
    if unknown := sorted(set(sources) - set(names)):
        raise UserError(f"--without is {unknown[0]!r}; it must be one of {', '.join(sorted(set(filter(None, names))))}")
    return (
        kept_samples(samples, np.array([names[row] not in sources for row in samples.anchors])) if sources else samples
    )


def packed_encoder(folder: Path, name: str, device: str, work: Path) -> TorchEncoder:
    """A model by its folder; the table's start model comes with the bundles, so that no package is needed there."""
    return load_encoder(unpack_start(folder, work / START) if name == START else name, device=device)


def _encoder(asked: Shipping, bundle: Bundle, work: Path) -> EncoderOptions:
    table = bundle.systems[SYSTEM]["encoder"]
    return encoder_options({**table, "init": asked.init or str(unpack_start(asked.folder, work / "start"))})


def _options(asked: Shipping, bundle: Bundle, seed: int) -> TrainingOptions:
    table = bundle.systems[SYSTEM]["training"]
    never = {"check_every": NEVER, "checkpoint_every": NEVER, "validation": 0.0, "seeds": 1}
    return training_options({**table, **never, "epochs": NEVER, **asked.changes, "seed": seed, "steps": asked.steps})


def start_of(encoder: EncoderOptions, asked: Shipping) -> TorchEncoder:
    """The start model, or some of its layers."""
    start = load_start_model(encoder, asked.device)
    keep_layers(start.network.model, asked.layers, "--layers")
    return start


def stem_of(asked: Shipping, which: int | str) -> Path:
    """Of the files with the differences of a seed, or of the mean."""
    return asked.folder / f"{asked.stem}-{which}"


def differences(before: Mapping[str, Tensor], trained: TorchEncoder) -> dict[str, Tensor]:
    """What every weight changed by, in float16."""
    weights = trained.network.model.named_parameters()
    return {name: (weight.detach() - before[name]).half().cpu() for name, weight in weights}


def mean_of(changes: Sequence[Mapping[str, Tensor]], share: float = 1.0) -> dict[str, Tensor]:
    """A part of the mean of changes.

    >>> mean_of([{"bias": torch.tensor([1.0, 3.0])}, {"bias": torch.tensor([3.0, 3.0])}])
    {'bias': tensor([2., 3.], dtype=torch.float16)}
    """
    return {
        name: (torch.stack([change[name].float() for change in changes]).mean(0) * share).half() for name in changes[0]
    }


def add_differences(start: TorchEncoder, changes: Mapping[str, Tensor]) -> None:
    """Make the start model the trained one."""
    weights = dict(start.network.model.named_parameters())
    if other := sorted(set(changes) - set(weights)):
        raise UserError(f"the differences change {other[0]}, which the start does not have; give those from this start")
    with torch.no_grad():
        for name, change in changes.items():
            weights[name] += change.float().to(weights[name].device)


def write_differences(stem: Path, changes: Mapping[str, Tensor]) -> None:
    """In files of at most `PART` bytes."""
    part: dict[str, Tensor] = {}
    number = size = 0
    for name, change in changes.items():
        pieces = change.split(max(1, PART // (2 * max(1, change[0].numel() if change.dim() else 1))))
        for place, piece in enumerate(pieces):
            if size + 2 * piece.numel() > PART:
                safetensors.torch.save_file(part, f"{stem}.{number}.safetensors")
                part, size, number = {}, 0, number + 1
            part[f"{name}@{place}"] = piece.contiguous()
            size += 2 * piece.numel()
    safetensors.torch.save_file(part, f"{stem}.{number}.safetensors")


def read_differences(stem: Path) -> dict[str, Tensor]:
    """What `write_differences` wrote."""
    pieces: dict[str, list[tuple[int, Tensor]]] = {}
    for path in sorted(stem.parent.glob(f"{stem.name}.*.safetensors")):
        for name, value in safetensors.torch.load_file(path).items():
            whole, _, place = name.rpartition("@")
            pieces.setdefault(whole, []).append((int(place), value))
    if not pieces:
        raise UserError(f"{stem} is no stem of differences ({stem}.0.safetensors); `train` writes them")
    return {
        name: torch.cat([value for _, value in sorted(own, key=lambda each: each[0])]) for name, own in pieces.items()
    }
