"""Commands with addresses in place of folders: the same results as with folders, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from citeweave.cli import main
from citeweave.corpus.corpus import Corpus
from citeweave.remote.fetch import fetch

from .conftest import KEY, SECRET, content


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert KEY not in captured.out + captured.err
    return code, captured.out, captured.err


def papers(path: Path, first: int, last: int) -> Path:
    lines = [
        json.dumps({"id": f"x:{n}", "title": f"Rain over mountain number {n}", "abstract": "Clouds form."})
        for n in range(first, last)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def upload(bucket: Any, key: str, path: Path) -> None:
    bucket.put_object(Key=key, Body=path.read_bytes())


def test_import_from_a_pattern_to_an_address(bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [papers(tmp_path / "dump" / f"{n}.jsonl", 10 * n, 10 * n + 10) for n in range(3)]
    for path in parts:
        upload(bucket, f"dump/{path.name}", path)
    bucket.put_object(Key="dump/README", Body=b"nothing")
    address = f"s3://{bucket.name}/out/corpus"
    code, out, err = run(capsys, "import", f"s3://{bucket.name}/dump/*.jsonl", "-o", address)
    assert code == 0, err
    assert f"{address}: 30 papers; `citeweave info {address}` shows more" in out
    assert "sent" in err
    assert str(tmp_path / "cache") not in out + err
    assert run(capsys, "import", *parts, "-o", tmp_path / "corpus")[0] == 0
    assert Corpus.open(fetch(address)).hash == Corpus.open(tmp_path / "corpus").hash
    code, out, _ = run(capsys, "info", address, "--json")
    assert code == 0
    assert json.loads(out)["papers"] == 30
    code, _, err = run(capsys, "import", *parts, "-o", address)
    assert code == 0
    assert "already holds this corpus" in err
    assert "all already there" in err
    code, _, err = run(capsys, "import", parts[0], "-o", address)
    assert code == 2
    assert f"{address} holds an artifact made from other inputs" in err
    code, out, err = run(capsys, "import", parts[0], "-o", address, "--overwrite", "--json")
    assert code == 0, err
    assert json.loads(out)["output"] == address
    assert len(Corpus.open(fetch(address))) == 10


def test_a_folder_and_a_file_as_inputs(bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upload(bucket, "dump/a.jsonl", papers(tmp_path / "a.jsonl", 0, 5))
    upload(bucket, "dump/b.jsonl", papers(tmp_path / "b.jsonl", 5, 9))
    for inputs, count in ((["dump"], 9), (["dump/a.jsonl"], 5)):
        places = [f"s3://{bucket.name}/{key}" for key in inputs]
        code, _, err = run(capsys, "import", *places, "-o", tmp_path / f"c{count}", "--quiet")
        assert code == 0, err
        assert len(Corpus.open(tmp_path / f"c{count}")) == count
    code, _, err = run(capsys, "import", f"file://{tmp_path}/a.jsonl", "-o", tmp_path / "c_file")
    assert code == 0, err


def test_an_index_is_searched_and_grows(bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, first, last in (("one", 0, 40), ("two", 40, 44)):
        run(capsys, "import", papers(tmp_path / f"{name}.jsonl", first, last), "-o", f"s3://{bucket.name}/{name}")
    index = f"s3://{bucket.name}/index"
    made = ("--model", "minilm", "--words-only")
    code, _, err = run(capsys, "index", f"s3://{bucket.name}/one", *made, "-o", index)
    assert code == 0, err
    code, out, err = run(capsys, "search", index, "mountain 41", "--by", "words")
    assert code == 0, err
    assert "number 41" not in out
    size = sum(item.size for item in bucket.objects.filter(Prefix="index/segments/"))
    code, _, err = run(capsys, "change", index, "--add", f"s3://{bucket.name}/two", "--words-only")
    assert code == 0, err
    grown = sum(item.size for item in bucket.objects.filter(Prefix="index/segments/")) - size
    rest = sum(item.size for item in bucket.objects.filter(Prefix="index/") if "/segments/" not in item.key)
    sent = int(err.split(" sent, ")[1].split(" bytes")[0].replace(",", ""))
    assert grown <= sent <= grown + rest, "the new segment and the state travel, the old segment does not"
    code, out, err = run(capsys, "search", index, "mountain 41", "--by", "words")
    assert code == 0, err
    assert "number 41" in out
    code, _, err = run(capsys, "change", f"s3://{bucket.name}/nothing", "--compact")
    assert code == 2
    assert "does not exist" in err


def test_copy_and_cache(bucket: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"s3://{bucket.name}/thing"
    assert (
        run(capsys, "copy", folder, address)[1]
        == f"{address}: 3 files, {sum(map(len, content(folder).values())):,} bytes; 3 transferred\n"
    )
    code, out, _ = run(capsys, "copy", address, tmp_path / "back", "--json")
    assert code == 0
    assert json.loads(out)["files"] == 3
    assert content(tmp_path / "back") == content(folder)
    code, _, err = run(capsys, "copy", address, tmp_path / "back")
    assert code == 2
    assert "add --overwrite" in err
    fetch(address)
    assert f"{address}: 5" in run(capsys, "cache")[1]
    assert json.loads(run(capsys, "cache", "--json")[1])["kept"][0]["versions"] == 1
    assert "removed" in run(capsys, "cache", "--clear")[1]
    assert run(capsys, "cache")[1].endswith("cloud: 0 bytes\n")


def test_mistakes_are_one_line(bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upload(bucket, "dump/a.jsonl", papers(tmp_path / "a.jsonl", 0, 5))
    place = f"s3://{bucket.name}"
    for arguments, said in (
        (["info", f"{place}/nothing"], "no object and no folder"),
        (["info", f"{place}/dump"], f"{place}/dump is not an artifact"),
        (["info", f"{place}/dump/*.jsonl"], "is no|is not"),
        (["info", "s3://nobody-has-it/x"], "there is no bucket"),
        (["info", f"s3://{KEY}:{SECRET}@b/x"], "must not hold keys"),
        (["import", tmp_path / "a.jsonl", "-o", f"{place}/*"], "is a pattern"),
        (["import", tmp_path / "a.jsonl", "-o", "s3://nobody-has-it/x"], "there is no bucket"),
        (["search", place, "x"], "names only a bucket"),
        (["search", tmp_path, "x", "--export", f"{place}/x.bib"], "--export is s3:"),
        (["explore", tmp_path / "a.bib", "--folder", f"{place}/work"], "--folder is s3:"),
        (["store", tmp_path, "--milvus", f"{place}/papers.db"], "--milvus is s3:"),
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 2, (arguments, err)
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert any(part in err for part in said.split("|")), err


def test_several_processes_do_not_write_to_an_address(
    bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run(capsys, "train", tmp_path / "corpus", "--samples", tmp_path, "-o", f"s3://{bucket.name}/model")
    assert code == 2
    assert f"-o is s3://{bucket.name}/model, but several processes were started" in err


def test_copy_of_a_folder_that_is_named_as_a_file_address(
    bucket: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "copy", f"file://{folder}", f"s3://{bucket.name}/thing")
    assert code == 0, err
    code, _, err = run(capsys, "copy", f"s3://{bucket.name}/thing", f"file://{tmp_path}/back")
    assert code == 0, err
    assert content(tmp_path / "back") == content(folder)


def test_texts_that_look_like_addresses_are_texts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "search", tmp_path, "s3://some/where")
    assert code == 2
    assert "is not an index" in err


def test_a_store_of_lance_on_object_storage(bucket: Any) -> None:
    pytest.importorskip("lancedb")
    import numpy as np

    from citeweave.core.errors import ArtifactError as ArtifactError
    from citeweave.core.errors import UserError
    from citeweave.search.store import open_store
    from citeweave.search.store_protocol import Attributes
    from citeweave.vectors.vectors import Provenance

    model = Provenance("demo", "r1", "", dimension=2, dtype="float32", source="made up")
    name = f"lance:s3://{bucket.name}/papers.lance"
    with pytest.raises(UserError, match="holds no store"):
        open_store(name)
    store = open_store(name, model)
    store.add(["old", "new"], np.array([[1, 0], [3, 4]]), Attributes.unknown(2))
    store.add(["old", "newer"], np.array([[0, 1], [1, 1]]), Attributes.unknown(2))
    store.delete(["new"])
    store.compact()
    again = open_store(name)
    assert again.search(np.array([[0.0, 2.0]]), 2).ids == [["old", "newer"]]
    bucket.put_object(Key="mine/x", Body=b"x")
    with pytest.raises(ArtifactError, match="is not a store of citeweave"):
        open_store(f"lance:s3://{bucket.name}/mine", model)
    with pytest.raises(UserError, match="there is no bucket"):
        open_store("lance:s3://nobody-has-it/x", model)
