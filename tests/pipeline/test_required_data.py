"""A recipe whose text needs data that the corpus lacks says so in one line before anything runs, and where to get them."""

from __future__ import annotations

import json

import pytest

from citeweave.core.errors import EmptyResultError, UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.mining.mine import mine_samples
from citeweave.mining.rules import parse_rules
from citeweave.pipeline.cost import plan_run
from citeweave.pipeline.recipe import load_recipe, shipped_recipes
from citeweave.pipeline.required_data import check_required_data
from citeweave.pipeline.run import run_recipe
from citeweave.pipeline.run_folder import RunOptions


def corpus_of(folder, **changes) -> Corpus:
    papers = [
        {"id": f"p:{n}", "title": f"Title {n}", "abstract": "Some text.", "references": ["p:0"]} for n in range(4)
    ]
    lines = [json.dumps({key: value for key, value in (paper | changes).items() if value}) for paper in papers]
    (folder / "papers.jsonl").write_text("\n".join(lines))
    return import_papers([folder / "papers.jsonl"], folder / "corpus").corpus


@pytest.fixture
def bare(tmp_path) -> Corpus:
    """Titles, abstracts and references alone."""
    return corpus_of(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("specter_venue", "recipe specter_venue needs the venue of papers .*, and .* has none; import .*OpenAlex"),
        ("specter_author", "recipe specter_author needs the authors of papers .*; import .*BibTeX"),
        ("aspire_ot", "recipe aspire_ot needs citing sentences, and .* has none; import a source .*: S2ORC, unarXive"),
        ("aspire_ts", "recipe aspire_ts needs citing sentences"),
        ("aspire_context", "recipe aspire_context needs citing sentences"),
        ("specter_cocite_scibert", "recipe specter_cocite_scibert needs citing sentences"),
        ("sciaspect", "recipe sciaspect needs citation intents, .*Semantic Scholar.* or one with citing sentences"),
        ("sciaspect_hybrid", "recipe sciaspect_hybrid needs citation intents"),
        ("sciaspect_bands", "recipe sciaspect_bands needs citation intents"),
        ("signal_table", "recipe signal_table needs the table 'coviews', .*--table coviews=FILE"),
        ("multitask", "recipe multitask needs the table 'coviews'"),
    ],
)
def test_missing_data_are_named_before_anything_runs(recipe, message, bare, bert, tmp_path):
    options, loaded = RunOptions(init=str(bert), device="cpu"), load_recipe(recipe)
    for start in (run_recipe, plan_run):
        with pytest.raises(UserError, match=message) as refused:
            start(loaded, bare.folder, tmp_path / "run", options)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("without", "data"), [("abstract", "abstracts"), ("references", "citations between papers")])
def test_abstracts_and_citations(without, data, tmp_path):
    with pytest.raises(UserError, match=f"recipe specter needs {data}"):
        check_required_data(load_recipe("specter"), corpus_of(tmp_path, **{without: ""}), RunOptions())


def test_mining_alone_says_the_same(bare, tmp_path):
    with pytest.raises(EmptyResultError, match="no citing sentences; import a source that has them: S2ORC"):
        mine_samples(bare, parse_rules(load_recipe("aspire").table("mining")), tmp_path / "samples")


def test_a_complete_corpus_lacks_nothing(place):
    tables = {name: place.folder / f"{name}.tsv" for name in ("coviews", "coreads")}
    for name in shipped_recipes():
        if load_recipe(name).table("training"):
            check_required_data(load_recipe(name), place.corpus, RunOptions(tables=tables))
