"""Write a bundle: tokens of all papers, reference lists as nodes, the suites' tasks without their texts, MiniLM's weights.

Citations of papers that the corpus suites hold out are left out; papers of CSFCube and those that ACM-CR judges are
marked and never trained on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave import Corpus
from citeweave.encoders.encoder import load_encoder
from citeweave.evaluation.suites.corpus import CorpusSuiteOptions, held_out_rows, make_suite
from citeweave.evaluation.suites.registry import read_suite
from citeweave.evaluation.texts import Texts
from weaving.citing import Nodes, never_trained_on, read_citing, read_lines
from weaving.files import write_bundle, write_weights
from weaving.papers import Papers, as_one_sentence, split_sentences

MAX_TOKENS = 512
FEWEST = {"peerread_plus": 2, "elife": 3}
"""Corpus -> how many of its papers cite an outside paper whose title is learned from."""

VIEWS = {"": 0, "title": 1, "abstract": 2}
"""What a suite's text id says behind # -> which part of the paper it is."""

BareTask = tuple[Any, NDArray[np.uint32], NDArray[np.uint8]]
"""A task without texts, and of each of its texts the paper's row and the view."""


def prepare(data: Path, corpora: Path, output: Path, acl_papers: int) -> None:
    encoder: Any = load_encoder("minilm", device="cpu")
    papers = Papers(replace(encoder.reader, max_tokens=MAX_TOKENS))
    tasks = {"csfcube": _add_csfcube(papers, data), "scitldr": _add_scitldr(papers, data)}
    held: dict[str, set[str]] = {}
    for name in FEWEST:
        tasks[name], held[name] = _add_corpus(papers, name, corpora)
    _add_acl(papers, data, acl_papers)
    citing = {
        name: read_citing(papers, name, data / name, held[name], fewest=fewest) for name, fewest in FEWEST.items()
    }
    banned = never_trained_on(papers, data)
    nodes = Nodes(papers, banned)
    lists = {name: nodes.lists(name, each) for name, each in citing.items()}
    bundle = papers.arrays() | {
        "lists": lists,
        "nodes": len(nodes),
        "banned": np.array(sorted(banned), np.uint32),
        "tasks": tasks,
    }
    write_bundle(output, bundle)
    used = np.bincount(bundle["tokens"], minlength=len(encoder.reader.tokenizer)) > 0  # (words,)
    write_weights(output / "weights.xz", encoder.network.model, used)
    for path in sorted(output.iterdir()):
        print(path.name, f"{path.stat().st_size / 2**20:.1f} MiB")


def _add_csfcube(papers: Papers, data: Path) -> list[BareTask]:
    suite = read_suite("csfcube", data / "csfcube")
    texts = suite.tasks[0].texts
    papers.add("csfcube", list(texts.ids), list(texts.titles), [list(each) for each in texts.sentences or ()])
    return [_bare(papers, "csfcube", task) for task in suite.tasks if task.name == "all"]


def _add_scitldr(papers: Papers, data: Path) -> list[BareTask]:
    """Questions are a part of their own, since their ids may be those of papers."""
    task: Any = read_suite("beir", data / "scitldr").tasks[0]
    asked = np.zeros(len(task.texts), bool)
    asked[task.queries] = True
    for part, rows in (("ask", np.flatnonzero(asked)), ("scitldr", np.flatnonzero(~asked))):
        ids, titles, abstracts = (
            [column[row] for row in rows.tolist()]
            for column in (task.texts.ids, task.texts.titles, task.texts.abstracts)
        )
        papers.add(part, ids, titles, as_one_sentence(abstracts))
    return [_bare(papers, "scitldr", task, asked="ask")]


def _add_corpus(papers: Papers, name: str, corpora: Path) -> tuple[list[BareTask], set[str]]:
    """The tasks of a corpus's suite, and the ids of the papers whose references it holds out."""
    corpus, options = Corpus.open(corpora / name), CorpusSuiteOptions()
    ids = list(corpus.ids)
    papers.add(name, ids, list(corpus.titles), split_sentences(list(corpus.abstracts)))
    tasks = [_bare(papers, name, task) for task in make_suite(corpus, options).tasks]
    return tasks, {ids[row] for row in np.flatnonzero(held_out_rows(corpus, options)).tolist()}


def _add_acl(papers: Papers, data: Path, most: int) -> None:
    """Papers of ACL Anthology with a title of three words or more and an abstract of forty or more."""
    lines = [
        line
        for line in read_lines(data / "acl_anthology/papers.jsonl.gz")
        if len((line["abstract"] or "").split()) >= 40 and len(line["title"].split()) >= 3
    ]
    chosen = np.sort(np.random.default_rng(0).permutation(len(lines))[:most]).tolist()
    ids, titles, abstracts = ([lines[at][name] for at in chosen] for name in ("id", "title", "abstract"))
    papers.add("acl", ids, titles, as_one_sentence(abstracts))


def _bare(papers: Papers, part: str, task: Any, asked: str = "") -> BareTask:
    rows, views = [], []
    for name in task.texts.ids:
        base, _, kind = name.partition("#")
        question = papers.rows.get(f"{asked}/{name}")
        rows.append(papers.rows[f"{part}/{base}"] if question is None else question)
        views.append(VIEWS.get(kind, 0) if question is None else 0)
    texts = Texts.of_ids(list(task.texts.ids), lacking="the bundle has tokens alone")
    return replace(task, texts=texts), np.array(rows, np.uint32), np.array(views, np.uint8)
