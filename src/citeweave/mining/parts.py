"""Parts: blocks of samples that are done, kept on disk until the whole run is."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from citeweave.arrays import read_kept
from citeweave.mining.sample_blocks import Picks, SampleBlock
from citeweave.mining.shortfall import Shortfall

_PICKS = ("offsets", "rows", "rules", "scores")
_PLAIN = ("anchors", "aspects", "tasks", "context_offsets", "contexts")


def part_bytes(block: SampleBlock, account: Shortfall) -> bytes:
    """A part as its file holds it."""
    columns = {name: getattr(block, name) for name in _PLAIN}
    columns |= {f"up_{name}": getattr(block.positives, name) for name in _PICKS}
    columns |= {f"down_{name}": getattr(block.negatives, name) for name in _PICKS}
    columns["account"] = np.frombuffer(json.dumps(asdict(account)).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


def read_part(path: Path) -> tuple[SampleBlock, Shortfall]:
    picked = [f"{side}_{name}" for side in ("up", "down") for name in _PICKS]
    columns = read_kept(path, [*_PLAIN, *picked, "account"])
    positives, negatives = (Picks(*(columns[f"{side}_{name}"] for name in _PICKS)) for side in ("up", "down"))
    plain = {name: columns[name] for name in _PLAIN}
    account = Shortfall(**json.loads(columns["account"].tobytes()))
    return SampleBlock(positives=positives, negatives=negatives, **plain), account
