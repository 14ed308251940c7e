"""Tokens of texts: the tokenizer as a model needs it, and a store of token ids on disk.

    "A title[SEP]An abstract."   ->   [CLS] a title [SEP] an abstract . [SEP]

The placeholder between the parts of a text becomes the tokenizer's own separator token, or a blank where it has none.
A reader by sentence, for the pooling `aspect_words`, puts the special tokens around every sentence; the first part, the
title, counts as one:

    "A title[SEP]One. Two."      ->   [CLS] a title [SEP] [CLS] one . [SEP] [CLS] two . [SEP]

A token store holds the tokens of many texts, tokenized once and memory-mapped:

    tokens/ids.npy         ids of all tokens, text after text: uint16 where the vocabulary fits, else uint32
    tokens/offsets.npy     where each text's tokens begin and end, int64, (texts + 1,)
    tokens/manifest.json   recipe: what the texts are, and hash and settings of the tokenizer

    store = make_token_store(reader, texts, "tokens", recipe={"corpus": corpus.hash, "text_recipe": text.hash})
    store[7]                ids of text 7 with the special tokens around them, int64; empty for a text without tokens

    >>> TokenStore(np.array([5, 6, 7], np.uint16), np.array([0, 2, 2, 3])).take([2, 0, 1])
    [array([7]), array([5, 6]), array([], dtype=int64)]

It is written block by block; an interrupted run resumes with its block. Opening needs numpy alone. Does not pad: the texts
of a batch are padded or packed in `network.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import Manifest, artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.columns import open_array
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import link_or_copy, read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import SEPARATOR, paper_text, sentence_texts

Tokens = NDArray[np.int64]
"""Ids of tokens, shape (tokens,)."""

KIND, VERSION = "tokens", 1

BLOCK = 8192
"""Texts tokenized at a time; the tokenizer spreads them over its own threads."""

_HEADER_SIZE = 128


@dataclass(frozen=True, slots=True)
class TextReader:
    """A tokenizer with a model's length, special tokens and prompt. See `make_reader`."""

    tokenizer: Any
    max_tokens: int
    opening: Tokens
    """Special tokens before a text, such as [CLS]."""

    closing: Tokens
    """Special tokens after a text, such as [SEP]."""

    separator: Tokens
    """Token between two parts of a text; empty where the tokenizer has no separator token."""

    lower: bool = False
    prompt: str = ""
    by_sentence: bool = False
    """Whether special tokens are put around every sentence, not around the text."""

    def read(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize texts with the special tokens around each, truncated to max_tokens.

        A text without a token of its own has no tokens at all, shape (0,).
        """
        if not texts:
            return []
        if self.by_sentence:
            return self._read_by_sentence(texts)
        prepared = [self._prepare(self.prompt + text) if text else "" for text in texts]
        empty = len(self.opening) + len(self.closing)
        return [np.fromiter(ids if len(ids) > empty else (), np.int64) for ids in self._truncated_ids(prepared)]

    def _truncated_ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Yield the ids of texts; a tokenizer in Rust is called directly, which takes half of the time in Python."""
        inner = getattr(self.tokenizer, "backend_tokenizer", None)
        if inner is None:
            options = {"return_attention_mask": False, "return_token_type_ids": False}
            found = self.tokenizer(texts, truncation=True, max_length=self.max_tokens, **options)
            ids: list[list[int]] = found["input_ids"]
            return ids
        inner.no_padding()
        inner.enable_truncation(self.max_tokens, direction=self.tokenizer.truncation_side)
        return (encoding.ids for encoding in inner.encode_batch_fast(texts))

    def pieces(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize texts without special tokens, without prompt, not truncated."""
        if not texts:
            return []
        encoded = self.tokenizer(
            [self._prepare(text) for text in texts],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return [np.array(ids, np.int64) for ids in encoded]

    def _read_by_sentence(self, texts: Sequence[str]) -> list[Tokens]:
        split = [self._sentences(text) if text else [] for text in texts]
        pieces = iter(self.pieces([sentence for own in split for sentence in own]))
        return [self._enclose([next(pieces) for _ in own]) for own in split]

    def _sentences(self, text: str) -> list[str]:
        title, *others = text.split(SEPARATOR)
        return [self.prompt + title, *(sentence for part in others for sentence in sentence_texts(part))]

    def _enclose(self, sentences: Sequence[Tokens]) -> Tokens:
        """Join sentences, each between the special tokens, up to max_tokens; a truncated one is closed."""
        parts, room = [np.zeros(0, np.int64)], self.max_tokens
        for ids in sentences:
            # a text may contain [CLS] itself, which would begin a sentence
            own = ids[ids != self.opening[-1]][: max(0, room - len(self.opening) - len(self.closing))]
            if len(own):
                parts += [self.opening, own, self.closing]
                room -= len(self.opening) + len(own) + len(self.closing)
        return np.concatenate(parts)

    def _prepare(self, text: str) -> str:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # tokenizers take no lone surrogates
        parts = (text.lower() if self.lower else text for text in text.split(SEPARATOR))
        return (self.tokenizer.sep_token or " ").join(parts)


def make_reader(
    tokenizer: Any, max_tokens: int, *, lower: bool = False, prompt: str = "", by_sentence: bool = False
) -> TextReader:
    """Make the text reader of a tokenizer by finding out which special tokens it puts around a text."""
    probe = tokenizer("a", return_special_tokens_mask=True)
    ids = np.array(probe["input_ids"], np.int64)
    own = np.flatnonzero(np.array(probe["special_tokens_mask"]) == 0)  # (tokens of "a" itself,)
    first, last = (int(own[0]), int(own[-1]) + 1) if len(own) else (len(ids), len(ids))
    between = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
    around = (ids[:first], ids[last:], np.array(between, np.int64))
    return TextReader(tokenizer, max_tokens, *around, lower=lower, prompt=prompt, by_sentence=by_sentence)


def sample_tokens(reader: TextReader) -> list[Tokens]:
    """Return the tokens of invented papers of many sciences, on which int8 is calibrated and runtimes are timed.

    They hold no sentence of a real paper, and nothing that an evaluation asks about.
    """
    papers = json.loads(read_input(Path(__file__).parent / "sample_papers.json"))
    texts = [paper_text(paper["title"], paper["abstract"]) for paper in papers]
    return [tokens for tokens in reader.read(texts) if len(tokens)]


class TokenStore:
    """The tokens of many texts by row, memory-mapped."""

    def __init__(
        self, ids: NDArray[Any], offsets: NDArray[np.int64], manifest: Manifest | None = None, *, name: str = "tokens"
    ) -> None:
        self.ids, self.offsets, self.manifest = ids, offsets, manifest
        fits = ids.ndim == offsets.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == len(ids)
        # tokens are read at these offsets without checking them again
        if not fits or (np.diff(offsets) < 0).any():
            raise ArtifactError(f"{name} is damaged: its tokens and offsets do not fit together; make it again")

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
        tokens: Tokens = self.ids[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)  # (tokens,)
        return tokens

    def take(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> list[Tokens]:
        """Return the tokens of these texts, in their order."""
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of a store of {len(self)} texts")
        starts, ends = self.offsets[wanted].tolist(), self.offsets[wanted + 1].tolist()
        return [self.ids[start:end].astype(np.int64) for start, end in zip(starts, ends, strict=True)]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each text, (texts,)."""
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
    """Tokenize texts into a token store, or open one with the same texts and tokenizer.

    Only slices of `texts` are read, so they may be lazy. `recipe` identifies the texts by hash; the settings of the
    reader are added here.
    """
    folder = Path(folder)
    complete_recipe = {**recipe, "texts": len(texts), "reader": reader_settings(reader)}
    if artifact_matches(folder, KIND, VERSION, complete_recipe):
        reporter.say(f"{folder} already exists: same texts and tokenizer")
        return TokenStore.open(folder)
    size = _vocabulary_size(reader)
    with new_artifact(folder, KIND, VERSION, complete_recipe, overwrite=overwrite) as artifact:
        work = artifact.scratch_folder("tokens")
        _tokenize(reader, texts, work, "uint16" if size <= 2**16 else "uint32", reporter)
        for name in ("ids.npy", "offsets.npy"):
            link_or_copy(work / name, artifact.folder / name)
        artifact.facts = _count(work, size)
        artifact.finish()
    return TokenStore.open(folder)


def _count(work: Path, vocabulary: int) -> dict[str, Any]:
    """Count the texts and tokens for the manifest; nothing stays mapped, since Windows cannot rename open files."""
    store = TokenStore(_open(work / "ids.npy", ("uint16", "uint32")), _open(work / "offsets.npy", ("int64",)))
    lengths = store.lengths()
    return {
        "texts": len(lengths),
        "tokens": int(lengths.sum()),
        "empty": int((lengths == 0).sum()),
        "longest": int(lengths.max(initial=0)),
        "vocabulary": vocabulary,
        "dtype": str(store.ids.dtype),
    }


def reader_settings(reader: TextReader) -> dict[str, Any]:
    """Return the settings of a reader that decide the tokens of a text."""
    return {
        "tokenizer": tokenizer_hash(reader.tokenizer),
        "max_tokens": reader.max_tokens,
        "lower": reader.lower,
        "prompt": reader.prompt,
        # existing stores of other readers stay valid
        **({"by_sentence": True} if reader.by_sentence else {}),
    }


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash a tokenizer's rules, vocabulary and separator to sixteen hex digits."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        rules: Any = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    else:
        rules = json.loads(inner.to_str())
        for call in ("truncation", "padding"):  # leftovers of the last call
            rules.pop(call, None)
    text = json.dumps([rules, tokenizer.sep_token], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _vocabulary_size(reader: TextReader) -> int:
    highest = max(reader.tokenizer.get_vocab().values(), default=-1)
    if highest < 0:
        raise UserError("the tokenizer has no vocabulary; give a model with its tokenizer files")
    return int(highest) + 1


def _tokenize(reader: TextReader, texts: Sequence[str], work: Path, dtype: str, reporter: Reporter) -> None:
    """Tokenize block after block; progress is saved after each, and a resuming run truncates the files to it."""
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
            block = reader.read(texts[start : start + BLOCK])
            lengths = np.array([len(tokens) for tokens in block], np.int64)  # (texts of the block,)
            offsets.append(ids.count + np.cumsum(lengths))
            ids.append(np.concatenate(block))
            ids.flush()
            offsets.flush()
            write_json(work / "progress.json", {"texts": start + len(block), "tokens": ids.count})
            advance(len(block))


def _read_progress(work: Path) -> dict[str, int]:
    try:
        done = json.loads(read_input(work / "progress.json"))
        return {"texts": int(done["texts"]), "tokens": int(done["tokens"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"texts": 0, "tokens": 0}


class _GrowingArray:
    """A one-dimensional `.npy` file of tokens, appended to over several runs; its header is written on closing."""

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
        shape = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(header, shape)
        assert header.tell() == _HEADER_SIZE, header.tell()
        self._file.seek(0)
        self._file.write(header.getvalue())
        self._file.close()


def _open(path: Path, dtypes: Sequence[str]) -> NDArray[Any]:
    """Open a memory-mapped column of tokens or offsets, with no more than numpy."""
    array = open_array(path)
    if array.ndim != 1 or str(array.dtype) not in dtypes:
        raise ArtifactError(f"{path} does not hold one column of {' or '.join(dtypes)}; make it again")
    return array
