"""The baselines by the same suites, trained on the same papers and citations; no GPU, minutes each on two cores.

The start model with raw vectors is one of them: as it ships, its vectors have length one, and recipes train them without
that step. Rankings by cosine are the same; probes and L2 distances are not.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.table.bundle import Bundle, read_bundle
from benchmarks.table.judging import Answering, judge, reading_once, titles_seen
from benchmarks.table.prepare import Preparation
from benchmarks.table.reports import RunReport, is_done, unpack_runs, write_run
from benchmarks.table.start_model import unpack_start
from benchmarks.table.systems import BASELINES, MAX_TOKENS, RAW_START, SLOW_BASELINES
from citeweave.baselines.fit import baseline_system, fit_words
from citeweave.baselines.word_vectors import WordVectors
from citeweave.core.errors import CiteweaveError, choose
from citeweave.core.progress import Reporter
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import OpeningOptions
from citeweave.evaluation.systems import System
from citeweave.graph.citations import graph_from_edges

LEXICAL = "bm25"
WITH_WORDS = ("sif", "fasttext", "sgc")
NOT_TRAINED = (LEXICAL, "random", "sentence_sum", RAW_START)


def judge_baselines(preparation: Preparation, systems: Sequence[str], output: Path) -> None:
    """Evaluate what is missing; without names all but the slow ones."""
    for system in systems:
        choose(system, (*BASELINES, RAW_START), "--systems")
    asked = systems or [*(system for system in BASELINES if system not in SLOW_BASELINES), RAW_START]
    name = preparation.name
    unpack_runs(output, name)
    bundle = read_bundle(output / f"{name}.bundle")
    if preparation.learned.hash != bundle.papers.hash:
        raise CiteweaveError(f"{output}/{name}.bundle was made of other data than those given; prepare it again")
    words: WordVectors | None = None
    failed: list[str] = []
    for system in asked:
        if is_done(output, RunReport(name, system, 0, bundle.version, {})):
            continue
        begun = time.monotonic()
        if system in WITH_WORDS and words is None:
            words = fit_words(preparation.learned, reporter=Reporter())
        try:
            opened = raw_start(output, bundle) if system == RAW_START else _open_baseline(system, preparation, words)
            views = judge(Answering(opened), bundle)
        except CiteweaveError as error:
            failed.append(f"{system}: {error}")
            continue
        seconds = round(time.monotonic() - begun, 1)
        titles = [] if system in NOT_TRAINED else bundle.papers.titles.take(np.arange(len(bundle.papers)))
        saw, cost = titles_seen(titles, bundle), {"seconds": seconds, "device": "CPU"}
        write_run(output, RunReport(name, system, 0, bundle.version, views, cost=cost, saw=saw))
        print(f"{name}: {system}, {seconds:.0f} s", flush=True)
    if failed:
        raise CiteweaveError(f"some baselines failed on {name}: {'; '.join(failed)}")


def raw_start(output: Path, bundle: Bundle) -> System:
    """The packed start model as the table's runs load it, but for the length of its vectors; on the processor."""
    from citeweave.training.options import EncoderOptions
    from citeweave.training.train import load_start_model

    length = bundle.facts.get("max_tokens", MAX_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        init = str(unpack_start(output, Path(folder)))
        encoder = load_start_model(EncoderOptions(init=init, max_tokens=length, normalize=False), "cpu")
    return reading_once(dataclasses.replace(encoder, name=RAW_START), bundle, {})


def _open_baseline(system: str, preparation: Preparation, words: WordVectors | None) -> System:
    options = OpeningOptions(cache=preparation.work / "cache")
    if system == LEXICAL:
        return open_system(system, options, Reporter())
    learned = preparation.learned
    graph = graph_from_edges(learned.citing, learned.cited, len(learned))
    own = words if system in WITH_WORDS else None
    return baseline_system(system, learned, graph, options, words=own, reporter=Reporter())
