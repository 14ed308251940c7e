"""Recipes: TOML files that say what is embedded, which rules choose samples, and how a model is trained.

    [recipe]     about, source; base and remove: see below
    [texts]      texts that are trained on in place of papers: see `corpus/derived_texts.py`
    [graph]      how node vectors are computed: see `graph/build.py`
    [mining]     the rules: see `mining/rules.py`
    [alignment]  which sentences of a pair belong together: see `mining/align.py`
    [encoder]    the start model and how it reads a paper: see `training/options.py`
    [training]   losses, batches, optimizer: see `training/options.py`

A shipped recipe is given by name (`scincl`), any other by path (`my.toml`). `base = "scincl"` inherits the keys of another
recipe; own keys replace single ones, and `remove = ["mining.negatives.hard"]` drops some. Overrides set single values
(`mining.positives.band=200`) or remove them (`mining.negatives.hard=`). A recipe is untrusted input: numbers are finite
and fit into 64 bits, texts are short and printable, tables are not deep. Unknown keys are refused by `read_recipe`.

    >>> _check_values({"training": {"steps": 10**30}}, "my.toml")
    Traceback (most recent call last):
    citeweave.core.errors.UserError: my.toml: training.steps is 1000000000000000000000000000000; it must be between -2**63 and 2**63

A run keeps its recipe as TOML next to its results, and what is written reads back the same. Runs nothing.

    >>> print(as_toml({"mining": {"text": "title", "positives": {"count": 5, "band": [0, 25]}}}), end="")
    [mining]
    text = "title"
    <BLANKLINE>
    [mining.positives]
    count = 5
    band = [0, 25]
"""

from __future__ import annotations

import copy
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.columns import is_finite
from citeweave.core.errors import UserError, choose
from citeweave.core.files import open_input
from citeweave.core.options import parse_table

if TYPE_CHECKING:
    from citeweave.corpus.options import DerivedTexts
    from citeweave.graph.options import GraphOptions
    from citeweave.mining.options import AlignmentOptions
    from citeweave.mining.rules import MiningRules
    from citeweave.training.options import EncoderOptions, TrainingOptions


MAX_BYTES = 1 << 20
"""Maximum size of a recipe file."""

MAX_BASES = 16
"""Maximum number of recipes that build on each other."""

MAX_NAME = 1000
"""Maximum characters of the name of a base recipe."""

PROSE = ("about", "source")
"""Keys of [recipe] written for people, whose texts may have several lines."""

_MAX_TEXT, _MAX_KEY, _MAX_LIST, _MAX_DEPTH = 4000, 100, 1000, 8

TABLES = ("recipe", "texts", "graph", "mining", "alignment", "encoder", "training")
ABOUT = ("about", "source", "base", "remove")
"""Keys of [recipe]."""

RENAMED = {"table3": "signal_table"}
"""Old name of a shipped recipe -> its name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as read from TOML: its base recipes merged and overrides applied."""

    name: str
    tables: dict[str, Any]
    bases: tuple[str, ...] = ()
    """Names of the recipes that it builds on, the nearest first."""

    overrides: tuple[str, ...] = ()
    """Values set by overrides, as KEY=VALUE."""

    def table(self, name: str) -> dict[str, Any]:
        """Return a table of the recipe; empty if it has none of that name."""
        value = self.tables.get(name, {})
        if not isinstance(value, dict):
            raise UserError(f"recipe {self.name}: {name} is {value!r}; it must be a table [{name}]")
        return value

    @property
    def label(self) -> str:
        """Return the recipe's name without folder and suffix.

        >>> Recipe("my/scincl.toml", {}).label
        'scincl'
        """
        return Path(self.name).name.removesuffix(".toml")

    def is_set(self, key: str) -> bool:
        """Return whether an override set this recipe key, or a key inside or around it."""
        keys = [entry.partition("=")[0].strip() for entry in self.overrides]
        return any(key == each or key.startswith(f"{each}.") or each.startswith(f"{key}.") for each in keys)


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """The tables of a recipe as options objects, with all keys and values checked."""

    rules: MiningRules
    graph: GraphOptions
    encoder: EncoderOptions
    training: TrainingOptions | None
    """None if the recipe has no [training] table."""

    alignment: AlignmentOptions | None = None
    """None if sentences are not aligned."""

    texts: DerivedTexts | None = None
    """None if papers are trained on."""


def shipped_recipes() -> list[str]:
    """List the names of the recipes that ship with citeweave."""
    files = resources.files("citeweave") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in files.iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a training recipe by its name (`citeweave recipes` lists them) or its TOML file, with some keys changed.

    >>> load_recipe("scincl", ["mining.positives.band=200"]).table("mining")["positives"]["band"]
    200
    >>> load_recipe("cocite_25_1000").bases
    ('cocite',)
    """
    tables, bases = _resolve(RENAMED.get(name, name), "the recipe", ())
    for entry in overrides:
        _override(tables, entry)
    _check_values(tables, f"recipe {_format_value(name)[1:-1]}")
    for key in tables:
        choose(key, TABLES, f"recipe {name}: table")
    return Recipe(RENAMED.get(name, name), tables, bases, tuple(overrides))


def read_overrides(entries: Sequence[str]) -> dict[str, Any]:
    """Parse TABLE.KEY=VALUE overrides into recipe tables.

    >>> read_overrides(["training.batch=8", "training.losses.triplet.margin=0.5"])
    {'training': {'batch': 8, 'losses': {'triplet': {'margin': 0.5}}}}
    """
    tables: dict[str, Any] = {}
    for entry in entries:
        _override(tables, entry)
    _check_values(tables, "--set")
    for key in tables:
        choose(key, TABLES, "--set: table")
    return tables


def read_recipe(recipe: Recipe) -> RecipeOptions:
    """Parse and check every table of a recipe; an unknown key is refused with the nearest known one."""
    from citeweave.corpus.options import PAPERS, DerivedTexts
    from citeweave.graph.options import graph_options
    from citeweave.mining.options import AlignmentOptions
    from citeweave.mining.rules import parse_rules
    from citeweave.training.options import ACCURACY, LOSS, encoder_options, training_options

    for key in recipe.table("recipe"):
        choose(key, ABOUT, f"recipe {recipe.name}: key of [recipe]")
    training, alignment = recipe.table("training"), recipe.table("alignment")
    texts = parse_table(DerivedTexts, recipe.table("texts"), "texts")
    read = RecipeOptions(
        parse_rules(recipe.table("mining")),
        graph_options(recipe.table("graph")),
        encoder_options(recipe.table("encoder")),
        training_options(training) if training else None,
        parse_table(AlignmentOptions, alignment, "alignment") if alignment else None,
        texts if texts.of != PAPERS else None,
    )
    if read.texts is not None and read.training is not None and read.training.watch not in (ACCURACY, LOSS):
        raise UserError(
            f"recipe {recipe.name}: training.watch is {read.training.watch!r}, a ranking of papers, and texts.of is "
            f"{read.texts.of!r}; watch {ACCURACY} or {LOSS}"
        )
    if read.alignment is not None and read.alignment.by == "contexts" and not read.rules.from_contexts:
        raise UserError(
            f"recipe {recipe.name}: alignment.by is contexts, and no sample has any: mining.anchors_per is papers; set "
            'that to contexts, or alignment.by to "abstracts"'
        )
    return read


def _resolve(name: str, option: str, seen: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge the tables of a recipe over those of its base recipes; return the bases' names too."""
    own = _read_toml(name, option)
    about = own.get("recipe", {})
    if not isinstance(about, dict):
        raise UserError(f"recipe {name}: recipe is {about!r}; it must be a table [recipe]")
    for key, value in about.items():
        choose(key, ABOUT, f"recipe {name}: key of [recipe]")
        if key in PROSE and not isinstance(value, str):
            raise UserError(f"recipe {name}: {key} is {_format_value(value)}; it must be a text")
    base, remove = about.pop("base", ""), about.pop("remove", [])
    if not base:
        return own, ()
    base, seen = _base_name(base, name), (*seen, name)
    if len(seen) > MAX_BASES:
        raise UserError(f"recipe {name} builds on more than {MAX_BASES} others; copy the keys of some into one")
    if base in seen:
        raise UserError(f"recipe {base} builds on itself: {' -> '.join([*seen, base])}; give one of them no base")
    tables, bases = _resolve(base, f"recipe {name}: base", seen)
    for path in _removed_keys(remove, name):
        _remove(tables, path, name)
    return _merge(tables, own), (base, *bases)


def _base_name(base: Any, name: str) -> str:
    """Return the name of a base recipe: a shipped one, or a file next to the recipe that names it."""
    if not isinstance(base, str) or not base.isprintable() or len(base) > MAX_NAME:
        raise UserError(f"recipe {name}: base is {_format_value(base)}; it must be the name of a recipe or a TOML file")
    return str(Path(name).parent / base) if _is_path(base) else RENAMED.get(base, base)


def _removed_keys(remove: Any, name: str) -> list[str]:
    if not isinstance(remove, list) or not all(isinstance(path, str) and path for path in remove):
        raise UserError(
            f"recipe {name}: remove is {_format_value(remove)}; it must be a list such as ['mining.negatives.hard']"
        )
    return remove


def _is_path(name: str) -> bool:
    return "." in name or "/" in name


def _read_toml(name: str, option: str) -> dict[str, Any]:
    if _is_path(name):
        text = _read_file(Path(name), option)
    else:
        choose(name, shipped_recipes(), option)
        text = (resources.files("citeweave") / "recipes" / f"{name}.toml").read_bytes()
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise UserError(
            f"recipe {name} is not TOML ({_format_value(str(error), 200)[1:-1]}); repair that line"
        ) from None


def _read_file(path: Path, option: str) -> bytes:
    try:
        if path.is_file():
            with open_input(path) as file:
                text = file.read(MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                raise UserError(f"recipe {path} has more than {MAX_BYTES:,} bytes; no recipe is that long")
            return text
    except OSError as error:
        raise UserError(
            f"{option} {_format_value(str(path))} cannot be read ({error.strerror}); check its name"
        ) from None
    raise UserError(f"{option} {path} does not exist; the shipped recipes are {', '.join(shipped_recipes())}")


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two recipe tables key by key; a value of `over` replaces one of `under`.

    >>> _merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": [1]})
    {'a': {'x': 1, 'y': 3}, 'b': [1]}
    """
    merged = copy.deepcopy(dict(under))
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def _remove(tables: dict[str, Any], path: str, name: str) -> None:
    *outer, last = path.split(".")
    at: Any = tables
    for place, key in enumerate([*outer, last]):
        if not isinstance(at, dict) or key not in at:
            known = list(at) if isinstance(at, dict) else []
            choose(key, known, f"recipe {name}: remove {path!r}: part {place + 1}")
        if place < len(outer):
            at = at[key]
    del at[last]


def _override(tables: dict[str, Any], entry: str) -> None:
    path, equals, text = entry.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise UserError(f"--set is {entry!r}; it must be TABLE.KEY=VALUE, such as mining.positives.band=200")
    at = tables
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise UserError(f"--set is {entry!r}, but {key} is a value and has no keys of its own")
    if text.strip():
        at[keys[-1]] = _parse_value(text.strip())
    else:
        at.pop(keys[-1], None)


def _parse_value(text: str) -> Any:
    """Parse an override as a TOML value, or keep it as text.

    >>> _parse_value("200"), _parse_value("0.6%"), _parse_value("[1, 2]"), _parse_value("true")
    (200, '0.6%', [1, 2], True)
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


# --- checks of values ---


def _check_values(table: Mapping[str, Any], name: str, path: str = "") -> None:
    """Refuse the first recipe value that cannot be intended, such as a date or an infinite number."""
    if path.count(".") >= _MAX_DEPTH:
        raise UserError(f"{name}: {path} is nested deeper than {_MAX_DEPTH} tables; no key of a recipe is that deep")
    for key, value in table.items():
        if not 1 <= len(key) <= _MAX_KEY or not key.isprintable():
            raise UserError(
                f"{name}: {path or 'the recipe'} has the key {_format_value(key)}; a key has 1 to {_MAX_KEY} printable characters"
            )
        inner = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            _check_values(value, name, inner)
        elif rule := _broken_rule(value, inner, 0):
            raise UserError(f"{name}: {inner} is {_format_value(value)}; it must be {rule}")


def _broken_rule(value: Any, path: str, depth: int) -> str:
    """Return the rule that a recipe value breaks; empty if it breaks none."""
    if isinstance(value, list | tuple):
        if len(value) > _MAX_LIST or depth >= _MAX_DEPTH:
            return f"a list of at most {_MAX_LIST:,} values, and at most {_MAX_DEPTH} lists deep"
        return next((rule for entry in value if (rule := _broken_rule(entry, path, depth + 1))), "")
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "" if -(2**63) < value < 2**63 else "between -2**63 and 2**63"
    if isinstance(value, float):
        return "" if is_finite(value) else "a finite number"
    if isinstance(value, str):
        lines = value.split("\n") if path in [f"recipe.{key}" for key in PROSE] else [value]
        is_sound = len(value) <= _MAX_TEXT and all(line.isprintable() for line in lines)
        return "" if is_sound else f"a text of at most {_MAX_TEXT:,} printable characters"
    return "a text, a number, true or false, a list, or a table"


def _format_value(value: object, max_length: int = 60) -> str:
    """Format a recipe value for an error message, on one line of limited length.

    >>> _format_value("a\\nb"), _format_value([1] * 100)[-12:], _format_value(16**5000)
    ("'a\\\\nb'", ' 1, 1, 1,...', 'a number of 20,001 bits')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python formats no number of more than 4,300 digits
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= max_length else text[:max_length] + "..."


def teacher_stages(training: TrainingOptions) -> dict[str, str]:
    """Return the name of the teacher model of each teacher stage that a recipe has."""
    if "similarity" not in training.losses:
        return {}
    if not training.teachers:
        raise UserError(
            "training.losses.similarity.teacher is empty; name the model to learn from, such as "
            "--set training.losses.similarity.teacher=models/mpnet"
        )
    return {f"teacher-{number}" if number else "teacher": name for number, name in enumerate(training.teachers)}


# --- recipes as TOML ---

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(tables: Mapping[str, Any]) -> str:
    """Format recipe tables as TOML, one section per table, values before nested tables."""
    return "\n\n".join("\n".join(section) for section in _sections(tables, ())) + "\n"


def _sections(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[list[str]]:
    values = [f"{_key(key)} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (values or not inner):
        yield [f"[{'.'.join(map(_key, path))}]", *values]
    elif values:
        yield values
    for key, value in inner.items():
        yield from _sections(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _toml_value(value: Any) -> str:
    """Format a value of a recipe as TOML.

    >>> _toml_value([1, "a", {"b": 2e-5}]), _toml_value(True), _toml_value(float("inf"))
    ('[1, "a", {b = 2e-05}]', 'true', 'inf')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    assert isinstance(value, int | float), f"{value!r} cannot be in a recipe"
    return repr(value)


def _text(text: str) -> str:
    # TOML has the escapes of JSON, and needs one for DEL too
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
