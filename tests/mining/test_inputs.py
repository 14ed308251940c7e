"""Inputs of mining: intents of citations, graphs with vectors of every intent, ids from files; what is missing is named."""

import gzip
from itertools import combinations

import numpy as np
import pytest

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import UserError
from citeweave.corpus.ingest import exclude_papers, import_papers
from citeweave.graph.citations import build_graph
from citeweave.graph.intent_overlay import KIND, VERSION, IntentSource, OverlayWriter, confidence_from_mask
from citeweave.mining import inputs as module
from citeweave.mining.inputs import check_intents, graph_inputs, parse_rules, read_rows
from citeweave.mining.mine import MiningInputs
from citeweave.pipeline.recipe import load_recipe

from .conftest import refused, table_of, write_jsonl


def test_a_graph_without_vectors_of_intents_is_refused(corpus, tmp_path):
    table = {**load_recipe("sciaspect_bands").table("graph"), "dimension": 8}
    module.build_mining_graph(corpus, tmp_path / "plain", table, with_vectors=True)
    with pytest.raises(UserError, match="no node vectors of the citations of aspect 'method'.*--per-intent"):
        graph_inputs(tmp_path / "plain", table, with_vectors=True, aspects=["method"])


def write_overlay(corpus, mask, folder):
    with new_artifact(folder, KIND, VERSION, {"corpus": corpus.hash}) as artifact:
        writer, contexts, ones = OverlayWriter(artifact), len(corpus.contexts), np.ones(len(mask), np.int64)
        writer.append_contexts(np.zeros(contexts, np.uint8), np.zeros((contexts, 3), np.float16))
        writer.close()
        writer.write_citations(mask, confidence_from_mask(mask), ones, np.zeros(len(mask), bool))
        counts = {"citations": {"all": len(mask)}, "contexts": {"all": contexts}}
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5, **counts}
        artifact.finish()


def test_intents_of_an_overlay_are_matched_by_ids(corpus, graph, tmp_path):
    mask = np.random.default_rng(5).choice([1, 2, 4], len(corpus.citing)).astype(np.uint8)
    overlay = str(tmp_path / "intents")
    write_overlay(corpus, mask, tmp_path / "intents")
    fewer = exclude_papers(corpus, np.arange(0, 600, 9), tmp_path / "fewer", why="a test")
    smaller = build_graph(fewer, tmp_path / "graph")
    edges = zip(corpus.citing.tolist(), corpus.cited.tolist(), mask.tolist(), strict=True)
    wanted = {(corpus.ids[a], corpus.ids[b]): bits for a, b, bits in edges}
    for found, own in (
        (IntentSource(overlay).annotate(graph, corpus), corpus),
        (IntentSource(overlay, of=corpus).annotate(smaller, fewer), fewer),
    ):
        pairs = zip(found.sources().tolist(), found.cited.targets.tolist(), strict=True)
        assert [wanted[own.ids[a], own.ids[b]] for a, b in pairs] == found.intents.tolist()
    refused("an overlay fits only the corpus it was made from", IntentSource(overlay).annotate, smaller, fewer)
    refused("--intents nowhere: there is no such folder.*citeweave annotate", IntentSource, "nowhere")


@pytest.mark.parametrize(
    ("recipe", "intents", "contexts", "message"),
    [
        ("sciaspect", [], False, "have none; it has no citing sentences .* still run: specter_cl, scincl, sciaspect_r"),
        ("sciaspect", [], True, "have none; find them with `citeweave annotate .*--intents sections"),
        ("sciaspect", ["method"], True, "background 0, method 15, result 0, none has background; .*needs two"),
        ("sciaspect", ["method", "result"], True, r"none has background; leave it out with --set .*\[\"method\", \"r"),
        ("sciaspect_bands", ["method"], True, "none has background; a recipe that sets one intent against another"),
    ],
)
def test_missing_intents_are_named(recipe, intents, contexts, message, tmp_path):
    """Six papers that cite each other with these intents in turn."""
    folder, pairs = tmp_path / "in", [(a, b) for b, a in combinations(range(6), 2)]
    folder.mkdir()
    write_jsonl(folder / "papers.jsonl", [{"id": str(n), "title": f"paper {n}", "abstract": "text"} for n in range(6)])
    (folder / "citations.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    if contexts:
        sentences = [{"citing": str(a), "cited": [str(b)], "text": f"as {i} in [1]"} for i, (a, b) in enumerate(pairs)]
        cycle = [intents[i % len(intents) :][:1] if intents else [] for i in range(len(pairs))]
        rows = [{**line, "intents": own} for line, own in zip(sentences, cycle, strict=True)]
        write_jsonl(folder / "contexts.jsonl", rows)
    corpus = import_papers(folder, tmp_path / "corpus").corpus
    inputs = module.annotate_inputs(MiningInputs(graph=build_graph(corpus, tmp_path / "graph")), corpus)
    refused(message, check_intents, inputs, parse_rules(table_of(recipe)), corpus)
    check_intents(inputs, parse_rules(table_of("sciaspect_relations")), corpus)


def test_ids_are_read_from_a_file(corpus, tmp_path):
    text = "\n".join([*corpus.ids.take(np.array([7, 3, 7])), "", " nobody ", corpus.ids[5]])
    (tmp_path / "pool.txt").write_text(text)
    (tmp_path / "pool.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("pool.txt", "pool.txt.gz"):
        assert read_rows(tmp_path / name, corpus, "--pool").tolist() == [3, 5, 7]
    (tmp_path / "other.txt").write_text("nobody\n")
    for name, message in (("other", "other.txt: none of its 1 ids is in"), ("missing", "missing.txt does not exist")):
        refused(f"--pool .*{message}", read_rows, tmp_path / f"{name}.txt", corpus, "--pool")
