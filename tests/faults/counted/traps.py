"""Artifacts of a stranger who wants to write a file, run a command or fill the memory, and how they are opened.

A maker gets a `Lab` and gives a `Trap`: `open` is what a user does with the artifact, `fire` what a careless program
would do with it, which shows that the payload is alive: afterwards the canary is there. Models are in `hostile_models.py`.
"""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import citeweave as cw
from citeweave.core.artifact import MANIFEST, check_files
from citeweave.core.files import hash_file
from citeweave.core.publish import create_work_folder
from citeweave.intents.examples import read_records
from citeweave.remote.fetch import decode_listing
from citeweave.remote.object_storage import Address
from citeweave.training.bundle import read_data

YEARS = "papers/year.npy"


@dataclass(frozen=True)
class Trap:
    open: Callable[[], Any]
    fire: Callable[[], object] | None = None  # where what is wrong is a size or a place, there is nothing to run


@dataclass(frozen=True)
class Command:
    """Unpickled it runs a command of the shell."""

    line: str

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.line,)


@dataclass
class Lab:
    """A folder to work in, with sound artifacts to spoil."""

    folder: Path
    sound: Path  # has corpus/, index/ and model/, which are copied and never changed

    def __post_init__(self) -> None:
        self.given, self.out = self.folder / "given", self.folder / "out"
        self.canary = self.folder / "canary"  # a file that nobody has a reason to write
        self.command = f"touch {self.canary}"
        self.yaml = f"!!python/object/apply:os.system ['{self.command}']"
        self.pickled = pickle.dumps(Command(self.command), protocol=2)
        self.objects = np.array([Command(self.command)] * 2, dtype=object)

    def copy(self, name: str) -> Path:
        """A sound artifact that may be spoiled."""
        return Path(shutil.copytree(self.sound / name, self.given / name, symlinks=True))

    def file(self, name: str, content: bytes | str) -> Path:
        path = self.given / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


Maker = Callable[[Lab], Trap]


def later(act: Callable[..., Any]) -> Callable[..., Callable[[Any], Any]]:
    """A function of a place and of more, to be called with the rest now, and with the place later."""
    return lambda *given, **named: lambda place: act(place, *given, **named)


def unpickle(path: Path) -> Callable[[], object]:
    return lambda: pickle.loads(path.read_bytes())  # noqa: S301 - the careless way


def unyaml(path: Path) -> object:
    import yaml

    return yaml.unsafe_load(path.read_text().split("---")[-2 if "---" in path.read_text() else 0])


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


# --- arrays -----------------------------------------------------------------------------------------------


def _npy(shape: str, data: bytes = b"", *, dtype: str = "<f4", length: int | None = None) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}\n".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) if length is None else length) + header + data


def _saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@later
def _vectors(lab: Lab, content: Callable[[Lab], bytes], fire: Callable[[Path], object] | None = None) -> Trap:
    path = lab.file("vectors.npy", content(lab))
    lab.file("vectors.ids", "p:0\np:1\n")
    return Trap(lambda: cw.import_vectors([path], lab.out), fire and (lambda: fire(path)))


def _load(path: Path) -> object:
    found = np.load(path, allow_pickle=True)
    return found["ids"] if path.suffix == ".npz" else found


def _evaluate(path: Path) -> object:
    return eval(path.read_bytes()[12:].partition(b"\n")[0])  # noqa: S307 - the careless way


@later
def _bundle(lab: Lab, entries: Callable[[Lab], dict[str, bytes]], *, fires: bool = False) -> Trap:
    path = lab.file("tokens.npz", _zip({**entries(lab), "offsets.npy": _saved(np.arange(3))}))
    np.save(lab.given / "rows.npy", np.arange(2))
    return Trap(lambda: read_data(lab.given), (lambda: _load(path)) if fires else None)


# --- folders ----------------------------------------------------------------------------------------------


@later
def _corpus(lab: Lab, change: Callable[[Lab, Path], object], fire: Callable[[Path], object] | None = None) -> Trap:
    folder = lab.copy("corpus")
    change(lab, folder)

    def read() -> None:
        corpus = cw.Corpus.open(folder)
        for row in range(len(corpus)):
            corpus.paper(row)
        check_files(folder, corpus.manifest, content=True)

    return Trap(read, fire and (lambda: fire(folder / YEARS)))


def _objects_in_a_column(lab: Lab, folder: Path) -> None:
    np.save(folder / YEARS, lab.objects, allow_pickle=True)
    told = {"bytes": (folder / YEARS).stat().st_size, "sha256": hash_file(folder / YEARS)}
    change_json(folder / MANIFEST, lambda manifest: manifest["files"].update({YEARS: told}))


def _named(name: str) -> Maker:
    """A manifest that lists a file of this name."""
    told = {"bytes": 1, "sha256": "0" * 64}
    return _corpus(
        lambda lab, folder: change_json(
            folder / MANIFEST, lambda manifest: manifest["files"].update({name.format(lab.canary): told})
        )
    )


def _moved(name: str) -> Maker:
    return _corpus(lambda lab, folder: (folder / name).symlink_to((folder / name).rename(lab.given / "elsewhere")))


@later
def _state_that_is_a_link(lab: Lab, name: str) -> Trap:
    """An index with a link where its next state would be written."""
    folder = lab.copy("index")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(lab.canary)
    return Trap(lambda: cw.delete_papers(folder, ["p:1"]), lambda: (folder / name).open("w").close())


def _generations_that_are_a_link(lab: Lab) -> Trap:
    """What no state names would be removed there."""
    folder, home = lab.copy("index"), lab.given / "home"
    (folder / "generations").rename(home)
    (home / "letters").mkdir()
    (folder / "generations").symlink_to(home)

    def change() -> None:
        try:
            cw.delete_papers(folder, ["p:1"])
        finally:
            assert (home / "letters").is_dir(), "a folder outside of the index was removed"

    return Trap(change)


def _generation_that_leads_up(lab: Lab) -> Trap:
    folder = lab.copy("index")
    change_json(folder / "state.json", lambda state: state.update(generation="../../elsewhere"))
    return Trap(lambda: cw.Index.open(folder))


def _unfinished_work_that_is_a_link(lab: Lab) -> Trap:
    trap = _papers("papers.jsonl", lambda _: b'{"id": "p:1", "title": "A title"}')(lab)
    work = create_work_folder(lab.out) / "kept"
    work.rmdir()
    work.symlink_to(lab.given)
    return trap


def hard_link(lab: Lab) -> Path:
    """An index with a hard link to the canary where its state is, in whose place the next one is written; that cannot be told from a file."""
    folder = lab.copy("index")
    lab.canary.write_bytes((folder / "state.json").read_bytes())
    (folder / "state.json").unlink()
    os.link(lab.canary, folder / "state.json")
    return folder


@later
def _listing(lab: Lab, name: str, at: str) -> Trap:
    files = {name.format(lab.canary): {"bytes": 1, "sha256": "0" * 64, "at": at}}
    data = json.dumps({"format": "citeweave-objects", "version": 1, "files": files}).encode()
    return Trap(lambda: decode_listing(Address("s3", "lab", "corpus"), data, "s3://lab/corpus"))


# --- papers -----------------------------------------------------------------------------------------------


@later
def _papers(lab: Lab, name: str, content: Callable[[Lab], Any], fire: Callable[[Path], object] | None = None) -> Trap:
    path = lab.file(name, content(lab))
    return Trap(lambda: cw.import_papers([path], lab.out), fire and (lambda: fire(path)))


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


def _extract(path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(path.parent, filter="fully_trusted")


def _zip(entries: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def _parquet(columns: dict[str, Any], **how: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", write_statistics=False, **how)
    return file.getvalue()


def _one_title_of_4_mib(lab: Lab) -> bytes:
    """4,096 rows of one entry of a dictionary: 16 GiB of text in a file of kilobytes."""
    titles = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), pa.array(["a" * 2**22]))
    ids = [f"p:{row}" for row in range(4096)]
    return _parquet({"id": ids, "title": titles}, store_schema=False, dictionary_pagesize_limit=2**24)


def _page_of_2_gib(lab: Lab) -> bytes:
    """The header of its page says so; the page itself has a few bytes."""
    numbers = pa.array(range(40), pa.int64())
    data = bytearray(_parquet({"citing": numbers, "cited": numbers}, use_dictionary=False))
    at = data.index(b"\x15", 4)  # PageHeader: type, then uncompressed_page_size as a zigzag varint of two bytes
    data[at + 3 : at + 5] = b"\xfe\x7f"  # the largest that fits in its place
    assert data[at : at + 2] == b"\x15\x00" and data[at + 2] == 0x15
    return bytes(data)


def _recipe(lab: Lab) -> Trap:
    path = lab.file("recipe.toml", f"title: {lab.yaml}\n")
    return Trap(lambda: cw.load_recipe(str(path)), lambda: unyaml(path))


def _growing_line(lab: Lab) -> Trap:
    blanks = gzip.compress(b" " * 2**26)
    path = lab.file("contexts.jsonl.gz", gzip.compress(b'{"text": "' + b" " * 2**26) + blanks * 11)
    return Trap(lambda: list(read_records(path)))


ZSTD_WINDOW = b"\x28\xb5\x2f\xfd" + bytes([0x00, 21 << 3]) + b"\x01\x00\x00"
DATA: dict[str, Maker] = {
    "vectors of objects": _vectors(lambda lab: _saved(lab.objects), _load),
    "vectors of records with objects": _vectors(lambda lab: _saved(np.array([(1, lab.objects[0])], dtype=[("a", "i4"), ("b", "O")])), _load),
    "vectors with an expression as header": _vectors(lambda lab: _npy(f"__import__('os').system({lab.command!r}),", bytes(64)), _evaluate),
    "vectors with a header of 4 GiB": _vectors(lambda _: _npy("2,", length=2**32 - 1)),
    "vectors of 2 to the 60 numbers": _vectors(lambda _: _npy(f"{2**58}, 4", bytes(64))),
    "a column of objects": _corpus(_objects_in_a_column, _load),
    "a bundle of objects": _bundle(lambda lab: {"ids.npy": _saved(lab.objects)}, fires=True),
    "a bundle that grows": _bundle(lambda _: {"ids.npy": _npy(f"{2**25},", bytes(2**26), dtype="<u2")}),
    "a bundle with names that lead out": _bundle(lambda _: {"../../canary": b"x"}),
    "a manifest with a name that leads up": _named("papers/../../../canary"),
    "a manifest with an absolute name": _named("{}"),
    "a manifest without a table of files": _corpus(lambda _, folder: change_json(folder / MANIFEST, lambda manifest: manifest.update(files=7))),
    "a column that is a link": _moved(YEARS),
    "a folder that is a link": _moved("papers"),
    "an index whose next state is a link": _state_that_is_a_link("state.json"),
    "an index whose lock is a link": _state_that_is_a_link(".lock"),
    "an index whose generations are a link": _generations_that_are_a_link,
    "an index with a generation that leads up": _generation_that_leads_up,
    "unfinished work that is a link": _unfinished_work_that_is_a_link,
    "a tar with names that lead out": _papers("papers.tar", _slipping_tar, _extract),
    "a packed tar with names that lead out": _papers("papers.tar.gz", lambda lab: gzip.compress(_slipping_tar(lab))),
    "a zip with names that lead out": _papers("papers.zip", lambda _: _zip({"../../canary": "x"})),
    "a pickle given as papers": _papers("papers.pkl", lambda lab: lab.pickled, lambda path: unpickle(path)()),
    "YAML given as recipe": _recipe,
    "YAML given as papers": _papers("papers.yaml", lambda lab: f"title: {lab.yaml}\n", unyaml),
    "a bibliography that grows": _papers("library.bib.gz", lambda _: gzip.compress(b"@article{a, title={T}}\n") + gzip.compress(b"%" * 2**26) * 9),
    "a line that grows": _growing_line,
    "zstd with a window of 2 GiB": _papers("papers.jsonl.zst", lambda _: ZSTD_WINDOW),
    "a table with a cell of 256 MiB": _papers(
        "papers.parquet", lambda _: _parquet({"id": ["p:1"], "title": ["a" * 2**28]}, use_dictionary=False, store_schema=False)),
    "a table whose cells are one of 4 MiB": _papers("papers.parquet", _one_title_of_4_mib),
    "a table with a page of 2 GiB": _papers("edges.parquet", _page_of_2_gib),
    "a listing with a name that leads up": _listing("../../canary", "a"),
    "a listing with an absolute name": _listing("{}", "a"),
    "a listing of an object elsewhere": _listing("papers/year.npy", "../secrets/key"),
}  # fmt: skip
