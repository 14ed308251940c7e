from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")

from citeweave.serve.responses import Json, RefusedError, parse_strictly


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b'{"a": 1, "a": 2}',
        b'{"b": {"a": 1, "a": 1}}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'"\\ud800"',
        '{"a": 1}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b"{'a': 1}",
        b'{"a": 01}',
        b"{} {}",
        b'{"a": 1,}',
        b'{"a": /**/ 1}',
        b'{"a\x00": 1}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_parsers_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_strictly(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b'{"a": [1, null, "\xc3\xbc"]}', {"a": [1, None, "ü"]}),
        (b'"\\ud83d\\ude00"', "😀"),
        (b"1e999", math.inf),
    ],
)
def test_plain_json_is_read(body: bytes, value: object) -> None:
    if value == math.inf:  # orjson and the standard library agree on this one
        with pytest.raises(RefusedError):
            parse_strictly(body)
    else:
        assert parse_strictly(body) == value


def test_answers_are_written_without_nan() -> None:
    assert Json({"a": float("nan"), "b": np.float32([1, 2]), 3: None}).body == b'{"a":null,"b":[1.0,2.0],"3":null}'
