"""Options of the server and of preparing a library.

    >>> options = ServeOptions(allow_hosts=("papers.example.org",), time_limit=5)
    >>> ServeOptions.from_environment(options.to_environment()) == options
    True

Holds values only; `middleware.py` enforces them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from citeweave.core.options import INTERNAL, Flag, OneOf, Range, check

VARIABLE = "CITEWEAVE_SERVE"
"""Name of the environment variable that tells a worker process what to serve."""

LOGS = ("json", "text", "none")
"""Formats of the log line of a request; server errors are logged in every one."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the server: limits, allowed hosts, folders, log format."""

    allow_hosts: Annotated[tuple[str, ...], Flag("--allow-host")] = ()
    """Host name that clients may use besides localhost, * for any; may be repeated."""

    samples: str = ""
    """Folder of mined samples to browse."""

    corpus: str = ""
    """With --samples: the corpus they were mined from."""

    model: str = ""
    """Folder of the model that the index was built with, if moved."""

    device: str = "auto"
    """Device: cpu, cuda or auto."""

    runtime: str = ""
    """Software that runs the model: auto, torch, openvino or int8; default: the index's. Scores of another runtime differ
    by about 0.001."""

    max_body: Annotated[int, Range(1024), INTERNAL] = 2**20
    """Maximum bytes of a request body."""

    max_headers: Annotated[int, Range(1024), INTERNAL] = 16_384
    """Maximum bytes of all headers of a request together."""

    max_url: Annotated[int, Range(256), INTERNAL] = 8192
    """Maximum bytes of a path with its query string."""

    time_limit: Annotated[float, Range(above=0, max=3600)] = 30.0
    """Time limit of a request in seconds, including reading it."""

    concurrent: Annotated[int, Range(1)] = 64
    """Maximum number of concurrent requests per process; further ones are told to retry."""

    rate: Annotated[float, Range(0)] = 0.0
    """Maximum requests per second and client address, after a burst of twice as many; 0 = no limit."""

    threads: Annotated[int, Range(1), INTERNAL] = 16
    """Threads that run searches; compiled code runs in them at the same time."""

    batch_wait: Annotated[float, Range(0), INTERNAL] = 0.003
    """Seconds that a text waits for others to be encoded with."""

    batch_texts: Annotated[int, Range(1), INTERNAL] = 64
    """Maximum texts that are encoded together."""

    batch_waiting: Annotated[int, Range(1), INTERNAL] = 1024
    """Maximum texts that may wait to be encoded; more are refused."""

    log: Annotated[str, OneOf(*LOGS)] = "text"
    """Log format: json, text or none."""

    debug: bool = False
    """Show tracebacks of errors."""

    def __post_init__(self) -> None:
        check(self)
        if self.runtime:
            from citeweave.encoders.runtimes import Runtime

            Runtime.parse(self.runtime)  # refuses unknown runtimes

    def to_environment(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls, text: str) -> ServeOptions:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """Options of preparing a library: enrichment, model, runtime, number of papers."""

    model: str = ""
    """Model that embeds the papers; empty = that of an existing library, otherwise the default one."""

    runtime: str = "auto"
    """Runtime of the model: auto (the fastest here, or the one that an existing library was embedded with), torch, openvino
    or int8 (8-bit arithmetic)."""

    enrich: Annotated[str, OneOf("", "openalex", "s2")] = ""
    """Fetch missing abstracts, references and citations from openalex (needs an API key) or s2 (Semantic Scholar)."""

    max_papers: Annotated[int, Range(1, 100_000)] = 1000
    """For an "openalex:..." or "s2:..." source: maximum number of papers to fetch."""

    refresh: bool = False
    """Query services again instead of using cached responses."""

    device: str = "auto"
    """Device: cpu, cuda or auto."""

    def __post_init__(self) -> None:
        check(self)
