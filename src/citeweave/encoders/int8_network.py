"""Weights of a BERT as int8: panels, scales and smoothing.

    y = W x + b    ->    y = (W diag(f)) (x / f) + b,    both factors rounded to int8, a scale for every 192 inputs

The smoothing f = max |x| ** 0.5 / max |W| ** 0.5 of an input's channel moves what is hard to round from the states,
where single channels stand out, to the weights (Xiao and others 2023, SmoothQuant). How large states grow is seen on
`sample_texts.py`. Does not compute a network.

A BERT in int8: batches of tokens in, states of the tokens out, on all threads.

    network = int8_network(network, reader, threads=2)          the torch weights can be freed
    network.states([tokens, ...]).mean()                        (texts, dimension)

Texts are read packed, without padding, in pieces of some hundred tokens; every piece has one thread, but where there is
only one piece all threads share it. A text's states are the same bits in any piece, order or number of threads. No gradients, no states of inner layers.
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
from citeweave.core.executor import share
from citeweave.encoders.int8_kernels import (
    BLOCK,
    STRIDE,
    add_norm,
    attend_all,
    finish,
    layer,
    make_heads,
)
from citeweave.encoders.int8_tiles import COLUMNS, ROWS, check_instruction
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import PaddedStates, States, TokenStates
from citeweave.encoders.tokens import TextReader, Tokens, sample_texts

if TYPE_CHECKING:
    from torch import Tensor


GROUP = 192
"""Inputs that share a scale, at most."""

Floats = NDArray[np.float32]
Dense = tuple[Floats, NDArray[np.int8], Floats, Floats]
"""Factors of the inputs (inputs,), panels, scales of the panels and bias, as `kernels.dense` reads them."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as `kernels.layer` reads it."""

    weights: tuple[Dense, Dense, Dense, Dense]
    norms: tuple[Floats, Floats, Floats, Floats]


def group_of(inputs: int) -> int:
    """The largest group that divides the inputs.

    >>> group_of(384), group_of(1536), group_of(48)
    (192, 192, 48)
    """
    return max(size for size in range(STRIDE, GROUP + 1, STRIDE) if inputs % size == 0)


def quantize_layers(model: Any, batch: Sequence[Tokens]) -> list[Layer]:
    """All layers of a BERT of transformers, smoothed for texts such as these."""
    sizes = _input_sizes(model, batch)
    layers = []
    for number, part in enumerate(model.encoder.layer):
        attention, prefix = part.attention, f"encoder.layer.{number}"
        to_heads = [attention.self.query, attention.self.key, attention.self.value]
        layers.append(
            Layer(
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
    """Gain and shift of a layer normalization."""
    return module.weight.detach().float().numpy().copy(), module.bias.detach().float().numpy().copy()


def _input_sizes(model: Any, batch: Sequence[Tokens]) -> dict[str, Floats]:
    """Name of a linear part -> the largest |input| of each channel over the tokens of the texts."""
    torch = require("torch", extra="minilm")
    found: dict[str, Floats] = {}

    def watch(name: str) -> Any:
        def see(module: Any, inputs: Any) -> None:
            seen = inputs[0].abs().flatten(0, -2).amax(0).numpy()  # (channels,)
            found[name] = np.maximum(found[name], seen) if name in found else seen

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
    return found


def _dense(parts: Sequence[Any], sizes: Floats) -> Dense:
    matrix = np.concatenate([part.weight.detach().float().numpy() for part in parts])  # (outputs, inputs)
    bias = np.concatenate([part.bias.detach().float().numpy() for part in parts])  # (outputs,)
    smoothing = np.sqrt(np.maximum(sizes, 1e-3) / np.maximum(np.abs(matrix).max(axis=0), 1e-3))  # (inputs,)
    filler = -len(matrix) % COLUMNS  # outputs without weights, up to a whole panel
    panels, scales = _panels(np.pad(matrix * smoothing, ((0, filler), (0, 0))))
    return (1 / smoothing).astype(np.float32), panels, scales, np.pad(bias, (0, filler)).astype(np.float32)


def _panels(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Panels of twelve outputs, flat, and their scales (panels, groups, 12), flat."""
    outputs, inputs = matrix.shape
    grouped = matrix.reshape(outputs, -1, group_of(inputs))  # (outputs, groups, inputs of a group)
    scales = np.maximum(np.abs(grouped).max(axis=2), 1e-9) / 127  # (outputs, groups)
    small = np.rint(grouped / scales[:, :, None]).astype(np.int8)
    panels = small.reshape(-1, COLUMNS, inputs // 4, 4).transpose(0, 2, 1, 3)  # (panels, inputs / 4, 12, 4)
    by_panel = scales.reshape(-1, COLUMNS, scales.shape[1]).transpose(0, 2, 1)  # (panels, groups, 12)
    return np.ascontiguousarray(panels).reshape(-1), np.ascontiguousarray(by_panel, np.float32).reshape(-1)


# A BERT in int8: batches of tokens in, states of the tokens out, on all threads.

Take = Callable[[range, Floats, NDArray[np.int64]], None]
"""What is done with a piece: its rows of the batch, its states, and where its texts begin and end."""

PIECE = 512
"""Tokens that a thread reads at a time, more where a text is longer."""

SHARED = 96
"""Tokens of a single piece, such as one query, from which on the threads share it."""


class Int8Buffers(NamedTuple):
    """Arrays that a piece is read in."""

    states: tuple[Floats, ...]
    """x, queries with keys and values, mixed: (tokens, hidden or 3 * hidden), of the whole piece."""

    scratch: Any
    """Of one thread: y, middle, panels, scales, and what `kernels.attend` writes into."""


@dataclass(frozen=True, slots=True)
class Bert:
    """All weights, and the shape."""

    words: Floats
    """(words, hidden)"""

    places: Floats
    """Position and type of a token together, (positions, hidden)."""

    norm: tuple[Floats, Floats]
    layers: list[Layer]
    heads: int
    hidden: int
    middle: int
    eps: np.float32

    def read(self, piece: Sequence[Tokens], works: Sequence[Int8Buffers]) -> tuple[Floats, NDArray[np.int64]]:
        """States (tokens, hidden) of a piece, valid until the next, and where its texts begin and end.

        As many threads as there are works share the piece.
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
        part: Layer,
        states: Sequence[Floats],
        works: Sequence[Int8Buffers],
    ) -> None:
        """`kernels.layer` by several threads, with the same numbers: rows of a tile stay together."""
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
            finish(x, rows[at], rows[at + 1], groups, part.weights, part.norms, self.eps, mixed, scratch[at])

        for step in (heads_of_rows, attention, the_rest):
            share(count, step, count)

    def workspace(self, tokens: int) -> Int8Buffers:
        """Arrays for pieces of so many tokens."""
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
                floats(block, _whole(self.hidden)),
                floats(block, _whole(self.middle)),
                np.zeros(block * wide, np.int8),
                floats(block * (wide // STRIDE)),
                heads,
            ),
        )


@dataclass(frozen=True, slots=True)
class Pooled:
    """First states and means over the tokens, (texts, dimension) each."""

    first: Floats
    means: Floats

    def cls(self) -> Tensor:
        return _tensor(self.first)

    def mean(self) -> Tensor:
        return _tensor(self.means)


@dataclass(frozen=True, slots=True)
class Int8Network(Network):
    """A network whose states `Bert` computes; `model` only says its shape."""

    bert: Bert | None = None
    threads: int = 1

    def states(self, batch: Sequence[Tokens], *, first_only: bool = False) -> States:
        first, means = np.zeros((2, len(batch), self.dimension), np.float32)  # (texts, dimension) each

        def take(rows: range, states: Floats, bounds: NDArray[np.int64]) -> None:
            first[rows.start : rows.stop] = states[bounds[:-1]]
            sums = np.add.reduceat(states, bounds[:-1], axis=0)  # (texts, dimension)
            means[rows.start : rows.stop] = sums / np.diff(bounds)[:, None].astype(np.float32)

        self._read(batch, take)
        return Pooled(first, means)

    def token_states(self, batch: Sequence[Tokens]) -> TokenStates:
        layers, mask = self.padded(batch)
        return PaddedStates(layers[0], mask)

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """States of the last layer; there are no others and no gradients."""
        assert not every
        shape = len(batch), max(map(len, batch))
        padded, mask = np.zeros((*shape, self.dimension), np.float32), np.zeros(shape, np.int64)

        def take(rows: range, states: Floats, bounds: NDArray[np.int64]) -> None:
            for row, start, end in zip(rows, bounds[:-1], bounds[1:], strict=True):
                padded[row, : end - start], mask[row, : end - start] = states[start:end], 1

        self._read(batch, take)
        return (_tensor(padded),), _tensor(mask)

    def _read(self, batch: Sequence[Tokens], take: Take) -> None:
        """Hand over the states of every piece, from several threads."""
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
    """The same network in int8; `name` is the model's for errors, 0 threads are torch's number."""
    check_instruction()
    model = network.model
    _check_model(model.config, name)
    torch = require("torch", extra="minilm")
    config, embeddings = model.config, model.embeddings
    texts = [tokens for tokens in reader.read(sample_texts()) if len(tokens)]
    positions = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    bert = Bert(
        embeddings.word_embeddings.weight.detach().float().numpy().copy(),
        positions.detach().float().numpy(),
        norm_of(embeddings.LayerNorm),
        quantize_layers(model, texts),
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
            f"{getattr(config, 'hidden_act', 'another activation')}; take --runtime torch"
        )
    for what, value in (
        ("hidden size", config.hidden_size),
        ("intermediate size", config.intermediate_size),
        ("size of a head", config.hidden_size // config.num_attention_heads),
    ):
        if value % STRIDE:
            raise UserError(
                f"--runtime int8 needs sizes that are multiples of {STRIDE}, and the {what} of {name} is {value}; "
                "take --runtime torch"
            )


def _pieces(batch: Sequence[Tokens], threads: int) -> Iterator[range]:
    """Rows of texts that are read together: pieces of about the same number of tokens, a whole number for each thread."""
    total = sum(map(len, batch))
    most = max(1, -(-total // (threads * max(1, round(total / (threads * PIECE))))))
    start, tokens = 0, 0
    for row, text in enumerate(batch):
        if tokens and tokens + len(text) / 2 > most:
            yield range(start, row)
            start, tokens = row, 0
        tokens += len(text)
    yield range(start, len(batch))


def _whole(columns: int) -> int:
    return -(-columns // COLUMNS) * COLUMNS


def _tensor(vectors: NDArray[Any]) -> Tensor:
    found: Tensor = require("torch", extra="minilm").from_numpy(vectors)
    return found
