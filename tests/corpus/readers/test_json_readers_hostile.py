"""Whatever the bytes, a reader of JSON yields records, counts rejections, or raises InputError: nothing else."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Record
from citeweave.corpus.readers import (
    crossref,
    csl_json,
    openalex,
    s2_graph_api,
    s2orc_2020,
    scirepeval,
    specter,
    unarxive,
)

SAMPLES = {
    s2_graph_api: "s2_graph_api",
    openalex: "openalex",
    crossref: "crossref",
    csl_json: "csl_json",
    unarxive: "unarxive",
    s2orc_2020: "s2orc_20200705",
    specter: "specter/training",
    scirepeval: "scirepeval",
}
READERS = list(SAMPLES)
KEYS = re.findall(
    r"\w+",
    "paperId title abstract year externalIds references citations data citedPaper contexts contextsWithIntent id results "
    "abstract_inverted_index referenced_works topics ids message items DOI reference unstructured issued author note "
    "paper_id metadata body_text sections bib_entries cite_spans text outbound_citations count query pos candidates",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["W1", "10.1000/x", "a" * 40]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=8)
    ),
    max_leaves=25,
)
QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def survives(reader, path: Path) -> None:
    source, tally = Source(path), Tally()
    try:
        reader.recognizes(source.head())
        for record in reader.read(source, tally):
            assert_can_be_written(record)
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)


def assert_can_be_written(record: Record) -> None:
    for name in record.__slots__:
        value = getattr(record, name)
        if name == "extra":
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                text.encode()


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__.rsplit(".", 1)[-1])
@given(value=ANYTHING)
@QUICK
def test_json_of_any_shape(tmp_path, reader, value):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    survives(reader, path)


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__.rsplit(".", 1)[-1])
@given(data=st.binary(max_size=300))
@QUICK
def test_bytes(tmp_path, reader, data):
    path = tmp_path / "any.bin"
    path.write_bytes(data)
    survives(reader, path)


BAD_VALUES = (
    None,
    True,
    -1,
    10**30,
    float("nan"),
    "",
    "\ud800",
    [],
    [None],
    [[[]]],
    {},
    {"": None},
    {"text": [1]},
    "9" * 50,
)


def spoil(document: object, draw: random.Random, times: int) -> None:
    """Replace or delete values anywhere inside a document."""
    places: list[tuple[dict | list, object]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        items = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        places += [(node, key) for key, _ in items]
        waiting += [value for _, value in items]
    for node, key in draw.sample(places, min(times, len(places))):
        if isinstance(node, dict) and draw.random() < 0.2:
            node.pop(key, None)
        else:
            node[key] = json.loads(json.dumps(draw.choice(BAD_VALUES)))


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__.rsplit(".", 1)[-1])
def test_spoiled_real_records(shared, tmp_path, reader):
    draw = random.Random(7)
    for sample in sorted((shared / "samples" / SAMPLES[reader]).glob("*.json*"))[:4]:
        raw = sample.read_bytes()
        lines = [raw] if not sample.name.endswith("l") else raw.splitlines()[:3]
        for times in (1, 20, 300):
            documents = [json.loads(line) for line in lines]
            for document in documents:
                spoil(document, draw, times)
            path = tmp_path / sample.name
            path.write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
            survives(reader, path)
            path.write_bytes(raw[: draw.randrange(len(raw))])
            survives(reader, path)


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__.rsplit(".", 1)[-1])
def test_deep_nesting(tmp_path, reader):
    path = tmp_path / "deep.json"
    path.write_text('{"references": ' * 50_000 + "1" + "}" * 50_000, encoding="utf-8")
    survives(reader, path)
    path.write_text('{"a": ' + "[" * 50_000 + "NaN" + "]" * 50_000 + "}", encoding="utf-8")
    survives(reader, path)
