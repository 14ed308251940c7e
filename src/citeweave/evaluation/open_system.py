"""What the user named, opened: the kinds of things that can be judged, told apart by what they are.

    vectors/                    a folder of vectors or of sentence vectors that citeweave wrote
    vectors.jsonl               also .npy with ids, .parquet; or a folder of such files
    scores.run, scores.json     scores of somebody else's: a TREC run, MDCR's or CSFCube's files
    bm25                        words alone
    weave, model/, org/name     an encoder, or one of its aspect spaces

Does not know baselines, which are trained: see `citeweave.baselines.fit`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from citeweave.core.artifact import kind_of
from citeweave.core.errors import UserError, choose
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.model_names import NAMED
from citeweave.evaluation.precomputed import PRECISIONS, looks_like_scores, open_vectors, read_scores, read_vectors
from citeweave.evaluation.systems import Judged
from citeweave.evaluation.tasks import DISTANCES as VECTOR_DISTANCES
from citeweave.evaluation.tasks import parts_of
from citeweave.vectors.document_distance import DISTANCES
from citeweave.vectors.pair_scores import TOKEN_BEST

ACCEPTED = (
    "a folder of vectors, a file of vectors (.jsonl, .npy, .parquet) or of scores (.run, .json), bm25, baseline:NAME, "
    "weave, minilm, the folder of a model, or owner/name of one on the Hugging Face hub"
)

KNOWN = ("bm25", *NAMED)
INSIDE = (*DISTANCES, TOKEN_BEST)
"""Distances for which a paper is more than one vector."""

SENTENCE_TOKENS = 500
"""Where texts are cut for sentence vectors, as in ASPIRE; a shorter cut would lose the last sentences."""

_VECTOR_FILES = (".jsonl", ".npy", ".parquet")
_SCORE_FILES = (".run", ".trec", ".json")
ENCODER = "encoder"
"""Kind of the folders that training makes; they are models like any other."""

_MODEL_FILES = ("config.json", "modules.json", "delta.json")


@dataclass(frozen=True)
class OpeningOptions:
    """How what is judged is read."""

    distance: str = ""
    """A distance between documents asks for sentence vectors, or for those of tokens; several are added with a plus."""

    precision: str = ""
    """Round given vectors: `float16`, `float32` or `float64`; empty = as the file has them."""

    pooling: str | None = None
    """Of an encoder: `cls`, `mean`, ...; None = what the model's folder says."""

    max_tokens: int | None = None
    device: str = "auto"
    cache: Path | None = None
    temperature: float | None = None
    """Of attention and transport."""

    sentence_metric: str = "l2"
    """Between two sentences: `l2`, as in ASPIRE, or `cosine`."""

    whole: bool = False
    """A model's own vector of a paper counts as one more of its sentences; chosen sentences of a query stay alone."""

    aspect: str = ""
    """Of a model with aspect heads: the name of one, `all` side by side, `matching` (of each query the one that it asks
    about); empty = the encoder's own vector."""

    runtime: str = "torch"
    """What computes an encoder, see `encoders/runtimes.py`."""

    def __post_init__(self) -> None:
        for part in parts_of(self.distance) if self.distance else ():
            choose(part, (*VECTOR_DISTANCES, *INSIDE), "--distance")
        choose(self.precision, ("", *PRECISIONS), "--precision")
        choose(self.sentence_metric, ("l2", "cosine"), "--sentence-metric")
        if self.whole and not set(parts_of(self.distance)) & set(DISTANCES):
            raise UserError(
                f"--whole is for distances by sentences, and --distance is {self.distance!r}; "
                f"take one of {', '.join(DISTANCES)}"
            )
        if self.aspect and self.reads_inside:
            raise UserError(
                f"--aspect is {self.aspect!r}, a space of whole papers, and --distance {self.distance} is between their "
                f"sentences; take one of {', '.join(VECTOR_DISTANCES)}"
            )

    @property
    def reads_inside(self) -> bool:
        """Whether a model is judged by sentences or tokens."""
        return bool(set(parts_of(self.distance)) & set(INSIDE))

    @property
    def reads_whole(self) -> bool:
        """Whether a model is judged by one vector a paper."""
        return not set(parts_of(self.distance)) <= set(INSIDE)


def open_judged(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> Judged:
    """Open what `citeweave evaluate` was given."""
    options, path = options or OpeningOptions(), Path(name)
    if options.aspect:
        spaces = open_spaces(name, options, reporter)
        choose(options.aspect, (*spaces, "every"), "--aspect")  # `every` is `open_spaces` itself
        return spaces[options.aspect]
    if name in KNOWN and not options.precision:  # a folder of that name is ./minilm
        return _open_known(name, options, reporter)
    if path.is_file() and not looks_like_scores(path):
        return read_vectors([path], name=_plain_name(path), precision=options.precision)
    if path.is_dir() and kind_of(path) not in ("", ENCODER):
        return _open_artifact(path, options)
    if path.is_dir() and not any((path / file).is_file() for file in _MODEL_FILES):
        return _open_folder(path, options)
    if options.precision:
        raise UserError(f"--precision is {options.precision!r}; {name} holds no vectors to round: leave it out")
    if path.is_file():
        return read_scores([path], name=_plain_name(path))
    is_file_name = _without_compression(path).endswith((*_VECTOR_FILES, *_SCORE_FILES))
    if not path.is_dir() and (is_file_name or "/" not in name):
        near = difflib.get_close_matches(name, KNOWN, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{name!r} is no file, no folder and no known name; give {ACCEPTED}.{hint}")
    return _load(name, options, reporter)


def open_spaces(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> dict[str, Judged]:
    """A model with aspect heads in all its spaces, by name; papers are read once for all of them."""
    from citeweave.encoders.aspects import open_heads
    from citeweave.evaluation.encoder_systems import spaces_of

    options, path = options or OpeningOptions(), Path(name)
    if name == "bm25" or path.is_file() or (path.is_dir() and kind_of(path) not in ("", ENCODER)):
        raise UserError(f"--aspect is {options.aspect!r}, and {name} is no model; give a model with aspect heads")
    heads = open_heads(name)
    return spaces_of(_load(name, options, reporter), heads)


def _open_known(name: str, options: OpeningOptions, reporter: Reporter) -> Judged:
    if name in NAMED:
        return _load(name, options, reporter)
    from citeweave.evaluation.encoder_systems import Lexical

    return Lexical()


def _open_folder(path: Path, options: OpeningOptions) -> Judged:
    """A folder that somebody else filled."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    name = path.resolve().name
    if found := [file for file in files if _without_compression(file).endswith(_VECTOR_FILES)]:
        return read_vectors(found, name=name, precision=options.precision)
    if found := [file for file in files if file.suffix == ".json" and "-ranked" in file.name]:
        return read_scores(found, name=name)
    raise UserError(f"{path} holds neither vectors nor scores nor a model; give {ACCEPTED}")


def _open_artifact(path: Path, options: OpeningOptions) -> Judged:
    kind = kind_of(path)
    if kind == "vectors":
        return open_vectors(path, precision=options.precision)
    if options.whole:
        raise UserError(f"--whole is for models, which give a paper's own vector too; {path} has rows of its own")
    if kind == "sentence_vectors" and TOKEN_BEST in parts_of(options.distance):
        raise UserError(f"--distance {TOKEN_BEST} compares tokens, and {path} has vectors of sentences; give the model")
    if kind == "sentence_vectors":
        from citeweave.evaluation.sentence_systems import SentenceLevel
        from citeweave.vectors.sentence_vectors import SentenceVectors

        return SentenceLevel(
            SentenceVectors.open(path),
            name=path.name,
            metric=options.sentence_metric,
            temperature=options.temperature,
            device=options.device,
        )
    raise UserError(f"{path} holds a {kind}, which cannot be judged; give vectors, a model, a file of scores, or bm25")


def _load(name: str, options: OpeningOptions, reporter: Reporter) -> Judged:
    from citeweave.encoders.encoder import load_encoder
    from citeweave.evaluation.encoder_systems import Encoded

    max_tokens = options.max_tokens or (SENTENCE_TOKENS if options.reads_inside else None)
    encoder = load_encoder(
        name, pooling=options.pooling, max_tokens=max_tokens, device=options.device, runtime=options.runtime
    )
    if not options.reads_inside:
        return Encoded(encoder, cache=options.cache, reporter=reporter)
    from citeweave.evaluation.sentence_systems import SentenceLevel

    inside = SentenceLevel(
        encoder,
        metric=options.sentence_metric,
        temperature=options.temperature,
        whole=options.whole,
        device=options.device,
        reporter=reporter,
    )
    if not options.reads_whole:
        return inside
    from citeweave.evaluation.sentence_systems import ByDistance

    return ByDistance(Encoded(encoder, cache=options.cache, reporter=reporter), inside)


def _without_compression(path: Path) -> str:
    return Source(path).name


def _plain_name(path: Path) -> str:
    """
    >>> _plain_name(Path("runs/specter.v2.jsonl.gz")), _plain_name(Path("mine.run"))
    ('specter.v2', 'mine')
    """
    return Path(_without_compression(path)).stem
