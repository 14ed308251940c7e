"""Tables of a recipe: what is not known is refused, with the nearest known."""

from __future__ import annotations

from typing import Any

import pytest

from citeweave.core.errors import UserError
from citeweave.training.options import LOSSES, encoder_options, training_options
from citeweave.training.trainer import learning_rate_factor, warmup_steps


def test_every_loss_is_read_with_all_its_settings() -> None:
    for name, settings in LOSSES.items():
        assert training_options({"unit": "groups", "losses": {name: {}}}).losses == {name: {"weight": 1.0, **settings}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"learning_rat": 1.0}, "Did you mean 'learning_rate'"),
        ({"losses": {"triplett": {}}}, "Did you mean 'triplet'"),
        ({"losses": {"triplet": {"margni": 1.0}}}, "Did you mean 'margin'"),
        ({"losses": {"triplet": {"margin": "wide"}}}, "training.losses.triplet.margin is 'wide'; it must be a float"),
        ({"losses": {}}, "must name a loss"),
        ({"losses": {"triplet": 1}}, "must be a table"),
        ({"batch": 0}, "training.batch is 0; it must be at least 1"),
        ({"batch": 2.5}, "training.batch is 2.5; it must be a int"),
        ({"epochs": 0}, "training.epochs is 0.0; it must be greater than 0"),
        ({"share": 1.5}, "training.share is 1.5"),
        ({"validation": 0.9}, "training.validation is 0.9"),
        ({"dropout": 1.0}, "training.dropout is 1.0"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"patience": -1}, "training.patience is -1"),
    ],
)
def test_training_tables_are_checked(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        training_options(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"pooling": "max"}, "encoder.pooling is 'max'"),
        ({"text": ["title", "body"]}, "'body'"),
        ({"text": "title"}, "must be a list"),
        ({"normalize": 1}, "encoder.normalize is 1; it must be a bool"),
        ({"max_tokens": 1}, "at least 4"),
        ({"int": "minilm"}, "Did you mean 'init'"),
    ],
)
def test_encoder_tables_are_checked(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        encoder_options(table)


@pytest.mark.parametrize("schedule", ["slanted", "linear", "cosine", "constant"])
def test_schedules_rise_to_the_peak_and_never_below_nothing(schedule: str) -> None:
    warmup = warmup_steps(0.1, 100)
    rates = [learning_rate_factor(schedule, step, 100, warmup=warmup) for step in range(100)]
    assert max(rates) == pytest.approx(1.0, abs=0.02)
    assert rates[:10] == sorted(rates[:10])
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    if schedule != "constant":
        assert rates[-1] < 0.05
