"""An evaluation that was interrupted while a model read papers resumes there, and writes the same report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.publish import work_folder
from citeweave.encoders.encoder import load_encoder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.sentence_systems import CombinedSystem, SentenceSystem
from citeweave.evaluation.suites.registry import read_suite
from citeweave.evaluation.systems import System


class Interrupted:
    """A network that counts its batches; the user interrupts it in one of them."""

    def __init__(self, inner: Any, at: int) -> None:
        self.inner, self.at, self.batches = inner, at, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)

        def read(*batch: Any, **options: Any) -> Any:
            self.batches += 1
            if self.batches == self.at:
                raise KeyboardInterrupt
            return found(*batch, **options)

        return read if name in ("states", "token_states") else found


def both(encoder: Any) -> System:
    return CombinedSystem(EncoderSystem(encoder), SentenceSystem(encoder))


@pytest.mark.parametrize(
    ("system", "distance"), [(EncoderSystem, "cosine"), (SentenceSystem, "mean_best"), (both, "cosine+mean_best")]
)
def test_vectors_are_saved_while_they_are_made(
    bert: Path, folders: dict[str, Path], tmp_path: Path, system: Any, distance: str
) -> None:
    encoder, suite = load_encoder(bert, device="cpu", batch_tokens=40), read_suite("csfcube", folders["csfcube"])
    options = EvaluationOptions(distance=distance)

    def run(name: str, at: int = -1) -> tuple[Any, int]:
        network = Interrupted(encoder.network, at)
        report = evaluate(system(replace(encoder, network=network)), suite, tmp_path / name, options=options)
        return json.loads((report.folder / "report.json").read_bytes()), network.batches

    whole, batches = run("whole")
    assert batches > 3
    with pytest.raises(KeyboardInterrupt):
        run("broken", at=batches - 1)
    assert list(work_folder(tmp_path / "broken").rglob("*.part-*.npz"))
    resumed, rest = run("broken")
    assert resumed == whole and rest == 2
    assert not list(tmp_path.rglob("*.part-*")), "nothing is left in or beside the report"
