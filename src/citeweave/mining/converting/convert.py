"""`export_samples` and `import_samples`: samples to and from the formats of other projects.

    export_samples(samples, corpus, "out/", to="scincl")          out/train_triples.csv, out/train_metadata.jsonl
    import_samples(["train_triples.csv"], corpus, "samples/")     a folder of samples; the format is guessed

Both account for every record by reason. What the formats look like is told in their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from citeweave.artefacts.writing import matches
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.intake.sources import written_name
from citeweave.errors import EmptyResultError, UserError, choose
from citeweave.files import hash_file
from citeweave.mining.converting import (
    scincl,
    scirepeval,
    sentence_transformers,
    sentence_transformers_writing,
    specter,
    specter_writing,
)
from citeweave.mining.converting.incoming import NAMES
from citeweave.mining.converting.inputs import Inputs, Role, find_inputs
from citeweave.mining.converting.new_files import new_files
from citeweave.mining.converting.options import ExportOptions
from citeweave.mining.converting.outgoing import Outgoing, check_rows
from citeweave.mining.converting.paper_names import PaperNames
from citeweave.mining.sample_blocks import SampleBlock
from citeweave.mining.samples import KIND, VERSION, Samples, new_samples
from citeweave.opening import Source
from citeweave.progress import QUIET, Reporter
from citeweave.tally import Count, Tally

FORMATS = {
    "scincl": "SciNCL: train_triples.csv and train_metadata.jsonl",
    "specter": "SPECTER: data.json, metadata.json and train.txt",
    "scirepeval": "SciRepEval: JSON lines of query, pos and neg",
    "sentence_transformers": "sentence-transformers: columns anchor, positive, negative as Parquet or JSON lines",
}

_READERS_VERSION = 1
"""Counted up when the same files would give other samples, so that none of an older version is taken for them."""


@dataclass(frozen=True, slots=True)
class In:
    """How a format is read."""

    role: Role
    read: Callable[[Sequence[Source], Sequence[Source], PaperNames, Tally], Iterator[SampleBlock]]
    kinds: tuple[str, ...]
    """What is counted."""

    numbers: str = ""
    """The prefix of ids that are bare numbers in this format."""


@dataclass(frozen=True, slots=True)
class Out:
    """How a format is written."""

    files: Callable[[ExportOptions], tuple[str, ...]]
    every_file: tuple[str, ...]
    write: Callable[[Outgoing, dict[str, Path]], int]
    options: tuple[str, ...] = ()
    """The options that it takes."""


IN = {
    "scincl": In(scincl.role, scincl.read, ("triplets",), numbers="s2"),
    "specter": In(specter.role, specter.read, ("queries", "pairs")),
    "scirepeval": In(scirepeval.role, scirepeval.read, ("triplets",), numbers="s2"),
    "sentence_transformers": In(sentence_transformers.role, sentence_transformers.read, ("rows",)),
}

OUT = {
    "scincl": Out(scincl.files, scincl.EVERY_FILE, scincl.write, ("gzip",)),
    "specter": Out(
        specter_writing.files, specter_writing.EVERY_FILE, specter_writing.write, ("leave_out", "val", "test")
    ),
    "scirepeval": Out(scirepeval.files, scirepeval.EVERY_FILE, scirepeval.write),
    "sentence_transformers": Out(
        sentence_transformers_writing.files,
        sentence_transformers_writing.EVERY_FILE,
        sentence_transformers_writing.write,
        ("columns", "negatives", "file_type", "ids"),
    ),
}


def export_samples(
    samples: Samples,
    corpus: Corpus,
    folder: str | Path,
    *,
    to: str,
    options: ExportOptions | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> dict[str, Any]:
    """Write samples in the format `to` into a folder; what became of every record comes back."""
    out, options = OUT[choose(to, OUT, "--to")], options or ExportOptions()
    _refuse_foreign_options(options, to)
    check_rows(samples, corpus)
    tally = Tally({})
    names = out.files(options)
    with (
        new_files(Path(folder), names, every=out.every_file, overwrite=overwrite) as paths,
        reporter.task("writing", unit="records") as advance,
    ):
        outgoing = Outgoing(samples, corpus, options, tally, advance)
        if not out.write(outgoing, paths):
            raise EmptyResultError(f"{samples.folder} has nothing to write as {to} ({_reasons(tally)})")
    return {"to": to, "files": list(names), **tally.as_json()}


def import_samples(
    files: str | Path | Sequence[str | Path],
    corpus: Corpus,
    folder: str | Path,
    *,
    format: str | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Samples:
    """Read samples of another format into a new folder of samples, whose rows are those of the corpus.

    Files, or folders whose files are taken. A folder that already holds this very import is opened as it is.
    """
    if format is not None:
        choose(format, IN, "--from")
    given = [files] if isinstance(files, str | Path) else files
    inputs = find_inputs([Path(path) for path in given], {name: way.role for name, way in IN.items()}, format)
    number = len(inputs.files)
    reporter.say(f"{inputs.format}: {number} file{'s' * (number > 1)}{' (guessed)' * inputs.guessed}")
    for name, reason in inputs.left_aside.items():
        reporter.say(f"left aside: {name} ({reason})")
    recipe = _recipe(inputs, corpus)
    if matches(Path(folder), KIND, VERSION, recipe):
        reporter.say(f"{folder} already holds these samples; nothing to do")
        return Samples.open(folder)
    facts: dict[str, Any] = {
        "corpus_folder": str(corpus.folder),
        "source": [written_name(path) for path in inputs.files],
        "format": inputs.format,
        "guessed": inputs.guessed,
        "left_aside": inputs.left_aside,
    }
    with new_samples(folder, NAMES, corpus=corpus.hash, recipe=recipe, facts=facts, overwrite=overwrite) as writer:
        tally = _read_all(inputs, corpus, writer.append, reporter)
        if not writer.count:
            raise EmptyResultError(f"{', '.join(facts['source'])}: no sample could be made ({_reasons(tally)})")
        writer.facts |= tally.as_json()
        return writer.finish()


def _read_all(inputs: Inputs, corpus: Corpus, append: Callable[[SampleBlock], None], reporter: Reporter) -> Tally:
    way = IN[inputs.format]
    tally = Tally({kind: Count() for kind in way.kinds})
    names = PaperNames(corpus, tally, numbers=way.numbers)
    with reporter.task("reading", unit="samples") as advance:
        for block in way.read([Source(p) for p in inputs.samples], [Source(p) for p in inputs.queries], names, tally):
            append(block)
            advance(len(block))
    return tally


def _recipe(inputs: Inputs, corpus: Corpus) -> dict[str, Any]:
    described = [{"name": written_name(path), "sha256": hash_file(path)} for path in inputs.files]
    return {"corpus": corpus.hash, "format": inputs.format, "inputs": described, "readers": _READERS_VERSION}


def _refuse_foreign_options(options: ExportOptions, to: str) -> None:
    """An option that the format does not have must not be lost silently."""
    for option in fields(ExportOptions):
        if getattr(options, option.name) != option.default and option.name not in OUT[to].options:
            takers = " and ".join(name for name, out in OUT.items() if option.name in out.options)
            flag = f"--{option.name.replace('_', '-')}"
            raise UserError(f"{flag} is an option of --to {takers}, not of {to}; leave it out")


def _reasons(tally: Tally) -> str:
    counts = [f"{n:,} {kind}: {why}" for kind, count in tally.counts.items() for why, n in count.rejected.items()]
    return "; ".join(counts) or "no record was found"
