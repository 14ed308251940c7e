"""index and search as they are typed: what is printed, hostile titles, and mistakes in one line with exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.cli import main
from citeweave.core.artifact import MANIFEST, Manifest, seal_payload
from citeweave.core.files import hash_file, write_json
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.search.state import STATE

from .conftest import run

PAPERS = [
    {"id": "a", "title": "we find how models learn", "year": 2001},
    {"id": "b", "title": "the cell \u001b[31mgrows\u202e<b>\r\nin data", "year": 2002},
    {"id": "c", "title": "graphs of citations"},
]
SENTENCE = {"citing": "a", "cited": ["b"], "text": "from data we learn \u001b[2J[CIT].", "intents": ["method"]}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Path:
    place = tmp_path_factory.mktemp("search-cli")
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in PAPERS))
    (place / "citations.tsv").write_text("a\tb\n")
    (place / "contexts.jsonl").write_text(json.dumps(SENTENCE) + "\n")
    model = save_bert(place / "tiny")
    head = (np.eye(32, dtype=np.float32)[::2], np.zeros(16, np.float32))
    save_heads(model, AspectHeads(("method",), {"method": (head,)}))
    import_papers([place / name for name in ("papers.jsonl", "citations.tsv", "contexts.jsonl")], place / "corpus")
    command = ["index", str(place / "corpus"), "--model", str(model), "--contexts", "--device", "cpu", "--quiet"]
    with pytest.raises(SystemExit, match="^0$"):
        main([*command, "-o", str(place / "index")])
    return place / "index"


def test_what_is_printed(index, capsys):
    code, out, _ = run(capsys, "search", index, "--paper", "a", "--aspect", "method")
    assert code == 0
    shown = sorted(line.split("  ", 2)[2] for line in out.splitlines())
    assert shown == ["----  graphs of citations  c", "2002  the cell [31mgrows<b> in data  b"]
    code, out, _ = run(capsys, "search", index, "how models learn", "--count", 1, "--device", "cpu", "--json")
    found = json.loads(out)
    assert code == 0 and found["query"] == {"text": "how models learn"} and found["aspect"] == ""
    assert found["hits"][0].keys() == {"id", "title", "year", "score", "row", "matches"} and len(found["hits"]) == 1


def seal_again(path: Path) -> None:
    """Make the manifest of a segment and the state of the index fit a changed file, as one who means harm would."""
    folder = path.parent.parent
    told = json.loads((folder / MANIFEST).read_bytes())
    told["files"][path.relative_to(folder).as_posix()]["sha256"] = hash_file(path)
    manifest = Manifest(*(told[key] for key in ("kind", "version", "recipe", "facts", "files", "made")))
    write_json(folder / MANIFEST, manifest.as_json())
    state = json.loads((folder.parent.parent / STATE).read_bytes())
    state["segments"][0]["hash"] = manifest.hash
    state.pop("seal")
    write_json(folder.parent.parent / STATE, seal_payload(state))


def test_an_index_of_a_stranger(index, capsys, tmp_path):
    """Titles that import would have cleaned, in a folder that somebody else made."""
    folder = Path(shutil.copytree(index, tmp_path / "index"))
    (titles,) = folder.glob("segments/*/papers/title.utf8")
    titles.write_bytes(titles.read_bytes().replace(b"graphs", b"\x1b[2J\r\n"))
    code, _, err = run(capsys, "search", folder, "--paper", "a")
    assert code == 2 and "has changed since it was written" in err
    seal_again(titles)
    code, out, _ = run(capsys, "search", folder, "--paper", "a")
    assert code == 0 and len(out.splitlines()) == 2 and all(sign.isprintable() for sign in out.replace("\n", ""))
    titles.write_bytes(titles.read_bytes().replace(b"cell", b"\xff\xfe\xff\xfe"))
    seal_again(titles)
    code, _, err = run(capsys, "search", folder, "--paper", "a")
    assert code == 2 and "the file is damaged" in err


def test_what_to_cite(index, capsys):
    ask = ("search", index, "--cite", "from data we learn (?).", "--intent", "method", "--device", "cpu")
    code, out, _ = run(capsys, *ask)
    lines = out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.endswith("  b")]
    assert code == 0 and lines[at + 1].endswith("  a (method): from data we learn [2J[CIT].") and "\u001b" not in out
    code, out, _ = run(capsys, *ask, "--draft", "graphs of citations", "--json")
    (hit,) = [hit for hit in json.loads(out)["hits"] if hit["id"] == "b"]
    assert hit["share"] == 1 and hit["evidence"]["citing"] == "a" and hit["evidence"]["intents"] == ["method"]
    assert json.loads(out)["aspect"] == "method" and json.loads(out)["sentences"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to search for"),
        (["words", "--paper", "a"], "say what to search for"),
        (["--paper", "aa"], "paper 'aa' is not in"),
        (["--paper", "a", "--aspect", "methods"], "Did you mean 'method'?"),
        (["--paper", "a", "--intent", "method"], "go with --cite; did you mean --aspect?"),
        (["--cite", "words", "--aspect", "method"], "the space is that of --intent"),
        (["--paper", "a", "--count", "0"], "--count is 0"),
    ],
)
def test_mistakes_of_search(index, capsys, arguments, said):
    code, out, err = run(capsys, "search", index, *arguments)
    assert code == 2 and not out and said in err and len(err.splitlines()) == 1


def test_mistakes_of_index(index, capsys, tmp_path):
    corpus, model = index.parent / "corpus", index.parent / "tiny"
    code, _, err = run(capsys, "index", corpus, "--model", model, "-o", index, "--device", "cpu")
    assert code == 2 and "other inputs or options" in err
    code, _, err = run(capsys, "index", corpus, "--model", model, "-o", tmp_path / "i", "--intents", tmp_path)
    assert code == 2 and "is not an artifact of citeweave" in err
    code, _, err = run(
        capsys, "index", corpus, "--model", model, "-o", tmp_path / "i", "--contexts", "--max-contexts", 0
    )
    assert code == 2 and "--max-contexts is 0" in err
    code, _, err = run(capsys, "search", corpus, "words")
    assert code == 2 and "holds corpus, not index" in err


def test_change(index, capsys, tmp_path):
    """A newer corpus is brought in by `index` itself; `change` deletes, adds and compacts."""
    folder, model = Path(shutil.copytree(index, tmp_path / "index")), index.parent / "tiny"
    newer = [*PAPERS[:1], {"id": "d", "title": "data of citations"}, {**PAPERS[2], "year": 2003}]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in newer))
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus")
    ask = ("--model", model, "-o", folder, "--contexts", "--device", "cpu", "--json")
    code, out, _ = run(capsys, "index", tmp_path / "corpus", *ask)
    # a no longer cites b, and c has a year
    assert code == 0 and json.loads(out)["changed"] == {"added": 1, "updated": 2, "deleted": 1, "unchanged": 0}
    code, out, _ = run(capsys, "index", tmp_path / "corpus", *ask)
    assert code == 0 and json.loads(out)["changed"] == {"added": 0, "updated": 0, "deleted": 0, "unchanged": 3}
    (tmp_path / "ids").write_text("d\n\nnobody\n")
    code, out, _ = run(capsys, "change", folder, "--delete", tmp_path / "ids", "--device", "cpu", "--json")
    told = json.loads(out)
    assert code == 0 and told["changed"] == {"deleted": 1, "not_found": 1} and told["papers"] == 2
    code, out, _ = run(
        capsys,
        "change",
        folder,
        "--add",
        index.parent / "corpus",
        "--words-only",
        "--fill",
        "--compact",
        "--device",
        "cpu",
    )
    assert code == 0 and out.startswith(
        f"{folder}: 32 dimensions (float16) of tiny, aspects method, computed by torch\npapers"
    )
    assert "no vector" not in out
    code, out, _ = run(capsys, "search", folder, "--paper", "b", "--count", 2, "--json")
    assert code == 0 and {hit["id"] for hit in json.loads(out)["hits"]} == {"a", "c"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to change"),
        (["--words-only", "--fill"], "go with --add"),
        (["--delete", "nowhere"], "nowhere cannot be read"),
        (["--add", "nowhere"], "nowhere does not exist"),
    ],
)
def test_mistakes_of_change(index, capsys, arguments, said):
    code, out, err = run(capsys, "change", index, *arguments)
    assert code == 2 and not out and said in err and len(err.splitlines()) == 1
