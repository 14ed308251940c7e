"""Nothing that a stranger wrote is run: no path in the source leads there, and artifacts that try are refused."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.core.errors import CiteweaveError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.update import delete_papers

from .code_paths import uses
from .counting import Trial
from .trapped_data import DATA, hard_link
from .trapped_models import MODELS, NOT_READ
from .traps import Lab

SOURCE = Path(__file__).resolve().parents[3] / "src" / "citeweave"

MOST_MEMORY = 1 << 30
"""Bytes that refusing may take at most; the largest document that is read whole has half of them."""

ALLOWED = {
    ("*", "compiled code kept"): "numba keeps machine code of our own functions where it keeps .pyc files",
    ("__init__.py", "import by a name"): "names of the front door, from a table in that file",
    ("__init__.py", "part by a name"): "the same table",
    ("core/arguments.py", "import by a name"): "names of KINDS, a table in that file",
    ("core/arguments.py", "part by a name"): "the same table",
    ("cli/serve.py", "import by a name"): "two names that stand in the loop",
    ("corpus/ingest.py", "pickles in our own pipes"): "processes that it starts itself",
    ("corpus/readers/__init__.py", "import by a name"): "one of FORMATS, checked by choose()",
    ("corpus/synthetic/synthesize.py", "pickles in our own pipes"): "processes that it starts itself",
    ("core/executor.py", "import by a name"): "functions of citeweave only; what names them is checked",
    ("core/executor.py", "part by a name"): "the same",
    ("encoders/network.py", "part by a name"): "one of DTYPES, checked by choose()",
    ("encoders/runtimes.py", "part by a name"): "one of the runtime's precisions, checked by Runtime",
    ("encoders/save.py", "part by a name"): "one of DTYPES, checked by its caller",
    ("evaluation/suites/registry.py", "import by a name"): "one of SUITES, checked by choose()",
    ("core/errors.py", "import by a name"): "callers give constants, which this check sees",
    (
        "core/publish.py",
        "ctypes",
    ): "one call of the C library that is loaded anyway: two folders exchange their names",
    (
        "remote/ray_executor.py",
        "pickles in our own pipes",
    ): "Ray's own protocol; who can reach a cluster owns it, see SECURITY.md",
    ("serve/library.py", "subprocess"): "a list of arguments to our own interpreter, no shell",
    ("training/trainer.py", "import by a name"): "tensorboard or wandb, constants in that file",
}
"""Every exception by file and kind, and why."""

SEEN = {
    "import pickle": "pickle",
    "from pickle import loads": "pickle",
    "import cloudpickle as c": "cloudpickle",
    "import marshal": "marshal",
    "import shelve": "shelve",
    "import joblib": "joblib",
    "import yaml": "yaml",
    "import pandas as pd": "pandas",
    "import ctypes": "ctypes",
    "eval('1')": "eval",
    "x = map(eval, lines)": "eval",
    "from builtins import exec as run": "builtins.exec",
    "exec(code)": "exec",
    "compile(text, 'a', 'exec')": "compile",
    "__import__(name)": "__import__",
    "import os; os.system('ls')": "os.system",
    "from os import system as run": "os.system",
    "import os as o; o.execv(a, b)": "os.exec",
    "import subprocess": "subprocess",
    "run(command, shell=True)": "shell",
    "run(command, shell=flag)": "shell",
    "import torch; torch.load(path)": "torch.load",
    "from torch import load": "torch.load",
    "torch = require('torch', extra='minilm'); torch.load(path)": "torch.load",
    "torch, b = require('torch', extra='x'), 1; torch.hub.load(a)": "torch.hub.load",
    "load(path, weights_only=False)": "weights_only",
    "import numpy as np; np.load(path)": "numpy.load",
    "read(path, allow_pickle=True)": "allow_pickle",
    "read(path, allow_pickle=given)": "allow_pickle",
    "AutoModel.from_pretrained(f, trust_remote_code=True)": "trust_remote_code",
    "AutoModel.from_pretrained(f, trust_remote_code=False, local_files_only=True)": "from_pretrained",
    "t.AutoTokenizer.from_pretrained(f)": "from_pretrained",
    "hub.snapshot_download(name)": "snapshot_download",
    "import importlib; importlib.import_module(name)": "import by a name",
    "require(name, extra='x')": "import by a name",
    "require('pickle', extra='x')": "pickle",
    "import torch; getattr(torch, name)": "part by a name",
    "from multiprocessing import Pool": "pickles in our own pipes",
    "archive.extractall(folder)": "extractall",
    "import tarfile; tarfile.open(path)": "tarfile.open",
    "from sentence_transformers import SentenceTransformer": "sentence_transformers.SentenceTransformer",
}
"""Lines that the check must see, and as what."""


def test_unsafe_lines_are_seen(trial: Trial) -> None:
    for line, kind in SEEN.items():
        with trial.attempt(line):
            assert kind in {use.kind for use in uses(line, "x.py")}


def test_source_files_without_a_path_to_foreign_code(trial: Trial) -> None:
    needed = set()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        with trial.attempt(name):
            found = uses(path.read_text(encoding="utf-8"), name)
            needed |= {(name, use.kind) for use in found} | {("*", use.kind) for use in found}
            refused = [use for use in found if not {(name, use.kind), ("*", use.kind)} & ALLOWED.keys()]
            assert not refused, refused
    trial.facts["exceptions, each with a reason"] = len(ALLOWED)
    assert ALLOWED.keys() <= needed, f"no longer needed: {sorted(ALLOWED.keys() - needed)}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Path:
    """A corpus, an index and a model that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("sound")
    lines = [f'{{"id": "p:{row}", "title": "models learn {row}", "year": 2000}}\n' for row in range(4)]
    (folder / "papers.jsonl").write_text("".join(lines))
    import_papers([folder / "papers.jsonl"], folder / "corpus")
    save_bert(folder / "model")
    build_index(Corpus.open(folder / "corpus"), folder / "model", folder / "index", IndexOptions(device="cpu"))
    return folder


@pytest.fixture
def lab(sound: Path, tmp_path: Path) -> Callable[[int], Lab]:
    def make(number: int) -> Lab:
        folder = tmp_path / f"lab-{number}"
        folder.mkdir()
        return Lab(folder, sound)

    return make


def most_memory() -> int:
    """The largest size this process had since it was last set back."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def begin_memory() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return most_memory()


@contextmanager
def memory_at_most(size: int) -> Iterator[None]:
    """Beyond it memory is refused to this process, before the machine has none left."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_malicious_artifacts_refused(trial: Trial, lab: Callable[[int], Lab]) -> None:
    fired = 0
    for number, make in enumerate([*DATA, *MODELS]):
        with trial.attempt(make.__name__):
            place = lab(number)
            trap = make(place)
            before = begin_memory()
            with memory_at_most(before + 6 * MOST_MEMORY):
                words = refusal(trap.open)
            assert most_memory() - before < MOST_MEMORY, f"{most_memory() - before:,} bytes"
            assert words and "\n" not in words and len(words) < 1500, words
            fired += check_canary(place, trap)
    trial.facts["payloads that a careless program did run"] = fired


def refusal(act: Callable[[], object]) -> str:
    """The words of the documented error that this ends in; any other end is a failure."""
    try:
        act()
    except CiteweaveError as error:
        return str(error)
    raise AssertionError("it was not refused")


def check_canary(place: Lab, trap: Any) -> bool:
    """It is not there; then let the payload loose by the careless way: it is."""
    assert not place.canary.exists(), "the payload was run"
    if trap.fire is None:
        return False
    with suppress(Exception):  # what a payload leaves is often no object of the kind that was expected
        trap.fire()
    assert place.canary.exists(), "the payload is no payload: the careless way does not run it"
    return True


def test_malicious_files_beside_a_model_never_read(trial: Trial, lab: Callable[[int], Lab]) -> None:
    for number, make in enumerate(NOT_READ):
        with trial.attempt(make.__name__):
            place = lab(number)
            trap = make(place)
            assert trap.open().encode(["models learn"]).shape == (1, 32)
            check_canary(place, trap)


def test_hard_links_not_written_through(trial: Trial, lab: Callable[[int], Lab]) -> None:
    with trial.attempt("state.json of an index"):
        place = lab(0)
        folder = hard_link(place)
        before = place.canary.read_bytes()
        assert delete_papers(folder, ["p:1"]) == 1
        assert place.canary.read_bytes() == before
