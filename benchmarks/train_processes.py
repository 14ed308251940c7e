"""Training by several processes beside one, with the same global batch.

    python benchmarks/train_processes.py                     MiniLM on a synthetic corpus, 8 steps of 16 triplets

Rows: one process with one thread, one with two threads, two processes (one thread each) that hold the whole model (ddp),
and two that hold half of it each (fsdp). Seconds are those of the training alone, start model and tokens not counted;
memory is the most that a process had resident. The losses of every step are compared
with those of the first row. Every row is a run of its own, started by torchrun where it has several processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETUPS = {
    "1 process, 1 thread": (1, 1, "ddp"),
    "1 process, 2 threads": (1, 2, "ddp"),
    "2 processes, ddp": (2, 1, "ddp"),
    "2 processes, fsdp": (2, 1, "fsdp"),
}


def make_data(folder: Path, papers: int) -> None:
    """A synthetic literature and triplets of it."""
    from citeweave.corpus.options import SyntheticOptions
    from citeweave.corpus.synthetic.synthesize import synthesize
    from citeweave.graph.citations import build_graph
    from citeweave.mining.inputs import MiningInputs as Inputs
    from citeweave.mining.mine import mine_samples
    from citeweave.mining.rules import parse_rules
    from citeweave.pipeline.recipe import load_recipe

    corpus = synthesize(folder / "corpus", SyntheticOptions(papers=papers), workers=1)
    graph = build_graph(corpus, folder / "graph")
    rules = parse_rules(load_recipe("specter", ["mining.anchors=200"]).table("mining"))
    mine_samples(corpus, rules, folder / "samples", Inputs(graph=graph))


def train_here(folder: Path, model: str, init: str, loss: str, steps: int, parallel: str) -> None:
    """One process's part of a run; every process writes what it used."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.samples import Samples
    from citeweave.training import train, trainer
    from citeweave.training.load_data import DataSources
    from citeweave.training.options import EncoderOptions, TrainingOptions
    from citeweave.training.options import TrainingPlan as Plan

    times: dict[str, float] = {}
    loop = trainer.train_network

    def timed(*given: object) -> object:
        before, cpu = time.perf_counter(), time.process_time()
        found = loop(*given)  # type: ignore[arg-type]
        times.update(wall=time.perf_counter() - before, cpu=time.process_time() - cpu)
        return found

    train.train_network = timed  # type: ignore[assignment]
    options = TrainingOptions(
        losses={loss: {}},
        steps=steps,
        dropout=0.0,
        validation=0.0,
        check_every=1,
        batch=16,
        learning_rate=2e-5,
        epsilon=1e-6,
        parallel=parallel,
    )
    plan = Plan(EncoderOptions(init, max_tokens=64), options)
    sources = DataSources(CitationGraph.open(folder / "graph"))
    corpus, samples = Corpus.open(folder / "corpus"), Samples.open(folder / "samples")
    train.train_encoder(corpus, samples, folder / model, plan, sources=sources, device="cpu")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    path = folder / f"{model}.{os.environ.get('RANK', '0')}.json"
    path.write_text(json.dumps({**times, "MB": peak}))


def measure(folder: Path, name: str, init: str, loss: str, steps: int) -> dict[str, float | list[float]]:
    processes, threads, parallel = SETUPS[name]
    model = name.replace(", ", "-").replace(" ", "-")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), __file__, "--worker", str(folder), model]
    command += [init, loss, str(steps), parallel]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    told = [json.loads((folder / f"{model}.{rank}.json").read_text()) for rank in range(processes)]
    lines = [json.loads(line) for line in (folder / model / "training" / "log.jsonl").read_text().splitlines()]
    return {
        "wall": max(each["wall"] for each in told),
        "cpu": sum(each["cpu"] for each in told),
        "MB": max(each["MB"] for each in told),
        "losses": [line["loss"] for line in lines if "loss" in line],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", default="minilm")
    parser.add_argument("--loss", default="triplet", help="triplet, or in_batch: a loss over the whole batch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--papers", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(folder, asked.papers)
        print(f"{'':22}{'s/step':>8}{'CPU s/step':>12}{'ratio':>7}{'MB a process':>14}{'curves apart':>14}")
        first = None
        for name in SETUPS:
            found = measure(folder, name, asked.init, asked.loss, asked.steps)
            first = first or found
            apart = max(abs(a - b) / abs(a) for a, b in zip(first["losses"], found["losses"], strict=True))
            wall, cpu = found["wall"] / asked.steps, found["cpu"] / asked.steps
            ratio = first["wall"] / found["wall"]
            print(f"{name:22}{wall:8.2f}{cpu:12.2f}{ratio:7.2f}{found['MB']:14,.0f}{apart:14.1e}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        place, model_, init_, loss_, steps_, parallel_ = sys.argv[2:]
        train_here(Path(place), model_, init_, loss_, int(steps_), parallel_)
    else:
        main()
