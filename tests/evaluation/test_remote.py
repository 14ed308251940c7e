"""Evaluation by an executor: the same report as without one, task by task, with papers that were embedded shard by shard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.encoders import embed
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.evaluation.evaluate import evaluate, evaluate_spaces
from citeweave.evaluation.open_system import OpeningOptions, open_spaces, open_system
from citeweave.evaluation.run_tasks import SharedSystem
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions
from citeweave.evaluation.suites.registry import SuiteSpec

from ..conftest import Told, content

EMBED, EVALUATE = "citeweave.evaluation.run_tasks:texts_maker", "citeweave.evaluation.run_tasks:evaluation_maker"


def evaluated(
    name: object, asked: SuiteSpec, output: Path, executor: Told | None = None, **opening: Any
) -> dict[str, Any]:
    """The content of the report."""
    options = OpeningOptions(**{"device": "cpu", **opening})
    opened = open_system(str(name), options)
    evaluate(
        opened if executor is None else SharedSystem(opened, executor, asked, str(name), options), asked.read(), output
    )
    return content(output)


@pytest.fixture(scope="module")
def file(vectors: dict[str, list[float]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("remote") / "toy.jsonl"
    path.write_text("".join(json.dumps({"paper_id": each, "embedding": row}) + "\n" for each, row in vectors.items()))
    return path


@pytest.mark.parametrize("suite", ["scidocs", "scirepeval", "csfcube", "reviewers"])
def test_given_vectors(suite: str, folders: dict[str, Path], file: Path, tmp_path: Path) -> None:
    asked, executor = SuiteSpec(suite, folders[suite]), Told()
    assert evaluated(file, asked, tmp_path / "executor", executor) == evaluated(file, asked, tmp_path / "here")
    assert [work.maker for work in executor.works] == [EVALUATE]
    assert len(executor.made) == len(asked.read().choose(()).tasks)  # few-shot ones too


def test_what_cannot_be_answered_is_told_in_the_order_of_tasks(folders: dict[str, Path], tmp_path: Path) -> None:
    asked = SuiteSpec("scidocs", folders["scidocs"])  # bm25 cannot classify
    report = evaluated("bm25", asked, tmp_path / "executor", Told())
    assert report == evaluated("bm25", asked, tmp_path / "here")
    assert "bm25 has no vectors" in report["report.json"].decode()


def test_an_encoder_reads_papers_shard_by_shard(
    bert: Path, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed.EmbeddingOptions.__init__, "__defaults__", _with_shard(6))
    monkeypatch.setattr("citeweave.evaluation.encoder_systems.SHARD", 6)
    asked, executor = SuiteSpec("scidocs", folders["scidocs"]), Told()
    here = evaluated(bert, asked, tmp_path / "here", cache=tmp_path / "1")
    assert evaluated(bert, asked, tmp_path / "executor", executor, cache=tmp_path / "2") == here
    assert [work.maker for work in executor.works] == [EMBED, EMBED, EVALUATE]
    assert executor.made[:8].count(2) == 2 and max(executor.made) >= 2  # two lists of papers, each of several shards
    here, there = (
        {folder.name: content(folder) for folder in (tmp_path / place / "vectors").iterdir()} for place in ("1", "2")
    )
    assert there == here and len(here) == 2


def _with_shard(size: int) -> tuple[Any, ...]:
    defaults = embed.EmbeddingOptions.__init__.__defaults__
    assert defaults is not None
    return tuple(size if value == embed.SHARD else value for value in defaults)


def test_an_encoder_without_a_cache(bert: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    asked, executor = SuiteSpec("mdcr", folders["mdcr"]), Told()
    assert evaluated(bert, asked, tmp_path / "executor", executor) == evaluated(bert, asked, tmp_path / "here")
    assert [work.maker for work in executor.works] == [EVALUATE]


def test_sentences_are_counted_where_they_were_read(bert: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    asked = SuiteSpec("csfcube", folders["csfcube"])
    how: dict[str, Any] = {"distance": "single", "max_tokens": 12}
    report = evaluated(bert, asked, tmp_path / "executor", Told(), **how)
    assert report == evaluated(bert, asked, tmp_path / "here", **how)
    assert json.loads(report["report.json"])["model"]["sentences cut away"] > 0


def test_every_space_of_a_model(bert: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    model = shutil.copytree(bert, tmp_path / "model")
    rng, names = np.random.default_rng(0), ("background", "method", "result")
    layers = {name: ((rng.normal(size=(8, 32)).astype("f4"), rng.normal(size=8).astype("f4")),) for name in names}
    save_heads(model, AspectHeads(names, layers))
    asked, executor = SuiteSpec("csfcube", folders["csfcube"]), Told()
    for place in ("here", "executor"):
        opening = OpeningOptions(device="cpu", cache=tmp_path / "cache" / place)
        spaces: dict[str, Any] = dict(open_spaces(str(model), opening))
        if place == "executor":
            shared = {"executor": executor, "suite": asked, "name": str(model)}
            spaces = {
                name: SharedSystem(
                    each, opening=OpeningOptions(device="cpu", cache=opening.cache, aspect=name), **shared
                )
                for name, each in spaces.items()
            }
        evaluate_spaces(spaces, asked.read(), tmp_path / place)
    for name in ("encoder", *names, "all", "matching"):
        assert content(tmp_path / "executor" / name) == content(tmp_path / "here" / name)
    assert [work.maker for work in executor.works].count(EMBED) == 1


def test_a_suite_made_from_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from citeweave import synthesize
    from citeweave.corpus.synthetic.literature import SyntheticOptions

    synthesize(tmp_path / "corpus", SyntheticOptions(papers=300))
    monkeypatch.chdir(tmp_path)  # a worker works elsewhere
    asked = SuiteSpec("corpus", Path("corpus"), corpus_options=CorpusSuiteOptions(queries=10, seed=1))
    told = SuiteSpec.of_json(json.loads(json.dumps(asked.as_json())))
    assert told.corpus_options == asked.corpus_options and told.data.is_absolute()
    assert evaluated("bm25", asked, tmp_path / "executor", Told()) == evaluated("bm25", asked, tmp_path / "here")


def test_failed_tasks_are_judged_by_the_next_run(folders: dict[str, Path], file: Path, tmp_path: Path) -> None:
    asked, executor = SuiteSpec("scidocs", folders["scidocs"]), Told(failing=(1,))
    with pytest.raises(ShardError, match=r"evaluating: 1 of 3 shards"):
        evaluated(file, asked, tmp_path / "r", executor)
    assert not (tmp_path / "r").exists()
    again = Told()
    assert evaluated(file, asked, tmp_path / "r", again) == evaluated(file, asked, tmp_path / "here")
    assert again.made == [0]  # the one that was missing
    assert len(again.works[0].arguments["tasks"]) == 1


def test_other_data_or_another_model_is_refused(folders: dict[str, Path], file: Path, tmp_path: Path) -> None:
    executor = Told()
    evaluated(file, SuiteSpec("scidocs", folders["scidocs"]), tmp_path / "r", executor)
    work = executor.works[0]
    marks = dict.fromkeys(work.arguments["tasks"], "0")
    with pytest.raises(UserError, match="differs here from where the evaluation started"):
        next(LocalExecutor().make(ShardTask(work.maker, {**work.arguments, "tasks": marks}), [0]))
    other = {**work.arguments["system"], "revision": "0"}
    with pytest.raises(UserError, match=r"toy.jsonl has revision"):
        next(LocalExecutor().make(ShardTask(work.maker, {**work.arguments, "system": other}), [0]))


@pytest.mark.parametrize(
    ("opening", "embeds", "evaluates"),
    [({}, "auto", "cpu"), ({"device": "cuda"}, "cuda", "cpu"), ({"device": "cpu"}, "cpu", "cpu")],
)
def test_whoever_only_judges_asks_for_no_card(
    bert: Path, folders: dict[str, Path], tmp_path: Path, opening: dict[str, str], embeds: str, evaluates: str
) -> None:
    """Its vectors lie in the cache; a worker without a card could not open the model on one."""
    asked, options = SuiteSpec("mdcr", folders["mdcr"]), OpeningOptions(cache=tmp_path / "c", **opening)
    encoder = open_system(str(bert), OpeningOptions(device="cpu", cache=tmp_path / "c"))
    executor, suite = Asked(), asked.read()
    shared = SharedSystem(encoder, executor, asked, str(bert), options)
    with pytest.raises(StopAsking):
        shared.embed(suite.tasks)
    with pytest.raises(StopAsking):
        next(shared.evaluate(suite.tasks, {task.name: "0" for task in suite.tasks}, {}))
    assert [work.arguments["system"]["opening"]["device"] for work in executor.works] == [embeds, evaluates]
    assert [work.gpu for work in executor.works] == [embeds != "cpu", False]


class StopAsking(Exception):
    pass


class Asked:
    """An executor that only notes what it is asked."""

    def __init__(self) -> None:
        self.works: list[ShardTask] = []

    def make(self, work: ShardTask, numbers: Any) -> Any:
        self.works.append(work)
        raise StopAsking
