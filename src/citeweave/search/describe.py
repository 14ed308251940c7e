"""Describe an index, or any other artifact folder, as JSON: what it holds, how it was made, its size; verify its files.

    describe_folder("index/", verify=True)   {"kind": "index", "generation": 3, "papers": 2038, "years": {...}, ...}
    describe_folder("graph/")                {"kind": "graph", "version": 1, "hash": "...", "files": 12, "bytes": ...}
    describe_index(index)                    the part about the papers, vectors and model of an open index

`citeweave info` prints the first two, `citeweave index` and `citeweave change` the last. Reads the columns of an index that
have one number per paper, no text. Verifying reads every byte of every file; it does not repair.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import Manifest, check_files, kind_of, read_any_manifest
from citeweave.core.errors import ArtifactError
from citeweave.corpus.corpus import STUB, count_years
from citeweave.search.index import Index
from citeweave.search.map import KIND as MAP_KIND
from citeweave.search.map import find_map
from citeweave.search.state import VERSION, damaged_index, is_index


def describe_index(index: Index) -> dict[str, Any]:
    """Describe what was built into an index, as JSON: papers, vectors, sentences, references, model."""
    known, facts = index.provenance, index.facts
    with_vector, waiting = int(index.with_vector.sum()), int(index.not_embedded.sum())
    description = {
        "generation": index.number,
        "changed_at": index.manifest.made.get("at", ""),
        "corpus": index.corpus,
        "corpus_name": facts.get("corpus_name", ""),
        "model": known.model if known else "",
        "revision": known.revision if known else "",
        "passes": facts.get("passes", []),
        "runtime": index.runtime if known else "",
        "aspects": list(index.aspects),
        "aspect_dimensions": [matrix.shape[1] for matrix in index.aspect_matrices],
        "papers": len(index),
        "with_vector": with_vector,
        "not_embedded": waiting,
        "without_vector": len(index) - with_vector - waiting,
        "with_abstract": int((index.abstracts.lengths() > 0).sum()),
        "with_year": int(np.count_nonzero(index.years > 0)),
        "known_only_as_reference": int(np.count_nonzero(index.flags & STUB)),
        "years": count_years(index.years),
        "with_sentences": int(index.with_sentences.sum()),
        "sentence_vectors": 0 if index.sentences is None else len(index.sentences.numbers),
        "with_intents": int(index.cited_as.any(axis=1).sum()),
        "references": len(index.reference_keys),
        "dimension": known.dimension if known else 0,
        "dtype": str(facts.get("dtype", "")),
    }
    if facts.get("contexts"):
        description |= {name: facts.get(name, 0) for name in ("sentences", "mentions", "sentences_left_out")}
    return description


def describe_folder(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Describe an index, or any artifact folder: kind, version, content, files, bytes; `verify` checks every byte."""
    folder = Path(folder)
    if is_index(folder):
        index = Index.open(folder)
        if verify:
            verify_index(index)
        content = {**describe_index(index), "codes": _coded_vectors(index), **_describe_maps(index)}
        content["bytes_on_disk"] = _bytes_on_disk(folder)
        return _describe(index.manifest, verify, kind="index", version=VERSION, **content)
    manifest = read_any_manifest(folder)
    check_files(folder, manifest, content=verify)
    return _describe(manifest, verify, kind=manifest.kind, version=manifest.version, hash=manifest.hash)


def verify_index(index: Index) -> None:
    """Check every byte of an open index, and that its aspect heads are those of its model."""
    try:
        check_files(index.place, index.manifest, content=True)
    except ArtifactError as error:
        raise damaged_index(index.folder, error) from None
    _ = index.heads


def _coded_vectors(index: Index) -> list[str]:
    """List the vectors of an index that have quantized codes for a fast scan: those of many rows."""
    citing = index.citing_sentences
    codes = {
        "papers": index.matrix_codes,
        **{f"aspect {name}": each for name, each in zip(index.aspects, index.aspect_codes, strict=True)},
        "sentences": index.sentence_codes,
        "citing sentences": None if citing is None else citing.codes,
    }
    return [name for name, each in codes.items() if each is not None]


def _describe_maps(index: Index) -> dict[str, Any]:
    """Describe the map of an index's current generation, and count those of earlier ones that are still kept."""
    current, folder = find_map(index), index.folder / "maps"
    kept = sum(kind_of(path) == MAP_KIND for path in folder.iterdir()) if folder.is_dir() else 0
    described = None if current is None else {"papers": len(current), "groups": len(current.groups)}
    return {"map": described, "earlier_maps": kept - (current is not None)}


def _bytes_on_disk(folder: Path) -> int:
    """Return the size of all files in a folder; another process may be removing some."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _describe(manifest: Manifest, verify: bool, **first: Any) -> dict[str, Any]:
    sizes = [described.get("bytes", 0) for described in manifest.files.values()]
    verified = {"verified": "every file is as it was written"} if verify else {}
    return {**first, "files": len(sizes), "bytes": sum(sizes), **verified, "facts": manifest.facts}
