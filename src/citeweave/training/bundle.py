"""Bundles: all that a training run reads as plain arrays, for a machine that has torch and transformers and no corpus.

    bundle/
      bundle.json                        the plan: encoder, training, what the card says
      model/                             the start model, weights in float16 (or float32)
      tokens.npz                         of every paper, compressed
      rows.npy  groups/  validation/  names.json  relatives/  sentences/  alignment/  teacher.npy  pools/NAME/  facts.json

    make_bundle(corpus, samples, "bundle/", plan)           here
    train_bundle("bundle/", "model/", device="cuda")        there, or: python -m citeweave.training.bundle bundle/ model/

There it needs numpy, torch, transformers, tokenizers and safetensors. A bundle is data: nothing in it is run, arrays of
objects are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import read_manifest
from citeweave.artefacts.writing import matches, new_artefact
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.saved.model_card import ModelCard
from citeweave.encoders.saving import save_encoder
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import ArtefactError, CiteweaveError
from citeweave.files import read_input, write_json
from citeweave.progress import QUIET, Reporter
from citeweave.training.bundle_files import read_data, write_data
from citeweave.training.data import TrainingData
from citeweave.training.options import encoder_options, training_options
from citeweave.training.plan import About, Plan
from citeweave.training.starting import load_start
from citeweave.training.train import EncoderRun, Training

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.gathering import Sources

KIND, VERSION = "bundle", 1


def make_bundle(
    corpus: Corpus,
    samples: Samples,
    folder: str | Path,
    plan: Plan | None = None,
    *,
    sources: Sources | None = None,
    weights: str = "float16",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Path:
    """Write a bundle; one that was made of the same is left as it is."""
    from citeweave.training.gathering import Sources, gather

    plan, sources, folder = plan or Plan(), sources or Sources(), Path(folder)
    start = load_start(plan.encoder, "cpu")
    made_of = {"corpus": corpus.hash, "samples": samples.hash, **sources.hashes(), "start": start.revision}
    recipe = {**made_of, "plan": _plan_json(plan), "weights": weights}
    if matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} is there already: same samples, start model and options")
        return folder
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        tokens = writer.work("data") / "tokens"
        data = gather(corpus, samples, start.reader, plan.encoder, plan.training, tokens, sources, reporter=reporter)
        write_data(data, writer.folder)
        (writer.folder / "model").mkdir()
        card = ModelCard(name="start model", base=plan.encoder.init, base_revision=start.revision)
        save_encoder(
            writer.folder / "model", start.network, start.reader.tokenizer, start.settings, card=card, dtype=weights
        )
        if (heads := find_heads(plan.encoder.init)) is not None:
            save_heads(writer.folder / "model", heads)
        write_json(writer.folder / "bundle.json", {"plan": _plan_json(plan), "made_of": made_of})
        writer.facts = {"papers": len(data.rows), **data.facts}
        del data  # its tokens are mapped, and Windows gives no name to a folder that is in use
        writer.finish()
    return folder


def train_bundle(
    bundle: str | Path,
    folder: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> EncoderRun:
    """Train from a bundle; `changes` are other values of the `[training]` table, such as {"seed": 1}."""
    bundle = Path(bundle)
    plan, made_of = read_plan(bundle)
    plan = dataclasses.replace(plan, training=dataclasses.replace(plan.training, **(changes or {})))
    manifest_hash = read_manifest(bundle, KIND, VERSION).hash
    training = Training(Path(folder), plan, {**made_of, "bundle": manifest_hash}, start=str(bundle / "model"))

    def gathered(_: TorchEncoder, __: Path) -> TrainingData:
        return read_data(bundle)

    return training.run(gathered, device=device, overwrite=overwrite, reporter=reporter)


def read_plan(bundle: Path) -> tuple[Plan, dict[str, Any]]:
    """What a bundle says is to be trained, and the hashes of what it was made of."""
    check_files(bundle, read_manifest(bundle, KIND, VERSION))
    try:
        found = json.loads(read_input(bundle / "bundle.json"))
        plan, made_of = found["plan"], found["made_of"]
        about = About(**plan["about"])
        return Plan(encoder_options(plan["encoder"]), training_options(plan["training"]), about), made_of
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtefactError(f"{bundle}/bundle.json does not describe a bundle: it is damaged; make it again") from None


def _plan_json(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(plan)))
    return found


def main() -> None:
    """Train from a bundle where the command line of citeweave cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m citeweave.training.bundle", description=main.__doc__)
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("model", type=Path, help="folder to make")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--seed", type=int, help="another seed than the bundle's")
    asked = parser.parse_args()
    changes = {} if asked.seed is None else {"seed": asked.seed}
    try:
        run = train_bundle(asked.bundle, asked.model, changes=changes, device=asked.device, reporter=Reporter())
    except CiteweaveError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps({"before": run.before, "after": run.after, "output": str(run.folder)}) + "\n")


if __name__ == "__main__":
    main()
