"""The stage of training: one encoder a seed, in model/, model-1/, model-2/ and so on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from citeweave.encoders.locating import hub_name, locate
from citeweave.encoders.saved.deltas import open_model
from citeweave.mining.aspect_names import NODES
from citeweave.pipeline.data_stages import TrainingMaterial
from citeweave.pipeline.options import RunOptions
from citeweave.pipeline.run_folder import RunFolder
from citeweave.progress import Reporter
from citeweave.recipe import ReadRecipe, Recipe
from citeweave.training.options import EncoderOptions, TrainingOptions


@dataclass
class ModelStages:
    """From samples to encoders."""

    run: RunFolder
    recipe: Recipe
    read: ReadRecipe
    options: RunOptions
    reporter: Reporter

    def train(self, material: TrainingMaterial, encoder: EncoderOptions) -> list[Path]:
        """The folders of the models, one a seed."""
        training = self.read.training
        assert training is not None
        return [
            self._train(material, encoder, dataclasses.replace(training, seed=seed, seeds=1), number)
            for number, seed in enumerate(seeds_of(training, self.options))
        ]

    def _train(
        self, material: TrainingMaterial, encoder: EncoderOptions, training: TrainingOptions, number: int
    ) -> Path:
        def make(folder: Path) -> Mapping[str, Any]:
            from citeweave.training.gathering import Sources
            from citeweave.training.plan import About, Plan
            from citeweave.training.train import train_encoder

            teacher = material.inputs.vectors.get(NODES) if "student_teacher" in training.losses else None
            about = About(
                recipe=self.recipe.label,
                tables=self.recipe.tables,
                held_out=self.options.held_out,
                audit=self.run.facts("audited") or None,
            )
            found = train_encoder(
                material.corpus,
                material.samples,
                folder,
                Plan(encoder, training, about),
                sources=Sources(graph=material.inputs.graph, teacher=teacher, suite=material.watched),
                device=self.options.device,
                overwrite=self.options.overwrite,
                reporter=self.reporter,
            )
            return {"seed": training.seed, "before": found.before, "after": found.after}

        stages = self.run.record["stages"]
        inputs = [
            material.samples.hash,
            self.start_key(encoder),
            asdict(training),
            str(stages.get("graph", {}).get("mark")),
            material.watched is not None,
        ]
        return self.run.run(f"model-{number}" if number else "model", inputs, make)

    @staticmethod
    def start_key(encoder: EncoderOptions) -> Any:
        """What the start model is: the content of a folder, the name of a model on the hub."""
        if hub_name(encoder.init):
            return [asdict(encoder)]
        model = open_model(locate(encoder.init).folder)
        return [{**asdict(encoder), "init": ""}, model.revision(model.settings)]


def seeds_of(training: TrainingOptions, options: RunOptions) -> range:
    """The seeds that are trained with."""
    return range(training.seed, training.seed + (options.seeds or training.seeds))
