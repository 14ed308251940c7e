"""Where the tests find real data, and small real models.

Real data: the folder `shared` beside the checkout, or $CITEWEAVE_SHARED. Small models: BERT with two layers, random
weights and a vocabulary of a few words.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from citeweave.core import artifact, progress
from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask

ROOT = Path(__file__).resolve().parent.parent

if "PYTEST_XDIST_WORKER" in os.environ:
    # before numpy or torch are loaded: as many threads as cores in every worker would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# time is measured in benchmarks: on a busy machine any example may take long; what fails here fails because of a
# change, not by chance: new examples are tried with `--hypothesis-profile=explore`, and by `make trust`
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same")

# lines of progress come after some seconds: on a slow machine they would stand among what tests compare
progress._PLAIN_EVERY = progress._END_AFTER = math.inf

_CTRL_C = signal.getsignal(signal.SIGINT)


def pytest_runtest_teardown() -> None:
    """A command that ran in this process leaves its own answer to Ctrl-C behind; pytest needs the first one."""
    signal.signal(signal.SIGINT, _CTRL_C)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and samples; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("CITEWEAVE_SHARED", ROOT.parent / "shared"))
    if not (folder / "samples").is_dir():
        pytest.skip(f"no real samples at {folder}; set CITEWEAVE_SHARED to run this test")
    return folder


VOCABULARY = "a paper shows that the cell grows and we find how models learn from data in graphs of citations . ,"


def _tokenizer(sep: str | None, lower: bool, length: int) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["[PAD]", "[UNK]", "[CLS]", "[MASK]", *([sep] if sep else [])]
    words = VOCABULARY.split()
    letters = [chr(code) for code in range(97, 123)]
    pieces = specials + words + [letter for letter in letters if letter not in words] + [f"##{x}" for x in letters]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    if lower:
        inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", vocabulary["[CLS]"]), *([(sep, vocabulary[sep])] if sep else [])]
    single = f"[CLS] $A {sep}" if sep else "[CLS] $A"
    inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    names |= {"sep_token": sep} if sep else {}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=length, **names)


@pytest.fixture(scope="session")
def save_bert() -> Callable[..., Path]:
    """Write a plain Hugging Face folder with a small BERT, or another model that its configuration can make."""
    torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    transformers = pytest.importorskip("transformers", reason="pip install 'citeweave[minilm]'")
    transformers.utils.logging.disable_progress_bar()

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}

    def save(folder, *, sep="[SEP]", lower=True, seed=0, kind="Bert", length=48):
        tokenizer = _tokenizer(sep, lower, length)
        vocabulary = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        more = {"max_position_embeddings": length + 16, "initializer_range": 0.3}
        config = getattr(transformers, f"{kind}Config")(**vocabulary, **sizes, **more)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = getattr(transformers, f"{kind}Model")(config)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def bert(save_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain folder that all tests share and none changes."""
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


class Told(LocalExecutor):
    """An executor that takes work as text, as it travels; it makes the last number first, and some not at all."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.failing, self.made, self.works = failing, list[int](), list[ShardTask]()

    def make(self, work: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        self.works.append(work)
        heard = ShardTask(work.maker, json.loads(json.dumps(dict(work.arguments))), work.label, work.unit, work.gpu)
        for number, made in super().make(heard, [n for n in reversed(numbers) if n not in self.failing]):
            self.made.append(number)
            yield number, made
        if failed := {number: "MemoryError" for number in numbers if number in self.failing}:
            raise ShardError(work.label, failed, len(numbers))


@pytest.fixture
def as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts are opened as large ones are: sizes are checked, and no byte is read before it is asked for."""
    monkeypatch.setattr(artifact, "SMALL", -1)


def content(folder: Path) -> dict[str, Any]:
    """All files of an artifact; of the manifest not when it was made."""
    found: dict[str, Any] = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    manifest = json.loads(found["manifest.json"])
    del manifest["made"]
    return {**found, "manifest.json": manifest}


def write_records(path: Path, records: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def corpus_of(place: Path, papers: Iterable[Any], cites: Sequence[Any] = (), contexts: Sequence[Any] = ()) -> Any:
    """The corpus of these papers, of pairs (citing, cited) and of citing sentences; its sources lie beside it."""
    from citeweave.corpus.ingest import import_papers

    paths = [write_records(place / "papers.jsonl", papers)]
    if cites:
        paths.append(place / "citations.tsv")
        paths[-1].write_text("".join(f"{citing}\t{cited}\n" for citing, cited in cites))
    if contexts:
        paths.append(write_records(place / "contexts.jsonl", contexts))
    return import_papers(paths, place / "corpus").corpus


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
"""Small JSON values of any shape."""


def refused(
    message: str, call: Callable[..., Any], *arguments: Any, error: type[BaseException] = UserError, **options: Any
) -> None:
    """The call is an error with this message."""
    with pytest.raises(error, match=message):
        call(*arguments, **options)
