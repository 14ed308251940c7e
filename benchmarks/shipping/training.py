"""Training of the model that ships, on a machine with a GPU: every seed is judged by the table's suites.

    train_shipped(Shipping(Path("table"), seeds=(0, 1, 2), steps=1500))

The folder holds the start model, the joint bundle and those of the single corpora. What comes out are reports beside the
table's, and of every seed the differences from the start, in float16, in files of at most 15 MB.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from benchmarks.shipping import NAME, SYSTEM
from benchmarks.table.bundle import Bundle, bundles_of, read_bundle
from benchmarks.table.judging import Answering, judge, titles_seen, trained_titles
from benchmarks.table.reports import RunReport, pack_runs, write_run
from benchmarks.table.splitting import provide
from benchmarks.table.start_model import unpack_start
from benchmarks.table.systems import CORPORA
from benchmarks.table.worker import NEVER, answering_of, line_of, train_in_place
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.training.batches import Batches
from citeweave.training.data import TrainingData
from citeweave.training.finishing import hardware
from citeweave.training.gathering import Sources, gather
from citeweave.training.options import TrainingOptions, encoder_options, training_options
from citeweave.training.plan import Plan
from citeweave.training.starting import load_start
from citeweave.training.trainer import Run

PART = 15_000_000
"""Bytes of one file of differences, at most."""


@dataclass(frozen=True)
class Shipping:
    """What is to be trained."""

    folder: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 1500
    device: str = "auto"
    name: str = SYSTEM
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Values of the training table in place of the recipe's."""


def train_shipped(asked: Shipping) -> None:
    """Train and judge every seed."""
    bundle = read_bundle(asked.folder / f"{NAME}.bundle")
    suites = {corpus: read_bundle(bundles_of(asked.folder, corpus)[0]) for corpus in CORPORA}
    with tempfile.TemporaryDirectory(prefix="ship-") as made:
        work = Path(made)
        table = bundle.systems[SYSTEM]
        encoder = encoder_options({**table["encoder"], "init": str(unpack_start(asked.folder, work / "start"))})
        data = None
        for seed in asked.seeds:
            start, options = load_start(encoder, asked.device), _options(asked, table["training"], seed)
            data = data or gather(
                bundle.papers,  # type: ignore[arg-type]  # it has what training reads of a corpus
                bundle.samples[table["samples"]],  # type: ignore[arg-type]
                start.reader,
                encoder,
                options,
                work / "tokens",
                Sources(graph=bundle.graph),
            )
            before = {name: weight.detach().clone() for name, weight in start.network.model.named_parameters()}
            begun = time.monotonic()
            run = train_in_place(start, data, Plan(encoder, options), work)
            seconds = time.monotonic() - begun
            write_differences(asked.folder / f"shipped-{seed}", before, start)
            batches = Batches(data.groups, options)
            papers = asked.steps * len(batches.at(0).papers)
            cost = {
                "steps": asked.steps,
                "epochs": round(asked.steps / batches.per_epoch, 2),
                "seconds": round(seconds, 2),
                "device": hardware(start.network.device),
            }
            for report in _reports(asked, seed, answering(asked.name, start, run, options), suites, bundle, data):
                whole = dataclasses.replace(report, papers=papers, cost={**cost, **report.cost})
                write_run(asked.folder, whole)
                print(line_of(whole), flush=True)
    for corpus in CORPORA:
        pack_runs(asked.folder, corpus)


def _options(asked: Shipping, table: Mapping[str, object], seed: int) -> TrainingOptions:
    never = {"check_every": NEVER, "checkpoint_every": NEVER, "validation": 0.0, "seeds": 1}
    return training_options({**table, **never, "epochs": NEVER, **asked.changes, "seed": seed, "steps": asked.steps})


def _reports(
    asked: Shipping,
    seed: int,
    answer: Callable[[Bundle], Answering],
    suites: Mapping[str, Bundle],
    bundle: Bundle,
    data: TrainingData,
) -> Iterator[RunReport]:
    """By the suites of every corpus."""
    for corpus, own in suites.items():
        if own.boundaries is not None:
            provide(own.boundaries)
        saw = titles_seen(trained_titles(bundle, data.rows), own)
        begun = time.monotonic()
        views = judge(answer(own), own)
        cost = {"seconds of judging": round(time.monotonic() - begun, 2)}
        yield RunReport(corpus, asked.name, seed, own.version, views, cost=cost, saw=saw)


def answering(name: str, trained: TorchEncoder, run: Run, options: TrainingOptions) -> Callable[[Bundle], Answering]:
    tokens: dict[Any, Any] = {}
    return lambda bundle: answering_of(name, trained, run, options, bundle, tokens)


def write_differences(stem: Path, before: Mapping[str, Tensor], trained: TorchEncoder) -> None:
    """What every weight changed by, in float16, in files of at most `PART` bytes."""
    part: dict[str, Tensor] = {}
    number = size = 0
    for name, weight in trained.network.model.named_parameters():
        change = (weight.detach() - before[name]).half().cpu()
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
    return {
        name: torch.cat([value for _, value in sorted(own, key=lambda each: each[0])]) for name, own in pieces.items()
    }
