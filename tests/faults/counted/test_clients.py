"""Clients of services that go wrong in every way: nothing lost, nothing doubled, never too fast, no key shown.

Each schedule is one service, one seed, and a fetch of everything: by words, ids, titles and citations. A third of all requests
meets a fault. A fetch that is stopped is begun again the next day, as a person would, with the answers kept so far.
"""

import io
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from citeweave import import_papers
from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.corpus.services.client import Client, HttpOptions, write_records
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import SemanticScholar
from citeweave.corpus.services.service import OPENALEX, S2, Service

from .services import FaultService, MadeUpPaper, MadeUpTime, openalex_answer, semantic_scholar_answer

KEY = "k3y/With+signs=0123456789"
DAY = 24 * 3600.0
PAPERS = [MadeUpPaper(number) for number in range(1, 81)]
CITING = [one for one in PAPERS if one.is_citing]
ASKED = PAPERS[5:45]
LIMITS = HttpOptions(timeout=0.45, deadline=0.45)

CLIENTS: dict[str, tuple[Service, Any, Any]] = {
    "openalex": (OPENALEX, OpenAlex, openalex_answer),
    "s2": (S2, SemanticScholar, semantic_scholar_answer),
}


class Fetch:
    """One schedule: a service that goes wrong, and everything fetched from it into a folder."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        service, self._make, answer = CLIENTS[name]
        self.folder, self.time, self.told = folder, MadeUpTime(), io.StringIO()
        self.faulty = FaultService(answer(PAPERS), KEY, seed, self.time)
        self.service = replace(service, base=self.faulty.base, key=KEY)
        self.stops: list[BaseException | str] = []

    def client(self) -> Any:
        reporter, cache = Reporter(stream=self.told), self.folder / "fetched" / ".answers"
        return self._make(
            Client(self.service, cache, LIMITS, reporter=reporter, pause=self.time.pause, clock=self.time)
        )

    def records(self, name: str, of: Callable[[Any], Iterator[dict[str, Any]]]) -> list[dict[str, Any]]:
        """What a fetch writes in the end, begun again as often as it was stopped."""
        path = self.folder / "fetched" / f"{name}.jsonl"
        for _ in range(60):
            try:
                written = write_records(of(self.client()), path)
                if not written.stopped:
                    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
                self.stops.append(written.stopped)
            except UserError as error:
                self.stops.append(error)
            self.time.now += DAY
        raise AssertionError(f"{name} was stopped 60 times: {self.stops[-1]}")


def fetch_all(fetch: Fetch) -> None:
    """Everything once, and every record exactly once."""
    dois = [f"doi:{one.doi}" for one in ASKED] + ["doi:10.1000/nobody"]
    assert numbers(fetch.records("search", lambda it: it.search("counting", 1000))) == [one.number for one in PAPERS]
    assert numbers(fetch.records("some", lambda it: it.search("counting", 30))) == [one.number for one in PAPERS[:30]]
    assert numbers(fetch.records("ids", lambda it: it.by_ids(dois))) == [one.number for one in ASKED]
    citing = fetch.records("citing", lambda it: it.citing(["openalex:W1", f"s2sha:{1:040x}"], 500))
    assert numbers(citing) == [one.number for one in CITING]
    for paper in PAPERS[:4]:
        found = fetch.records(f"title{paper.number}", lambda it, title=paper.title: iter(it.by_title(title)))
        assert numbers(found) == [paper.number]
    assert fetch.records("no_title", lambda it: iter(it.by_title("Nobody wrote this"))) == []


def numbers(records: list[dict[str, Any]]) -> list[int]:
    """Of works of OpenAlex, or of papers of Semantic Scholar, which may stand in a list of one that cites."""
    papers = [record["data"][0]["citingPaper"] if "data" in record else record for record in records]
    assert all(len(record.get("data", "x")) == 1 for record in records)
    return [int(one["id"].rpartition("W")[2]) if "id" in one else one["corpusId"] for one in papers]


def check_pace(fetch: Fetch) -> None:
    """No window of any length holds more requests than the service allows, and no wait is shorter than it was asked for."""
    arrivals, rate = fetch.faulty.arrivals, fetch.service.per_second
    for window in (1.0, 7.0, 60.0):
        first = 0
        for last, arrived in enumerate(arrivals):
            while arrivals[first] <= arrived - window + 1e-6:
                first += 1
            assert last - first + 1 <= rate * window, f"{last - first + 1} requests in {window} s before {arrived}"
    for number, asked in fetch.faulty.waits_asked.items():
        assert arrivals[number + 1] - arrivals[number] >= asked, f"request {number + 1} came before {asked} s"


def check_key(fetch: Fetch, logged: str) -> None:
    """The key, however it is spelled, stands in no file, no name of one, no message and no log."""
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in KEY)
    forms = [KEY, quote(KEY), quote(KEY, safe=""), KEY.replace("/", "\\/"), escaped]
    forms.append(escaped.upper().replace("\\U", "\\u"))
    shown = "\n".join([fetch.told.getvalue(), logged, *(text for stop in fetch.stops for text in texts_of(stop))])
    assert not [form for form in forms if form in shown]
    for path in fetch.folder.rglob("*"):
        assert KEY not in path.name
        content = path.read_bytes() if path.is_file() else b""
        assert not [form for form in forms if form.encode() in content], path
    kept = fetch.folder.rglob(".answers/*/*.json")
    assert not [path for path in kept if KEY in str([json.loads(line) for line in path.read_bytes().splitlines()])]


def texts_of(stop: BaseException | str | None) -> list[str]:
    """An error as it is shown, and those behind it."""
    if not isinstance(stop, BaseException):
        return [stop] if stop else []
    return [str(stop), repr(stop), *texts_of(stop.__cause__), *texts_of(stop.__context__)]


@pytest.mark.parametrize("name", CLIENTS)
def test_fault_schedules(name, trial, tmp_path):
    met, stops, requests = Counter[str](), 0, 0
    for seed in trial.numbers(quick=5, whole=100):
        folder = tmp_path / str(seed)
        with trial.attempt(f"seed {seed} of {name}"):
            fetch, log = Fetch(name, seed, folder), io.StringIO()
            handler = logging.StreamHandler(log)
            logging.getLogger().addHandler(handler)
            try:
                fetch_all(fetch)
                corpus = import_papers(folder / "fetched", folder / "corpus").corpus
                assert sorted(corpus.titles) == sorted(one.title for one in PAPERS)
                check_pace(fetch)
                check_key(fetch, log.getvalue())
                assert not fetch.faulty.was_followed_elsewhere()
            finally:
                fetch.faulty.close()
                logging.getLogger().removeHandler(handler)
                met.update(fault for fault in fetch.faulty.met if fault)
                stops, requests = stops + len(fetch.stops), requests + len(fetch.faulty.met)
    trial.facts |= {"requests": requests, "faults": met.total(), "kinds of faults": len(met), "begun again": stops}
