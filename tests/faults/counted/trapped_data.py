"""Traps in data: arrays, manifests, links, archives, compressed files, tables."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from citeweave.core.artifact import MANIFEST, check_files
from citeweave.core.publish import create_work_folder
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.intents.examples import read_records
from citeweave.pipeline.recipe import load_recipe
from citeweave.remote.object_list import decode_listing
from citeweave.remote.object_storage import Address
from citeweave.search.index import Index
from citeweave.search.update import delete_papers
from citeweave.training.bundle import read_data
from citeweave.vectors.formats import import_vectors

from .traps import Lab, Trap, change_json, describe_again

YEARS = "papers/year.npy"


def _read_all(folder: Path) -> Callable[[], object]:
    def read() -> None:
        corpus = Corpus.open(folder)
        for row in range(len(corpus)):
            corpus.paper(row)
        check_files(folder, corpus.manifest, content=True)

    return read


def _import(lab: Lab, *paths: Path) -> Callable[[], object]:
    return lambda: import_papers(list(paths), lab.out)


def _vectors(lab: Lab, content: bytes) -> Trap:
    path = lab.file("vectors.npy", content)
    lab.file("vectors.ids", "p:0\np:1\n")
    return Trap(lambda: import_vectors([path], lab.out))


def _npy(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) if length is None else length) + header + data


def _saved(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def vectors_of_objects(lab: Lab) -> Trap:
    trap = _vectors(lab, _saved(lab.objects))
    return Trap(trap.open, lambda: np.load(lab.folder / "given" / "vectors.npy", allow_pickle=True))


def vectors_of_records_with_objects(lab: Lab) -> Trap:
    records = np.array([(1, lab.payload)], dtype=[("a", "i4"), ("b", "O")])
    trap = _vectors(lab, _saved(records))
    return Trap(trap.open, lambda: np.load(lab.folder / "given" / "vectors.npy", allow_pickle=True))


def vectors_with_an_expression_as_header(lab: Lab) -> Trap:
    code = f"__import__('os').system({lab.command!r})"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({code},), }}\n".encode()
    return Trap(_vectors(lab, _npy(header, bytes(64))).open, lambda: eval(header))  # noqa: S307 - the careless way


def vectors_with_a_header_of_4_gib(lab: Lab) -> Trap:
    return _vectors(lab, _npy(b"{", length=2**32 - 1))


def vectors_of_2_to_the_60_numbers(lab: Lab) -> Trap:
    return _vectors(
        lab, _npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**58}, 4), }}".encode(), bytes(64))
    )


def column_of_objects(lab: Lab) -> Trap:
    folder = lab.copy("corpus")
    np.save(folder / YEARS, lab.objects, allow_pickle=True)
    describe_again(folder, YEARS)
    return Trap(_read_all(folder), lambda: np.load(folder / YEARS, allow_pickle=True))


def _bundle(lab: Lab, entries: dict[str, bytes]) -> Trap:
    folder = lab.folder / "given"
    folder.mkdir(parents=True)
    np.save(folder / "rows.npy", np.arange(2))
    with zipfile.ZipFile(folder / "tokens.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return Trap(lambda: read_data(folder))


def bundle_of_objects(lab: Lab) -> Trap:
    trap = _bundle(lab, {"ids.npy": _saved(lab.objects), "offsets.npy": _saved(np.arange(3))})
    return Trap(trap.open, lambda: np.load(lab.folder / "given" / "tokens.npz", allow_pickle=True)["ids"])


def bundle_that_grows(lab: Lab) -> Trap:
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({2**25},), }}".encode()
    return _bundle(lab, {"ids.npy": _npy(header, bytes(2**26)), "offsets.npy": _saved(np.arange(3))})


def bundle_with_names_that_lead_out(lab: Lab) -> Trap:
    return _bundle(lab, {"../../canary": b"x", "offsets.npy": _saved(np.arange(3))})


def _named(lab: Lab, name: str) -> Trap:
    folder = lab.copy("corpus")
    described = {"bytes": 1, "sha256": "0" * 64}
    change_json(folder / MANIFEST, lambda manifest: manifest["files"].__setitem__(name, described))
    return Trap(_read_all(folder))


def manifest_with_a_name_that_leads_up(lab: Lab) -> Trap:
    return _named(lab, "papers/../../../canary")


def manifest_with_an_absolute_name(lab: Lab) -> Trap:
    return _named(lab, str(lab.canary))


def manifest_without_a_table_of_files(lab: Lab) -> Trap:
    folder = lab.copy("corpus")
    change_json(folder / MANIFEST, lambda manifest: manifest.__setitem__("files", 7))
    return Trap(_read_all(folder))


def column_that_is_a_link(lab: Lab) -> Trap:
    folder = lab.copy("corpus")
    outside = lab.file("secret.npy", (folder / YEARS).read_bytes())
    (folder / YEARS).unlink()
    (folder / YEARS).symlink_to(outside)
    return Trap(_read_all(folder))


def folder_that_is_a_link(lab: Lab) -> Trap:
    folder = lab.copy("corpus")
    (folder / "papers").rename(lab.folder / "given" / "elsewhere")
    (folder / "papers").symlink_to(lab.folder / "given" / "elsewhere")
    return Trap(_read_all(folder))


def _changed(lab: Lab, name: str) -> Trap:
    """An index with a link where its next state would be written."""
    folder = lab.copy("index")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(lab.canary)
    return Trap(lambda: delete_papers(folder, ["p:1"]), lambda: (folder / name).open("w").close())


def index_whose_next_state_is_a_link(lab: Lab) -> Trap:
    return _changed(lab, "state.json")


def index_whose_lock_is_a_link(lab: Lab) -> Trap:
    return _changed(lab, ".lock")


def index_whose_segments_are_a_link(lab: Lab) -> Trap:
    """What no state names would be removed there."""
    folder, home = lab.copy("index"), lab.folder / "given" / "home"
    (folder / "segments").rename(home)
    (home / "letters").mkdir()
    (folder / "segments").symlink_to(home)

    def change() -> None:
        try:
            delete_papers(folder, ["p:1"])
        finally:
            assert (home / "letters").is_dir(), "a folder outside of the index was removed"

    return Trap(change)


def index_with_a_segment_that_leads_up(lab: Lab) -> Trap:
    folder = lab.copy("index")
    change_json(folder / "state.json", lambda state: state["segments"][0].__setitem__("name", "../../elsewhere"))
    return Trap(lambda: Index.open(folder))


def unfinished_work_that_is_a_link(lab: Lab) -> Trap:
    papers = lab.file("papers.jsonl", json.dumps({"id": "p:1", "title": "A title"}))
    work = create_work_folder(lab.out) / "kept"
    work.rmdir()
    work.symlink_to(lab.folder / "given")
    return Trap(_import(lab, papers))


def _slipping_tar(lab: Lab) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo(str(lab.canary))
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
        link = tarfile.TarInfo("papers.jsonl")
        link.type, link.linkname = tarfile.SYMTYPE, str(lab.canary)
        archive.addfile(link)
    return file.getvalue()


def tar_with_names_that_lead_out(lab: Lab) -> Trap:
    path = lab.file("papers.tar", _slipping_tar(lab))

    def extract() -> None:
        with tarfile.open(path) as archive:
            archive.extractall(lab.folder, filter="fully_trusted")

    return Trap(_import(lab, path), extract)


def packed_tar_with_names_that_lead_out(lab: Lab) -> Trap:
    return Trap(_import(lab, lab.file("papers.tar.gz", gzip.compress(_slipping_tar(lab)))))


def zip_with_names_that_lead_out(lab: Lab) -> Trap:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../../canary", "x")
    return Trap(_import(lab, lab.file("papers.zip", file.getvalue())))


def pickle_given_as_papers(lab: Lab) -> Trap:
    path = lab.file("papers.pkl", lab.pickled)
    return Trap(_import(lab, path), lab.unpickle(path))


def _yaml(lab: Lab) -> str:
    return f"title: !!python/object/apply:os.system ['{lab.command}']\n"


def _load_yaml(path: Path) -> Callable[[], object]:
    import yaml

    return lambda: yaml.unsafe_load(path.read_text())


def yaml_given_as_recipe(lab: Lab) -> Trap:
    path = lab.file("recipe.toml", _yaml(lab))
    return Trap(lambda: load_recipe(str(path)), _load_yaml(path))


def yaml_given_as_papers(lab: Lab) -> Trap:
    path = lab.file("papers.yaml", _yaml(lab))
    return Trap(_import(lab, path), _load_yaml(path))


def bibliography_that_grows(lab: Lab) -> Trap:
    block = gzip.compress(b"%" * 2**26)
    return Trap(_import(lab, lab.file("library.bib.gz", gzip.compress(b"@article{a, title={T}}\n") + block * 9)))


def line_that_grows(lab: Lab) -> Trap:
    path = lab.file("contexts.jsonl.gz", gzip.compress(b'{"text": "' + b" " * 2**26) + gzip.compress(b" " * 2**26) * 11)
    return Trap(lambda: list(read_records(path)))


def zstd_with_a_window_of_2_gib(lab: Lab) -> Trap:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x00, 21 << 3]) + b"\x01\x00\x00"
    return Trap(_import(lab, lab.file("papers.jsonl.zst", frame)))


def table_with_a_cell_of_256_mib(lab: Lab) -> Trap:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = lab.file("papers.parquet", b"")
    table = pa.table({"id": ["p:1"], "title": ["a" * 2**20 * 256]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False)
    return Trap(_import(lab, path))


def table_whose_cells_are_one_of_4_mib(lab: Lab) -> Trap:
    """4,096 rows of one entry of a dictionary: 16 GiB of text in a file of kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = lab.file("papers.parquet", b"")
    rows = 4096
    titles = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * 2**22]))
    table = pa.table({"id": [f"p:{row}" for row in range(rows)], "title": titles})
    pq.write_table(
        table, path, compression="zstd", write_statistics=False, store_schema=False, dictionary_pagesize_limit=2**24
    )
    return Trap(_import(lab, path))


def table_with_a_page_of_2_gib(lab: Lab) -> Trap:
    """The header of its page says so; the page itself has a few bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = lab.file("edges.parquet", b"")
    table = pa.table({"citing": pa.array(range(40), pa.int64()), "cited": pa.array(range(40), pa.int64())})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x15", 4)  # PageHeader: type, then uncompressed_page_size as a zigzag varint of two bytes
    data[at + 3 : at + 5] = b"\xfe\x7f"  # the largest that fits in its place
    assert data[at : at + 2] == b"\x15\x00" and data[at + 2] == 0x15
    path.write_bytes(data)
    return Trap(_import(lab, path))


def _listing(lab: Lab, name: str, at: str) -> Trap:
    files = {name: {"bytes": 1, "sha256": "0" * 64, "at": at}}
    data = json.dumps({"format": "citeweave-objects", "version": 1, "files": files}).encode()
    return Trap(lambda: decode_listing(Address("s3", "lab", "corpus"), data, "s3://lab/corpus"))


def listing_with_a_name_that_leads_up(lab: Lab) -> Trap:
    return _listing(lab, "../../canary", "a")


def listing_with_an_absolute_name(lab: Lab) -> Trap:
    return _listing(lab, str(lab.canary), "a")


def listing_of_an_object_elsewhere(lab: Lab) -> Trap:
    return _listing(lab, "papers/year.npy", "../secrets/key")


def hard_link(lab: Lab) -> Path:
    """An index with a hard link to the canary where its state is, in whose place the next one is written; that cannot be told from a file."""
    folder = lab.copy("index")
    lab.canary.write_bytes((folder / "state.json").read_bytes())
    (folder / "state.json").unlink()
    os.link(lab.canary, folder / "state.json")
    return folder


DATA = [
    vectors_of_objects, vectors_of_records_with_objects, vectors_with_an_expression_as_header,
    vectors_with_a_header_of_4_gib, vectors_of_2_to_the_60_numbers, column_of_objects, bundle_of_objects,
    bundle_that_grows, bundle_with_names_that_lead_out, manifest_with_a_name_that_leads_up,
    manifest_with_an_absolute_name, manifest_without_a_table_of_files, column_that_is_a_link, folder_that_is_a_link,
    index_whose_next_state_is_a_link, index_whose_lock_is_a_link, index_whose_segments_are_a_link,
    index_with_a_segment_that_leads_up, unfinished_work_that_is_a_link, tar_with_names_that_lead_out,
    packed_tar_with_names_that_lead_out, zip_with_names_that_lead_out, pickle_given_as_papers, yaml_given_as_recipe,
    yaml_given_as_papers, bibliography_that_grows, line_that_grows, zstd_with_a_window_of_2_gib,
    table_with_a_cell_of_256_mib, table_whose_cells_are_one_of_4_mib, table_with_a_page_of_2_gib,
    listing_with_a_name_that_leads_up, listing_with_an_absolute_name, listing_of_an_object_elsewhere,
]  # fmt: skip
