"""The command line as a user types it: output, exit codes, errors without tracebacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.publish import work_folder

from .conftest import run

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(capsys, "synthesize", "-o", str(tmp_path / "corpus"), "--papers", "300", "--quiet")[0] == 0
    return tmp_path / "corpus"


def info_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(capsys, "info", *words, "--json")
    assert code == 0 and err == ""
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_synthesize_says_that_it_is_made_up(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = info_of(capsys, str(corpus))
    assert found["made_up"] is True and found["papers"] == 300
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert manifest["facts"]["made_up"] is True and "no paper" in manifest["facts"]["note"]
    assert "synthetic" in run(capsys, "info", str(corpus))[1]


def test_info_as_json_has_the_promised_keys(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = info_of(capsys, str(corpus), "--samples", "2")
    for key in ("papers", "abstracts", "citations", "contexts"):
        assert isinstance(found[key], int) and found[key] > 0, key
    assert isinstance(found["rejected"], dict)
    assert sum(found["years"].values()) == 300
    assert len(found["samples"]) == 2 and found["samples"][0]["id"] == "syn:000000"
    assert found["references_per_paper"]["mean"] == pytest.approx(found["citations"] / 300, abs=0.001)


def test_info_as_text(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", str(corpus))
    assert code == 0 and "papers" in out and "syn:000000" in out and "Traceback" not in out


def test_info_verifies_whatever_was_made(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "graph"
    assert run(capsys, "graph", str(corpus), "-o", str(graph))[0] == 0
    code, out, _ = run(capsys, "info", str(graph), "--verify")
    assert code == 0 and "graph" in out and "every file is as it was written" in out
    assert info_of(capsys, str(graph))["kind"] == "graph"
    path = graph / "cited" / "targets.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    code, _, err = run(capsys, "info", str(graph), "--verify")
    assert code == 2 and "targets.npy is damaged: it has changed since it was written" in err


def test_import_guesses_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bib = tmp_path / "library.bib"
    bib.write_text("@article{a, title={One of the papers here}, year={2001}}\n@misc{b, note={no title}}\n")
    code, out, err = run(capsys, "import", str(bib), "-o", str(tmp_path / "c"))
    assert code == 0
    assert "bibtex: 1 file (guessed)" in err
    assert "papers read" in out and "not kept: no title" in out
    code, _, err = run(capsys, "import", str(bib), "-o", str(tmp_path / "c"))
    assert code == 0 and "already holds this corpus" in err


def test_import_as_json_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "papers.csv"
    path.write_text("id,title,abstract,year,doi\n1,First,Abstract,2001,10.1000/a\n2,Second,,nan,\n,No id,,,\n")
    code, out, err = run(capsys, "import", str(path), "-o", str(tmp_path / "c"), "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["papers"], found["abstracts"], found["rejected"]) == (2, 1, {"no id": 1})


def test_merges_are_listed_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "title": "T", "doi": "10.1000/x"}\n{"id": "b", "title": "T", "doi": "10.1000/x"}\n')
    run(capsys, "import", str(path), "-o", str(tmp_path / "c"), "--quiet")
    found = info_of(capsys, str(tmp_path / "c"), "--merges")
    assert found["merges"] == [
        {"paper": "a", "records": [{"id": "b", "file": "p.jsonl"}, {"id": "a", "file": "p.jsonl"}]}
    ]


def test_audit_finds_and_excludes(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = info_of(capsys, str(corpus), "--samples", "1")["samples"][0]
    benchmark = tmp_path / "benchmark.jsonl"
    benchmark.write_text(json.dumps({"id": "q1", "title": sample["title"].upper(), "year": sample["year"]}) + "\n")
    words = ["audit", str(corpus), "--against", f"toy={benchmark}", "-o", str(tmp_path / "clean"), "--exact", "--json"]
    code, out, _ = run(capsys, *words)
    assert code == 0 and json.loads(out)["excluded"] == 1
    assert info_of(capsys, str(tmp_path / "clean"))["papers"] == 299


def test_doctor_downloads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert code == 0 and found["downloads"] == [] and found["cores"] >= 1
    assert set(found["extras"]) >= {"minilm"}
    assert "no command downloads anything" in run(capsys, "doctor")[1]


def test_vectors_are_imported_with_their_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "embeddings.jsonl"
    path.write_text(
        '{"corpusid": 1, "model": "specter_v2", "vector": "[0.5, 1.0]"}\n{"corpusid": 2, "model": "specter_v2", "vector": "[]"}\n'
    )
    code, out, _ = run(capsys, "import", str(path), "--vectors", "-o", str(tmp_path / "v"), "--json")
    found = json.loads(out)
    assert code == 0 and found["model"] == "specter_v2" and found["records"]["vectors"]["kept"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "nowhere"], "nowhere does not exist"),
        (["import", "nowhere.bib", "-o", "out"], "nowhere.bib does not exist"),
        (["audit", "CORPUS", "--against", "csfcube"], "NAME=PATH"),
        (["audit", "CORPUS", "--against", "a=CORPUS", "--against", "a=CORPUS"], "'a' twice"),
        (["info", "."], "is not an artifact of citeweave"),
        (["synthesize", "-o", "."], "is not an artifact of citeweave"),
        (["import", "x.bib", "-o", "out", "--model", "specter"], "add --vectors"),
        (["synthesize", "-o", "out", "--papers", "0"], "--papers is 0"),
        (["synthesize", "-o", "out", "--memory", "lots"], "--memory is 'lots'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *(str(corpus) if word == "CORPUS" else word for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
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


def test_samples_beyond_the_corpus_are_all_papers(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(info_of(capsys, str(corpus), "--samples", "1000")["samples"]) == 300
    assert info_of(capsys, str(corpus), "--samples", "-1")["samples"] == []


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "citeweave", "info", str(tmp_path / "nowhere"), "--debug"]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 1 and "Traceback" in result.stderr and "ArtifactError" in result.stderr


def test_our_own_faults_exit_1_without_traceback(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from citeweave.corpus import summary

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(summary, "summarize", broken)
    code, _, err = run(capsys, "info", str(corpus))
    assert code == 1 and "internal error (ZeroDivisionError: a fault of ours)" in err


def test_cli_page_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "docs" / "generate_cli.py"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
