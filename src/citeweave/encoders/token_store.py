"""Token store: the tokens of many texts, made once, read through a memory map.

    tokens/ids.npy         ids of all tokens, text after text: uint16 where the vocabulary fits, else uint32
    tokens/offsets.npy     where each text's tokens begin and end, int64, (texts + 1,)
    tokens/manifest.json   recipe: what the texts are, and hash and settings of the tokenizer

    store = make_token_store(reader, texts, "tokens", recipe={"corpus": corpus.hash, "text_recipe": text.hash})
    store[7]                ids of text 7 with the special tokens around them, int64; a text without token has none

    >>> TokenStore(np.array([5, 6, 7], np.uint16), np.array([0, 2, 2, 3])).take([2, 0, 1])
    [array([7]), array([5, 6]), array([], dtype=int64)]

Written block by block; an interrupted run goes on with the block it was at. Opening needs numpy alone. Does not know
what a text is of, and does not pad.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arrays import open_array
from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import Manifest, read_manifest
from citeweave.artefacts.writing import matches, new_artefact
from citeweave.errors import ArtefactError, UserError
from citeweave.files import link_or_copy, read_input, write_json
from citeweave.progress import QUIET, Reporter

if TYPE_CHECKING:
    from citeweave.encoders.reading import TextReader, Tokens

KIND, VERSION = "tokens", 1

BLOCK = 8192
"""Texts tokenized at a time; the tokenizer spreads them over its own threads."""

_HEADER_SIZE = 128


class TokenStore:
    """The tokens of texts by row; nothing is loaded that is not asked for."""

    def __init__(
        self, ids: NDArray[Any], offsets: NDArray[np.int64], manifest: Manifest | None = None, *, name: str = "tokens"
    ) -> None:
        self.ids, self.offsets, self.manifest = ids, offsets, manifest
        fits = ids.ndim == offsets.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == len(ids)
        # tokens are taken by offset without looking again
        if not fits or (np.diff(offsets) < 0).any():
            raise ArtefactError(f"{name} is damaged: its tokens and offsets do not fit together; make it again")

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        ids, offsets = _open(folder / "ids.npy", ("uint16", "uint32")), _open(folder / "offsets.npy", ("int64",))
        return cls(ids, offsets, manifest, name=str(folder))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Tokens:
        if not 0 <= row < len(self):
            raise IndexError(row)
        found: Tokens = self.ids[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)  # (tokens,)
        return found

    def take(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> list[Tokens]:
        """The tokens of these texts, in their order."""
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of a store of {len(self)} texts")
        starts, ends = self.offsets[wanted].tolist(), self.offsets[wanted + 1].tolist()
        return [self.ids[start:end].astype(np.int64) for start, end in zip(starts, ends, strict=True)]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every text, (texts,)."""
        return np.diff(self.offsets)


def make_token_store(
    reader: TextReader,
    texts: Sequence[str],
    folder: str | Path,
    *,
    recipe: dict[str, Any],
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> TokenStore:
    """Tokenize the texts into a folder, or open it where it was made of the same.

    `texts` is asked for slices only and may be read lazily. `recipe` says which texts they are, by hash; what the
    reader does to them is added here.
    """
    folder = Path(folder)
    whole = {**recipe, "texts": len(texts), "reader": reader_facts(reader)}
    if matches(folder, KIND, VERSION, whole):
        reporter.say(f"{folder} is there already: same texts and tokenizer")
        return TokenStore.open(folder)
    size = _vocabulary_size(reader)
    with new_artefact(folder, KIND, VERSION, whole, overwrite=overwrite) as artefact:
        work = artefact.work("tokens")
        _tokenize(reader, texts, work, "uint16" if size <= 2**16 else "uint32", reporter)
        for name in ("ids.npy", "offsets.npy"):
            link_or_copy(work / name, artefact.folder / name)
        artefact.facts = _count(work, size)
        artefact.finish()
    return TokenStore.open(folder)


def _count(work: Path, vocabulary: int) -> dict[str, Any]:
    """What the manifest says; nothing stays mapped, since Windows gives no name to a folder that is in use."""
    made = TokenStore(_open(work / "ids.npy", ("uint16", "uint32")), _open(work / "offsets.npy", ("int64",)))
    lengths = made.lengths()
    return {
        "texts": len(lengths),
        "tokens": int(lengths.sum()),
        "empty": int((lengths == 0).sum()),
        "longest": int(lengths.max(initial=0)),
        "vocabulary": vocabulary,
        "dtype": str(made.ids.dtype),
    }


def reader_facts(reader: TextReader) -> dict[str, Any]:
    """All that decides the tokens of a text."""
    return {
        "tokenizer": tokenizer_hash(reader.tokenizer),
        "max_tokens": reader.max_tokens,
        "lower": reader.lower,
        "prompt": reader.prompt,
        # stores of other readers stay what they are
        **({"by_sentence": True} if getattr(reader, "by_sentence", False) else {}),
    }


def tokenizer_hash(tokenizer: Any) -> str:
    """Sixteen hex digits of a tokenizer's rules, vocabulary and separator."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        rules: Any = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    else:
        rules = json.loads(inner.to_str())
        for call in ("truncation", "padding"):  # what the last call left
            rules.pop(call, None)
    text = json.dumps([rules, tokenizer.sep_token], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _vocabulary_size(reader: TextReader) -> int:
    highest = max(reader.tokenizer.get_vocab().values(), default=-1)
    if highest < 0:
        raise UserError("the tokenizer has no vocabulary; give a model with its tokenizer files")
    return int(highest) + 1


def _tokenize(reader: TextReader, texts: Sequence[str], work: Path, dtype: str, reporter: Reporter) -> None:
    """Append block after block; after each one, what is written is noted, and a resuming run cuts off the rest."""
    done = _read_progress(work)
    ids, offsets = (
        _GrowingArray(work / "ids.npy", dtype, done["tokens"]),
        _GrowingArray(work / "offsets.npy", "int64", done["texts"] + 1 if done["texts"] else 0),
    )
    with ids, offsets, reporter.task("tokenizing", len(texts), "texts") as advance:
        if not offsets.count:
            offsets.append(np.zeros(1, np.int64))
        advance(done["texts"])
        for start in range(done["texts"], len(texts), BLOCK):
            found = reader.read(texts[start : start + BLOCK])
            lengths = np.array([len(tokens) for tokens in found], np.int64)  # (texts of the block,)
            offsets.append(ids.count + np.cumsum(lengths))
            ids.append(np.concatenate(found))
            ids.flush()
            offsets.flush()
            write_json(work / "progress.json", {"texts": start + len(found), "tokens": ids.count})
            advance(len(found))


def _read_progress(work: Path) -> dict[str, int]:
    try:
        done = json.loads(read_input(work / "progress.json"))
        return {"texts": int(done["texts"]), "tokens": int(done["tokens"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"texts": 0, "tokens": 0}


class _GrowingArray:
    """A one-dimensional `.npy` file that is appended to over several runs; it gets its header when it is closed."""

    def __init__(self, path: Path, dtype: str, count: int) -> None:
        self._dtype, self.count = np.dtype(dtype), count
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(_HEADER_SIZE + count * self._dtype.itemsize)
        self._file.seek(0, os.SEEK_END)

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(values.astype(self._dtype).data)
        self.count += len(values)

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> _GrowingArray:
        return self

    def __exit__(self, *_: object) -> None:
        header = io.BytesIO()
        facts = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(header, facts)
        assert header.tell() == _HEADER_SIZE, header.tell()
        self._file.seek(0)
        self._file.write(header.getvalue())
        self._file.close()


def _open(path: Path, dtypes: Sequence[str]) -> NDArray[Any]:
    """A memory-mapped column. `columns.open_numbers` does the same, with packages a bare training machine lacks."""
    array = open_array(path)
    if array.ndim != 1 or str(array.dtype) not in dtypes:
        raise ArtefactError(f"{path} does not hold one column of {' or '.join(dtypes)}; make it again")
    return array
