"""Samples in the formats of other projects, converted by `export_samples` and `import_samples`, one file per format.

    export_samples(samples, corpus, "out/", to="scincl")          out/train_triples.csv, out/train_metadata.jsonl
    import_samples(["train_triples.csv"], corpus, "samples/")     a folder of samples; the format is guessed

Both count every record by reason. The formats are described in their own files. An import takes files and folders, and
every file has a role:

    samples    query, positive and negative: train_triples.csv, data.json, ...
    queries    lists of ids that say which queries to take: train.txt, val.txt, test.txt
    papers     titles and abstracts, not read because papers come from the corpus

An export writes its files under hidden names and renames them together at the end. Files that the same format left there
before are refused, or replaced all together: an old val.txt does not stay beside a new train.txt.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from citeweave.core.artifact import MANIFEST, artifact_matches
from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.files import hash_file, move, resolve_output, sync
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.input_files import printable_name
from citeweave.mining.formats import sentence_transformers, specter, triplets
from citeweave.mining.formats.triplets import NAMES, ExportedSamples, check_rows
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import KIND, VERSION, SampleBlock, Samples, new_samples
from citeweave.mining.tables import PaperLookup

Recognizer = Callable[[FileHead], str | None]
"""Returns the role of a file in a format by its beginning, None if it is not of this format."""

PAPERS = "papers come from the corpus"


@dataclass(slots=True)
class ConversionInputs:
    """The files to convert in an import of samples, by role, and those that are not read."""

    format: str
    guessed: bool
    samples: list[Path] = field(default_factory=list)
    queries: list[Path] = field(default_factory=list)
    left_aside: dict[str, str] = field(default_factory=dict)
    """Name of every file that is not read, and why."""

    @property
    def files(self) -> list[Path]:
        return [*self.samples, *self.queries]


def _find_sample_files(
    paths: Sequence[Path], recognizers: Mapping[str, Recognizer], format: str | None
) -> ConversionInputs:
    """Find the files of one sample format, which is guessed from their content if it is not named."""
    named = {path: True for path in paths if not path.is_dir()}
    is_named = named | {
        inner: False for path in paths if path.is_dir() for inner in _files_in(path) if inner not in named
    }
    heads = {path: _head(path) for path in is_named}
    inputs = ConversionInputs(format or _guess_format(heads, recognizers), guessed=format is None)
    for path, head in heads.items():
        role = recognizers[inputs.format](head)
        if role == "samples" or (role is None and is_named[path] and format):
            inputs.samples.append(path)
        elif role == "queries":
            inputs.queries.append(path)
        elif role is None and is_named[path]:
            raise UserError(f"{path} is not a file of {inputs.format} like the others; convert one format at a time")
        else:
            inputs.left_aside[printable_name(path)] = PAPERS if role == "papers" else f"no file of {inputs.format}"
    if not inputs.samples:
        named_paths = ", ".join(map(str, paths))
        raise InputError(f"{named_paths}: no samples of {inputs.format} found; check the path or --from")
    return inputs


def _guess_format(heads: Mapping[Path, FileHead], recognizers: Mapping[str, Recognizer]) -> str:
    """Guess the sample format from the beginnings of the files; refuse none or several."""
    formats = {name for head in heads.values() for name, role in recognizers.items() if role(head) == "samples"}
    if len(formats) == 1:
        return formats.pop()
    where = ", ".join(map(str, list(heads)[:3])) or "nothing"
    if formats:
        raise UserError(
            f"{where}: files of {' and '.join(sorted(formats))}; convert one format at a time, or use --from"
        )
    raise InputError(
        f"{where}: no samples in a format that citeweave knows; name it with --from {'|'.join(recognizers)}"
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _head(path: Path) -> FileHead:
    if not path.exists():
        raise UserError(f"{path} does not exist; check the path")
    return Source(path).head()


# Files that are published together.


@contextmanager
def _new_files(
    folder: Path, names: Sequence[str], *, every: Sequence[str], overwrite: bool = False
) -> Iterator[dict[str, Path]]:
    """Yield temporary paths for the files of an export, and publish them together; `every` lists the format's names."""
    _refuse_existing(folder, every, overwrite=overwrite)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be created ({error.strerror}); name another place with -o") from None
    mark = secrets.token_hex(4)  # no other file has such a name
    paths = {name: folder / f".{name}.citeweave-{mark}" for name in names}
    try:
        yield paths
    except BaseException:
        for path in paths.values():
            path.unlink(missing_ok=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise
    for path in paths.values():
        sync(path)
    for name in set(every) - set(names):
        (folder / name).unlink(missing_ok=True)
    for name, path in paths.items():
        move(path, resolve_output(folder / name))
    sync(folder)


def _refuse_existing(folder: Path, every: Sequence[str], *, overwrite: bool) -> None:
    """Refuse an export into a file, an artifact, or a folder that already holds files of the format."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder with -o")
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} holds an artifact of citeweave; name another folder with -o")
    existing = [name for name in every if (folder / name).exists()]
    if existing and not overwrite:
        raise UserError(f"{folder} already holds {', '.join(existing)}; choose another -o or --overwrite")


# The formats.

FORMATS = {
    "scincl": "SciNCL: train_triples.csv and train_metadata.jsonl",
    "specter": "SPECTER: data.json, metadata.json and train.txt",
    "scirepeval": "SciRepEval: JSON lines of query, pos and neg",
    "sentence_transformers": "sentence-transformers: columns anchor, positive, negative as Parquet or JSON lines",
}

_READERS_VERSION = 1
"""Increased when the same files would give other samples, so that older imports no longer match."""


@dataclass(frozen=True, slots=True)
class FormatReader:
    """How a sample format to convert from is recognized and read."""

    recognize: Recognizer
    read: Callable[[Sequence[Source], Sequence[Source], PaperLookup, Tally], Iterator[SampleBlock]]
    kinds: tuple[str, ...]
    """Kinds of records that are counted."""

    numbers: str = ""
    """The prefix of ids that are bare numbers in this format."""


@dataclass(frozen=True, slots=True)
class FormatWriter:
    """How a sample format is written."""

    file_names: Callable[[ExportOptions], tuple[str, ...]]
    every_file: tuple[str, ...]
    write: Callable[[ExportedSamples, dict[str, Path]], int]
    options: tuple[str, ...] = ()
    """The export options that the format has."""


READERS = {
    "scincl": FormatReader(triplets.recognize_scincl, triplets.read_scincl, ("triplets",), numbers="s2"),
    "specter": FormatReader(specter.recognize, specter.read, ("queries", "pairs")),
    "scirepeval": FormatReader(triplets.recognize_scirepeval, triplets.read_scirepeval, ("triplets",), numbers="s2"),
    "sentence_transformers": FormatReader(sentence_transformers.recognize, sentence_transformers.read, ("rows",)),
}

WRITERS = {
    "scincl": FormatWriter(triplets.scincl_file_names, triplets.SCINCL_FILES, triplets.write_scincl, ("gzip",)),
    "specter": FormatWriter(specter.file_names, specter.EVERY_FILE, specter.write, ("leave_out", "val", "test")),
    "scirepeval": FormatWriter(
        lambda options: (triplets.SCIREPEVAL_FILE,), (triplets.SCIREPEVAL_FILE,), triplets.write_scirepeval
    ),
    "sentence_transformers": FormatWriter(
        sentence_transformers.file_names,
        sentence_transformers.EVERY_FILE,
        sentence_transformers.write,
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
    """Convert samples to the format `to` in a folder; return the counts of written and rejected records."""
    writer, options = WRITERS[choose(to, WRITERS, "--to")], options or ExportOptions()
    _refuse_foreign_options(options, to)
    check_rows(samples, corpus)
    tally = Tally({})
    names = writer.file_names(options)
    with (
        _new_files(Path(folder), names, every=writer.every_file, overwrite=overwrite) as paths,
        reporter.task("writing", unit="records") as advance,
    ):
        exported = ExportedSamples(samples, corpus, options, tally, advance)
        if not writer.write(exported, paths):
            raise EmptyResultError(f"{samples.folder} has nothing to write as {to} ({_reject_reasons(tally)})")
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
    """Convert samples of another format into a new folder of samples, whose rows are those of the corpus.

    `files` are files, or folders with files. A folder that already holds the same import is opened.
    """
    if format is not None:
        choose(format, READERS, "--from")
    paths = [Path(path) for path in ([files] if isinstance(files, str | Path) else files)]
    inputs = _find_sample_files(paths, {name: reader.recognize for name, reader in READERS.items()}, format)
    number = len(inputs.files)
    reporter.say(f"{inputs.format}: {number} file{'s' * (number > 1)}{' (guessed)' * inputs.guessed}")
    for name, reason in inputs.left_aside.items():
        reporter.say(f"not read: {name} ({reason})")
    recipe = _recipe(inputs, corpus)
    if artifact_matches(Path(folder), KIND, VERSION, recipe):
        reporter.say(f"{folder} already holds these samples; nothing to do")
        return Samples.open(folder)
    facts: dict[str, Any] = {
        "corpus_folder": str(corpus.folder),
        "source": [printable_name(path) for path in inputs.files],
        "format": inputs.format,
        "guessed": inputs.guessed,
        "left_aside": inputs.left_aside,
    }
    with new_samples(folder, NAMES, corpus=corpus.hash, recipe=recipe, facts=facts, overwrite=overwrite) as writer:
        tally = _read_all(inputs, corpus, writer.append, reporter)
        if not writer.count:
            raise EmptyResultError(f"{', '.join(facts['source'])}: no sample could be made ({_reject_reasons(tally)})")
        writer.facts |= tally.as_json()
        return writer.finish()


def _read_all(
    inputs: ConversionInputs, corpus: Corpus, append: Callable[[SampleBlock], None], reporter: Reporter
) -> Tally:
    """Read all files of an import, block by block, and count their records."""
    reader = READERS[inputs.format]
    tally = Tally({kind: Count() for kind in reader.kinds})
    lookup = PaperLookup(corpus, tally, numbers=reader.numbers)
    with reporter.task("reading", unit="samples") as advance:
        for block in reader.read(
            [Source(p) for p in inputs.samples], [Source(p) for p in inputs.queries], lookup, tally
        ):
            append(block)
            advance(len(block))
    return tally


def _recipe(inputs: ConversionInputs, corpus: Corpus) -> dict[str, Any]:
    described = [{"name": printable_name(path), "sha256": hash_file(path)} for path in inputs.files]
    return {"corpus": corpus.hash, "format": inputs.format, "inputs": described, "readers": _READERS_VERSION}


def _refuse_foreign_options(options: ExportOptions, to: str) -> None:
    """Refuse an export option that the format does not have, rather than ignore it."""
    for option in fields(ExportOptions):
        if getattr(options, option.name) != option.default and option.name not in WRITERS[to].options:
            takers = " and ".join(name for name, each in WRITERS.items() if option.name in each.options)
            flag = f"--{option.name.replace('_', '-')}"
            raise UserError(f"{flag} is an option of --to {takers}, not of {to}; leave it out")


def _reject_reasons(tally: Tally) -> str:
    counts = [f"{n:,} {kind}: {why}" for kind, count in tally.counts.items() for why, n in count.rejected.items()]
    return "; ".join(counts) or "no record was found"
