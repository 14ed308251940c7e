from __future__ import annotations

from citeweave.core.randomness import stream


def test_streams_never_change() -> None:
    assert stream(0, "mining", 7).integers(0, 1000, 4).tolist() == stream(0, "mining", 7).integers(0, 1000, 4).tolist()
    assert stream(0, "a", 1).integers(2**62) != stream(0, "a", 2).integers(2**62) != stream(1, "a", 1).integers(2**62)
    assert stream(0, "a", "b").integers(2**62) != stream(0, "ab").integers(2**62)
