"""Recipes: every shipped one is read whole; bases, removals and overrides; what is written reads back the same."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.pipeline.recipe import Recipe, as_toml, load_recipe, read_recipe, shipped_recipes

from ..conftest import refused

MINING_ONLY = {"aspire"}


def write(folder, **recipes):
    for name, text in recipes.items():
        (folder / f"{name}.toml").write_text(text)


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_read(name):
    recipe = load_recipe(name)
    assert set(recipe.table("recipe")) == {"about", "source"}
    read = read_recipe(recipe)
    assert read.rules.rules or read.rules.tasks or read.rules.anchors_per == "contexts"
    assert (read.training is None) == (name in MINING_ONLY)
    assert tomllib.loads(as_toml(recipe.tables)) == recipe.tables


@pytest.mark.parametrize(
    "name", [name for name in shipped_recipes() if name.startswith("aspire_") and name != "aspire_context"]
)
def test_samples_of_aspire_need_no_negatives(name):
    """Samples without negatives need losses that find them in the batch; aligned sentences need an alignment."""
    read = read_recipe(load_recipe(name))
    assert read.training is not None
    assert read.training.pairs_suffice and read.training.reads_sentences and not read.rules.rules
    assert (read.alignment is not None) == ("aligned_triplet" in read.training.losses)


def test_a_base_gives_what_is_not_replaced(tmp_path):
    text = '[recipe]\nbase = "scincl"\nremove = ["mining.negatives.hard"]\n[mining.positives]\nband = 7\n'
    write(tmp_path, mine=text, deeper='[recipe]\nbase = "mine.toml"\n[training]\nbatch = 4\n')
    recipe = load_recipe(str(tmp_path / "deeper.toml"))
    rules = read_recipe(recipe).rules
    assert [(rule.name, rule.count, rule.band) for rule in rules.rules] == [("positives", 5, 7), ("easy", 3, None)]
    assert recipe.table("training") == {**load_recipe("scincl").table("training"), "batch": 4}
    assert recipe.bases == (str(tmp_path / "mine.toml"), "scincl")
    assert recipe.label == "deeper"
    assert load_recipe("scincl").table("mining")["negatives"]["hard"]["band"] == 4000


BAD_RECIPES = [
    ('[recipe]\nbase = "b.toml"\n', "a.toml builds on itself: .*a.toml -> .*b.toml -> .*a.toml"),
    ('[recipe]\nbase = "scinkl"\n', "base is 'scinkl'.*Did you mean 'scincl'"),
    ("[recipe]\nbase = 3\n", "base is 3; it must be the name"),
    ('[recipe]\nbas = "scincl"\n', "Did you mean 'base'"),
    ("recipe = 3\n", "it must be a table"),
    ('[recipe]\nbase = "scincl"\nremove = "mining"\n', "remove is 'mining'; it must be a list"),
    ('[recipe]\nbase = "scincl"\nremove = ["mining.negatives.hrad"]\n', "part 3 is 'hrad'.*Did you mean 'hard'"),
    ('[recipe]\nbase = "scincl"\nremove = ["mining.positives.count.x"]\n', "part 4 is 'x'"),
    ("[traning]\n", "Did you mean 'training'"),
]


@pytest.mark.parametrize(("text", "message"), BAD_RECIPES)
def test_bad_recipes_are_refused(tmp_path, text, message):
    write(tmp_path, a=text, b='[recipe]\nbase = "a.toml"\n')
    refused(message, load_recipe, str(tmp_path / "a.toml"))


UNKNOWN_KEYS = [
    ("mining.positives.coutn=3", "Did you mean 'count'"),
    ("graph.dimensoin=3", "Did you mean 'dimension'"),
    ("encoder.poling=cls", "Did you mean 'pooling'"),
    ("training.bacth=3", "Did you mean 'batch'"),
    ("training.batch=many", "training.batch is 'many'; it must be a whole number"),
    ("recipe.abuot=x", "Did you mean 'about'"),
    ("mining.positives.band=[1, [2]]", r"band is \[1, \[2\]\]; it must be a rank"),
]


@pytest.mark.parametrize(("override", "message"), UNKNOWN_KEYS)
def test_unknown_keys_are_refused_with_the_nearest(override, message):
    with pytest.raises(UserError, match=message):
        read_recipe(load_recipe("scincl", [override]))


def test_overrides():
    recipe = load_recipe("specter_cl", ["training.losses.supcon.temperature=0.1", "encoder.init=my/model"])
    read = read_recipe(recipe)
    assert read.training.losses["supcon"]["temperature"] == 0.1
    assert read.encoder.init == "my/model"
    assert recipe.is_set("training.losses.supcon.temperature") and recipe.is_set("training.losses")
    assert not recipe.is_set("training.losses.supcon.scope") and not recipe.is_set("mining.positives.band")
    assert Recipe("x", {}, overrides=("mining.positives={}",)).is_set("mining.positives.band")
    assert load_recipe("table3").name == "signal_table"


_VALUES = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text())
_KEYS = st.text(min_size=1)
_TABLES = st.dictionaries(_KEYS, st.recursive(_VALUES, lambda v: st.lists(v) | st.dictionaries(_KEYS, v), max_leaves=8))


@given(tables=_TABLES)
def test_what_is_written_reads_back(tables):
    assert tomllib.loads(as_toml(tables)) == tables


HOSTILE_VALUES = [
    ("training.steps = 0x" + "f" * 5000, "training.steps is a number of 20,000 bits; it must be between"),
    ("training.steps = " + "9" * 5000, "is not TOML"),
    ("training.epochs = nan", "training.epochs is nan; it must be a finite number"),
    ("training.epochs = 1979-05-27", "training.epochs is datetime.date.*; it must be a text, a number"),
    ('encoder.init = "a\\nb"', r"encoder.init is 'a\\nb'; it must be a text of at most 4,000 printable characters"),
    ('training."" = 1', "training has the key ''; a key has 1 to 100 printable characters"),
    ("training.a.b.c.d.e.f.g.h.i = 1", "is nested deeper than 8 tables"),
    ("mining.contexts = 5", r"mining.contexts is 5; it must be a table"),
    ("mining.tasks = 5", r"mining.tasks is 5; it must be a table"),
    ("mining.positives.exclude = [1]", "mining.positives.exclude is .1.; it must be a list of texts"),
    ("graph.fastrp = 5", r"graph.fastrp is 5; it must be a table"),
    ("recipe.about = 5", "about is 5; it must be a text"),
    ("# " + "x" * (1 << 20), "has more than 1,048,576 bytes"),
]


@pytest.mark.parametrize(("text", "message"), HOSTILE_VALUES)
def test_values_that_cannot_be_meant(tmp_path, text, message):
    write(tmp_path, hostile=f'recipe.base = "specter"\n{text}\n')
    with pytest.raises(UserError, match=message) as refused:
        read_recipe(load_recipe(str(tmp_path / "hostile.toml")))
    assert str(refused.value).isprintable()


def test_a_chain_of_bases_ends(tmp_path):
    write(tmp_path, **{f"r{n}": f'recipe.base = "r{n + 1}.toml"\n' for n in range(40)})
    refused("builds on more than 16 others", load_recipe, str(tmp_path / "r0.toml"))
