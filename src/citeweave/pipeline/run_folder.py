"""How a recipe is run: everything that is not the recipe itself. Does not run anything.

The folder of a run: its stages, each skipped while its inputs stay the same, and the record of what was done.

    run/recipe.toml         the recipe as it was resolved
    run/run.json            corpus, options, stages with their keys, bands, results
    run/corpus/             the corpus without the references that are asked for; run/audited/ before it where papers left
    run/texts/              the texts that are trained on in place of papers, where the recipe says so
    run/intents/            intents of citations that were found in citing sentences, where rules need them: see `annotate`
    run/graph/ samples/ aligned/     see `graph`, `mine` and `align`; aligned/ where the recipe aligns sentences
    run/init-NAME/ aligner-NAME/     whole runs of recipes whose models are the start model, or the aligner
    run/model/              the trained encoder; those of further seeds are model-1/, model-2/, ...
    run/report-start/SUITE/, run/report/SUITE/     of the start model and of the trained ones (report-1/, ...)
    run/report/SUITE (SPACE)/        the same in an aspect space, where the model has heads
    run/comparison.md

A stage's key is a hash of everything it depends on. The record says which key made the folder that is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.core.artifact import MANIFEST, explain_version_mismatch, seal_payload, unseal_payload
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json, read_input, write_json
from citeweave.core.progress import Reporter
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions
from citeweave.version import __version__

BANDS = ("fit", "recipe", "auto", "share")
NOTHING = "none"
CORPUS = "corpus"
"""The suite that is made from the corpus itself."""

INTENTS = "intents"
"""The suite that is made from the intents of its citations."""

AUTO = "auto"
"""Of intents: those of the corpus, or those that a classifier finds."""

CHAIN = "recipe:"
"""Before the name of a recipe whose model is the start model, or the aligner."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of running a recipe: everything that the recipe itself does not say."""

    init: str = ""
    """Start model in place of the recipe's; of a chain, in place of the first recipe's."""

    aligner: str = ""
    """Frozen encoder that aligns sentences, in place of the recipe's alignment.encoder."""

    suites: Mapping[str, Path] = field(default_factory=dict)
    """Published suites to judge by, with the folders of their files; their papers are not trained on."""

    intent_suite: Path | None = None
    """Judge by held-out intents too: the folder of an overlay of the corpus, or of the corpus, whose own intents count."""

    tasks: tuple[str, ...] = ()
    """Only these tasks, in the suites that have one of them; empty = all."""

    seeds: int = 0
    """So many models; 0 = as many as the recipe says."""

    held_out: str = "share:0.1"
    """Papers whose references are asked for and not trained on: share:0.1, year:2016, or `none`: no suite of the corpus."""

    queries: int = 1000
    """At most so many queries a task of the corpus suite."""

    bands: str = "fit"
    """Rank bands: `recipe` = as written, `auto` = chosen for the corpus, `share` = the same share of the pool,
    `fit` = as written where the corpus is large enough for them, else chosen."""

    tables: Mapping[str, Path] = field(default_factory=dict)
    """Files of pairs that rules name."""

    pool: Path | None = None
    """File with the ids of the papers that samples are chosen from; None = all of the corpus."""

    intents: str = AUTO
    """Of citations, where rules need them: `auto` = those of the corpus, found by a classifier where it has none;
    `corpus`, `sections`, or the folder of an overlay of the corpus."""

    classifier: Path | None = None
    """Folder of the classifier for `auto`; None = the one that comes with citeweave."""

    device: str = "auto"
    cache: Path | None = None
    """Folder for vectors of start models, shared between runs."""

    resamples: int = 10_000
    """Of the comparison with the start model."""

    overwrite: bool = False
    shared: Path | None = None
    """Folder for stages that several runs have in common (a sweep's); None = all in the run's own."""

    def __post_init__(self) -> None:
        choose(self.bands, BANDS, "--bands")
        if self.seeds < 0:
            raise UserError(f"--seeds is {self.seeds}; it must be 1 or more, or 0 for as many as the recipe says")
        if self.classifier is not None and self.intents != AUTO:
            raise UserError(
                f"--classifier finds intents, and --intents {self.intents} gives them; leave one of the two out"
            )
        if CORPUS in self.suites:
            raise UserError(
                "--suite corpus=... is made from --corpus itself; leave it out, or turn it off with --held-out none"
            )
        if self.suite_options is None and self.intent_suite is not None:
            raise UserError("--suite intents asks for held-out references; leave out --held-out none")
        if self.suite_options is None and not self.suites:
            raise UserError("--held-out none leaves nothing to judge by; give --suite NAME=FOLDER too")

    @property
    def suite_options(self) -> CorpusSuiteOptions | None:
        """Return how the corpus suite is made; None if nothing is held out."""
        if self.held_out == NOTHING:
            return None
        return CorpusSuiteOptions(held_out=self.held_out, queries=self.queries)


# The folder of a run: its stages, each skipped while its inputs stay the same, and the record of what was done.

RECORD = "run.json"
RECIPE = "recipe.toml"
VERSION = 1
_SHARED = ("audited", "corpus", "texts", "intents", "graph", "samples", "aligned", "report-start", "init-", "aligner-")


@dataclass
class RunFolder:
    """The folder of a run: its finished stages, and the record run.json."""

    folder: Path
    identity: dict[str, Any]
    """What makes it this run and no other: recipe, corpus, start model, what is held out."""

    reporter: Reporter
    shared: Path | None = None
    overwrite: bool = False
    record: dict[str, Any] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Open the folder of a run with the record of earlier stages; the folder of another run is refused."""
        check_identity(self.folder, self.identity, overwrite=self.overwrite)
        self.record = read_record(self.folder) or {"version": VERSION, "stages": {}}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record |= {"identity": self.identity, "citeweave": __version__}
        self._write()

    def place(self, stage: str, key: str) -> Path:
        """Return the folder of a stage; stages that several runs share are named by their key."""
        if self.shared is not None and stage.startswith(_SHARED):
            return self.shared / f"{stage}-{key[:12]}"
        return self.folder / stage

    def is_done(self, stage: str, key: str) -> bool:
        """Return whether a stage was made from the same inputs and its result still exists."""
        entry = self.record["stages"].get(stage)
        if not isinstance(entry, dict) or entry.get("key") != key:
            return False
        return entry.get("folder") is None or mark_of(self.folder / entry["folder"]) == entry.get("mark")

    def run(self, stage: str, inputs: Any, make: Callable[[Path], Mapping[str, Any] | None]) -> Path:
        """Run a stage unless it is done; `make` gets its folder, and what it returns goes into the record."""
        key = key_of(inputs)
        folder = self.place(stage, key)
        if self.is_done(stage, key):
            self.skipped.append(stage)
            return self.folder / (self.record["stages"][stage]["folder"] or folder.resolve())
        before = mark_of(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        facts = dict(make(folder) or {})
        made = mark_of(folder)
        (self.skipped if made is not None and made == before else self.made).append(stage)
        entry = {"key": key, "folder": None if made is None else self._kept(folder), "mark": made, "facts": facts}
        self.record["stages"][stage] = entry
        self._write()
        return folder

    def _kept(self, folder: Path) -> str:
        """Return a stage folder as the record names it: relative inside the run, so that a run can be moved."""
        inside = folder.is_relative_to(self.folder)
        return folder.relative_to(self.folder).as_posix() if inside else str(folder.resolve())

    def facts(self, stage: str) -> dict[str, Any]:
        """Return what a stage reported when it was made."""
        return dict(self.record["stages"].get(stage, {}).get("facts", {}))

    def _write(self) -> None:
        write_json(self.folder / RECORD, seal_payload(self.record))

    def keep(self, **values: Any) -> None:
        """Write values into the record of the run."""
        self.record |= values
        self._write()


def check_identity(folder: Path, identity: dict[str, Any], *, overwrite: bool) -> None:
    """Refuse a folder that holds something else, or another run that already has a model."""
    found = read_record(folder)
    if found is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is no run of citeweave (no {RECORD}); choose another -o")
    known = (found or {}).get("identity", identity)
    has_model = any(stage.startswith("model") for stage in (found or {}).get("stages", {}))
    if known != identity and has_model and not overwrite:
        raise UserError(
            f"{folder} holds another run ({_difference(known, identity)}); choose another -o, or --overwrite"
        )


def key_of(inputs: Any) -> str:
    return hash_json(inputs)


def mark_of(folder: Path) -> str | None:
    """Return the content hash of an artifact, or of the run inside a folder; None if it is neither.

    The time of its making counts too: an artifact that was made again is another one.
    """
    for name in (MANIFEST, RECORD):
        try:
            value = json.loads(read_input(folder / name))
            return str(value["hash"]) + str(value.get("made", "")) if name == MANIFEST else str(value["result"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return None


def read_record(folder: Path) -> dict[str, Any] | None:
    """Read the record run.json of a run folder; None if there is none."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        told = json.loads(read_input(path))
        if isinstance(told, dict) and told.get("version") != VERSION:
            raise UserError(f"{path} is a record {explain_version_mismatch(told.get('version'), VERSION, 'choose another -o')}")
        found = unseal_payload(told)
    except (ValueError, RecursionError):
        found = {}
    if not isinstance(found.get("stages"), dict):
        raise UserError(f"{path} is damaged; choose another -o, or remove the folder")
    return found


def _difference(known: Any, asked: Any) -> str:
    """Describe where the identities of two runs differ.

    >>> _difference({"recipe": {"mining": {"count": 5}}}, {"recipe": {"mining": {"count": 7}}})
    'recipe.mining.count is 5 there and 7 here'
    """
    left, right = _flat(known), _flat(asked)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    shown = [f"{name} is {left.get(name, 'absent')} there and {right.get(name, 'absent')} here" for name in names[:3]]
    return "; ".join([*shown, *(["..."] if len(names) > 3 else [])])


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        name: each
        for key, inner in value.items()
        for name, each in _flat(inner, f"{path}.{key}" if path else str(key)).items()
    }
