"""The change of one weight matrix in few bytes: as two factors, or row by row.

    factors    change = left.T @ right                  left (rank, out), right (rank, in), by singular values
    rows       change = rows                            all rows of the matrix, or those that matter most and 0 elsewhere

    W.left, W.left_scales, W.right, W.right_scales      `few_bits.py` codes left, right and rows
    W.rows, W.row_scales[, W.places]                    places (count,): which rows, where these are not all

Does not choose between codings: `allocating.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from citeweave.encoders.saved.few_bits import code_rows, read_rows, row_bytes
from citeweave.extras import require

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("factors", "rows")
RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192)
_FACTOR_BITS = (4, 8)
_ROW_BITS = (1, 2, 3, 4, 8)
_FEWEST_ROWS = 64
_HEADER = 120
"""Bytes that safetensors spends on the name, shape and place of a tensor, about."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How the change of a matrix is stored."""

    kind: str
    count: int
    """Rank of the factors, or number of rows."""

    bits: int


@dataclass(frozen=True, slots=True)
class Option:
    """A coding, its tensors, and what it costs and leaves."""

    coding: Coding
    tensors: Mapping[str, Tensor]
    bytes: int
    error: float
    """Sum of squares, rows weighted."""


def tensor_shapes(coding: Coding, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Part -> kind of numbers and shape, of a matrix (out, in).

    >>> tensor_shapes(Coding("factors", 4, 8), (6, 10))["left"], tensor_shapes(Coding("rows", 2, 1), (6, 10))["places"]
    (('I8', (4, 6)), ('I32', (2,)))
    """
    codes, count = "I8" if coding.bits == 8 else "U8", coding.count
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    if coding.kind == "factors":
        for side, length in (("left", shape[0]), ("right", shape[1])):
            found[side] = (codes, (count, row_bytes(length, coding.bits)))
            found[f"{side}_scales"] = ("F32", (count,))
        return found
    found = {"rows": (codes, (count, row_bytes(shape[1], coding.bits))), "row_scales": ("F32", (count,))}
    return found | ({"places": ("I32", (count,))} if count < shape[0] else {})


def read_change(coding: Coding, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """The change (out, in) in float32."""
    torch = require("torch", extra="minilm")
    if coding.kind == "factors":
        left = read_rows(tensors["left"], tensors["left_scales"], shape[0], coding.bits)  # (rank, out)
        right = read_rows(tensors["right"], tensors["right_scales"], shape[1], coding.bits)  # (rank, in)
        return left.T @ right
    rows = read_rows(tensors["rows"], tensors["row_scales"], shape[1], coding.bits)  # (count, in)
    if "places" not in tensors:
        return rows
    found: Tensor = torch.zeros(shape)
    found[tensors["places"].long()] = rows
    return found


def options_of(change: Tensor, weights: Tensor) -> Iterator[Option]:
    """Every coding of a change (out, in), with what it leaves; an error of row i counts weights[i] times."""
    yield from _factor_options(change, weights)
    yield from _row_options(change, weights)


def _factor_options(change: Tensor, weights: Tensor) -> Iterator[Option]:
    left, right = _singular(change, min(max(RANKS), *change.shape))  # (rank, out), (rank, in)
    shape = (change.shape[0], change.shape[1])
    for bits in _FACTOR_BITS:
        coded = (*code_rows(left, bits), *code_rows(right, bits))
        read = read_rows(coded[0], coded[1], shape[0], bits), read_rows(coded[2], coded[3], shape[1], bits)
        rest, done = change.clone(), 0
        for rank in (rank for rank in RANKS if rank <= len(left)):
            rest -= read[0][done:rank].T @ read[1][done:rank]
            done = rank
            names = ("left", "left_scales", "right", "right_scales")
            tensors = {name: tensor[:rank].clone() for name, tensor in zip(names, coded, strict=True)}
            error = float((rest.square().sum(dim=1) * weights).sum())
            yield Option(Coding("factors", rank, bits), tensors, _size(tensors), error)


def _row_options(change: Tensor, weights: Tensor) -> Iterator[Option]:
    whole = change.square().sum(dim=1) * weights  # (out,)
    for bits in _ROW_BITS:
        codes, scales = code_rows(change, bits)
        rest = (change - read_rows(codes, scales, change.shape[1], bits)).square().sum(dim=1) * weights  # (out,)
        order, count = (whole - rest).argsort(descending=True, stable=True), len(change)  # (out,)
        while count == len(change) or count >= _FEWEST_ROWS:
            places = order[:count].sort().values  # (count,)
            tensors = {"rows": codes[places], "row_scales": scales[places]}
            tensors |= {"places": places.int()} if count < len(change) else {}
            error = float(whole.sum() - (whole - rest)[places].sum())
            yield Option(Coding("rows", count, bits), tensors, _size(tensors), error)
            count = count * 3 // 4


def _singular(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (rank, out) and (rank, in) of the nearest matrix of that rank; by the smaller of its two squares."""
    torch = require("torch", extra="minilm")
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T  # (long, short)
    square = (tall.T @ tall).double()  # (short, short)
    values, vectors = torch.linalg.eigh(square)
    short = vectors.flip(1)[:, :rank].T.float()  # (rank, short)
    sizes = values.flip(0)[:rank].clamp_min(1e-24).sqrt().float()  # (rank,)
    long = (tall @ short.T / sizes).T  # (rank, long)
    long, short = long * sizes.sqrt()[:, None], short * sizes.sqrt()[:, None]
    return (long, short) if matrix.shape[0] >= matrix.shape[1] else (short, long)


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() + _HEADER for tensor in tensors.values())
