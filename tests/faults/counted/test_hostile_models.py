"""Models of untrusted people: what cannot be used is refused in one line, and nothing hangs or fills the memory."""

import shutil
from pathlib import Path

import numpy as np
import torch

from citeweave.core.errors import CiteweaveError
from citeweave.encoders.encoder import load_encoder

from .counting import one_line
from .hostile_models import HOSTILE
from .trying import try_all

TEXTS = ["the cell grows and we find how models learn", "a" * 2000 + "b", "", "data [SEP] in graphs", "\ud800"]
MAX_MEMORY = 1 << 30


def test_hostile_models(trial, bert, tmp_path):
    """A folder that is spoiled is refused when it is loaded, in one line, or reads texts as any other."""
    names = list(HOSTILE)

    def attempt(number: int) -> int:
        torch.set_num_threads(1)
        folder = Path(shutil.copytree(bert, tmp_path / f"model {number}"))
        HOSTILE[names[number]](folder)
        try:
            encoder = load_encoder(folder, device="cpu")
        except CiteweaveError as error:
            one_line(error)
            return MAX_MEMORY
        found = encoder.encode(TEXTS)
        assert found.shape == (len(TEXTS), encoder.dimension) and found.dtype == np.float32
        return MAX_MEMORY

    try_all(trial, range(len(names)), attempt, names.__getitem__)
