"""Embedding and training on one GPU against what the chip can do, beside transformers and sentence-transformers.

PYTHONPATH=src python benchmarks/gpu_speed.py                                     all, some five minutes on an H200
PYTHONPATH=src python benchmarks/gpu_speed.py --what embed,train --json out.json
PYTHONPATH=src python benchmarks/gpu_speed.py --what equality                     numbers of ours against float64
PYTHONPATH=src python benchmarks/gpu_speed.py --what profile                      where a training step's time goes

BERT-base's shape with random weights; texts of random tokens with the lengths of abstracts (mean 230, 16 to 512).
Per cent is of `--peak` TFLOP/s (790, a large bfloat16 product on an H200) and counts real tokens alone: a token of a text
of s tokens costs 24 h^2 L + 4 h L s, three times that in training, whatever is computed in truth (cls pooling skips most
of the last layer). Training is SPECTER's: 5 triplets an anchor, so 11 papers where the usual step encodes 15 texts;
triplet margin loss on the first token's state, AdamW, float32 weights, bfloat16 products. The usual step is transformers'
BertModel, padded, three forwards, autocast, scaled dot product attention. Needs numpy, torch, transformers; for the peers
sentence-transformers, whose own trainer needs `datasets`: without it its model and its loss run in a plain loop.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu_peers import loop_of_sentence_transformers, sentence_transformer, usual_encode, usual_step
from torch.nn.functional import triplet_margin_loss

from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network, speed_up
from citeweave.encoders.pooling import text_vectors

PAPERS = 16_384
VOCABULARY = 31_090
SPECTER_TRIPLETS = 684_000
EPOCHS = 2
MICRO_TRIPLETS = 125
"""Triplets of a part of ours: 25 groups, some 64 thousand tokens."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="equality,embed,train,peers")
    parser.add_argument("--peak", type=float, default=790.0, help="TFLOP/s")
    parser.add_argument("--poolings", default="mean,cls", help="of embedding")
    parser.add_argument("--budget", type=int, default=65_536, help="tokens of a batch of ours in embedding")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    what = options.what.split(",")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    tokens = make_texts(PAPERS, seed=0)
    lengths = np.array([len(ids) for ids in tokens])
    print(f"{len(tokens)} texts, mean {lengths.mean():.1f} tokens; a token's own text has {mean_context(lengths):.1f}")
    rows: list[Row] = []
    for name, measure in (("embed", embed), ("train", train), ("equality", equality), ("profile", profile)):
        if name in what:
            rows += measure(tokens, options, "peers" in what)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))


def make_texts(count: int, seed: int) -> list[np.ndarray]:
    """Lengths like those of abstracts; tokens by Zipf's law, so that embeddings meet the same rows as in texts."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(np.log(210.5), 0.45, count), 16, 512).astype(int)  # (texts,)
    ranks = np.minimum(draw.zipf(1.2, int(lengths.sum())), VOCABULARY - 1000)  # (tokens,)
    return [999 + ids for ids in np.split(ranks, np.cumsum(lengths)[:-1])]


def mean_context(lengths: np.ndarray) -> float:
    return float((lengths.astype(float) ** 2).sum() / lengths.sum())


def forward_flops(lengths: np.ndarray, config: Any) -> float:
    """24 h^2 L + 4 h L s a token, s the tokens of its own text."""
    h, layers, s = config.hidden_size, config.num_hidden_layers, lengths.astype(float)
    return float((s * (24 * h * h * layers + 4 * h * layers * s)).sum())


def new_model(**config: Any) -> Any:
    torch.manual_seed(0)
    shape = transformers.BertConfig(vocab_size=VOCABULARY, **config)
    return transformers.BertModel(shape, add_pooling_layer=False).cuda()


def timed(work: Callable[[], object], repeats: int) -> tuple[list[float], float]:
    """Seconds of every repeat, and GiB of the GPU at most; the caller has warmed up."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds, torch.cuda.max_memory_allocated() / 2**30


def first_call(work: Callable[[], object]) -> float:
    return timed(work, 1)[0][0]


def head(title: str, unit: str) -> None:
    print(f"\n{title}\n{'':66}{'per cent':>9}{unit:>12}{'GiB':>7}{'spread':>8}{'first s':>9}", flush=True)


def show(row: Row) -> None:
    """A line as soon as it is measured: a run that is cut short has not been for nothing."""
    numbers = f"{row['percent']:9.1f}{row['rate']:12,.0f}{row['gib']:7.1f}{row['spread']:8.1%}{row['first']:9.1f}"
    print(f"{row['name']:66}{numbers}", flush=True)


def ratios(rows: list[Row]) -> list[Row]:
    print("ratio to the last line: " + ", ".join(f"{row['rate'] / rows[-1]['rate']:.2f}" for row in rows), flush=True)
    return rows


def row_of(name: str, seconds: list[float], gib: float, flops: float, count: int, peak: float, first: float) -> Row:
    middle = float(np.median(seconds))
    spread = (max(seconds) - min(seconds)) / middle
    percent = 100 * flops / middle / peak / 1e12
    return {"name": name, "percent": percent, "rate": count / middle, "gib": gib, "spread": spread, "first": first}


def embed(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    model = new_model().to(torch.bfloat16).eval()
    flops = forward_flops(np.array([len(ids) for ids in tokens]), model.config)
    rows: list[Row] = []
    head("Embedding", "papers/s")

    def measure(name: str, work: Callable[[], object], warm_up: Callable[[], object] | None = None) -> None:
        first = first_call(warm_up or work)
        seconds, gib = timed(work, 2)
        rows.append(row_of(name, seconds, gib, flops, len(tokens), options.peak, first))
        show(rows[-1])

    plain = Network(model, "cuda", 0)
    for name, network in (("packed, compiled", speed_up(plain)), ("packed", plain)):
        for pooling in options.poolings.split(",") if network.compiled else ("mean",):
            encoder = TorchEncoder("", "", None, network, Settings(pooling, 512), options.budget)  # type: ignore[arg-type]
            measure(f"citeweave, {name}, {pooling}", lambda encoder=encoder: encoder.encode_tokens(tokens))
    if peers:
        if importlib.util.find_spec("sentence_transformers"):
            peer, texts = sentence_transformer(model, tokens, "mean")
            for size in (256, 32):
                encode = lambda size=size: peer.encode(texts, batch_size=size)  # noqa: E731
                measure(
                    f"sentence-transformers encode, bf16, batches of {size}", encode, lambda: peer.encode(texts[:512])
                )
        measure("usual: transformers, padded, sorted, bf16", lambda: usual_encode(model, tokens, 32_768))
    return ratios(rows)


def make_triplets(papers: int, groups: int, seed: int) -> np.ndarray:
    """Rows (triplets, 3) of anchor, positive, negative: 5 triplets of an anchor in a row, 11 different papers."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(groups):
        chosen = draw.choice(papers, 11, replace=False)
        found.append(np.stack([np.repeat(chosen[0], 5), chosen[1:6], chosen[6:]], axis=1))
    return np.concatenate(found)


def parts_of(triplets: np.ndarray) -> Iterator[np.ndarray]:
    yield from (triplets[start : start + MICRO_TRIPLETS] for start in range(0, len(triplets), MICRO_TRIPLETS))


def our_step(network: Network, tokens: list[np.ndarray], triplets: np.ndarray, optimizer: Any) -> None:
    """Every paper of a part once; parts are whole groups but at the ends of a batch."""
    settings = Settings("cls", 512)
    for part in parts_of(triplets):
        papers, places = np.unique(part, return_inverse=True)
        places_there = torch.from_numpy(places.reshape(part.shape)).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            vectors = text_vectors(network, [tokens[row] for row in papers], settings)  # (papers, dimension)
        loss = triplet_margin_loss(*vectors[places_there].unbind(1), reduction="sum") / len(triplets)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def train(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    rows: list[Row] = []
    for batch, steps in ((32, 60), (1024, 2)):
        head(f"Training, {batch} triplets a step", "triplets/s")
        here = ratios(train_at(tokens, batch, steps, peers, options.peak))
        rows += here
        minutes = SPECTER_TRIPLETS * EPOCHS / here[0]["rate"] / 60
        print(f"SPECTER's training, {SPECTER_TRIPLETS} triplets, {EPOCHS} epochs, at this rate: {minutes:.1f} minutes")
    return rows


def train_at(tokens: list[np.ndarray], batch: int, steps: int, peers: bool, peak: float) -> list[Row]:
    triplets = make_triplets(len(tokens), batch * (steps + 2) // 5 + 1, seed=1)
    batches = [triplets[start * batch : (start + 1) * batch] for start in range(steps + 2)]
    lengths = np.array([len(ids) for ids in tokens])
    rows: list[Row] = []

    def measure(name: str, step: Callable[[Any, np.ndarray, Any], None], once: bool, some: int = steps) -> None:
        model = new_model().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
        first = first_call(lambda: step(model, batches[-1][:160], optimizer))
        for one in batches[-2:] * (4 if batch <= 128 else 1):  # the first steps of every kind are slow
            step(model, one[:160], optimizer)
        seconds, gib = timed(lambda: [step(model, one, optimizer) for one in batches[:some]], 2)
        real = sum(
            forward_flops(lengths[np.unique(one) if once else one.ravel()], model.config) for one in batches[:some]
        )
        rows.append(row_of(name, seconds, gib, 3 * real, batch * some, peak, first))
        show(rows[-1])

    def compiled(model: Any, one: np.ndarray, optimizer: Any) -> None:
        our_step(Network(model, "cuda", 0, compiled=True), tokens, one, optimizer)

    def uncompiled(model: Any, one: np.ndarray, optimizer: Any) -> None:
        our_step(Network(model, "cuda", 0), tokens, one, optimizer)

    measure("citeweave, packed, papers once, compiled", compiled, True)
    measure("citeweave, packed, papers once", uncompiled, True)
    if peers:
        few = max(1, steps // 3)
        if importlib.util.find_spec("sentence_transformers") and batch <= 128:
            name = "sentence-transformers, TripletLoss in a plain loop, 32 at a time"
            measure(name, loop_of_sentence_transformers(tokens, 32), False, few)
        if batch > 128:
            measure("usual: padded, three forwards, 128 at a time", usual_step(tokens, 128), False, few)
        measure("usual: padded, three forwards, 32 at a time", usual_step(tokens, 32), False, few)
    return rows


def equality(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    """Vectors and gradients of four layers, without dropout: distance to float64 over its length."""
    batch, rows = tokens[:48], []
    print("\nEquality: |found - float64| / |float64|, vectors and gradients of all weights")
    for pooling in ("mean", "cls"):
        wanted = None
        for name in ("float64, padded", "float32, padded", "bf16, padded", "bf16, packed", "bf16, packed, compiled"):
            model = new_model(num_hidden_layers=4).eval()
            model = model.double() if "64" in name else model
            network = Network(model, "cuda", 0, packed=None if "packed" in name else False)
            network = speed_up(network) if "compiled" in name else network
            with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in name):
                states = network.states(batch, first_only=pooling == "cls")
                assert network.packs == ("packed" in name)
                raw = states.mean() if pooling == "mean" else states.cls()
            vectors = double_vectors(network, batch, pooling) if "64" in name else raw
            (vectors.double() * probe(vectors)).sum().backward()
            grads = torch.cat([p.grad.double().ravel() for p in model.parameters() if p.grad is not None])
            found = (vectors.detach().double(), grads)
            wanted = wanted or found
            errors = [float((one - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True)]
            rows.append({"name": f"equality: {pooling}, {name}", "vectors": errors[0], "gradients": errors[1]})
            print(f"{pooling:6}{name:28}{errors[0]:12.2e}{errors[1]:12.2e}", flush=True)
    return rows


def profile(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    """Where the time of a training step goes: kernels on the GPU, against the clock on the wall."""
    from torch.profiler import ProfilerActivity

    model = new_model().train()
    network = Network(model, "cuda", 0, compiled=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    for batch in (32, MICRO_TRIPLETS):
        triplets = make_triplets(len(tokens), batch // 5 + 1, seed=2)[:batch]

        def step(triplets: np.ndarray = triplets) -> None:
            our_step(network, tokens, triplets, optimizer)

        timed(step, 3)
        wall = float(np.median(timed(lambda: [step() for _ in range(5)], 3)[0])) / 5
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
            step()
            torch.cuda.synchronize()
        events = sorted(found.key_averages(), key=lambda event: -event.device_time_total)
        total = sum(event.device_time_total for event in events) / 1e3
        print(f"\nA step of {batch} triplets: {1e3 * wall:.2f} ms; kernels {total:.2f} ms")
        for event in events[:20]:
            print(f"{event.device_time_total / 1e3:9.3f} ms {event.count:5}  {event.key[:90]}", flush=True)
    return []


def probe(vectors: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator("cuda").manual_seed(0)
    return torch.randn(vectors.shape, generator=draw, device="cuda", dtype=torch.float64)


def double_vectors(network: Network, batch: list[np.ndarray], pooling: str) -> torch.Tensor:
    """Pooling in float64, which ours does not have."""
    network.model.zero_grad()
    (states,), mask = network.padded(batch)
    weights = mask.unsqueeze(-1).double()
    return (states * weights).sum(1) / weights.sum(1) if pooling == "mean" else states[:, 0]


if __name__ == "__main__":
    main()
