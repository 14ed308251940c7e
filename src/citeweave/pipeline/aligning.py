"""The stage of alignment: samples whose pairs know the sentences in which they are alike, in aligned/.

Only where the recipe has an `[alignment]` table; see `mining/alignment.py`. The encoder is frozen: one that a recipe
trains is ready before this stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from citeweave.encoders.locating import hub_name, locate
from citeweave.encoders.saved.deltas import open_model
from citeweave.mining.aligning.options import AlignmentOptions
from citeweave.mining.samples import Samples
from citeweave.pipeline.data_stages import TrainingMaterial
from citeweave.pipeline.options import RunOptions
from citeweave.pipeline.run_folder import RunFolder
from citeweave.progress import Reporter

STAGE = "aligned"


def align_stage(
    run: RunFolder, material: TrainingMaterial, alignment: AlignmentOptions, options: RunOptions, reporter: Reporter
) -> TrainingMaterial:
    """The material with aligned samples; `alignment.encoder` is a model that can be loaded."""

    def make(folder: Path) -> Mapping[str, Any]:
        from citeweave.encoders.encoder import load_encoder
        from citeweave.mining.alignment import align_samples

        encoder = load_encoder(alignment.encoder, device=options.device)
        aligned = align_samples(
            material.corpus,
            material.samples,
            encoder,
            folder,
            alignment,
            overwrite=options.overwrite,
            reporter=reporter,
        )
        return dict(aligned.manifest.facts["alignment"])

    key = [material.samples.hash, alignment.by, _model_key(alignment.encoder)]
    return dataclasses.replace(material, samples=Samples.open(run.run(STAGE, key, make)))


def _model_key(name: str) -> str:
    """What the encoder is: the content of a folder, the name of a model on the hub."""
    if hub_name(name):
        return name
    model = open_model(locate(name).folder)
    return model.revision(model.settings)
