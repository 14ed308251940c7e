"""Labeled sentences in all their spellings, and what is refused."""

import gzip
import json

import pytest

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.intents import examples
from citeweave.intents.citances import Citance
from citeweave.intents.examples import SCICITE, Example, LabeledSet, read_labeled, read_sets

from ..conftest import refused


def write(path, *records):
    text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_three_spellings(tmp_path):
    path = write(
        tmp_path / "c.jsonl.gz",
        {"text": "a [3]", "cite_span": [2.0, 5.0], "section": "Methods", "intent": "method", "intent_confidence": 0.7},
        {"string": "b [4]", "citeStart": 2, "citeEnd": 5, "sectionName": float("nan"), "label": "Result"},
        "",
        {"text": "c", "intent": "Uses", "section_name": "experiments", "cite_span": [float("nan"), 4]},
        {"text": "  ", "intent": "background"},
        {"text": "d", "intent": "background", "split": "test"},
    )
    found = read_labeled([path], SCICITE, split="train", label_map=examples.THREE_OF_SIX)
    assert [row.citance for row in found.examples] == [
        Citance("a [3]", (2, 5), "Methods"),
        Citance("b [4]", (2, 5), ""),
        Citance("c", None, "experiments"),
    ]
    assert [found.labels[row.label] for row in found.examples] == ["method", "result", "method"]
    assert [row.confidence for row in found.examples] == [0.7, 1.0, 1.0]
    labels, rejected = {"background": 0, "method": 2, "result": 1}, {"another split": 1, "no text": 1}
    assert found.counts() == {"read": 5, "kept": 3, "rejected": rejected, "labels": labels}
    assert len(examples.read_unlabeled(path)) == 4
    far = {"string": "We use [1].", "label": "method", "citeStart": 7, "citeEnd": 10**400}
    assert [row.citance.span for row in read_labeled([write(tmp_path / "far.jsonl", far)]).examples] == [None]


WRONG_LINES = [
    ([{"text": "a", "intent": "method"}, {"text": "b", "intent": "praise"}], "line 2: the label is 'praise'"),
    ([{"text": "a"}], "line 1: the label is None; it must be one of background, method, result"),
    ([{"text": "a", "intent": "method"}, "{"], "line 2 is not a JSON object"),
    (["[1]"], "line 1 is not a JSON object"),
]


@pytest.mark.parametrize(("lines", "words"), WRONG_LINES)
def test_wrong_lines_are_refused(tmp_path, lines, words):
    with pytest.raises(InputError, match=words):
        read_labeled([write(tmp_path / "c.jsonl", *lines)])


def test_files_that_are_none(tmp_path):
    refused("is not a file; give JSON lines", read_labeled, [tmp_path / "none.jsonl"])
    cut = write(tmp_path / "c.jsonl.gz", {"text": "a " * 999, "intent": "method"})
    cut.write_bytes(cut.read_bytes()[:-9])
    refused("is not a complete gzip file", read_labeled, [cut], error=InputError)
    other = write(tmp_path / "o.jsonl", {"text": "a", "intent": "method", "split": "test"})
    with pytest.raises(EmptyResultError, match=r"no labeled sentence of split 'train' \(it has test\)"):
        read_labeled([other], split="train")


def test_dev_sentences_are_never_trained_on(tmp_path):
    records = [{"text": f"t{n}", "intent": "method", "split": "train" if n % 2 else "dev"} for n in range(6)]
    path = write(tmp_path / "c.jsonl", *records)
    sets = read_sets([path])
    assert not {*sets.train.citances} & {*sets.dev.citances} and len(sets.dev.citances) == 3
    refused("--dev and --split are both 'dev'", read_sets, [path], split="dev")
    bare = write(tmp_path / "b.jsonl", {"text": "a", "intent": "method"})
    refused("the records name no splits", read_sets, [bare])
    assert read_sets([bare], dev="").dev is None


def test_dev_sentences_in_another_spelling_are_left_out():
    def made(*texts):
        return LabeledSet("scicite", SCICITE, tuple(Example(Citance(text), 0) for text in texts))

    train = made("The cells have grown 4–7 times as said [3].", "The cells have grown anew as said [3].", "[3]", "[4]")
    left = examples.drop_dev_sentences(train, made("The cells have grown 4‚Äì7 times as said [3].", "[4]"))
    assert left.examples == train.examples[1:3]
    assert left.rejected == {"also a dev sentence": 2}
    assert examples.drop_dev_sentences(train, made("Something else altogether is said here.")) is train


def test_auxiliary_tasks(tmp_path):
    found = examples.section_examples([Citance("a", None, "3 Methods"), Citance("b"), Citance("c", None, "4. Results")])
    assert [found.labels[row.label] for row in found.examples] == ["method", "results"]
    assert all(row.citance.section == "" for row in found.examples)
    with pytest.raises(UserError, match="the task of --auxiliary is 'sektion'"):
        path = write(tmp_path / "c.jsonl", {"text": "a", "intent": "method"})
        read_sets([path], dev="", auxiliary={"sektion": tmp_path})
    worth = write(tmp_path / "w.jsonl", {"text": "a", "is_citation": True}, {"text": "b", "label": "none"})
    read = read_labeled([worth], ("none", "cited"), task="worthiness")
    assert [row.label for row in read.examples] == [1, 0]


def test_real_files(shared):
    three = read_labeled([shared / "data" / "scicite" / "contexts.jsonl.gz"], split="dev")
    assert three.counts()["labels"] == {"background": 538, "method": 255, "result": 123}
    six = read_labeled([shared / "data" / "acl_arc" / "contexts.jsonl.gz"], examples.ACL_ARC, task="acl_arc")
    assert len(six.examples) == 1941
