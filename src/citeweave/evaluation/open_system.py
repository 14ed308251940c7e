"""Open the system to evaluate from what the user names: a model, vectors, scores or bm25.

    vectors/                    a folder of vectors or of sentence vectors written by citeweave
    vectors.jsonl               also .npy with ids, .parquet; or a folder of such files
    scores.run, scores.json     precomputed scores: a TREC run, MDCR's or CSFCube's files
    bm25                        words alone
    weave, model/, org/name     an encoder, or one of its aspect spaces

Does not open baselines, which are trained: see `citeweave.baselines.fit`.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from citeweave.core.artifact import kind_of
from citeweave.core.errors import UserError, choose
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.model_names import NAMED
from citeweave.evaluation.options import OpeningOptions, split_distance
from citeweave.evaluation.precomputed import looks_like_scores, open_vectors, read_scores, read_vectors
from citeweave.evaluation.systems import System
from citeweave.vectors.sentence_distances import TOKEN_BEST

ACCEPTED = (
    "a folder of vectors, a file of vectors (.jsonl, .npy, .parquet) or of scores (.run, .json), bm25, baseline:NAME, "
    "weave, minilm, the folder of a model, or owner/name of one on the Hugging Face Hub"
)

KNOWN_SYSTEMS = ("bm25", *NAMED)
"""Names that are a system by themselves, without a file or folder."""


SENTENCE_TOKENS = 500
"""Token limit of texts for sentence vectors, as in ASPIRE; a lower limit would lose the last sentences."""

_VECTOR_FILES = (".jsonl", ".npy", ".parquet")
_SCORE_FILES = (".run", ".trec", ".json")
ENCODER = "encoder"
"""Kind of the folders written by training; they are models like any other."""

_MODEL_FILES = ("config.json", "modules.json", "delta.json")


def open_system(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> System:
    """Open the system with this name: a model, a folder or file of vectors, a file of scores, or bm25."""
    options, path = options or OpeningOptions(), Path(name)
    if options.aspect:
        spaces = open_spaces(name, options, reporter)
        choose(options.aspect, (*spaces, "every"), "--aspect")  # the CLI handles `every` through `open_spaces`
        return spaces[options.aspect]
    if name in KNOWN_SYSTEMS and not options.precision:  # a folder of that name is ./minilm
        return _open_known(name, options, reporter)
    if path.is_file() and not looks_like_scores(path):
        return read_vectors([path], name=_plain_name(path), precision=options.precision)
    if path.is_dir() and kind_of(path) not in ("", ENCODER):
        return _open_artifact(path, options)
    if path.is_dir() and not any((path / file).is_file() for file in _MODEL_FILES):
        return _open_folder(path, options)
    if options.precision:
        raise UserError(
            f"--precision is {options.precision!r}; {name} holds no vectors to round; leave --precision out"
        )
    if path.is_file():
        return read_scores([path], name=_plain_name(path))
    is_file_name = _without_compression(path).endswith((*_VECTOR_FILES, *_SCORE_FILES))
    if not path.is_dir() and (is_file_name or "/" not in name):
        similar = difflib.get_close_matches(name, KNOWN_SYSTEMS, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        raise UserError(f"{name!r} is no file, no folder and no known name; give {ACCEPTED}.{hint}")
    return _open_model(name, options, reporter)


def open_spaces(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> dict[str, System]:
    """Open one system per aspect space of a model with heads; papers are encoded once for all of them."""
    from citeweave.encoders.aspects import open_heads
    from citeweave.evaluation.encoder_systems import aspect_spaces

    options, path = options or OpeningOptions(), Path(name)
    if name == "bm25" or path.is_file() or (path.is_dir() and kind_of(path) not in ("", ENCODER)):
        raise UserError(f"--aspect is {options.aspect!r}, but {name} is not a model; give a model with aspect heads")
    heads = open_heads(name)
    return aspect_spaces(_open_model(name, options, reporter), heads)


def _open_known(name: str, options: OpeningOptions, reporter: Reporter) -> System:
    """Open bm25 or a model that is known by a short name."""
    if name in NAMED:
        return _open_model(name, options, reporter)
    from citeweave.evaluation.encoder_systems import Bm25System

    return Bm25System()


def _open_folder(path: Path, options: OpeningOptions) -> System:
    """Open a folder with other people's files of vectors or scores."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    name = path.resolve().name
    if vector_files := [file for file in files if _without_compression(file).endswith(_VECTOR_FILES)]:
        return read_vectors(vector_files, name=name, precision=options.precision)
    if score_files := [file for file in files if file.suffix == ".json" and "-ranked" in file.name]:
        return read_scores(score_files, name=name)
    raise UserError(f"{path} holds neither vectors nor scores nor a model; give {ACCEPTED}")


def _open_artifact(path: Path, options: OpeningOptions) -> System:
    """Open a folder of vectors or sentence vectors written by citeweave."""
    kind = kind_of(path)
    if kind == "vectors":
        return open_vectors(path, precision=options.precision)
    if options.with_paper:
        raise UserError(
            f"--document-vector is for models, which also give one vector per paper; {path} has rows of its own"
        )
    if kind == "sentence_vectors" and TOKEN_BEST in split_distance(options.distance):
        raise UserError(f"--distance {TOKEN_BEST} compares tokens, but {path} has vectors of sentences; give the model")
    if kind == "sentence_vectors":
        from citeweave.evaluation.sentence_systems import SentenceSystem
        from citeweave.vectors.sentence_vectors import SentenceVectors

        return SentenceSystem(
            SentenceVectors.open(path),
            name=path.name,
            metric=options.sentence_metric,
            temperature=options.temperature,
            device=options.device,
        )
    raise UserError(
        f"{path} holds a {kind}, which cannot be evaluated; give vectors, a model, a file of scores, or bm25"
    )


def _open_model(name: str, options: OpeningOptions, reporter: Reporter) -> System:
    """Load an encoder as a system that compares paper vectors, sentences or tokens, as the distance needs."""
    from citeweave.encoders.encoder import load_encoder
    from citeweave.evaluation.encoder_systems import EncoderSystem

    max_tokens = options.max_tokens or (SENTENCE_TOKENS if options.needs_sentences else None)
    encoder = load_encoder(
        name, pooling=options.pooling, max_tokens=max_tokens, device=options.device, runtime=options.runtime
    )
    if not options.needs_sentences:
        return EncoderSystem(encoder, cache=options.cache, reporter=reporter)
    from citeweave.evaluation.sentence_systems import CombinedSystem, SentenceSystem

    by_sentence = SentenceSystem(
        encoder,
        metric=options.sentence_metric,
        temperature=options.temperature,
        with_paper=options.with_paper,
        device=options.device,
        reporter=reporter,
    )
    if not options.needs_paper_vectors:
        return by_sentence
    return CombinedSystem(EncoderSystem(encoder, cache=options.cache, reporter=reporter), by_sentence)


def _without_compression(path: Path) -> str:
    return Source(path).name


def _plain_name(path: Path) -> str:
    """Return the file name without extension and compression, as the name of the system.

    >>> _plain_name(Path("runs/specter.v2.jsonl.gz")), _plain_name(Path("mine.run"))
    ('specter.v2', 'mine')
    """
    return Path(_without_compression(path)).stem
