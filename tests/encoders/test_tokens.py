"""Tokens are made once: what is stored is what the reader gives, whatever the blocks and wherever a run was killed."""

import json
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.artifact import check_files
from citeweave.core.errors import ArtifactError
from citeweave.core.publish import work_folder
from citeweave.encoders import tokens
from citeweave.encoders.tokens import TextReader, TokenStore, make_reader, make_token_store, tokenizer_hash

from .conftest import WORDS, refused

RECIPE = {"corpus": "c", "text_recipe": "t"}


@pytest.fixture(scope="module")
def reader(bert) -> TextReader:
    transformers = pytest.importorskip("transformers")
    return make_reader(transformers.AutoTokenizer.from_pretrained(bert), 12)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = np.random.default_rng(0)
    return ["" if n % 7 == 3 else "[SEP]".join(draw.choice(WORDS, 1 + n % 20)) for n in range(50)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(tokens, "BLOCK", 8)


def test_what_is_stored_is_what_the_reader_gives(reader, texts, tmp_path):
    make_token_store(reader, texts, tmp_path / "t", recipe=RECIPE)
    store, wanted = TokenStore.open(tmp_path / "t"), reader.read(texts)
    assert len(store) == 50 and store.ids.dtype == np.uint16
    for row, expected in enumerate(wanted):
        assert store[row].dtype == np.int64 and store[row].tolist() == expected.tolist()
    assert [found.tolist() for found in store.take([49, 3, 0])] == [wanted[row].tolist() for row in (49, 3, 0)]
    assert store.lengths().tolist() == [len(expected) for expected in wanted]
    assert store.lengths()[3] == 0 and store.lengths().max() == 12
    facts = store.manifest.facts
    assert (facts["texts"], facts["empty"], facts["longest"]) == (50, 7, 12)
    check_files(tmp_path / "t", store.manifest, content=True)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["ids.npy", "manifest.json", "offsets.npy"]
    for row in (-1, 50):
        with pytest.raises(IndexError):
            store[row]
        with pytest.raises(IndexError):
            store.take([row])
    # opening needs numpy alone
    code = f"""
import sys
for name in ("numba", "torch", "transformers", "tokenizers", "pyarrow", "orjson", "scipy"):
    sys.modules[name] = None
from citeweave.encoders.tokens import TokenStore
print(len(TokenStore.open({str(tmp_path / "t")!r}).take([0, 1])))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "2"


@pytest.mark.parametrize("side", ["right", "left"])
def test_ids_are_those_of_the_tokenizer_itself(bert, side):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert, truncation_side=side)
    texts = [" ".join(WORDS[:count]) for count in (1, 3, 9, 10, 11, 30)]
    read = make_reader(tokenizer, 12).read(texts)
    expected = tokenizer(texts, truncation=True, max_length=12)["input_ids"]
    assert [ids.tolist() for ids in read] == expected and len(read[-1]) == 12 < len(texts[-1].split())


class Fragile(Sequence[str]):
    """Texts whose reading fails at the given slice; counts those that were read."""

    def __init__(self, texts: list[str], fails_at: float = float("inf")) -> None:
        self.texts, self.fails_at, self.read = texts, fails_at, 0

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows):
        if rows.start >= self.fails_at:
            raise KeyboardInterrupt
        self.read += len(self.texts[rows])
        return self.texts[rows]


@pytest.mark.parametrize("fails_at", [0, 8, 24, 48])
def test_an_interrupted_run_resumes_with_its_block(reader, texts, tmp_path, fails_at, monkeypatch):
    complete = make_token_store(reader, texts, tmp_path / "complete", recipe=RECIPE)
    with pytest.raises(KeyboardInterrupt):
        make_token_store(reader, Fragile(texts, fails_at), tmp_path / "t", recipe=RECIPE)
    # a block that was being written when the power went
    for path in work_folder(tmp_path / "t").rglob("*.npy"):
        with path.open("ab") as file:
            file.write(b"half a block")
    rest = Fragile(texts)
    made = make_token_store(reader, rest, tmp_path / "t", recipe=RECIPE)
    assert rest.read == 50 - fails_at
    assert made.manifest.hash == complete.manifest.hash and made.manifest.facts == complete.manifest.facts
    monkeypatch.setattr(tokens, "BLOCK", 17)  # the blocks do not show
    assert make_token_store(reader, texts, tmp_path / "two", recipe=RECIPE).manifest.hash == made.manifest.hash


def test_what_exists_is_opened_and_other_inputs_are_refused(reader, texts, tmp_path):
    make_token_store(reader, texts, tmp_path / "t", recipe=RECIPE)
    reader.read(["a text that is cut " * 9])  # a call leaves its settings in the tokenizer
    make_token_store(reader, Fragile(texts, 0), tmp_path / "t", recipe=RECIPE)
    shorter = make_reader(reader.tokenizer, 5)
    for other, recipe in ((shorter, RECIPE), (reader, {**RECIPE, "corpus": "d"})):
        refused("made from other inputs", make_token_store, other, texts, tmp_path / "t", recipe=recipe)
    replaced = make_token_store(shorter, texts, tmp_path / "t", recipe=RECIPE, overwrite=True)
    assert replaced.lengths().max() == 5


def test_a_large_vocabulary_takes_four_bytes_and_no_texts_none(save_bert, reader, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(save_bert(tmp_path / "model"))
    before = tokenizer_hash(tokenizer)
    tokenizer.add_tokens([f"word{number}" for number in range(2**16)])
    assert tokenizer_hash(tokenizer) != before
    store = make_token_store(make_reader(tokenizer, 12), ["the word65535", ""], tmp_path / "t", recipe=RECIPE)
    assert store.ids.dtype == np.uint32 and store[0].max() >= 2**16
    empty = make_token_store(reader, [], tmp_path / "empty", recipe=RECIPE)
    assert len(empty) == 0 and empty.take([]) == [] and empty.lengths().tolist() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: np.save(folder / "offsets.npy", np.array([0, 10**12, 2])),
        lambda folder: np.save(folder / "ids.npy", np.zeros(5)),
        lambda folder: (folder / "ids.npy").unlink(),
        lambda folder: (folder / "ids.npy").write_text("x" * 500),
    ],
    ids=["offsets", "ids", "missing", "text"],
)
def test_damage_is_an_error_not_a_crash(reader, texts, tmp_path, damage):
    make_token_store(reader, texts, tmp_path / "t", recipe=RECIPE)
    damage(tmp_path / "t")
    refused(r"make .* again", TokenStore.open, tmp_path / "t", error=ArtifactError)


def test_a_damaged_note_of_progress_begins_anew(reader, texts, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_token_store(reader, Fragile(texts, 16), tmp_path / "t", recipe=RECIPE)
    (note,) = work_folder(tmp_path / "t").rglob("progress.json")
    note.write_text(json.dumps(["nothing"]))
    made = make_token_store(reader, texts, tmp_path / "t", recipe=RECIPE)
    assert [tokens.tolist() for tokens in made.take(range(50))] == [tokens.tolist() for tokens in reader.read(texts)]


@given(st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=6), max_size=12), st.data())
def test_any_rows_are_taken(rows, data):
    ids = np.array([number for row in rows for number in row], np.uint16)
    store = TokenStore(ids, np.cumsum([0, *map(len, rows)]))
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    assert [tokens.tolist() for tokens in store.take(wanted)] == [rows[row] for row in wanted]
