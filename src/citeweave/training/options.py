"""The losses that a recipe may name, with the settings that each of them takes; plain values, no torch.

    [training.losses.supcon]
    weight = 0.7
    temperature = 0.05

`losses/` has the formulas, `objective.py` says which vectors each of them gets.

What a recipe says of the encoder and of its training: the `[encoder]` and `[training]` tables.

    [encoder]
    init = "allenai/scibert_scivocab_uncased"
    pooling = "cls"

    [training]
    batch = 32
    learning_rate = 2e-5

    [training.losses.triplet]
    margin = 1.0

    >>> training_options({"batch": 8, "losses": {"supcon": {"temperature": 0.1}}}).losses
    {'supcon': {'weight': 1.0, 'temperature': 0.1, 'scope': 'own', 'relatives': True, 'negatives_by': ''}}

Reads and checks; trains nothing and loads nothing heavy.

The plan of a training run: what is trained, how, and what its card says beside that. Needs no torch.
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
"""Every loss with the settings it takes and their defaults; each also takes `weight`, 1.0. See `objective.py`.

`negatives_by` names rules of `[mining.negatives]`, with a comma between them, whose picks alone count; empty = all."""

SENTENCE_LOSSES = ("aligned_triplet", "sentence_triplet", "sentence_in_batch")
"""Losses that read a vector of every sentence."""

ASPECT = "aspect_"
"""Losses of this prefix act in the space of each group's aspect: see `aspect_heads.py`."""

BATCH_LOSSES = ("in_batch", "aspect_in_batch", "gte", "sentence_in_batch", "student_teacher", "mlm")
"""Losses that find their negatives in the batch."""

NEGATIVES = ("own", "batch")
"""Where losses on triplets of sentences take their negatives from."""


def rules_of(settings: Mapping[str, Any]) -> list[str]:
    """Names of the rules whose negatives alone a loss takes; none = all.

    >>> rules_of({"negatives_by": "local, easy"}), rules_of({})
    (['local', 'easy'], [])
    """
    return [name.strip() for name in settings.get("negatives_by", "").split(",") if name.strip()]


# What a recipe says of the encoder and of its training: the `[encoder]` and `[training]` tables.

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
    """The encoder that is trained, before training: the `[encoder]` table."""

    init: str = "minilm"
    """Start model: `minilm`, a folder, a name on the Hugging Face hub, or `recipe:NAME` for another recipe's model."""

    pooling: str = ""
    """`cls`, `mean`, `mix` (a learned mixture of the layers), or `aspect_words` (sentences weighed by the words for
    aspects, see `encoders/text_vectors.py`); empty = what the start model says."""

    max_tokens: int = 512
    """Texts are cut here, or at what the model can read if that is less."""

    text: tuple[str, ...] = ("title", "abstract")
    """What is read of a paper; see `corpus.text.TextRecipe`."""

    normalize: bool | None = None
    """Whether vectors get length 1; None = what the start model says. L2 losses want false."""

    heads: str = ""
    """A projection for every aspect of the samples: `linear`, `two_layers` (a ReLU between), or none."""

    head_size: int = 0
    """Numbers of a vector in an aspect's space; 0 = as many as the encoder's."""

    head_start: str = "random"
    """How heads begin: `random`, as any linear layer, or `identity`, every space as the encoder's own."""

    def __post_init__(self) -> None:
        choose(self.pooling, POOLINGS, "encoder.pooling")
        TextRecipe(parts=self.text)
        choose(self.heads, HEADS, "encoder.heads")
        choose(self.head_start, HEAD_STARTS, "encoder.head_start")
        _at_least(self, "encoder", max_tokens=4, head_size=0)

    @property
    def text_recipe(self) -> TextRecipe:
        return TextRecipe(parts=self.text)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How samples become weights: the `[training]` table."""

    losses: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"triplet": {}})
    """Losses by name with their settings; several are summed by their weights."""

    batch: int = 32
    """Size of a step, over all processes, in units."""

    unit: str = "triplets"
    """What a batch counts: `triplets`, or `groups` of an anchor with all its positives and negatives."""

    block: int = 0
    """Triplets of one anchor that stay together, the rest goes elsewhere; 0 = all. With groups whose negatives are the
    batch's: positives."""

    epochs: float = 2.0
    steps: int = 0
    """Stop after so many steps; 0 = when the epochs are over. The schedule then ends there too."""

    share: float = 1.0
    """Share of the samples that is trained on, drawn by the seed."""

    learning_rate: float = 2e-5
    head_rate: float = 1.0
    """Aspect heads learn so many times as fast as the encoder."""

    optimizer: str = "adamw"
    """`adam` or `adamw`; they differ in how weight decay acts."""

    weight_decay: float = 0.0
    epsilon: float = 1e-8
    clip: float = 0.0
    """Longest gradient; 0 = never cut."""

    schedule: str = "linear"
    """`slanted` (triangular), `linear`, `cosine` or `constant`, after the warm-up; see `schedules.py`."""

    warmup: float = 0.0
    """Share of the steps below 1, a number of steps from 1 on."""

    parts: str = "all"
    """What is trained: `all`, `layers` (not the embeddings), `bias` (BitFit), `lora`, or `heads`: only the aspect heads,
    of an encoder that reads every paper once."""

    frozen_layers: int = 0
    """So many layers, and the word embeddings below them, stay as they are."""

    lora_rank: int = 8
    precision: str = "auto"
    """What the network computes in: `float32`, `bfloat16` (weights stay float32), or `auto`: bfloat16 on a GPU."""

    compiled: bool = False
    """Compile the layers of a BERT-like network on a GPU: long runs are a tenth to a half faster, after a minute."""

    micro_tokens: int = 0
    """Tokens encoded at a time; larger steps go in parts with the same result. 0 = by the device."""

    parallel: str = "ddp"
    """What each of several processes holds: `ddp`, the whole model; `fsdp`, its share of every weight, see `sharding.py`."""

    dropout: float | None = None
    """Of the network; None = what its own configuration says."""

    validation: float = 0.05
    """Share of the anchors whose samples are kept for validation."""

    check_every: int = 0
    """Steps between validations; 0 = once an epoch."""

    checkpoint_every: int = 0
    """Steps between checkpoints, from which an interrupted training goes on; 0 = twenty in all, fewer where writing them
    would take more than a tenth of the time."""

    patience: int = 0
    """Validations without gain after which training stops; 0 = never. The best weights are kept where it is set."""

    watch: str = ACCURACY
    """What validation compares: `accuracy` of triplets, or a task of the corpus suite such as `cite.map`."""

    start_share: float = 0.0
    """So much of the start model's weights is in the saved ones, the rest are the trained ones; see `finishing.py`."""

    track: str = ""
    """Where the log goes too: `tensorboard` or `wandb`, where they are installed."""

    seed: int = 0
    seeds: int = 1
    """So many models are trained, with the seeds from `seed` on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "losses", _losses(self.losses))
        choose(self.unit, UNITS, "training.unit")
        choose(self.optimizer, OPTIMIZERS, "training.optimizer")
        choose(self.schedule, SCHEDULES, "training.schedule")
        choose(self.parts, PARTS, "training.parts")
        choose(self.precision, PRECISIONS, "training.precision")
        choose(self.track, TRACKERS, "training.track")
        choose(self.parallel, PARALLEL, "training.parallel")
        _at_least(self, "training", batch=1, seeds=1, lora_rank=1)
        for name in ("block", "steps", "weight_decay", "epsilon", "clip", "warmup", "frozen_layers", "micro_tokens"):
            _at_least(self, "training", **{name: 0})
        for name in ("check_every", "checkpoint_every", "patience"):
            _at_least(self, "training", **{name: 0})
        _check_above(self, epochs=0.0, learning_rate=0.0, share=0.0, head_rate=0.0)
        shares = (("share", 1.0), ("validation", 0.5), ("start_share", 1.0))
        for name, value, top in ((name, getattr(self, name), top) for name, top in shares):
            if not 0 <= value <= top:
                raise UserError(f"training.{name} is {value}; it must be between 0 and {top}")
        if self.start_share and self.parts == "lora":
            raise UserError("training.start_share mixes whole weights, and training.parts is 'lora'; leave one out")
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
                "such as aspect_in_batch, teach heads: leave the others out"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"training.dropout is {self.dropout}; it must be from 0 up and below 1")

    @property
    def pairs_suffice(self) -> bool:
        """Whether every loss finds its negatives in the batch, so that samples need none of their own."""
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
        """Whether a loss takes the negatives of some rules alone."""
        return any(settings.get("negatives_by") for settings in self.losses.values())

    @property
    def reads_sentences(self) -> bool:
        """Whether a loss reads a vector of every sentence."""
        return any(name in SENTENCE_LOSSES for name in self.losses)


def encoder_options(table: Mapping[str, Any]) -> EncoderOptions:
    """Read an `[encoder]` table; an unknown key is refused with the nearest known one."""
    return EncoderOptions(**_checked(table, EncoderOptions, "encoder"))


def training_options(table: Mapping[str, Any]) -> TrainingOptions:
    """Read a `[training]` table; an unknown key is refused with the nearest known one."""
    return TrainingOptions(**_checked(table, TrainingOptions, "training"))


_Options = TypeVar("_Options", EncoderOptions, TrainingOptions)


def _checked(table: Mapping[str, Any], kind: type[_Options], name: str) -> dict[str, Any]:
    """The values of a table, each of the type that its option has."""
    hints, values = get_type_hints(kind), {}
    for key, value in table.items():
        choose(key, [entry.name for entry in dataclasses.fields(kind)], f"{name}: key")
        values[key] = _typed(value, hints[key], f"{name}.{key}")
    return values


def _typed(value: Any, hint: Any, key: str) -> Any:
    """
    >>> _typed(2, float, "training.epochs"), _typed(["title"], tuple[str, ...], "encoder.text")
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


def _losses(given: object) -> dict[str, dict[str, Any]]:
    """Every loss with all its settings."""
    if not isinstance(given, Mapping) or not given:
        raise UserError(f"training.losses is {given!r}; it must name a loss, such as [training.losses.triplet]")
    filled = {}
    for name, settings in given.items():
        choose(name, LOSSES, "training.losses")
        if not isinstance(settings, Mapping):
            raise UserError(f"training.losses.{name} is {settings!r}; it must be a table [training.losses.{name}]")
        defaults = {"weight": 1.0, **LOSSES[name]}
        for key, value in settings.items():
            choose(key, defaults, f"training.losses.{name}: key")
            _typed(value, type(defaults[key]), f"training.losses.{name}.{key}")
        filled[name] = {**defaults, **settings}
    return filled


def _at_least(options: object, table: str, **least: float) -> None:
    for name, value in least.items():
        if getattr(options, name) < value:
            raise UserError(f"{table}.{name} is {getattr(options, name)}; it must be at least {value}")


def _check_above(options: object, **floor: float) -> None:
    for name, value in floor.items():
        if not getattr(options, name) > value:
            raise UserError(f"training.{name} is {getattr(options, name)}; it must be above {value:g}")


# The plan of a training run: what is trained, how, and what its card says beside that. Needs no torch.


@dataclass(frozen=True, slots=True)
class CardNotes:
    """What the model's card says beside what training knows itself."""

    recipe: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    held_out: str = ""
    audit: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is trained, and how."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    about: CardNotes = field(default_factory=CardNotes)
