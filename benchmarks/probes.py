"""The SciDocs probe, 7 values of C on 3 folds and a last fit, beside scikit-learn's GridSearchCV(LinearSVC, n_jobs=2).

python benchmarks/probes.py                     25,000 papers x 768 numbers, 19 classes: scikit-learn takes a quarter of an hour
python benchmarks/probes.py --papers 2000       a minute

The vectors are synthetic: 19 classes of unequal size, four topics each, in a space whose directions differ in spread as those
of text encoders do, with a common offset and one label in eight wrong. Both sides must come to the same macro-F1.
"""

from __future__ import annotations

import argparse
import os
import warnings
from typing import Any, NamedTuple

import numpy as np
from measuring import Clock, Cost, Row, print_table, run_step, versions
from numpy.typing import NDArray

from citeweave.core.randomness import stream

CLASSES, TOPICS, WRONG = 19, 4, 0.12


class Made(NamedTuple):
    train: NDArray[np.float32]
    labels: NDArray[np.int64]
    test: NDArray[np.float32]
    known: NDArray[np.int64]


def made_papers(papers: int, dimension: int) -> Made:
    """Training papers, and a fifth as many to test on."""
    rng = stream(0, "benchmark", "probes")
    total = papers + papers // 5
    spread = 1 / np.arange(1, dimension + 1) ** 0.6  # (d,)
    labels = rng.choice(CLASSES, total, p=rng.dirichlet(np.full(CLASSES, 5.0)))  # (total,)
    centers = rng.normal(size=(CLASSES, 1, dimension)) + 0.7 * rng.normal(size=(CLASSES, TOPICS, dimension))
    vectors = 0.42 * centers[labels, rng.integers(0, TOPICS, total)] + 2.2 * rng.normal(size=(total, dimension))
    vectors = vectors * spread + 15 * rng.normal(size=dimension) / np.sqrt(dimension)
    vectors = vectors @ np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    vectors *= 16 / np.sqrt((vectors**2).sum(axis=1).mean())  # about as long as the vectors of SPECTER
    wrong = rng.random(total) < WRONG
    labels[wrong] = rng.choice(labels, wrong.sum())
    vectors = vectors.astype(np.float32)
    return Made(vectors[:papers], labels[:papers], vectors[papers:], labels[papers:])


def ours(clock: Clock, papers: int, dimension: int) -> dict[str, Any]:
    from citeweave.evaluation.probes import fit_classes
    from citeweave.evaluation.tasks import SCIDOCS_CLASSES

    made = made_papers(papers, dimension)
    with clock:
        found = fit_classes(made.train, made.labels, made.test, SCIDOCS_CLASSES)
    return {
        "f1": macro_f1(made, found.values),
        "c": found.best_c,
        "values": found.values,
        "unconverged": found.unconverged,
    }


def grid_search(clock: Clock, papers: int, dimension: int) -> dict[str, Any]:
    from joblib.externals.loky import get_reusable_executor
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    made = made_papers(papers, dimension)
    os.environ["PYTHONWARNINGS"] = "ignore"  # the workers' word on what did not converge
    with clock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(LinearSVC(random_state=42), {"C": np.logspace(-4, 2, 7)}, cv=3, n_jobs=2)
        search.fit(made.train, made.labels)
        values = search.predict(made.test)
        get_reusable_executor().shutdown(wait=True)  # only the CPU time of workers that have ended is counted
    return {"f1": macro_f1(made, values), "c": search.best_params_["C"], "values": values}


def macro_f1(made: Made, values: NDArray[Any]) -> float:
    from sklearn.metrics import f1_score

    return 100 * float(f1_score(made.known, values, average="macro"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=25_000, help="training papers")
    parser.add_argument("--dimension", type=int, default=768)
    options = parser.parse_args()
    mine = run_step(ours, options.papers, options.dimension)
    peer = run_step(grid_search, options.papers, options.dimension, children=True)
    row = Row("citeweave fit_classes", mine, remark=remark(mine))
    same = np.mean(mine.found["values"] == peer.found["values"])
    print_table(
        f"SciDocs probe: {options.papers:,} papers x {options.dimension}, {CLASSES} classes, 7 C x 3 folds and a last fit",
        [row, Row("GridSearchCV(LinearSVC)", peer, beside=row, remark=remark(peer))],
        [
            f"ratio by the clock {peer.wall / mine.wall:.1f}; {same:.2%} of the predictions are the same; "
            f"{mine.found['unconverged']} of our fits did not converge",
            versions("scikit-learn", "numpy", "scipy"),
        ],
    )


def remark(cost: Cost) -> str:
    return f"macro-F1 {cost.found['f1']:.2f} at C = {cost.found['c']:g}"


if __name__ == "__main__":
    main()
