"""Summary of a corpus for `citeweave info`: counts, coverage, years, degrees, rejected records, examples."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import release
from citeweave.corpus.corpus import STUB, Corpus

_STEP = 1 << 24
_LEVELS = (0, 1, 2, 5, 10, 20, 50, 100, 1000, 10000)


def summarize(corpus: Corpus, *, samples: int = 3) -> dict[str, Any]:
    """Summarize a corpus: counts, coverage, years, degrees, rejected records by reason, and some example papers."""
    facts = corpus.manifest.facts
    records = facts["records"]
    papers = len(corpus)
    abstracts = _filled(corpus.abstracts.offsets)
    rejected: dict[str, int] = {}
    for kind in records.values():
        for reason, number in kind["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + number
    return {
        "papers": papers,
        "abstracts": abstracts,
        "citations": len(corpus.citing),
        "contexts": len(corpus.contexts),
        "rejected": dict(sorted(rejected.items(), key=lambda item: -item[1])),
        "records": records,
        "notes": facts["notes"],
        "titles": _filled(corpus.titles.offsets),
        "with_year": int((corpus.years > 0).sum()),
        "known_only_as_reference": int((corpus.flags & STUB > 0).sum()),
        "years": _years(corpus.years),
        "references_per_paper": _degrees(corpus, corpus.citing),
        "citations_per_paper": _degrees(corpus, corpus.cited),
        "citations_with_intent": int((corpus.intents > 0).sum()),
        "contexts_with_two_or_more_papers": int((np.diff(corpus.contexts.cited_offsets) >= 2).sum()),
        "references_outside": len(corpus.references_outside("key")),
        "generation": facts.get("generation", 1),
        "changes": facts.get("changes"),
        "deletions_not_found": facts.get("deletions_not_found", 0),
        "formats": facts.get("formats", {}),
        "files": facts.get("files", {}),
        "skipped_files": facts.get("skipped_files", {}),
        "made_up": bool(facts.get("made_up", False)),
        "hash": corpus.hash,
        "samples": [_sample(corpus, row) for row in _spread(papers, samples)],
    }


def list_merges(corpus: Corpus) -> list[dict[str, Any]]:
    """List every paper that was merged from several records, with the ids of those records and their files."""
    rows, parts, ids = corpus.merges()
    names = corpus.manifest.facts["parts"]
    corpus.check_rows(rows)
    merged: dict[int, list[dict[str, str]]] = {}
    for row, part, id in zip(rows.tolist(), parts.tolist(), ids, strict=True):
        merged.setdefault(row, []).append({"id": id, "file": names[part] if 0 <= part < len(names) else ""})
    return [{"paper": corpus.ids[row], "records": records} for row, records in sorted(merged.items())]


def _filled(offsets: NDArray[np.int64]) -> int:
    """Return the number of non-empty texts of a column."""
    return int((np.diff(offsets) > 0).sum())


def _years(years: NDArray[np.int16]) -> dict[str, int]:
    """Return the number of papers of each year."""
    values, counts = np.unique(years, return_counts=True)
    return {str(year) if year else "unknown": int(n) for year, n in zip(values.tolist(), counts.tolist(), strict=True)}


def _degrees(corpus: Corpus, ends: NDArray[np.int32]) -> dict[str, Any]:
    """Summarize the number of references or citations per paper: mean, median, largest, and papers above some levels."""
    if not len(corpus):
        return {"mean": 0.0, "median": 0, "largest": 0, "papers_with_at_least": {}}
    degrees = np.zeros(len(corpus), np.int64)
    for start in range(0, len(ends), _STEP):
        corpus.check_rows(ends[start : start + _STEP])
        np.add.at(degrees, ends[start : start + _STEP], 1)
    release(ends)
    return {
        "mean": round(float(degrees.mean()), 3),
        "median": int(np.median(degrees)),
        "largest": int(degrees.max()),
        "papers_with_at_least": {str(n): int((degrees >= n).sum()) for n in _LEVELS if n and n <= degrees.max()},
    }


def _spread(papers: int, samples: int) -> list[int]:
    """Return rows of example papers, evenly spread over the corpus from the first to the last."""
    number = max(0, min(samples, papers))
    return sorted({round(i * (papers - 1) / max(number - 1, 1)) for i in range(number)})


def _sample(corpus: Corpus, row: int) -> dict[str, Any]:
    """Return an example paper as a dictionary of its non-empty fields, with a shortened abstract."""
    paper = asdict(corpus.paper(row))
    paper["abstract"] = paper["abstract"][:300]
    return {key: value for key, value in paper.items() if value not in ("", None, (), {}, [], False, 0)}
