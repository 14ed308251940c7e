"""The loss of a batch: contrast among its texts, and imitation of what the teachers know.

vectors   (texts, d)   left papers, right papers, further negatives: see `Batch`
"""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.training.losses.contrast import scores_in_batch
from citeweave.training.losses.cosines import cosines, mean_of
from citeweave.training.losses.imitation import student_teacher
from weaving.plan import Plan

GRAPH_TEMPERATURE = 0.1


def batch_loss(
    plan: Plan, vectors: Tensor, pairs: int, allowed: Tensor, start: Tensor | None, graph: Tensor | None
) -> Tensor:
    """`allowed` (texts, texts); `start` and `graph` (texts, ...) are the teachers' vectors of the same papers.

    A title or an abstract is told by its teacher from the whole paper.
    """
    scores = cosines(vectors[: 2 * pairs], vectors)  # (2 pairs, texts)
    loss = contrast(scores, allowed[: 2 * pairs], plan.temperature, same_side=plan.same_side)
    if start is not None:
        loss = loss + plan.distill * student_teacher(vectors[: 2 * pairs], start[: 2 * pairs])
    if graph is not None:
        loss = loss + plan.graph * soft_neighbours(scores, graph, temperature=plan.temperature)
    return loss


def contrast(scores: Tensor, allowed: Tensor, temperature: float, *, same_side: bool = False) -> Tensor:
    """-log softmax of the partner among the texts, mean over both directions; Radford et al. 2021 (CLIP), Chen et al. 2020.

    scores and allowed (2 pairs, texts). Negatives are the papers of the other side and the further ones; with
    `same_side` also those of the own side, as in SimCLR.

    >>> x = torch.eye(2).repeat(2, 1)  # two pairs of equal texts
    >>> allowed = ~torch.eye(4, dtype=torch.bool)
    >>> round(contrast(x @ x.T, allowed, 1.0).item(), 4)  # log(1 + 1 / e)
    0.3133
    >>> round(contrast(x @ x.T, allowed, 1.0, same_side=True).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    asking, texts = scores.shape
    pairs = asking // 2
    place = torch.arange(texts, device=scores.device)  # (texts,)
    own = place[:asking, None]  # (2 pairs, 1)
    partner = (own + pairs) % asking == place  # (2 pairs, texts)
    if not same_side:
        allowed = allowed & (((own < pairs) != (place < pairs)) | (place >= asking))
    return scores_in_batch(scores, partner, allowed=allowed, temperature=temperature)


def soft_neighbours(scores: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    """Cross-entropy of the teacher's and the student's softmax over the other texts; Hinton et al. 2015, Fang et al. 2021.

    scores (asking, texts) are the student's cosines, teacher (texts, k) vectors, zeros where it knows nothing: such
    texts neither ask nor answer. The form over a batch is SEED's, equation 4, with the batch for a queue.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> right, wrong = x @ x.T, torch.eye(4)
    >>> bool(soft_neighbours(right, x, temperature=0.1) < soft_neighbours(wrong, x, temperature=0.1))
    True
    """
    asking, texts = scores.shape
    known = teacher.any(1)  # (texts,)
    place = torch.arange(texts, device=scores.device)
    left_out = ~known | (place == place[:asking, None])  # (asking, texts)
    wanted = (cosines(teacher[:asking], teacher) / GRAPH_TEMPERATURE).masked_fill(left_out, -1e4).softmax(1)
    found = (scores / temperature).masked_fill(left_out, -1e4).log_softmax(1)
    return mean_of(-(wanted * found).sum(1), known[:asking])
