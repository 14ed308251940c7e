"""Vectors of papers by an encoder that is not trained: every paper is read once, whatever the number of steps.

    training.parts = "heads"        only the aspect heads learn: minutes on two cores, where the encoder would take hours

Papers are read by the fastest runtime of this processor (`encoders/fastest_runtime.py`): in int8 their vectors differ a little
from those in float32, with which the model is used later.

From a start model, data and options to a run that the loop can take.

    start = load_start(EncoderOptions(init="minilm"), "cpu")
    run = make_run(start, data, Plan(), Processes(), QUIET)

Does not train and reads no samples.

The folder of a trained encoder: weights, card, and what was trained alone where that is not everything.

With `training.start_share` the saved weights lie between those of the start model and the trained ones: what the start
model knew of other texts is not all forgotten (Wortsman et al. 2022, robust fine-tuning). Validation judged the trained
ones.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.delta import save_delta
from citeweave.encoders.encoder import BATCH_TOKENS, WINDOW, TorchEncoder, batch_place, load_encoder
from citeweave.encoders.fastest_runtime import fastest
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.network import speed_up
from citeweave.encoders.save import save_encoder
from citeweave.training.data import TrainingData
from citeweave.training.distributed import Processes, shard_model, take_whole
from citeweave.training.objective import PREFIX, LossInputs, Objective, TrainedHeads, make_heads
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.partial import choose_parts
from citeweave.training.step import MaskedLanguage, Stepper, mask_token
from citeweave.training.trainer import Progress, Run
from citeweave.version import __version__


def frozen_vectors(start: TorchEncoder, data: TrainingData, reporter: Reporter) -> Tensor:
    """Vectors (papers, dimension) of all papers of the data, on the encoder's device."""
    encoder, papers = _fastest(start), len(data.tokens)
    found = np.zeros((papers, start.dimension), np.float32)
    for first in range(0, papers, WINDOW):
        rows = np.arange(first, min(first + WINDOW, papers))
        found[rows] = encoder.encode_tokens(data.tokens.take(rows), reporter=reporter)
    return torch.from_numpy(found).to(start.network.device)


def _fastest(start: TorchEncoder) -> TorchEncoder:
    start.network.model.eval()
    chosen = fastest(start.network, start.reader, start.settings, start.name)
    if chosen.runtime.name == "torch":
        return start
    return dataclasses.replace(start, network=chosen.network, batch_tokens=BATCH_TOKENS[batch_place(chosen.network)])


# From a start model, data and options to a run that the loop can take.

MICRO_TOKENS = {"cpu": 16_384, "cuda": 65_536}
"""Tokens encoded at a time where the recipe does not say."""


def load_start(options: EncoderOptions, device: str) -> TorchEncoder:
    """The start model with the recipe's pooling, whose own weights begin anew where it had another, and length."""
    if options.init.startswith("recipe:"):
        raise UserError(
            f"encoder.init is {options.init!r}, the model of another recipe; `citeweave run` trains that one first. "
            "Here give its folder with --init"
        )
    found = load_encoder(options.init, pooling=options.pooling or None, normalize=options.normalize, device=device)
    limit = found.network.longest
    length = options.max_tokens if limit is None else min(options.max_tokens, limit)
    settings = dataclasses.replace(found.settings, max_tokens=length)
    return dataclasses.replace(found, settings=settings, reader=dataclasses.replace(found.reader, max_tokens=length))


def make_run(
    start: TorchEncoder, data: TrainingData, plan: TrainingPlan, processes: Processes, reporter: Reporter
) -> Run:
    """Everything that the loop needs, with the parts of the network chosen that are to be trained."""
    options = plan.training
    network = speed_up(start.network) if options.compiled else start.network
    if options.reads_sentences and start.settings.pooling not in ("cls", "mean"):
        raise UserError(
            f"encoder.pooling is {start.settings.pooling!r}, and losses on sentences read the last layer alone; take cls or mean"
        )
    kind = network.device.partition(":")[0]
    chosen = choose_parts(
        network.model,
        options.parts,
        frozen_layers=options.frozen_layers,
        lora_rank=options.lora_rank,
        seed=options.seed,
    )
    if options.dropout is not None:
        set_dropout(network.model, options.dropout)
    language, heads = _language(start, data, options), _heads(start, data, plan)
    sharded = options.parallel == "fsdp" and processes.count > 1
    if sharded:
        shard_model(network.model, processes, network.device)
        now = dict(network.model.named_parameters())
        chosen = [(name, now[name]) for name, _ in chosen]
    weights = dict(chosen)
    if heads is not None:
        weights |= heads.weights()
    if language is not None:
        weights |= {f"language.{name}": weight for name, weight in language.head.named_parameters()}
    teacher = None if data.teacher is None else torch.from_numpy(data.teacher).to(network.device)
    frozen = frozen_vectors(start, data, reporter) if options.parts == "heads" else None
    stepper = Stepper(
        data,
        network,
        start.settings,
        Objective(
            options.losses, LossInputs(data.relatives, teacher, data.sentences, data.alignment, heads, data.rules)
        ),
        options.micro_tokens or MICRO_TOKENS[kind],
        _in_half(options.precision, kind),
        options.seed,
        processes,
        language,
        frozen,
        sharded,
    )
    return Run(stepper, options, weights, reporter)


def whole_encoder(start: TorchEncoder, run: Run, plan: TrainingPlan) -> TorchEncoder:
    """The trained encoder in one piece, of a run in shards: the start model anew, with the weights that were trained.

    All processes must call it; only the first one's holds the weights.
    """
    processes, options = run.stepper.processes, plan.training
    trained = take_whole(run.weights, keep=processes.is_first)
    if not processes.is_first:
        return start
    found = load_start(plan.encoder, "cpu")
    model = found.network.model
    choose_parts(
        model, options.parts, frozen_layers=options.frozen_layers, lora_rank=options.lora_rank, seed=options.seed
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in trained:
                weight.copy_(trained[name])
    # the card names the device that it was trained on
    return dataclasses.replace(found, network=dataclasses.replace(found.network, device=start.network.device))


def _heads(start: TorchEncoder, data: TrainingData, plan: TrainingPlan) -> TrainedHeads | None:
    """Heads for the aspects of the samples, where the recipe has some."""
    if bool(plan.encoder.heads) != plan.training.reads_aspects:
        raise UserError(
            f"encoder.heads is {plan.encoder.heads!r} and the losses are {', '.join(plan.training.losses)}; heads are "
            "trained by losses such as aspect_supcon, and these need heads"
        )
    if not plan.encoder.heads:
        return None
    known = find_heads(plan.encoder.init)
    heads = make_heads(data.aspects, start.dimension, plan.encoder, seed=plan.training.seed, start=known)
    return heads.to(start.network.device)


def set_dropout(model: Any, rate: float) -> None:
    """Every dropout of a network gets this rate."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = rate


def _language(start: TorchEncoder, data: TrainingData, options: TrainingOptions) -> MaskedLanguage | None:
    if "mlm" not in options.losses:
        return None
    tokenizer, settings = start.reader.tokenizer, options.losses["mlm"]
    return MaskedLanguage(
        data,
        start.network,
        special=list(tokenizer.all_special_ids),
        mask=mask_token(tokenizer, start.name),
        weight=settings["weight"],
        share=settings["share"],
        seed=options.seed,
    )


def _in_half(precision: str, kind: str) -> bool:
    if precision == "bfloat16" and kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise UserError("training.precision is bfloat16, for which this processor has no fast arithmetic; take float32")
    return precision == "bfloat16" or (precision == "auto" and kind == "cuda")


# The folder of a trained encoder: weights, card, and what was trained alone where that is not everything.


def write_encoder(
    folder: Path,
    name: str,
    plan: TrainingPlan,
    start: TorchEncoder,
    data: TrainingData,
    progress: Progress,
    trained: list[str],
) -> None:
    """The whole encoder, and where only parts were trained also these alone; `trained` are names of weights."""
    encoder, options, about = plan.encoder, plan.training, plan.about
    card = ModelCard(
        name=name,
        base=encoder.init,
        base_revision=start.revision,
        recipe=about.recipe,
        tables=about.tables,
        data={**{name: value for name, value in data.facts.items() if name != "left out"}, **data.facts["left out"]},
        held_out=about.held_out,
        seeds=[options.seed],
        options=dataclasses.asdict(options),
        audit=about.audit,
        results={name: (100 * progress.before[name], 100 * value) for name, value in progress.last.items()},
        hardware=hardware(start.network.device),
        versions={"citeweave": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
    model, tokenizer = start.network.model, start.reader.tokenizer
    model.eval()
    save_encoder(folder, start.network, tokenizer, start.settings, card=card)
    if options.parts != "heads" and (options.parts != "all" or options.frozen_layers):
        (folder / "delta").mkdir()
        own = [name for name in trained if not name.startswith(("language.", PREFIX))]
        save_delta(
            folder / "delta",
            model,
            start.settings,
            base=encoder.init,
            changed=own,
            kind=options.parts,
            card=card,
        )


def remember(weights: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Copies of the start model's weights, where some of them are wanted again; none where not."""
    own = {name: weight for name, weight in weights.items() if not name.startswith(PREFIX)}  # heads began at random
    return {name: weight.detach().clone() for name, weight in own.items()} if share else {}


def mix_with_start(weights: Mapping[str, Tensor], before: Mapping[str, Tensor], share: float) -> None:
    """Set every weight to share * start + (1 - share) * trained.

    >>> weights = {"w": torch.tensor([4.0])}
    >>> mix_with_start(weights, {"w": torch.tensor([2.0])}, 0.25)
    >>> weights["w"].item()
    3.5
    """
    with torch.no_grad():
        for name, start in before.items():
            weights[name].mul_(1 - share).add_(start, alpha=share)


def hardware(device: str) -> str:
    """What a run was computed on."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} threads"
