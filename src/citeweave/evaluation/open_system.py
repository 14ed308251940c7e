"""Open the system to evaluate from what the user names: a model, vectors, scores or bm25.

    vectors/                    a folder of vectors or of sentence vectors written by citeweave
    vectors.jsonl               also .npy with ids, .parquet; or a folder of such files
    scores.run, scores.json     precomputed scores
    bm25                        words alone
    weave, model/, org/name     an encoder, or one of its aspect spaces

Files of scores:

    q1 Q0 p7 1 0.93 mine                      TREC run
    {"q1_p7": 0.93, ...}                      MDCR
    {"q1": [["p7", 0.12], ...], ...}          CSFCube and ASPIRE: candidates with their distances, best first

Of a pair with two scores the last one counts; NaN is no score. Both cases are counted.

Does not open baselines, which are trained: see `citeweave.baselines.fit`.
"""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import kind_of
from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.files import hash_file, hash_json, open_input, read_input
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.encoders.encoder import own_reading
from citeweave.encoders.model_names import FROM_PACKAGES, NAMED, hub_name, locate
from citeweave.evaluation.options import OpeningOptions, split_distance
from citeweave.evaluation.systems import Bm25System, PrecomputedScores, System, VectorSystem
from citeweave.evaluation.tasks import RankingTask, Suite
from citeweave.vectors.formats import Record, read_json, reader_for
from citeweave.vectors.own_distance import SENTENCE_TOKENS
from citeweave.vectors.sentence_distances import TOKEN_BEST
from citeweave.vectors.vectors import Vectors

ACCEPTED = (
    "a folder of vectors, a file of vectors (.jsonl, .npy, .parquet) or of scores (.run, .json), bm25, baseline:NAME, "
    "weave, weave_small, minilm, the folder of a model, or owner/name of one on the Hugging Face Hub"
)

KNOWN_SYSTEMS = ("bm25", *NAMED)
"""Names that are a system by themselves, without a file or folder."""

FACETS = ("background", "method", "result")
"""Facets of CSFCube, which has one file of scores for each."""

_VECTOR_FILES = (".jsonl", ".npy", ".parquet")
_SCORE_FILES = (".run", ".trec", ".json")
ENCODER = "encoder"
"""Kind of the folders written by training; they are models like any other."""

_MODEL_FILES = ("config.json", "modules.json", "delta.json")


def open_system(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> System:
    """Open a system for `evaluate` by its name: a model, a folder or file of vectors, a file of scores, or `bm25`."""
    options, path = options or OpeningOptions(), Path(name)
    if options.aspect:
        spaces = open_spaces(name, options, reporter)
        choose(options.aspect, (*spaces, "every"), "--aspect")  # the CLI handles `every` through `open_spaces`
        return spaces[options.aspect]
    if name in KNOWN_SYSTEMS and not options.precision:  # a folder of that name is ./minilm
        return Bm25System() if name == "bm25" else _open_model(name, options, reporter)
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
    is_file_name = Source(path).name.endswith((*_VECTOR_FILES, *_SCORE_FILES))
    if not path.is_dir() and (is_file_name or "/" not in name):
        if name in FROM_PACKAGES:
            locate(name)  # refused with the command that makes its folder
        similar = difflib.get_close_matches(name, KNOWN_SYSTEMS, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        raise UserError(f"{name!r} is not a file, a folder or a known name; give {ACCEPTED}.{hint}")
    return _open_model(name, options, reporter)


def open_spaces(name: str, options: OpeningOptions | None = None, reporter: Reporter = QUIET) -> dict[str, System]:
    """Open one system per aspect space of a model with heads; papers are encoded once for all of them."""
    from citeweave.encoders.aspects import open_heads
    from citeweave.evaluation.encoder_systems import AspectSpace, aspect_spaces

    options, path = options or OpeningOptions(), Path(name)
    if name == "bm25" or path.is_file() or (path.is_dir() and kind_of(path) not in ("", ENCODER)):
        raise UserError(f"--aspect is {options.aspect!r}, but {name} is not a model; give a model with aspect heads")
    heads = open_heads(name)
    spaces = aspect_spaces(_open_model(name, options, reporter), heads)
    if "+" in options.aspect and options.aspect not in spaces:
        spaces[options.aspect] = AspectSpace(spaces[ENCODER], heads, options.aspect)
    return spaces


def _open_folder(path: Path, options: OpeningOptions) -> System:
    """Open a folder with other people's files of vectors or scores."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    name = path.resolve().name
    if vector_files := [file for file in files if Source(file).name.endswith(_VECTOR_FILES)]:
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
            vectors := SentenceVectors.open(path),
            name=path.name,
            metric=options.sentence_metric or vectors.reading.metric or "l2",
            temperature=options.temperature or vectors.reading.temperature,
            device=options.device,
        )
    raise UserError(
        f"{path} holds a {kind}, which cannot be evaluated; give vectors, a model, a file of scores, or bm25"
    )


def _open_model(name: str, options: OpeningOptions, reporter: Reporter) -> System:
    """Load an encoder as a system that compares paper vectors, sentences or tokens, as the distance needs."""
    from citeweave.encoders.encoder import load_encoder
    from citeweave.evaluation.encoder_systems import EncoderSystem

    own = own_reading(name)
    max_tokens = options.max_tokens or ((own.max_tokens or SENTENCE_TOKENS) if options.needs_sentences else None)
    encoder = load_encoder(
        name, pooling=options.pooling, max_tokens=max_tokens, device=options.device, runtime=options.runtime
    )
    if not options.needs_sentences:
        return EncoderSystem(encoder, cache=options.cache, reporter=reporter)
    from citeweave.evaluation.sentence_systems import CombinedSystem, SentenceSystem

    by_sentence = SentenceSystem(
        encoder,
        metric=options.sentence_metric or own.metric or "l2",
        temperature=options.temperature or own.temperature,
        with_paper=options.with_paper,
        with_tokens=TOKEN_BEST in split_distance(options.distance),
        device=options.device,
        reporter=reporter,
    )
    if not options.needs_paper_vectors:
        return by_sentence
    return CombinedSystem(EncoderSystem(encoder, cache=options.cache, reporter=reporter), by_sentence)


def own_distance(name: str, suite: Suite) -> str:
    """Return the distance that a model carries, for a suite whose papers may be compared by sentences; else empty."""
    by_sentences = any(isinstance(task, RankingTask) and task.rule.family == "csfcube" for task in suite.tasks)
    return own_reading(name).distance if by_sentences and _is_model(name) else ""


def _is_model(name: str) -> bool:
    path = Path(name)
    if name in KNOWN_SYSTEMS:
        return name in NAMED
    if path.is_dir():
        return kind_of(path) == ENCODER or any((path / file).is_file() for file in _MODEL_FILES)
    return bool(hub_name(name)) and not path.exists()


def _plain_name(path: Path) -> str:
    """Return the file name without extension and compression, as the name of the system.

    >>> _plain_name(Path("runs/specter.v2.jsonl.gz")), _plain_name(Path("mine.run"))
    ('specter.v2', 'mine')
    """
    return Path(Source(path).name).stem


# --- files of vectors and scores -------------------------------------------------------------------------


def open_vectors(folder: Path, *, precision: str = "") -> VectorSystem:
    """Open the precomputed vectors in a folder written by citeweave as a system."""
    vectors = Vectors.open(folder)
    source = vectors.provenance
    matrix, finite = _round_vectors(vectors.matrix, precision)
    ids = [paper for paper, good in zip(vectors.ids, finite.tolist(), strict=True) if good]
    return VectorSystem(
        ids,
        matrix if finite.all() else matrix[finite],
        name=source.label if source.model else folder.name,
        revision=hash_json([vectors.manifest.hash, precision])[:16] if precision else vectors.manifest.hash[:16],
        metadata={
            "vectors": folder.name,
            "text_recipe": source.text_recipe,
            "dtype": precision or source.dtype,
            "vectors not finite": int((~finite).sum()),
        },
    )


def read_vectors(paths: Sequence[Path], *, name: str, precision: str = "") -> VectorSystem:
    """Read precomputed vectors (JSON lines, .npy with ids, .parquet) as a system; a paper's last vector counts.

    Numbers keep the precision of the file, JSON's that of float64; `precision` rounds them, as SciRepEval does to
    float16 when it reads a file. A vector with a number that is not finite counts as missing.
    """
    tally = Tally({"vectors": Count()})
    place: dict[str, int] = {}  # paper -> row of its last vector, -1 where that is an empty list
    rows: list[NDArray[Any]] = []
    twice = 0

    def on_empty(paper: str) -> None:
        place[paper] = -1

    for path in paths:
        for record in _records(path, tally, on_empty):
            if rows and len(record.vector) != len(rows[0]):
                raise UserError(
                    f"{path} holds a vector of {len(record.vector)} numbers for {record.id!r}, others have "
                    f"{len(rows[0])}; evaluate one model at a time"
                )
            twice += record.id in place
            place[record.id] = len(rows)
            rows.append(record.vector)
    if not rows:
        raise EmptyResultError(f"{', '.join(map(str, paths))} holds no vectors; give a file with ids and vectors")
    stacked = np.stack(rows)
    matrix, finite = _round_vectors(stacked, precision or np.result_type(stacked.dtype, np.float16).name)
    usable = {paper: row for paper, row in place.items() if row >= 0 and finite[row]}
    if not usable:
        raise UserError(f"no vector of {', '.join(map(str, paths))} is finite in {matrix.dtype}; check the file")
    empty = [paper for paper, row in place.items() if row < 0]
    tally.keep("vectors", len(rows))
    return VectorSystem(
        list(usable),
        matrix[list(usable.values())],
        name=name,
        revision=hash_json([[hash_file(path) for path in paths], precision])[:16],
        empty=empty,
        metadata={
            "files": [path.name for path in paths],
            "dtype": matrix.dtype.name,
            "vectors given": len(rows),
            "vectors given twice": twice,
            "vectors not finite": int((~finite).sum()),
            "empty vectors": len(empty),
            **tally.as_json(),
        },
    )


def _records(path: Path, tally: Tally, on_empty: Callable[[str], None]) -> Iterator[Record]:
    """Read the vectors of one file; `on_empty` gets the ids of papers with an empty list, which only JSON can have."""
    reader, source = reader_for(path), Source(path)
    return read_json(source, tally, on_empty=on_empty) if reader is read_json else reader(source, tally)


def _round_vectors(matrix: NDArray[Any], precision: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Round vectors to a precision and return which rows are finite then; without a precision nothing is checked."""
    if not precision:
        return matrix, np.ones(len(matrix), bool)
    with np.errstate(over="ignore"):
        rounded = matrix.astype(precision)
    return rounded, np.isfinite(rounded).all(axis=1)


def read_scores(paths: Sequence[Path], *, name: str) -> PrecomputedScores:
    """Read precomputed scores from files as a system; a CSFCube run has three files, one per facet."""
    scores: dict[str, dict[str, float]] = {}
    total = 0
    for path in paths:
        for query, candidate, score in _read_score_file(path):
            scores.setdefault(query, {})[candidate] = score
            total += 1
    pairs = [score for each in scores.values() for score in each.values()]
    metadata = {
        "files": [path.name for path in paths],
        "scores given": total,
        "scores given twice": total - len(pairs),
        "scores that are no number": sum(score != score for score in pairs),
    }
    return PrecomputedScores(
        scores, name=name, revision=hash_json([hash_file(path) for path in paths])[:16], metadata=metadata
    )


def looks_like_scores(path: Path) -> bool:
    """Tell whether a file holds precomputed scores rather than vectors, by its extension and first character."""
    if path.suffix in (".run", ".trec"):
        return True
    if path.suffix != ".json":
        return False
    with open_input(path) as file:
        return file.read(1) == b"{"


def _read_score_file(path: Path) -> list[tuple[str, str, float]]:
    """Read (query, candidate, score) from a TREC run or a JSON file of scores."""
    try:
        scores = _read_run(path) if path.suffix != ".json" else _read_json_scores(path)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} holds no scores that citeweave can read ({error}); it reads TREC runs, MDCR's and CSFCube's JSON; "
            "name a file of vectors, one JSON object per line, .jsonl"
        ) from None
    if not scores:
        raise InputError(f"{path} holds no scores: it is empty; write it again")
    return scores


def _read_run(path: Path) -> list[tuple[str, str, float]]:
    """Read (query, candidate, score) from a TREC run."""
    scores = []
    with io.TextIOWrapper(open_input(path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if len(words) != 6:
                raise ValueError(f"line {number} has {len(words)} words instead of the 6 of a TREC run")
            scores.append((words[0], words[2], float(words[4])))
    return scores


def _read_json_scores(path: Path) -> list[tuple[str, str, float]]:
    """Read (query, candidate, score) from MDCR's or CSFCube's JSON; CSFCube's ranks become scores."""
    value = json.loads(read_input(path))
    if not isinstance(value, dict) or not value:
        raise ValueError("it is not a JSON object with entries")
    if all(isinstance(entry, list) for entry in value.values()):
        facet = next((f"_{name}" for name in FACETS if f"-{name}-ranked" in path.name), "")
        if invalid := [pair for entry in value.values() for pair in entry if not isinstance(pair, list) or not pair]:
            raise ValueError(f"a list holds {str(invalid[0])[:60]!r} instead of a candidate with its distance")
        # lists are sorted already: the rank keeps their order where distances are equal
        return [
            (query + facet, str(pair[0]), float(-rank))
            for query, entry in value.items()
            for rank, pair in enumerate(entry)
        ]
    if invalid := [name for name in value if "_" not in name]:
        raise ValueError(f"{invalid[0][:60]!r} is not a pair 'query_candidate'")
    pairs = ((*name.split("_", 1), float(score)) for name, score in value.items())
    return [(query, candidate, score) for query, candidate, score in pairs]
