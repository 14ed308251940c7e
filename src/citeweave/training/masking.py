"""Which tokens a language model has to guess. Works on plain arrays; does not read texts and knows no tokenizer.

>>> from citeweave.randomness import stream
>>> masked = mask_tokens(np.arange(10, 30), special=[10, 29], vocabulary=100, mask_id=4, generator=stream(5, "masking"))
>>> masked.targets.tolist(), masked.tokens[masked.places].tolist()
([11, 12, 24, 26, 27, 28], [5, 4, 4, 15, 4, 4])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError

MASKED, RANDOM = 0.8, 0.1
"""Of the chosen tokens: replaced by the mask, by any token; the rest stays as it is."""


class MaskedTokens(NamedTuple):
    """Tokens with some hidden, and what they were."""

    tokens: NDArray[Any]
    """(n,) what the model reads."""

    places: NDArray[np.int64]
    """(T,) where it has to guess, ascending."""

    targets: NDArray[np.int64]
    """(T,) what it has to guess."""


def mask_tokens(
    tokens: NDArray[Any],
    special: Sequence[int] | NDArray[Any],
    vocabulary: int,
    mask_id: int,
    generator: np.random.Generator,
    *,
    share: float = 0.15,
) -> MaskedTokens:
    """Choose each token with chance `share`; 80 % become the mask, 10 % any token, 10 % stay; Devlin et al. 2019 (BERT).

    tokens (n,) of one text or of many, one behind the other. `special` are the ids that are never chosen ([CLS], [SEP],
    padding). `vocabulary` is the number of tokens a random one is drawn from. `tokens` is not changed.
    """
    if not 0 <= share <= 1:
        raise UserError(f"share of masked tokens is {share}; it must be from 0 to 1, such as 0.15")
    # drawn for every token, so that what is special moves no other token's draw
    chance, fate = generator.random((2, len(tokens)))  # (n,) each
    places = np.flatnonzero((chance < share) & ~np.isin(tokens, special))  # (T,)
    other = generator.integers(vocabulary, size=len(tokens))[places]  # (T,)
    targets = tokens[places].astype(np.int64)  # (T,)
    fate = fate[places]  # (T,)
    hidden = tokens.copy()  # (n,)
    hidden[places] = np.select(
        [fate < MASKED, fate < MASKED + RANDOM], [np.full_like(targets, mask_id), other], targets
    )
    return MaskedTokens(hidden, places, targets)
