"""Runs one after the other: train, judge at several shares of the start's weights, append a line of JSON for each."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weaving.bundle import Bundle
from weaving.cube import Cube
from weaving.judging import Judge, Judgement, suite_means
from weaving.network import StartedNetwork
from weaving.plan import Plan, read_plans
from weaving.training import Trainer, between


@dataclass(frozen=True)
class Exploring:
    """Where things are, and how many processes judge."""

    bundle: Path
    runs: Path
    output: Path
    scratch: Path
    part: str = "0/1"
    """Which share of the runs this process does: every second one, from the first, is 0/2."""

    processes: int = 4
    device: str = "cuda"


def explore(options: Exploring) -> None:
    bundle = Bundle.open(options.bundle)
    judge = Judge(bundle, options.processes, options.scratch)
    network = StartedNetwork(options.bundle, options.device)
    trainer, cube = Trainer(bundle, network), Cube(bundle)
    waiting: list[tuple[dict[str, Any], list[Judgement]]] = []
    for plan, seed in open_runs(read_plans(options.runs), options.part, options.output):
        begun = time.monotonic()
        trained = trainer.train(plan, seed) if plan.steps else network.start
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - begun
        for share in plan.shares if plan.steps else (0.0,):
            network.load(between(network.start, trained, share))
            key = key_of(plan, seed, share)
            line = {
                "key": key,
                "plan": dataclasses.asdict(plan),
                "seconds": round(seconds, 1),
                "cube": cube.judge(network),
            }
            judgements = judge.submit(key.replace("/", "_"), network, probes=share in plan.probes)
            waiting.append((line, judgements))
        print(f"{plan.name}/{seed}: {seconds:.1f} s", flush=True)
        waiting = [each for each in waiting if not _append_if_done(*each, options.output)]
    for line, judgements in waiting:
        _append(line, judgements, options.output)
    judge.close()


def key_of(plan: Plan, seed: int, share: float) -> str:
    """
    >>> key_of(Plan("base"), 0, 0.4)
    'base/0/0.4'
    """
    return f"{plan.name}/{seed}/{share:g}"


def open_runs(plans: Sequence[Plan], part: str, log: Path) -> list[tuple[Plan, int]]:
    """Plans and seeds of this part of which the log has no line yet."""
    number, _, parts = part.partition("/")
    lines = log.read_text().splitlines() if log.exists() else []
    done = {json.loads(line)["key"].rpartition("/")[0] for line in lines}
    runs = [(plan, seed) for plan in plans for seed in plan.seeds][int(number) :: int(parts)]
    return [(plan, seed) for plan, seed in runs if f"{plan.name}/{seed}" not in done]


def _append_if_done(line: dict[str, Any], judgements: list[Judgement], log: Path) -> bool:
    done = all(each.done() for each in judgements)
    if done:
        _append(line, judgements, log)
    return done


def _append(line: dict[str, Any], judgements: list[Judgement], log: Path) -> None:
    values = dict(each.result() for each in judgements)
    line["suites"] = {name: round(value, 2) for name, value in values.items()}
    line["means"] = suite_means(values)
    with log.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
