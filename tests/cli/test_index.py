"""index and change as they are typed, and an index that somebody else made."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.core.artifact import MANIFEST, Manifest, seal_payload
from citeweave.core.files import hash_file, write_json
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.search.index import Index
from citeweave.search.map import make_map
from citeweave.search.state import STATE

from .conftest import mistakes, prepare, write_jsonl

PAPERS = [
    {"id": "a", "title": "we find how models learn", "year": 2001},
    {"id": "b", "title": "the cell \u001b[31mgrows\u202e<b>\r\nin data", "year": 2002},
    {"id": "c", "title": "graphs of citations"},
]
SENTENCE = {"citing": "a", "cited": ["b"], "text": "from data we learn \u001b[2J[CIT].", "intents": ["method"]}


@pytest.fixture(scope="module")
def index(tmp_path_factory, save_bert):
    place = tmp_path_factory.mktemp("search-cli")
    (place / "citations.tsv").write_text("a\tb\n")
    sources = [write_jsonl(place / "papers.jsonl", PAPERS), place / "citations.tsv"]
    import_papers([*sources, write_jsonl(place / "contexts.jsonl", [SENTENCE])], place / "corpus")
    head = (np.eye(32, dtype=np.float32)[::2], np.zeros(16, np.float32))
    save_heads(save_bert(place / "tiny"), AspectHeads(("method",), {"method": (head,)}))
    prepare(f"index {place}/corpus --model {place}/tiny --contexts --device cpu -o {place}/index")
    return place / "index"


def test_what_search_prints(index, cli):
    out = cli.text("search", index, "--paper a --aspect method")
    shown = sorted(line.split("  ", 2)[2] for line in out.splitlines())
    assert shown == ["----  graphs of citations  c", "2002  the cell [31mgrows<b> in data  b"]
    found = cli.json("search", index, "'how models learn' --count 1 --device cpu")
    assert found["query"] == {"text": "how models learn"} and found["aspect"] == ""
    (hit,) = found["hits"]
    assert hit.keys() >= {"id", "title", "year", "score", "row", "matches", "authors", "venue", "doi"}


def test_info_of_an_index(index, cli, tmp_path):
    """Counts, model, spaces, generation, size and map; the same facts as text, and verified on request."""
    found = cli.silent_json("info", index)
    assert (found["kind"], found["generation"], found["papers"], found["with_vector"]) == ("index", 1, 3, 3)
    assert found["years"] == {"2001": 1, "2002": 1, "unknown": 1} and found["with_year"] == 2
    assert (found["dimension"], found["dtype"]) == (32, "float16")
    assert (found["aspects"], found["aspect_dimensions"]) == (["method"], [16])
    assert found["model"] == "tiny" and found["revision"] and found["changed_at"].endswith("Z")
    assert (found["map"], found["earlier_maps"], found["codes"], found["sentences"]) == (None, 0, [], 1)
    assert found["bytes_on_disk"] == sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    out = cli.text("info", index, "--verify")
    for row in (r"years +2001 to 2002", r"aspect spaces +method \(16\)", r"map +none yet", r"generation +1"):
        assert re.search(row, out), row
    assert "every file is as it was written" in out and "verified" not in found
    folder = Path(shutil.copytree(index, tmp_path / "index"))
    make_map(Index.open(folder))
    assert cli.json("info", folder)["map"] == {"papers": 3, "groups": 1}
    assert "3 papers in 1 group" in cli.text("info", folder)
    (tmp_path / "ids").write_text("c\n")
    cli.text("change", folder, "--delete", tmp_path / "ids")
    found = cli.json("info", folder)
    assert (found["generation"], found["papers"], found["map"], found["earlier_maps"]) == (2, 2, None, 1)
    assert "of an earlier generation" in cli.text("info", folder)
    cli.text("index", index.parent / "corpus", "--words-only -o", tmp_path / "words")
    found = cli.json("info", tmp_path / "words")
    assert (found["model"], found["dimension"], found["not_embedded"]) == ("", 0, 3)
    assert "none: words only" in cli.text("info", tmp_path / "words")


def seal_again(path: Path) -> None:
    """Make the manifest of a generation and the state of the index fit a changed file, as an attacker would."""
    folder = path.parent.parent
    value = json.loads((folder / MANIFEST).read_bytes())
    value["files"][path.relative_to(folder).as_posix()]["sha256"] = hash_file(path)
    manifest = Manifest(*(value[key] for key in ("kind", "version", "recipe", "facts", "files", "made")))
    write_json(folder / MANIFEST, manifest.as_json())
    state = json.loads((folder.parent.parent / STATE).read_bytes())
    state["hash"] = manifest.hash
    state.pop("seal")
    write_json(folder.parent.parent / STATE, seal_payload(state))


def test_an_untrusted_index(index, cli, tmp_path):
    """Titles that import would have cleaned, in a folder that somebody else made."""
    folder = Path(shutil.copytree(index, tmp_path / "index"))
    (titles,) = folder.glob("generations/*/papers/title.utf8")
    titles.write_bytes(titles.read_bytes().replace(b"graphs", b"\x1b[2J\r\n"))
    cli.fails("has changed since it was written", "search", folder, "--paper a")
    seal_again(titles)
    out = cli.text("search", folder, "--paper a")
    assert len(out.splitlines()) == 2 and all(character.isprintable() for character in out.replace("\n", ""))
    titles.write_bytes(titles.read_bytes().replace(b"cell", b"\xff\xfe\xff\xfe"))
    seal_again(titles)
    cli.fails("the file is damaged", "search", folder, "--paper a")


def test_what_to_cite(index, cli):
    words = ("search", index, "--cite 'from data we learn (?).' --intent method --device cpu")
    out = cli.text(*words)
    lines = out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.endswith("  b")]
    assert lines[at + 1].endswith("  a (method): from data we learn [2J[CIT].") and "\u001b" not in out
    found = cli.json(*words, "--draft 'graphs of citations'")
    (hit,) = [hit for hit in found["hits"] if hit["id"] == "b"]
    assert hit["share"] == 1 and hit["evidence"]["citing"] == "a" and hit["evidence"]["intents"] == ["method"]
    assert found["aspect"] == "method" and found["sentences"] == 1


@mistakes(
    ("search @index", "give exactly one thing to search for"),
    ("search @index words --paper a", "give exactly one thing to search for"),
    ("search @index --paper aa", "paper 'aa' is not in"),
    ("search @index --paper a --aspect methods", "Did you mean 'method'?"),
    ("search @index --paper a --intent method", "go with --cite; did you mean --aspect?"),
    ("search @index --cite words --aspect method", "the space is that of --intent"),
    ("search @index --paper a --count 0", "--count is 0"),
    ("search @corpus words", "holds corpus, not index"),
    (
        "index @corpus -o @index --contexts --max-contexts 3",
        "was made with --contexts --max-contexts 10; give the same",
    ),
    ("index @corpus -o @index --dtype float32 --device cpu", "was made with --dtype float16; give the same"),
    ("index @corpus --model @tiny -o @i --intents @", "is not an artifact of citeweave"),
    ("index @corpus --model @tiny -o @i --contexts --max-contexts 0", "--max-contexts is 0"),
    ("change @index", "say what to change"),
    ("change @index --words-only --fill", "go with --add"),
    ("change @index --delete nowhere", "nowhere cannot be read"),
    ("change @index --add nowhere", "nowhere does not exist"),
)
def test_mistakes_are_one_line(index, cli, words, message):
    cli.fails(message, words.replace("@", f"{index.parent}/"))


def test_change(index, cli, tmp_path):
    """A newer corpus is brought in by `index` itself; `change` deletes, adds and fills."""
    folder = Path(shutil.copytree(index, tmp_path / "index"))
    newer = [*PAPERS[:1], {"id": "d", "title": "data of citations"}, {**PAPERS[2], "year": 2003}]
    import_papers([write_jsonl(tmp_path / "papers.jsonl", newer)], tmp_path / "corpus")
    command = f"index {tmp_path}/corpus --model {index.parent}/tiny -o {folder} --contexts --device cpu"
    # a no longer cites b, and c has a year
    assert cli.json(command)["changed"] == {"added": 1, "updated": 2, "deleted": 1, "unchanged": 0}
    assert cli.json(f"{command} --sentences")["with_sentences"] > 0
    kept = cli.json(f"index {tmp_path}/corpus -o {folder} --device cpu")  # model, contexts and sentences are kept
    assert kept["changed"] == {"added": 0, "updated": 0, "deleted": 0, "unchanged": 3} and kept["with_sentences"] > 0
    cli.json(f"index {index.parent}/corpus -o {folder} --device cpu")
    again = cli.json(f"index {tmp_path}/corpus -o {folder} --device cpu")  # new papers get what the others have
    assert again["changed"]["added"] == 1 and again["with_sentences"] == kept["with_sentences"] and "mentions" in again
    (tmp_path / "ids").write_text("d\n\nnobody\n")
    found = cli.json(f"change {folder} --delete {tmp_path}/ids --device cpu")
    assert found["changed"] == {"deleted": 1, "not_found": 1} and found["papers"] == 2
    out = cli.text(
        f"change {folder} --add {index.parent}/corpus --words-only --fill --compact --device cpu"
    )  # an option of old
    assert out.startswith(f"{folder}: 32 dimensions (float16) of tiny, aspects method, computed by torch\npapers")
    assert "no vector" not in out
    found = cli.json(f"search {folder} --paper b --count 2")
    assert {hit["id"] for hit in found["hits"]} == {"a", "c"}
