"""Write docs/trust.md: what was promised, what was tried, what held.

    python docs/generate_trust.py [build/trust/whole] [build/trust/quick]

Counts of the folders, which `make trust` leaves, take the place of earlier ones of the same experiments in docs/trust.json,
but a smaller share never that of a larger one. The page is made of that file.
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
    "untouched": "Nothing else is touched",
    "kills": "Kills",
    "full_disks": "Full and failing disks",
    "library_signals": "Signals while a library is read",
    "training_resume": "Training that is resumed",
    "row_accounts": "Accounts of rows",
    "corruption": "Corrupted files",
    "fuzzing": "Fuzzed parsers",
    "no_code": "No foreign code",
    "hostile_models": "Models that hang or do not fit",
    "recipes": "Recipes of untrusted people",
    "clock_jumps": "Clocks that jump",
    "server": "The server among strangers",
    "server_load": "The server while it is misused",
    "clients": "Clients of services that go wrong",
    "store_filters": "Filters of other databases",
    "storage_keys": "Odd names in object storage",
    "redirects": "Services that send clients elsewhere",
    "bombs": "Bombs",
    "changed_inputs": "Inputs that change while they are read",
    "two_commands": "Two commands at one output",
    "index_truth": "An index after changes",
    "compatibility": "The same vectors by every path",
    "other_versions": "Other versions",
    "soak": "Half an hour of traffic",
}
"""Module of the tests -> title, in the order of the page."""

HEAD = """# Trust

What citeweave reported done is done, and no input harms it. These are experiments, not arguments: each tries something bad many
times and counts how often what is promised held. An experiment in which one attempt fails is a failing test.

    make trust                  everything: hours on two cores; then `python docs/generate_trust.py build/trust/whole`
    make trust SHARE=quick      the share that CI tries before every change: minutes

The tests are in `tests/faults/counted`, what is promised to whom in [SECURITY.md](../SECURITY.md). `share`: whether the whole number was
tried, all for a part of the time (`make trust SECONDS=60`), or so far the quick share alone. Minutes are of a machine that had other work to do.
"""

REMOVALS = (
    (
        "the work folder `.NAME.citeweave-<8 hex>` beside an output, its lock, and what `--overwrite` replaces",
        "the folder's `owner.json` names citeweave and the output; a lock is empty; in a replaced folder every file is named by "
        "a manifest of citeweave, else the command is refused and names the file",
        "core/publish.py, core/publish.py, core/artifact.py, core/files.py",
    ),
    (
        "files inside that work folder: parts, sorted runs, blocks, panels, tokens, checkpoints, logs",
        "the writer has the lock and wrote them",
        "core/columns.py, corpus/paper_columns.py, corpus/external_sort.py, "
        "corpus/staged_parts.py, corpus/update.py, encoders/batches.py, encoders/tokens.py, graph/citations.py, "
        "graph/fastrp.py, graph/node_vectors.py, intents/annotate.py, mining/mine.py, search/segment_vectors.py, "
        "training/checkpoints.py, training/trainer.py",
    ),
    (
        "a file that is replaced when its successor is whole: `-o FILE` with `--overwrite`, state and settings of our folders",
        "the file that the user named; until then the new one has a hidden name with a random part, made for it alone",
        "core/files.py, mining/formats/convert.py",
    ),
    (
        "in an index: segments, maps and lists of deleted papers that no state names",
        "named as citeweave names them, in the folder of an index; of segments and maps only files that a manifest names",
        "search/state.py, search/map.py, search/build.py",
    ),
    (
        "in the folder of a library that `explore` made: its index, where it must be made anew; answers of services",
        "named by the library's record and the index's manifests",
        "serve/prepare_library.py, corpus/services/client.py",
    ),
    (
        "in the cache: versions of what was fetched, older than a week or with `citeweave cache --clear`; what is being sent",
        "a slot has `address.txt`, and versions are named by their hash",
        "remote/fetch.py, remote/push.py",
    ),
    (
        "in object storage: objects that the last listing or the manifests of citeweave at the address name and the new listing "
        "does not",
        "`citeweave-objects.json` of that address or a manifest of citeweave there names them; of an index its state",
        "remote/push.py, remote/object_storage.py",
    ),
    ("of a copy from an address: the older folder, with `--overwrite`", "as of any output", "remote/push.py"),
)
"""What may be removed or replaced, why it is ours, and the modules that do it. A test knows all that could."""


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
    """With the day and the machine; without the moment."""
    day = time.strftime("%Y-%m-%d", time.gmtime(record.pop("ended")))
    return {**record, "day": day, "machine": f"{platform.machine()}, Python {platform.python_version()}"}


def page(counts: dict[str, dict[str, Any]]) -> str:
    """All chapters, each with its promises and a table of its experiments.

    >>> count = {"name": "cut files", "chapter": "corruption", "promise": "Cut files are refused.", "tried": 1200}
    >>> told = {**count, "held": 1200, "seconds": 61.0, "share": "whole", "facts": {"readers": 20}, "day": "2026-01-02"}
    >>> print("\\n".join(page({"cut files": told}).splitlines()[-7:]))
    ## Corrupted files
    <BLANKLINE>
    Cut files are refused.
    <BLANKLINE>
    | experiment | tried | held | share | minutes | day | measured beside |
    |---|---|---|---|---|---|---|
    | cut files | 1,200 | 1,200 | whole | 1:01 | 2026-01-02 | readers: 20 |
    """
    chapters = [[count for count in counts.values() if count["chapter"] == name] for name in CHAPTERS]
    told = [chapter(title, found) for title, found in zip(CHAPTERS.values(), chapters, strict=True) if found]
    missing = {count["chapter"] for count in counts.values()} - CHAPTERS.keys()
    assert not missing, f"no title for {sorted(missing)}: add it to CHAPTERS"
    return "\n".join([HEAD, removals(), *told])


def removals() -> str:
    head = ["| what | why it is ours | modules |", "|---|---|---|"]
    rows = [
        f"| {what} | {why} | {', '.join(f'`{name}`' for name in names.split(', '))} |" for what, why, names in REMOVALS
    ]
    text = "Nothing else is ever removed, replaced or written to."
    return "\n".join(["## What is removed or replaced", "", text, "", *head, *rows, ""])


def chapter(title: str, counts: list[dict[str, Any]]) -> str:
    promises = dict.fromkeys(" ".join(count["promise"].split()) for count in counts)
    head = ["| experiment | tried | held | share | minutes | day | measured beside |", "|---" * 7 + "|"]
    rows = [row(count) for count in sorted(counts, key=lambda count: count["name"])]
    return "\n".join([f"## {title}", "", "\n\n".join(promises), "", *head, *rows, ""])


def row(count: dict[str, Any]) -> str:
    minutes, seconds = divmod(round(count["seconds"]), 60)
    facts = "; ".join(f"{word}: {worded(value)}" for word, value in count["facts"].items())
    cells = [count["name"], f"{count['tried']:,}", f"{count['held']:,}", count["share"], f"{minutes}:{seconds:02d}"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in [*cells, count["day"], facts]) + " |"


def worded(value: object) -> str:
    return ", ".join(f"{word} {inner}" for word, inner in value.items()) if isinstance(value, dict) else str(value)


if __name__ == "__main__":
    main()
