"""One run of the study: train from a start, evaluate by the distance that was trained and by others, write the report.

corpus                      every task, rankings by the distance that the losses train: L2 or cosine
corpus, l2; corpus, cosine  the same by the other distance; probes are the same
csfcube                     as `corpus`; systems trained on sentences by their own distance between sentences
csfcube, one vector         of those systems; csfcube, cosine and csfcube, l2 of the others
csfcube, the facet's space  of systems with aspect heads
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.claims.plan import Run
from benchmarks.claims.systems import START, STARTS
from benchmarks.claims.worker import Worker
from benchmarks.table.bundle import Bundle
from benchmarks.table.judging import (
    FACET_SPACE,
    ONE_VECTOR,
    Answering,
    reading_once,
    titles_seen,
    trained_titles,
    view_of,
)
from benchmarks.table.reports import RunReport, View, write_run
from benchmarks.table.worker import answering_of, train_in_place
from citeweave.core.errors import CiteweaveError
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.save import save_encoder
from citeweave.evaluation.paper_map import TopicMap
from citeweave.evaluation.tasks import ProbeTask, Suite
from citeweave.training import options as training
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.options import EncoderOptions, encoder_options
from citeweave.training.train import describe_hardware, load_start_model

DISTANCES = ("l2", "cosine")
NEVER = 10**9
WARMUP = 0.1
"""Warm-ups that are written in steps last at most this share of a run."""

MAPPED = (START, "specter")
"""Systems whose first seed is drawn as a map: figure 2 of SPECTER."""


def report_run(worker: Worker, run: Run) -> str:
    """Train and evaluate a run, and write its report; return it in a line."""
    bundle = worker.bundle(run.corpus)
    begun = time.monotonic()
    if run.system == START:
        trained, answering, cost = *_start(worker, run, bundle), {"seconds": 0.0}
        losses: Mapping[str, Any] = {}
        saw: dict[str, int] = {}
    else:
        trained, answering, cost, saw, losses = _train(worker, run, bundle)
    middle = time.monotonic()
    views = evaluate_views(answering, bundle, trained_metric(losses))
    if run.seed == 0 and run.system in MAPPED:
        cost |= _map_quality(answering, bundle.suites["corpus"])
    cost |= {
        "seconds with tokens": round(middle - begun, 2),
        "seconds of evaluation": round(time.monotonic() - middle, 2),
        "beside": worker.machine.workers,
        "device": describe_hardware(trained.network.device),
    }
    papers = int(cost.get("papers", 0))
    write_run(
        worker.machine.folder, RunReport(run.setting, run.system, run.seed, bundle.version, views, papers, cost, saw)
    )
    metrics = views["corpus"].metrics
    shown = {name: round(metrics[name], 1) for name in ("cite.map", "cocite.map", "field.f1") if name in metrics}
    seconds = f"{cost['seconds with tokens']:.0f} s + {cost['seconds of evaluation']:.0f} s"
    return f"{run.setting}: {run.system} seed {run.seed}, {cost.get('steps', 0):,} steps, {seconds}, {shown}"


def free_memory() -> None:
    """Give back the card's memory that a finished run no longer needs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def trained_metric(losses: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the distance that losses train vectors by.

    >>> trained_metric({"triplet": {"distance": "l2"}}), trained_metric({"supcon": {}}), trained_metric({})
    ('l2', 'cosine', 'cosine')
    """
    named = [settings.get("distance", settings.get("metric")) for settings in losses.values()]
    return "l2" if any(name == "l2" for name in named) or "sentence_triplet" in losses else "cosine"


def _load(worker: Worker, run: Run, encoder: EncoderOptions, init: Path) -> TorchEncoder:
    own = STARTS[run.start] == "own" and encoder.pooling != ASPECT_WORDS
    return load_start_model(
        dataclasses.replace(encoder, init=str(init), pooling="" if own else encoder.pooling), worker.machine.device
    )


def _start(worker: Worker, run: Run, bundle: Bundle) -> tuple[TorchEncoder, Answering]:
    pooling = "mean" if STARTS[run.start] == "recipe" else ""  # of an untrained first token nothing can be expected
    options = EncoderOptions(pooling=pooling, max_tokens=512, normalize=False)
    start = _load(worker, run, options, worker.starts / run.start)
    named = dataclasses.replace(start, name=START)
    return start, Answering(reading_once(named, bundle, worker.tokens.setdefault(run.start, {})))


def _train(worker: Worker, run: Run, bundle: Bundle) -> tuple[TorchEncoder, Answering, dict[str, Any], Any, Any]:
    table, source = bundle.systems[run.system], bundle.texts_of(run.system)
    encoder = encoder_options({**table["encoder"], "init": str(worker.starts / run.start)})
    init = worker.starts / run.start
    if table["chain"]:
        init = _chained(worker, dataclasses.replace(run, system=table["chain"]), bundle)
    start = _load(worker, run, encoder, init)
    options = options_of(table["training"], run.seed, worker.machine.steps)
    teachers = (bundle.teacher,) if "student_teacher" in options.losses else ()
    kind = "sentences" if options.reads_sentences else "papers"
    text = "-".join(encoder.text)
    name = f"{run.corpus}-{run.start}-{table['samples'][:12]}-{encoder.pooling == ASPECT_WORDS}-{kind}-{text}"
    with worker.locked(f"tokens-{name}"):
        data = load_training_data(
            source.papers,  # type: ignore[arg-type]  # it has what training reads of a corpus
            bundle.samples[table["samples"]],  # type: ignore[arg-type]
            start.reader,
            encoder,
            options,
            worker.starts / f"tokens-{name}",
            DataSources(graph=source.graph, teachers=teachers),  # type: ignore[arg-type]
        )
    options, length = with_warmup(options, data.groups)
    begun = time.monotonic()
    encoder = dataclasses.replace(encoder, init=str(init))
    trained = train_in_place(start, data, training.TrainingPlan(encoder, options), worker.starts)
    cost = {**length, "seconds": round(time.monotonic() - begun, 2), "samples": table["count"], "bands": table["bands"]}
    tokens = worker.tokens.setdefault(run.start, {})
    answering = answering_of(run.system, start, trained, options, bundle, tokens)
    saw = titles_seen(trained_titles(source.papers, data.rows), bundle)
    _keep_for_chains(worker, run, bundle, start)
    return start, answering, cost, saw, options.losses


def _chain_folder(worker: Worker, run: Run, bundle: Bundle) -> Path:
    return worker.machine.folder / "chain" / f"{run.setting}-{run.system}-{run.seed}-{bundle.version}"


def _chained(worker: Worker, run: Run, bundle: Bundle) -> Path:
    """Return the folder of the model that another system begins with, trained now if it does not exist."""
    folder = _chain_folder(worker, run, bundle)
    with worker.locked(folder.name):
        if not folder.is_dir():
            _train(worker, run, bundle)
    return folder


def _keep_for_chains(worker: Worker, run: Run, bundle: Bundle, trained: TorchEncoder) -> None:
    if all(table["chain"] != run.system for table in bundle.systems.values()):
        return
    folder = _chain_folder(worker, run, bundle)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            model = Path(made) / "model"
            card = ModelCard(name=run.system)
            save_encoder(model, trained.network, trained.reader.tokenizer, trained.settings, card=card)
            if not folder.is_dir():
                model.rename(folder)


def evaluate_views(answering: Answering, bundle: Bundle, metric: str) -> dict[str, View]:
    """Evaluate by every suite of a bundle, by the trained distance and by the other."""
    found: dict[str, View] = {}
    for name, suite in bundle.suites.items():
        marks, other = bundle.marks[name], next(each for each in DISTANCES if each != metric)
        found[name] = view_of(answering.whole, suite, marks, metric)
        found[f"{name}, {metric}"] = found[name]
        found[f"{name}, {other}"] = _by_other(answering, suite, marks, other, found[name])
        if name != "corpus" and answering.sentences is not None:
            found[ONE_VECTOR] = found[name]
            system, distance = answering.sentences
            found[name] = view_of(system, suite, marks, distance)
        if name != "corpus" and answering.facets is not None:
            found[FACET_SPACE] = view_of(answering.facets, suite, marks, metric)
    return {name: view for name, view in found.items() if name != f"corpus, {metric}" and name != f"csfcube, {metric}"}


def _by_other(answering: Answering, suite: Suite, marks: dict[str, str], distance: str, known: View) -> View:
    """Rank by another distance; the probes are those of the first view."""
    probes = {task.name for task in suite.tasks if isinstance(task, ProbeTask)}
    others = tuple(task for task in suite.tasks if task.name not in probes)
    ranked = view_of(answering.whole, dataclasses.replace(suite, tasks=others), marks, distance)
    outcomes = [*ranked.outcomes, *(each for each in known.outcomes if each.task in probes)]
    return dataclasses.replace(ranked, outcomes=outcomes)


def _map_quality(answering: Answering, suite: Suite) -> dict[str, Any]:
    """Return homogeneity and completeness of the clusters of a t-SNE map, as SPECTER's figure 2 has them."""
    if not any(isinstance(task, ProbeTask) and task.kind == "classes" for task in suite.tasks):
        return {}
    drawn = TopicMap(answering.whole, suite).make(seed=0)
    return {"map": {"homogeneity": drawn.homogeneity, "completeness": drawn.completeness, "papers": len(drawn.xy)}}


def options_of(table: Mapping[str, Any], seed: int, steps: int = 0) -> Any:
    """Return the training options of a system's table for one seed: its own epochs, checks only where it stops by them."""
    from citeweave.training.options import ACCURACY, training_options

    own = {**table, "seed": seed, "seeds": 1, "checkpoint_every": NEVER}
    own |= {"steps": steps} if steps else {}
    if not own.get("patience"):
        own |= {"check_every": NEVER, "validation": 0.0}
    if "." in str(own.get("watch", ACCURACY)):
        own["watch"] = ACCURACY  # a task of the corpus suite, whose queries the study does not hold out
    return training_options(own)


def with_warmup(options: Any, groups: Any) -> tuple[Any, dict[str, Any]]:
    """Return options whose warm-up fits the run, and how long the run is."""
    from citeweave.training.data import Batches

    batches = Batches(groups, options)
    if not batches.per_epoch:
        raise CiteweaveError("there is no sample to train on")
    steps = options.steps or round(options.epochs * batches.per_epoch)
    a_step = float(np.mean([len(batches.at(step).papers) for step in range(min(20, batches.per_epoch))]))
    warmup = options.warmup if options.warmup < 1 else min(options.warmup, max(1, round(WARMUP * steps)))
    epochs = round(steps / batches.per_epoch, 2)
    length = {"steps": steps, "papers": round(steps * a_step), "epochs": epochs}
    return dataclasses.replace(options, warmup=float(warmup)), length
