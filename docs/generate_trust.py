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
    "kills": "Kills",
    "full_disks": "Full and failing disks",
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
    return "\n".join([HEAD, *told])


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
