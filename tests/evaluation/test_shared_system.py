"""Evaluation by an executor: the same report as without one, task by task, with papers that were embedded shard by shard."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.evaluation.evaluate import SharedSystem, evaluate, evaluate_spaces
from citeweave.evaluation.open_system import open_spaces, open_system
from citeweave.evaluation.options import CorpusSuiteOptions, OpeningOptions
from citeweave.evaluation.suites import SuiteSpec

from ..conftest import Told, content
from .conftest import FACETS, refused

EMBED, EVALUATE = "citeweave.evaluation.evaluate:texts_maker", "citeweave.evaluation.evaluate:evaluation_maker"


def evaluated(name: object, asked: SuiteSpec, output: Path, executor: Told | None = None, **opening: Any) -> Any:
    """The content of the report."""
    options = OpeningOptions(**{"device": "cpu", **opening})
    system: Any = open_system(str(name), options)
    if executor is not None:
        system = SharedSystem(system, executor, asked, str(name), options)
    evaluate(system, asked.read(), output)
    return content(output)


@pytest.fixture(scope="module")
def file(vectors, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("remote") / "toy.jsonl"
    path.write_text("".join(json.dumps({"paper_id": each, "embedding": row}) + "\n" for each, row in vectors.items()))
    return path


@pytest.mark.parametrize("suite", ["scidocs", "scirepeval", "csfcube", "reviewers"])
def test_precomputed_vectors(suite, folders, file, tmp_path):
    asked, executor = SuiteSpec(suite, folders[suite]), Told()
    assert evaluated(file, asked, tmp_path / "executor", executor) == evaluated(file, asked, tmp_path / "here")
    assert [work.maker for work in executor.works] == [EVALUATE]
    assert len(executor.made) == len(asked.read().choose(()).tasks)  # few-shot ones too


def test_what_cannot_be_answered_is_told_in_the_order_of_tasks(folders, tmp_path):
    asked = SuiteSpec("scidocs", folders["scidocs"])  # bm25 cannot classify
    report = evaluated("bm25", asked, tmp_path / "executor", Told())
    assert report == evaluated("bm25", asked, tmp_path / "here")
    assert "bm25 has no vectors" in report["report.json"].decode()


def test_an_encoder_reads_papers_shard_by_shard(bert, folders, tmp_path, monkeypatch):
    for room in ("encoders.embed", "evaluation.encoder_systems"):
        monkeypatch.setattr(f"citeweave.{room}.SHARD", 6)
    asked, executor = SuiteSpec("scidocs", folders["scidocs"]), Told()
    here = evaluated(bert, asked, tmp_path / "here", cache=tmp_path / "1")
    assert evaluated(bert, asked, tmp_path / "executor", executor, cache=tmp_path / "2") == here
    assert [work.maker for work in executor.works] == [EMBED, EMBED, EVALUATE]
    assert executor.made[:8].count(2) == 2 and max(executor.made) >= 2  # two lists of papers, each of several shards
    caches = [(tmp_path / place / "vectors").iterdir() for place in ("1", "2")]
    here, there = ({folder.name: content(folder) for folder in folders} for folders in caches)
    assert there == here and len(here) == 2


def test_an_encoder_without_a_cache(bert, folders, tmp_path):
    asked, executor = SuiteSpec("mdcr", folders["mdcr"]), Told()
    assert evaluated(bert, asked, tmp_path / "executor", executor) == evaluated(bert, asked, tmp_path / "here")
    assert [work.maker for work in executor.works] == [EVALUATE]
    # sentences are counted where they were read
    asked, how = SuiteSpec("csfcube", folders["csfcube"]), {"distance": "single", "max_tokens": 12}
    report = evaluated(bert, asked, tmp_path / "sentences", Told(), **how)
    assert report == evaluated(bert, asked, tmp_path / "sentences here", **how)
    assert json.loads(report["report.json"])["model"]["sentences cut away"] > 0


def test_every_space_of_a_model(aspect_model, folders, tmp_path):
    asked, executor = SuiteSpec("csfcube", folders["csfcube"]), Told()
    for place in ("here", "executor"):
        opening = OpeningOptions(device="cpu", cache=tmp_path / "cache" / place)
        spaces: dict[str, Any] = dict(open_spaces(str(aspect_model), opening))
        if place == "executor":
            shared = {"executor": executor, "suite": asked, "name": str(aspect_model)}
            for name, each in spaces.items():
                spaces[name] = SharedSystem(each, opening=replace(opening, aspect=name), **shared)
        evaluate_spaces(spaces, asked.read(), tmp_path / place)
    for name in ("encoder", *FACETS, "all", "matching"):
        assert content(tmp_path / "executor" / name) == content(tmp_path / "here" / name)
    assert [work.maker for work in executor.works].count(EMBED) == 1


def test_a_suite_made_from_a_corpus(tmp_path, monkeypatch):
    from citeweave import synthesize
    from citeweave.corpus.options import SyntheticOptions

    synthesize(tmp_path / "corpus", SyntheticOptions(papers=300))
    monkeypatch.chdir(tmp_path)  # a worker works elsewhere
    asked = SuiteSpec("corpus", Path("corpus"), corpus_options=CorpusSuiteOptions(queries=10, seed=1))
    told = SuiteSpec.of_json(json.loads(json.dumps(asked.as_json())))
    assert told.corpus_options == asked.corpus_options and told.data.is_absolute()
    assert evaluated("bm25", asked, tmp_path / "executor", Told()) == evaluated("bm25", asked, tmp_path / "here")


def test_failed_tasks_are_evaluated_by_the_next_run_and_other_data_is_refused(folders, file, tmp_path):
    asked, executor, again = SuiteSpec("scidocs", folders["scidocs"]), Told(failing=(1,)), Told()
    refused(r"evaluating: 1 of 3 shards", evaluated, file, asked, tmp_path / "r", executor, error=ShardError)
    assert not (tmp_path / "r").exists()
    assert evaluated(file, asked, tmp_path / "r", again) == evaluated(file, asked, tmp_path / "here")
    assert again.made == [0]  # the one that was missing
    assert len(again.works[0].arguments["tasks"]) == 1
    work = executor.works[0]
    marks = dict.fromkeys(work.arguments["tasks"], "0")
    with pytest.raises(UserError, match="differs here from where the evaluation started"):
        next(LocalExecutor().make(ShardTask(work.maker, {**work.arguments, "tasks": marks}), [0]))
    other = {**work.arguments["system"], "revision": "0"}
    with pytest.raises(UserError, match=r"toy.jsonl has revision"):
        next(LocalExecutor().make(ShardTask(work.maker, {**work.arguments, "system": other}), [0]))


class Noting(Told):
    """Only notes what it is asked."""

    def make(self, work: ShardTask, numbers: Any) -> Any:
        self.works.append(work)
        raise ShardError(work.label, {0: "not made"}, len(numbers))


@pytest.mark.parametrize(("device", "embeds"), [("", "auto"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_whoever_only_evaluates_asks_for_no_card(bert, folders, tmp_path, device, embeds):
    """Its vectors lie in the cache; a worker without a card could not open the model on one."""
    opening = {"device": device} if device else {}
    asked, options = SuiteSpec("mdcr", folders["mdcr"]), OpeningOptions(cache=tmp_path / "c", **opening)
    encoder = open_system(str(bert), OpeningOptions(device="cpu", cache=tmp_path / "c"))
    executor, suite = Noting(), asked.read()
    shared = SharedSystem(encoder, executor, asked, str(bert), options)
    with pytest.raises(ShardError):
        shared.embed(suite.tasks)
    with pytest.raises(ShardError):
        next(shared.evaluate(suite.tasks, {task.name: "0" for task in suite.tasks}, {}))
    assert [work.arguments["system"]["opening"]["device"] for work in executor.works] == [embeds, "cpu"]
    assert [work.gpu for work in executor.works] == [embeds != "cpu", False]
