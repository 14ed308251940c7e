"""What a user names is opened in one place, which refuses pipes and devices instead of waiting for them."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from citeweave.cli import index
from citeweave.cli.similar import PaperSentences
from citeweave.core.artifact import read_manifest
from citeweave.core.errors import UserError
from citeweave.core.files import hash_file, open_input, read_input
from citeweave.core.inputs import Source, open_parquet
from citeweave.core.progress import QUIET
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.readers import guess_format
from citeweave.encoders.full_text import FullText
from citeweave.encoders.model_folder import read_model_folder
from citeweave.evaluation.precomputed import looks_like_scores, read_scores
from citeweave.evaluation.suites import benchmark_files as suite_files
from citeweave.intents.examples import read_records
from citeweave.mining.formats import convert as sample_files
from citeweave.mining.inputs import read_rows
from citeweave.mining.tables import read_table
from citeweave.pipeline.recipe import load_recipe
from citeweave.search.reviewers import read_conflicts, read_people
from citeweave.vectors.formats import import_vectors

SOURCE = Path(__file__).resolve().parent.parent / "src" / "citeweave"
WORK_FILES = {
    "core/artifact.py",
    "remote/push.py",
    "remote/fetch.py",
    "encoders/fastest_runtime.py",
    "core/executor.py",
    "evaluation/html.py",
    "pipeline/recipe.py",
    "remote/ray_workers.py",
    "search/lance.py",
    "serve/prepare_library.py",
    "serve/app.py",
    "training/distributed.py",
    "training/checkpoints.py",
}
"""Modules that also read files which citeweave itself wrote or ships, and no user names."""

SECONDS = 120
"""A guard against waiting forever, not a limit."""

READERS: dict[str, Callable[[Path, Corpus], Any]] = {
    "import": lambda path, _: import_papers([path], path.with_name("out")),
    "import --format": lambda path, _: guess_format(Source(path)),
    "import --vectors": lambda path, _: import_vectors([path], path.with_name("out"), model="m"),
    "change --delete": lambda path, _: index._ids(path),
    "match --reviewers": lambda path, _: read_people(path),
    "match --conflicts": lambda path, _: read_conflicts(path),
    "mine --anchors": lambda path, corpus: read_rows(path, corpus, "--anchors", QUIET),
    "mine --tables": lambda path, corpus: read_table(path, corpus),
    "mine --recipe": lambda path, _: load_recipe(str(path), []),
    "convert": lambda path, _: sample_files._head(path),
    "evaluate --scores": lambda path, _: read_scores([path], name="scores"),
    "evaluate --vectors": lambda path, _: looks_like_scores(path.rename(path.with_suffix(".json"))),
    "evaluate --suite": lambda path, _: suite_files.read_json(path),
    "embed --full-text": lambda path, corpus: FullText.index(path, corpus),
    "similar --texts": lambda path, _: PaperSentences.open(path).find(["a"]),
    "annotate": lambda path, _: list(read_records(path)),
    "parquet": lambda path, _: open_parquet(path),
    "hash": lambda path, _: hash_file(path),
    "bytes": lambda path, _: read_input(path),
}


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise TimeoutError("still waiting for a pipe")

    if not hasattr(signal, "SIGALRM"):
        pytest.skip("no pipes with names on this system")
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    place = tmp_path_factory.mktemp("corpus")
    (place / "papers.jsonl").write_text('{"id": "a", "title": "One"}\n')
    return import_papers(place / "papers.jsonl", place / "corpus").corpus


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_that_nobody_writes_to_is_refused(name: str, corpus: Corpus, tmp_path: Path) -> None:
    pipe = tmp_path / "input.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe|is no file|does not exist"):
        READERS[name](pipe, corpus)


def test_devices_are_refused_and_folders_are_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/dev/zero is a pipe or a device"):
        open_input(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        open_input(tmp_path)
    (tmp_path / "file").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_input(tmp_path / "link") == b"bytes"


@pytest.mark.parametrize("name", ["manifest.json", "papers/title.utf8", "papers/year.npy"])
def test_a_pipe_inside_an_artifact_is_refused(name: str, corpus: Corpus, tmp_path: Path) -> None:
    copied = import_papers(corpus.folder.parent / "papers.jsonl", tmp_path / "corpus").corpus.folder
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(UserError, match="pipe"):
        read_manifest(copied, "corpus", 1)
    with pytest.raises(UserError, match="pipe"):
        Corpus.open(copied)
    with pytest.raises(UserError, match="pipe"):
        read_input(copied / name)


def test_a_pipe_inside_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="tokenizer.json is a pipe"):
        read_model_folder(tmp_path)


def test_nothing_else_opens_files_for_reading() -> None:
    """`files.open_input` is the one opener; modules that read files of our own are listed above."""
    others = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "core/files.py" and any(map(_opens, ast.walk(ast.parse(path.read_text()))))
    }
    assert others <= WORK_FILES, sorted(others - WORK_FILES)


def _opens(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    if called.endswith((".read_bytes", ".read_text")):
        return True
    modes = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    reads = not any(set("wax+") & set(mode) for mode in modes)
    texts = any(keyword.arg == "encoding" for keyword in node.keywords)
    return reads and (called == "open" or (called.endswith(".open") and (texts or "rb" in modes)))
