"""BERT in int8 on ARM CPUs: quantized and smoothed weights, and packed texts encoded on all threads.

    network = int8_network(network, reader, threads=2)          the torch weights can then be freed
    network.states([tokens, ...]).mean()                        (texts, dimension)

    y = W x + b    ->    y = (W diag(f)) (x / f) + b,    both factors rounded to int8, one scale for every 192 inputs

The smoothing f = max |x| ** 0.5 / max |W| ** 0.5 of an input channel moves what is hard to round from the states, where
single channels stand out, to the weights (Xiao and others 2023, SmoothQuant). The size of the states is measured on
`sample_papers.json`.

Texts are packed, without padding, in pieces of some hundred tokens; every piece has one thread, but a single piece is shared
by all threads. A text's states have the same bits in any piece, order or number of threads. No gradients, no states of inner
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.executor import run_in_threads
from citeweave.encoders.int8_kernels import BLOCK, STRIDE, add_norm, attend_all, finish_layer, layer, make_heads
from citeweave.encoders.int8_tiles import COLUMNS, ROWS, check_instruction
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import PaddedStates, States, TokenStates
from citeweave.encoders.tokens import TextReader, Tokens, sample_tokens

if TYPE_CHECKING:
    from torch import Tensor


GROUP = 192
"""Most inputs that share a scale."""

Floats = NDArray[np.float32]
Dense = tuple[Floats, NDArray[np.int8], Floats, Floats]
"""Factors of the inputs (inputs,), panels, scales of the panels and bias, as `int8_kernels.dense` reads them."""


Take = Callable[[range, Floats, NDArray[np.int64]], None]
"""Called with a piece: its rows of the batch, its states, and the bounds of its texts."""

PIECE = 512
"""Tokens that a thread encodes at a time, more where a text is longer."""

SHARED = 96
"""Tokens of a single piece, such as one query, from which the threads share it."""


@dataclass(frozen=True, slots=True)
class Int8Layer:
    """The int8 weights of one BERT layer, as `int8_kernels.layer` reads them."""

    weights: tuple[Dense, Dense, Dense, Dense]
    norms: tuple[Floats, Floats, Floats, Floats]


def group_of(inputs: int) -> int:
    """Return the largest group of inputs with one int8 scale that divides the inputs.

    >>> group_of(384), group_of(1536), group_of(48)
    (192, 192, 48)
    """
    return max(size for size in range(STRIDE, GROUP + 1, STRIDE) if inputs % size == 0)


def _quantize_layers(model: Any, batch: Sequence[Tokens]) -> list[Int8Layer]:
    """Quantize all layers of transformers' BERT to int8, smoothed for texts such as these."""
    sizes = _input_sizes(model, batch)
    layers = []
    for number, part in enumerate(model.encoder.layer):
        attention, prefix = part.attention, f"encoder.layer.{number}"
        to_heads = [attention.self.query, attention.self.key, attention.self.value]
        layers.append(
            Int8Layer(
                (
                    _dense(to_heads, sizes[f"{prefix}.attention.self.query"]),
                    _dense([attention.output.dense], sizes[f"{prefix}.attention.output.dense"]),
                    _dense([part.intermediate.dense], sizes[f"{prefix}.intermediate.dense"]),
                    _dense([part.output.dense], sizes[f"{prefix}.output.dense"]),
                ),
                (*norm_of(attention.output.LayerNorm), *norm_of(part.output.LayerNorm)),
            )
        )
    return layers


def norm_of(module: Any) -> tuple[Floats, Floats]:
    """Return the gain and shift of a layer normalization."""
    return module.weight.detach().float().numpy().copy(), module.bias.detach().float().numpy().copy()


def _input_sizes(model: Any, batch: Sequence[Tokens]) -> dict[str, Floats]:
    """Measure the largest |input| of each channel of every linear layer over the tokens of texts, by name."""
    torch = require("torch", extra="minilm")
    sizes: dict[str, Floats] = {}

    def watch(name: str) -> Any:
        def see(module: Any, inputs: Any) -> None:
            seen = inputs[0].abs().flatten(0, -2).amax(0).numpy()  # (channels,)
            sizes[name] = np.maximum(sizes[name], seen) if name in sizes else seen

        return see

    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    watching = [part.register_forward_pre_hook(watch(name)) for name, part in linear]
    try:
        with torch.inference_mode():
            for tokens in batch:
                model(input_ids=torch.from_numpy(tokens)[None])
    finally:
        for handle in watching:
            handle.remove()
    return sizes


def _dense(parts: Sequence[Any], sizes: Floats) -> Dense:
    matrix = np.concatenate([part.weight.detach().float().numpy() for part in parts])  # (outputs, inputs)
    bias = np.concatenate([part.bias.detach().float().numpy() for part in parts])  # (outputs,)
    smoothing = np.sqrt(np.maximum(sizes, 1e-3) / np.maximum(np.abs(matrix).max(axis=0), 1e-3))  # (inputs,)
    filler = -len(matrix) % COLUMNS  # outputs without weights, up to a whole panel
    panels, scales = _panels(np.pad(matrix * smoothing, ((0, filler), (0, 0))))
    return (1 / smoothing).astype(np.float32), panels, scales, np.pad(bias, (0, filler)).astype(np.float32)


def _panels(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Quantize a matrix to int8 panels of twelve outputs, flat, with scales (panels, groups, 12), flat."""
    outputs, inputs = matrix.shape
    grouped = matrix.reshape(outputs, -1, group_of(inputs))  # (outputs, groups, inputs of a group)
    scales = np.maximum(np.abs(grouped).max(axis=2), 1e-9) / 127  # (outputs, groups)
    small = np.rint(grouped / scales[:, :, None]).astype(np.int8)
    panels = small.reshape(-1, COLUMNS, inputs // 4, 4).transpose(0, 2, 1, 3)  # (panels, inputs / 4, 12, 4)
    by_panel = scales.reshape(-1, COLUMNS, scales.shape[1]).transpose(0, 2, 1)  # (panels, groups, 12)
    return np.ascontiguousarray(panels).reshape(-1), np.ascontiguousarray(by_panel, np.float32).reshape(-1)


class Int8Buffers(NamedTuple):
    """The work arrays of a thread that encodes a piece in int8."""

    states: tuple[Floats, ...]
    """x, queries with keys and values, mixed: (tokens, hidden or 3 * hidden), of the piece."""

    scratch: Any
    """y, middle, panels, scales, and the arrays of `int8_kernels.attend`."""


@dataclass(frozen=True, slots=True)
class Int8Bert:
    """All weights of a BERT in int8, and its shape."""

    words: Floats
    """(words, hidden)"""

    places: Floats
    """Sum of position and type embeddings, (positions, hidden)."""

    norm: tuple[Floats, Floats]
    layers: list[Int8Layer]
    heads: int
    hidden: int
    middle: int
    eps: np.float32

    def read(self, piece: Sequence[Tokens], works: Sequence[Int8Buffers]) -> tuple[Floats, NDArray[np.int64]]:
        """Encode a piece in int8: states (tokens, hidden), valid until the next, and the bounds of its texts.

        As many threads as there are buffers share the piece.
        """
        bounds = np.cumsum([0, *(len(tokens) for tokens in piece)])  # (texts + 1,)
        tokens = int(bounds[-1])
        x, *states = works[0].states
        x[:tokens] = self.words[np.concatenate(piece)]
        places = np.concatenate([self.places[: len(text)] for text in piece])  # (tokens, hidden)
        add_norm(x, places, 0, tokens, *self.norm, self.eps)
        groups = group_of(self.hidden), group_of(self.middle)
        for part in self.layers:
            if len(works) == 1:
                own = works[0].scratch
                layer(x, bounds, self.heads, groups, part.weights, part.norms, self.eps, tuple(states), own)
            else:
                self._share_layer(x, bounds, groups, part, states, works)
        return x[:tokens], bounds

    def _share_layer(
        self,
        x: Floats,
        bounds: NDArray[np.int64],
        groups: tuple[int, int],
        part: Int8Layer,
        states: Sequence[Floats],
        works: Sequence[Int8Buffers],
    ) -> None:
        """Compute `int8_kernels.layer` by several threads, with the same numbers: rows of a tile stay together."""
        qkv, mixed = states
        count, tokens = len(works), int(bounds[-1])
        tiles = -(-tokens // ROWS)
        rows = [min(tiles * at // count * ROWS, tokens) for at in range(count + 1)]
        heads = [self.heads * at // count for at in range(count + 1)]
        scratch = [work.scratch for work in works]

        def heads_of_rows(at: int) -> None:
            make_heads(x, rows[at], rows[at + 1], groups[0], part.weights[0], qkv, scratch[at])

        def attention(at: int) -> None:
            attend_all(qkv, bounds, self.heads, heads[at], heads[at + 1], mixed, scratch[at])

        def the_rest(at: int) -> None:
            finish_layer(x, rows[at], rows[at + 1], groups, part.weights, part.norms, self.eps, mixed, scratch[at])

        for step in (heads_of_rows, attention, the_rest):
            run_in_threads(count, step, count)

    def workspace(self, tokens: int) -> Int8Buffers:
        """Allocate the work arrays of a thread for pieces of so many tokens."""
        rows, size = tokens + STRIDE, self.hidden // self.heads
        block, wide = BLOCK + ROWS, max(self.hidden, self.middle)

        def floats(*shape: int) -> Floats:
            return np.zeros(shape, np.float32)

        heads = (
            np.zeros(rows * size, np.int8),
            np.zeros(rows * size, np.int8),
            np.zeros(rows * size, np.uint16),
            floats(rows),
            floats(rows),
            floats(ROWS * (rows + STRIDE + COLUMNS)),
            np.zeros(ROWS * (rows + STRIDE + COLUMNS), np.uint16),
            floats(ROWS),
            np.ones(size, np.float32),
        )
        return Int8Buffers(
            (floats(rows, self.hidden), floats(rows, 3 * self.hidden), floats(rows, self.hidden)),
            (
                floats(block, _padded_width(self.hidden)),
                floats(block, _padded_width(self.middle)),
                np.zeros(block * wide, np.int8),
                floats(block * (wide // STRIDE)),
                heads,
            ),
        )


@dataclass(frozen=True, slots=True)
class Int8States:
    """First states and means over the tokens from the int8 network, (texts, dimension) each."""

    first: Floats
    means: Floats

    def cls(self) -> Tensor:
        return _tensor(self.first)

    def mean(self) -> Tensor:
        return _tensor(self.means)


@dataclass(frozen=True, slots=True)
class Int8Network(Network):
    """A network that `Int8Bert` computes; `model` only holds its configuration."""

    bert: Int8Bert | None = None
    threads: int = 1

    def states(self, batch: Sequence[Tokens], *, first_only: bool = False) -> States:
        first, means = np.zeros((2, len(batch), self.dimension), np.float32)  # (texts, dimension) each

        def take(rows: range, states: Floats, bounds: NDArray[np.int64]) -> None:
            first[rows.start : rows.stop] = states[bounds[:-1]]
            sums = np.add.reduceat(states, bounds[:-1], axis=0)  # (texts, dimension)
            means[rows.start : rows.stop] = sums / np.diff(bounds)[:, None].astype(np.float32)

        self._read(batch, take)
        return Int8States(first, means)

    def token_states(self, batch: Sequence[Tokens]) -> TokenStates:
        layers, mask = self.padded(batch)
        return PaddedStates(layers[0], mask)

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the padded states of the last layer from int8; there are no others and no gradients."""
        assert not every
        shape = len(batch), max(map(len, batch))
        padded, mask = np.zeros((*shape, self.dimension), np.float32), np.zeros(shape, np.int64)

        def take(rows: range, states: Floats, bounds: NDArray[np.int64]) -> None:
            for row, start, end in zip(rows, bounds[:-1], bounds[1:], strict=True):
                padded[row, : end - start], mask[row, : end - start] = states[start:end], 1

        self._read(batch, take)
        return (_tensor(padded),), _tensor(mask)

    def _read(self, batch: Sequence[Tokens], take: Take) -> None:
        """Encode a batch piece by piece on several threads, and hand each piece's states to `take`."""
        assert self.bert is not None
        bert, pieces = self.bert, list(_pieces(batch, self.threads))
        longest = max(sum(len(batch[row]) for row in rows) for rows in pieces)
        if len(pieces) == 1:
            threads = self.threads if longest >= SHARED else 1
            works = [bert.workspace(longest) for _ in range(threads)]
            take(pieces[0], *bert.read([batch[row] for row in pieces[0]], works))
            return
        free: SimpleQueue[Int8Buffers] = SimpleQueue()
        for _ in range(min(self.threads, len(pieces))):
            free.put(bert.workspace(longest))

        def read(rows: range) -> None:
            work = free.get()
            try:
                take(rows, *bert.read([batch[row] for row in rows], [work]))
            finally:
                free.put(work)

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(read, pieces))


def int8_network(network: Network, reader: TextReader, name: str, threads: int = 0) -> Int8Network:
    """Quantize a BERT of torch to int8; `name` is the model's, for errors; 0 threads means torch's number."""
    check_instruction()
    model = network.model
    _check_model(model.config, name)
    torch = require("torch", extra="minilm")
    config, embeddings = model.config, model.embeddings
    positions = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    bert = Int8Bert(
        embeddings.word_embeddings.weight.detach().float().numpy().copy(),
        positions.detach().float().numpy(),
        norm_of(embeddings.LayerNorm),
        _quantize_layers(model, sample_tokens(reader)),
        int(config.num_attention_heads),
        int(config.hidden_size),
        int(config.intermediate_size),
        np.float32(config.layer_norm_eps),
    )
    shape = SimpleNamespace(config=config)
    return Int8Network(shape, "cpu", network.pad, packed=False, bert=bert, threads=threads or torch.get_num_threads())


def _check_model(config: Any, name: str) -> None:
    if config.model_type != "bert" or getattr(config, "is_decoder", False) or config.hidden_act != "gelu":
        raise UserError(
            f"--runtime int8 reads BERT with GELU, and {name} is {config.model_type} with "
            f"{getattr(config, 'hidden_act', 'another activation')}; use --runtime torch"
        )
    for what, value in (
        ("hidden size", config.hidden_size),
        ("intermediate size", config.intermediate_size),
        ("size of a head", config.hidden_size // config.num_attention_heads),
    ):
        if value % STRIDE:
            raise UserError(
                f"--runtime int8 needs sizes that are multiples of {STRIDE}, and the {what} of {name} is {value}; "
                "use --runtime torch"
            )


def _pieces(batch: Sequence[Tokens], threads: int) -> Iterator[range]:
    """Yield the rows of each piece: about the same number of tokens, and the same number of pieces per thread."""
    total = sum(map(len, batch))
    max_tokens = max(1, -(-total // (threads * max(1, round(total / (threads * PIECE))))))
    start, tokens = 0, 0
    for row, text in enumerate(batch):
        if tokens and tokens + len(text) / 2 > max_tokens:
            yield range(start, row)
            start, tokens = row, 0
        tokens += len(text)
    yield range(start, len(batch))


def _padded_width(columns: int) -> int:
    return -(-columns // COLUMNS) * COLUMNS


def _tensor(vectors: NDArray[Any]) -> Tensor:
    tensor: Tensor = require("torch", extra="minilm").from_numpy(vectors)
    return tensor
