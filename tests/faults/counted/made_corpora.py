"""Corpora made by a seed: files of several formats with all that goes wrong in them, and how much was written into each.

    written = write_corpus(folder, seed)
    written.files, written.papers, len(written.citations), written.contexts

What is counted here is counted while it is written, before any reader sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_TEXT = "graphs of citations tell how cells grow and models learn from data über naïve β 数学 ﬁne"
WORDS = _TEXT.split()
BROKEN = ('{"id": "x", "title": ', "[1, 2]", "null", "17", '"just a text"', "\x00\x01")
UNKNOWN = "nobody:0"


@dataclass
class Written:
    """What was written."""

    folder: Path
    rng: np.random.Generator
    files: list[Path] = field(default_factory=list)
    papers: int = 0
    """Records of papers, good and bad."""

    citations: list[tuple[str, str]] = field(default_factory=list)
    """Citing and cited id of every citation that a reader can make out, in all files."""

    unread: int = 0
    """Citations that lack an end, or whose citing record is rejected."""

    contexts: int = 0

    def save(self, name: str, text: str) -> None:
        self.files.append(self.folder / name)
        self.files[-1].write_text(text, encoding="utf-8")

    def cite(self, citing: str, cited: Iterable[object], *, readable: bool = True) -> None:
        for one in cited:
            if readable and isinstance(one, str) and one.strip():
                self.citations.append((citing, one))
            else:
                self.unread += 1


def write_corpus(folder: Path, seed: int) -> Written:
    """Files of papers, citations and contexts; plain ones always, others by the seed."""
    folder.mkdir(parents=True)
    written = Written(folder, np.random.default_rng([4, seed]))
    number = int(written.rng.integers(12, 40))
    names = [f"p:{at}" if at % 3 else f"doi:10.1001/{at}" for at in range(number)]
    _write_json_lines(written, names)
    others: tuple[Callable[[Written, list[str]], None], ...] = (
        _write_csv, _write_bibtex, _write_ris, _write_web_of_science, _write_csl, _write_openalex, _write_crossref,
        _write_lists, _write_contexts, _write_tabs, _write_commas,
    )  # fmt: skip
    for write in others:
        if written.rng.random() < 0.6:
            write(written, names)
    return written


def _title(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, int(rng.integers(2, 8))))


def _abstract(rng: np.random.Generator) -> str:
    count = int(rng.integers(0, 5))
    return " ".join(" ".join(rng.choice(WORDS, int(rng.integers(3, 12)))).capitalize() + "." for _ in range(count))


def _some(rng: np.random.Generator, names: list[str], most: int) -> list[str]:
    return [names[at] for at in rng.integers(0, len(names), int(rng.integers(0, most))).tolist()]


def _cited(rng: np.random.Generator, names: list[str]) -> list[Any]:
    """References of a paper: known, unknown, itself perhaps, twice perhaps, empty ones."""
    found: list[Any] = [*_some(rng, names, 6), *([UNKNOWN] * int(rng.integers(0, 2)))]
    found += [[None], [""], [{}], [], [], []][int(rng.integers(6))]
    return found


def _write_json_lines(written: Written, names: list[str]) -> None:
    """The papers themselves; some twice, some without an id or a text, some no JSON."""
    rng, lines = written.rng, []
    for name in [*names, *_some(rng, names, 5)]:
        paper = {"id": name, "title": _title(rng), "abstract": _abstract(rng), "year": int(rng.integers(1990, 2024))}
        kind, cited = rng.random(), _cited(rng, names)
        if kind < 0.05:
            paper["id"] = ""
        elif kind < 0.1:
            paper |= {"title": " ", "abstract": ""}
        elif kind < 0.2:
            paper["abstract"] = ""
        if rng.random() < 0.05:
            paper["references"] = "p:1, p:2"
            written.unread += 1
        else:
            paper["references"] = cited
            written.cite(name, cited, readable=not kind < 0.1)
        lines.append(json.dumps(paper, ensure_ascii=bool(rng.integers(2))))
    for broken in rng.choice(BROKEN, int(rng.integers(0, 4))).tolist():
        lines.insert(int(rng.integers(1, len(lines))), broken)
    written.papers += len(lines)
    for _ in range(int(rng.integers(0, 3))):
        lines.insert(int(rng.integers(1, len(lines))), "")
    written.save("papers.jsonl", "\n".join(lines) + "\n")


def _write_csv(written: Written, names: list[str]) -> None:
    rng, rows = written.rng, ["id,title,abstract,year"]
    for at in range(int(rng.integers(1, 8))):
        id, title = f"c:{at}" if rng.random() < 0.9 else "", _title(rng) if rng.random() < 0.9 else ""
        rows.append(f'{id},"{title}, ""quoted""",{"" if at % 2 else "Cells grow."},{2000 + at}')
    written.papers += len(rows) - 1
    written.save("table.csv", "\n".join(rows) + "\n")


def _write_bibtex(written: Written, names: list[str]) -> None:
    rng, entries = written.rng, ["@string{j = {Journal}}"]
    for at in range(int(rng.integers(1, 8))):
        title = f"title = {{{_title(rng)} of {at}}}," if rng.random() < 0.85 else "note = {none},"
        other = f"doi = {{10.1001/{3 * at}}}," if rng.random() < 0.4 else ""
        end = "}" if rng.random() < 0.9 else "abstract = {open"
        entries.append(f"@article{{key{int(rng.integers(5))}, {title} {other} journal = j, year = 20{at + 10}\n{end}")
    written.papers += len(entries) - 1
    written.save("library.bib", "\n\n".join(entries) + "\n")


def _write_ris(written: Written, names: list[str]) -> None:
    rng, records = written.rng, []
    for at in range(int(rng.integers(1, 6))):
        lines = ["TY  - JOUR", *([f"TI  - {_title(rng)} {at}"] if rng.random() < 0.8 else []), f"PY  - 20{at + 10}"]
        lines += ([f"DO  - 10.1001/{3 * at}"] if rng.random() < 0.4 else []) + (
            ["ER  - "] if rng.random() < 0.9 else []
        )
        records.append("\n".join(lines))
    written.papers += len(records)
    written.save("export.ris", "\n".join(records) + "\n")


def _write_web_of_science(written: Written, names: list[str]) -> None:
    rng, records = written.rng, []
    for at in range(int(rng.integers(1, 4))):
        good = rng.random() < 0.8
        lines = ["PT J", *([f"TI {_title(rng)}"] if good else []), f"DI 10.1002/{at}", f"UT WOS:{at}"]
        for place in range(int(rng.integers(0, 4))):
            usable = bool(rng.integers(2))
            lines.append(f"{'   ' if place else 'CR '}LAW C, 2003, RES, V{place}" + ", DOI 10.1001/3" * usable)
            written.cite(f"doi:10.1002/{at}", ["doi:10.1001/3" if usable else ""], readable=good)
        records.append("\n".join([*lines, "ER", ""]))
    written.papers += len(records)
    written.save("savedrecs.txt", "FN Clarivate\nVR 1.0\n" + "\n".join(records) + "EF\n")


def _write_csl(written: Written, names: list[str]) -> None:
    rng = written.rng
    entries: list[Any] = [{"id": "first", "type": "article-journal", "title": _title(rng), "author": []}]
    for at in range(int(rng.integers(0, 5))):
        entries.append(
            {"id": f"z{at}", "type": "book", "title": _title(rng) if rng.random() < 0.8 else "", "author": []}
        )
    entries += [{}] * int(rng.integers(0, 2))
    written.papers += len(entries)
    written.save("zotero.json", json.dumps(entries))


def _write_openalex(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, []
    for at in range(int(rng.integers(1, 5))):
        has_id = at == 0 or rng.random() < 0.8
        cited = [f"https://openalex.org/W{int(rng.integers(1, 6))}" for _ in range(int(rng.integers(0, 4)))]
        work = {
            "id": f"https://openalex.org/W{at + 1}" if has_id else None,
            "title": _title(rng),
            "referenced_works": cited,
        }
        work |= {"doi": f"https://doi.org/10.1001/{3 * at}", "authorships": [], "publication_year": 2001 + at}
        written.cite(f"openalex:W{at + 1}", [f"openalex:{one.rpartition('/')[2]}" for one in cited], readable=has_id)
        lines.append(json.dumps(work))
    written.papers += len(lines)
    written.save("works.jsonl", "\n".join(lines) + "\n")


def _write_crossref(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, []
    for at in range(int(rng.integers(1, 5))):
        has_id = at == 0 or rng.random() < 0.8
        cited = [
            f"10.1001/{int(rng.integers(0, 9))}" if rng.random() < 0.8 else "" for _ in range(int(rng.integers(0, 4)))
        ]
        work: dict[str, Any] = {
            "DOI": f"10.1003/{at}" if has_id else "",
            "title": [_title(rng)],
            "type": "journal-article",
        }
        work |= {
            "is-referenced-by-count": 1,
            "reference": [{"key": "k", **({"DOI": one} if one else {})} for one in cited],
        }
        written.cite(f"doi:10.1003/{at}", [one and f"doi:{one}" for one in cited], readable=has_id)
        lines.append(json.dumps(work))
    written.papers += len(lines)
    written.save("crossref.jsonl", "\n".join(lines) + "\n")


def _write_lists(written: Written, names: list[str]) -> None:
    """Reference lists beside the papers; a single id may stand for a list."""
    rng, lines = written.rng, []
    for name in [names[0], *_some(rng, [*names, UNKNOWN], 6)]:
        has_id = not lines or rng.random() < 0.9
        cited: Any = _cited(rng, names) if not lines or rng.random() < 0.8 else names[1]
        written.cite(name, cited if isinstance(cited, list) else [cited], readable=has_id)
        lines.append(json.dumps({"citing": name if has_id else None, "cited": cited}))
    written.save("references.jsonl", "\n".join(lines) + "\n")


def _write_contexts(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, []
    for at in range(int(rng.integers(1, 12))):
        text = f"{_title(rng)} [1, 2] (Li, 2016)." if at == 0 or rng.random() < 0.9 else " "
        citing = names[int(rng.integers(len(names)))] if rng.random() < 0.9 else UNKNOWN
        cited = [one for one in _cited(rng, names) if one != citing]
        lines += [json.dumps({"citing": citing, "text": text, "cited": cited, "section": "Intro"})] * (
            1 + (at % 4 == 3)
        )
    written.contexts += len(lines)
    written.save("contexts.jsonl", "\n".join(lines) + "\n")


def _write_tabs(written: Written, names: list[str]) -> None:
    """Citations without a header: ids and numbers, with and without a strength, some lacking an end."""
    rng, lines = written.rng, []
    for at in range(int(rng.integers(3, 30))):
        citing, cited = (str(one) for one in rng.choice([*names, UNKNOWN], 2))
        if rng.random() < 0.2:
            citing, cited = str(int(rng.integers(9))), str(int(rng.integers(9)))
        cited = "" if at > 3 and rng.random() < 0.1 else cited
        written.cite(citing, [cited])
        lines.append(f"{citing}\t{cited}" + "\t2" * int(rng.integers(2)))
    written.save("citations.tsv", "\n".join(lines) + "\n" * int(rng.integers(1, 3)))


def _write_commas(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, ["citing,cited,count,intents"]
    for _ in range(int(rng.integers(1, 15))):
        citing, cited = (str(one) for one in rng.choice(names, 2))
        lines.append(f'{citing},"{cited}",3,method' if rng.integers(2) else f"{citing},{cited},x,")
        written.cite(citing, [cited])
    written.save("edges.csv", "\n".join(lines) + "\n")
