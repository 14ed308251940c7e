"""graph, mine and audit as they are typed, on a made-up literature; mistakes are one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, Samples, synthesize
from citeweave.cli import main
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.intents.annotate import annotate_intents

from .conftest import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cli")
    synthesize(place / "corpus", SyntheticOptions(papers=700))
    return place


@pytest.fixture(scope="module")
def graph(folder: Path) -> Path:
    with pytest.raises(SystemExit) as end:
        main(
            [
                "graph",
                str(folder / "corpus"),
                "-o",
                str(folder / "graph"),
                "--dim",
                "64",
                "--held-out",
                "0.05",
                "--quiet",
            ]
        )
    assert not end.value.code
    return folder / "graph"


def test_graph_reports_counts_and_links(folder: Path, graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "graph", folder / "corpus", "-o", graph, "--dim", 64, "--held-out", 0.05, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["nodes"] == 700
    assert found["vectors"] == {"model": "fastrp-64 of citations", "dimension": 64}
    assert found["links"]["uniform"]["mrr"] > 0.02
    assert found["links"]["uniform"]["auc"] > 0.6
    code, out, _ = run(capsys, "graph", folder / "corpus", "-o", graph, "--dim", 64, "--held-out", 0.05)
    assert "MRR" in out and "papers without a vector" in out


def test_graph_of_a_union_and_without_vectors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--signal", "connected:1,cocited:0.5,coupled:0.2", "--dim", 16, "--method", "prone", "--json"]
    code, out, _ = run(capsys, "graph", folder / "corpus", "-o", folder / "union", *words)
    assert code == 0
    assert json.loads(out)["vectors"]["model"].startswith("prone-16 of connected:1")
    code, _, _ = run(capsys, "graph", folder / "corpus", "-o", folder / "bare", "--method", "none", "--quiet")
    assert code == 0
    assert not (folder / "bare" / "vectors").exists()
    code, _, err = run(
        capsys, "mine", folder / "corpus", "--recipe", "scincl", "--graph", folder / "bare", "-o", folder / "x"
    )
    assert code == 2
    assert "has no node vectors" in err


def test_mine_and_audit(folder: Path, graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--recipe", "scincl", "--graph", graph, "-o", folder / "samples", "--bands", "auto"]
    code, out, _ = run(capsys, "mine", folder / "corpus", *words, "--pictures", folder / "curves", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["samples"] == len(Samples.open(folder / "samples"))
    assert found["bands"]["why"]
    assert list((folder / "curves").glob("*.png"))
    code, out, _ = run(capsys, "audit", folder / "samples", "--graph", graph, "--json", "--pictures", folder / "drawn")
    audit = json.loads(out)
    assert code == 0
    assert audit["collisions"]["share_of_pairs"] < 0.01
    assert (folder / "drawn" / "relations.png").is_file()
    code, out, _ = run(capsys, "audit", folder / "samples")
    assert "collisions:" in out
    code, out, _ = run(capsys, "audit", folder / "samples", "--against", f"itself={folder / 'corpus'}", "--json")
    assert json.loads(out)["leakage"]["itself"]["papers"] > 0


def test_the_graph_is_made_where_it_is_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "mine", folder / "corpus", "--recipe", "specter", "-o", folder / "specter")
    assert code == 0
    assert "building the graph" in err
    assert (folder / "specter-graph" / "manifest.json").is_file()


def test_anchors_tables_and_sections(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = Corpus.open(folder / "corpus")
    ids = corpus.ids.take(np.arange(600, 640))
    (folder / "anchors.txt").write_text("\n".join([*ids, "nobody"]) + "\n")
    pairs = [f"{ids[i]}\t{ids[j]}\t{1 + (i + j) % 5}\n" for i in range(20) for j in range(20) if i != j]
    (folder / "pairs.tsv").write_text("".join(pairs))
    words = ["--anchors", folder / "anchors.txt", "--table", f"coviews={folder / 'pairs.tsv'}", "--json"]
    code, out, err = run(capsys, "mine", folder / "corpus", "--recipe", "signal_table", "-o", folder / "table3", *words)
    assert code == 0, err
    assert 0 < json.loads(out)["anchors"] <= 20
    words = ["--intents", "sections", "--set", "mining.every_aspect=false", "--json"]
    code, out, err = run(capsys, "mine", folder / "corpus", "--recipe", "sciaspect", "-o", folder / "aspects", *words)
    assert code == 0, err
    assert json.loads(out)["samples"] > 100


def test_graphs_of_intents_and_what_is_mined_by_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = Corpus.open(folder / "corpus")
    overlay = annotate_intents(corpus, folder / "intents", None)
    words = ["--intents", folder / "intents", "--per-intent", "--dim", 32]
    code, out, err = run(capsys, "graph", corpus.folder, "-o", folder / "apart", *words, "--json")
    assert code == 0, err
    parts = json.loads(out)["apart"]
    assert {name: part["citations"] for name, part in parts.items()} == {
        name: int((overlay.mask & bit > 0).sum()) for name, bit in (("background", 1), ("method", 2), ("result", 4))
    }
    assert {path.name for path in (folder / "apart").glob("vectors*")} == {"vectors", *(f"vectors-{n}" for n in parts)}
    code, out, _ = run(capsys, "graph", corpus.folder, "-o", folder / "apart", *words)
    assert "citations of" in out
    words = ["--recipe", "sciaspect_bands", "--intents", folder / "intents", "--bands", "auto"]
    words += ["--graph", folder / "apart", "-o", folder / "banded"]
    code, out, err = run(capsys, "mine", corpus.folder, *words)
    assert code == 0, err
    assert (
        "method: no vector, such as a paper without citations" in out
        and "bands chosen in result: positives up to rank" in out
    )
    # the overlay holds what the corpus has, so both give the same samples
    for name, given in (("a", "corpus"), ("b", str(folder / "intents"))):
        code, _, err = run(
            capsys, "mine", corpus.folder, "--recipe", "sciaspect", "-o", folder / f"by-{name}", "--intents", given
        )
        assert code == 0, err
    assert Samples.open(folder / "by-a").hash == Samples.open(folder / "by-b").hash


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["graph", "@corpus", "-o", "@g1", "--intents", "@nowhere"], "nowhere: there is no such folder; give corpus"),
        (["graph", "@corpus", "-o", "@g1", "--intents", "@corpus"], "holds corpus, not intents"),
        (["graph", "@corpus", "-o", "@g1", "--method", "none", "--per-intent"], "--method none makes no node vectors"),
        (
            ["mine", "@corpus", "-o", "@s1", "--recipe", "sciaspect", "--intents", "sectoins"],
            "no such folder; give corpus",
        ),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "sciaspect_bands", "--graph", "@graph"], "--per-intent"),
        (["graph", "@corpus", "-o", "@g1", "--method", "fastrpp"], "--method is 'fastrpp'"),
        (["graph", "@corpus", "-o", "@g1", "--held-out", "1.5"], "--held-out is 1.5"),
        (["graph", "@corpus", "-o", "@g1", "--dim", "0"], "--dim is 0"),
        (["graph", "@corpus", "-o", "@g1", "--signal", "cocite"], "signal is 'cocite'"),
        (["graph", "@corpus", "-o", "@g1", "--memory", "much"], "--memory is 'much'"),
        (["graph", "@nothing", "-o", "@g1"], "does not exist"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "scinlc"], "the recipe is 'scinlc'"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--graph", "@corpus"], "holds corpus, not graph"),
        (
            ["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--set", "mining.positives.cuont=3"],
            "did you mean 'count'",
        ),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--anchors", "@none.txt"], "does not exist"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--pool", "@none.txt"], "does not exist"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--table", "t=@none.tsv"], "cannot be opened"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--vectors", "t=@none"], "does not exist"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "signal_table"], "table 'coviews', which is not given"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--vectors", "text"], "--vectors is 'text'"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "scincl", "--graph", "@graph"], "band ends at rank 4,000"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--bands", "best"], "--bands is 'best'"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--pictures", "@p"], "--bands auto"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "cocite", "--graph", "@graph"], "the recipe asks for 'cocited'"),
        (["mine", "@corpus", "-o", "@corpus", "--recipe", "specter", "--overwrite"], "which samples must not replace"),
        (["graph", "@corpus", "-o", "@corpus", "--overwrite"], "which graph must not replace"),
        (
            ["graph", "@corpus", "-o", "@g1", "--method", "none", "--held-out", "0.1"],
            "--held-out evaluates node vectors",
        ),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--graph", "@nowhere"], "nowhere does not exist"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "specter", "--workers", "-2"], "--workers is -2"),
        (["mine", "@corpus", "-o", "@s1", "--recipe", "mine.tml"], "mine.tml does not exist"),
        (["audit", "@nothing"], "nothing does not exist"),
        (["audit", "@graph"], "holds graph, not corpus"),
        (["audit", "@corpus"], "needs --against"),
        (["audit", "@corpus", "--pictures", "@p", "--against", "a=@corpus"], "--pictures is for auditing samples"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, folder: Path, graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [word.replace("@", f"{folder}/") for word in words]
    code, out, err = run(capsys, *arguments)
    assert code == 2, err
    line = err.strip().splitlines()[-1]
    assert line.startswith("error: ") and message in line
    assert out == ""
    for name in ("s1", "g1", "s1-graph", "corpus-graph"):
        assert not (folder / name).exists(), name


def test_intents_that_nobody_gave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    papers = "".join(f'{{"id": "{name}", "title": "paper {name}", "abstract": "text"}}\n' for name in "abc")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "papers.jsonl").write_text(papers)
    (tmp_path / "in" / "citations.tsv").write_text("a\tb\nb\tc\n")
    assert run(capsys, "import", tmp_path / "in", "-o", tmp_path / "corpus", "--quiet")[0] == 0
    code, _, err = run(capsys, "mine", tmp_path / "corpus", "--recipe", "sciaspect", "-o", tmp_path / "samples")
    assert code == 2
    assert "citeweave annotate" not in err and "no citing sentences" in err and "sciaspect_relations" in err


def test_a_literature_without_citations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "papers.jsonl").write_text(
        "".join(f'{{"id": "{i}", "title": "paper {i}", "abstract": "a"}}\n' for i in range(9))
    )
    assert run(capsys, "import", tmp_path / "papers.jsonl", "-o", tmp_path / "corpus", "--quiet")[0] == 0
    code, _, err = run(capsys, "graph", tmp_path / "corpus", "-o", tmp_path / "graph")
    assert code == 2
    assert "has no citations between its papers" in err
    code, _, err = run(capsys, "mine", tmp_path / "corpus", "--recipe", "specter", "-o", tmp_path / "samples")
    assert code == 2
    assert "no sample could be made" in err and "9 anchors: no positive" in err
