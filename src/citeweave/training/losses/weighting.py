"""Several losses as one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from citeweave.errors import UserError


def weighted_sum(terms: Mapping[str, tuple[float, Tensor]]) -> Tensor:
    """The sum of weight x loss; a term of weight 0 is left out, so that not even its NaN can be felt.

    >>> terms = {"triplet": (1.0, torch.tensor(0.5)), "student_teacher": (2.0, torch.tensor(0.25))}
    >>> weighted_sum(terms).item()
    1.0
    """
    parts = [weight * loss for weight, loss in terms.values() if weight]
    if not parts:
        raise UserError(f"the losses {', '.join(terms) or 'are none'}: no weight is above 0; give one of them a weight")
    return torch.stack(parts).sum()
