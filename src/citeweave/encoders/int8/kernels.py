"""A layer of BERT over a packed stream of tokens, compiled: products in int8, all else in float32.

    dense    quantize rows, multiply, add the bias
    attend   scores in int8, softmax in float32, the mean of the values in float16
    layer    attention, normalization, the two products around GELU, normalization; in three steps, each of which can be
             done by rows or by heads, so that threads can share one text

Arrays of work may have stale rows behind the tokens: what is computed there is finite and is never read. A token's
states depend on the tokens of its text alone, not on the stream.
"""

# ruff: noqa: PLR0913

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from citeweave.encoders.int8.rows import STRIDE, exp2_row, gelu_row, halve_row, pack_row, row_largest, row_size
from citeweave.encoders.int8.tiles import COLUMNS, ROWS, SHARE, add_tile, mix_tile, score_tile, store_tile

BLOCK = 64
"""Rows that go through two products around GELU together, so that what lies between stays in the cache."""

_LEAST = np.float32(1e-9)
_TOP = np.float32(127)
_ROOM = np.float32(4)  # weights of at most 2 ** -3: their sums over 512 values of 1,000 fit into float16
_LOG2_E = np.float32(1.4426950408889634)


@numba.njit(cache=True, nogil=True)
def quantize(x: Any, first: int, rows: int, factors: Any, group: int, panels: Any, scales: Any) -> None:
    """Rows of x, times the factors, as panels of int8 with a scale for each group of columns."""
    width = x.shape[1]
    count = len(factors)
    flat, groups, step = x.reshape(-1), count // group, group // 4
    for row in range(rows):
        at = (first + row) * width
        target = (row // ROWS) * (count // 4) * ROWS + row % ROWS
        for number in range(groups):
            place = number * group
            most = max(row_size(flat, at + place, factors, place, group), _LEAST)
            scales[row * groups + number] = most / _TOP
            pack_row(flat, at + place, factors, place, group, _TOP / most, panels, target + number * step * ROWS, ROWS)


@numba.njit(cache=True, nogil=True)
def dense(x: Any, first: int, rows: int, weights: Any, group: int, panels: Any, scales: Any, out: Any, to: int) -> None:
    """out[to : to + rows] = x[first : first + rows] times the weights, with their bias."""
    factors, right, right_scales, bias = weights
    quantize(x, first, rows, factors, group, panels, scales)
    groups, steps, width, flat = len(factors) // group, group // 4, out.shape[1], out.reshape(-1)
    every = groups * steps
    for column in range(len(bias) // COLUMNS):
        for tile in range((rows + ROWS - 1) // ROWS):
            a, b, s = tile * every * 4 * ROWS, column * every * 4 * COLUMNS, tile * ROWS * groups
            at = (to + tile * ROWS) * width + column * COLUMNS
            store_tile(
                panels, a, right, b, steps, scales, s, groups, right_scales, column * groups * COLUMNS,
                bias, column * COLUMNS, flat, at, width,
            )  # fmt: skip
            for g in range(1, groups):
                a, b = a + steps * 4 * ROWS, b + steps * 4 * COLUMNS
                c = (column * groups + g) * COLUMNS
                add_tile(panels, a, right, b, steps, scales, s + g, groups, right_scales, c, flat, at, width)


@numba.njit(cache=True, nogil=True)
def _pack_head(
    qkv: Any, first: int, tokens: int, at: int, size: int, height: int, scale: Any, panels: Any, scales: Any, ones: Any
) -> None:
    """One head's queries or keys as panels of `height` rows."""
    flat, width = qkv.reshape(-1), qkv.shape[1]
    for token in range(tokens):
        start = (first + token) * width + at
        most = max(row_size(flat, start, ones, 0, size), _LEAST)
        scales[token] = most / _TOP * scale
        target = (token // height) * (size // 4) * height + token % height
        pack_row(flat, start, ones, 0, size, _TOP / most, panels, target, height)


@numba.njit(cache=True, nogil=True)
def attend(qkv: Any, first: int, tokens: int, head: int, size: int, out: Any, work: Any) -> None:
    """One head of one text; writes up to seven rows behind the text, which the next text writes anew."""
    queries, keys, values, query_scales, key_scales, scores, weights, shares, ones = work
    hidden, out_width = qkv.shape[1] // 3, out.shape[1]
    scale = _LOG2_E / np.sqrt(np.float32(size))
    _pack_head(qkv, first, tokens, head * size, size, ROWS, scale, queries, query_scales, ones)
    _pack_head(qkv, first, tokens, hidden + head * size, size, COLUMNS, np.float32(1), keys, key_scales, ones)
    flat, start = qkv.reshape(-1), 2 * hidden + head * size
    for token in range(tokens):
        halve_row(flat, (first + token) * qkv.shape[1] + start, size, values, token * size)
    padded = (tokens + STRIDE - 1) // STRIDE * STRIDE
    line = padded + COLUMNS  # tiles of twelve columns may end behind it
    steps, out_flat = size // 4, out.reshape(-1)
    for tile in range((tokens + ROWS - 1) // ROWS):
        for column in range((tokens + COLUMNS - 1) // COLUMNS):
            score_tile(
                queries, tile * size * ROWS, keys, column * size * COLUMNS, steps, query_scales, tile * ROWS, 1,
                key_scales, column * COLUMNS, scores, column * COLUMNS, line,
            )  # fmt: skip
        for row in range(min(ROWS, tokens - tile * ROWS)):
            at = row * line
            for place in range(tokens, padded):
                scores[at + place] = np.float32(-1e30)
            most = row_largest(scores, at, padded) + _ROOM
            shares[row] = np.float32(1) / exp2_row(scores, at, padded, most, weights)
            for place in range(tokens, padded):
                weights[at + place] = 0  # what lies behind the text must not count, however little
        for part in range(size // SHARE):
            to = (first + tile * ROWS) * out_width + head * size + part * SHARE
            mix_tile(weights, line, (tokens + 7) // 8, values, part * SHARE, size, shares, out_flat, to, out_width)


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def add_norm(x: Any, y: Any, first: int, rows: int, gain: Any, shift: Any, eps: Any) -> None:
    """x = layer normalization of x + y[: rows], in place (Ba and others 2016)."""
    count = len(gain)
    for row in range(rows):
        line, other = x[first + row], y[row]
        total = np.float32(0)
        for j in range(count):
            line[j] += other[j]
            total += line[j]
        mean, spread = total / np.float32(count), np.float32(0)
        for j in range(count):
            spread += (line[j] - mean) * (line[j] - mean)
        scale = np.float32(1) / np.sqrt(spread / np.float32(count) + eps)
        for j in range(count):
            line[j] = (line[j] - mean) * scale * gain[j] + shift[j]


@numba.njit(cache=True, nogil=True)
def make_heads(x: Any, low: int, high: int, group: int, weights: Any, qkv: Any, work: Any) -> None:
    """Queries, keys and values of the rows low to high."""
    panels, scales = work[2], work[3]
    for first in range(low, high, BLOCK):
        dense(x, first, min(BLOCK, high - first), weights, group, panels, scales, qkv, first)


@numba.njit(cache=True, nogil=True)
def attend_all(qkv: Any, bounds: Any, heads: int, low: int, high: int, mixed: Any, work: Any) -> None:
    """The heads low to high of all texts."""
    size = mixed.shape[1] // heads
    for text in range(len(bounds) - 1):
        for head in range(low, high):
            attend(qkv, bounds[text], bounds[text + 1] - bounds[text], head, size, mixed, work[4])


@numba.njit(cache=True, nogil=True)
def finish(x: Any, low: int, high: int, groups: Any, weights: Any, norms: Any, eps: Any, mixed: Any, work: Any) -> None:
    """What comes after attention, rows low to high."""
    (_, from_heads, up, down), (narrow, wide) = weights, groups
    gain, shift, last_gain, last_shift = norms
    y, middle, panels, scales, _ = work
    for first in range(low, high, BLOCK):
        rows = min(BLOCK, high - first)
        dense(mixed, first, rows, from_heads, narrow, panels, scales, y, 0)
        add_norm(x, y, first, rows, gain, shift, eps)
        dense(x, first, rows, up, narrow, panels, scales, middle, 0)
        gelu_row(middle.reshape(-1), 0, (rows * middle.shape[1] + STRIDE - 1) // STRIDE * STRIDE)
        dense(middle, 0, rows, down, wide, panels, scales, y, 0)
        add_norm(x, y, first, rows, last_gain, last_shift, eps)


@numba.njit(cache=True, nogil=True)
def layer(
    x: Any, bounds: Any, heads: int, groups: Any, weights: Any, norms: Any, eps: Any, states: Any, work: Any
) -> None:
    """One layer in place: x (tokens and some, hidden); bounds (texts + 1,) say where texts begin and end."""
    qkv, mixed = states
    make_heads(x, 0, bounds[-1], groups[0], weights[0], qkv, work)
    attend_all(qkv, bounds, heads, 0, heads, mixed, work)
    finish(x, 0, bounds[-1], groups, weights, norms, eps, mixed, work)
