"""What the losses share: cosines in full precision, means over what counts. Knows no loss.

>>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [-3.0, -4.0], [0.0, 0.0]])).tolist()
[[1.0, -1.0, 0.0]]
>>> mean_of(torch.tensor([2.0, 4.0, 9.0]), torch.tensor([True, True, False])).item()
3.0
"""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.errors import UserError


def wide(x: Tensor) -> Tensor:
    """Half precision as float32; anything else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, (..., d); a vector of zeros stays one, with a gradient that is not huge."""
    x = wide(x)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    return x / torch.where(length > 0, length, 1)


def products(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of the rows, (..., a, d) and (..., b, d) -> (..., a, b), never in half precision."""
    # autocast would turn the factors into half precision again, and a temperature of 0.05 would show it
    with torch.autocast(x.device.type, enabled=False):
        return wide(x) @ wide(y).transpose(-1, -2)


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Cosines of all rows with all rows, (..., a, d) and (..., b, d) -> (..., a, b); 0 for a vector of zeros."""
    return products(unit(x), unit(y))


def own_cosines(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Cosines of each anchor with its own candidates, (G, d) and (G, n, d) -> (G, n)."""
    return cosines(anchors[:, None], candidates)[:, 0]


def pair_cosines(x: Tensor, y: Tensor) -> Tensor:
    """Cosines of row i with row i, (..., d) each -> (...)."""
    return (unit(x) * unit(y)).sum(-1)


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of the values that count, 0 where none does; the others get no gradient."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)


def log_sum(scores: Tensor, counted: Tensor) -> Tensor:
    """log of the sum of exp of the scores that count, (..., n) -> (...); -inf where none does."""
    return scores.masked_fill(~counted, -torch.inf).logsumexp(-1)


def everywhere(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask, or True in the shape of `like` where there is none."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature is {temperature}; it must be above 0 and finite, such as 0.05")


def check_scale(scale: float) -> None:
    if not 0 < scale < float("inf"):
        raise UserError(f"scale is {scale}; it must be above 0 and finite, such as 20")
