"""Where memory is short, batches become smaller and no text is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.encoders.batches import run_batches
from citeweave.encoders.embed import embed_texts
from citeweave.encoders.encoder import load_encoder

TEXTS = ["the cell grows " * (1 + n % 8) for n in range(40)]
IDS = [f"p{n}" for n in range(40)]


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class SmallDevice:
    """A network on a device that holds so many tokens, padding included."""

    def __init__(self, inner, holds: int) -> None:
        self.inner, self.holds, self.refused = inner, holds, 0

    def __getattr__(self, name):
        attribute = getattr(self.inner, name)
        if name not in ("layers", "states"):
            return attribute

        def guarded(batch, **options):
            if len(batch) * max(map(len, batch)) > self.holds:
                self.refused += 1
                raise OutOfMemoryError("tried to allocate more than there is")
            return attribute(batch, **options)

        return guarded


def on_small_device(bert: Path, holds: int) -> tuple:
    encoder = load_encoder(bert, device="cpu")
    device = SmallDevice(encoder.network, holds)
    return replace(encoder, network=device), device, encoder


@pytest.mark.parametrize("holds", [30, 100, 333])
def test_no_text_is_lost_where_memory_is_short(bert, tmp_path, holds, capsys):
    encoder, device, plain = on_small_device(bert, holds)
    made = embed_texts(encoder, IDS, TEXTS, tmp_path / "v", text_recipe="", reporter=Reporter())
    assert list(made.ids) == IDS and device.refused > 0
    np.testing.assert_allclose(made.matrix, plain.encode(TEXTS), atol=1e-5)
    assert made.manifest.facts["out_of_memory"] == device.refused
    assert capsys.readouterr().err.count("out of memory with a batch of") == device.refused


def test_a_text_that_does_not_fit_alone_is_an_error(bert, tmp_path):
    encoder, _, _ = on_small_device(bert, 5)
    with pytest.raises(UserError, match="a single text of .* tokens does not fit; lower --max-tokens"):
        embed_texts(encoder, IDS, TEXTS, tmp_path / "v", text_recipe="")


def test_other_errors_are_not_swallowed():
    def fail(rows):
        raise RuntimeError("another error")

    with pytest.raises(RuntimeError, match="another error"):
        run_batches(np.array([3, 4]), 10, fail)


def test_the_budget_is_halved_until_the_batch_fits():
    seen: list[list[int]] = []

    def encode(rows):
        if len(rows) * 4 > 7:
            raise MemoryError
        seen.append(rows.tolist())

    assert run_batches(np.array([4, 4, 0, 4, 4, 4]), 1000, encode) == 2  # 20 tokens, then 8, then 4
    assert sorted(row for rows in seen for row in rows) == [0, 1, 3, 4, 5]
