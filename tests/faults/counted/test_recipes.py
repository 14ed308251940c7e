"""Recipes of untrusted people: every value that cannot be meant is refused in one line that names its key and a rule."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import citeweave as cw
from citeweave.core.errors import UserError
from citeweave.corpus.options import DerivedTexts
from citeweave.mining.options import AlignmentOptions, ContextFilter
from citeweave.mining.rules import MiningRules, Rule
from citeweave.pipeline.recipe import read_recipe, shipped_recipes

from .counting import one_line

HOSTILE = {
    "400 digits": "1" + "0" * 400, "5,000 digits": "9" * 5000, "20,000 bits": "0x" + "f" * 5000, "more than 64 bits": str(2**63),
    "minus one": "-1", "not a number": "nan", "infinite": "inf", "below all": "-inf", "a text": '"hello"', "no text": '""',
    "a long text": '"' + "x" * 100_000 + '"', "two lines": r'"a\nb"', "a terminal's command": r'"\u001b[2J"',
    "an absolute path": '"/etc/passwd"', "a way up": '"../../../etc/passwd"', "a list of lists": "[1, [2, [3]]]",
    "a deep list": "[" * 60 + "]" * 60, "no list": "[]", "a long list": "[" + "1, " * 20_000 + "1]", "a table": "{ a = 1 }",
    "a date": "1979-05-27T07:32:00Z", "true": "true",
}  # fmt: skip
ACCEPTED = ("a text", "no text", "an absolute path", "a way up", "minus one", "no list", "true")
"""What some key may mean; all else none does."""

FOR_PEOPLE = [(f"recipe.{key}", "two lines") for key in ("about", "source")]
CALLED = {"dimension": "--dim", "text": "text recipe"}
"""What a message calls a key by another name."""

TABLES: Mapping[str, tuple[Any, ...]] = {
    "texts": (DerivedTexts,), "graph": (cw.GraphOptions, cw.NodeVectorOptions), "mining": (MiningRules,),
    "mining.contexts": (ContextFilter,), "mining.positives": (Rule,), "alignment": (AlignmentOptions,),
    "encoder": (cw.EncoderOptions,), "training": (cw.TrainingOptions,),
}  # fmt: skip


def keys() -> dict[str, str]:
    """Every key that a recipe may have, with a recipe that has it, or could."""
    found = {path: name for name in shipped_recipes() for path in _paths(cw.load_recipe(name).tables)}
    named = [f"{table}.{field.name}" for table, kinds in TABLES.items() for kind in kinds for field in fields(kind)]
    found = dict.fromkeys(named, "specter") | found
    found |= dict.fromkeys((*TABLES, "recipe.base", "recipe.remove"), "specter")
    return {path: name for path, name in sorted(found.items()) if path != "mining.positives.name"}


def _paths(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield before + key
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{key}.")


def refusal(name: str, overrides: Sequence[str] = ()) -> str:
    """One line that a terminal can show; empty where the recipe is read."""
    try:
        read_recipe(cw.load_recipe(name, overrides))
    except UserError as error:
        return one_line(error, 3000)
    return ""


def test_hostile_values(trial, tmp_path):
    """Any key of a recipe with a value that it cannot have, in a file and from the command line: one line that names it."""
    tries, file = [(path, base, name) for path, base in keys().items() for name in HOSTILE], tmp_path / "hostile.toml"
    for path, base, name in trial.some(tries, quick=400):
        with trial.attempt(f"{path} = {name}"):
            sound = "" if path == "recipe.base" else f'recipe.base = "{base}"\n'  # all but one key
            file.write_text(f"{sound}{path} = {HOSTILE[name]}\n")
            if message := refusal(str(file)):
                # without a base there is nothing to complain of but that rules are missing
                is_missing = path == "recipe.base" and name in ("no text", "no list")
                key = "mining" if is_missing else path.rpartition(".")[2]
                assert len(message) < 1500 and "; " in message, f"too long, or no rule or next step: {message}"
                assert any(one in message for one in (key, CALLED.get(key, key), "is not TOML")), message
            else:
                assert name in ACCEPTED or (path, name) in FOR_PEOPLE, "it was accepted"
            if "." in path:
                refusal(base, [f"{path}={HOSTILE[name]}"])


FILES: Mapping[str, Any] = {
    "an unknown table": "[traning]\nsteps = 1\n",
    "a table that is a value": "training = 5\n",
    "tables in a list": "[[training]]\nsteps = 1\n",
    "an unknown key in every table": "".join(f"[{table}]\nnobody = 1\n" for table in ("texts", "graph", "mining")),
    "a key twice": "[training]\nsteps = 1\nsteps = 2\n",
    "a key without a name": '[training]\n"" = 1\n',
    "a key of two lines": '[training]\n"a\\nb" = 1\n',
    "a key of 10,000 letters": f"[training]\n{'k' * 10_000} = 1\n",
    "a rule of two lines": '[mining.positives."a\\nb"]\nsource = "cited"\ncount = 0\n',
    "a thousand rules": "".join(f'[mining.negatives.r{n}]\nsource = "random"\ncount = 1\n' for n in range(1000)),
    "tables a thousand deep": "[training." + ".".join("a" * 1000) + "]\nb = 1\n",
    "lists 100,000 deep": "x = " + "[" * 100_000,
    "itself as its base": 'recipe.base = "recipe.toml"\n',
    "a base that is no recipe": 'recipe.base = "/etc/passwd"\n',
    "a base that is a device": 'recipe.base = "/dev/zero"\n',
    "a base that is a folder": 'recipe.base = "./."\n',
    "a base with a null": 'recipe.base = "a\\u0000.toml"\n',
    "a base of 10,000 letters": 'recipe.base = "' + "b" * 10_000 + '.toml"\n',
    "a base that is a number": "recipe.base = 5\n",
    "what is removed is not there": 'recipe.base = "specter"\nrecipe.remove = ["training.nobody"]\n',
    "what is removed is a number": 'recipe.base = "specter"\nrecipe.remove = [5]\n',
    "three megabytes": "# " + "x" * 3_000_000 + "\n",
    "no UTF-8": b"[training]\nsteps = \xff\n",
    "UTF-16": "[training]\nsteps = 1\n".encode("utf-16"),
    "zeros": bytes(1000),
    "a long chain of bases": lambda place: [
        (place / f"{number or 'recipe'}.toml").write_text(f'recipe.base = "{number + 1}.toml"\n')
        for number in range(60)
    ],
    "a pipe": lambda place: os.mkfifo(place / "recipe.toml"),
    "a link to itself": lambda place: (place / "recipe.toml").symlink_to("recipe.toml"),
    "a folder": lambda place: (place / "recipe.toml").mkdir(),
}


def test_hostile_files(trial, tmp_path):
    """Files that are no recipes, or never end: one line."""
    for number, (name, content) in enumerate(FILES.items()):
        with trial.attempt(name):
            place = tmp_path / f"f.{number}"
            place.mkdir()
            if callable(content):
                content(place)
            else:
                (place / "recipe.toml").write_bytes(content.encode() if isinstance(content, str) else content)
            assert refusal(str(place / "recipe.toml")), "it was accepted"
