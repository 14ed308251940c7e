"""Tables of a recipe: what is not known is refused, with the nearest known."""

import pytest

from citeweave.training.options import LOSSES, encoder_options, training_options

from .conftest import refused


def test_every_loss_is_read_with_all_its_settings():
    for name, settings in LOSSES.items():
        assert training_options({"unit": "groups", "losses": {name: {}}}).losses == {name: {"weight": 1.0, **settings}}


WRONG_TABLES = [
    (training_options, {"learning_rat": 1.0}, "Did you mean 'learning_rate'"),
    (training_options, {"losses": {"triplett": {}}}, "Did you mean 'triplet'"),
    (training_options, {"losses": {"triplet": {"margni": 1.0}}}, "Did you mean 'margin'"),
    (training_options, {"losses": {"triplet": {"margin": "wide"}}}, "training.losses.triplet.margin is 'wide'; it must be a number"),
    (training_options, {"losses": {}}, "must name a loss"),
    (training_options, {"losses": {"triplet": 1}}, "must be a table"),
    (training_options, {"unit": "groups", "parts": "heads", "losses": {"supcon": {}, "aspect_supcon": {}}}, "training.parts is 'heads'"),
    (training_options, {"unit": "groups", "parts": "heads", "losses": {"in_batch": {}}}, "training.parts is 'heads'"),
    (training_options, {"batch": 0}, "training.batch is 0; it must be at least 1"),
    (training_options, {"batch": 2.5}, "training.batch is 2.5; it must be a whole number"),
    (training_options, {"epochs": 0}, "training.epochs is 0; it must be greater than 0"),
    (training_options, {"share": 1.5}, "training.share is 1.5"),
    (training_options, {"validation": 0.9}, "training.validation is 0.9"),
    (training_options, {"dropout": 1.0}, "training.dropout is 1.0"),
    (training_options, {"schedule": "cosin"}, "Did you mean 'cosine'"),
    (training_options, {"patience": -1}, "training.patience is -1"),
    (training_options, {"leftovers": "drop"}, "training.leftovers is 'drop'.*block is 0"),
    (training_options, {"leftovers": "drop", "block": 5, "batch": 32}, "batch that is a multiple"),
    (training_options, {"leftovers": "drop", "block": 4, "unit": "groups"}, "needs unit 'triplets'"),
    (training_options, {"scale_by": "end"}, "training.scale_by is 'end'"),
    (training_options, {"scale_by": "start", "losses": {"info_nce": {}}}, "the losses are info_nce; only L2 distances"),
    (training_options, {"scale_by": "start", "losses": {"triplet": {"distance": "cosine"}}}, "only L2 distances"),
    (encoder_options, {"pooling": "max"}, "encoder.pooling is 'max'"),
    (encoder_options, {"text": ["title", "body"]}, "'body'"),
    (encoder_options, {"text": "title"}, "must be a list"),
    (encoder_options, {"normalize": 1}, "encoder.normalize is 1; it must be true or false"),
    (encoder_options, {"max_tokens": 1}, "at least 4"),
    (encoder_options, {"int": "minilm"}, "Did you mean 'init'"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "table", "message"), WRONG_TABLES)
def test_tables_are_checked(read, table, message):
    refused(message, read, table)
