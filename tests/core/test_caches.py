"""The cache of a machine: what is counted, what is removed, and what stays as nobody knows who wrote it."""

from citeweave.core.artifact import new_artifact
from citeweave.core.caches import clear_parts, list_parts


def test_only_what_citeweave_wrote_is_counted_and_removed(tmp_path):
    with new_artifact(tmp_path / "vectors" / "1f0c2a", "vectors", 1, {}) as writer:
        (writer.folder / "matrix.npy").write_bytes(b"12345")
        writer.finish()
    for name, text in {
        "runtimes/e612a8580d1c.json": "{}",
        "runtimes/notes.json": "mine",
        "queries/mine/a": "mine",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "vectors" / "1f0c2a" / "thesis.txt").write_text("mine")
    parts = {part.name: part for part in list_parts(tmp_path)}
    assert [part.entries for part in parts.values()] == [0, 0, 1, 1]
    assert parts["vectors"].bytes > 5 and parts["runtimes"].bytes == 2
    clear_parts(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["queries/mine/a", "runtimes/notes.json", "vectors/1f0c2a/thesis.txt"]
    clear_parts(tmp_path)  # nothing left to remove
