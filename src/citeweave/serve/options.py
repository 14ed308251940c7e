"""Options of the server: limits, allowed hosts, folders, log format; passed to worker processes in the environment.

    >>> options = ServeOptions(allow_hosts=("papers.example.org",), time_limit=5)
    >>> ServeOptions.from_environment(options.to_environment()) == options
    True

Holds values only; `limits.py` and `responses.py` enforce them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from citeweave.core.errors import UserError, choose
from citeweave.encoders.runtimes import Runtime

VARIABLE = "CITEWEAVE_SERVE"
"""Name of the environment variable that tells a worker process what to serve."""

LOGS = ("json", "text", "none")
"""Formats of the log line of a request; server errors are logged in every one."""

_MINIMUMS = {
    "max_body": 1024,
    "max_headers": 1024,
    "max_url": 256,
    "concurrent": 1,
    "threads": 1,
    "batch_texts": 1,
    "batch_waiting": 1,
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the server: limits, allowed hosts, folders, log format."""

    allow_hosts: tuple[str, ...] = ()
    """Host names that requests may use, besides localhost, 127.0.0.1 and [::1]; `*` = any."""

    samples: str = ""
    """Folder of mined samples to show; empty = none."""

    corpus: str = ""
    """The corpus that the samples were mined from."""

    model: str = ""
    """Folder of the model of the first index, if it moved."""

    device: str = "auto"
    runtime: str = ""
    """Runtime of the model that encodes queries; empty = the one that the index was built with. Scores of another
    runtime differ by about 0.001."""

    max_body: int = 2**20
    """Maximum bytes of a request body."""

    max_headers: int = 16_384
    """Maximum bytes of all headers of a request together."""

    max_url: int = 8192
    """Maximum bytes of a path with its query string."""

    time_limit: float = 30.0
    """Maximum seconds of a request, including reading it."""

    concurrent: int = 64
    """Maximum requests at a time; further ones are told to retry."""

    rate: float = 0.0
    """Maximum requests per second from one client address, after a burst of twice as many; 0 = any number."""

    threads: int = 16
    """Threads that run searches; compiled code runs in them at the same time."""

    batch_wait: float = 0.003
    """Seconds that a text waits for others to be encoded with."""

    batch_texts: int = 64
    """Maximum texts that are encoded together."""

    batch_waiting: int = 1024
    """Maximum texts that may wait to be encoded; more are refused."""

    log: str = "text"
    debug: bool = False
    """Whether tracebacks of server errors go to the log."""

    def __post_init__(self) -> None:
        choose(self.log, LOGS, "--log")
        if self.runtime:
            Runtime.parse(self.runtime)  # refuses unknown runtimes
        for name, minimum in _MINIMUMS.items():
            if getattr(self, name) < minimum:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
        if not 0 < self.time_limit <= 3600:
            raise UserError(f"--time-limit is {self.time_limit}; it must be more than 0 and at most 3600 seconds")
        if self.rate < 0 or self.batch_wait < 0:
            raise UserError("--rate must be 0, for any number of requests, or more")

    def to_environment(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls, text: str) -> ServeOptions:
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ServeOptions:
        return cls(**{**values, "allow_hosts": tuple(values.get("allow_hosts", ()))})
