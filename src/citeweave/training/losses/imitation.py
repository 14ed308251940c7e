"""Losses that imitate something given: another model's likeness of papers, or the words of a text."""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.training.losses.cosines import cosines, everywhere, mean_of, wide


def student_teacher(student: Tensor, teacher: Tensor, *, known: Tensor | None = None) -> Tensor:
    """Mean of (cos of the student - cos of the teacher)^2 over all pairs of the batch; Ostendorff et al. 2022, F.9.

    student (B, d), teacher (B, k) of any dimension; `known` (B,) is False at papers the teacher has no vector of.
    The pair of a paper with itself counts, and gives 0. Sums with the triplet loss are `weighted_sum`'s.

    >>> student_teacher(torch.eye(2), torch.ones(2, 4)).item()  # the teacher's cosines are 1: two of four are missed
    0.5
    """
    missed = (cosines(student, student) - cosines(teacher, teacher).to(wide(student).dtype)) ** 2  # (B, B)
    both = everywhere(known, missed[:, 0])  # (B,)
    return mean_of(missed, both[:, None] & both)


def masked_language(logits: Tensor, targets: Tensor) -> Tensor:
    """-log softmax of the hidden token, mean over the masked places; Devlin et al. 2019 (BERT).

    logits (T, V) at the masked places only, targets (T,); 0 where T is 0.

    >>> round(masked_language(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).item(), 4)  # log 2
    0.6931
    """
    losses = torch.nn.functional.cross_entropy(wide(logits), targets, reduction="none")  # (T,)
    return losses.sum() / max(len(losses), 1)
