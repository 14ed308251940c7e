"""citeweave: vector representations of scientific papers from their text and their citations.

    import citeweave

    corpus = citeweave.import_papers(["library.bib"], "corpus/").corpus
    corpus = citeweave.Corpus.open("corpus/")
    corpus.titles[0], corpus.row("doi:10.1/x")
    graph = citeweave.make_graph(corpus, "graph/")
    index = citeweave.build_index(corpus, "weave", "index/")
    citeweave.answer(index, "maps of citations").hits
    citeweave.answer(index, citeweave.Query(paper="doi:10.1/x")).hits

This is the front door: the nouns and verbs, each loaded when first used. Where a verb takes an artifact the folder of one
will do, where it takes an encoder the name of a model (`core/arguments.py`). Type checkers read `__init__.pyi`, which is generated;
editors find docstrings by the imports below.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING

from citeweave.version import __version__ as __version__

if TYPE_CHECKING:
    from citeweave.baselines.fit import fit_baseline as fit_baseline
    from citeweave.corpus.corpus import Corpus as Corpus
    from citeweave.corpus.ingest import exclude_papers as exclude_papers
    from citeweave.corpus.ingest import import_papers as import_papers
    from citeweave.corpus.leakage import audit_corpus as audit_corpus
    from citeweave.corpus.options import ImportOptions as ImportOptions
    from citeweave.corpus.paper import Citation as Citation
    from citeweave.corpus.paper import Context as Context
    from citeweave.corpus.paper import Intent as Intent
    from citeweave.corpus.paper import Paper as Paper
    from citeweave.corpus.synthetic.synthesize import synthesize as synthesize
    from citeweave.corpus.text import TextRecipe as TextRecipe
    from citeweave.corpus.text import paper_text as paper_text
    from citeweave.corpus.text import sentences as sentences
    from citeweave.encoders.embed import embed_papers as embed_papers
    from citeweave.encoders.encoder import load_encoder as load_encoder
    from citeweave.encoders.save import save_encoder as save_encoder
    from citeweave.evaluation.compare import compare as compare
    from citeweave.evaluation.evaluate import evaluate as evaluate
    from citeweave.evaluation.open_system import open_system as open_system
    from citeweave.evaluation.options import EvaluationOptions as EvaluationOptions
    from citeweave.evaluation.report import Report as Report
    from citeweave.evaluation.suites import read_suite as read_suite
    from citeweave.graph.build import make_graph as make_graph
    from citeweave.graph.citations import CitationGraph as CitationGraph
    from citeweave.graph.citations import build_graph as build_graph
    from citeweave.graph.citations import graph_from_edges as graph_from_edges
    from citeweave.graph.intent_overlay import IntentOverlay as IntentOverlay
    from citeweave.graph.node_vectors import embed_nodes as embed_nodes
    from citeweave.graph.options import GraphOptions as GraphOptions
    from citeweave.graph.options import NodeVectorOptions as NodeVectorOptions
    from citeweave.graph.signals import Signal as Signal
    from citeweave.graph.signals import related as related
    from citeweave.graph.signals import stream_related as stream_related
    from citeweave.intents.annotate import annotate_intents as annotate_intents
    from citeweave.intents.options import AnnotateOptions as AnnotateOptions
    from citeweave.mining.audit import audit_samples as audit_samples
    from citeweave.mining.bands import choose_bands as choose_bands
    from citeweave.mining.formats import export_samples as export_samples
    from citeweave.mining.formats import import_samples as import_samples
    from citeweave.mining.inputs import MiningInputs as MiningInputs
    from citeweave.mining.mine import mine_samples as mine_samples
    from citeweave.mining.options import MiningOptions as MiningOptions
    from citeweave.mining.rules import parse_rules as parse_rules
    from citeweave.mining.samples import Samples as Samples
    from citeweave.pipeline.recipe import load_recipe as load_recipe
    from citeweave.pipeline.run import run_recipe as run_recipe
    from citeweave.search.answer import answer as answer
    from citeweave.search.build import add_papers as add_papers
    from citeweave.search.build import build_index as build_index
    from citeweave.search.build import delete_papers as delete_papers
    from citeweave.search.build import update_index as update_index
    from citeweave.search.explain import explain as explain
    from citeweave.search.index import Index as Index
    from citeweave.search.nearest import open_query_encoder as open_query_encoder
    from citeweave.search.nearest import search_paper as search_paper
    from citeweave.search.nearest import search_text as search_text
    from citeweave.search.options import IndexOptions as IndexOptions
    from citeweave.search.query import Filter as Filter
    from citeweave.search.query import Query as Query
    from citeweave.serve.app import create_app as create_app
    from citeweave.serve.library import open_library as open_library
    from citeweave.training.bundle import make_bundle as make_bundle
    from citeweave.training.options import EncoderOptions as EncoderOptions
    from citeweave.training.options import TrainingOptions as TrainingOptions
    from citeweave.training.train import train_encoder as train_encoder
    from citeweave.vectors.formats import import_vectors as import_vectors
    from citeweave.vectors.topk import nearest as nearest
    from citeweave.vectors.vectors import Vectors as Vectors

_NAMES = {
    "baselines.fit": "fit_baseline",
    "corpus.corpus": "Corpus",
    "corpus.ingest": "exclude_papers import_papers",
    "corpus.leakage": "audit_corpus",
    "corpus.options": "ImportOptions",
    "corpus.paper": "Citation Context Intent Paper",
    "corpus.synthetic.synthesize": "synthesize",
    "corpus.text": "paper_text sentences TextRecipe",
    "encoders.embed": "embed_papers",
    "encoders.encoder": "load_encoder",
    "encoders.save": "save_encoder",
    "evaluation.compare": "compare",
    "evaluation.evaluate": "evaluate",
    "evaluation.open_system": "open_system",
    "evaluation.options": "EvaluationOptions",
    "evaluation.report": "Report",
    "evaluation.suites": "read_suite",
    "graph.build": "make_graph",
    "graph.citations": "build_graph CitationGraph graph_from_edges",
    "graph.intent_overlay": "IntentOverlay",
    "graph.node_vectors": "embed_nodes",
    "graph.options": "GraphOptions NodeVectorOptions",
    "graph.signals": "related Signal stream_related",
    "intents.annotate": "annotate_intents",
    "intents.options": "AnnotateOptions",
    "mining.audit": "audit_samples",
    "mining.bands": "choose_bands",
    "mining.formats": "export_samples import_samples",
    "mining.inputs": "MiningInputs",
    "mining.mine": "mine_samples",
    "mining.options": "MiningOptions",
    "mining.rules": "parse_rules",
    "mining.samples": "Samples",
    "pipeline.recipe": "load_recipe",
    "pipeline.run": "run_recipe",
    "search.answer": "answer",
    "search.build": "add_papers build_index delete_papers update_index",
    "search.explain": "explain",
    "search.index": "Index",
    "search.nearest": "open_query_encoder search_paper search_text",
    "search.options": "IndexOptions",
    "search.query": "Filter Query",
    "serve.app": "create_app",
    "serve.library": "open_library",
    "training.bundle": "make_bundle",
    "training.options": "EncoderOptions TrainingOptions",
    "training.train": "train_encoder",
    "vectors.formats": "import_vectors",
    "vectors.topk": "nearest",
    "vectors.vectors": "Vectors",
}
"""Module -> the names that are loaded from it."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'citeweave' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"citeweave.{_HOME[name]}"), name)
    if inspect.isfunction(found):
        from citeweave.core.arguments import convert_arguments

        found = globals()[name] = convert_arguments(found)
    return found


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
