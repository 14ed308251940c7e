"""Options of evaluating: opening a system, what counts, what is held out.

    EvaluationOptions(missing="peers", intercept=False)        as the published code of a benchmark does it
    OpeningOptions(distance="transport", runtime="openvino")
    CorpusSuiteOptions(held_out="year:2016")

Declares and checks values; imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from citeweave.core.errors import UserError, choose
from citeweave.core.options import Flag, OneOf, Range, check

MISSING = ("wrong", "peers")
PRECISIONS = ("float16", "float32", "float64")
DISTANCES: tuple[str, ...] = ("cosine", "l2", "dot")
TOKEN_BEST = "token_best"
"""The distance that compares the tokens of papers, not their sentences."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation; the defaults are the protocol's, except for missing vectors (wrong answers) and the intercept."""

    distance: str = ""
    """Distance between papers (see docs/sentences.md). With one vector: cosine, l2, dot. With sentence vectors: single
    (nearest pair), mean_best, top2, attention, transport. With tokens: token_best. Or a sum such as
    mean_best+token_best. Default: the protocol's."""

    missing: Annotated[str, OneOf(*MISSING)] = "wrong"
    """How to score papers without a vector: wrong (as wrong) or peers (as each benchmark's published code does)."""

    intercept: Annotated[bool, Flag("--intercept/--no-intercept")] = True
    """Fit linear probes (classifiers and regressors on vectors) with an intercept; --no-intercept fits them as the
    published code does."""

    seed: int = 0
    """Random seed of baselines, of the click model of SciDocs, and of --map."""

    def __post_init__(self) -> None:
        check(self)


def split_distance(distance: str) -> tuple[str, ...]:
    """Split a distance, or a sum of several, into its parts.

    >>> split_distance("mean_best+token_best"), split_distance("cosine"), split_distance("cosine+")
    (('mean_best', 'token_best'), ('cosine',), ('cosine', ''))
    """
    return tuple(distance.split("+"))


@dataclass(frozen=True)
class OpeningOptions:
    """How a system to evaluate is opened: distance, precision, and how a model reads texts."""

    distance: str = ""
    """A distance between documents needs sentence or token vectors; a plus adds several distances."""

    precision: Annotated[str, OneOf("", *PRECISIONS)] = ""
    """For vectors read from a file: convert them to float16, float32 or float64."""

    pooling: str | None = None
    """For a model: how to pool tokens: cls, mean or layers; default: the model's own."""

    max_tokens: int | None = None
    """For a model: maximum number of tokens per text."""

    device: str = "auto"
    """Device: cpu, cuda or auto."""

    cache: Path | None = None
    """Folder for cached vectors of models; default: $CITEWEAVE_CACHE or ~/.cache/citeweave."""

    temperature: float | None = None
    """Softmax temperature of the distances attention and transport."""

    sentence_metric: Annotated[str, OneOf("", "l2", "cosine")] = ""
    """Distance between sentence vectors that sentence distances use: l2 or cosine; default: the model's own, else l2, as
    in ASPIRE."""

    with_paper: Annotated[bool, Flag("--document-vector")] = False
    """With a model and a sentence distance: treat the vector of the whole paper as another sentence, though never beside
    chosen query sentences."""

    aspect: str = ""
    """For a model with aspects: one aspect, such as method; all (concatenated, each of length 1); a sum such as
    encoder+method (concatenated at their own lengths; encoder is the model's own vector); matching (the aspect that each query asks
    about); or every (each of these in turn, one report each)."""

    runtime: str = "torch"
    """Runtime of the model: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic)."""

    def __post_init__(self) -> None:
        check(self)
        if not (self.distance or self.with_paper):
            return
        from citeweave.vectors.document_distance import DISTANCES as SENTENCE_DISTANCES

        for part in split_distance(self.distance) if self.distance else ():
            choose(part, (*DISTANCES, *SENTENCE_DISTANCES, TOKEN_BEST), "--distance")
        if self.with_paper and not set(split_distance(self.distance)) & set(SENTENCE_DISTANCES):
            raise UserError(
                f"--document-vector is for distances between sentences, but --distance is {self.distance!r}; "
                f"use one of {', '.join(SENTENCE_DISTANCES)}"
            )
        if self.aspect and self.needs_sentences:
            raise UserError(
                f"--aspect is {self.aspect!r}, a space of whole papers, but --distance {self.distance} compares their "
                f"sentences; use one of {', '.join(DISTANCES)}"
            )

    @property
    def needs_sentences(self) -> bool:
        """Whether the distance compares the sentences or tokens of papers."""
        return any(part and part not in DISTANCES for part in split_distance(self.distance))

    @property
    def needs_paper_vectors(self) -> bool:
        """Whether the distance, or a part of it, compares one vector per paper."""
        return any(not part or part in DISTANCES for part in split_distance(self.distance))


@dataclass(frozen=True)
class CorpusSuiteOptions:
    """Options of the data of a corpus suite: what is held out, how many queries; draws depend on the seed alone.

    The queries of a smaller suite are the first of a larger one.
    """

    held_out: str = "share:0.1"
    """With --suite corpus or intents: papers whose references are held out: share:0.1 (a random tenth) or year:2016 (from
    2016 on)."""

    queries: Annotated[int, Range(1)] = 1000
    """With --suite corpus, intents or aspects: maximum number of queries per task."""

    seed: int = 0
    """Seed for selecting held-out papers and random candidates."""

    sample: Annotated[int, Range(1)] = 5000
    """Random candidates of all tasks come from so many papers: they are encoded once, however large the corpus is."""

    field_papers: Annotated[int, Range(1)] = 10_000
    """Maximum number of papers for the task `field`, training and test together."""

    number_papers: Annotated[int, Range(1)] = 5000
    """Maximum number of papers for the tasks `year` and `citations`, whose probe is slow."""

    search_papers: Annotated[int, Range(1)] = 10_000
    """Maximum number of papers to search among."""

    def __post_init__(self) -> None:
        check(self)
        self.rule  # noqa: B018 - refuses an invalid one

    @property
    def rule(self) -> tuple[int, float]:
        """The first held-out year, or the share of all papers that is held out; the other is 0.

        >>> CorpusSuiteOptions("year:2016").rule, CorpusSuiteOptions("share:0.1").rule
        ((2016, 0.0), (0, 0.1))
        """
        kind, _, value = self.held_out.partition(":")
        try:
            year, share = (int(value) if kind == "year" else 0), (float(value) if kind == "share" else 0.0)
        except ValueError:
            year, share = 0, 0.0
        if year > 0 or 0 < share < 1:
            return year, share
        raise UserError(
            f"--held-out is {self.held_out!r}; it must be a year such as year:2016, or a share between 0 and 1 such as "
            "share:0.1"
        )
