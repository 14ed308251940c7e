"""From the files and folders that a user names to the files of one format, each with its role.

samples    where query, positive and negative stand: train_triples.csv, data.json, ...
queries    lists of ids that say which queries to take: train.txt, val.txt, test.txt
papers     their titles and abstracts, left aside because papers come from the corpus
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from citeweave.corpus.intake.sources import written_name
from citeweave.errors import InputError, UserError
from citeweave.opening import Head, Source

Role = Callable[[Head], str | None]

PAPERS = "papers come from the corpus"


@dataclass(slots=True)
class Inputs:
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


def find_inputs(paths: Sequence[Path], roles: Mapping[str, Role], format: str | None) -> Inputs:
    """The files of one format, which is told by their content where it is not given."""
    named = {path: True for path in paths if not path.is_dir()}
    found = named | {inner: False for path in paths if path.is_dir() for inner in _files_in(path) if inner not in named}
    heads = {path: _head(path) for path in found}
    inputs = Inputs(format or _guess(heads, roles), guessed=format is None)
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


def _guess(heads: Mapping[Path, Head], roles: Mapping[str, Role]) -> str:
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


def _head(path: Path) -> Head:
    if not path.exists():
        raise UserError(f"{path} does not exist; check the path")
    return Source(path).head()
