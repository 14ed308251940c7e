"""The suites by name; each is read by `read_suite(folder, split=...)` of its module."""

from __future__ import annotations

import importlib
from pathlib import Path

from citeweave.errors import InputError, choose
from citeweave.evaluation.tasks import Suite

SUITES = {
    "scidocs": "12 numbers: fields, MeSH, co-views, co-reads, citations, co-citations, recommendations",
    "scirepeval": "classification, regression, proximity and search tasks in SciRepEval's files",
    "mdcr": "citation recommendation in 19 fields",
    "csfcube": "faceted similarity: background, method, result; two folds",
    "relish": "biomedical similarity judged by authors, in ASPIRE's files",
    "treccovid_rf": "similarity made from TREC-COVID, in ASPIRE's files",
    "beir": "search in any BEIR folder",
    "reviewers": "which reviewer fits a submission",
}
"""Name -> what it asks."""

MADE = {
    "corpus": "citations, fields, years, titles: tasks made from any corpus",
    "intents": "what a paper cites for one reason, told from what it cites for another: made from citation intents",
    "aspects": "who shares a problem, a method, a finding: made from a made-up literature",
}
"""Suites that have no files: `make_suite(corpus, options)` of their module makes them."""


def read_suite(name: str, folder: str | Path, *, split: str = "test") -> Suite:
    """Read a suite from the folder that holds its published files."""
    choose(name, SUITES, "--suite")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; --data names the folder that holds the files of {name}")
    module = importlib.import_module(f"citeweave.evaluation.suites.{name}")
    suite: Suite = module.read_suite(folder, split=split)
    return suite
