"""synthesize, import, info, derive, audit and doctor as a user types them, and how every command ends."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from citeweave import Corpus, synthesize
from citeweave.core.publish import work_folder
from citeweave.corpus.options import SyntheticOptions

from .conftest import mistakes, write_jsonl

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def corpus(literature):
    return literature(300)


def test_a_synthetic_corpus_and_its_info(corpus, tmp_path, cli):
    cli.text("synthesize -o", tmp_path / "c", "--papers 300 --quiet")
    assert Corpus.open(tmp_path / "c").hash == Corpus.open(corpus).hash
    facts = json.loads((corpus / "manifest.json").read_text())["facts"]
    assert facts["made_up"] is True and "no paper" in facts["note"]
    found = cli.silent_json("info", corpus, "--samples 2")
    assert found["made_up"] is True and found["papers"] == 300
    for key in ("papers", "abstracts", "citations", "contexts"):
        assert isinstance(found[key], int) and found[key] > 0, key
    assert isinstance(found["rejected"], dict) and sum(found["years"].values()) == 300
    assert len(found["samples"]) == 2 and found["samples"][0]["id"] == "syn:000000"
    assert found["references_per_paper"]["mean"] == pytest.approx(found["citations"] / 300, abs=0.001)
    # samples beyond the corpus are all papers
    assert len(cli.json("info", corpus, "--samples 1000")["samples"]) == 300
    assert cli.json("info", corpus, "--samples -1")["samples"] == []
    out = cli.text("info", corpus)
    assert "synthetic" in out and "papers" in out and "syn:000000" in out and "Traceback" not in out


def test_info_verifies_every_artifact(corpus, tmp_path, cli):
    cli.text("graph", corpus, "-o", tmp_path / "graph", "--quiet")
    out = cli.text("info", tmp_path / "graph", "--verify")
    assert "graph" in out and "every file is as it was written" in out
    assert cli.json("info", tmp_path / "graph")["kind"] == "graph"
    path = tmp_path / "graph" / "cited" / "targets.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    cli.fails("targets.npy is damaged: it has changed since it was written", "info", tmp_path / "graph", "--verify")


def test_import_guesses_the_format_and_says_so(tmp_path, cli):
    bib = tmp_path / "library.bib"
    bib.write_text("@article{a, title={One of the papers here}, year={2001}}\n@misc{b, note={no title}}\n")
    code, out, err = cli("import", bib, "-o", tmp_path / "c")
    assert code == 0 and "bibtex: 1 file (guessed)" in err
    assert "papers read" in out and "not kept: no title" in out
    code, _, err = cli("import", bib, "-o", tmp_path / "c")
    assert code == 0 and "already holds this corpus" in err


def test_import_as_json_prints_one_object(tmp_path, cli):
    path = tmp_path / "papers.csv"
    path.write_text("id,title,abstract,year,doi\n1,First,Abstract,2001,10.1000/a\n2,Second,,nan,\n,No id,,,\n")
    found = cli.silent_json("import", path, "-o", tmp_path / "c")
    assert (found["papers"], found["abstracts"], found["rejected"]) == (2, 1, {"no id": 1})


def test_merges_are_listed_on_request(tmp_path, cli):
    path = write_jsonl(tmp_path / "p.jsonl", ({"id": id, "title": "T", "doi": "10.1000/x"} for id in "ab"))
    cli.text("import", path, "-o", tmp_path / "c", "--quiet")
    records = [{"id": "b", "file": "p.jsonl"}, {"id": "a", "file": "p.jsonl"}]
    assert cli.json("info", tmp_path / "c", "--merges")["merges"] == [{"paper": "a", "records": records}]


def test_vectors_are_imported_with_their_model(tmp_path, cli):
    records = [{"corpusid": len(vector), "model": "specter_v2", "vector": vector} for vector in ("[0.5, 1]", "[]")]
    found = cli.json("import", write_jsonl(tmp_path / "e.jsonl", records), "--vectors -o", tmp_path / "v")
    assert found["model"] == "specter_v2" and found["records"]["vectors"]["kept"] == 1


def test_audit_finds_and_excludes(corpus, tmp_path, cli):
    sample = cli.json("info", corpus, "--samples 1")["samples"][0]
    record = {"id": "q1", "title": sample["title"].upper(), "year": sample["year"]}
    write_jsonl(tmp_path / "benchmark.jsonl", [record])
    found = cli.json(f"audit {corpus} --against toy={tmp_path}/benchmark.jsonl -o {tmp_path}/clean --exact")
    assert found["excluded"] == 1
    assert cli.json("info", tmp_path / "clean")["papers"] == 299


def test_doctor_downloads_nothing(cli):
    found = cli.json("doctor")
    assert found["downloads"] == [] and found["cores"] >= 1 and set(found["extras"]) >= {"minilm"}
    assert "no command downloads anything" in cli.text("doctor")


def test_derive(corpus, tmp_path, cli):
    out = cli.text(f"derive {corpus} --texts contexts -o {tmp_path}/contexts")
    assert "pairs" in out and "left out: fewer than 2 papers cited" in out
    command = f"derive {corpus} --texts cloze -o {tmp_path}/cloze --set per_paper=1"
    found = cli.json(command)
    assert found["sentences"] == found["papers"] == len(Corpus.open(tmp_path / "cloze")) // 2
    code, out, err = cli(command)  # once more: it already exists
    assert code == 0 and "merging" not in err and "sentences" in out
    code, _, err = cli(f"mine {corpus} --recipe ict -o {tmp_path}/samples")
    assert code == 2 and "recipe ict is for cloze, but" in err and "--texts cloze -o texts/" in err
    cli.text(f"mine {tmp_path}/cloze --recipe ict -o {tmp_path}/samples --quiet")


@mistakes(
    ("info nowhere", "nowhere does not exist"),
    ("import nowhere.bib -o out", "nowhere.bib does not exist"),
    ("audit CORPUS --against csfcube", "NAME=PATH"),
    ("audit CORPUS --against a=CORPUS --against a=CORPUS", "'a' twice"),
    ("info .", "is not an artifact of citeweave"),
    ("synthesize -o .", "is not an artifact of citeweave"),
    ("import x.bib -o out --model specter", "add --vectors"),
    ("synthesize -o out --papers 0", "--papers is 0"),
    ("synthesize -o out --memory lots", "--memory is 'lots'"),
    (
        "derive CORPUS -o out --texts context",
        "--texts is 'context'; it must be one of cloze, contexts, titles. Did you mean 'contexts'?",
    ),
    ("derive CORPUS -o out --texts cloze --set perpaper=1", "Did you mean 'per_paper'?"),
    ("derive CORPUS -o out --texts cloze --set per_paper", "it must be KEY=VALUE, such as per_paper=1"),
    ("derive bare -o out --texts contexts", "has no citing sentences; import a source that has them"),
)
def test_mistakes_are_one_line(corpus, tmp_path, cli, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("not to be replaced")
    if "bare" in words:
        synthesize(tmp_path / "bare", SyntheticOptions(papers=20, contexts=0.0))
    cli.fails(message, words.replace("CORPUS", str(corpus)))
    assert not Path("out").exists()


# --- how every command ends --------------------------------------------------------------------------


def test_ctrl_c_says_how_to_resume(tmp_path):
    words = [sys.executable, "-m", "citeweave", "synthesize", "-o", str(tmp_path / "c"), "--papers", "2000000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not work_folder(tmp_path / "c").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted; run the same command again" in err and "Traceback" not in err


def test_debug_shows_the_traceback(tmp_path):
    words = [sys.executable, "-m", "citeweave", "info", str(tmp_path / "nowhere"), "--debug"]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 1 and "Traceback" in result.stderr and "ArtifactError" in result.stderr


def test_our_own_faults_exit_1_without_traceback(corpus, cli, monkeypatch):
    from citeweave.corpus import corpus as module

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(module, "summarize", broken)
    code, _, err = cli("info", corpus)
    assert code == 1 and "internal error (ZeroDivisionError: a fault of ours)" in err


def test_cli_page_is_up_to_date():
    check = [sys.executable, str(ROOT / "docs" / "generate_cli.py"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
