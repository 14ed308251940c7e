"""evaluate, compare and benchmark as a user types them: one JSON object, exit codes, errors of one line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.cli import main
from citeweave.core.publish import work_folder

Run = Callable[..., tuple[int, str, str]]

PAPERS = [f"p{number:02d}" for number in range(24)]
ASKED = ["--suite", "scidocs", "--data", "DATA"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit code, standard output and standard error of one command, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))

    def command(*words: object) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def topic(paper: str) -> int:
    return int(paper[1:]) % 2


def scidocs(folder: Path) -> Path:
    labels = {"train": PAPERS[:14], "val": PAPERS[14:18], "test": PAPERS[18:]}
    for task in ("mag", "cite", "cocite"):
        (folder / task).mkdir(parents=True)
    for split, papers in labels.items():
        lines = [f"{paper},{topic(paper)}\n" for paper in papers]
        (folder / f"mag/{split}.csv").write_text("pid,class_label\n" + "".join(lines))
    for task, queries in (("cite", PAPERS[:8]), ("cocite", PAPERS[4:8])):
        for split in ("val", "test"):
            pairs = [(query, paper) for query in queries for paper in PAPERS[10:20]]
            lines = [f"{query} 0 {paper} {int(topic(query) == topic(paper))}\n" for query, paper in pairs]
            (folder / f"{task}/{split}.qrel").write_text("".join(lines))
    texts = {paper: {"title": f"Paper {paper}", "abstract": f"On subject{topic(paper)}."} for paper in PAPERS}
    for name in ("mag_mesh", "view_cite_read"):
        (folder / f"paper_metadata_{name}.json").write_text(json.dumps(texts))
    return folder


def vectors(path: Path, *, noise: float, lost: tuple[str, ...] = (), seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    rows = {paper: np.eye(2)[topic(paper)].tolist() + rng.normal(0, noise, 3).tolist() for paper in PAPERS}
    lines = [json.dumps({"paper_id": paper, "embedding": row}) for paper, row in rows.items() if paper not in lost]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return scidocs(tmp_path / "scidocs")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return vectors(tmp_path / "good.jsonl", noise=0.1)


def judged(run: Run, given: object, data: Path, output: str, *more: object) -> dict[str, Any]:
    """What evaluate prints with --json: one object and nothing else."""
    code, out, err = run("evaluate", given, "--suite", "scidocs", "--data", data, "-o", output, "--json", *more)
    assert (code, err) == (0, "")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(out, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_evaluate_as_json(run: Run, data: Path, good: Path) -> None:
    found = judged(run, good, data, "r")
    assert found["suite"] == "scidocs" and found["model"]["name"] == "good" and found["output"] == "r"
    assert found["metrics"]["cite.map"] == 100 and found["metrics"]["mag.f1"] == 100
    assert "coview/test.qrel" in found["not_evaluated"]["co-view"]
    assert found["coverage"]["cite"]["queries"] == 8 and "per_query" not in found and "map" not in found
    assert judged(run, good, data, "r") == found
    value = json.loads(Path("r/report.json").read_text())
    assert {"per_query", "headline", "versions"} <= value.keys()


def test_evaluate_as_text(run: Run, data: Path, tmp_path: Path) -> None:
    gaps = vectors(tmp_path / "gaps.jsonl", noise=0.1, lost=("p00", "p19"))
    code, out, err = run("evaluate", gaps, "--suite", "scidocs", "--data", data, "-o", "r")
    assert code == 0 and "Traceback" not in err
    assert "r: gaps on scidocs" in out and "cite.map" in out and "[" in out
    assert "not evaluated: co-view: " in out
    assert "cite: 1 queries without answer" in out and "mag: 1 training papers without vector" in out
    assert "tables and plots: r/report.html" in out
    code, out, err = run("evaluate", gaps, "--suite", "scidocs", "--data", data, "-o", "r", "--quiet")
    assert (code, out, err) == (0, "", "")


def test_options_of_evaluate_reach_the_report(run: Run, data: Path, tmp_path: Path) -> None:
    gaps = vectors(tmp_path / "gaps.jsonl", noise=0.6, lost=("p00",))
    plain = judged(run, gaps, data, "plain")
    one = judged(run, gaps, data, "one", "--task", "cite", "--task", "mag")
    assert set(one["coverage"]) == {"cite", "mag"}
    assert one["metrics"] == {name: plain["metrics"][name] for name in one["metrics"]}
    validation = judged(run, gaps, data, "val", "--split", "val")
    assert validation["data"]["split"] == "val" and validation["coverage"]["mag"]["test papers"] == 4
    cosine = judged(run, gaps, data, "cosine", "--distance", "cosine")
    assert cosine["options"]["distance"] == "cosine" and cosine["metrics"] != plain["metrics"]
    peers = judged(run, gaps, data, "peers", "--missing", "peers")
    assert peers["metrics"]["cite.map"] > plain["metrics"]["cite.map"]  # a query without vector is no longer wrong
    assert peers["coverage"]["cite"]["queries left out of the mean"] == 1
    bare = judged(run, gaps, data, "bare", "--no-intercept", "--task", "mag")
    how = json.loads(Path("bare/report.json").read_text())["tasks"]["mag"]["chosen"]
    assert bare["options"]["intercept"] is False and (how["intercept"], how["solver"]) == (False, "lightning")
    half = judged(run, gaps, data, "half", "--precision", "float16", "--task", "cite")
    assert half["model"]["dtype"] == "float16" and plain["model"]["dtype"] == "float64"
    assert half["model"]["revision"] != plain["model"]["revision"]


def test_a_map_on_request(run: Run, data: Path, good: Path) -> None:
    found = judged(run, good, data, "r", "--map", "--task", "mag")
    assert found["map"]["papers"] == 24 - 4 and found["map"]["task"] == "mag"  # without the validation papers
    assert "Paper p00" in Path("r/map.html").read_text()
    code, out, _ = run("evaluate", good, "--suite", "scidocs", "--data", data, "-o", "r", "--map", "--task", "mag")
    assert code == 0 and "map of 20 papers of mag: r/map.html" in out


def test_bm25_and_a_run_of_it(run: Run, data: Path) -> None:
    words = judged(run, "bm25", data, "words", "--task", "cite")
    again = judged(run, "words/runs/cite.run", data, "again", "--task", "cite")
    assert again["metrics"] == words["metrics"] and words["model"]["name"] == "bm25"


def test_a_suite_made_from_a_corpus_and_its_baselines(run: Run) -> None:
    assert run("synthesize", "-o", "corpus", "--papers", 150, "--quiet")[0] == 0
    words = ["--suite", "corpus", "--data", "corpus", "--queries", 10, "--task", "cite", "--json"]
    metrics = {}
    for name in ("bm25", "baseline:random"):
        code, out, err = run("evaluate", name, *words, "-o", name.replace(":", "_"))
        assert (code, err) == (0, "")
        metrics[name] = json.loads(out)["metrics"]["cite.map"]
    assert metrics["bm25"] > metrics["baseline:random"]
    code, out, err = run("compare", "bm25", "baseline_random", "--json", "--resamples", 200)
    assert code == 0 and json.loads(out)["systems"] == ["bm25", "random"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["good.jsonl", "--suite", "scidoc", "--data", "DATA"], "Did you mean 'scidocs'"),
        (["good.jsonl", "--suite", "corpsu", "--data", "DATA"], "Did you mean 'corpus'"),
        (["good.jsonl", "--suite", "mdcr", "--data", "DATA"], "belongs to scidocs; use --suite scidocs"),
        (["good.jsonl", "--suite", "scidocs", "--data", "gone"], "gone is not a folder; --data is"),
        (["good.jsonl", "--suite", "corpus", "--data", "gone"], "gone does not exist"),
        (["gone.jsonl", *ASKED], "'gone.jsonl' is no file, no folder"),
        (["good.jsonl", *ASKED, "--task", "cit"], "has no task 'cit'; it has"),
        (["good.jsonl", *ASKED, "--task", "co-view"], "cannot evaluate co-view"),
        (["good.jsonl", *ASKED, "--split", "dev"], "--split is 'dev'"),
        (["good.jsonl", *ASKED, "--missing", "peer"], "Did you mean 'peers'"),
        (["good.jsonl", *ASKED, "--distance", "l3"], "--distance is 'l3'"),
        (["good.jsonl", *ASKED, "--distance", "single"], "takes cosine, l2, dot"),
        (["good.jsonl", *ASKED, "--precision", "half"], "--precision is 'half'"),
        (["bm25", *ASKED, "--distance", "l2"], "bm25 has scores of its own"),
        (["bm25", *ASKED, "--map"], "no map can be drawn"),
        (["baseline:tfidf", *ASKED], "name one with --corpus"),
        (["DATA", *ASKED], "holds neither vectors nor scores nor a model"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(run: Run, data: Path, good: Path, words: list[str], message: str) -> None:
    code, out, err = run("evaluate", *(data if word == "DATA" else word for word in words), "-o", "out")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert not Path("out").exists() and not work_folder(Path("out")).exists()


def test_a_report_is_not_replaced_unasked(run: Run, data: Path, good: Path, tmp_path: Path) -> None:
    first = judged(run, good, data, "r", "--task", "cite")
    other = vectors(tmp_path / "other.jsonl", noise=2)
    words = ("evaluate", other, "--suite", "scidocs", "--data", data, "-o", "r", "--task", "cite", "--json")
    code, out, err = run(*words)
    assert (code, out) == (2, "") and "choose another -o or --overwrite" in err
    assert judged(run, good, data, "r", "--task", "cite") == first
    assert judged(run, other, data, "r", "--task", "cite", "--overwrite")["model"]["name"] == "other"


# --- compare -----------------------------------------------------------------------------------------


@pytest.fixture
def reports(run: Run, data: Path, good: Path, tmp_path: Path) -> list[str]:
    """A good model, and two seeds of a bad one."""
    judged(run, good, data, "good")
    for seed in (1, 2):
        judged(run, vectors(tmp_path / "bad.jsonl", noise=3, seed=seed), data, f"bad{seed}")
    return ["good", "bad1", "bad2"]


def test_compare_as_json(run: Run, reports: list[str]) -> None:
    code, out, err = run("compare", "good", "bad=bad1", "bad=bad2", "--json", "--resamples", 500)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["systems"] == ["good", "bad"] and found["metrics"][0] == "overall"
    by_metric = {each["metric"]: each for each in found["differences"]}
    assert set(by_metric) == {"overall"}  # no task alone has ten queries
    assert by_metric["overall"]["points"] > 0 and by_metric["overall"]["significant"]
    assert any("good is better than bad" in sentence for sentence in found["sentences"])
    assert any("One report of good" in sentence for sentence in found["sentences"])
    code, out, _ = run("compare", *reports, "--json", "--metric", "cite.map", "--resamples", 200)
    assert code == 0 and json.loads(out)["metrics"] == ["cite.map"]
    assert json.loads(out)["systems"] == ["good", "bad", "bad (bad2)"]


def test_a_report_does_not_differ_from_itself(run: Run, reports: list[str]) -> None:
    code, out, _ = run("compare", "bad1", "bad1", "--json", "--resamples", 500)
    found = json.loads(out)
    assert code == 0 and len(found["systems"]) == 2
    assert all(each["points"] == 0 and each["p"] == 1 and not each["significant"] for each in found["differences"])
    assert not any("better" in sentence for sentence in found["sentences"])
    assert "no difference between" in found["sentences"][0]
    code, out, _ = run("compare", "bad1", "bad1", "bad1", "--json", "--resamples", 500)
    assert len(json.loads(out)["systems"]) == 3  # the same folder is no second seed


def test_compare_writes_pages_and_tells_other_rules(run: Run, data: Path, good: Path, reports: list[str]) -> None:
    judged(run, good, data, "a=b", "--distance", "cosine")
    for name in ("page.html", "page.md"):
        assert run("compare", "a=b", "bad1", "-o", name, "--quiet", "--resamples", 200) == (0, "", "")
        text = Path(name).read_text()
        assert "cite.map" in text and "have different options: distance is cosine or the protocol" in text
    code, out, _ = run("compare", "good", "bad1", "--resamples", 200)
    assert code == 0 and "| good |" in out and "different rules" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["good"], "name at least two reports"),
        (["good", "gone"], "gone does not exist"),
        (["good", "scidocs"], "is not an artifact of citeweave"),
        (["good", "bad1", "--metric", "cite.mpa"], "--metric is 'cite.mpa'"),
        (["good", "bad1", "--resamples", "10"], "--resamples is 10"),
        (["good", "bad1", "-o", "page.pdf"], "written as .md or .html"),
    ],
)
def test_mistakes_of_compare(run: Run, reports: list[str], words: list[str], message: str) -> None:
    code, out, err = run("compare", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


# --- benchmark ---------------------------------------------------------------------------------------


def test_benchmark_of_summaries(run: Run, tmp_path: Path) -> None:
    (tmp_path / "scitldr").mkdir()
    records = [
        {"id": paper, "title": f"Title {paper}", "abstract": "Text.", "tldr": [f"short {paper}"], "split": "test"}
        for paper in PAPERS[:6]
    ]
    (tmp_path / "scitldr/papers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    code, out, err = run("benchmark", "scitldr", "scitldr", "-o", "beir", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and (found["suite"], found["papers"], found["questions"]) == ("beir", 6, {"test": 6})
    code, out, err = run("evaluate", "bm25", "--suite", "beir", "--data", "beir", "-o", "r", "--json")
    assert (code, err) == (0, "") and json.loads(out)["metrics"]["search.recip_rank"] == 100
    code, out, _ = run("benchmark", "scitldr", "scitldr", "-o", "again")
    assert code == 0 and "citeweave evaluate MODEL --suite beir --data again" in out


def test_benchmark_of_trec_covid(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cord"
    folder.mkdir()
    topics = {str(number): [f"t{number}d{at}" for at in range(6)] for number in range(1, 5)}
    lines = [f"{name} 4.5 {paper} 2\n" for name, papers in topics.items() for paper in papers]
    (folder / "qrels-covid.txt").write_text("".join(lines))
    with (folder / "metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["cord_uid", "title", "abstract"])
        for name, papers in topics.items():
            rows.writerows([paper, f"On {paper}", f"Words of topic{name}. More of topic{name}."] for paper in papers)
    code, out, err = run("benchmark", "treccovid_rf", "cord", "-o", "rf", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and (found["suite"], found["topics"], found["papers"]) == ("treccovid_rf", 4, 24)
    code, out, _ = run("evaluate", "bm25", "--suite", "treccovid_rf", "--data", "rf", "-o", "r", "--json")
    assert code == 0 and json.loads(out)["metrics"]["treccovid_rf.map"] == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scitdlr", "scidocs", "-o", "out"], "Did you mean 'scitldr'"),
        (["scitldr", "gone", "-o", "out"], "gone is not a folder"),
        (["scitldr", "scidocs", "-o", "out"], "papers.jsonl is missing"),
        (["treccovid_rf", "scidocs", "-o", "out"], "qrels"),
    ],
)
def test_mistakes_of_benchmark(run: Run, data: Path, words: list[str], message: str) -> None:
    code, out, err = run("benchmark", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert not Path("out").exists()
