"""Artifacts and files of every kind, of an older and of newer format versions: each says what it is and what to do.

A manifest or settings file with another version stands for what another release wrote: the version is looked at before
anything else, so that what else would lie there does not count. The only kind whose version was ever raised is the index.
"""

from __future__ import annotations

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

from .conftest import ROOT
from .counting import Trial

SOURCE = ROOT / "src" / "citeweave"
_KIND = re.compile(r'^KIND(?:, VERSION(?:, \w+)?)? = "([^"]+)"', re.MULTILINE)
_FORMAT = re.compile(r'FORMAT, VERSION = (?:"library\.json", )?"([^"]+)", (\d+)', re.MULTILINE)

OPENED_BY = {
    "corpus": "corpus.corpus:Corpus",
    "graph": "graph.citations:CitationGraph",
    "related papers": "graph.related_files:RelatedFile",
    "intents": "graph.intent_overlay:IntentOverlay",
    "samples": "mining.samples:Samples",
    "vectors": "vectors.vectors:Vectors",
    "compressed_vectors": "vectors.compressed:CompressedVectors",
    "sentence_vectors": "vectors.sentence_vectors:SentenceVectors",
    "tokens": "encoders.tokens:TokenStore",
    "encoder": "training.train:EncoderRun",
    "report": "evaluation.report:Report",
    "paper_map": "search.map:PaperMap",
    "index_segment": "search.segment:Segment",
    "intent_classifier": "intents.classifier:IntentClassifier",
}
OF_COMMANDS = ("bundle", "search-benchmark", "treccovid-rf")
"""Kinds whose manifests commands read themselves."""

OF_CACHES = ("openvino model",)
"""Kinds that are made again without a word."""


def kinds() -> dict[str, int]:
    """Every kind of artifact that the source names, with its version."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        for kind in _KIND.findall(path.read_text(encoding="utf-8")):
            name = ".".join(["citeweave", *path.relative_to(SOURCE).with_suffix("").parts])
            found[kind] = importlib.import_module(name).VERSION
    return found


def opener_of(kind: str, version: int) -> Callable[[Path], Any]:
    if kind in OPENED_BY:
        module, _, name = OPENED_BY[kind].partition(":")
        opened: Callable[[Path], Any] = getattr(importlib.import_module(f"citeweave.{module}"), name).open
        return opened
    assert kind in OF_COMMANDS, f"{kind} is new: say here what opens it"
    return lambda folder: read_manifest(folder, kind, version)


def make(folder: Path, kind: str, version: int) -> None:
    with new_artifact(folder, kind, version, {"made of": "nothing"}) as writer:
        (writer.folder / "column.npy").write_bytes(b"other bytes in another version")
        writer.finish()


def check_told(error: CiteweaveError, place: Path, found: int, read: int) -> None:
    """The thing, its version, ours, and the next step, on one line."""
    told = str(error)
    assert str(place) in told and f"of format version {found}; this citeweave reads version {read}." in told, told
    step = "Update citeweave (pip install --upgrade citeweave), or " if found > read else "again|hoose another"
    assert step in told if found > read else re.search(step, told) and "or use the release that wrote it" in told, told
    assert "\n" not in told


def test_artifacts_of_other_versions(trial: Trial, tmp_path: Path) -> None:
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
                with (
                    pytest.raises(UserError, match="choose another -o or --overwrite"),
                    new_artifact(folder, kind, version, {}),
                ):
                    pass
                assert (folder / "column.npy").is_file()


def formats() -> dict[str, int]:
    """Every settings file that the source names, with its version."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    return {name: int(version) for text in texts for name, version in _FORMAT.findall(text)}


def read_file_of(name: str, folder: Path, content: dict[str, Any]) -> tuple[Path, Callable[[], Any]]:
    """Where such a file lies once it is written, and what reads it."""
    place, read = _READERS[name](folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, content)
    return place, read


def _index(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.search.state import STATE, read_state

    return folder / STATE, lambda: read_state(folder)


def _store(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.search.store_protocol import StoreInfo

    path = folder / "about.json"
    return path, lambda: StoreInfo.from_json(json.loads(path.read_bytes()), str(path))


def _objects(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.remote.object_list import decode_listing
    from citeweave.remote.object_storage import Address

    path = folder / "citeweave-objects.json"
    return path, lambda: decode_listing(Address("s3", "bucket", "name"), path.read_bytes(), path)


def _heads(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.encoders.aspects import FOLDER, find_heads

    return folder / FOLDER / "config.json", lambda: find_heads(folder)


def _words(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.encoders.pooling import read_aspect_words

    return folder / "config.json", lambda: read_aspect_words(folder, None)


def _delta(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.encoders.delta import read_delta

    return folder / "delta.json", lambda: read_delta(folder)


def _compact(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.encoders.compact_delta import read_compact

    return folder / "delta.json", lambda: read_compact(folder)


def _library(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.serve.prepare_library import LibraryFolder

    return folder / "library.json", lambda: LibraryFolder(folder).update_record(place="elsewhere")


def _run(folder: Path) -> tuple[Path, Callable[[], Any]]:
    from citeweave.pipeline.run_folder import RECORD, read_record

    return folder / RECORD, lambda: read_record(folder)


RUN = "a run's record"
_READERS = {
    "citeweave-index": _index,
    "citeweave-store": _store,
    "citeweave-objects": _objects,
    "citeweave-aspects": _heads,
    "citeweave-aspect-words": _words,
    "citeweave-delta": _delta,
    "citeweave-compact-delta": _compact,
    "citeweave-library": _library,
    RUN: _run,
}


def test_files_of_other_versions(trial: Trial, tmp_path: Path) -> None:
    known = formats() | {RUN: 1}
    assert set(known) == set(_READERS)
    for name, version in known.items():
        for found in (version - 1, version + 1, version + 41):
            folder = tmp_path / name.replace(" ", "-") / str(found)
            with trial.attempt(f"{name} of version {found}"):
                content = {"format": name, "version": found, "stages": {}, "place": "here"}
                place, read = read_file_of(name, folder, content)
                with pytest.raises(CiteweaveError) as caught:
                    read()
                check_told(caught.value, folder, found, version)
                assert json.loads(place.read_bytes()) == content


def test_indexes_of_version_1(trial: Trial, tmp_path: Path) -> None:
    from citeweave.search.state import read_state

    with trial.attempt("an index of version 1, a folder with a manifest"):
        make(tmp_path / "index", "index", 1)
        with pytest.raises(CiteweaveError, match=r"index of format version 1, .*citeweave index --overwrite"):
            read_state(tmp_path / "index")
