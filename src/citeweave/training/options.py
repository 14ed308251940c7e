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

Reads and checks plain values without torch; trains nothing. `contrastive_losses.py` and
`pairwise_losses.py` have the formulas of the losses, `objective.py` chooses the vectors that each of them gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from citeweave.core.errors import UserError, choose
from citeweave.core.options import OneOf, Range, check, convert, parse_table
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.model_names import parse_random
from citeweave.vectors.own_distance import Reading

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
    "similarity": {"temperature": 0.05, "teacher_temperature": 0.05, "teacher": ""},
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

`teacher` of `similarity` names the model whose vectors `run` makes, or several, separated by commas, whose cosines are
averaged; `train` takes them with --teacher.
`negatives_by` names rules of `[mining.negatives]`, separated by commas, to use only their negatives; empty = all.
`relatives` leaves known related papers out of the batch's negatives."""

SENTENCE_LOSSES = ("aligned_triplet", "sentence_triplet", "sentence_in_batch")
"""Losses that read one vector per sentence."""

ASPECT = "aspect_"
"""Prefix of losses that act in the space of each group's aspect (`partial.TrainedHeads`)."""

BATCH_LOSSES = ("in_batch", "aspect_in_batch", "gte", "sentence_in_batch", "student_teacher", "similarity", "mlm")
"""Losses that take their negatives from the batch."""

TEACHER_LOSSES = ("student_teacher", "similarity")
"""Losses that follow a teacher's vectors."""

NEGATIVES = ("own", "batch")
"""Where losses on sentence triplets take their negatives from."""


def negative_rules(settings: Mapping[str, Any]) -> list[str]:
    """Return from a loss's options the names of the mining rules whose negatives it uses; none = all.

    >>> negative_rules({"negatives_by": "local, easy"}), negative_rules({})
    (['local', 'easy'], [])
    """
    return _split_names(settings.get("negatives_by", ""))


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


# The tables of a recipe

PARTS = ("all", "layers", "bias", "lora", "heads")
ACCURACY, LOSS = "accuracy", "loss"
"""Metrics of validation on held-out samples; all others rank papers of the corpus suite."""

MICRO_TOKENS = {"cpu": 16_384, "cuda": 65_536}
"""Default number of tokens encoded at a time, by device."""


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of the encoder to train, its start model and shape: the `[encoder]` table."""

    init: str = "minilm"
    """Start model: `minilm`, a folder, a Hugging Face name, `recipe:NAME`, or `random:NAME` (`random-7:NAME`): the shape
    and tokenizer of a model, with random weights drawn by the seed 0 (or 7)."""

    pooling: Annotated[str, OneOf("", "cls", "mean", "mix", "aspect_words", "title_abstract")] = ""
    """`cls`, `mean`, `mix` (learned layer weights), `aspect_words` (weighted sentences), `title_abstract` (title,
    abstract and further fields encoded apart, and their mean); empty = the start model's."""

    max_tokens: Annotated[int, Range(4)] = 512
    """Maximum length of texts."""

    text: tuple[str, ...] = ("title", "abstract")
    """Parts of a paper; also `venue`, `authors`, which suites do not have."""

    normalize: bool | None = None
    """Whether vectors have unit length; default: the start model's. L2 losses need false."""

    heads: Annotated[str, OneOf("", "linear", "two_layers")] = ""
    """One projection per aspect: `linear` or `two_layers`; see aspects.md."""

    head_size: Annotated[int, Range(0)] = 0
    """Dimension of an aspect's space; 0 = the encoder's."""

    head_start: Annotated[str, OneOf("random", "identity")] = "random"
    """Initial heads: `random`, or `identity`, the encoder's own space."""

    reading: Reading = field(default_factory=Reading)
    """How papers are best compared by sentences, kept with the model: a table `[encoder.reading]` with `distance`,
    `metric`, `max_tokens`, `temperature`; default: what a sentence loss trains."""

    def __post_init__(self) -> None:
        check(self, "encoder")
        TextRecipe(parts=self.text)

    @property
    def text_recipe(self) -> TextRecipe:
        return TextRecipe(parts=self.text)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of training, its losses, batches, optimizer and schedule: the `[training]` table."""

    losses: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"triplet": {}})
    """Losses by name with their settings; several are summed by their weights."""

    batch: Annotated[int, Range(1)] = 32
    """Size of a batch in units, over all processes."""

    unit: Annotated[str, OneOf("triplets", "groups")] = "triplets"
    """What a batch counts: `triplets`, or `groups` of an anchor with all its positives and negatives."""

    block: Annotated[int, Range(0)] = 0
    """Triplets of one anchor that stay together; 0 = all, 1 = a shuffle of all triplets. For groups with the batch's
    negatives: maximum number of positives per group."""

    leftovers: Annotated[str, OneOf("keep", "drop")] = "keep"
    """What happens to an anchor's last block if it has fewer than `block` triplets: `keep` or `drop`."""

    epochs: Annotated[float, Range(above=0)] = 2.0
    """Number of passes over the samples."""

    steps: Annotated[int, Range(0)] = 0
    """Maximum number of steps, where the schedule ends too; 0 = those of the epochs."""

    share: Annotated[float, Range(above=0, max=1)] = 1.0
    """Share of the samples to train on, drawn by the seed."""

    learning_rate: Annotated[float, Range(above=0)] = 2e-5
    """Peak learning rate."""

    head_rate: Annotated[float, Range(above=0)] = 1.0
    """Factor on the learning rate for aspect heads."""

    optimizer: Annotated[str, OneOf("adam", "adamw")] = "adamw"
    """`adam` or `adamw`; they differ in how weight decay acts."""

    weight_decay: Annotated[float, Range(0)] = 0.0
    """Weight decay of the optimizer."""

    epsilon: Annotated[float, Range(0)] = 1e-8
    """Epsilon of the optimizer."""

    clip: Annotated[float, Range(0)] = 0.0
    """Maximum norm of the gradient; 0 = no clipping."""

    schedule: Annotated[str, OneOf("slanted", "linear", "cosine", "constant")] = "linear"
    """`slanted` (triangular), `linear`, `cosine` or `constant`, after the warmup; see `trainer.learning_rate_factor`."""

    warmup: Annotated[float, Range(0)] = 0.0
    """Share of the steps if below 1, otherwise a number of steps."""

    parts: Annotated[str, OneOf(*PARTS)] = "all"
    """What is trained: `all`, `layers` (not the embeddings), `bias` (BitFit), `lora`, or `heads`: only the aspect heads,
    with an encoder that reads every paper once."""

    frozen_layers: Annotated[int, Range(0)] = 0
    """Number of lowest layers that are not trained, together with the word embeddings."""

    lora_rank: Annotated[int, Range(1)] = 8
    """Rank of the low-rank adapters, where parts is `lora`."""

    precision: Annotated[str, OneOf("auto", "float32", "bfloat16")] = "auto"
    """Precision of the network: `float32`, `bfloat16` (weights stay float32), or `auto`: bfloat16 on a GPU."""

    compiled: bool | None = None
    """Compile the layers of a BERT-like network on a GPU: takes half a minute, and makes long runs up to 10% faster; None = where
    the run is long enough."""

    micro_tokens: Annotated[int, Range(0)] = 0
    """Tokens encoded at a time; larger batches are encoded in parts with the same result. 0 = by the device."""

    parallel: Annotated[str, OneOf("ddp", "fsdp")] = "ddp"
    """What each of several processes holds: `ddp`, the complete model; `fsdp`, a shard of every weight."""

    dropout: Annotated[float | None, Range(0, below=1)] = None
    """Dropout of the network; None = as in its own configuration."""

    validation: Annotated[float, Range(0, 0.5)] = 0.05
    """Share of the anchors whose samples are held out for validation."""

    check_every: Annotated[float, Range(0)] = 0.0
    """Steps between validations; below 1, a share of an epoch; 0 = once per epoch."""

    checkpoint_every: Annotated[int, Range(0)] = 0
    """Steps between checkpoints, from which an interrupted run resumes; 0 = twenty in all, fewer where writing them
    would take more than a tenth of the time."""

    patience: Annotated[int, Range(0)] = 0
    """Validations without improvement after which training stops; 0 = never. If set, the best weights are saved."""

    watch: str = ACCURACY
    """Metric that validation compares: `accuracy` of held-out triplets, `loss` (the lowest is best), or a task of the corpus
    suite such as `cite.map`."""

    scale_by: Annotated[str, OneOf("", "start")] = ""
    """`start` divides the L2 distances of triplet losses by the start model's mean distance of random texts, so that
    margins and temperatures are in units of it."""

    start_share: Annotated[float, Range(0, 1)] = 0.0
    """Share of the start model in the saved weights, which interpolate between start and trained ones."""

    track: Annotated[str, OneOf("", "tensorboard", "wandb")] = ""
    """Where to send the log as well: `tensorboard` or `wandb`, if installed."""

    seed: int = 0
    """Random seed."""

    seeds: Annotated[int, Range(1)] = 1
    """Number of models to train, with the seeds `seed`, `seed` + 1, ..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "losses", _fill_losses(self.losses))
        check(self, "training")
        if self.start_share and self.parts == "lora":
            raise UserError(
                "training.start_share interpolates complete weights, and training.parts is 'lora'; leave one out"
            )
        if self.leftovers == "drop" and (self.unit != "triplets" or self.block < 2 or self.batch % self.block):
            raise UserError(
                f"training.leftovers is 'drop', unit is {self.unit!r}, block is {self.block} and batch is {self.batch}; "
                "dropping needs unit 'triplets', a block of 2 or more and a batch that is a multiple of it"
            )
        if self.scale_by and not any(
            "l2" in (each.get("distance"), each.get("metric")) for each in self.losses.values()
        ):
            raise UserError(
                f"training.scale_by is {self.scale_by!r}, and the losses are {', '.join(self.losses)}; only L2 distances of "
                "triplet, sentence_triplet and aligned_triplet are scaled: leave it out"
            )
        for name, settings in self.losses.items():
            if "negatives" in settings:
                choose(settings["negatives"], NEGATIVES, f"training.losses.{name}.negatives")
        if set(TEACHER_LOSSES) <= self.losses.keys():
            raise UserError(
                f"training.losses has {' and '.join(TEACHER_LOSSES)}, and there is one teacher; leave one out"
            )
        if (self.reads_aspects or self.reads_rules) and self.unit != "groups":
            raise UserError(
                f"training.unit is {self.unit!r}; losses in aspect spaces, and those with negatives_by, need 'groups'"
            )
        if self.parts == "heads" and not all(name.startswith(ASPECT) for name in self.losses):
            raise UserError(
                f"training.parts is 'heads', and the losses are {', '.join(self.losses)}; only those in aspect spaces, "
                "such as aspect_in_batch, train heads: leave out the others"
            )

    @property
    def splits_positives(self) -> bool:
        """Whether samples are split into parts of `block` positives."""
        return self.block > 0 and self.pairs_suffice

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
    def teachers(self) -> list[str]:
        """Names of the models that the loss `similarity` follows."""
        return _split_names(self.losses.get("similarity", {}).get("teacher", ""))

    @property
    def compiles_by_length(self) -> bool:
        """Whether the length of a run decides if layers are compiled, which sharded and unused ones are not."""
        return self.compiled is None and self.parallel != "fsdp" and self.parts != "heads"

    @property
    def reads_sentences(self) -> bool:
        """Whether a loss reads one vector per sentence."""
        return any(name in SENTENCE_LOSSES for name in self.losses)


def metric_text(name: str, value: float) -> str:
    """Format a validation metric: in percent, except for the loss.

    >>> metric_text("accuracy", 0.5), metric_text("loss", 0.5)
    ('50.00', '0.5000')
    """
    return f"{value:.4f}" if name == LOSS else f"{100 * value:.2f}"


def encoder_options(table: Mapping[str, Any]) -> EncoderOptions:
    """Read the `[encoder]` table of a recipe; an unknown key is refused with the nearest known one."""
    return parse_table(EncoderOptions, table, "encoder")


def training_options(table: Mapping[str, Any]) -> TrainingOptions:
    """Read the `[training]` table of a recipe; an unknown key is refused with the nearest known one."""
    return parse_table(TrainingOptions, table, "training")


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
            defaults[key] = convert(value, type(defaults[key]), f"training.losses.{name}.{key}")
        filled[name] = defaults
    return filled


# The plan of a training run


@dataclass(frozen=True, slots=True)
class CardNotes:
    """Options of training that only describe it on the model's card: recipe, its tables, held-out data, audit, bands."""

    recipe: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    held_out: str = ""
    audit: Mapping[str, Any] | None = None
    bands: Mapping[str, str] = field(default_factory=dict)
    """The rank bands that samples were drawn from, as facts about the data."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Plan of a training run: encoder, training options, and notes for the model's card."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    about: CardNotes = field(default_factory=CardNotes)

    def __post_init__(self) -> None:
        part = self.training.parts != "all" or self.training.frozen_layers > 0
        if part and parse_random(self.encoder.init)[1] is not None:
            raise UserError(
                f"encoder.init is {self.encoder.init!r}, random weights, and training.parts is {self.training.parts!r} with "
                f"{self.training.frozen_layers} frozen layers; train all of them, or start from a model"
            )
