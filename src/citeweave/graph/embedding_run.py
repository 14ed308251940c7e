"""What every way to embed nodes is told beside its own options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddingRun:
    """How to run; only the seed changes the result."""

    seed: int
    memory: int
    """Bytes of working memory beside the graph and the result."""

    workers: int
    """Threads; 0 = one a core."""

    device: str
    """cpu, cuda or auto; for methods that can use a graphics card."""
