"""Artifacts and files of every kind, of an older and of newer format versions: each says what it is and what to do.

A manifest or settings file with another version stands for what another release wrote: the version is looked at before
anything else, so that what else would lie there does not count. The only kind whose version was ever raised is the index.
"""

import functools
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.artifact import artifact_matches, new_artifact, read_manifest
from citeweave.core.errors import CiteweaveError, UserError
from citeweave.core.files import write_json
from citeweave.remote.object_storage import Address
from citeweave.search.state import read_state

from .conftest import ROOT
from .counting import one_line

SOURCE = ROOT / "src" / "citeweave"
_KIND = re.compile(r'^(\w*)KIND(?:, \w*VERSION(?:, \w+)?)? = "([^"]+)"', re.MULTILINE)
_FORMAT = re.compile(r'FORMAT, \w*VERSION = (?:"library\.json", )?"([^"]+)", (\d+)', re.MULTILINE)

OPENED_BY = {
    "corpus": "corpus.corpus:Corpus", "graph": "graph.citations:CitationGraph", "related papers": "graph.build:RelatedFile",
    "intents": "graph.intent_overlay:IntentOverlay", "samples": "mining.samples:Samples", "vectors": "vectors.vectors:Vectors",
    "compressed_vectors": "vectors.compressed:CompressedVectors", "sentence_vectors": "vectors.sentence_vectors:SentenceVectors",
    "tokens": "encoders.tokens:TokenStore", "encoder": "training.train:EncoderRun", "report": "evaluation.report:Report",
    "paper_map": "search.map:PaperMap",
    "intent_classifier": "intents.classifier:IntentClassifier",
}  # fmt: skip
OF_COMMANDS = ("bundle", "index_generation", "search-benchmark", "treccovid-rf")
"""Kinds whose manifests are read by more than their folder: by commands, or by the state of an index."""

OF_CACHES = ("openvino model", "light_encoder")
"""Kinds that are made again without a word."""


def kinds() -> dict[str, int]:
    """Every kind of artifact that the source names, with its version."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        for prefix, kind in _KIND.findall(path.read_text(encoding="utf-8")):
            name = ".".join(["citeweave", *path.relative_to(SOURCE).with_suffix("").parts])
            if version := getattr(importlib.import_module(name), f"{prefix}VERSION", None):
                found[kind] = version
    return found


def load(name: str) -> Any:
    """`graph.citations:CitationGraph.open` as what it names."""
    module, _, parts = name.partition(":")
    return functools.reduce(getattr, parts.split("."), importlib.import_module(f"citeweave.{module}"))


def opener_of(kind: str, version: int) -> Callable[[Path], Any]:
    assert kind in (*OPENED_BY, *OF_COMMANDS), f"{kind} is new: say here what opens it"
    return load(OPENED_BY[kind]).open if kind in OPENED_BY else lambda folder: read_manifest(folder, kind, version)


def make(folder: Path, kind: str, version: int) -> None:
    with new_artifact(folder, kind, version, {"made of": "nothing"}) as writer:
        (writer.folder / "column.npy").write_bytes(b"other bytes in another version")
        writer.finish()


def check_told(error: CiteweaveError, place: Path, found: int, read: int) -> None:
    """The thing, its version, ours, and the next step, on one line."""
    told = one_line(error)
    assert str(place) in told and f"of format version {found}; this citeweave reads version {read}." in told, told
    step = "Update citeweave (pip install --upgrade citeweave), or " if found > read else "again|hoose another"
    assert step in told if found > read else re.search(step, told) and "or use the release that wrote it" in told, told


def test_artifacts_of_other_versions(trial, tmp_path):
    known = kinds()
    assert len(known) == len(OPENED_BY) + len(OF_COMMANDS) + len(OF_CACHES)
    for kind, version in known.items():
        for found in (version - 1, version + 1, version + 41):
            folder = tmp_path / kind.replace(" ", "-") / str(found)
            make(folder, kind, found)
            with trial.attempt(f"{kind} of version {found}"):
                if kind in OF_CACHES:
                    assert not artifact_matches(folder, kind, version, {"made of": "nothing"})
                else:
                    with pytest.raises(CiteweaveError) as caught:
                        opener_of(kind, version)(folder)
                    check_told(caught.value, folder, found, version)
            with trial.attempt(f"{kind} over one of version {found}"):
                with pytest.raises(UserError, match="choose another -o or --overwrite"):
                    new_artifact(folder, kind, version, {}).__enter__()
                assert (folder / "column.npy").is_file()


def formats() -> dict[str, int]:
    """Every settings file that the source names, with its version."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    return {name: int(version) for text in texts for name, version in _FORMAT.findall(text)}


RUN = "a run's record"
FILES = {
    "citeweave-index": ("state.json", "search.state:read_state"),
    "citeweave-store": ("about.json", "search.store:StoreInfo.from_json"),
    "citeweave-objects": ("citeweave-objects.json", "remote.fetch:decode_listing"),
    "citeweave-aspects": ("aspects/config.json", "encoders.aspects:find_heads"),
    "citeweave-aspect-words": ("config.json", "encoders.pooling:read_aspect_words"),
    "citeweave-title-abstract": ("title_abstract/config.json", "encoders.model_folder:reads_title_apart"),
    "citeweave-delta": ("delta.json", "encoders.delta:read_delta"),
    "citeweave-library": ("library.json", "serve.prepare_library:LibraryFolder"),
    RUN: ("run.json", "pipeline.run_folder:read_record"),
}
"""Where such a file lies in its folder, and what reads it."""


def read_file_of(name: str, folder: Path) -> Any:
    place, read = folder / FILES[name][0], load(FILES[name][1])
    ways: dict[str, Callable[[], Any]] = {
        "citeweave-store": lambda: read(json.loads(place.read_bytes()), str(place)),
        "citeweave-objects": lambda: read(Address("s3", "bucket", "name"), place.read_bytes(), place),
        "citeweave-aspect-words": lambda: read(folder, None),
        "citeweave-library": lambda: read(folder).update_record(place="elsewhere"),
    }
    return ways[name]() if name in ways else read(folder)


def test_files_of_other_versions(trial, tmp_path):
    known = formats() | {RUN: 1}
    assert set(known) == set(FILES)
    for name, version in known.items():
        for found in (version - 1, version + 1, version + 41):
            folder = tmp_path / name.replace(" ", "-") / str(found)
            with trial.attempt(f"{name} of version {found}"):
                content = {"format": name, "version": found, "stages": {}, "place": "here"}
                place = folder / FILES[name][0]
                place.parent.mkdir(parents=True)
                write_json(place, content)
                with pytest.raises(CiteweaveError) as caught:
                    read_file_of(name, folder)
                check_told(caught.value, folder, found, version)
                assert json.loads(place.read_bytes()) == content


def test_indexes_of_version_1(trial, tmp_path):
    with trial.attempt("an index of version 1, a folder with a manifest"):
        make(tmp_path / "index", "index", 1)
        with pytest.raises(CiteweaveError, match=r"index of format version 1, .*citeweave index --overwrite"):
            read_state(tmp_path / "index")
