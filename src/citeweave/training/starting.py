"""From a start model, data and options to a run that the loop can take.

    start = load_start(EncoderOptions(init="minilm"), "cpu")
    run = make_run(start, data, Plan(), Processes(), QUIET)

Does not train and reads no samples.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from citeweave.encoders.aspects import find_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.network import speed_up
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.progress import Reporter
from citeweave.training.aspect_heads import TrainedHeads, make_heads
from citeweave.training.data import TrainingData
from citeweave.training.frozen import frozen_vectors
from citeweave.training.masked_language import MaskedLanguage, mask_token
from citeweave.training.objective import Material, Objective
from citeweave.training.options import EncoderOptions, TrainingOptions
from citeweave.training.partial import choose_parts
from citeweave.training.plan import Plan
from citeweave.training.processes import Processes
from citeweave.training.sharding import shard_model, take_whole
from citeweave.training.stepping import Stepper
from citeweave.training.trainer import Run

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


def make_run(start: TorchEncoder, data: TrainingData, plan: Plan, processes: Processes, reporter: Reporter) -> Run:
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
        Objective(options.losses, Material(data.relatives, teacher, data.sentences, data.alignment, heads, data.rules)),
        options.micro_tokens or MICRO_TOKENS[kind],
        _in_half(options.precision, kind),
        options.seed,
        processes,
        language,
        frozen,
        sharded,
    )
    return Run(stepper, options, weights, reporter)


def whole_encoder(start: TorchEncoder, run: Run, plan: Plan) -> TorchEncoder:
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


def _heads(start: TorchEncoder, data: TrainingData, plan: Plan) -> TrainedHeads | None:
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
