"""Folders of ours that have no manifest are called what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave.core.artifact import new_artifact, read_manifest
from citeweave.core.errors import ArtifactError, UserError


@pytest.mark.parametrize(
    ("file", "format", "called"),
    [("state.json", "citeweave-index", "an index"), ("library.json", "citeweave-library", "a library")],
)
def test_an_index_or_a_library_given_for_something_else(tmp_path: Path, file: str, format: str, called: str) -> None:
    (tmp_path / file).write_text(json.dumps({"format": format}))
    with pytest.raises(ArtifactError, match=f"holds {called}, not samples; give a folder that holds samples"):
        read_manifest(tmp_path, "samples", 1)
    with (
        pytest.raises(UserError, match=f"holds {called.split()[1]}, which samples must not replace"),
        new_artifact(tmp_path, "samples", 1, {}, overwrite=True),
    ):
        pass
    (tmp_path / file).write_text(json.dumps({"format": "of somebody else"}))
    with pytest.raises(ArtifactError, match="is not an artifact of citeweave"):
        read_manifest(tmp_path, "samples", 1)
