"""Options declared once: values of every kind are converted or refused in one line, under the name that people know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core import options
from citeweave.core.errors import UserError

from ..conftest import JSON
from .conftest import refused


@dataclass(frozen=True, slots=True)
class Resources:
    memory: Annotated[int, options.SIZE, options.Range(2**20)] = 2**28
    """Memory limit."""

    workers: Annotated[int, options.Range(0)] = 0
    """Number of processes;
    0 = one per core."""


@dataclass(frozen=True, slots=True)
class Loss:
    margin: Annotated[float, options.Range(above=0)] = 1.0


@dataclass(frozen=True, slots=True)
class Stage:
    source: str
    """Where from."""

    order: Annotated[str, options.OneOf("", "first", "last"), options.Old("sort")] = "first"
    """Which come first."""

    share: Annotated[float, options.Range(0, below=1)] = 0.5
    names: Annotated[tuple[Annotated[str, options.NotBlank(), options.MaxLength(5)], ...], options.MaxLength(3)] = ()
    years: Annotated[tuple[int | None, int | None], options.Expected("two years")] = (None, None)
    folder: Path | None = None
    is_fast: bool = False
    tables: Mapping[str, int] = field(default_factory=dict)
    loss: Loss = field(default_factory=Loss)
    resources: Annotated[Resources, options.FLAT] = field(default_factory=Resources)
    seen: Annotated[int, options.INTERNAL] = 0

    def __post_init__(self) -> None:
        options.check(self, "stage")


def parse(**table: Any) -> Stage:
    return options.parse_table(Stage, {"source": "a", **table}, "stage")


def test_a_table_becomes_what_the_fields_hold():
    stage = parse(share=0, names=["b"], years=[2015, None], folder="x/y", loss={"margin": 2}, memory="2MB", workers=3)
    values = {"share": 0.0, "names": ("b",), "years": (2015, None), "folder": Path("x/y"), "loss": Loss(2.0)}
    assert stage == Stage("a", **values, resources=Resources(2**21, 3))
    assert isinstance(stage.share, float) and isinstance(stage.loss.margin, float)
    assert options.keys_of(Stage)[-2:] == ("memory", "workers") and "resources" not in options.keys_of(Stage)
    said = options.changed(stage)
    assert options.parse_table(Stage, json.loads(json.dumps(said)), "stage") == stage and "order" not in said
    assert Stage("a", names=["b"], share=0).names == ("b",)  # type: ignore[arg-type]


MISFITS = [
    ({"odrer": "last"}, "stage: key is 'odrer'; it must be one of .*order.* Did you mean 'order'?"),
    ({"seen": 1}, "stage: key is 'seen'"),
    ({"x" * 5000: 1}, "stage: key is 'xxx"),
    ({"order": "lats"}, "stage.order is 'lats'; it must be one of first, last. Did you mean 'last'?"),
    ({"order": "y" * 5000}, "stage.order is 'yyy"),
    ({"order": 3}, "stage.order is 3; it must be a text"),
    ({"share": 1}, "stage.share is 1; it must be at least 0 and less than 1"),
    ({"share": float("nan")}, "stage.share is nan; it must be a number"),
    ({"share": True}, "stage.share is True; it must be a number"),
    ({"share": 10**400}, "stage.share is 1000"),
    ({"names": "abc"}, r"""stage.names is 'abc'; it must be a list of texts such as \["a", "b"\]"""),
    ({"names": ["a", 1]}, r"stage.names is \['a', 1\]; it must be a list of texts"),
    ({"names": ["a"] * 4}, "stage.names has 4 entries; it must have at most 3"),
    ({"names": ["abcdef"]}, "stage.names has 6 characters; it must have at most 5"),
    ({"names": [" "]}, "stage.names is ' '; it must not be empty"),
    ({"years": [2015]}, r"stage.years is \[2015\]; it must be two years"),
    ({"folder": 3}, "stage.folder is 3; it must be a path"),
    ({"is_fast": 1}, "stage.is_fast is 1; it must be true or false"),
    ({"tables": 3}, "stage.tables is 3; it must be a table of names and values"),
    ({"tables": {"a": "b"}}, "stage.tables.a is 'b'; it must be a whole number"),
    ({"loss": 3}, "stage.loss is 3; it must be a table"),
    ({"loss": {"margni": 3}}, "stage.loss: key is 'margni'.*Did you mean 'margin'"),
    ({"loss": {"margin": 0}}, "stage.loss.margin is 0; it must be greater than 0"),
    ({"memory": "lots"}, "stage.memory is 'lots'; it must be a number with KB, MB or GB, such as 256MB"),
    ({"memory": 12}, "stage.memory is 12 bytes; it must be at least 1MB"),
    ({"workers": -1}, "stage.workers is -1; it must be at least 0"),
    ({"workers": 2.0}, "stage.workers is 2.0; it must be a whole number"),
]


@pytest.mark.parametrize(("table", "message"), MISFITS)
def test_what_does_not_fit_is_refused_in_one_line(table, message):
    with pytest.raises(UserError, match=message) as error:
        parse(**table)
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)


def test_required_options_and_tables_are_named():
    refused("stage has no source; it needs source", options.parse_table, Stage, {}, "stage")
    refused(r"stage is \[\]; it must be a table", options.parse_table, Stage, [], "stage")
    refused("stage.share is 2; it must be", Stage, "a", share=2)


def test_an_old_name_works_and_wins_with_a_note(capsys):
    for table in ({"sort": "last"}, {"order": "first", "sort": "last"}, {"sort": "last", "order": "first"}):
        assert parse(**table).order == "last"
    assert capsys.readouterr().err.count("stage.sort is now order; the old name stops working") == 1


def test_help_is_the_text_below_a_field():
    assert options.options_of(Stage)["source"].help == "Where from."
    assert options.options_of(Resources)["workers"].help == "Number of processes; 0 = one per core."
    assert options.options_of(Stage)["share"].help == ""


@pytest.mark.parametrize("text", ["", "-1MB", "1PB", "MB", "1e3", "٣MB", "9" * 400])
def test_what_is_no_size_is_refused(text):
    refused("--memory is", options.parse_size, text, "--memory")


@given(st.integers(0, 2**60))
def test_sizes_are_read_back(number):
    assert options.parse_size(options.format_size(number), "--memory") == number


def test_paths_by_name():
    named = options.Named("coviews=pairs.tsv")
    assert named.parse(("a=x", "b=y=z"), "--table") == {"a": Path("x"), "b": Path("y=z")}
    for pairs, message in (
        (("a",), "--table is 'a'; it must be NAME=PATH, such as coviews"),
        (("a=x", "a=y"), "twice"),
    ):
        refused(message, named.parse, pairs, "--table")


@given(st.dictionaries(st.sampled_from([*options.keys_of(Stage), "seen", "x"]), JSON, max_size=4) | JSON)
def test_any_json_is_a_stage_or_an_error(said):
    try:
        stage = options.parse_table(Stage, said, "stage")
    except UserError as error:
        assert str(error).isprintable()
        return
    assert options.parse_table(Stage, options.changed(stage), "stage") == stage


@given(JSON)
def test_any_value_is_converted_or_refused(value):
    for hint in (int, float, str, bool, Path, int | None, tuple[float, ...], tuple[str, int], Mapping[str, bool]):
        try:
            once = options.convert(value, hint, "x")
        except UserError:
            continue
        assert options.convert(once, hint, "x") == once
