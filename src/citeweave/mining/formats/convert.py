"""From the files and folders that a user names to the files of one format, each with its role.

samples    where query, positive and negative stand: train_triples.csv, data.json, ...
queries    lists of ids that say which queries to take: train.txt, val.txt, test.txt
papers     their titles and abstracts, left aside because papers come from the corpus

Files that appear whole or not at all: written under another name, renamed together at the end.

    with new_files(Path("out"), ["train.txt"], every=["train.txt", "val.txt"]) as paths:
        paths["train.txt"].write_text("a")         # a hidden file of another name until the block ends

What the same format left there before is refused, or replaced as a whole: an old val.txt does not stay beside a
new train.txt. An artifact of citeweave is a folder with one rename; see `core/files.py`.

`export_samples` and `import_samples`: samples to and from the formats of other projects.

    export_samples(samples, corpus, "out/", to="scincl")          out/train_triples.csv, out/train_metadata.jsonl
    import_samples(["train_triples.csv"], corpus, "samples/")     a folder of samples; the format is guessed

Both account for every record by reason. What the formats look like is told in their own files.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from citeweave.core.artifact import MANIFEST, matches
from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.files import hash_file, move, output_place, sync
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.input_files import written_name
from citeweave.mining.formats import (
    scincl,
    scirepeval,
    sentence_transformers,
    specter,
)
from citeweave.mining.formats.triplet_rows import NAMES, ExportedSamples, ExportOptions, check_rows
from citeweave.mining.samples import KIND, VERSION, SampleBlock, Samples, new_samples
from citeweave.mining.tables import PaperNames

Role = Callable[[FileHead], str | None]

PAPERS = "papers come from the corpus"


@dataclass(slots=True)
class ConversionInputs:
    """The files of an import."""

    format: str
    guessed: bool
    samples: list[Path] = field(default_factory=list)
    queries: list[Path] = field(default_factory=list)
    left_aside: dict[str, str] = field(default_factory=dict)
    """Name and reason of every file that is not read."""

    @property
    def files(self) -> list[Path]:
        return [*self.samples, *self.queries]


def find_inputs(paths: Sequence[Path], roles: Mapping[str, Role], format: str | None) -> ConversionInputs:
    """The files of one format, which is told by their content where it is not given."""
    named = {path: True for path in paths if not path.is_dir()}
    found = named | {inner: False for path in paths if path.is_dir() for inner in _files_in(path) if inner not in named}
    heads = {path: _head(path) for path in found}
    inputs = ConversionInputs(format or _guess(heads, roles), guessed=format is None)
    for path, head in heads.items():
        role = roles[inputs.format](head)
        if role == "samples" or (role is None and found[path] and format):
            inputs.samples.append(path)
        elif role == "queries":
            inputs.queries.append(path)
        elif role is None and found[path]:
            raise UserError(f"{path} is no file of {inputs.format} like the others; convert one format at a time")
        else:
            inputs.left_aside[written_name(path)] = PAPERS if role == "papers" else f"no file of {inputs.format}"
    if not inputs.samples:
        named_paths = ", ".join(map(str, paths))
        raise InputError(f"{named_paths}: no samples of {inputs.format} found; check the path or --from")
    return inputs


def _guess(heads: Mapping[Path, FileHead], roles: Mapping[str, Role]) -> str:
    formats = {name for head in heads.values() for name, role in roles.items() if role(head) == "samples"}
    if len(formats) == 1:
        return formats.pop()
    where = ", ".join(map(str, list(heads)[:3])) or "nothing"
    if formats:
        raise UserError(
            f"{where}: files of {' and '.join(sorted(formats))}; convert one format at a time, or use --from"
        )
    raise InputError(f"{where}: no samples in a format that citeweave knows; name it with --from {'|'.join(roles)}")


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _head(path: Path) -> FileHead:
    if not path.exists():
        raise UserError(f"{path} does not exist; check the path")
    return Source(path).head()


# Files that appear whole or not at all: written under another name, renamed together at the end.


@contextmanager
def new_files(
    folder: Path, names: Sequence[str], *, every: Sequence[str], overwrite: bool = False
) -> Iterator[dict[str, Path]]:
    """Where to write each of `names`; `every` are all the names that the format may use."""
    _refuse_existing(folder, every, overwrite=overwrite)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); name another place with -o") from None
    mark = secrets.token_hex(4)  # no file of the user's has such a name
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
        move(path, output_place(folder / name))
    sync(folder)


def _refuse_existing(folder: Path, every: Sequence[str], *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder with -o")
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} holds an artifact of citeweave; name another folder with -o")
    there = [name for name in every if (folder / name).exists()]
    if there and not overwrite:
        raise UserError(f"{folder} already holds {', '.join(there)}; choose another -o or --overwrite")


# `export_samples` and `import_samples`: samples to and from the formats of other projects.

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
    write: Callable[[ExportedSamples, dict[str, Path]], int]
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
    "specter": Out(specter.files, specter.EVERY_FILE, specter.write, ("leave_out", "val", "test")),
    "scirepeval": Out(scirepeval.files, scirepeval.EVERY_FILE, scirepeval.write),
    "sentence_transformers": Out(
        sentence_transformers.files,
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
        outgoing = ExportedSamples(samples, corpus, options, tally, advance)
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


def _read_all(
    inputs: ConversionInputs, corpus: Corpus, append: Callable[[SampleBlock], None], reporter: Reporter
) -> Tally:
    way = IN[inputs.format]
    tally = Tally({kind: Count() for kind in way.kinds})
    names = PaperNames(corpus, tally, numbers=way.numbers)
    with reporter.task("reading", unit="samples") as advance:
        for block in way.read([Source(p) for p in inputs.samples], [Source(p) for p in inputs.queries], names, tally):
            append(block)
            advance(len(block))
    return tally


def _recipe(inputs: ConversionInputs, corpus: Corpus) -> dict[str, Any]:
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
