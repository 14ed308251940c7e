"""Reference lists and citing sentences of a corpus as lists of nodes: papers of the bundle, then outside papers without text.

Citing papers that the corpus suite holds out have no list; papers that must not be trained on are no nodes.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weaving.papers import Papers

Lists = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]
"""Citing papers, what they cite one behind the other, and how many each cites."""

Cited = Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Citing:
    """What the training papers of a corpus cite, by ids."""

    references: Cited
    sentences: Cited
    outside: set[str]
    """Ids that two or more papers cite."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_citing(papers: Papers, name: str, folder: Path, held_out: set[str], *, fewest: int) -> Citing:
    """Read a corpus's lists, and add titles of papers outside it that `fewest` papers or more cite."""
    lists: dict[str, dict[str, None]] = {
        line["citing"]: dict.fromkeys(line["cited"]) for line in read_lines(folder / "references.jsonl.gz")
    }
    for line in (folder / "citations.tsv").read_text().splitlines():
        citing, cited = line.split("\t")[:2]
        lists.setdefault(citing, {})[cited] = None
    lists = {citing: cited for citing, cited in lists.items() if citing not in held_out}
    used = Counter(cited for each in lists.values() for cited in each)
    _add_titles(papers, name, folder, {cited for cited, count in used.items() if count >= fewest})
    sentences = [
        (line["citing"], list(dict.fromkeys(line["cited"])))
        for line in read_lines(folder / "contexts.jsonl.gz")
        if line["citing"] not in held_out
    ]
    references = [(citing, list(cited)) for citing, cited in lists.items()]
    return Citing(references, sentences, {cited for cited, count in used.items() if count >= 2})


def _add_titles(papers: Papers, name: str, folder: Path, wanted: set[str]) -> None:
    """Papers of a title alone, of three words or more, as the part `name-refs`."""
    titles = {
        line["id"]: line["title"]
        for line in read_lines(folder / "reference_titles.jsonl.gz")
        if line["id"] in wanted and len(line["title"].split()) >= 3
    }
    papers.add(f"{name}-refs", list(titles), list(titles.values()), [[] for _ in titles])


def never_trained_on(papers: Papers, data: Path) -> set[int]:
    """Rows of CSFCube's papers, by flag or by title, and of those that ACM-CR judges, by flag."""
    flagged = {
        papers.rows[f"peerread_plus/{line['id']}"]
        for line in read_lines(data / "peerread_plus/papers.jsonl.gz")
        if line.get("in_csfcube") or line.get("in_acm_cr_qrels")
    }
    low, high = papers.parts["csfcube"]
    keys = set(papers.keys[low:high]) | {papers.keys[row] for row in flagged}
    return flagged | {row for row, key in enumerate(papers.keys) if key in keys}


class Nodes:
    """Numbers of cited papers: rows of the papers that have a text, and further ones for those that have none."""

    def __init__(self, papers: Papers, banned: set[int]) -> None:
        self._papers, self._banned = papers, banned
        self._without_text: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._papers.tokens) + len(self._without_text)

    def lists(self, name: str, citing: Citing) -> dict[str, Lists]:
        """Lists of a corpus; sentences count papers with a text alone."""

        def any_node(cited: str) -> int:
            return self._node(name, cited, citing.outside)

        def text_node(cited: str) -> int:
            return self._node(name, cited, set())

        return {
            "references": self._numbered(name, citing.references, any_node),
            "contexts": self._numbered(name, citing.sentences, text_node),
        }

    def _node(self, name: str, cited: str, outside: set[str]) -> int:
        """-1 for a paper that is no node."""
        for part in (name, f"{name}-refs"):
            row = self._papers.rows.get(f"{part}/{cited}")
            if row is not None:
                return -1 if row in self._banned or not len(self._papers.tokens[row]) else row
        if cited not in outside:
            return -1
        return self._without_text.setdefault(f"{name}/{cited}", len(self))

    def _numbered(self, name: str, lists: Cited, node: Callable[[str], int]) -> Lists:
        owners, flat, counts = [], [], []
        for owner, cited in lists:
            row = self._papers.rows.get(f"{name}/{owner}", -1)
            if row < 0 or row in self._banned:
                continue
            own = [at for at in map(node, cited) if at >= 0]
            if own:
                owners.append(row)
                flat += own
                counts.append(len(own))
        return np.array(owners, np.uint32), np.array(flat, np.uint32), np.array(counts, np.uint32)
