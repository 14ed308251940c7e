"""What a network reads of a text: token ids, cut to the model's length.

    "A title[SEP]An abstract."   ->   [CLS] a title [SEP] an abstract . [SEP]

The placeholder between the parts of a text becomes the tokenizer's own separator token, or a blank where it has none.
A reader by sentence, for the pooling `aspect_words`, sets the special tokens around every sentence; the first part, the
title, counts as one:

    "A title[SEP]One. Two."      ->   [CLS] a title [SEP] [CLS] one . [SEP] [CLS] two . [SEP]

Does not pad: texts of a batch meet in `network.py`.

Invented prose of many sciences: what quantization and the choice of a runtime are measured on.

Holds no sentence of a real paper, and nothing that an evaluation could ask about.

Token store: the tokens of many texts, made once, read through a memory map.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import Manifest, check_files, matches, new_artifact, read_manifest
from citeweave.core.columns import open_array
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import link_or_copy, read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import SEPARATOR, paper_text, sentence_texts

Tokens = NDArray[np.int64]
"""Ids of tokens, shape (tokens,)."""


@dataclass(frozen=True, slots=True)
class TextReader:
    """A tokenizer together with what a model wants of it. See `make_reader`."""

    tokenizer: Any
    max_tokens: int
    opening: Tokens
    """Special tokens before a text, such as [CLS]."""

    closing: Tokens
    """Special tokens after a text, such as [SEP]."""

    separator: Tokens
    """What stands between two parts; empty where the tokenizer has no separator token."""

    lower: bool = False
    prompt: str = ""
    by_sentence: bool = False
    """Whether special tokens are set around every sentence, not around the text."""

    def read(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of every text with the special tokens around it, at most max_tokens of them.

        A text without a token of its own has none at all, shape (0,).
        """
        if not texts:
            return []
        if self.by_sentence:
            return self._read_by_sentence(texts)
        found = self.tokenizer(
            [self._prepare(self.prompt + text) if text else "" for text in texts],
            truncation=True,
            max_length=self.max_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        empty = len(self.opening) + len(self.closing)
        return [np.array(ids if len(ids) > empty else [], np.int64) for ids in found]

    def pieces(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of every text alone: no special tokens around it, no prompt, not cut."""
        if not texts:
            return []
        found = self.tokenizer(
            [self._prepare(text) for text in texts],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return [np.array(ids, np.int64) for ids in found]

    def _read_by_sentence(self, texts: Sequence[str]) -> list[Tokens]:
        split = [self._sentences(text) if text else [] for text in texts]
        pieces = iter(self.pieces([sentence for own in split for sentence in own]))
        return [self._enclosed([next(pieces) for _ in own]) for own in split]

    def _sentences(self, text: str) -> list[str]:
        title, *others = text.split(SEPARATOR)
        return [self.prompt + title, *(sentence for part in others for sentence in sentence_texts(part))]

    def _enclosed(self, sentences: Sequence[Tokens]) -> Tokens:
        """Every sentence between the special tokens, until max_tokens; one that is begun is closed."""
        parts, room = [np.zeros(0, np.int64)], self.max_tokens
        for ids in sentences:
            # a paper may write [CLS] itself; left there it would begin a sentence
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
    """Find out which special tokens a tokenizer sets around a text."""
    probe = tokenizer("a", return_special_tokens_mask=True)
    ids = np.array(probe["input_ids"], np.int64)
    own = np.flatnonzero(np.array(probe["special_tokens_mask"]) == 0)  # (tokens of "a" itself,)
    first, last = (int(own[0]), int(own[-1]) + 1) if len(own) else (len(ids), len(ids))
    between = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
    around = (ids[:first], ids[last:], np.array(between, np.int64))
    return TextReader(tokenizer, max_tokens, *around, lower=lower, prompt=prompt, by_sentence=by_sentence)


# Invented prose of many sciences: what quantization and the choice of a runtime are measured on.

PAPERS = (
    (
        "Sparse attention for reading long records",
        "Reading a long record with full attention costs time that grows with the square of its length. We propose a "
        "sparse pattern in which each token sees its neighbors and a small set of anchors. On four benchmarks the "
        "model keeps 98.7% of the accuracy (F1 = 0.83) while it needs a fifth of the memory. An ablation shows that the "
        "anchors, not the window, carry most of the gain.",
    ),
    (
        "A kinase that slows wound closure in zebrafish larvae",
        "Wound closure depends on the migration of epithelial cells, but the signals that stop it are poorly known. "
        "Using CRISPR/Cas9 knock-outs and live imaging, we identify a kinase whose loss speeds up closure by 40% (n = "
        "62, p < 0.001). Its expression peaks six hours after injury; inhibitors of the MAPK pathway abolish the effect.",
    ),
    (
        "Weak lensing masses of 31 galaxy clusters",
        "We measure masses of clusters at redshifts 0.2 < z < 0.6 from the shear of background galaxies. The relation "
        "between mass and X-ray temperature has a slope of 1.52 ± 0.11, consistent with self-similar growth. "
        "Systematic errors of the photometric redshifts dominate the budget.",
    ),
    (
        "Minimum wages and the hours of young workers: evidence from border counties",
        "Do minimum wages reduce employment? Comparing neighboring counties on both sides of a state border, this "
        "article finds no change in the number of jobs but a decline in weekly hours of workers below 25. The estimates "
        "are robust to county-specific trends and to the choice of the comparison group.",
    ),
    (
        "On the convergence of stochastic gradient methods with heavy-tailed noise",
        "Let f be a smooth, non-convex function whose gradients are observed with noise of unbounded variance. We prove "
        "that clipping yields a rate of O(T^{-1/3}) with high probability and show by a lower bound that the exponent "
        "cannot be improved. The proof rests on a new inequality for martingales.",
    ),
    (
        "Perovskite films grown from a green solvent",
        "Thin films of lead halide perovskites are usually cast from toxic solvents. Here we report films that are grown "
        "from gamma-valerolactone at 90 °C; grains reach 800 nm and devices attain an efficiency of 19.4%. After 1,000 "
        "hours under illumination 91% of the initial power is left.",
    ),
    (
        "Cognitive behavioral therapy by telephone for insomnia: a randomized controlled trial",
        "Background: insomnia is common among older adults with osteoarthritis. Methods: 327 participants were assigned "
        "to six telephone sessions or to education only. Results: the severity index fell by 8.1 points against 4.8 "
        "(difference 3.3, 95% CI 2.1 to 4.5). Conclusion: the treatment is effective and can be offered in rural areas.",
    ),
    (
        "Soil microbes and the drought memory of grasslands",
        "Grasslands that have been dry before recover faster from the next drought. A reciprocal transplant of soils "
        "across eleven sites reveals that fungal communities, rather than plant genotypes, transmit this memory. "
        "Models of the carbon cycle should account for it.",
    ),
    (
        "Parsing noisy queries with weak supervision",
        "Semantic parsers break when users misspell, abbreviate or mix languages. We generate noisy variants of clean "
        "queries with a character-level transducer and train a BERT encoder on them. The code, the data and the trained "
        "models are available at https://example.org/noisy-queries.",
    ),
    (
        "Topological order in a kagome lattice of Rydberg atoms",
        "Arrays of neutral atoms allow the study of spin liquids in the laboratory. We map the phase diagram of 196 "
        "atoms by varying the detuning \\Delta/\\Omega and find a plateau of the string order parameter. Exact "
        "diagonalization and the density matrix renormalization group agree with the data.",
    ),
    (
        "Groundwater arsenic in a river delta",
        "About 20 million people drink from shallow wells whose arsenic exceeds 10 μg/L. We combine 4,738 field tests "
        "with a random forest of geology, slope and distance to abandoned channels (AUC 0.86). Deep wells remain safe "
        "unless pumping for irrigation draws the water down.",
    ),
    (
        "What citations say: a survey of intent, sentiment and influence",
        "A citation may praise, criticise, or merely mention. This survey reviews twenty years of schemes, corpora and "
        "classifiers, from hand-written cue phrases to pre-trained language models, and discusses why agreement between "
        "annotators is low. We close with open questions on multilingual and cross-disciplinary data.",
    ),
    ("Graph neural networks", "A short note."),
    (
        "Retinal ganglion cells encode contrast at two time scales",
        "Neurons adapt to contrast within milliseconds and again over seconds. Recording from 212 ganglion cells of the "
        "mouse with multi-electrode arrays, we separate both processes with a linear-nonlinear cascade and show that "
        "the slow one originates in bipolar terminals.",
    ),
    (
        "An efficient index for approximate nearest neighbors under updates",
        "Indexes built on proximity graphs lose recall when points are deleted. The proposed index repairs edges lazily, "
        "keeps recall@10 above 0.95 after replacing half of 100M vectors, and answers 11k queries per second on one "
        "machine. Compared with rebuilding, its cost is lower by an order of magnitude.",
    ),
    (
        "Monetary policy, expectations and the housing cycle",
        "Using a dynamic stochastic general equilibrium model with learning households, we study how announcements of "
        "the central bank move house prices. Extrapolative expectations amplify the response threefold; macroprudential "
        "limits on debt-to-income ratios dampen it.",
    ),
)


def sample_texts() -> list[str]:
    """Texts as an encoder reads them, always the same."""
    return [paper_text(title, abstract) for title, abstract in PAPERS]


# Token store: the tokens of many texts, made once, read through a memory map.

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
    with new_artifact(folder, KIND, VERSION, whole, overwrite=overwrite) as artifact:
        work = artifact.work("tokens")
        _tokenize(reader, texts, work, "uint16" if size <= 2**16 else "uint32", reporter)
        for name in ("ids.npy", "offsets.npy"):
            link_or_copy(work / name, artifact.folder / name)
        artifact.facts = _count(work, size)
        artifact.finish()
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
        raise ArtifactError(f"{path} does not hold one column of {' or '.join(dtypes)}; make it again")
    return array
