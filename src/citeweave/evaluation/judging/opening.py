"""What the user named, opened: the kinds of things that can be judged, told apart by what they are.

vectors/                    a folder of vectors or of sentence vectors that citeweave wrote
vectors.jsonl               also .npy with ids, .parquet; or a folder of such files
scores.run, scores.json     scores of somebody else's: a TREC run, MDCR's or CSFCube's files
bm25                        words alone
minilm, model/, org/name    an encoder
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from citeweave.errors import UserError
from citeweave.evaluation.judged import Judged
from citeweave.evaluation.judging.given_scores import looks_like_scores, read_scores
from citeweave.evaluation.judging.given_vectors import open_vectors, read_vectors
from citeweave.files import kind_of
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.transport import DISTANCES

_VECTOR_FILES = (".jsonl", ".jsonl.gz", ".npy", ".parquet")


@dataclass(frozen=True)
class OpeningOptions:
    """How what is judged is read."""

    distance: str = ""
    """A distance between documents asks for sentence vectors."""

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


def open_judged(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> Judged:
    """Open what `citeweave evaluate` was given."""
    options = options or OpeningOptions()
    path = Path(name)
    if name == "bm25":
        from citeweave.evaluation.judging.lexical import Lexical

        return Lexical()
    if path.is_dir() and kind_of(path):
        return _open_artefact(path, options)
    if path.is_dir() and not (path / "config.json").is_file() and (found := _vector_files(path)):
        return read_vectors(found, precision=options.precision)
    if path.is_dir() and (found := sorted(file for file in path.glob("*.json") if "-ranked" in file.name)):
        return read_scores(found)
    if path.is_file():
        if looks_like_scores(path):
            return read_scores([path])
        return read_vectors([path], precision=options.precision)
    return _load(name, options, reporter)


def _open_artefact(path: Path, options: OpeningOptions) -> Judged:
    kind = kind_of(path)
    if kind == "vectors":
        return open_vectors(path)
    if kind == "sentence_vectors":
        from citeweave.evaluation.judging.sentence_level import SentenceLevel
        from citeweave.similarity.sentence_vectors import SentenceVectors

        return SentenceLevel(
            SentenceVectors.open(path),
            name=path.name,
            metric=options.sentence_metric,
            temperature=options.temperature,
        )
    raise UserError(f"{path} holds a {kind}, which cannot be judged; give vectors, a model, a file of scores, or bm25")


def _load(name: str, options: OpeningOptions, reporter: Reporter) -> Judged:
    from citeweave.encoders.encoder import load_encoder

    encoder = load_encoder(name, pooling=options.pooling, max_tokens=options.max_tokens, device=options.device)
    if options.distance in DISTANCES:
        from citeweave.evaluation.judging.sentence_level import SentenceLevel

        return SentenceLevel(
            encoder, metric=options.sentence_metric, temperature=options.temperature, reporter=reporter
        )
    from citeweave.evaluation.judging.encoded import Encoded

    return Encoded(encoder, cache=options.cache, reporter=reporter)


def _vector_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.endswith(_VECTOR_FILES))
