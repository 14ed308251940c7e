"""Write docs/trust.md: what must hold, how often it was tried and how often it held.

    python docs/generate_trust.py [build/trust/whole] [build/trust/quick]

The counts that `make trust` writes to these folders replace those of the same experiments in docs/trust.json, unless their
share is smaller. The page is generated from that file.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
COUNTS = DOCS / "trust.json"
PAGE = DOCS / "trust.md"

SHARES = ("quick", "part", "whole")

CHAPTERS = {
    "untouched": (
        "Other files",
        "A command changes its output and the cache, no input and no file next to its output.",
    ),
    "kills": (
        "Kills",
        "After kill -9 at a random point of any stage, the next run completes the output with the same bytes as an undisturbed "
        "run.",
    ),
    "full_disks": (
        "Full and failing disks",
        "With a full disk, an I/O error or short writes from a random point of any stage, a command completes, or ends with one "
        "line that names the path and leaves the old output intact. Run again with enough space, it gives the same bytes as an "
        "undisturbed run.",
    ),
    "library_signals": (
        "Signals to the explorer",
        "A signal while `citeweave explore` serves a library and embeds its papers: all processes end and nothing is lost.",
    ),
    "training_resume": (
        "Resumed training",
        "Training stopped at a random step and resumed gives bit-identical weights and the same log; no step is lost or repeated.",
    ),
    "row_accounts": ("Row counts", "In every stage, rows in = rows out + rows left out with a reason."),
    "corruption": (
        "Corrupted files",
        "A corrupted file causes no crash, hang, undocumented error, unbounded memory or silently wrong result.",
    ),
    "fuzzing": (
        "Fuzzed parsers",
        "A parser returns or raises a documented error within 5 seconds, whatever the input.",
    ),
    "no_code": (
        "No foreign code",
        "No code from an input is executed: the syntax tree of every source file has no way to do so, and malicious artifacts are "
        "refused.",
    ),
    "hostile_models": (
        "Hostile models",
        "A tampered model folder is refused in one line when it is loaded, or encodes texts like the original.",
    ),
    "recipes": (
        "Hostile recipes",
        "A file that is not a recipe or never ends, or an invalid value in a recipe or in `--set`, is refused in one line that "
        "names it.",
    ),
    "clock_jumps": (
        "Clock jumps",
        "While the clock jumps, artifacts have the same hashes, locks are refused or waited for as long as specified, work "
        "saved by time is complete after any interruption, and progress lines stay well-formed.",
    ),
    "server": (
        "Untrusted requests",
        "What clients send to the server is never executed, rendered as markup, fetched or waited for.",
    ),
    "server_load": (
        "Slow and malformed requests",
        "Slow clients are disconnected, and malformed requests do not delay others.",
    ),
    "clients": (
        "Failing services",
        "If a service fails in any way, no record is lost or duplicated, rate limits are kept and no key is shown.",
    ),
    "store_filters": (
        "Filters of vector stores",
        "Quotes, comments, brackets and numbers in filters and ids, alone and together, select and delete the same papers as the "
        "index's own filters. A store is written to the named place or refused.",
    ),
    "storage_keys": (
        "Names in object storage",
        "Objects with odd names, addresses, manifests or lists are fetched byte for byte or refused. `push --overwrite` changes "
        "only objects that artifacts of citeweave name.",
    ),
    "redirects": (
        "Redirecting services",
        "Redirects to another scheme, host or port are refused, and endless ones after a few; the key goes only to its service. "
        "Endless cursors stop with every record once. Cursors and ids stay inside their parameter. Invalid addresses in the "
        "environment are refused in one line that names the variable.",
    ),
    "bombs": (
        "Decompression and XML bombs",
        "Files that expand a thousandfold, in any compression and format, are refused or read in bounded memory, whatever "
        "precedes the bomb. XML entities never expand without bound or read files or addresses.",
    ),
    "changed_inputs": (
        "Inputs that change while they are read",
        "A file or corpus that is replaced, truncated, extended or removed during a command is refused by name, or the output is "
        "made from one version of it. Manifests record the hash of the bytes that were read.",
    ),
    "two_commands": (
        "Concurrent commands",
        "Of two commands with one output, one waits or is refused by name; the result is that of running them in some order.",
    ),
    "index_truth": (
        "Updated indexes",
        "After any number of changes an index returns what a plain list of its papers and a new index return.",
    ),
    "compatibility": (
        "Same vectors in every runtime",
        "The vectors of a text agree within 1e-5 whether it is encoded packed, padded or alone, by sentence-transformers, ONNX or "
        "OpenVINO.",
    ),
    "other_versions": (
        "Other format versions",
        "Artifacts and files of older and newer format versions are refused with what they are and what to do.",
    ),
    "soak": (
        "Half an hour of traffic",
        "Under mixed traffic on two cores every response is right and the server's memory does not grow.",
    ),
}
"""Module of the tests -> title and what must hold, in the order of the page."""

LABELS = {
    "a real full file system": "",
    "addresses": "",
    "arrived": "round trips",
    "batches with codes": "",
    "begun again": "restarts",
    "cut after seconds, at most": "disconnected after seconds, at most",
    "driver": "",
    "ended with an error": "",
    "ended well": "",
    "exceptions, each with a reason": "justified exceptions",
    "furthest": "largest difference",
    "kind error": "",
    "kind full": "",
    "kind limit": "",
    "kind real": "",
    "kind short": "",
    "formats": "",
    "kinds": "",
    "kinds of faults": "",
    "least recall of a batch": "lowest recall of a batch",
    "lines or edges reached": "edges reached",
    "model": "",
    "malformed requests a second, at most": "malformed requests per second",
    "one was refused": "refused",
    "pairs": "",
    "p95, ratio": "",
    "papers": "",
    "paths": "",
    "payloads that a careless program did run": "payloads that an unsafe loader runs",
    "seconds each, at most": "",
    "steps": "",
}
"""Recorded measurement -> its label on the page; empty: it is not shown."""

NAMES = {
    "vectors by every path": "model",
    "index after batches of changes": "batches of changes",
    "circles": "redirect loops",
    "cursors without end": "endless cursors",
    "hard links not written through": "hard links",
    "headers that would become others": "header injection",
    "hostile ids are deleted": "hostile ids",
    "malformed requests while real ones are served": "malformed requests",
    "malicious artifacts refused": "malicious artifacts",
    "malicious files beside a model never read": "malicious files next to a model",
    "nothing else touched by any command": "every command",
    "objects of others when pushing": "foreign objects",
    "paths that lead elsewhere": "path traversal",
    "payloads in answers and ids": "payloads in responses and ids",
    "redirections": "redirects",
    "requests of other sites": "cross-site requests",
    "requests that would make it fetch": "server-side request forgery",
    "row accounts": "row counts",
    "slow clients cut": "slow clients",
    "source files without a path to foreign code": "source files",
    "unsafe lines are seen": "unsafe lines that the check must detect",
}
"""Recorded name of an experiment, without its variant -> its name on the page."""

HEAD = """# Trust

Check what citeweave promises about interrupted runs, full disks, damaged or hostile inputs and misused servers. Each experiment
tries something bad many times and counts how often the promise held; one failed attempt is a failing test.

    make trust                  # all experiments: hours on two cores
    make trust SHARE=quick      # the share that CI runs: minutes
    make trust SECONDS=60       # all, with a minute per fuzzed parser and for the soak test
    python docs/generate_trust.py build/trust/whole    # update this page

The experiments are in `tests/faults/counted`; [SECURITY.md](../SECURITY.md) lists the promises. Counts are
"held of tried": all attempts, `part` with limited time, or `quick`, the share of CI.
"""

REMOVALS = (
    (
        "work folder `.NAME.citeweave-<8 hex>` next to an output, its lock, and what `--overwrite` replaces",
        "the folder's `owner.json` names citeweave and the output; a lock is empty; every file in a replaced folder is listed "
        "in a manifest of citeweave, else the command is refused and names the file",
        "core/publish.py, core/artifact.py, core/files.py",
    ),
    (
        "files in that work folder",
        "the process that holds the lock wrote them",
        "core/columns.py, corpus/merge.py, corpus/external_sort.py, "
        "corpus/staged_parts.py, corpus/update.py, encoders/batches.py, encoders/tokens.py, graph/citations.py, "
        "graph/fastrp.py, graph/node_vectors.py, intents/annotate.py, mining/mine.py, search/citing_sentences.py, "
        "search/index_vectors.py, training/checkpoints.py, training/trainer.py",
    ),
    (
        "a file replaced by its complete successor: `-o FILE` with `--overwrite`, state and settings in folders of citeweave",
        "the user named the file; the new one has a hidden random name until it is complete",
        "core/files.py, mining/formats/__init__.py",
    ),
    (
        "in an index: generations and maps that no state refers to",
        "named as citeweave names them, in the folder of an index; only files that a manifest lists",
        "search/state.py, search/map.py, search/build.py",
    ),
    (
        "in the folder of an `explore` library: an index to be rebuilt, responses of services",
        "named in the library's record and the index's manifests",
        "serve/prepare_library.py, corpus/services/client.py",
    ),
    (
        "in the cache: fetched versions older than a week or with `citeweave cache --clear`, uploads in progress",
        "a slot has `address.txt`, and versions are named by their hash",
        "remote/fetch.py, remote/push.py",
    ),
    (
        "in the cache: copies of models for questions, all but the newest four, and those that do not give the model's vectors",
        "only files that their manifests list",
        "encoders/light_encoder.py",
    ),
    (
        "in the cache, with `citeweave cache --clear`: copies and conversions of models, vectors, chosen runtimes",
        "only files that their manifests list; a chosen runtime is a JSON file named by a hash",
        "core/caches.py",
    ),
    (
        "in object storage: objects of the previous version that the new one does not have",
        "`citeweave-objects.json` or a manifest of citeweave at that address lists them; for an index, its state",
        "remote/push.py, remote/object_storage.py",
    ),
    ("the previous folder of a download, with `--overwrite`", "as for any output", "remote/push.py"),
)
"""What is removed or replaced, why that is safe, and the modules that do it; a test compares them with the source."""


def main() -> None:
    counts: dict[str, dict[str, Any]] = json.loads(COUNTS.read_bytes()) if COUNTS.is_file() else {}
    if len(sys.argv) > 1:
        for record in (record for folder in sys.argv[1:] for record in read_counts(Path(folder))):
            if SHARES.index(record["share"]) >= SHARES.index(counts.get(record["name"], record)["share"]):
                counts[record["name"]] = dated(record)
        COUNTS.write_text(json.dumps(dict(sorted(counts.items())), indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(counts))


def read_counts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def dated(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its day and machine in place of its time."""
    day = time.strftime("%Y-%m-%d", time.gmtime(record.pop("ended")))
    return {**record, "day": day, "machine": f"{platform.machine()}, Python {platform.python_version()}"}


def page(counts: dict[str, dict[str, Any]]) -> str:
    """Return the page: for each chapter its promise and its experiments, and what is removed or replaced."""
    missing = {count["chapter"] for count in counts.values()} - CHAPTERS.keys()
    assert not missing, f"no title for {sorted(missing)}: add it to CHAPTERS"
    chapters = {name: [count for count in counts.values() if count["chapter"] == name] for name in CHAPTERS}
    return "\n".join([HEAD, *(chapter(*CHAPTERS[name], own) for name, own in chapters.items() if own), removals()])


def removals() -> str:
    """Return the table of everything that citeweave removes or replaces."""
    head = ["| what | why that is safe | modules |", "|---|---|---|"]
    rows = [
        f"| {what} | {why} | {', '.join(f'`{name}`' for name in names.split(', '))} |" for what, why, names in REMOVALS
    ]
    return "\n".join(
        ["## What is removed or replaced", "", "citeweave removes and replaces only this:", "", *head, *rows, ""]
    )


def chapter(title: str, promise: str, counts: list[dict[str, Any]]) -> str:
    """Return the section of one chapter.

    >>> count = {"name": "row accounts", "tried": 1200, "held": 1200, "share": "whole", "facts": {"readers": 20}}
    >>> print(chapter("Corrupted files", "Cut files are refused.", [count]))
    ## Corrupted files
    <BLANKLINE>
    Cut files are refused.
    <BLANKLINE>
    - row counts: 1,200 of 1,200; readers: 20
    <BLANKLINE>
    """
    items = [item(count) for count in sorted(counts, key=lambda count: str(count["name"]))]
    return "\n".join([f"## {title}", "", promise, "", *items, ""])


def item(count: dict[str, Any]) -> str:
    """Return one experiment: how often its promise held, in which share, and what was measured."""
    labels = {name: LABELS.get(name, name) for name in count["facts"]}
    measured = [f"{label}: {number(count['facts'][name])}" for name, label in labels.items() if label]
    name, _, variant = str(count["name"]).partition(", ")
    name = f"{NAMES.get(name, name)}{', ' * bool(variant)}{variant}"
    share = "" if count["share"] == "whole" else f" ({count['share']})"
    return "; ".join([f"- {name}: {count['held']:,} of {count['tried']:,}{share}", *measured])


def number(value: object) -> str:
    """Return a measurement as text; of several ones, the largest.

    >>> number(1234567), number("+1.4 %"), number({"a head, byte by byte": 10.5, "a body, byte by byte": 13.8})
    ('1,234,567', '+1.4 %', '13.8')
    """
    if isinstance(value, dict):
        return str(max(value.values()))
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
