from __future__ import annotations

import os
from pathlib import Path

import pytest

from citeweave.core.errors import UserError
from citeweave.serve.prepare_library import data_folder, find_source, library_folder

BIB = "@article{a, title={A study of moths near bright lamps}, year={2019}}\n"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my.bib"
    file.write_text(BIB)
    source = find_source(str(file))
    assert (source.kind, source.name, source.files) == ("files", "my", (file,))
    before = source.stamp()
    assert before == find_source(str(file)).stamp()
    file.write_text(BIB * 2)
    assert source.stamp() != before


def test_a_folder_with_an_export_leaves_other_files_aside(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "paper.pdf").write_bytes(b"%PDF-1.5")
    (tmp_path / "My Library.bib").write_text(BIB)
    (tmp_path / "package.json").write_text('{"name": "x", "version": 1}')
    assert [path.name for path in find_source(str(tmp_path)).files] == ["My Library.bib"]


def test_a_folder_of_zotero_and_its_storage(tmp_path: Path) -> None:
    (tmp_path / "zotero.sqlite").write_bytes(b"x")
    (tmp_path / "storage").mkdir()
    (tmp_path / "My Library.bib").write_text(BIB)
    for named in (tmp_path, tmp_path / "storage", tmp_path / "zotero.sqlite"):
        source = find_source(str(named))
        assert (source.kind, source.place, source.files) == ("zotero", str(tmp_path), (tmp_path / "zotero.sqlite",))


def test_queries() -> None:
    source = find_source("openalex:  citation   recommendation ")
    assert (source.kind, source.service, source.query) == ("query", "openalex", "citation recommendation")
    assert find_source("s2: moths").place == "s2:moths"
    for text, reason in (
        ("scopus:moths", "is not a service"),
        ("s2:", "no words"),
        ("gone.bib", "does not exist"),
        ("https://x", "does not exist"),
    ):
        with pytest.raises(UserError, match=reason):
            find_source(text)


def test_a_pipe_is_refused_by_name(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes with names here")
    os.mkfifo(tmp_path / "my.bib")
    with pytest.raises(UserError, match=r"my\.bib is neither a file nor a folder but a pipe or a device; save"):
        find_source(str(tmp_path / "my.bib"))


def test_an_artifact_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"kind": "intent_classifier"}')
    with pytest.raises(UserError, match="holds intent classifier, which cannot be explored"):
        find_source(str(tmp_path))
    (tmp_path / "manifest.json").write_text('{"kind": "index", "version": 1}')
    with pytest.raises(UserError, match="an index of an older format; build it again with `citeweave index`"):
        find_source(str(tmp_path))


def test_every_source_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITEWEAVE_DATA", str(tmp_path / "data"))
    places = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "../" / name / "my library.bib"
        file.write_text(BIB)
        places.append(library_folder(find_source(str(file))))
        assert library_folder(find_source(str(file.resolve()))) == places[-1]
    assert len(set(places)) == 2 and all(place.parent == tmp_path / "data" for place in places)
    assert all(place.name.startswith("my-library-") for place in places)
    hostile = library_folder(find_source("openalex:../../etc/passwd\x00; rm -rf ~"))
    assert hostile.parent == tmp_path / "data" and "/" not in hostile.name and "\x00" not in hostile.name
    monkeypatch.delenv("CITEWEAVE_DATA")
    assert data_folder().name == "citeweave"
