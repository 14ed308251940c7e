"""Nothing that a stranger wrote is run: no path in the source leads there, and artifacts that try are refused."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import citeweave as cw
from citeweave.core.errors import CiteweaveError

from .code_paths import uses
from .counting import one_line
from .hostile_models import MODELS, NOT_READ
from .traps import DATA, Lab, hard_link
from .trying import measured, own_bytes

SOURCE = Path(__file__).resolve().parents[3] / "src" / "citeweave"

MOST_MEMORY = 1 << 30
"""Bytes that refusing may take at most; the largest document that is read whole has half of them."""

ALLOWED = {
    ("*", "compiled code kept"): "numba keeps machine code of our own functions where it keeps .pyc files",
    ("__init__.py", "import by a name"): "names of the front door, from a table in that file",
    ("__init__.py", "part by a name"): "the same table",
    ("core/arguments.py", "import by a name"): "names of KINDS, a table in that file",
    ("core/arguments.py", "part by a name"): "the same table",
    ("cli/index.py", "import by a name"): "two names that stand in the loop",
    ("cli/__init__.py", "import by a name"): "modules of COMMANDS, a table in that file",
    ("baselines/use_lite.py", "tarfile.open"): "a package of a known hash, of which files are read and none is written",
    ("corpus/readers/__init__.py", "import by a name"): "one of FORMATS, checked by choose()",
    ("core/executor.py", "pickles in our own pipes"): "processes that it starts itself",
    ("encoders/packaged_models.py", "from_pretrained"): "a GGUF file of a known hash: tensors and words, no code",
    ("core/executor.py", "import by a name"): "functions of citeweave only; what names them is checked",
    ("core/executor.py", "part by a name"): "the same",
    ("encoders/network.py", "part by a name"): "one of DTYPES, checked by choose()",
    ("encoders/save.py", "part by a name"): "one of DTYPES, checked by its caller",
    ("evaluation/suites/__init__.py", "import by a name"): "one of SUITES, checked by choose()",
    ("core/errors.py", "import by a name"): "callers give constants, which this check sees",
    ("core/publish.py", "ctypes"): "one call of the C library that is loaded anyway: two folders swap names",
    ("remote/ray_executor.py", "pickles in our own pipes"): "Ray's protocol; who can reach a cluster owns it",
    ("core/notebook.py", "pandas"): "a data frame is made of our values, no file is read by it",
    ("core/notebook.py", "import by a name"): "pandas or polars, checked by choose()",
    ("corpus/paper_rows.py", "pandas"): "the type of a result, imported for type checks alone",
    ("serve/library.py", "subprocess"): "a list of arguments to our own interpreter, no shell",
    ("training/trainer.py", "import by a name"): "tensorboard or wandb, constants in that file",
}
"""Every exception by file and kind, and why."""

SEEN = {
    "pickle": ["import pickle", "from pickle import loads", "require('pickle', extra='x')"], "cloudpickle": ["import cloudpickle as c"],
    "marshal": ["import marshal"], "shelve": ["import shelve"], "joblib": ["import joblib"], "yaml": ["import yaml"],
    "pandas": ["import pandas as pd"], "ctypes": ["import ctypes"], "eval": ["eval('1')", "x = map(eval, lines)"],
    "builtins.exec": ["from builtins import exec as run"], "exec": ["exec(code)"], "compile": ["compile(text, 'a', 'exec')"],
    "__import__": ["__import__(name)"], "os.system": ["import os; os.system('ls')", "from os import system as run"],
    "os.exec": ["import os as o; o.execv(a, b)"], "subprocess": ["import subprocess"],
    "shell": ["run(command, shell=True)", "run(command, shell=flag)"],
    "torch.load": ["import torch; torch.load(path)", "from torch import load", "torch = require('torch', extra='minilm'); torch.load(path)"],
    "torch.hub.load": ["torch, b = require('torch', extra='x'), 1; torch.hub.load(a)"], "weights_only": ["load(path, weights_only=False)"],
    "numpy.load": ["import numpy as np; np.load(path)"], "allow_pickle": ["read(path, allow_pickle=True)", "read(path, allow_pickle=given)"],
    "trust_remote_code": ["AutoModel.from_pretrained(f, trust_remote_code=True)"],
    "from_pretrained": ["AutoModel.from_pretrained(f, trust_remote_code=False, local_files_only=True)", "t.AutoTokenizer.from_pretrained(f)"],
    "snapshot_download": ["hub.snapshot_download(name)"],
    "import by a name": ["import importlib; importlib.import_module(name)", "require(name, extra='x')"],
    "part by a name": ["import torch; getattr(torch, name)"], "pickles in our own pipes": ["from multiprocessing import Pool"],
    "extractall": ["archive.extractall(folder)"], "tarfile.open": ["import tarfile; tarfile.open(path)"],
    "sentence_transformers.SentenceTransformer": ["from sentence_transformers import SentenceTransformer"],
}  # fmt: skip
"""What the check must see, and lines that have it."""


def test_unsafe_lines_are_seen(trial):
    for kind, line in ((kind, line) for kind, lines in SEEN.items() for line in lines):
        with trial.attempt(line):
            assert kind in {use.kind for use in uses(line, "x.py")}


def test_source_files_without_a_path_to_foreign_code(trial):
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
def sound(tmp_path_factory: pytest.TempPathFactory, index_of: Callable[..., Path]) -> Path:
    """A corpus, an index and a model that nothing is wrong with."""
    papers = [{"id": f"p:{row}", "title": f"models learn {row}", "year": 2000} for row in range(4)]
    return index_of(tmp_path_factory.mktemp("sound"), papers).parent


@pytest.fixture
def lab(sound: Path, tmp_path: Path) -> Callable[[int], Lab]:
    def make(number: int) -> Lab:
        (tmp_path / f"lab-{number}").mkdir()
        return Lab(tmp_path / f"lab-{number}", sound)

    return make


@contextmanager
def memory_at_most(size: int) -> Iterator[None]:
    """Beyond it memory is refused to this process, before the machine has none left."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_malicious_artifacts_refused(trial, lab):
    fired = 0
    for number, (name, make) in enumerate({**DATA, **MODELS}.items()):
        with trial.attempt(name):
            place = lab(number)
            trap = make(place)
            limit = memory_at_most(own_bytes("VmRSS") + 6 * MOST_MEMORY)
            with limit, measured() as growth, pytest.raises(CiteweaveError) as caught:
                trap.open()
            assert growth[0] < MOST_MEMORY, f"{growth[0]:,} bytes"
            one_line(caught.value)
            fired += check_canary(place, trap)
    trial.facts["payloads that a careless program did run"] = fired


def check_canary(place: Lab, trap: Any) -> bool:
    """It is not there; then let the payload loose by the careless way: it is."""
    assert not place.canary.exists(), "the payload was run"
    if trap.fire is None:
        return False
    with suppress(Exception):  # what a payload leaves is often no object of the kind that was expected
        trap.fire()
    assert place.canary.exists(), "the payload is no payload: the careless way does not run it"
    return True


def test_malicious_files_beside_a_model_never_read(trial, lab):
    for number, (name, make) in enumerate(NOT_READ.items()):
        with trial.attempt(name):
            place = lab(number)
            trap = make(place)
            assert trap.open().encode(["models learn"]).shape == (1, 32)
            check_canary(place, trap)


def test_hard_links_not_written_through(trial, lab):
    with trial.attempt("state.json of an index"):
        place = lab(0)
        folder = hard_link(place)
        before = place.canary.read_bytes()
        assert cw.delete_papers(folder, ["p:1"]) == 1
        assert place.canary.read_bytes() == before
