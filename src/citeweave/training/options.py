"""The `[encoder]` and `[training]` tables of a recipe: options, losses with their settings, training plan.

    [encoder]
    init = "allenai/scibert_scivocab_uncased"
    pooling = "cls"

    [training]
    batch = 32
    learning_rate = 2e-5

    [training.losses.supcon]
    weight = 0.7
    temperature = 0.05

    >>> training_options({"batch": 8, "losses": {"supcon": {"temperature": 0.1}}}).losses
    {'supcon': {'weight': 1.0, 'temperature': 0.1, 'scope': 'own', 'relatives': True, 'negatives_by': ''}}

Reads and checks plain values without torch; trains nothing. `losses/` has the formulas of the losses, `objective.py`
chooses the vectors that each of them gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from citeweave.core.columns import is_finite
from citeweave.core.errors import UserError, choose
from citeweave.corpus.text import TextRecipe

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "triplet": {"margin": 1.0, "distance": "l2"},
    "n_pairs": {"temperature": 0.05, "similarity": "cosine"},
    "supcon": {"temperature": 0.05, "scope": "own", "relatives": True, "negatives_by": ""},
    "info_nce": {"temperature": 0.1},
    "in_batch": {"temperature": 0.05, "relatives": True, "negatives_by": ""},
    "aspect_supcon": {"temperature": 0.05, "scope": "own", "relatives": True, "negatives_by": ""},
    "aspect_in_batch": {"temperature": 0.05, "relatives": True, "negatives_by": ""},
    "cosent": {"scale": 20.0},
    "angle": {"scale": 20.0},
    "angle_sum": {"scale": 20.0, "cosine": 1.0, "in_batch": 1.0, "angle": 1.0, "relatives": True},
    "gte": {"temperature": 0.01, "relatives": True},
    "student_teacher": {},
    "mlm": {"share": 0.15},
    "aligned_triplet": {"margin": 1.0, "metric": "l2", "negatives": "batch", "relatives": True},
    "sentence_triplet": {
        "margin": 1.0,
        "distance": "transport",
        "metric": "l2",
        "temperature": 0.5,
        "mode": "exact",
        "negatives": "batch",
        "relatives": True,
    },
    "sentence_in_batch": {
        "match": "mean_best",
        "sharpness": 0.05,
        "temperature": 0.05,
        "facets": 0.0,
        "whole": 0.0,
        "relatives": True,
    },
}
"""Settings of every loss with their defaults; each also takes `weight`, 1.0.

`negatives_by` names rules of `[mining.negatives]`, separated by commas, to use only their negatives; empty = all.
`relatives` leaves known related papers out of the batch's negatives."""

SENTENCE_LOSSES = ("aligned_triplet", "sentence_triplet", "sentence_in_batch")
"""Losses that read one vector per sentence."""

ASPECT = "aspect_"
"""Prefix of losses that act in the space of each group's aspect (`partial.TrainedHeads`)."""

BATCH_LOSSES = ("in_batch", "aspect_in_batch", "gte", "sentence_in_batch", "student_teacher", "mlm")
"""Losses that take their negatives from the batch."""

NEGATIVES = ("own", "batch")
"""Where losses on sentence triplets take their negatives from."""


def negative_rules(settings: Mapping[str, Any]) -> list[str]:
    """Return from a loss's options the names of the mining rules whose negatives it uses; none = all.

    >>> negative_rules({"negatives_by": "local, easy"}), negative_rules({})
    (['local', 'easy'], [])
    """
    return [name.strip() for name in settings.get("negatives_by", "").split(",") if name.strip()]


# The tables of a recipe

POOLINGS = ("", "cls", "mean", "mix", "aspect_words")
UNITS = ("triplets", "groups")
OPTIMIZERS = ("adam", "adamw")
SCHEDULES = ("slanted", "linear", "cosine", "constant")
PARTS = ("all", "layers", "bias", "lora", "heads")
PRECISIONS = ("auto", "float32", "bfloat16")
TRACKERS = ("", "tensorboard", "wandb")
PARALLEL = ("ddp", "fsdp")
ACCURACY = "accuracy"

HEADS = ("", "linear", "two_layers")
HEAD_STARTS = ("random", "identity")


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of the encoder to train, its start model and shape: the `[encoder]` table."""

    init: str = "minilm"
    """Start model: `minilm`, a folder, a name on the Hugging Face Hub, or `recipe:NAME` for another recipe's model."""

    pooling: str = ""
    """`cls`, `mean`, `mix` (a learned mixture of the layers), or `aspect_words` (sentences weighted by the words for
    aspects, see `encoders/pooling.py`); empty = the start model's own."""

    max_tokens: int = 512
    """Maximum number of tokens of a text, or what the model can read if that is less."""

    text: tuple[str, ...] = ("title", "abstract")
    """Parts of a paper to read; see `corpus.text.TextRecipe`."""

    normalize: bool | None = None
    """Whether vectors are normalized; None = the start model's own setting. L2 losses need false."""

    heads: str = ""
    """Projection for every aspect of the samples: `linear`, `two_layers` (with a ReLU between), or none."""

    head_size: int = 0
    """Dimension of an aspect's space; 0 = the encoder's."""

    head_start: str = "random"
    """Initial heads: `random`, like any linear layer, or `identity`, so that every space is the encoder's own."""

    def __post_init__(self) -> None:
        choose(self.pooling, POOLINGS, "encoder.pooling")
        TextRecipe(parts=self.text)
        choose(self.heads, HEADS, "encoder.heads")
        choose(self.head_start, HEAD_STARTS, "encoder.head_start")
        _check_minimum(self, "encoder", max_tokens=4, head_size=0)

    @property
    def text_recipe(self) -> TextRecipe:
        return TextRecipe(parts=self.text)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of training, its losses, batches, optimizer and schedule: the `[training]` table."""

    losses: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"triplet": {}})
    """Losses by name with their settings; several are summed by their weights."""

    batch: int = 32
    """Size of a batch in units, over all processes."""

    unit: str = "triplets"
    """What a batch counts: `triplets`, or `groups` of an anchor with all its positives and negatives."""

    block: int = 0
    """Maximum number of triplets of one anchor per batch; 0 = all. For groups with the batch's negatives: positives."""

    epochs: float = 2.0
    steps: int = 0
    """Maximum number of steps, where the schedule ends too; 0 = those of the epochs."""

    share: float = 1.0
    """Share of the samples to train on, drawn by the seed."""

    learning_rate: float = 2e-5
    head_rate: float = 1.0
    """Factor on the learning rate for aspect heads."""

    optimizer: str = "adamw"
    """`adam` or `adamw`; they differ in how weight decay acts."""

    weight_decay: float = 0.0
    epsilon: float = 1e-8
    clip: float = 0.0
    """Maximum norm of the gradient; 0 = no clipping."""

    schedule: str = "linear"
    """`slanted` (triangular), `linear`, `cosine` or `constant`, after the warmup; see `trainer.learning_rate_factor`."""

    warmup: float = 0.0
    """Share of the steps if below 1, otherwise a number of steps."""

    parts: str = "all"
    """What is trained: `all`, `layers` (not the embeddings), `bias` (BitFit), `lora`, or `heads`: only the aspect heads,
    with an encoder that reads every paper once."""

    frozen_layers: int = 0
    """Number of lowest layers that are not trained, together with the word embeddings."""

    lora_rank: int = 8
    precision: str = "auto"
    """Precision of the network: `float32`, `bfloat16` (weights stay float32), or `auto`: bfloat16 on a GPU."""

    compiled: bool = False
    """Compile the layers of a BERT-like network on a GPU: takes a minute, and makes long runs 10 to 50% faster."""

    micro_tokens: int = 0
    """Tokens encoded at a time; larger batches are encoded in parts with the same result. 0 = by the device."""

    parallel: str = "ddp"
    """What each of several processes holds: `ddp`, the complete model; `fsdp`, a shard of every weight."""

    dropout: float | None = None
    """Dropout of the network; None = as in its own configuration."""

    validation: float = 0.05
    """Share of the anchors whose samples are held out for validation."""

    check_every: int = 0
    """Steps between validations; 0 = once per epoch."""

    checkpoint_every: int = 0
    """Steps between checkpoints, from which an interrupted run resumes; 0 = twenty in all, fewer where writing them
    would take more than a tenth of the time."""

    patience: int = 0
    """Validations without improvement after which training stops; 0 = never. If set, the best weights are saved."""

    watch: str = ACCURACY
    """Metric that validation compares: `accuracy` of triplets, or a task of the corpus suite such as `cite.map`."""

    start_share: float = 0.0
    """Share of the start model in the saved weights, which interpolate between start and trained ones."""

    track: str = ""
    """Where to send the log as well: `tensorboard` or `wandb`, if installed."""

    seed: int = 0
    seeds: int = 1
    """Number of models to train, with the seeds `seed`, `seed` + 1, ..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "losses", _fill_losses(self.losses))
        choose(self.unit, UNITS, "training.unit")
        choose(self.optimizer, OPTIMIZERS, "training.optimizer")
        choose(self.schedule, SCHEDULES, "training.schedule")
        choose(self.parts, PARTS, "training.parts")
        choose(self.precision, PRECISIONS, "training.precision")
        choose(self.track, TRACKERS, "training.track")
        choose(self.parallel, PARALLEL, "training.parallel")
        _check_minimum(self, "training", batch=1, seeds=1, lora_rank=1)
        for name in ("block", "steps", "weight_decay", "epsilon", "clip", "warmup", "frozen_layers", "micro_tokens"):
            _check_minimum(self, "training", **{name: 0})
        for name in ("check_every", "checkpoint_every", "patience"):
            _check_minimum(self, "training", **{name: 0})
        _check_above(self, epochs=0.0, learning_rate=0.0, share=0.0, head_rate=0.0)
        shares = (("share", 1.0), ("validation", 0.5), ("start_share", 1.0))
        for name, maximum in shares:
            if not 0 <= getattr(self, name) <= maximum:
                raise UserError(f"training.{name} is {getattr(self, name)}; it must be between 0 and {maximum}")
        if self.start_share and self.parts == "lora":
            raise UserError(
                "training.start_share interpolates complete weights, and training.parts is 'lora'; leave one out"
            )
        for name, settings in self.losses.items():
            if "negatives" in settings:
                choose(settings["negatives"], NEGATIVES, f"training.losses.{name}.negatives")
        if (self.reads_aspects or self.reads_rules) and self.unit != "groups":
            raise UserError(
                f"training.unit is {self.unit!r}; losses in aspect spaces, and those with negatives_by, need 'groups'"
            )
        if self.parts == "heads" and not all(name.startswith(ASPECT) for name in self.losses):
            raise UserError(
                f"training.parts is 'heads', and the losses are {', '.join(self.losses)}; only those in aspect spaces, "
                "such as aspect_in_batch, train heads: leave out the others"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"training.dropout is {self.dropout}; it must be at least 0 and less than 1")

    @property
    def pairs_suffice(self) -> bool:
        """Whether every loss takes its negatives from the batch, so that samples need none of their own."""
        return self.unit == "groups" and all(
            name in BATCH_LOSSES or "batch" in (settings.get("negatives"), settings.get("scope"))
            for name, settings in self.losses.items()
        )

    @property
    def reads_aspects(self) -> bool:
        """Whether a loss acts in the spaces of aspects."""
        return any(name.startswith(ASPECT) for name in self.losses)

    @property
    def reads_rules(self) -> bool:
        """Whether a loss uses only the negatives of some mining rules."""
        return any(settings.get("negatives_by") for settings in self.losses.values())

    @property
    def reads_sentences(self) -> bool:
        """Whether a loss reads one vector per sentence."""
        return any(name in SENTENCE_LOSSES for name in self.losses)


def encoder_options(table: Mapping[str, Any]) -> EncoderOptions:
    """Read the `[encoder]` table of a recipe; an unknown key is refused with the nearest known one."""
    return EncoderOptions(**_check_table(table, EncoderOptions, "encoder"))


def training_options(table: Mapping[str, Any]) -> TrainingOptions:
    """Read the `[training]` table of a recipe; an unknown key is refused with the nearest known one."""
    return TrainingOptions(**_check_table(table, TrainingOptions, "training"))


_Options = TypeVar("_Options", EncoderOptions, TrainingOptions)


def _check_table(table: Mapping[str, Any], kind: type[_Options], name: str) -> dict[str, Any]:
    """Check keys and types of a recipe's table and return its values."""
    hints, values = get_type_hints(kind), {}
    for key, value in table.items():
        choose(key, [entry.name for entry in dataclasses.fields(kind)], f"{name}: key")
        values[key] = _check_type(value, hints[key], f"{name}.{key}")
    return values


def _check_type(value: Any, hint: Any, key: str) -> Any:
    """Return an option's value in its declared type, or raise an error that names its key.

    >>> _check_type(2, float, "training.epochs"), _check_type(["title"], tuple[str, ...], "encoder.text")
    (2.0, ('title',))
    """
    if hint == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        raise UserError(f'{key} is {value!r}; it must be a list of texts such as ["title", "abstract"]')
    if value is None and NoneType in get_args(hint):
        return None
    kind = get_args(hint)[0] if NoneType in get_args(hint) else hint
    if kind not in (bool, int, float, str):
        return value
    if kind is float and (isinstance(value, float) or is_finite(value)):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{key} is {value!r}; it must be a {kind.__name__}")
    return value


def _fill_losses(losses: object) -> dict[str, dict[str, Any]]:
    """Return the losses of a recipe with defaults for the settings that are missing."""
    if not isinstance(losses, Mapping) or not losses:
        raise UserError(f"training.losses is {losses!r}; it must name a loss, such as [training.losses.triplet]")
    filled = {}
    for name, settings in losses.items():
        choose(name, LOSSES, "training.losses")
        if not isinstance(settings, Mapping):
            raise UserError(f"training.losses.{name} is {settings!r}; it must be a table [training.losses.{name}]")
        defaults = {"weight": 1.0, **LOSSES[name]}
        for key, value in settings.items():
            choose(key, defaults, f"training.losses.{name}: key")
            _check_type(value, type(defaults[key]), f"training.losses.{name}.{key}")
        filled[name] = {**defaults, **settings}
    return filled


def _check_minimum(options: object, table: str, **minimum: float) -> None:
    for name, value in minimum.items():
        if getattr(options, name) < value:
            raise UserError(f"{table}.{name} is {getattr(options, name)}; it must be at least {value}")


def _check_above(options: object, **bound: float) -> None:
    for name, value in bound.items():
        if not getattr(options, name) > value:
            raise UserError(f"training.{name} is {getattr(options, name)}; it must be greater than {value:g}")


# The plan of a training run


@dataclass(frozen=True, slots=True)
class CardNotes:
    """Options of training that only describe it on the model's card: recipe, its tables, held-out data, audit."""

    recipe: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    held_out: str = ""
    audit: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Plan of a training run: encoder, training options, and notes for the model's card."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    about: CardNotes = field(default_factory=CardNotes)
