"""graph, mine, audit, align and convert as they are typed, on a synthetic literature; mistakes are one line."""

import json
import shutil

import numpy as np
import pytest

from citeweave import Corpus, Samples
from citeweave.corpus.ingest import import_papers
from citeweave.intents.annotate import annotate_intents

from .conftest import mistakes, prepare, write_jsonl


@pytest.fixture(scope="module")
def folder(tmp_path_factory, literature):
    """A corpus, another, and a graph with node vectors."""
    place = tmp_path_factory.mktemp("mine")
    shutil.copytree(literature(700), place / "corpus")
    prepare(f"graph {place}/corpus -o {place}/graph --dim 64 --held-out 0.05")
    return place


def test_graph_reports_counts_and_links(folder, cli):
    command = f"graph {folder}/corpus -o {folder}/graph --dim 64 --held-out 0.05"
    found = cli.json(command)
    assert found["nodes"] == 700 and found["vectors"] == {"model": "fastrp-64 of citations", "dimension": 64}
    assert found["links"]["uniform"]["mrr"] > 0.02 and found["links"]["uniform"]["auc"] > 0.6
    out = cli.text(command)
    assert "MRR" in out and "papers without a vector" in out


def test_graph_of_a_union_and_without_vectors(folder, cli):
    signal = "--signal connected:1,cocited:0.5,coupled:0.2 --dim 16 --method prone"
    found = cli.json(f"graph {folder}/corpus -o {folder}/union {signal}")
    assert found["vectors"]["model"].startswith("prone-16 of connected:1")
    cli.text(f"graph {folder}/corpus -o {folder}/bare --method none --quiet")
    assert not (folder / "bare" / "vectors").exists()
    cli.fails("has no node vectors", f"mine {folder}/corpus --recipe scincl --graph {folder}/bare -o {folder}/x")


def test_mine_and_audit(folder, cli):
    words = f"--recipe scincl --graph {folder}/graph -o {folder}/samples --bands auto --pictures {folder}/curves"
    found = cli.json(f"mine {folder}/corpus {words}")
    assert found["samples"] == len(Samples.open(folder / "samples")) and found["bands"]["why"]
    assert list((folder / "curves").glob("*.png"))
    audit = cli.json(f"audit {folder}/samples --graph {folder}/graph --pictures {folder}/drawn")
    assert audit["collisions"]["share_of_pairs"] < 0.01
    assert (folder / "drawn" / "relations.png").is_file()
    assert "collisions:" in cli.text(f"audit {folder}/samples")
    leaks = cli.json(f"audit {folder}/samples --against itself={folder}/corpus")["leakage"]
    assert leaks["itself"]["papers"] > 0


def test_the_graph_is_built_where_it_is_needed(folder, cli):
    code, _, err = cli(f"mine {folder}/corpus --recipe specter -o {folder}/specter")
    assert code == 0 and "building the graph" in err
    assert (folder / "specter-graph" / "manifest.json").is_file()


def test_anchors_tables_and_sections(folder, cli):
    ids = Corpus.open(folder / "corpus").ids.take(np.arange(600, 640))
    (folder / "anchors.txt").write_text("\n".join([*ids, "nobody"]) + "\n")
    pairs = [f"{ids[i]}\t{ids[j]}\t{1 + (i + j) % 5}\n" for i in range(20) for j in range(20) if i != j]
    (folder / "pairs.tsv").write_text("".join(pairs))
    words = f"-o {folder}/table3 --anchors {folder}/anchors.txt --table coviews={folder}/pairs.tsv"
    assert 0 < cli.json(f"mine {folder}/corpus --recipe signal_table {words}")["anchors"] <= 20
    words = f"-o {folder}/aspects --intents sections --set mining.every_aspect=false"
    assert cli.json(f"mine {folder}/corpus --recipe sciaspect {words}")["samples"] > 100


def test_graphs_of_intents_and_what_is_mined_by_them(folder, cli):
    overlay = annotate_intents(Corpus.open(folder / "corpus"), folder / "intents", None)
    command = f"graph {folder}/corpus -o {folder}/apart --intents {folder}/intents --per-intent --dim 32"
    parts = cli.json(command)["apart"]
    assert {name: part["citations"] for name, part in parts.items()} == {
        name: int((overlay.mask & bit > 0).sum()) for name, bit in (("background", 1), ("method", 2), ("result", 4))
    }
    assert {path.name for path in (folder / "apart").glob("vectors*")} == {"vectors", *(f"vectors-{n}" for n in parts)}
    assert "citations of" in cli.text(command)
    words = f"--recipe sciaspect_bands --intents {folder}/intents --bands auto --graph {folder}/apart"
    out = cli.text(f"mine {folder}/corpus {words} -o {folder}/banded")
    assert "method: no vector, such as a paper without citations" in out
    assert "bands chosen in result: positives up to rank" in out
    # the overlay holds what the corpus has, so both give the same samples
    for name, source in (("a", "corpus"), ("b", f"{folder}/intents")):
        cli.text(f"mine {folder}/corpus --recipe sciaspect -o {folder}/by-{name} --intents {source}")
    assert Samples.open(folder / "by-a").hash == Samples.open(folder / "by-b").hash


GRAPH, MINE = "graph @corpus -o @g1", "mine @corpus -o @s1 --recipe"


@mistakes(
    (f"{GRAPH} --intents @nowhere", "nowhere: there is no such folder; give corpus"),
    (f"{GRAPH} --intents @corpus", "holds corpus, not intents"),
    (f"{GRAPH} --method none --per-intent", "--method none makes no node vectors"),
    (f"{GRAPH} --method none --held-out 0.1", "--held-out evaluates node vectors"),
    (f"{GRAPH} --method fastrpp", "--method is 'fastrpp'"),
    (f"{GRAPH} --held-out 1.5", "--held-out is 1.5"),
    (f"{GRAPH} --held-out 0.1 --links signal", "--links is 'signal', and graph.signal is 'citations'"),
    (f"{GRAPH} --links cocited", "--links is 'cocited'"),
    (f"{GRAPH} --dim 0", "--dim is 0"),
    (f"{GRAPH} --signal cocite", "signal is 'cocite'"),
    (f"{GRAPH} --memory much", "--memory is 'much'"),
    ("graph @nothing -o @g1", "does not exist"),
    ("graph @corpus -o @corpus --overwrite", "which graph must not replace"),
    (f"{MINE} sciaspect --intents sectoins", "no such folder; give corpus"),
    (f"{MINE} sciaspect_bands --graph @graph", "--per-intent"),
    (f"{MINE} specter --graph @corpus", "holds corpus, not graph"),
    (f"{MINE} specter --anchors @none.txt", "does not exist"),
    (f"{MINE} specter --pool @none.txt", "does not exist"),
    (f"{MINE} specter --table t=@none.tsv", "cannot be opened"),
    (f"{MINE} specter --vectors t=@none", "does not exist"),
    (f"{MINE} specter --vectors text", "--vectors is 'text'"),
    (f"{MINE} specter --bands best", "--bands is 'best'"),
    (f"{MINE} specter --pictures @p", "--bands auto"),
    (f"{MINE} cocite --graph @graph", "the recipe asks for 'cocited'"),
    (f"{MINE} specter --graph @nowhere", "nowhere does not exist"),
    (f"{MINE} mine.tml", "mine.tml does not exist"),
    ("mine @corpus -o @corpus --recipe specter --overwrite", "which samples must not replace"),
    ("audit @nothing", "nothing does not exist"),
    ("audit @graph", "holds graph, not corpus"),
    ("audit @corpus", "needs --against"),
    ("audit @corpus --pictures @p --against a=@corpus", "--pictures is for auditing samples"),
)
def test_mistakes_are_one_line(words, message, folder, cli):
    code, out, err = cli(words.replace("@", f"{folder}/"))
    line = err.strip().splitlines()[-1]
    assert (code, out) == (2, "") and line.startswith("error: ") and message in line, err
    assert not any((folder / name).exists() for name in ("s1", "g1", "s1-graph", "corpus-graph"))


def test_a_corpus_without_intents_or_citations(tmp_path, cli):
    papers = write_jsonl(tmp_path / "papers.jsonl", ({"id": name, "title": name, "abstract": "text"} for name in "abc"))
    (tmp_path / "citations.tsv").write_text("a\tb\nb\tc\n")
    cli.text(f"import {papers} {tmp_path}/citations.tsv -o {tmp_path}/cited --quiet")
    code, _, err = cli(f"mine {tmp_path}/cited --recipe sciaspect -o {tmp_path}/samples")
    assert code == 2 and "no citing sentences" in err and "sciaspect_relations" in err
    assert "citeweave annotate" not in err
    cli.text(f"import {papers} -o {tmp_path}/corpus --quiet")
    cli.fails("has no citations between its papers", f"graph {tmp_path}/corpus -o {tmp_path}/graph")
    code, _, err = cli(f"mine {tmp_path}/corpus --recipe specter -o {tmp_path}/none")
    assert code == 2 and "no sample could be made" in err and "3 anchors: no positive" in err


# --- align -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mined(tmp_path_factory, literature):
    """A corpus and samples of citing sentences."""
    place = tmp_path_factory.mktemp("align")
    shutil.copytree(literature(200), place / "corpus")
    prepare(f"mine {place}/corpus --recipe aspire --set mining.anchors=20 -o {place}/aspire")
    return place


@pytest.mark.parametrize("by", ["contexts", "abstracts"])
def test_align(by, mined, bert, tmp_path, cli):
    pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    command = f"align {mined}/corpus --samples {mined}/aspire --model {bert} --by {by} --device cpu -o {tmp_path}/a"
    assert f"aligned by {by} with tiny-bert" in cli.text(command)
    found = Samples.open(tmp_path / "a")
    assert found.alignment is not None and found.alignment.aligned.all()
    code, _, err = cli(command)
    assert code == 0 and "already exists" in err
    value = cli.json(command)
    assert value["by"] == by and value["samples"] == 20
    assert value["pairs"] == {"read": 20, "kept": 20, "rejected": {}}


@mistakes(
    ("corpus", "holds corpus, not samples"),
    ("nowhere", "does not exist; give a folder that holds samples"),
)
def test_mistakes_of_align_are_one_line(words, message, mined, bert, tmp_path, cli):
    cli.fails(message, f"align {mined}/corpus --samples {mined}/{words} --model {bert} -o {tmp_path}/a --quiet")
    assert not list(tmp_path.iterdir())


# --- convert -----------------------------------------------------------------------------------------


@pytest.fixture
def convert(tmp_path, cli):
    """Convert with a corpus of four papers; beside it are triples of SciNCL that name them, and their samples."""
    papers = [{"id": id, "title": f"Paper {id}", "abstract": "An abstract."} for id in "abcd"]
    import_papers(write_jsonl(tmp_path / "p.jsonl", papers), tmp_path / "corpus")
    (tmp_path / "triples.csv").write_text("query_paper_id,positive_id,negative_id\na,b,c\na,c,d\nb,a,nobody\n")

    def command(words):
        return cli("convert", words.replace("@", f"{tmp_path}/"), "--corpus", tmp_path / "corpus")

    command.first = command("@triples.csv -o @samples")
    return command


def test_samples_are_converted_there_and_back(convert, tmp_path):
    code, out, err = convert.first
    assert code == 0 and "scincl: 1 file (guessed)" in err and "not kept: negative not in the corpus" in out
    assert Samples.open(tmp_path / "samples").triplets().rows().tolist() == [[0, 1, 2], [0, 2, 3]]
    found = json.loads(convert("@samples --to specter -o @out --val 0.5 --json")[1])
    assert found["records"]["queries"]["kept"] == 1 and found["output"] == str(tmp_path / "out")
    assert found["files"] == ["data.json", "metadata.json", "train.txt", "val.txt"]
    assert all((tmp_path / "out" / name).is_file() for name in found["files"])
    assert convert("@out --from specter -o @back --quiet") == (0, "", "")
    assert Samples.open(tmp_path / "back").positives.rows.tolist() == [1, 2]


def test_every_option_reaches_its_format(convert, tmp_path):
    words = "--to sentence_transformers --columns group --negatives 1 --file-type jsonl --ids"
    assert convert(f"@samples {words} -o @st")[0] == 0
    first = json.loads((tmp_path / "st/train.jsonl").read_text().splitlines()[0])
    assert list(first) == ["anchor", "positive", "negative_1", "anchor_id", "positive_id", "negative_1_id"]
    out = convert("@samples --to scincl --gzip -o @scincl")[1]
    assert (tmp_path / "scincl/train_triples.csv.gz").is_file() and "train_triples.csv.gz" in out
    assert convert("@samples --to specter --leave-out 'given negative' -o @sp")[0] == 0
    assert json.loads((tmp_path / "sp/data.json").read_text()) == {"a": {"b": {"count": 5}, "c": {"count": 5}}}


@mistakes(
    ("@samples", "say with --to in which format"),
    ("@samples --to scincl --from specter", "leave it out"),
    ("@triples.csv --to specter", "is not one; leave it out"),
    ("@triples.csv --gzip", "there are export options"),
    ("@corpus --to scincl", "holds corpus, not samples"),
)
def test_mistakes_of_convert_are_one_line(convert, tmp_path, words, message):
    code, out, err = convert(f"{words} -o @out")
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()
