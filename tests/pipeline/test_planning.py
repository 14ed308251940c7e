"""A plan names every stage and makes none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from citeweave.pipeline.cost import count_picks, count_triplets
from citeweave.pipeline.plan import plan_run
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.pipeline.run import RunResult

from .conftest import Place, tiny


def test_a_plan_makes_nothing(place: Place, ran: RunResult, tmp_path: Path) -> None:
    plan = plan_run(tiny("specter"), place.corpus.folder, tmp_path / "run", place.options)
    assert not (tmp_path / "run").exists()
    names = [stage.name for stage in plan.stages]
    assert names == ["corpus", "graph", "samples", "model", "report-start/corpus", "report/corpus"]
    assert plan.seconds > 0 and plan.memory > 0
    assert "2 steps of 4 triplets" in str(plan)
    there = plan_run(tiny("scincl"), place.corpus.folder, ran.folder, replace(place.options, shared=None))
    assert all(stage.is_there for stage in there.stages)
    chained = plan_run(load_recipe("specter_cocite"), place.corpus.folder, tmp_path / "run", place.options)
    assert chained.stages[0].name == "init-specter"
    rules = read_recipe(load_recipe("specter")).rules
    assert (count_picks(rules), count_triplets(rules)) == (10, 5)
