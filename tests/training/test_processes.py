"""Several processes train what one would, with the same global batch; after a failure too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from citeweave.core.errors import UserError
from citeweave.encoders.aspects import open_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.training.distributed import check_shardable
from citeweave.training.options import EncoderOptions, training_options
from citeweave.training.partial import heads_to_arrays, make_heads

from ..faults import killing
from .conftest import Literature
from .several import USUAL, train_job

WAYS = ("ddp", "fsdp")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no"),
]

GROUPS = {"unit": "groups"}
TRAINED: dict[str, dict[str, Any]] = {
    # a sum over groups; the best weights kept, and mixed with the start model's
    "triplet": {"patience": 2, "check_every": 1, "start_share": 0.25},
    "in_batch": {"losses": {"in_batch": {}}, "clip": 0.05},  # over the whole batch, which is read in parts
    "aspect_in_batch": {"losses": {"aspect_in_batch": {}}, **GROUPS},
    "words": {"losses": {"in_batch": {}, "mlm": {}}, "frozen_layers": 1},
    "sentences": {"losses": {"sentence_triplet": {}}, "micro_tokens": 100_000, **GROUPS},  # one part a process
    "bias": {"parts": "bias", "clip": 0.05},
    "lora": {"parts": "lora"},
    "few": {"batch": 1, **GROUPS},  # fewer groups than processes
    "elastic": {"steps": 16, "dropout": 0.1, "epsilon": 1e-8},  # a process is killed
}
"""What is trained beside the usual."""

COPIES_ALONE = ("words", "elastic")
"""What is not trained in shards; the words are refused there."""


@pytest.fixture(scope="module")
def jobs(literature: Literature, aspects: Literature, paired: Literature) -> dict[str, dict[str, Any]]:
    def job(source: Literature, training: dict[str, Any], **encoder: Any) -> dict[str, Any]:
        places = {"corpus": source.corpus.folder, "samples": source.samples.folder, "graph": source.graph_folder}
        where = {name: str(place) for name, place in places.items()}
        return {**where, "training": training, "encoder": {"init": str(source.model), **encoder}}

    special = {"aspect_in_batch": (aspects, {"heads": "linear"}), "sentences": (paired, {}), "words": (literature, {"pooling": "mix"})}  # fmt: skip
    found = {}
    for name, training in TRAINED.items():
        source, encoder = special.get(name, (literature, {}))
        found[name] = job(source, training, **encoder)
    for name in COPIES_ALONE:
        found[name]["not"] = ["fsdp"]
    return found


@pytest.fixture(scope="module")
def trained(jobs: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of one process and of two by both ways; and runs that one process began and two went on with, or two one."""
    folder = tmp_path_factory.mktemp("processes")
    for name, job in jobs.items():
        if name != "elastic":
            train_job(job, folder / "one" / name, "ddp")
    for way in WAYS:
        train_job({**jobs["in_batch"], "cut": 3}, folder / "two" / way / "one then two", way)
    both = {**jobs, "one then two": jobs["in_batch"], "two then one": {**jobs["in_batch"], "cut": 3}}
    (folder / "jobs.json").write_text(json.dumps(both))
    launcher = ACCELERATE if _has_accelerate() else [*TORCHRUN, "--standalone"]
    command = [*launcher, str(Path(__file__).with_name("several.py")), str(folder / "jobs.json"), str(folder / "two")]
    done = subprocess.run(
        [*command, *WAYS], capture_output=True, text=True, env=_environment(), timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for way in WAYS:
        assert not (folder / "two" / way / "two then one").exists()
        train_job(jobs["in_batch"], folder / "two" / way / "two then one", "ddp")
    return folder


def _environment() -> dict[str, str]:
    """Processes find the test's own helper."""
    paths = [str(Path(__file__).resolve().parent), *sys.path]
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _has_accelerate() -> bool:
    try:
        import accelerate  # noqa: F401
    except ImportError:
        return False
    return True


def same(left: Path, right: Path, start: Path) -> None:
    """Whether two encoders differ by far less than they moved."""
    begun, alone, together = (load_file(folder / "model.safetensors") for folder in (start, left, right))
    assert alone.keys() == together.keys()
    moved = max(float(np.abs(alone[name] - begun[name]).max()) for name in begun if name in alone)
    apart = max(float(np.abs(alone[name] - together[name]).max()) for name in alone)
    assert moved > 1e-5
    assert apart < moved / 100


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for way in WAYS
        for name in TRAINED
        if name != "elastic" and (way == "ddp" or name not in COPIES_ALONE)
    ],
)
def test_two_processes_equal_one(literature: Literature, trained: Path, name: str, way: str) -> None:
    one, two = trained / "one" / name, trained / "two" / way / name
    same(one, two, literature.model)
    curves = []
    for folder in (one, two):
        lines = [json.loads(line) for line in (folder / "training" / "log.jsonl").read_text().splitlines()]
        curves.append([line.get("loss", line.get("accuracy")) for line in lines])
        assert len(curves[-1]) >= 3  # a loss or more, and validations
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    facts = json.loads((two / "manifest.json").read_text())["facts"]
    assert facts["processes"] == 2


@pytest.mark.parametrize("way", WAYS)
def test_heads_of_two_processes_equal_those_of_one(trained: Path, way: str) -> None:
    alone, together = (open_heads(trained / name / "aspect_in_batch") for name in ("one", f"two/{way}"))
    start = heads_to_arrays(make_heads(alone.names, alone.inputs, EncoderOptions(heads="linear"), seed=0))
    weights = [[heads.layers[name][0][0] for name in alone.names] for heads in (start, alone, together)]
    moved, apart = (
        max(float(np.abs(a - b).max()) for a, b in zip(left, weights[1], strict=True)) for left in weights[::2]
    )
    assert moved > 1e-4
    assert apart < moved / 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["one then two", "two then one"])
def test_another_number_of_processes_goes_on(literature: Literature, trained: Path, name: str, way: str) -> None:
    same(trained / "one" / "in_batch", trained / "two" / way / name, literature.model)


def test_the_folder_of_a_sharded_run_is_as_any(trained: Path) -> None:
    one, two = (trained / name / "lora" for name in ("one", "two/fsdp"))
    assert {path.name for path in one.rglob("*")} == {path.name for path in two.rglob("*")}
    assert json.loads((two / "config.json").read_text()) == json.loads((one / "config.json").read_text())
    vectors = [load_encoder(folder, device="cpu").encode(["models learn from data"]) for folder in (one, two)]
    np.testing.assert_allclose(*vectors, atol=1e-4)


@pytest.mark.parametrize(
    ("training", "pooling", "told"),
    [
        ({"losses": {"triplet": {}, "mlm": {}}}, "cls", "mlm loss reads the word embeddings"),
        ({"parts": "heads", "losses": {"aspect_supcon": {}}, **GROUPS}, "cls", "parts is 'heads'"),
        ({"compiled": True}, "mean", "compiles complete layers"),
        ({}, "mix", "'mix' reads more than the last layer"),
    ],
)
def test_what_shards_cannot_do_is_refused(training: dict[str, Any], pooling: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_shardable(training_options(training), pooling)
    check_shardable(training_options({}), "cls")


def test_torchrun_goes_on_after_a_killed_process(
    jobs: dict[str, dict[str, Any]], trained: Path, tmp_path: Path
) -> None:
    """One is killed before the second checkpoint; those that are started anew end with the same model, to the bit."""
    job, model = jobs["elastic"], tmp_path / "model"
    options = {**USUAL, **{name: value for name, value in job["training"].items() if name != "losses"}}
    given = [f"training.{name}={json.dumps(value)}" for name, value in options.items()]
    command = [*TORCHRUN, "--standalone", "--max-restarts", "2", killing.__file__, "*/checkpoints/step-????????", "2"]
    command += [
        "train",
        job["corpus"],
        "--samples",
        job["samples"],
        "--graph",
        job["graph"],
        "--init",
        job["encoder"]["init"],
    ]
    command += [part for pair in given for part in ("--set", pair)] + ["--device", "cpu", "-o", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming after step" in done.stderr
    undisturbed = trained / "two" / "ddp" / "elastic"
    assert (model / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
