"""Accounts of rows: at every stage what came in is what came out and what was left out for a reason that is told."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.core.artifact import read_manifest
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derive import derive_corpus
from citeweave.corpus.derived_texts import DerivedTexts
from citeweave.corpus.ingest import exclude_papers, import_papers
from citeweave.corpus.split import split_by_share
from citeweave.corpus.text import sentences
from citeweave.encoders.embed import embed_papers
from citeweave.evaluation.links import hold_out
from citeweave.graph.citations import CitationGraph, build_graph
from citeweave.mining.formats.convert import export_samples
from citeweave.mining.formats.triplet_rows import ExportOptions
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.mining.samples import Samples
from citeweave.pipeline.recipe import load_recipe
from citeweave.search.build import IndexOptions, build_index, describe_index
from citeweave.search.export import to_bibtex, to_csv, to_json
from citeweave.search.index import Index

from .counting import Trial
from .made_corpora import Written, write_corpus


@dataclasses.dataclass(frozen=True)
class Hashed:
    """An encoder without a network: a text's vector is drawn by the text; one without a letter has none."""

    name: str = "hashed"
    revision: str = "1"
    dimension: int = 4

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        rows = [[len(text), *text.encode()[:3].ljust(3)] if "数" not in text else [0] * 4 for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 4)


def check_import(written: Written, corpus: Corpus) -> None:
    """Every record that was written was read, and is a row or has a reason; citations by what their ends are."""
    facts = corpus.manifest.facts
    records: dict[str, dict[str, Any]] = facts["records"]
    for kind, rows in (("papers", len(corpus)), ("citations", len(corpus.citing)), ("contexts", len(corpus.contexts))):
        _closes(records[kind], kind)
        assert records[kind]["kept"] == facts[kind] == rows, kind
    assert records["papers"]["read"] == written.papers
    assert records["contexts"]["read"] == written.contexts
    assert records["citations"]["read"] == len(written.citations) + written.unread
    citing, cited = (corpus.rows([pair[side] for pair in written.citations]) for side in (0, 1))
    both = (citing >= 0) & (cited >= 0)
    expected = {
        "citing and cited paper not in the corpus": int(((citing < 0) & (cited < 0)).sum()),
        "citing paper not in the corpus": int(((citing < 0) & (cited >= 0)).sum()),
        "cited paper not in the corpus": int(((citing >= 0) & (cited < 0)).sum()),
        "paper cites itself": int((both & (citing == cited)).sum()),
    }
    pairs = np.stack([citing, cited], axis=1)[both & (citing != cited)]
    distinct = np.unique(pairs, axis=0)
    expected["same citation given again (merged)"] = len(pairs) - len(distinct)
    rejected = records["citations"]["rejected"]
    assert {reason: rejected.get(reason, 0) for reason in expected} == expected
    assert sum(number for reason, number in rejected.items() if reason not in expected) == written.unread
    assert np.stack([corpus.citing, corpus.cited], axis=1).tolist() == distinct.tolist()


def _closes(count: Mapping[str, Any], kind: str) -> None:
    assert count["read"] == count["kept"] + sum(count["rejected"].values()), kind
    assert count["kept"] >= 0 and all(number > 0 for number in count["rejected"].values()), kind


def check_parts(corpus: Corpus, place: Path, rng: np.random.Generator) -> None:
    """Parts of a split, and a generation without some papers."""
    try:
        split = split_by_share(corpus.ids.take(np.arange(len(corpus))), validation=0.2, test=0.2, seed=1)
    except EmptyResultError:
        split = None
    if split is not None:
        parts = np.concatenate([split.train, split.validation, split.test])
        assert sorted(parts.tolist()) == list(range(len(corpus)))
        assert np.bincount(split.of_citations(corpus.citing), minlength=3).sum() == len(corpus.citing)
        assert sum(split.as_json()[name] for name in ("train", "validation", "test")) == len(corpus)
    rows = np.sort(rng.choice(len(corpus), len(corpus) // 4, replace=False))
    left = exclude_papers(corpus, rows, place / "left", why="held out")
    records = left.manifest.facts["records"]
    for kind in ("papers", "citations", "contexts"):
        _closes(records[kind], kind)
    assert left.manifest.facts["excluded"] == len(rows) == records["papers"]["rejected"].get("deleted on request", 0)
    assert records["papers"]["read"] == len(corpus) == len(left) + len(rows)
    assert records["citations"]["read"] == len(corpus.citing) + len(corpus.references_outside("citing"))
    assert records["citations"]["kept"] == len(left.citing)
    gone = np.isin(corpus.citing, rows) | np.isin(corpus.cited, rows)
    assert len(left.citing) == int((~gone).sum())


def check_graph(corpus: Corpus, graph: CitationGraph) -> None:
    """Edges, loops, repeats and what leads out are the citations; so are held-out ones and the others."""
    counts = graph.counts
    assert counts.nodes == len(corpus) and graph.edges == counts.edges
    given = len(corpus.citing) + len(corpus.references_outside("citing"))
    assert counts.edges + counts.to_itself + counts.duplicates + counts.dangling == given
    if graph.edges:
        held = hold_out(graph.sources(), graph.cited.targets, 0.2, 0)
        assert graph.keep_edges(~held).edges + int(held.sum()) == graph.edges


def check_samples(corpus: Corpus, graph: CitationGraph, place: Path, rng: np.random.Generator) -> Samples | None:
    """Anchors that came in are samples or were skipped for a reason."""
    drawn = int(rng.choice([0, 5]))
    asked = rng.choice(len(corpus), len(corpus) // 2, replace=False) if rng.random() < 0.3 else None
    rules = parse_rules(load_recipe("specter", [f"mining.anchors={drawn}"]).table("mining"))
    inputs = MiningInputs(graph=graph, anchors=asked)
    try:
        samples = mine_samples(corpus, rules, place / "samples", inputs, MiningOptions(workers=1))
    except EmptyResultError:
        return None
    facts = samples.manifest.facts
    assert facts["anchors"] == len(samples)
    assert facts["anchors"] + sum(facts["skipped"].values()) == (len(corpus) if asked is None else len(asked))
    assert sum(facts["rules_got"].values()) == len(samples.positives.rows) + len(samples.negatives.rows)
    return samples


def check_exports(corpus: Corpus, samples: Samples, place: Path, rng: np.random.Generator) -> None:
    """As many rows in a file as its account says, and all triplets in it or left out for a reason."""
    form = str(rng.choice(["parquet", "jsonl", "scincl", "scirepeval"]))
    is_own = form in ("parquet", "jsonl")
    to, options = ("sentence_transformers", ExportOptions(file_type=form)) if is_own else (form, None)
    told = export_samples(samples, corpus, place / "export", to=to, options=options)
    for kind, count in told["records"].items():
        _closes(count, kind)
    assert told["records"]["triplets"]["read"] == len(samples.triplets())
    assert told["records"]["samples"]["read"] == len(samples)
    path = next(place / "export" / name for name in told["files"] if "metadata" not in name)
    header = form == "scincl"
    rows = pq.read_metadata(path).num_rows if form == "parquet" else len(path.read_text().splitlines()) - header
    assert rows == told["records"]["triplets"]["kept"]


def check_vectors(corpus: Corpus, place: Path) -> None:
    vectors = embed_papers(corpus, Hashed(), place / "vectors")
    count = vectors.manifest.facts["records"]["vectors"]
    _closes(count, "vectors")
    assert count["read"] == len(corpus) and count["kept"] == len(vectors) == len(vectors.matrix)


def check_index(corpus: Corpus, place: Path) -> None:
    """All papers are documents, and each is exported once."""
    index: Index = build_index(corpus, "weave", place / "index", IndexOptions(vectors=False))
    assert len(index) == describe_index(index)["papers"] == len(corpus)
    assert sum(segment.words.size for segment in index.segments if segment.words is not None) == len(corpus)
    papers = [index.paper(row) for row in np.flatnonzero(index.alive).tolist()]
    assert to_bibtex(papers).count("\n}\n") == len(json.loads(to_json(papers))) == len(corpus)
    assert to_csv(papers).count("\n") == len(corpus) + 1


def check_derived(corpus: Corpus, place: Path, rng: np.random.Generator) -> None:
    """Texts that were made and those that were left out are all that there were."""
    of = str(rng.choice(["titles", "cloze", "contexts"]))
    options = DerivedTexts(of, least_words=3, **({"least_sentences": 2} if of == "cloze" else {}))
    try:
        made = derive_corpus(corpus, place / of, options)
    except (EmptyResultError, UserError):
        return
    facts = made.manifest.facts["derived"]
    rejected = facts["rejected"]
    for kind in ("papers", "citations", "contexts"):
        _closes(made.manifest.facts["records"][kind], kind)
    if of == "titles":
        assert facts["titles"] + sum(rejected.values()) == len(corpus)
    elif of == "contexts":
        assert facts["contexts"] + sum(rejected.values()) == len(corpus.contexts)
    else:
        abstracts = dict.fromkeys(corpus.abstracts.take(np.arange(len(corpus))))
        places = sum(1 for text in abstracts for a, b in sentences(text) if text[a:b].strip())
        by = {what: sum(n for why, n in rejected.items() if why.startswith(what)) for what in ("abstract", "sentence")}
        assert facts["papers"] + by["abstract"] == len(corpus)
        assert facts["sentences"] + by["sentence"] == places


def check_corpus(place: Path, seed: int) -> None:
    rng = np.random.default_rng([44, seed])
    written = write_corpus(place / "files", seed)
    corpus = import_papers(written.files, place / "corpus").corpus
    check_import(written, corpus)
    check_parts(corpus, place, rng)
    graph = build_graph(corpus, place / "graph")
    assert read_manifest(place / "graph", "graph", 1).facts["edges"] == graph.edges
    check_graph(corpus, graph)
    samples = check_samples(corpus, graph, place, rng)
    if samples is not None and len(samples.triplets()):
        check_exports(corpus, samples, place, rng)
    check_vectors(corpus, place)
    check_index(corpus, place)
    check_derived(corpus, place, rng)


def test_row_accounts(trial: Trial, tmp_path: Path) -> None:
    for seed in trial.numbers(quick=10, whole=1000):
        with trial.attempt(f"seed {seed}"):
            check_corpus(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
