"""A bundle opened: token ids of papers by view, places of sentences, reference lists, tasks."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from weaving.files import read_bundle

WHOLE, TITLE, ABSTRACT = 0, 1, 2
CLS, SEP = 101, 102
CORPORA = {"p": "peerread_plus", "e": "elife"}
"""How names of signals call the corpora."""

MAX_TOKENS = 512

Ints = NDArray[np.int64]


class Bundle:
    """Papers by row; nodes behind the papers are cited papers without a text."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.tokens, self.keys = value["tokens"], value["keys"]
        self.lengths, self.heads = _wide(value["lengths"]), _wide(value["heads"])
        self.starts, self.counts, self.numbers = (_wide(value[name]) for name in ("starts", "counts", "numbers"))
        self.parts: dict[str, tuple[int, int]] = value["parts"]
        self.tasks: dict[str, list[tuple[Any, Ints, Ints]]] = value["tasks"]
        self.nodes: int = value["nodes"]
        self._lists = value["lists"]
        self._offsets, self._first = begins(self.lengths), begins(self.counts)
        self.banned = np.zeros(len(self), bool)  # (papers,)
        self.banned[value["banned"]] = True

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        return cls(read_bundle(folder))

    def __len__(self) -> int:
        return len(self.lengths)

    def view(self, row: int, kind: int, most: int = MAX_TOKENS) -> Ints:
        """Token ids of a paper, of its title, or of its abstract alone."""
        own = _wide(self.tokens[self._offsets[row] : self._offsets[row + 1]])
        if kind == TITLE:
            own = own[: self.heads[row]]
        elif kind == ABSTRACT:
            own = np.concatenate([[CLS], own[max(self.heads[row], 1) :]])
        return own if len(own) <= most else np.concatenate([own[: most - 1], [SEP]])

    def sentences(self, row: int) -> tuple[Ints, Ints, Ints]:
        """Starts, ends and numbers of the sentences among the tokens of the whole paper."""
        own = slice(self._first[row], self._first[row + 1])
        last = min(int(self.lengths[row]), MAX_TOKENS) - 1
        starts, numbers = self.starts[own], self.numbers[own]
        ends = np.minimum(np.append(starts[1:], last), last)[: len(starts)]
        kept = starts < last
        return starts[kept], ends[kept], numbers[kept]

    def lists(self, corpus: str, kind: str) -> tuple[Ints, Ints, Ints]:
        """Citing papers, what they cite one behind the other, how many; kind `references`, or `contexts` by sentence."""
        citing, cited, counts = self._lists[corpus][kind]
        return _wide(citing), _wide(cited), _wide(counts)

    @cached_property
    def has_abstract(self) -> NDArray[np.bool_]:
        return (self.counts > 0) & (self.lengths > self.heads + 20)

    @cached_property
    def asked_titles(self) -> NDArray[np.bool_]:
        """Papers whose titles a suite's search asks for."""
        found = np.zeros(len(self), bool)
        for name in CORPORA.values():
            for task, rows, views in self.tasks[name]:
                if task.name == "title":
                    found[rows[views == TITLE]] = True
        return found

    def incidence(self, corpus: str) -> sp.csr_matrix:
        """(reference lists, nodes): 1 where a list has a paper, and at the list's owner."""
        citing, cited, counts = self.lists(corpus, "references")
        lists = np.arange(len(citing))
        rows, columns = np.concatenate([np.repeat(lists, counts), lists]), np.concatenate([cited, citing])
        found = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (len(citing), self.nodes))
        found.data[:] = 1
        return found

    @cached_property
    def memberships(self) -> sp.csr_matrix:
        """(nodes, reference lists of all corpora): papers that share a list are cited together or cite each other."""
        return sp.vstack([self.incidence(name) for name in CORPORA.values()]).T.tocsr()


def begins(lengths: Ints) -> Ints:
    """Where parts of these lengths begin, and where the last ends.

    >>> begins(np.array([2, 3])).tolist()
    [0, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(lengths)])


def _wide(numbers: NDArray[Any]) -> Ints:
    return numbers.astype(np.int64)
