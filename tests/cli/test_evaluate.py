"""evaluate, compare and benchmark as a user types them: one JSON object, exit codes, errors of one line."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.publish import work_folder

from .conftest import mistakes, write_jsonl

PAPERS = [f"p{number:02d}" for number in range(24)]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Commands run in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))


def topic(paper: str) -> int:
    return int(paper[1:]) % 2


@pytest.fixture(autouse=True)
def data(place):
    """The benchmark scidocs, in part."""
    folder = Path("scidocs")
    for task in ("mag", "cite", "cocite"):
        (folder / task).mkdir(parents=True)
    for split, papers in {"train": PAPERS[:14], "val": PAPERS[14:18], "test": PAPERS[18:]}.items():
        lines = [f"{paper},{topic(paper)}\n" for paper in papers]
        (folder / f"mag/{split}.csv").write_text("pid,class_label\n" + "".join(lines))
    for task, queries in (("cite", PAPERS[:8]), ("cocite", PAPERS[4:8])):
        pairs = [(query, paper) for query in queries for paper in PAPERS[10:20]]
        lines = [f"{query} 0 {paper} {int(topic(query) == topic(paper))}\n" for query, paper in pairs]
        for split in ("val", "test"):
            (folder / f"{task}/{split}.qrel").write_text("".join(lines))
    texts = {paper: {"title": f"Paper {paper}", "abstract": f"On subject{topic(paper)}."} for paper in PAPERS}
    for name in ("mag_mesh", "view_cite_read"):
        (folder / f"paper_metadata_{name}.json").write_text(json.dumps(texts))


def vectors(name: str, *, noise: float, missing: tuple[str, ...] = (), seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    rows = {paper: np.eye(2)[topic(paper)].tolist() + rng.normal(0, noise, 3).tolist() for paper in PAPERS}
    records = [{"paper_id": paper, "embedding": row} for paper, row in rows.items() if paper not in missing]
    return write_jsonl(Path(name), records).name


@pytest.fixture
def good(data):
    return vectors("good.jsonl", noise=0.1)


@pytest.fixture
def evaluated(cli):
    """Evaluate on scidocs: what is printed with --json, and nothing on standard error."""

    def evaluate(system, output, options=""):
        return cli.silent_json(f"evaluate {system} --suite scidocs --data scidocs -o {output} {options}")

    return evaluate


def test_evaluate_as_json(evaluated, good):
    found = evaluated(good, "r")
    assert found["suite"] == "scidocs" and found["model"]["name"] == "good" and found["output"] == "r"
    assert found["metrics"]["cite.map"] == 100 and found["metrics"]["mag.f1"] == 100
    assert "coview/test.qrel" in found["not_evaluated"]["co-view"]
    assert found["coverage"]["cite"]["queries"] == 8 and "per_query" not in found and "map" not in found
    assert evaluated(good, "r") == found
    value = json.loads(Path("r/report.json").read_text())
    assert {"per_query", "headline", "versions"} <= value.keys()


def test_evaluate_as_text(cli, data):
    command = f"evaluate {vectors('gaps.jsonl', noise=0.1, missing=('p00', 'p19'))} --suite scidocs --data scidocs -o r"
    out = cli.text(command)
    assert "r: gaps on scidocs" in out and "cite.map" in out and "[" in out
    assert "not evaluated: co-view: " in out
    assert "cite: 1 queries without an answer" in out and "mag: 1 training papers without vector" in out
    assert "tables and plots: r/report.html" in out
    assert cli(command, "--quiet") == (0, "", "")


def test_options_of_evaluate_reach_the_report(evaluated, data):
    gaps = vectors("gaps.jsonl", noise=0.6, missing=("p00",))
    plain = evaluated(gaps, "plain")
    one = evaluated(gaps, "one", "--task cite --task mag")
    assert set(one["coverage"]) == {"cite", "mag"}
    assert one["metrics"] == {name: plain["metrics"][name] for name in one["metrics"]}
    validation = evaluated(gaps, "val", "--split val")
    assert validation["data"]["split"] == "val" and validation["coverage"]["mag"]["test papers"] == 4
    cosine = evaluated(gaps, "cosine", "--distance cosine")
    assert cosine["options"]["distance"] == "cosine" and cosine["metrics"] != plain["metrics"]
    peers = evaluated(gaps, "peers", "--missing peers")
    assert peers["metrics"]["cite.map"] > plain["metrics"]["cite.map"]  # a query without vector is no longer wrong
    assert peers["coverage"]["cite"]["queries left out of the mean"] == 1
    bare = evaluated(gaps, "bare", "--no-intercept --task mag")
    how = json.loads(Path("bare/report.json").read_text())["tasks"]["mag"]["chosen"]
    assert bare["options"]["intercept"] is False and (how["intercept"], how["solver"]) == (False, "lightning")
    half = evaluated(gaps, "half", "--precision float16 --task cite")
    assert half["model"]["dtype"] == "float16" and plain["model"]["dtype"] == "float64"
    assert half["model"]["revision"] != plain["model"]["revision"]


def test_a_map_on_request(cli, evaluated, good):
    found = evaluated(good, "r", "--map --task mag")
    assert found["map"]["papers"] == 24 - 4 and found["map"]["task"] == "mag"  # without the validation papers
    assert "Paper p00" in Path("r/map.html").read_text()
    out = cli.text(f"evaluate {good} --suite scidocs --data scidocs -o r --map --task mag")
    assert "map of 20 papers of mag: r/map.html" in out


def test_bm25_and_a_run_of_it_have_the_same_metrics(evaluated):
    words = evaluated("bm25", "words", "--task cite")
    again = evaluated("words/runs/cite.run", "again", "--task cite")
    assert again["metrics"] == words["metrics"] and words["model"]["name"] == "bm25"


def test_a_suite_made_from_a_corpus_and_its_baselines(cli, literature):
    suite = f"--suite corpus --data {literature(200)} --queries 10 --task cite"
    metrics = {}
    for name in ("bm25", "baseline:random"):
        found = cli.silent_json(f"evaluate {name} {suite} -o {name.replace(':', '_')}")
        metrics[name] = found["metrics"]["cite.map"]
    assert metrics["bm25"] > metrics["baseline:random"]
    assert cli.json("compare bm25 baseline_random --resamples 200")["systems"] == ["bm25", "random"]


@mistakes(
    ("good.jsonl --suite scidoc --data scidocs", "Did you mean 'scidocs'"),
    ("good.jsonl --suite corpsu --data scidocs", "Did you mean 'corpus'"),
    ("good.jsonl --suite mdcr --data scidocs", "belongs to scidocs; use --suite scidocs"),
    ("good.jsonl --suite scidocs --data gone", "gone is not a folder; --data is"),
    ("good.jsonl --suite corpus --data gone", "gone does not exist"),
    ("gone.jsonl @", "'gone.jsonl' is not a file, a folder"),
    ("good.jsonl @ --task cit", "has no task 'cit'; it has"),
    ("good.jsonl @ --task co-view", "cannot evaluate co-view"),
    ("good.jsonl @ --split dev", "--split is 'dev'"),
    ("good.jsonl @ --missing peer", "Did you mean 'peers'"),
    ("good.jsonl @ --distance l3", "--distance is 'l3'"),
    ("good.jsonl @ --distance single", "takes cosine, l2, dot"),
    ("good.jsonl @ --precision half", "--precision is 'half'"),
    ("bm25 @ --distance l2", "bm25 has scores of its own"),
    ("bm25 @ --map", "no map can be drawn"),
    ("baseline:tfidf @", "name one with --corpus"),
    ("scidocs @", "holds neither vectors nor scores nor a model"),
)
def test_mistakes_of_evaluate_are_one_line(cli, good, words, message):
    cli.fails(message, "evaluate", words.replace("@", "--suite scidocs --data scidocs"), "-o out")
    assert not Path("out").exists() and not work_folder(Path("out")).exists()


def test_a_report_is_not_replaced_without_overwrite(cli, evaluated, good):
    first = evaluated(good, "r", "--task cite")
    other = vectors("other.jsonl", noise=2)
    cli.fails(
        "choose another -o or --overwrite", f"evaluate {other} --suite scidocs --data scidocs -o r --task cite --json"
    )
    assert evaluated(good, "r", "--task cite") == first
    assert evaluated(other, "r", "--task cite --overwrite")["model"]["name"] == "other"


# --- compare -----------------------------------------------------------------------------------------


@pytest.fixture
def reports(evaluated, good):
    """A good model, and two seeds of a bad one."""
    evaluated(good, "good")
    for seed in (1, 2):
        evaluated(vectors("bad.jsonl", noise=3, seed=seed), f"bad{seed}")


def test_compare_as_json(cli, reports):
    found = cli.silent_json("compare good bad=bad1 bad=bad2 --resamples 500")
    assert found["systems"] == ["good", "bad"] and found["metrics"][0] == "overall"
    (overall,) = found["differences"]  # no task alone has ten queries
    assert overall["metric"] == "overall" and overall["points"] > 0 and overall["significant"]
    assert any("good is better than bad" in sentence for sentence in found["sentences"])
    assert any("One report of good" in sentence for sentence in found["sentences"])
    found = cli.json("compare good bad1 bad2 --metric cite.map --resamples 200")
    assert found["metrics"] == ["cite.map"] and found["systems"] == ["good", "bad", "bad (bad2)"]
    # a report does not differ from itself
    found = cli.json("compare bad1 bad1 --resamples 500")
    assert len(found["systems"]) == 2
    assert all(each["points"] == 0 and each["p"] == 1 and not each["significant"] for each in found["differences"])
    assert not any("better" in sentence for sentence in found["sentences"])
    assert "no difference between" in found["sentences"][0]
    # the same folder is no second seed
    assert len(cli.json("compare bad1 bad1 bad1 --resamples 500")["systems"]) == 3


def test_compare_writes_pages_and_reports_different_options(cli, evaluated, good, reports):
    evaluated(good, "a=b", "--distance cosine")
    for name in ("page.html", "page.md"):
        assert cli(f"compare a=b bad1 -o {name} --quiet --resamples 200") == (0, "", "")
        text = Path(name).read_text()
        assert "cite.map" in text and "have different options: distance is cosine or the protocol" in text
    out = cli.text("compare good bad1 --resamples 200")
    assert "| good |" in out and "different options" not in out


def test_mistakes_of_compare_are_one_line(cli, reports):
    for words, message in [
        ("good", "name at least two reports"),
        ("good gone", "gone does not exist"),
        ("good scidocs", "is not an artifact of citeweave"),
        ("good bad1 --metric cite.mpa", "--metric is 'cite.mpa'"),
        ("good bad1 --resamples 10", "--resamples is 10"),
        ("good bad1 -o page.pdf", "written as .md or .html"),
    ]:
        cli.fails(message, "compare", words)


# --- benchmark ---------------------------------------------------------------------------------------


def test_benchmark_of_summaries(cli):
    Path("scitldr").mkdir()
    records = [
        {"id": paper, "title": f"Title {paper}", "abstract": "Text.", "tldr": [f"short {paper}"], "split": "test"}
        for paper in PAPERS[:6]
    ]
    write_jsonl(Path("scitldr/papers.jsonl"), records)
    found = cli.silent_json("benchmark scitldr scitldr -o beir")
    assert (found["suite"], found["papers"], found["questions"]) == ("beir", 6, {"test": 6})
    found = cli.silent_json("evaluate bm25 --suite beir --data beir -o r")
    assert found["metrics"]["search.recip_rank"] == 100
    assert "citeweave evaluate MODEL --suite beir --data again" in cli.text("benchmark scitldr scitldr -o again")


def test_benchmark_of_trec_covid(cli):
    Path("cord").mkdir()
    topics = {str(number): [f"t{number}d{at}" for at in range(6)] for number in range(1, 5)}
    lines = [f"{name} 4.5 {paper} 2\n" for name, papers in topics.items() for paper in papers]
    Path("cord/qrels-covid.txt").write_text("".join(lines))
    with Path("cord/metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["cord_uid", "title", "abstract"])
        for name, papers in topics.items():
            rows.writerows([paper, f"On {paper}", f"Words of topic{name}. More of topic{name}."] for paper in papers)
    found = cli.silent_json("benchmark treccovid_rf cord -o rf")
    assert (found["suite"], found["topics"], found["papers"]) == ("treccovid_rf", 4, 24)
    found = cli.json("evaluate bm25 --suite treccovid_rf --data rf -o r")
    assert found["metrics"]["treccovid_rf.map"] == 100


@mistakes(
    ("scitdlr scidocs", "Did you mean 'scitldr'"),
    ("scitldr gone", "gone is not a folder"),
    ("scitldr scidocs", "papers.jsonl is missing"),
    ("treccovid_rf scidocs", "qrels"),
)
def test_mistakes_of_benchmark_are_one_line(cli, words, message):
    cli.fails(message, "benchmark", words, "-o out")
    assert not Path("out").exists()
