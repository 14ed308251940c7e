"""citeweave: vector representations of scientific papers from their text and their citations.

    import citeweave

    corpus = citeweave.import_papers(["library.bib"], "corpus/").corpus
    corpus = citeweave.Corpus.open("corpus/")
    corpus.titles[0], corpus.row("doi:10.1/x")

This is the front door: the nouns and verbs, each loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from citeweave.version import __version__ as __version__

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus as Corpus
    from citeweave.corpus.importing import ImportOptions as ImportOptions
    from citeweave.corpus.importing import exclude_papers as exclude_papers
    from citeweave.corpus.importing import import_papers as import_papers
    from citeweave.corpus.leakage.benchmark_papers import audit_corpus as audit_corpus
    from citeweave.corpus.paper import Citation as Citation
    from citeweave.corpus.paper import Context as Context
    from citeweave.corpus.paper import Intent as Intent
    from citeweave.corpus.paper import Paper as Paper
    from citeweave.corpus.synthetic.writing import synthesize as synthesize
    from citeweave.corpus.text import TextRecipe as TextRecipe
    from citeweave.corpus.text import paper_text as paper_text
    from citeweave.corpus.text import sentences as sentences
    from citeweave.similarity.published import import_vectors as import_vectors
    from citeweave.similarity.vectors import Vectors as Vectors

_HOME = {
    "Corpus": "corpus.corpus",
    "ImportOptions": "corpus.importing",
    "exclude_papers": "corpus.importing",
    "import_papers": "corpus.importing",
    "audit_corpus": "corpus.leakage.benchmark_papers",
    "Citation": "corpus.paper",
    "Context": "corpus.paper",
    "Intent": "corpus.paper",
    "Paper": "corpus.paper",
    "synthesize": "corpus.synthetic.writing",
    "TextRecipe": "corpus.text",
    "paper_text": "corpus.text",
    "sentences": "corpus.text",
    "import_vectors": "similarity.published",
    "Vectors": "similarity.vectors",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'citeweave' has no attribute {name!r}")
    return getattr(importlib.import_module(f"citeweave.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
