"""Embedding and training on one GPU against what the chip can do, beside transformers and sentence-transformers.

PYTHONPATH=src python benchmarks/gpu_speed.py                                     all, some five minutes on an H200
PYTHONPATH=src python benchmarks/gpu_speed.py --what embed,train --json out.json
PYTHONPATH=src python benchmarks/gpu_speed.py --what equality                     numbers of ours against float64
PYTHONPATH=src python benchmarks/gpu_speed.py --what profile                      where the time goes
PYTHONPATH=src python benchmarks/gpu_speed.py --what kernels                      what fuses, against float64 and the clock
PYTHONPATH=src python benchmarks/gpu_speed.py --what precision,disk --model FOLDER --texts abstracts.txt
PYTHONPATH=src python benchmarks/gpu_speed.py --what train --batches 32 --variants plain,compiled,graphs,autotune,combo

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
import copy
import dataclasses
import functools
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu_peers import loop_of_sentence_transformers, sentence_transformer, usual_encode, usual_step
from torch.nn.functional import triplet_margin_loss

from citeweave import import_papers
from citeweave.encoders import float8, packed_batch
from citeweave.encoders import packed as packing
from citeweave.encoders.embed import embed_papers
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.float8 import float8_network
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
    parser.add_argument("--batches", default="32,1024", help="triplets of a training step")
    parser.add_argument("--variants", default="compiled,plain", help=f"of training: {', '.join(VARIANTS)}")
    parser.add_argument("--model", default="minilm", help="for precision and disk: a name or a folder")
    parser.add_argument("--texts", type=Path, help="for precision and disk: a text file, one abstract per line")
    parser.add_argument("--copies", type=int, default=16, help="for disk: of every abstract")
    parser.add_argument("--dtype", default="bfloat16", help="for disk")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    what = options.what.split(",")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    tokens = make_texts(PAPERS, seed=0)
    lengths = np.array([len(ids) for ids in tokens])
    print(f"{len(tokens)} texts, mean {lengths.mean():.1f} tokens; a token's own text has {mean_context(lengths):.1f}")
    rows: list[Row] = []
    for name, measure in MEASUREMENTS.items():
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
    cosine = f"   cosine {row['cosine'][0]:.5f}, at least {row['cosine'][1]:.5f}" if "cosine" in row else ""
    print(f"{row['name']:66}{numbers}{cosine}", flush=True)


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

    def measure(
        name: str, work: Callable[[], object], warm_up: Callable[[], object] | None = None, **more: object
    ) -> None:
        first = first_call(warm_up or work)
        seconds, gib = timed(work, 2)
        rows.append(row_of(name, seconds, gib, flops, len(tokens), options.peak, first) | more)
        show(rows[-1])

    def encoder(network: Network, pooling: str) -> TorchEncoder:
        return TorchEncoder("", "", None, network, Settings(pooling, 512), options.budget)  # type: ignore[arg-type]

    plain, few = Network(model, "cuda", 0), tokens[:512]
    exact = Network(copy.deepcopy(model).float(), "cuda", 0, packed=False)
    small = float8_network(plain, "BERT")
    networks = {"compiled": speed_up(plain), "plain": plain, "float8": small, "float8 in all layers": small}
    for pooling in options.poolings.split(","):
        wanted = encoder(exact, pooling).encode_tokens(few)
        for name, network in networks.items():
            float8.EXACT_SHARE = 0.0 if "all" in name else 0.25
            ours = encoder(network, pooling)
            found = cosines(ours.encode_tokens(few), wanted) if name != "compiled" else {}
            measure(f"citeweave, packed, {name}, {pooling}", lambda ours=ours: ours.encode_tokens(tokens), **found)
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


def cosines(found: np.ndarray, wanted: np.ndarray) -> dict[str, tuple[float, float]]:
    """The mean and the smallest cosine of two matrices of vectors, row by row."""
    products = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)  # (texts,)
    return {"cosine": (float(products.mean()), float(products.min()))}


def precision(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    """A real model over real abstracts: speed and cosine to float32 in every precision."""
    texts = options.texts.read_text().splitlines()
    wanted = load_encoder(options.model, device="cuda").encode(texts)
    rows: list[Row] = []
    head(f"{options.model}, {len(texts)} texts, tokenized as they are read", "papers/s")
    ways = [("bfloat16", 0.0, True), ("float8", 0.0, True), ("float8", 0.25, False), ("float8", 0.25, True)]
    for dtype, share, fast in ways:
        float8.EXACT_SHARE, float8.FAST_SUMS = share, fast
        encoder = load_encoder(options.model, device="cuda", dtype=dtype)
        tokens = encoder.reader.read(texts)
        flops = forward_flops(np.array([len(ids) for ids in tokens]), encoder.network.model.config)
        found = encoder.encode_tokens(tokens)
        seconds, gib = timed(lambda encoder=encoder, tokens=tokens: encoder.encode_tokens(tokens), 3)
        name = f"{dtype}, {share:.0%} of the layers in bfloat16, {'fast' if fast else 'exact'} sums"
        rows.append(row_of(name, seconds, gib, flops, len(texts), options.peak, 0.0) | cosines(found, wanted))
        show(rows[-1])
    return rows


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


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compiled": {},
    "graphs": {"mode": "reduce-overhead"},
    "autotune": {"mode": "max-autotune-no-cudagraphs"},
    "combo": {"options": {"combo_kernels": True, "benchmark_combo_kernel": False}},
}
"""Ways to train -> options of torch.compile. CUDA graphs are recorded for every shape, so these batches have few shapes."""


@contextmanager
def variant(name: str) -> Iterator[None]:
    before = packed_batch.pack, packed_batch.STEP, packed_batch.ROUND_LONGEST
    torch.compiler.reset()
    packing._compiled.cache_clear()
    packing.COMPILER.update(VARIANTS[name])
    if name == "graphs":
        packed_batch.STEP, packed_batch.ROUND_LONGEST, pack = 1024, 1024, packed_batch.pack
        packed_batch.pack = lambda batch, pad, device: in_buckets(pack, batch, pad, device)
    try:
        yield
    finally:
        packed_batch.pack, packed_batch.STEP, packed_batch.ROUND_LONGEST = before
        packing.COMPILER.clear()
        packing._compiled.cache_clear()


def in_buckets(
    pack: Callable[..., packed_batch.Packed], batch: list[np.ndarray], pad: int, device: str
) -> packed_batch.Packed:
    """Pack a batch with as many texts of one token behind it, and as many empty tiles, as give few different shapes."""
    packed = pack([*batch, *[np.array([pad])] * (-len(batch) % 32)], pad, device)
    tiles = torch.nn.functional.pad(packed.tiles, (0, 0, 0, -len(packed.tiles) % 128))  # (tiles, 3)
    return dataclasses.replace(packed, tiles=tiles)


def train(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    rows: list[Row] = []
    for batch in map(int, options.batches.split(",")):
        head(f"Training, {batch} triplets a step", "triplets/s")
        here = ratios(train_at(tokens, batch, max(2, 1920 // batch), peers, options))
        rows += here
        minutes = SPECTER_TRIPLETS * EPOCHS / here[0]["rate"] / 60
        print(f"SPECTER's training, {SPECTER_TRIPLETS} triplets, {EPOCHS} epochs, at this rate: {minutes:.1f} minutes")
    return rows


def train_at(tokens: list[np.ndarray], batch: int, steps: int, peers: bool, options: argparse.Namespace) -> list[Row]:
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
        rows.append(row_of(name, seconds, gib, 3 * real, batch * some, options.peak, first))
        show(rows[-1])

    for name in options.variants.split(","):

        def ours(model: Any, one: np.ndarray, optimizer: Any, compiled: bool = name != "plain") -> None:
            torch.compiler.cudagraph_mark_step_begin()
            our_step(Network(model, "cuda", 0, compiled=compiled), tokens, one, optimizer)

        try:
            with variant(name):
                measure(f"citeweave, packed, papers once, {name}", ours, True)
        except Exception as error:  # compilers fail in many ways, and the other variants are wanted all the same
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
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


def disk(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    """From a corpus on disk to a folder of vectors, tokenizing included, beside the network alone."""
    texts = options.texts.read_text().splitlines() * options.copies
    encoder = load_encoder(options.model, device="cuda", dtype=options.dtype)
    read = encoder.reader.read(texts)
    flops = forward_flops(np.array([len(ids) for ids in read]), encoder.network.model.config)
    encoder.encode_tokens(read[:4096])
    head(f"{options.model}, {len(texts)} texts, {options.dtype}", "papers/s")
    with tempfile.TemporaryDirectory() as made:
        papers = [{"id": str(number), "title": "", "abstract": text} for number, text in enumerate(texts)]
        corpus = import_papers(papers, Path(made) / "corpus").corpus
        ways = {
            "the network alone": lambda: encoder.encode_tokens(read),
            "from disk to disk": lambda: embed_papers(corpus, encoder, Path(made) / "vectors"),
        }
        rows = []
        for name, work in ways.items():
            seconds, gib = timed(work, 1)
            rows.append(row_of(name, seconds, gib, flops, len(texts), options.peak, 0.0))
            show(rows[-1])
    return ratios(rows[::-1])


def profile(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    """Where the time of training steps and of embedding goes: kernels on the GPU, against the clock on the wall."""
    from torch.profiler import ProfilerActivity

    model = new_model().train()
    network = Network(model, "cuda", 0, compiled="plain" not in options.variants)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    embedding = Network(new_model().to(torch.bfloat16).eval(), "cuda", 0)
    encoder = TorchEncoder("", "", None, embedding, Settings("mean", 512), options.budget)  # type: ignore[arg-type]
    works: dict[str, Callable[[], object]] = {"embedding of 4,096 texts": lambda: encoder.encode_tokens(tokens[:4096])}
    for batch in (32, MICRO_TRIPLETS):
        triplets = make_triplets(len(tokens), batch // 5 + 1, seed=2)[:batch]
        step = functools.partial(our_step, network, tokens, triplets, optimizer)
        works[f"a step of {batch} triplets"] = step
    for name, work in works.items():
        timed(work, 3)
        wall = float(np.median(timed(work, 9)[0]))
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
            work()
            torch.cuda.synchronize()
        events = sorted(found.key_averages(), key=lambda event: -event.device_time_total)
        total = sum(event.device_time_total for event in events) / 1e3
        print(f"\n{name}: {1e3 * wall:.2f} ms; kernels {total:.2f} ms")
        for event in events[:20]:
            print(f"{event.device_time_total / 1e3:9.3f} ms {event.count:5}  {event.key[:90]}", flush=True)
    return []


def kernels(tokens: list[np.ndarray], options: argparse.Namespace, peers: bool) -> list[Row]:
    """Parts of a layer of 65,536 tokens: relative error to float64, beside that of rounding, and milliseconds."""
    from citeweave.encoders import float8, triton_layers

    draw = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(shape, generator=draw, device="cuda")).bfloat16()

    states, other, weight = random(65_536, 768), random(65_536, 768), random(3072, 768, scale=0.05)
    bias, gain, shift = random(3072), random(768), random(768)
    product, rows = float8.quantize_weight(weight, bias), float8.quantize(states)
    wide = torch.nn.functional.linear(states, weight, bias)  # (tokens, 3072)
    double = torch.nn.functional.linear(states.double(), weight.double(), bias.double())
    norm = torch.nn.functional.layer_norm(
        states.double() + other.double(), (768,), gain.double(), shift.double(), 1e-12
    )

    def real(rows: float8.Float8Rows) -> torch.Tensor:
        return rows.codes.float() * rows.scales

    gelu = torch.nn.functional.gelu
    with torch.no_grad():
        for name, work, wanted, read in (
            ("rounding of GELU to bf16", lambda: gelu(double).bfloat16(), gelu(double), None),
            ("linear, then GELU", lambda: gelu(torch.nn.functional.linear(states, weight, bias)), gelu(double), None),
            ("linear with GELU inside", lambda: packing._linear_gelu(states, weight, bias), gelu(double), None),
            ("sum, then norm", lambda: norm_in_torch(states, other, gain, shift), norm, None),
            ("sum and norm", lambda: triton_layers.add_norm(states, other, gain, shift, 1e-12), norm, None),
            ("sum, norm and rows", lambda: float8._add_norm(states, other, gain, shift, 1e-12)[1], norm, real),
            ("rows", lambda: float8.quantize(states), states.double(), real),
            ("GELU and rows", lambda: float8.quantize(wide, activates=True), gelu(wide.double()), real),
            ("linear in float8", lambda: float8.multiply(rows, product), double, None),
        ):
            found = (read or (lambda one: one))(work()).double()
            error = float((found - wanted).norm() / wanted.norm())
            del found
            seconds, _ = timed(lambda work=work: [work() for _ in range(20)], 3)
            print(f"{name:28}{error:12.2e}{1e3 * min(seconds) / 20:9.3f} ms", flush=True)
    return []


def norm_in_torch(states: torch.Tensor, other: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(states + other, gain.shape, gain, shift, 1e-12)


def probe(vectors: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator("cuda").manual_seed(0)
    return torch.randn(vectors.shape, generator=draw, device="cuda", dtype=torch.float64)


def double_vectors(network: Network, batch: list[np.ndarray], pooling: str) -> torch.Tensor:
    """Pooling in float64, which ours does not have."""
    network.model.zero_grad()
    (states,), mask = network.padded(batch)
    weights = mask.unsqueeze(-1).double()
    return (states * weights).sum(1) / weights.sum(1) if pooling == "mean" else states[:, 0]


MEASUREMENTS = {
    "kernels": kernels, "embed": embed, "precision": precision, "disk": disk, "train": train, "equality": equality, "profile": profile,
}  # fmt: skip


if __name__ == "__main__":
    main()
