"""Every baseline and MiniLM on CSFCube, SciTLDR and the corpus suites of two real corpora; then `docs/results.md`.

    python benchmarks/results.py --data FOLDER -o results/       FOLDER holds csfcube, scitldr, peerread_plus, elife
    python docs/generate_results.py results/                     writes docs/results.md from the reports

Baselines are trained on peerread_plus without the papers of CSFCube for CSFCube and SciTLDR, and on the corpus itself,
without the held-out citations, for its own suite. What is done is not done again: interrupt and go on as you like.
"""

from __future__ import annotations

import argparse
from functools import cached_property
from pathlib import Path

from citeweave import Corpus, audit_corpus, exclude_papers, import_papers
from citeweave.baselines.fit import baseline_system, fit_words
from citeweave.baselines.word_vectors import WordVectors
from citeweave.core.errors import CiteweaveError
from citeweave.core.progress import Reporter
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import CorpusSuiteOptions, EvaluationOptions, OpeningOptions
from citeweave.evaluation.suites import read_suite
from citeweave.evaluation.suites.corpus_pools import training_graph
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.evaluation.systems import System
from citeweave.evaluation.tasks import Suite

BASELINES = ("random", "tfidf", "sentence_sum", "sif", "fasttext", "sgc", "citeomatic", "doc2vec", "elmo")
MODELS = ("minilm", "bm25")
WITH_WORDS = ("sif", "fasttext", "sgc")


class Field:
    """A corpus to train baselines on; its word vectors are trained once for all of them."""

    def __init__(self, corpus: Corpus, held_out: CorpusSuiteOptions | None, out: Path) -> None:
        self.corpus, self._held_out, self._out = corpus, held_out, out

    @cached_property
    def words(self) -> WordVectors:
        return fit_words(self.corpus, reporter=Reporter())

    def system(self, name: str) -> System:
        options = OpeningOptions(cache=self._out / "cache")
        if name in MODELS:
            return open_system(name, options, Reporter())
        graph = training_graph(self.corpus, self._held_out)
        words = self.words if name in WITH_WORDS else None
        return baseline_system(name, self.corpus, graph, options, words=words, reporter=Reporter())


def imported(source: Path, folder: Path) -> Corpus:
    return Corpus.open(folder) if folder.is_dir() else import_papers([source], folder).corpus


def without_benchmark(corpus: Corpus, benchmark: Path, folder: Path) -> Corpus:
    if folder.is_dir():
        return Corpus.open(folder)
    return exclude_papers(
        corpus, audit_corpus(corpus, {"csfcube": benchmark}).rows_to_exclude(), folder, why="in CSFCube"
    )


def evaluate_system(field: Field, name: str, suite: Suite, folder: Path) -> None:
    if (folder / "manifest.json").is_file():
        return
    print(f"--- {name}: {folder.parent.name}", flush=True)
    system = field.system(name)
    try:
        options = EvaluationOptions(distance="cosine" if system.distances else "")
        evaluate(system, suite, folder, options=options, reporter=Reporter())
    except CiteweaveError as error:
        print(f"failed: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", default=(*MODELS, *BASELINES))
    parser.add_argument(
        "--suites", nargs="*", default=("csfcube", "beir_scitldr", "corpus_peerread_plus", "corpus_elife")
    )
    options = parser.parse_args()
    data, out = options.data, options.output
    corpora = {name: imported(data / name, out / "corpora" / name) for name in ("peerread_plus", "elife")}
    clean = without_benchmark(corpora["peerread_plus"], data / "csfcube", out / "corpora/peerread_clean")
    held_out, elsewhere = CorpusSuiteOptions(), Field(clean, None, out)
    suites = {
        "csfcube": lambda: (elsewhere, read_suite("csfcube", data / "csfcube")),
        "beir_scitldr": lambda: (elsewhere, read_suite("beir", data / "scitldr")),
        **{
            f"corpus_{name}": lambda corpus=corpus: (Field(corpus, held_out, out), make_suite(corpus, held_out))
            for name, corpus in corpora.items()
        },
    }
    for suite in options.suites:
        field, asked = suites[suite]()
        for name in options.systems:
            evaluate_system(field, name, asked, out / suite / name)


if __name__ == "__main__":
    main()
