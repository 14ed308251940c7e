"""Paths of CUDA that no test runs: low memory, all devices, half precision, worker processes, many tokens a step.

PYTHONPATH=src python benchmarks/gpu_paths.py                         PASS or FAIL and the facts of every path, a few minutes
PYTHONPATH=src python benchmarks/gpu_paths.py --only bitfit,workers
PYTHONPATH=src python benchmarks/gpu_paths.py --device cpu            smaller, without what needs a GPU

    embed-memory     most of the card is taken: embedding halves its batches and gives the same vectors
    train-memory     the same in training: the error names a smaller training.micro_tokens, with which the run resumes
    all-devices      `embed --device cuda:all`
    bfloat16         `embed --precision bfloat16`, cosine to float32 at least 0.999
    workers          shards by two worker processes, and by `embed --on ray:local` where Ray is installed
    bitfit           training of biases with more than 65,536 tokens a step, at once and in parts

Makes a synthetic corpus and a BERT with random weights in a temporary folder. Exit code 1 where a path fails.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import multiprocessing
import os
import string
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import transformers

from citeweave.core.errors import CiteweaveError
from citeweave.core.executor import ShardTask, ShardWorker, WorkerFailure
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.encoders.embed import EmbeddingOptions, embed_papers
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.shards import EncoderSpec, RemoteShards
from citeweave.graph.citations import CitationGraph, build_graph
from citeweave.mining.inputs import MiningInputs
from citeweave.mining.mine import mine_samples
from citeweave.mining.rules import parse_rules
from citeweave.mining.samples import Samples
from citeweave.pipeline.recipe import load_recipe
from citeweave.training.data import Batch
from citeweave.training.encoder_task import Stepper
from citeweave.training.load_data import DataSources
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.train import train_encoder
from citeweave.vectors.vectors import Vectors

SPARE = 1 << 30
"""Bytes of the GPU that are left where memory is short."""

BATCH = {"cpu": 4, "cuda": 192}
"""Groups a step; on a GPU these are more than 65,536 tokens."""


@dataclass(frozen=True)
class Bench:
    """A corpus, its samples and a start model in a folder, and the device of a run."""

    folder: Path
    device: str

    @cached_property
    def corpus(self) -> Corpus:
        papers = 6000 if self.device == "cuda" else 150
        return synthesize(self.folder / "corpus", SyntheticOptions(papers=papers), workers=1)

    @cached_property
    def graph(self) -> CitationGraph:
        return build_graph(self.corpus, self.folder / "graph")

    @cached_property
    def samples(self) -> Samples:
        anchors = 600 if self.device == "cuda" else 30
        rules = parse_rules(load_recipe("specter", [f"mining.anchors={anchors}"]).table("mining"))
        return mine_samples(self.corpus, rules, self.folder / "samples", MiningInputs(graph=self.graph))

    @cached_property
    def model(self) -> Path:
        """A BERT of random weights that reads letters, with four layers of 256 numbers; smaller on a CPU."""
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *string.digits]
        pieces += [f"##{piece}" for piece in pieces[5:]]
        vocabulary, size = self.folder / "vocab.txt", 256 if self.device == "cuda" else 32
        vocabulary.write_text("\n".join(pieces))
        tokenizer = transformers.BertTokenizerFast(vocab_file=str(vocabulary), model_max_length=512)
        torch.manual_seed(0)
        shape = transformers.BertConfig(
            vocab_size=len(tokenizer), hidden_size=size, num_hidden_layers=4, num_attention_heads=size // 16,
            intermediate_size=4 * size, max_position_embeddings=512, initializer_range=0.05,
        )  # fmt: skip
        transformers.BertModel(shape).save_pretrained(self.folder / "model")
        tokenizer.save_pretrained(self.folder / "model")
        return self.folder / "model"

    @cached_property
    def vectors(self) -> np.ndarray:
        """The vectors of the papers in float32 on the device, by the usual path."""
        return self.embed("usual", 8192)

    def embed(self, name: str, batch_tokens: int) -> np.ndarray:
        encoder = load_encoder(str(self.model), device=self.device, batch_tokens=batch_tokens)
        return np.array(embed_papers(self.corpus, encoder, self.folder / name).matrix)

    def embed_by_command(self, name: str, *options: str) -> np.ndarray:
        command = [sys.executable, "-m", "citeweave", "embed", str(self.corpus.folder), "--runtime", "torch"]
        command += ["--model", str(self.model), "--output", str(self.folder / name), "--quiet", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-500:]}"
        return np.array(Vectors.open(self.folder / name).matrix)

    def train(self, name: str, *, seen: int = 0, **options: object) -> Path:
        """Train two steps and return the folder of the model."""
        usual = {"batch": BATCH[self.device], "unit": "groups", "steps": 2, "validation": 0.0, "dropout": 0.0}
        # with an epsilon of 1 AdamW's steps are as long as the gradients, so that rounding stays small
        usual |= {"checkpoint_every": 1, "learning_rate": 0.1, "epsilon": 1.0, "micro_tokens": seen}
        plan = TrainingPlan(EncoderOptions(init=str(self.model)), TrainingOptions(**{**usual, **options}))  # type: ignore[arg-type]
        sources = DataSources(graph=self.graph)
        train_encoder(self.corpus, self.samples, self.folder / name, plan, sources=sources, device=self.device)
        return self.folder / name

    def weights(self, folder: Path) -> dict[str, torch.Tensor]:
        return load_encoder(str(folder), device="cpu").network.model.state_dict()


@contextmanager
def short_of_memory() -> Iterator[torch.Tensor]:
    """Take all memory of the GPU but `SPARE`."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - SPARE, dtype=torch.uint8, device="cuda")
    try:
        yield taken
    finally:
        del taken
        torch.cuda.empty_cache()


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest distance of two papers' vectors, over the length of the longest."""
    assert one.shape == other.shape and np.isfinite(one).all(), f"{one.shape} and {other.shape}"
    return float(np.linalg.norm(one - other, axis=1).max() / np.linalg.norm(other, axis=1).max())


def close(one: np.ndarray, other: np.ndarray, limit: float = 1e-3) -> str:
    distance = apart(one, other)
    assert distance <= limit, f"vectors are {distance:.1e} apart, over {limit:.0e}"
    return f"{len(one):,} vectors, {distance:.1e} apart"


def embed_memory(bench: Bench) -> str:
    expected, budget = bench.vectors, 1 << 21
    with short_of_memory():
        found = bench.embed("short", budget)
    manifest = Vectors.open(bench.folder / "short").manifest
    halved = manifest.facts.get("out_of_memory", 0) if manifest else 0
    assert halved, "the budget was never halved"
    return f"budget of {budget:,} tokens halved {halved} times; {close(found, expected)}"


def train_memory(bench: Bench) -> str:
    expected = bench.train("plenty", seen=4096)
    with short_of_memory():
        try:
            bench.train("scarce", seen=1 << 22)
        except CiteweaveError as error:
            message = str(error)
        else:
            raise AssertionError("a step of all tokens at once fitted into the memory that was left")
        assert "out of memory at step" in message and "micro_tokens" in message, message
        gc.collect()
        torch.cuda.empty_cache()
        found = bench.train("scarce", seen=4096)
    distance = changes_apart(bench, found, expected)
    assert distance <= 0.1, f"changes of the weights are {distance:.1e} apart"  # bfloat16 rounds a few per cent
    return f"{message[:60]}...; resumed in parts, changes of the weights {distance:.1e} apart"


def changes_apart(bench: Bench, one: Path, other: Path) -> float:
    """Return the distance between what two trainings of the start model have changed, over its length."""
    start, *ends = (bench.weights(folder) for folder in (bench.model, one, other))
    sides = [torch.cat([(end[name] - start[name]).double().ravel() for name in sorted(start)]) for end in ends]
    return float((sides[0] - sides[1]).norm() / sides[1].norm())


def all_devices(bench: Bench) -> str:
    devices = "cuda:all" if bench.device == "cuda" else "cpu,cpu"
    found = bench.embed_by_command("all", "--device", devices, "--shard", "100")
    return f"--device {devices}: {close(found, bench.vectors)}"


def bfloat16(bench: Bench) -> str:
    found = bench.embed_by_command("half", "--device", bench.device, "--precision", "bfloat16")
    cosines = (found * bench.vectors).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(bench.vectors, axis=1)
    assert cosines.min() >= 0.999, f"cosine {cosines.min():.5f}"
    return f"{len(found):,} vectors, cosine at least {cosines.min():.5f}, mean {cosines.mean():.6f}"


_worker = ShardWorker()


def _prepare(maker: str, arguments: dict[str, object]) -> None:
    prepared = _worker.prepare(maker, arguments)
    assert not isinstance(prepared, WorkerFailure), prepared.message


def _make(number: int) -> tuple[int, bytes, int]:
    made = _worker.make(number)
    assert not isinstance(made, WorkerFailure), made.message
    return number, made, os.getpid()


class Processes:
    """An executor of two worker processes on this machine."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def make(self, task: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        spawn, arguments = multiprocessing.get_context("spawn"), (task.maker, dict(task.arguments))
        with ProcessPoolExecutor(2, mp_context=spawn, initializer=_prepare, initargs=arguments) as pool:
            for number, made, process in pool.map(_make, numbers):
                self.seen.add(process)
                yield number, made


def workers(bench: Bench) -> str:
    encoder = load_encoder(str(bench.model), device="cpu")
    settings = {"pooling": None, "max_tokens": None, "batch_tokens": 8192, "dtype": "float32"}
    executor, spec = Processes(), EncoderSpec(str(bench.model), device=bench.device, settings=settings)
    options = EmbeddingOptions(shard=40, remote=RemoteShards(executor, spec))
    found = np.array(embed_papers(bench.corpus, encoder, bench.folder / "processes", options).matrix)
    facts = f"{len(executor.seen)} processes: {close(found, bench.vectors)}"
    if importlib.util.find_spec("ray") is None:
        return f"{facts}; no Ray here"
    share = ",gpus=0.5" if bench.device == "cuda" else ""
    on = ["--on", f"ray:local,workers=2{share}", "--shard", "40", "--device", bench.device]
    return f"{facts}; by Ray {close(bench.embed_by_command('ray', *on), bench.vectors)}"


def bitfit(bench: Bench) -> str:
    counts, backward = [], Stepper.backward

    def counted(stepper: Stepper, batch: Batch, step: int) -> torch.Tensor:
        counts.append(int(stepper.data.tokens.lengths()[batch.papers].sum()))
        return backward(stepper, batch, step)

    found = {}
    with patch.object(Stepper, "backward", counted):
        for precision in ("float32", "auto"):
            folders = [
                bench.train(f"bias-{precision}-{seen}", seen=seen, parts="bias", precision=precision)
                for seen in (1 << 22, 4096)
            ]
            start, *ends = (bench.weights(folder) for folder in (bench.model, *folders))
            changed, in_parts = ({name for name in start if not torch.equal(start[name], end[name])} for end in ends)
            assert changed and all(name.endswith("bias") for name in changed), sorted(changed)[:5]
            assert changed == in_parts, f"at once or in parts alone: {sorted(changed ^ in_parts)[:5]}"
            found[precision] = changes_apart(bench, *folders)
    assert bench.device == "cpu" or min(counts) > 65_536, f"{min(counts):,} tokens a step"
    # in bfloat16 gradients of biases, small sums of large terms, differ by what rounding makes of them
    assert found["float32"] <= 1e-2, f"changes in float32 are {found['float32']:.1e} apart"
    facts = ", ".join(f"{distance:.1e} in {precision}" for precision, distance in found.items())
    return f"{min(counts):,} tokens a step, {len(changed)} biases changed; at once and in parts are {facts} apart"


PATHS: dict[str, Callable[[Bench], str]] = {
    "embed-memory": embed_memory,
    "train-memory": train_memory,
    "all-devices": all_devices,
    "bfloat16": bfloat16,
    "workers": workers,
    "bitfit": bitfit,
}
NEEDS_GPU = ("embed-memory", "train-memory", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", default=",".join(PATHS), help="paths, separated by commas")
    options = parser.parse_args()
    failed = 0
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.device)
        for name in options.only.split(","):
            if name in NEEDS_GPU and options.device == "cpu":
                print(f"SKIP {name:14} needs a GPU", flush=True)
                continue
            try:
                print(f"PASS {name:14} {PATHS[name](bench)}", flush=True)
            except Exception as error:
                failed += 1
                print(f"FAIL {name:14} {type(error).__name__}: {error}", flush=True)
                traceback.print_exc()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
