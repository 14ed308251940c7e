"""Two processes that torchrun starts train what one would, with the same global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from citeweave.encoders.aspects import open_heads
from citeweave.training.aspect_heads import as_arrays, make_heads
from citeweave.training.options import EncoderOptions

from .conftest import Literature

LOSSES = ("triplet", "in_batch", "aspect_in_batch")
"""One that is a sum over groups, one over the whole batch, and one of these in the spaces of aspects."""

SCRIPT = """
import json, sys
from pathlib import Path
from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph
from citeweave.mining.samples import Samples
from citeweave.training.gathering import Sources
from citeweave.training.options import EncoderOptions, TrainingOptions
from citeweave.training.plan import Plan
from citeweave.training.train import train_encoder

corpus, graph, samples, aspects, model, output, *losses = sys.argv[1:]
for loss in losses:
    in_aspects = loss.startswith("aspect_")
    # with a small epsilon Adam makes steps of noise where a gradient is zero, as those of the keys' biases are
    options = TrainingOptions(losses={loss: {}}, unit="groups" if in_aspects else "triplets", batch=8, steps=4, learning_rate=1e-3, epsilon=1e-3, dropout=0.0,
                              micro_tokens=2000, validation=0.2, checkpoint_every=2)
    plan = Plan(EncoderOptions(model, heads="linear" if in_aspects else ""), options)
    found = Samples.open(aspects if in_aspects else samples)
    train_encoder(Corpus.open(corpus), found, Path(output) / loss, plan,
                  sources=Sources(CitationGraph.open(graph)), device="cpu")
"""


@pytest.fixture(scope="module")
def trained(literature: Literature, aspects: Literature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of one process and of two, by loss."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "script.py").write_text(SCRIPT)
    samples = (literature.samples.folder, aspects.samples.folder)
    given = (literature.corpus.folder, literature.graph_folder, *samples, literature.model)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, launcher in (("one", []), ("two", two)):
        command = [sys.executable, *launcher, str(folder / "script.py"), *map(str, given), str(folder / name), *LOSSES]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("loss", LOSSES)
def test_two_processes_equal_one(literature: Literature, trained: Path, loss: str) -> None:
    from safetensors.numpy import load_file

    start = load_file(literature.model / "model.safetensors")
    alone, together = (load_file(trained / name / loss / "model.safetensors") for name in ("one", "two"))
    moved = max(float(np.abs(alone[name] - start[name]).max()) for name in start if name in alone)
    apart = max(float(np.abs(alone[name] - together[name]).max()) for name in alone)
    assert moved > 1e-4
    assert apart < moved / 100


def test_heads_of_two_processes_equal_those_of_one(trained: Path) -> None:
    alone, together = (open_heads(trained / name / "aspect_in_batch") for name in ("one", "two"))
    start = as_arrays(make_heads(alone.names, alone.inputs, EncoderOptions(heads="linear"), seed=0))
    weights = [[heads.layers[name][0][0] for name in alone.names] for heads in (start, alone, together)]
    moved, apart = (
        max(float(np.abs(a - b).max()) for a, b in zip(left, weights[1], strict=True)) for left in weights[::2]
    )
    assert moved > 1e-4
    assert apart < moved / 100


@pytest.mark.parametrize("loss", LOSSES)
def test_the_curves_are_the_same(trained: Path, loss: str) -> None:
    curves = []
    for name in ("one", "two"):
        lines = (trained / name / loss / "training" / "log.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["loss"] for line in lines if "loss" in line])
        assert len(curves[-1]) == 2
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)
    facts = json.loads((trained / "two" / loss / "manifest.json").read_text())["facts"]
    assert facts["processes"] == 2
