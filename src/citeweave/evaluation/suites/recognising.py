"""Which benchmark a folder holds, told by its files: for the error of somebody who gave the folder of another one.

    mdcr_test.json                          MDCR
    corpus.jsonl, queries.jsonl             BEIR

Does not read more than the first line of a file.
"""

from __future__ import annotations

from pathlib import Path

from citeweave.errors import InputError
from citeweave.evaluation.suites.files import find
from citeweave.opening import Source

MARKS = {
    "scidocs": (
        "cite/test.qrel",
        "coview/test.qrel",
        "mag/test.csv",
        "recomm/test.csv",
        "paper_metadata_mag_mesh.json",
    ),
    "scirepeval": ("scirepeval_tasks.jsonl",),
    "reviewers": ("reviewer_metadata.jsonl",),
    "mdcr": ("mdcr_test.json", "mdcr_val.json"),
    "csfcube": ("test-pid2anns-csfcube-background.json", "abstracts-csfcube-preds.jsonl"),
    "relish": ("test-pid2anns-relish.json", "abstracts-relish.jsonl"),
    "treccovid_rf": ("test-pid2anns-treccovid.json", "abstracts-treccovid.jsonl"),
    "beir": ("corpus.jsonl", "queries.jsonl"),
}
"""Suite -> files of which each tells it."""

KEYS = {
    "csfcube": (("judgements.jsonl", "facet"), ("papers.jsonl", "sentence_facets_predicted")),
    "beir": (("judgements.jsonl", "query_text"), ("papers.jsonl", "tldr")),
}
"""Suite -> files of JSON lines, each of which tells it by a key of its first line."""


def recognise(folder: Path) -> tuple[str, str]:
    """The suite whose files the folder holds, and the file that tells it; two empty texts where none does."""
    for suite, marks in MARKS.items():
        for mark in marks:
            if find(folder / mark):
                return suite, mark
    for suite, keys in KEYS.items():
        for name, key in keys:
            path = find(folder / name)
            if path and key in (Source(path).head().record or {}):
                return suite, name
    return "", ""


def refuse(folder: Path, suite: str, expected: str) -> InputError:
    """The error for a folder without the suite's files; `expected` names them."""
    other, mark = recognise(folder)
    if other and other != suite:
        return InputError(f"{folder} is no folder of {suite}: its {mark} belongs to {other}; use --suite {other}")
    return InputError(f"{folder} holds no files of {suite}: it needs {expected}; check the folder or download them")
