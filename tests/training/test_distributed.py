"""Several processes train what one would, with the same global batch, after a failure too; those that differ say so.

Where processes are threads that meet at a barrier, what they tell each other is the real thing, how it travels is not.
"""

import atexit
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.distributed import HashStore

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.encoders.aspects import open_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.training import distributed
from citeweave.training.options import EncoderOptions, training_options
from citeweave.training.partial import heads_to_arrays, make_heads

from ..faults import killing
from .conftest import refused
from .several import USUAL, train_job

LIMIT = timedelta(seconds=20)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_every_attempt_has_a_name_of_its_own(order):
    store, seen = HashStore(), set()
    for _ in range(4):
        with ThreadPoolExecutor(len(order)) as pool:
            (name,) = set(pool.map(lambda rank: distributed.agree_on_attempt(store, rank, len(order), LIMIT), order))
        seen.add(name)
    assert len(seen) == 4


def test_an_earlier_attempt_is_not_taken_for_this_one():
    store = HashStore()
    store.set("name", "old")
    store.set("come/1", json.dumps(["old", "word"]))
    store.set("answer/old", json.dumps({"1": "word"}))
    for rank in (1, 0):
        with pytest.raises(CiteweaveError, match=f"process {rank} of 2 has waited"):
            distributed.agree_on_attempt(store, rank, 2, timedelta(seconds=0.2))


def ask(count: int, check: Callable[[Any], None]) -> list[str]:
    """What the check says in every one of so many threads, which meet as processes do; empty where it finds nothing."""
    barrier, values = threading.Barrier(count, timeout=300), dict[int, Any]()

    class Member(distributed.ProcessGroup):
        def exchange(self, value: Any) -> list[Any]:
            values[self.rank] = value
            barrier.wait()
            found = [values[rank] for rank in range(count)]
            barrier.wait()
            return found

    def run(rank: int) -> str:
        try:
            check(Member(rank, count))
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


GIVEN = {"corpus": "3fa", "training": {"batch": 32, "losses": {"triplet": {"margin": 1.0}}}}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({**GIVEN, "corpus": "b17"}, "has corpus b17, and process 0"),
        ({**GIVEN, "training": {"batch": 16, "losses": {"triplet": {"margin": 1.0}}}}, "has training.batch 16"),
        ({**GIVEN, "training": {"batch": 32, "losses": {"triplet": {}}}}, "has training.losses.triplet.margin absent"),
        ({**GIVEN, "teacher": "77c"}, "has teacher 77c"),
    ],
)
def test_the_first_that_was_given_something_else_is_named_to_all(other, message):
    assert ask(3, lambda one: distributed.check_agreement(one, GIVEN)) == ["", "", ""]
    found = ask(3, lambda one: distributed.check_agreement(one, other if one.rank == 1 else GIVEN))
    assert len(set(found)) == 1 and found[0].startswith("process 1 (") and message in found[0]
    assert found[0].endswith("give all processes the same command and the same files")


def test_other_packages_are_named(monkeypatch):
    here = threading.local()
    monkeypatch.setattr(distributed, "_version", lambda package: getattr(here, "version", "2.13.0"))

    def check(one: Any) -> None:
        if one.rank == 1:
            here.version = "2.11.0"
        distributed.check_agreement(one, GIVEN)

    found = ask(2, check)
    assert found[0] == found[1]
    assert "has torch 2.11.0, and process 0" in found[0] and found[0].endswith("install the same on all machines")


def test_a_folder_that_one_does_not_see_is_named_to_all(tmp_path, monkeypatch):
    for _ in range(2):  # after a restart the mark of the first attempt lies there
        assert ask(2, lambda one: distributed.check_shared_folder(one, tmp_path)) == ["", ""]
    monkeypatch.setattr(distributed, "SHARED_WITHIN", 0.0)
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "1/met").write_text("of another run")
    found = ask(2, lambda one: distributed.check_shared_folder(one, tmp_path / str(one.rank)))
    assert all(line.startswith("process 1 (") and "-o must be on a file system that all" in line for line in found)
    distributed.check_agreement(distributed.ProcessGroup(), GIVEN)  # one alone has nobody to ask
    distributed.check_shared_folder(distributed.ProcessGroup(), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("asked", "beside", "cards", "found"),
    [
        ("auto", 2, 2, "cuda:1"),
        ("cuda", 8, 8, "cuda:1"),
        ("auto", 2, 0, "auto"),
        ("cpu", 2, 2, "cpu"),
        ("cuda", 2, 1, "2 processes were started on this machine, and torch sees 1 GPUs"),
        ("cuda:0", 2, 2, "--device is cuda:0, and 2 processes were started"),
        ("cuda:0", 1, 2, "cuda:0"),
    ],
)
def test_every_process_has_a_gpu_of_its_own(asked, beside, cards, found, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(beside))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    if " " in found:
        refused(found, distributed.local_device, asked)
    else:
        assert distributed.local_device(asked) == found


@pytest.mark.parametrize(("backend", "count", "ends"), [("nccl", 2, True), ("gloo", 2, False), ("nccl", 1, False)])
def test_after_an_error_nobody_waits_for_others_to_leave(backend, count, ends, monkeypatch):
    registered: list[Any] = []
    monkeypatch.setattr(distributed.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(atexit, "register", registered.append)
    with pytest.raises(UserError), distributed.exiting_without_peers(distributed.ProcessGroup(0, count)):
        raise UserError("something")
    assert bool(registered) == ends
    with distributed.exiting_without_peers(distributed.ProcessGroup(0, count)):
        pass
    assert len(registered) == ends


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
def jobs(literature, aspects, paired) -> dict[str, dict[str, Any]]:
    special = {
        "aspect_in_batch": (aspects, {"heads": "linear"}), "sentences": (paired, {}), "words": (literature, {"pooling": "mix"}),
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for name, training in TRAINED.items():
        source, encoder = special.get(name, (literature, {}))
        places = {"corpus": source.corpus.folder, "samples": source.samples.folder, "graph": source.graph_folder}
        found[name] = {
            **{place: str(folder) for place, folder in places.items()},
            "training": training,
            "encoder": {"init": str(source.model), **encoder},
            "not": ["fsdp"] if name in COPIES_ALONE else [],
        }
    return found


@pytest.fixture(scope="module")
def trained(jobs, tmp_path_factory) -> Path:
    """Models of one process and of two by both ways; and runs that one process began and two went on with, or two one."""
    folder = tmp_path_factory.mktemp("processes")
    for name, job in jobs.items():
        if name != "elastic":
            train_job(job, folder / "one" / name, "ddp")
    for way in WAYS:
        train_job({**jobs["in_batch"], "cut": 3}, folder / "two" / way / "one then two", way)
    both = {**jobs, "one then two": jobs["in_batch"], "two then one": {**jobs["in_batch"], "cut": 3}}
    (folder / "jobs.json").write_text(json.dumps(both))
    launcher = ACCELERATE if importlib.util.find_spec("accelerate") else [*TORCHRUN, "--standalone"]
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


def same(left: Path, right: Path, start: Path) -> None:
    """Whether two encoders differ by far less than they moved."""
    begun, alone, together = (load_file(folder / "model.safetensors") for folder in (start, left, right))
    assert alone.keys() == together.keys()
    moved = max(float(np.abs(alone[name] - begun[name]).max()) for name in begun if name in alone)
    apart = max(float(np.abs(alone[name] - together[name]).max()) for name in alone)
    assert moved > 1e-5
    assert apart < moved / 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name in TRAINED if name != "elastic"])
def test_two_processes_equal_one(literature, trained, name, way):
    if way == "fsdp" and name in COPIES_ALONE:
        assert not (trained / "two" / way / name).exists()
        return
    one, two = trained / "one" / name, trained / "two" / way / name
    same(one, two, literature.model)
    curves = []
    for folder in (one, two):
        lines = [json.loads(line) for line in (folder / "training/log.jsonl").read_text().splitlines()]
        curves.append([line.get("loss", line.get("accuracy")) for line in lines])
        assert len(curves[-1]) >= 3  # a loss or more, and validations
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    assert json.loads((two / "manifest.json").read_text())["facts"]["processes"] == 2
    if name == "aspect_in_batch":
        alone, together = open_heads(one), open_heads(two)
        start = heads_to_arrays(make_heads(alone.names, alone.inputs, EncoderOptions(heads="linear"), seed=0))
        moved, apart = (
            max(float(np.abs(other.layers[aspect][0][0] - alone.layers[aspect][0][0]).max()) for aspect in alone.names)
            for other in (start, together)
        )
        assert moved > 1e-4 and apart < moved / 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["one then two", "two then one"])
def test_another_number_of_processes_resumes(literature, trained, name, way):
    same(trained / "one/in_batch", trained / "two" / way / name, literature.model)


def test_the_folder_of_a_sharded_run_is_as_any(trained):
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
def test_what_shards_cannot_do_is_refused(training, pooling, told):
    refused(told, distributed.check_shardable, training_options(training), pooling)
    distributed.check_shardable(training_options({}), "cls")


def test_torchrun_resumes_after_a_killed_process(jobs, trained, tmp_path):
    """One is killed before the second checkpoint; those that are started anew end with the same model, to the bit."""
    job, model = jobs["elastic"], tmp_path / "model"
    command = [*TORCHRUN, "--standalone", "--max-restarts", "2", killing.__file__, "*/checkpoints/step-????????", "2"]
    command += ["train", job["corpus"], "--samples", job["samples"], "--graph", job["graph"]]
    for name, value in {**USUAL, **job["training"]}.items():
        command += ["--set", f"training.{name}={json.dumps(value)}"]
    command += ["--init", job["encoder"]["init"], "--device", "cpu", "-o", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming after step" in done.stderr
    undisturbed = trained / "two/ddp/elastic"
    assert (model / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
