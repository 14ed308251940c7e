"""The options of a run, and its folder: finished stages, skipped while their inputs stay the same, and run.json.

    run/recipe.toml         the recipe as it was resolved
    run/run.json            corpus, options, stages with their keys, bands, results
    run/audited/            the corpus without papers of published suites, if it had any
    run/corpus/             the corpus without the held-out references
    run/texts/              the texts that are trained on in place of papers, if the recipe says so
    run/intents/            citation intents that a classifier found, where rules need them: see `annotate`
    run/graph/ samples/ aligned/     see `graph`, `mine` and `align`; aligned/ if the recipe aligns sentences
    run/init-NAME/ aligner-NAME/     complete runs of recipes whose models are the start model, or the aligner
    run/model/              the trained encoder; those of further seeds are model-1/, model-2/, ...
    run/report-start/SUITE/          report of the start model
    run/report/SUITE/                reports of the trained models; those of further seeds are in report-1/, ...
    run/report/SUITE (SPACE)/        reports in an aspect space, if the model has heads
    run/comparison.md

Options say what the recipe itself does not: `RunOptions(suites={"csfcube": Path("data/csfcube")}, seeds=3)`.

The key of a stage is a hash of everything it depends on. The record says with which key a folder was made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from citeweave.core.artifact import MANIFEST, explain_version_mismatch, seal_payload, unseal_payload
from citeweave.core.errors import UserError
from citeweave.core.executor import Executor
from citeweave.core.files import hash_json, read_input, write_json
from citeweave.core.options import INTERNAL, Flag, Named, OneOf, Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.version import __version__

CHAIN = "recipe:"
"""Prefix of the name of a recipe whose model is the start model, or the aligner."""

NOTHING = "none"
CORPUS = "corpus"
"""Name of the suite that is made from the corpus itself."""

INTENTS = "intents"
"""Name of the suite that is made from the intents of its citations."""

AUTO = "auto"
"""Value of --intents: those of the corpus, or those that a classifier finds."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run, kept in its folder: everything that the recipe itself does not say."""

    init: str = ""
    """Start model instead of the recipe's: minilm, a folder, or a Hugging Face name; in a chain of recipes, instead of
    the first one's."""

    aligner: str = ""
    """Encoder that aligns sentences, instead of the recipe's; takes the same values as --init."""

    suites: Annotated[Mapping[str, Path], Flag("--suite"), Named("csfcube=data/csfcube")] = field(default_factory=dict)
    """NAME=FOLDER: additional suite to evaluate on, whose papers are not trained on; for intents=FOLDER, the output of
    `citeweave annotate`, or a corpus with intents. May be repeated."""

    intent_suite: Annotated[Path | None, INTERNAL] = None
    """Evaluate on held-out intents too: the folder of an overlay of the corpus, or of the corpus for its own intents."""

    tasks: Annotated[tuple[str, ...], Flag("--task")] = ()
    """Evaluate on this task only; may be repeated."""

    seeds: Annotated[int, Range(0)] = 0
    """Number of models to train, with consecutive seeds; 0 = the recipe's number."""

    held_out: str = "share:0.1"
    """Papers whose references are held out for evaluation: share:0.1 (a random tenth), year:2016 (from 2016 on), or
    none."""

    queries: Annotated[int, Range(1)] = 1000
    """Maximum number of queries for each task built from the corpus."""

    bands: Annotated[str, OneOf("fit", "recipe", "auto", "share")] = "fit"
    """Neighbor ranks to select from: recipe (the recipe's), auto (chosen for the corpus), share (the recipe's, scaled to
    the corpus), or fit (the recipe's if there are enough papers, otherwise auto)."""

    tables: Annotated[Mapping[str, Path], Flag("--table"), Named("coviews=pairs.tsv")] = field(default_factory=dict)
    """NAME=FILE: table of paper pairs and their counts that the recipe calls NAME; may be repeated."""

    pool: Path | None = None
    """File with the ids of papers that may be positives or negatives, one per line."""

    intents: str = AUTO
    """Citation intents: auto (those in the corpus, or predicted if it has none), corpus (only those), sections (also those
    inferred from section headings), or a folder from `citeweave annotate`."""

    classifier: Path | None = None
    """Folder of an intent classifier to use instead of the built-in one."""

    device: str = "auto"
    """Device: cpu, cuda or auto."""

    cache: Path | None = None
    """Cache folder for vectors of start models; default: $CITEWEAVE_CACHE or ~/.cache/citeweave."""

    resamples: Annotated[int, INTERNAL] = 10_000
    """Bootstrap resamples of the comparison with the start model."""

    overwrite: bool = False
    """Replace an output folder made from different inputs or options."""

    shared: Annotated[Path | None, INTERNAL] = None
    """Folder for stages that several runs of a sweep have in common; None = all stages are in the run folder."""

    def __post_init__(self) -> None:
        check(self)
        if self.classifier is not None and self.intents != AUTO:
            raise UserError(
                f"--classifier finds intents, but --intents {self.intents} provides them; leave out one of the two"
            )
        if CORPUS in self.suites:
            raise UserError(
                "--suite corpus=... is made from --corpus itself; leave it out, or turn it off with --held-out none"
            )
        if self.suite_options is None and self.intent_suite is not None:
            raise UserError("--suite intents needs held-out references; leave out --held-out none")
        if self.suite_options is None and not self.suites:
            raise UserError("--held-out none leaves nothing to evaluate on; give --suite NAME=FOLDER too")

    @property
    def suite_options(self) -> CorpusSuiteOptions | None:
        """Return how the corpus suite is made; None if nothing is held out."""
        if self.held_out == NOTHING:
            return None
        return CorpusSuiteOptions(held_out=self.held_out, queries=self.queries)


# --- the folder of a run ---

RECORD = "run.json"
RECIPE = "recipe.toml"
VERSION = 1
_SHARED_STAGES = (
    *("audited", "corpus", "texts", "intents", "graph", "samples", "aligned", "report-start", "init-", "aligner-"),
)


@dataclass
class RunFolder:
    """The folder of a run: its finished stages, and the record run.json."""

    folder: Path
    identity: dict[str, Any]
    """What identifies the run: recipe, corpus, start model, what is held out."""

    options: RunOptions = field(default_factory=RunOptions)
    reporter: Reporter = field(default_factory=lambda: QUIET)
    executor: Executor | None = None
    """Makes the shards of stages that work in shards, on a cluster; None = this process."""

    record: dict[str, Any] = field(default_factory=dict)
    executed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Open the folder of a run with the record of earlier stages; the folder of another run is refused."""
        check_identity(self.folder, self.identity, overwrite=self.options.overwrite)
        self.record = read_record(self.folder) or {"version": VERSION, "stages": {}}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record |= {"identity": self.identity, "citeweave": __version__}
        self._write()

    @property
    def writing(self) -> dict[str, Any]:
        """What every function that writes a folder takes: whether to replace it, and how to report progress."""
        return {"overwrite": self.options.overwrite, "reporter": self.reporter}

    def place(self, stage: str, key: str) -> Path:
        """Return the folder of a stage; stages that several runs share are named by their key."""
        if self.options.shared is not None and stage.startswith(_SHARED_STAGES):
            return self.options.shared / f"{stage}-{key[:12]}"
        return self.folder / stage

    def is_done(self, stage: str, key: str) -> bool:
        """Return whether a stage of the run was made from the same inputs and its result still exists."""
        entry = self.record["stages"].get(stage)
        if not isinstance(entry, dict) or entry.get("key") != key:
            return False
        return entry.get("folder") is None or _content_mark(self.folder / entry["folder"]) == entry.get("mark")

    def run(self, stage: str, inputs: Any, make: Callable[[Path], Mapping[str, Any] | None]) -> Path:
        """Run a stage unless it is done; `make` gets its folder, and what it returns goes into the record."""
        key = hash_json(inputs)
        folder = self.place(stage, key)
        if self.is_done(stage, key):
            self.skipped.append(stage)
            return self.folder / (self.record["stages"][stage]["folder"] or folder.resolve())
        before = _content_mark(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        metadata = dict(make(folder) or {})
        mark = _content_mark(folder)
        (self.skipped if mark is not None and mark == before else self.executed).append(stage)
        name = None if mark is None else self._recorded_name(folder)
        entry = {"key": key, "folder": name, "mark": mark, "facts": metadata}
        self.record["stages"][stage] = entry
        self._write()
        return folder

    def _recorded_name(self, folder: Path) -> str:
        """Return a stage folder as the record names it: relative inside the run, so that a run can be moved."""
        inside = folder.is_relative_to(self.folder)
        return folder.relative_to(self.folder).as_posix() if inside else str(folder.resolve())

    def stage_metadata(self, stage: str) -> dict[str, Any]:
        """Return the metadata that a stage of the run recorded: counts, bands, losses."""
        return dict(self.record["stages"].get(stage, {}).get("facts", {}))

    @property
    def bands(self) -> dict[str, Any]:
        """Return the rank bands that the samples of the run were drawn from; empty if no rule has a band."""
        return dict(self.stage_metadata("samples").get("bands", {}))

    def _write(self) -> None:
        write_json(self.folder / RECORD, seal_payload(self.record))

    def record_values(self, **values: Any) -> None:
        """Add values to the record run.json."""
        self.record |= values
        self._write()


def check_identity(folder: Path, identity: dict[str, Any], *, overwrite: bool) -> None:
    """Refuse a run folder that holds something else, or another run that already has a model."""
    record = read_record(folder)
    if record is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not a run of citeweave (no {RECORD}); choose another -o")
    known = (record or {}).get("identity", identity)
    has_model = any(stage.startswith("model") for stage in (record or {}).get("stages", {}))
    if known != identity and has_model and not overwrite:
        raise UserError(
            f"{folder} holds another run ({_difference(known, identity)}); choose another -o, or --overwrite"
        )


def _content_mark(folder: Path) -> str | None:
    """Return the content hash of an artifact or run with the time it was made; None if a folder is neither."""
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
        payload = json.loads(read_input(path))
        if isinstance(payload, dict) and payload.get("version") != VERSION:
            reason = explain_version_mismatch(payload.get("version"), VERSION, "choose another -o")
            raise UserError(f"{path} is a record {reason}")
        record = unseal_payload(payload)
    except (ValueError, RecursionError):
        record = {}
    if not isinstance(record.get("stages"), dict):
        raise UserError(f"{path} is damaged; choose another -o, or remove the folder")
    return record


def _difference(existing: Any, requested: Any) -> str:
    """Describe where the identities of two runs differ.

    >>> _difference({"recipe": {"mining": {"count": 5}}}, {"recipe": {"mining": {"count": 7}}})
    'recipe.mining.count is 5 there and 7 here'
    """
    left, right = _flat(existing), _flat(requested)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    parts = [f"{name} is {left.get(name, 'absent')} there and {right.get(name, 'absent')} here" for name in names[:3]]
    return "; ".join([*parts, *(["..."] if len(names) > 3 else [])])


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        name: each
        for key, inner in value.items()
        for name, each in _flat(inner, f"{path}.{key}" if path else str(key)).items()
    }
