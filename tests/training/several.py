"""Trains a list of small jobs, in the test's own process or in several that a launcher starts:

torchrun --standalone --nproc-per-node 2 several.py jobs.json output/ ddp fsdp

Every job is trained once for each way of parallel, into output/WAY/JOB; one with a `cut` stops before that step.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph
from citeweave.mining.samples import Samples
from citeweave.training import trainer
from citeweave.training.load_data import DataSources
from citeweave.training.options import TrainingPlan, encoder_options, training_options
from citeweave.training.train import train_encoder

# with a small epsilon Adam makes steps of noise where a gradient is zero, as those of the keys' biases are
USUAL = {
    "batch": 8, "steps": 4, "learning_rate": 1e-3, "epsilon": 1e-3, "dropout": 0.0, "micro_tokens": 600, "validation": 0.2,
    "checkpoint_every": 2,
}  # fmt: skip


class PowerCut(Exception):
    """Training ends here."""


@contextmanager
def power_cut(cut: int) -> Iterator[None]:
    """Training ends before this step and leaves what an interrupted run leaves."""
    step = trainer._TrainingLoop._step

    def cut_step(loop: Any, number: int) -> None:
        if number == cut:
            raise PowerCut
        step(loop, number)

    trainer._TrainingLoop._step = cut_step  # type: ignore[method-assign]
    try:
        yield
        raise AssertionError("training was not cut")
    except PowerCut:
        pass
    finally:
        trainer._TrainingLoop._step = step  # type: ignore[method-assign]


def train_job(job: dict[str, Any], folder: Path, parallel: str) -> None:
    """Train one job, up to its `cut` where it has one."""
    training = training_options({**USUAL, **job.get("training", {}), "parallel": parallel})
    plan = TrainingPlan(encoder_options(job["encoder"]), training)
    sources = DataSources(CitationGraph.open(job["graph"]))
    corpus, samples = Corpus.open(job["corpus"]), Samples.open(job["samples"])
    with power_cut(job["cut"]) if "cut" in job else nullcontext():
        train_encoder(corpus, samples, folder, plan, sources=sources, device="cpu")


if __name__ == "__main__":
    jobs, output, *ways = sys.argv[1:]
    for way in ways:
        for name, job in json.loads(Path(jobs).read_text()).items():
            if way not in job.get("not", []):
                train_job(job, Path(output) / way / name, way)
