"""Training on sentences on one GPU against what the chip can do: ASPIRE's losses beside one vector a paper.

    PYTHONPATH=src python benchmarks/gpu_sentences.py [--batches 30,240] [--steps 20] [--no-compiled] [--check] [--json out.json]

BERT-base's shape with random weights, papers of random tokens with the lengths of abstracts (mean 230) in sentences of
28 tokens. Layers are compiled, as with `training.compiled`, unless `--no-compiled` is given. A step is the trainer's own: a batch of pairs, every paper read once, packed, the loss over the sentences of
each pair and of a negative of the batch, backward, AdamW; float32 weights, bfloat16 products. Per cent is of `--peak`
TFLOP/s and counts as `gpu_speed.py` does. The last row of each block, one vector a paper with in-batch negatives, is
what the sentences are compared with. Needs numpy, torch and transformers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_speed import first_call, forward_flops, head, make_texts, new_model, ratios, row_of, show, timed

from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network, speed_up
from citeweave.encoders.tokens import TokenStore
from citeweave.training.data import (
    AnchorGroups,
    Batches,
    PaperLists,
    SentenceSpans,
    TrainingData,
    make_alignment,
    paper_rows,
)
from citeweave.training.encoder_task import Stepper
from citeweave.training.objective import LossInputs, Objective
from citeweave.training.options import TrainingOptions

PAPERS, SENTENCE = 8192, 28

Losses = Mapping[str, Mapping[str, Any]]
SYSTEMS: Mapping[str, Losses] = {
    "aspire_ot: transport": {"sentence_triplet": {"distance": "transport"}},
    "aspire_ot: transport as the peer": {"sentence_triplet": {"distance": "transport", "mode": "geomloss"}},
    "aspire_ts_ot: aligned and transport": {"aligned_triplet": {}, "sentence_triplet": {"distance": "transport"}},
    "aspire_ts: aligned sentences": {"aligned_triplet": {}},
    "aspire_max: nearest sentences": {"sentence_triplet": {"distance": "single"}},
    "aspire_att: attention": {"sentence_triplet": {"distance": "attention"}},
    "sentences in the batch, mean of the best": {"sentence_in_batch": {}},
    "one vector a paper, in-batch negatives": {"in_batch": {}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="30,240", help="pairs a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peak", type=float, default=790.0, help="TFLOP/s")
    parser.add_argument(
        "--compiled", action=argparse.BooleanOptionalAction, default=True, help="compile the layers first"
    )
    parser.add_argument("--systems", default="", help="only systems whose name contains this")
    parser.add_argument(
        "--check", action="store_true", help="losses and gradients on the GPU against the CPU's, no times"
    )
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    data, rows = make_data(), []
    if asked.check:
        check(data, asked)
        return
    for batch in map(int, asked.batches.split(",")):
        head(f"Training on sentences, {batch} pairs a step", "pairs/s")
        chosen = {name: losses for name, losses in SYSTEMS.items() if asked.systems in name}
        found = [measure(name, losses, data, batch, asked) for name, losses in chosen.items()]
        rows += [{**row, "batch": batch} for row in ratios(found)]
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


def make_data() -> TrainingData:
    """Papers in pairs, each paper in one pair, cut into sentences, the first ones aligned."""
    texts = make_texts(PAPERS, seed=0)
    lengths = np.array([len(ids) for ids in texts])
    counts = np.maximum(1, lengths // SENTENCE)  # (papers,)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)  # (sentences,)
    starts = within * SENTENCE
    ends = np.minimum(starts + SENTENCE, np.repeat(lengths, counts))
    tokens = TokenStore(np.concatenate(texts).astype(np.uint16), np.concatenate([[0], np.cumsum(lengths)]))
    pairs = np.random.default_rng(1).permutation(PAPERS).reshape(-1, 2)
    none = PaperLists(np.zeros(len(pairs) + 1, np.int64), np.zeros(0, np.int64))
    groups = AnchorGroups(pairs[:, 0], PaperLists(np.arange(len(pairs) + 1), pairs[:, 1]), none)
    aligned = make_alignment(pairs[:, 0], pairs[:, 1], np.zeros((len(pairs), 2), np.int64))
    spans = SentenceSpans(offsets, starts, ends, within)
    return TrainingData(np.arange(PAPERS), tokens, groups, groups, sentences=spans, alignment=aligned)


def check(data: TrainingData, asked: argparse.Namespace) -> None:
    """Print how far the losses and their gradients are from those on the CPU, over their length; random vectors."""
    for name, losses in SYSTEMS.items():
        options, objective = prepare(losses, data)
        spans = data.sentences if options.reads_sentences else None
        for batch in map(int, asked.batches.split(",")):
            chosen = Batches(data.groups, replace(options, batch=batch)).at(0)
            size = int(paper_rows(spans, chosen.papers).offsets[-1]), 768
            vectors = torch.randn(size, generator=torch.Generator().manual_seed(0)).double() / 20  # distances near 2
            found = []
            for device in ("cuda", "cpu"):
                own = vectors.to(device).requires_grad_()
                loss = objective(own, chosen, chosen)
                loss.backward()
                found.append((loss.detach().cpu().double()[None], own.grad.cpu().double()))
            apart = [float((one - other).norm() / other.norm()) for one, other in zip(*found, strict=True)]
            verdict = "PASS" if max(apart) < 1e-5 else "FAIL"
            print(f"{verdict} {name:45}{batch:5} pairs: loss {apart[0]:.1e}, gradient {apart[1]:.1e} apart", flush=True)


def prepare(losses: Losses, data: TrainingData) -> tuple[TrainingOptions, Objective]:
    without = {loss: {**settings, "relatives": False} for loss, settings in losses.items()}
    options = TrainingOptions(losses=without, unit="groups")
    spans = data.sentences if options.reads_sentences else None
    return options, Objective(options.losses, LossInputs(sentences=spans, alignment=data.alignment))


def measure(name: str, losses: Losses, data: TrainingData, batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    options, objective = prepare(losses, data)
    options = replace(options, batch=batch)
    model = new_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    spans = data.sentences if options.reads_sentences else None
    shown = TrainingData(data.rows, data.tokens, data.groups, data.groups, sentences=spans, alignment=data.alignment)
    plain = Network(model, "cuda", 0)
    network = speed_up(plain) if asked.compiled else plain
    stepper = Stepper(shown, network, Settings("cls", 512), objective, 131_072, True, 0)
    batches = Batches(data.groups, options)

    def step(number: int) -> None:
        stepper.backward(batches.at(number), number)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    first = first_call(lambda: step(0))
    for number in range(3):
        step(number)
    steps = max(2, min(asked.steps, batches.per_epoch))
    seconds, gib = timed(lambda: [step(number) for number in range(steps)], 3)
    lengths = data.tokens.lengths()
    real = sum(forward_flops(lengths[batches.at(number).papers], model.config) for number in range(steps))
    row = row_of(name, seconds, gib, 3 * real, batch * steps, asked.peak, first)
    show(row)
    return row


if __name__ == "__main__":
    main()
