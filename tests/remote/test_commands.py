"""Commands with addresses in place of folders: the same results as with folders, over HTTP."""

import json
import re
import shlex

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError
from citeweave.corpus.corpus import Corpus
from citeweave.remote.fetch import fetch

from ..cli.conftest import run as typed
from ..conftest import refused
from .conftest import KEY, SECRET, content


@pytest.fixture
def run(capsys, bucket):
    """Exit code, standard output and standard error of a command, in which s3: stands for the bucket."""

    def command(line):
        code, out, err = typed(capsys, *shlex.split(re.sub("s3:/(?=[^/]| |$)", f"s3://{bucket.name}/", line)))
        assert SECRET not in out + err and KEY not in out + err
        return code, out, err

    return command


@pytest.fixture
def works(run):
    def command(line):
        code, out, err = run(line)
        assert code == 0, err
        return out, err

    return command


@pytest.fixture
def papers(bucket, tmp_path):
    """Papers with these numbers, as a file here and as an object."""

    def write(key, first, last):
        records = [
            {"id": f"x:{n}", "title": f"Rain over mountain number {n}", "abstract": "Clouds form."}
            for n in range(first, last)
        ]
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        bucket.put_object(Key=key, Body=path.read_bytes())
        return path

    return write


def test_import_from_a_pattern_to_an_address(bucket, papers, run, works, tmp_path):
    parts = [papers(f"dump/{n}.jsonl", 10 * n, 10 * n + 10) for n in range(3)]
    bucket.put_object(Key="dump/README", Body=b"nothing")
    address = f"s3://{bucket.name}/corpus"
    out, err = works("import s3:/dump/*.jsonl -o s3:/corpus")
    assert f"{address}: 30 papers; `citeweave info {address}` shows more" in out
    assert "sent" in err and str(tmp_path / "cache") not in out + err
    here = " ".join(map(str, parts))
    works(f"import {here} -o {tmp_path}/corpus")
    assert Corpus.open(fetch(address)).hash == Corpus.open(tmp_path / "corpus").hash
    assert json.loads(works("info s3:/corpus --json")[0])["papers"] == 30
    _, err = works(f"import {here} -o s3:/corpus")
    assert "already holds this corpus" in err and "all already there" in err
    code, _, err = run(f"import {parts[0]} -o s3:/corpus")
    assert code == 2 and f"{address} holds an artifact made from other inputs" in err
    out, _ = works(f"import {parts[0]} -o s3:/corpus --overwrite --json")
    assert json.loads(out)["output"] == address and len(Corpus.open(fetch(address))) == 10
    # a folder and a file as inputs
    papers("lists/a.jsonl", 0, 5), papers("lists/b.jsonl", 5, 9)
    for at, (source, count) in enumerate((("s3:/lists", 9), ("s3:/lists/a.jsonl", 5), (f"file://{parts[0]}", 10))):
        works(f"import {source} -o {tmp_path}/{at} --quiet")
        assert len(Corpus.open(tmp_path / str(at))) == count


def test_an_index_is_searched_and_grows(bucket, papers, run, works):
    for name, first, last in (("one", 0, 40), ("two", 40, 44)):
        works(f"import {papers(f'{name}.jsonl', first, last)} -o s3:/{name}")
    works("index s3:/one --model minilm --words-only -o s3:/index")
    assert "number 41" not in works("search s3:/index 'mountain 41' --by words")[0]
    works("change s3:/index --add s3:/two --words-only")
    listed = json.loads(bucket.Object("index/citeweave-objects.json").get()["Body"].read())["files"]
    objects = {item.key for item in bucket.objects.filter(Prefix="index/generations/") if not item.key.endswith("/")}
    assert objects == {f"index/{file['at']}" for file in listed.values() if file["at"].startswith("generations/")}
    assert "number 41" in works("search s3:/index 'mountain 41' --by words")[0]
    code, _, err = run("change s3:/nothing --fill")
    assert code == 2 and "does not exist" in err


def test_copy_and_cache(address, folder, tmp_path, run, works):
    size = sum(map(len, content(folder).values()))
    assert works(f"copy {folder} s3:/thing")[0] == f"{address}: 3 files, {size:,} bytes; 3 transferred\n"
    assert json.loads(works(f"copy s3:/thing {tmp_path}/back --json")[0])["files"] == 3
    assert content(tmp_path / "back") == content(folder)
    code, _, err = run(f"copy s3:/thing {tmp_path}/back")
    assert code == 2 and "add --overwrite" in err
    works(f"copy file://{folder} s3:/two")
    works(f"copy s3:/two file://{tmp_path}/two")
    assert content(tmp_path / "two") == content(folder)
    fetch(address)
    assert f"{address}: 5" in run("cache")[1]
    assert json.loads(run("cache --json")[1])["kept"][0]["versions"] == 1
    assert "versions, removed" in run("cache --clear")[1]
    assert run("cache")[1].endswith("cache: 0 bytes\n")


MISTAKES = [
    ("info s3:/nothing", "no object and no folder"),
    ("info s3:/dump", "/dump is not an artifact"),
    ("info s3:/dump/*.jsonl", "is not|is no"),
    (f"info s3://{KEY}:{SECRET}@b/x", "must not hold keys"),
    ("import @/dump/a.jsonl -o s3:/*", "is a pattern"),
    ("import @/dump/a.jsonl -o s3://nobody-has-it/x", "there is no bucket"),
    ("search s3:/ x", "names only a bucket"),
    ("search @ x --export s3:/x.bib", "--export is s3:"),
    ("explore @/a.bib --folder s3:/work", "--folder is s3:"),
    ("store @ --milvus s3:/papers.db", "--milvus is s3:"),
    ("search @ s3://some/where", "is not an index"),  # a text that looks like an address is a text
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_mistakes_are_one_line(papers, run, tmp_path, line, message):
    papers("dump/a.jsonl", 0, 5)
    code, _, err = run(line.replace("@", str(tmp_path)) if KEY not in line else line)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert any(part in err for part in message.split("|")), err


def test_several_processes_do_not_write_to_an_address(bucket, run, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run(f"train {tmp_path}/corpus --samples {tmp_path} -o s3:/model")
    assert code == 2 and f"-o is s3://{bucket.name}/model, but several processes were started" in err


def test_a_store_of_lance_on_object_storage(bucket):
    pytest.importorskip("lancedb")
    from citeweave.search.databases import open_store
    from citeweave.vectors.vectors import Provenance

    model = Provenance("demo", "r1", "", dimension=2, dtype="float32", source="synthetic")
    name = f"lance:s3://{bucket.name}/papers.lance"
    refused("holds no store", open_store, name)
    store = open_store(name, model)
    store.add(["old", "new"], np.array([[1, 0], [3, 4]]))
    store.add(["old", "newer"], np.array([[0, 1], [1, 1]]))
    store.delete(["new"])
    store.compact()
    assert open_store(name).search(np.array([[0.0, 2.0]]), 2).ids == [["old", "newer"]]
    bucket.put_object(Key="mine/x", Body=b"x")
    refused("is not a store of citeweave", open_store, f"lance:s3://{bucket.name}/mine", model, error=ArtifactError)
    refused("there is no bucket", open_store, "lance:s3://nobody-has-it/x", model)
