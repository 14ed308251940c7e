"""Training on CPU: it learns, it resumes to the bit, it says what is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from citeweave.core.errors import CiteweaveError, EmptyResultError, UserError
from citeweave.core.progress import QUIET
from citeweave.core.publish import work_folder
from citeweave.encoders.encoder import load_encoder
from citeweave.training import trainer
from citeweave.training.distributed import ProcessGroup
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.train import EncoderRun, load_start_model, prepare_run, train_encoder
from citeweave.training.trainer import train_network

from .conftest import Literature

SMALL = TrainingOptions(batch=8, steps=6, learning_rate=1e-3, validation=0.2, check_every=3, checkpoint_every=2)


def plan_of(literature: Literature, **changes: Any) -> TrainingPlan:
    return TrainingPlan(EncoderOptions(init=str(literature.model)), dataclasses.replace(SMALL, **changes))


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def train(literature: Literature, folder: Path, **changes: Any) -> EncoderRun:
    sources = DataSources(graph=literature.graph)
    return train_encoder(
        literature.corpus, literature.samples, folder, plan_of(literature, **changes), sources=sources, device="cpu"
    )


def test_training_learns_and_writes_an_encoder(literature: Literature, tmp_path: Path) -> None:
    run = train(literature, tmp_path / "model", steps=100, check_every=100, dropout=0.0)
    assert 0 < run.before["accuracy"] < 1 and 0 < run.after["accuracy"] < 1  # of 24 triplets: which is higher is luck
    encoder = load_encoder(tmp_path / "model", device="cpu")
    start = load_encoder(literature.model, device="cpu")
    texts = ["a paper shows that models learn", "the cell grows"]
    assert np.abs(encoder.encode(texts) - start.encode(texts)).max() > 1e-3
    lines = [json.loads(line) for line in (tmp_path / "model" / "training" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 10 and np.mean(losses[-2:]) < 0.6 * losses[0]  # a line is the mean of ten steps
    assert [line["step"] for line in lines if "accuracy" in line] == [0, 100]
    card = (tmp_path / "model" / "README.md").read_text()
    assert "No leakage audit was made" in card
    assert "accuracy" in card


def test_the_same_again_trains_nothing(literature: Literature, tmp_path: Path) -> None:
    first = train(literature, tmp_path / "model")
    changed = (tmp_path / "model" / "manifest.json").stat().st_mtime_ns
    assert train(literature, tmp_path / "model").manifest.hash == first.manifest.hash
    assert (tmp_path / "model" / "manifest.json").stat().st_mtime_ns == changed
    with pytest.raises(UserError, match="made from other inputs or options"):
        train(literature, tmp_path / "model", learning_rate=2e-3)


def test_saved_weights_lie_between_the_start_and_the_trained_ones(literature: Literature, tmp_path: Path) -> None:
    shares = (0.0, 0.25, 1.0)
    trained, between, back = (
        load_file(train(literature, tmp_path / f"m{share}", start_share=share).folder / "model.safetensors")
        for share in shares
    )
    moved = 0.0
    for name, start in back.items():  # all of the start model's
        torch.testing.assert_close(between[name], 0.25 * start + 0.75 * trained[name], rtol=0, atol=1e-6)
        moved = max(moved, float((start - trained[name]).abs().max()))
    assert moved > 1e-4
    with pytest.raises(UserError, match="start_share"):
        dataclasses.replace(SMALL, start_share=0.5, parts="lora")


class _Power(Exception):
    """The power is cut."""


def cut_training(literature: Literature, folder: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    step = trainer._TrainingLoop._step

    def cut_step(loop: Any, number: int) -> None:
        if number == cut:
            raise _Power
        step(loop, number)

    with monkeypatch.context() as patched, pytest.raises(_Power):
        patched.setattr(trainer._TrainingLoop, "_step", cut_step)
        train(literature, folder, patience=5)


def test_a_log_that_lost_its_end_is_not_filled_up(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_training(literature, tmp_path / "cut", monkeypatch, 5)
    (log,) = work_folder(tmp_path / "cut").rglob("log.jsonl")
    log.write_text('{"step": 1}\n')
    train(literature, tmp_path / "cut", patience=5)
    lines = (tmp_path / "cut" / "training" / "log.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": 1}' and all("step" in json.loads(line) for line in lines)


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    whole = train(literature, tmp_path / "whole", patience=5)
    cut_training(literature, tmp_path / "cut", monkeypatch, cut)
    assert not (tmp_path / "cut").exists()
    again = train(literature, tmp_path / "cut", patience=5)
    assert weights_of(tmp_path / "cut") == weights_of(tmp_path / "whole")
    log = Path("training") / "log.jsonl"
    assert (tmp_path / "cut" / log).read_bytes() == (tmp_path / "whole" / log).read_bytes()
    assert again.after == whole.after


LOSSES: dict[str, dict[str, Any]] = {
    "triplet": {},
    "n_pairs": {},
    "supcon": {},
    "info_nce": {},
    "in_batch": {},
    "cosent": {},
    "angle": {},
    "angle_sum": {},
    "gte": {"temperature": 0.05},
    "mlm": {},
}


def gradients(literature: Literature, tokens: Path, options: TrainingOptions) -> tuple[float, list[np.ndarray]]:
    start = load_start_model(EncoderOptions(init=str(literature.model)), "cpu")
    encoder = EncoderOptions(init=str(literature.model))
    sources = DataSources(graph=literature.graph)
    data = load_training_data(literature.corpus, literature.samples, start.reader, encoder, options, tokens, sources)
    run = prepare_run(start, data, TrainingPlan(training=options), ProcessGroup(), QUIET)
    start.network.model.train()
    batch = trainer.Batches(data.groups, options).at(0)
    loss = run.stepper.backward(batch, 0)
    return float(loss), [weight.grad.numpy().copy() for weight in run.weights.values() if weight.grad is not None]


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_in_parts_is_the_step_at_once(literature: Literature, tmp_path: Path, name: str) -> None:
    """Gradient caching and accumulation: the same loss and gradients whatever fits at a time."""
    losses = {"triplet": {"weight": 0.5}, name: LOSSES[name]}
    whole = TrainingOptions(losses=losses, batch=8, unit="groups", dropout=0.0, micro_tokens=100_000)
    parts = dataclasses.replace(whole, micro_tokens=300)
    at_once, in_parts = (gradients(literature, tmp_path / "tokens", options) for options in (whole, parts))
    assert in_parts[0] == pytest.approx(at_once[0], rel=1e-5)
    assert len(at_once[1]) == len(in_parts[1]) > 10
    largest = max(float(np.abs(one).max()) for one in at_once[1])
    for one, other in zip(at_once[1], in_parts[1], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5 * largest)


def test_dropout_of_a_part_is_the_same_both_times(literature: Literature, tmp_path: Path) -> None:
    options = TrainingOptions(losses={"in_batch": {}}, batch=8, unit="groups", dropout=0.3, micro_tokens=300)
    first, again = (gradients(literature, tmp_path / "tokens", options) for _ in range(2))
    assert first[0] == again[0]
    assert all((one == other).all() for one, other in zip(first[1], again[1], strict=True))
    other = gradients(literature, tmp_path / "tokens", dataclasses.replace(options, seed=1))
    assert other[0] != first[0]


def test_the_best_weights_are_kept_and_training_stops_early(literature: Literature, tmp_path: Path) -> None:
    run = train(literature, tmp_path / "model", steps=40, check_every=2, patience=2, learning_rate=0.05)
    facts = run.manifest.facts
    assert facts["stopped early"]
    assert facts["steps"] == facts["kept step"] + 4
    checks = [json.loads(line) for line in (tmp_path / "model" / "training" / "log.jsonl").read_text().splitlines()]
    best = max((line["accuracy"], -line["step"]) for line in checks if "accuracy" in line)
    assert facts["kept step"] == -best[1]


def test_parts_of_the_network_are_saved_as_a_delta(literature: Literature, tmp_path: Path) -> None:
    run = train(literature, tmp_path / "model", parts="bias")
    assert run.manifest.facts["trained weights"] < 2000
    texts = ["a paper shows that models learn", "the cell grows"]
    whole, delta = (load_encoder(folder, device="cpu") for folder in (run.folder, run.folder / "delta"))
    np.testing.assert_allclose(delta.encode(texts), whole.encode(texts), atol=1e-5)
    assert (run.folder / "delta" / "delta.safetensors").stat().st_size < 20_000


def test_frozen_layers_stay(literature: Literature, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    run = train(literature, tmp_path / "model", frozen_layers=1)
    before, after = (load_file(folder / "model.safetensors") for folder in (literature.model, run.folder))
    moved = {name for name in after if name in before and (before[name] != after[name]).any()}
    assert any(name.startswith("encoder.layer.1.") for name in moved)
    assert not any(name.startswith(("embeddings.", "encoder.layer.0.")) for name in moved)


def test_a_teacher_can_be_followed(literature: Literature, tmp_path: Path) -> None:
    from citeweave.graph.build import make_graph
    from citeweave.vectors.vectors import Vectors

    make_graph(literature.corpus, tmp_path / "graph")
    sources = DataSources(teacher=Vectors.open(tmp_path / "graph" / "vectors"))
    changes = {"steps": 100, "batch": 16, "check_every": 100, "checkpoint_every": 0, "dropout": 0.0}
    plan = plan_of(literature, losses={"student_teacher": {}}, **changes)
    run = train_encoder(literature.corpus, literature.samples, tmp_path / "model", plan, sources=sources, device="cpu")
    lines = [json.loads(line) for line in (run.folder / "training" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    with pytest.raises(UserError, match="--teacher"):
        train_encoder(literature.corpus, literature.samples, tmp_path / "other", plan, device="cpu")


def test_pools_of_the_corpus_suite_are_watched(literature: Literature, tmp_path: Path) -> None:
    from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, make_suite

    suite = make_suite(literature.corpus, CorpusSuiteOptions(held_out="share:0.2", queries=20))
    plan = plan_of(literature, watch="cite.map", patience=1)
    run = train_encoder(
        literature.corpus, literature.samples, tmp_path / "model", plan, sources=DataSources(suite=suite), device="cpu"
    )
    assert 0 < run.before["cite.map"] < 1
    wrong = plan_of(literature, watch="site.map")
    with pytest.raises(UserError, match="Did you mean 'cite.map'"):
        train_encoder(
            literature.corpus, literature.samples, tmp_path / "o", wrong, sources=DataSources(suite=suite), device="cpu"
        )


def test_pools_give_the_suites_own_number(literature: Literature, tmp_path: Path) -> None:
    from citeweave.evaluation.evaluate import evaluate
    from citeweave.evaluation.open_system import OpeningOptions, open_system
    from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, make_suite

    suite = make_suite(literature.corpus, CorpusSuiteOptions(held_out="share:0.2", queries=20))
    run = train_encoder(
        literature.corpus,
        literature.samples,
        tmp_path / "model",
        plan_of(literature),
        sources=DataSources(suite=suite),
        device="cpu",
    )
    judged = open_system(str(run.folder), OpeningOptions(device="cpu"))
    report = evaluate(judged, suite, tmp_path / "report", tasks=["cite"])
    # in one of the 20 queries, two papers that are all but equally near may change places
    assert 100 * run.after["cite.map"] == pytest.approx(report.metrics["cite.map"], abs=2.5)


def test_a_loss_that_is_no_number_ends_the_run(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, batch: Any, step: int) -> torch.Tensor:
        return torch.tensor(float("nan") if step == 4 else 1.0)

    monkeypatch.setattr("citeweave.training.step.Stepper.backward", broken)
    with pytest.raises(CiteweaveError, match="loss of step 4 is nan.*checkpoint of step 4 is kept.*learning_rate"):
        train(literature, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_out_of_memory_names_a_smaller_size(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, papers: Any, step: int, number: int, forwards: int) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("citeweave.training.step.Stepper.encode", full)
    with pytest.raises(CiteweaveError, match="out of memory at step 0.*training.micro_tokens=8192"):
        train(literature, tmp_path / "model")


def test_a_full_disk_leaves_the_last_checkpoint(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from citeweave.training import checkpoints

    save, calls = checkpoints._save_tensors, []

    def full(path: Path, tensors: Any) -> None:
        calls.append(path)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        save(path, tensors)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_save_tensors", full)
        with pytest.raises(CiteweaveError, match="No space left on device.*last checkpoint is step-00000002"):
            train(literature, tmp_path / "model")
    train(literature, tmp_path / "model")
    train(literature, tmp_path / "whole")
    assert weights_of(tmp_path / "model") == weights_of(tmp_path / "whole")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(literature: Literature, tmp_path: Path) -> None:
    start = load_start_model(EncoderOptions(init=str(literature.model)), "cpu")
    options = dataclasses.replace(SMALL, steps=5)
    encoder = EncoderOptions(init=str(literature.model))
    data = load_training_data(
        literature.corpus, literature.samples, start.reader, encoder, options, tmp_path / "tokens"
    )
    train_network(prepare_run(start, data, TrainingPlan(training=options), ProcessGroup(), QUIET), tmp_path / "work")
    found = sorted((tmp_path / "work" / "checkpoints").iterdir())
    assert [path.name for path in found] == ["step-00000002", "step-00000004"]
    wanted = {name: weight.clone() for name, weight in start.network.model.named_parameters()}
    (found[1] / "weights.safetensors").write_bytes(b"cut")
    again = load_start_model(EncoderOptions(init=str(literature.model)), "cpu")
    progress = train_network(
        prepare_run(again, data, TrainingPlan(training=options), ProcessGroup(), QUIET), tmp_path / "work"
    )
    assert progress.step == 5
    assert all((wanted[name] == weight).all() for name, weight in again.network.model.named_parameters())


def test_samples_of_another_corpus_are_refused(literature: Literature, tmp_path: Path) -> None:
    from citeweave.corpus.synthetic.literature import SyntheticOptions
    from citeweave.corpus.synthetic.synthesize import synthesize

    other = synthesize(tmp_path / "other", SyntheticOptions(papers=40, seed=1), workers=1)
    with pytest.raises(UserError, match="mined from another corpus"):
        train_encoder(other, literature.samples, tmp_path / "model", plan_of(literature), device="cpu")


def test_papers_without_text_leave_the_samples(literature: Literature, tmp_path: Path) -> None:
    start = load_start_model(EncoderOptions(init=str(literature.model)), "cpu")
    venue = EncoderOptions(init=str(literature.model), text=("venue",))
    with pytest.raises(EmptyResultError, match="none of the .* samples can be trained on"):
        load_training_data(
            literature.corpus.__class__.open(_without_venues(literature, tmp_path)),
            _mined(tmp_path),
            start.reader,
            venue,
            SMALL,
            tmp_path / "tokens",
        )


def _without_venues(literature: Literature, tmp_path: Path) -> Path:
    from citeweave.corpus.ingest import import_papers

    lines = [{"id": str(n), "title": f"paper {n}", "abstract": "we find how", "references": ["0"]} for n in range(9)]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "bare")
    return tmp_path / "bare"


def _mined(tmp_path: Path) -> Any:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import SampleNames, block_from_lists, new_samples

    corpus = Corpus.open(tmp_path / "bare")
    with new_samples(tmp_path / "samples", SampleNames(rules=("a", "b")), corpus=corpus.hash) as writer:
        writer.append(block_from_lists([1, 2], positives=[[0], [0]], negatives=[[3], [4]]))
        return writer.finish()


def test_no_device_where_one_is_asked_for(literature: Literature, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="torch sees 0 GPUs"):
        train_encoder(literature.corpus, literature.samples, tmp_path / "m", plan_of(literature), device="cuda")


def test_another_recipe_as_start_belongs_to_run(literature: Literature, tmp_path: Path) -> None:
    plan = TrainingPlan(EncoderOptions(init="recipe:specter"), SMALL)
    with pytest.raises(UserError, match="citeweave run"):
        train_encoder(literature.corpus, literature.samples, tmp_path / "m", plan, device="cpu")


@pytest.mark.parametrize("pooling", ["cls", "mean", "mix"])
def test_sentence_transformers_reads_the_trained_encoder(
    literature: Literature, tmp_path: Path, pooling: str, save_bert: Callable[..., Path]
) -> None:
    from sentence_transformers import SentenceTransformer

    plan = dataclasses.replace(plan_of(literature), encoder=EncoderOptions(str(literature.model), pooling=pooling))
    run = train_encoder(literature.corpus, literature.samples, tmp_path / "model", plan, device="cpu")
    texts = ["a paper[SEP]shows that the cell grows", "models learn"]
    theirs = SentenceTransformer(str(run.folder), device="cpu").encode(texts)
    np.testing.assert_allclose(load_encoder(run.folder, device="cpu").encode(texts), theirs, atol=1e-5)


def test_a_tracker_gets_the_log(literature: Literature, tmp_path: Path) -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="pip install tensorboard"):
            train(literature, tmp_path / "model", track="tensorboard")
        return
    train(literature, tmp_path / "model", track="tensorboard", steps=1)
