"""Every command asks for all its missing extras before it does anything, and needs no others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from citeweave import Corpus
from citeweave.cli import command_names
from citeweave.core.errors import EXTRAS

from .conftest import prepare, write_jsonl

RUNNER = """
import contextlib, io, json, sys

from importlib.machinery import PathFinder

blocked, commands = json.load(sys.stdin)
find = PathFinder.find_spec
hide = lambda name, *more: None if name.partition(".")[0] in blocked else find(name, *more)
PathFinder.find_spec = staticmethod(hide)  # some call it on an instance
from citeweave.cli import main

ends = []
for words in commands:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main(words)
            code = 0
        except SystemExit as end:
            code = end.code or 0
    ends.append([code, errors.getvalue()])
print(json.dumps(ends), file=sys.__stdout__)
"""

NOT_STARTED = ("serve", "mcp", "explore page", "run on", "sweep", "annotate")
"""What is only asked for its needs: it would not end, is `run` again, or reads as `intents evaluate` does."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, bert):
    """Something for every command to read."""
    place = tmp_path_factory.mktemp("made")
    (place / "library.bib").write_text("@article{a, title={The cell grows}, year={2001}}\n")
    rows = [{"string": f"We use [{i}].", "label": ("method", "background", "result")[i % 3]} for i in range(30)]
    write_jsonl(place / "labeled.jsonl", rows)
    (place / "people.jsonl").write_text('{"reviewer": "Ann", "papers": []}\n')
    (place / "ids.txt").write_text("nobody\n")
    prepare(
        f"synthesize -o {place}/corpus --papers 80 --workers 1",
        f"graph {place}/corpus -o {place}/graph --dim 8",
        f"mine {place}/corpus --recipe specter --graph {place}/graph -o {place}/samples",
        f"embed {place}/corpus --model {bert} --device cpu -o {place}/vectors",
        f"embed {place}/corpus --model weave --device cpu --sentences --runtime torch -o {place}/sentences",
        f"index {place}/corpus --model {bert} --device cpu -o {place}/index",
        f"evaluate bm25 --suite corpus --data {place}/corpus --queries 5 -o {place}/report --cache {place}/cache",
    )
    return place


def commands(place, bert):
    """A small use of every command; of some, several."""
    corpus, cpu, out = f"{place}/corpus", "--device cpu", f"-o {place}/out"
    training = "--set training.steps=2 --set training.batch=4"
    suite = f"--suite corpus --data {corpus} --queries 5 --cache {place}/cache"
    return {
        "synthesize": f"synthesize {out}/synthesize --papers 40 --workers 1",
        "import": f"import {place}/library.bib {out}/import",
        "info": f"info {corpus}",
        "derive": f"derive {corpus} --texts titles {out}/derive",
        "annotate": f"annotate {corpus} {out}/annotate --no-keep-given --max-contexts 1 {cpu}",
        "annotate given": f"annotate {corpus} --classifier none {out}/annotate-none",
        "intents train": f"intents train {place}/labeled.jsonl {out}/intents-train --base {bert} {cpu}",
        "intents evaluate": f"intents evaluate default --data {place}/labeled.jsonl {cpu}",
        "graph": f"graph {corpus} {out}/graph --dim 8",
        "graph edges": f"graph {corpus} {out}/graph-edges --dim 8 --method edges {cpu}",
        "mine": f"mine {corpus} --recipe specter --graph {place}/graph {out}/mine",
        "align": f"align {corpus} --samples {place}/samples --model {bert} {out}/align {cpu} --by abstracts",
        "train": f"train {corpus} --samples {place}/samples --init {bert} {training} {out}/train {cpu}",
        "train lora": f"train {corpus} --samples {place}/samples --init {bert} {training} {out}/lora {cpu} "
        "--set training.parts=lora",
        "bundle": f"bundle {corpus} --samples {place}/samples --init {bert} {out}/bundle",
        "run": f"run specter --corpus {corpus} --init {bert} {training} --queries 5 --cache {place}/cache {out}/run {cpu}",
        "run on": f"run specter --corpus {corpus} --init {bert} {training} {out}/run-on {cpu} --on ray",
        "sweep": f"sweep specter --over training.seed=0,1 --corpus {corpus} --init {bert} {training} --queries 5 "
        f"--cache {place}/cache {out}/sweep {cpu}",
        "recipes": "recipes",
        "estimate": "estimate specter --papers 1000 --citations 5000",
        "audit": f"audit {place}/samples --corpus {corpus} --graph {place}/graph",
        "audit pictures": f"audit {place}/samples --corpus {corpus} --graph {place}/graph --pictures {place}/out/pictures",
        "convert": f"convert {place}/samples --corpus {corpus} --to specter {out}/convert",
        "model": f"model {bert} {out}/model",
        "embed": f"embed {corpus} --model {bert} {out}/embed {cpu} --runtime torch",
        "embed openvino": f"embed {corpus} --model {bert} {out}/openvino {cpu} --runtime openvino",
        "similar": f"similar {place}/vectors --paper PAPER",
        "similar sentences": f"similar {place}/sentences --paper PAPER",
        "explain": f"explain {corpus} --vectors {place}/sentences --papers PAPER OTHER",
        "index": f"index {corpus} --model {bert} {out}/index {cpu}",
        "index words": f"index {corpus} --words-only {out}/words",
        "change": f"change {place}/index --delete {place}/ids.txt",
        "search": f"search {place}/index cells {cpu}",
        "search words": f"search {place}/index cells --by words",
        "store": f"store {place}/index --lance {place}/out/lance",
        "serve": f"serve {place}/index",
        "mcp": f"mcp {place}/index",
        "explore": f"explore {place}/library.bib --folder {place}/out/explore --once --model {bert} --runtime torch {cpu}",
        "explore page": f"explore {place}/library.bib --folder {place}/out/page",
        "match": f"match {place}/vectors --reviewers {place}/people.jsonl {out}/match.csv",
        "evaluate": f"evaluate {bert} {suite} {out}/evaluate {cpu}",
        "evaluate bm25": f"evaluate bm25 {suite} {out}/bm25",
        "evaluate doc2vec": f"evaluate baseline:doc2vec {suite} {out}/doc2vec",
        "compare": f"compare one={place}/report two={place}/report --resamples 100",
        "benchmark": f"benchmark scitldr {place} {out}/benchmark",
        "copy": f"copy {corpus} file://{place}/out/copy",
        "cache": "cache",
        "doctor": "doctor",
    }


NETWORK = (
    "annotate, intents evaluate, graph edges, align, train, bundle, run, model, embed, similar sentences, "
    "explain, index, search, explore, evaluate"
)
ASKS = {
    **{name: {"minilm"} for name in NETWORK.split(", ")},
    **{name: {"minilm", "lora"} for name in ("train lora", "intents train")},
    "run on": {"minilm", "ray"},
    "sweep": {"minilm", "plots"},
    "audit pictures": {"plots"},
    "embed openvino": {"minilm", "runtimes"},
    "store": {"stores"},
    "serve": {"serve"},
    "mcp": {"assistant"},
    "explore page": {"serve", "minilm"},
    "evaluate doc2vec": {"baselines"},
}
"""What each asks for where nothing is installed; the others ask for nothing."""

USER_ERRORS = "match, benchmark, copy, convert, intents train, intents evaluate, derive, align, estimate"
"""Uses that are refused for their inputs, here or on another machine: it counts what they ask for before that."""


def ended(blocked, lines, place):
    """Exit codes and messages of commands in a process that cannot import the modules of these extras."""
    first, second = Corpus.open(place / "corpus").ids[:2]
    words = [line.replace("PAPER", first).replace("OTHER", second).split() for line in lines]
    installed = {module for extra in EXTRAS.keys() - set(blocked) for module in EXTRAS[extra]}
    modules = sorted({module for extra in blocked for module in EXTRAS[extra]} - installed)
    how = {"input": json.dumps([modules, words]), "env": {**os.environ, "CITEWEAVE_CACHE": str(place / "cache")}}
    ran = subprocess.run([sys.executable, "-c", RUNNER], **how, capture_output=True, text=True, check=True)
    return [(int(code), str(text)) for code, text in json.loads(ran.stdout.splitlines()[-1])]


def asked_for(text):
    found = re.search(r"pip install 'citeweave\[([a-z,]+)\]'", text)
    return set(found[1].split(",")) if found else set()


def test_every_command_has_a_use(tmp_path):
    assert {name for name in commands(tmp_path, tmp_path) if name in command_names()} == {*command_names()}


def test_without_extras_every_command_works_or_asks_for_all_of_them(made, bert):
    uses = commands(made, bert)
    ends = dict(zip(uses, ended(EXTRAS, list(uses.values()), made), strict=True))
    wrong = {}
    for name, (code, text) in ends.items():
        is_line = code == 2 and len(text.strip().splitlines()) == 1 and "internal error" not in text
        works = code == 0 or (is_line and (name in ASKS or name in USER_ERRORS.split(", ")))
        if not works or asked_for(text) != ASKS.get(name, set()):
            wrong[name] = (code, text)
    assert not wrong, json.dumps(wrong, indent=1)


def test_with_what_it_asks_for_every_command_works(made, bert):
    """The others are still missing: nothing is asked for later."""
    uses, wrong, groups = commands(made, bert), {}, {}
    for name, extras in ASKS.items():
        if name not in NOT_STARTED:
            groups.setdefault(frozenset(extras), []).append(name)
    for extras, members in groups.items():
        ends = ended(EXTRAS.keys() - extras, [uses[name] for name in members], made)
        for name, (code, text) in zip(members, ends, strict=True):
            if asked_for(text) or "internal error" in text or (code and name not in USER_ERRORS.split(", ")):
                wrong[name] = (code, text)
    assert not wrong, json.dumps(wrong, indent=1)
