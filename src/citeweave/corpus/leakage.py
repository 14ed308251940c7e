"""Leakage audit: which papers of a corpus are papers of a benchmark, by id, DOI, title or near-duplicate text.

    >>> corpus = PaperTable(
    ...     ids=["s2:1", "s2:2", "s2:3"],
    ...     titles=["Attention is all you need", "Deep parsing", "A new map of the old parsing literature"],
    ...     other_ids=[(), ("doi:10.1000/x",), ()])
    >>> benchmark = PaperTable(
    ...     ids=["a", "b"],
    ...     titles=["Attention Is All You Need!", "Deeper parsing"],
    ...     other_ids=[(), ("doi:10.1000/X",)])
    >>> report = audit_leakage(corpus, {"toy": benchmark})
    >>> [(match.corpus_row, match.benchmark_row, match.strongest.name) for match in report.benchmarks["toy"]]
    [(0, 0, 'TITLE'), (1, 1, 'OTHER_ID')]
    >>> report.rows_to_exclude().tolist()
    [0, 1]

The rules, strongest first:

1. id: both papers have the same id. Only ids with a prefix (`s2:1234`) are compared, since a bare `1234`
   may be another paper elsewhere, unless `same_id_space` is set.
2. other_id: they share any prefixed id (DOI, arXiv, ...).
3. title: the same title after `fold`. A short title (under 4 words or 20 letters) needs two words and known
   years at most 2 apart; a title of more than 10 papers on either side is generic ("letter to the editor")
   and ignored. Subtitles are not cut off: different works share the text before a colon ("SemEval ... Task 4").
4. text: title and abstract have at least 20 distinct word triples, and share half of those of the shorter.
5. near_title: where one of the two has too little text for rule 4, both titles have at least 8 distinct
   word pairs and share 0.6 of all of them.

Rules 4 and 5 are exact (`near_duplicates.py`); nothing here is random. Benchmarks are read from a corpus folder or from
files of any known format, and held in memory, at most `papers_per_pass` at a time; the corpus is streamed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import MANIFEST
from citeweave.core.errors import InputError, UserError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.identity import MINIMUM_TITLE_LETTERS, MINIMUM_TITLE_WORDS, doi_id
from citeweave.corpus.input_files import find_inputs
from citeweave.corpus.near_duplicates import DuplicateThreshold, ShingleIndex, shingle_texts
from citeweave.corpus.options import LeakageOptions
from citeweave.corpus.paper import Paper
from citeweave.corpus.plain_text import fold
from citeweave.corpus.readers import reader_of


class LeakageEvidence(enum.IntFlag):
    """Why a corpus paper and a benchmark paper count as the same; a larger value is stronger evidence."""

    NEAR_TITLE = 1
    """Almost the same long title, where one of them has no abstract to compare."""

    TEXT = 2
    """Title and abstract share most of their word triples."""

    TITLE = 4
    """The same title, letters and digits only."""

    OTHER_ID = 8
    """A DOI, arXiv id or similar that both have."""

    ID = 16
    """The id that the paper has in both tables."""

    ANY = 31


KINDS = tuple(sorted(LeakageEvidence, reverse=True))
"""All evidence, strongest first."""


class LeakedPaper(NamedTuple):
    """A corpus paper that is also a benchmark paper, with the evidence."""

    corpus_row: int
    benchmark_row: int
    evidence: LeakageEvidence
    """All evidence that applies."""

    strongest: LeakageEvidence
    similarity: float
    """Containment of the texts or Jaccard index of near titles; NaN where neither rule applied."""


@dataclass(frozen=True, slots=True)
class BenchmarkLeakage:
    """The papers of one benchmark that are in the corpus, as arrays with one pair per position, by corpus row."""

    papers: int
    """Number of papers in the benchmark."""

    corpus_rows: NDArray[np.int64]
    benchmark_rows: NDArray[np.int64]
    evidence: NDArray[np.uint8]
    similarity: NDArray[np.float32]
    generic_titles: int = 0
    """Number of titles that both sides have but that too many papers share."""

    def __len__(self) -> int:
        return len(self.corpus_rows)

    def __iter__(self) -> Iterator[LeakedPaper]:
        columns = (self.corpus_rows, self.benchmark_rows, self.evidence, self.similarity)
        for corpus_row, benchmark_row, evidence, similarity in zip(*(c.tolist() for c in columns), strict=True):
            strongest = LeakageEvidence(1 << (evidence.bit_length() - 1))
            yield LeakedPaper(corpus_row, benchmark_row, LeakageEvidence(evidence), strongest, similarity)

    def rows(self, evidence: LeakageEvidence = LeakageEvidence.ANY) -> NDArray[np.int64]:
        """Return the corpus rows that leak this benchmark by any of these kinds of evidence, sorted."""
        return np.unique(self.corpus_rows[(self.evidence & evidence.value) > 0])

    def as_json(self) -> dict[str, object]:
        """Return counts of papers: `strongest` adds up to `corpus_papers`, `evidence` counts a paper once per kind."""
        rows, place = np.unique(self.corpus_rows, return_inverse=True)
        held = np.zeros(len(rows), np.uint8)
        np.bitwise_or.at(held, place, self.evidence)
        return {
            "papers": self.papers,
            "papers_found": len(np.unique(self.benchmark_rows)),
            "corpus_papers": len(rows),
            "strongest": {
                _evidence_name(kind): int(((held & kind.value > 0) & (held < 2 * kind.value)).sum()) for kind in KINDS
            },  # below twice its value nothing is stronger than the kind
            "evidence": {_evidence_name(kind): int((held & kind.value > 0).sum()) for kind in KINDS},
            "generic_titles": self.generic_titles,
        }


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """The papers of every benchmark that are in the corpus. `str()` returns a table of the counts."""

    corpus_papers: int
    benchmarks: dict[str, BenchmarkLeakage]
    options: dict[str, object] = field(default_factory=dict)

    def rows_to_exclude(self, evidence: LeakageEvidence = LeakageEvidence.ANY) -> NDArray[np.int64]:
        """Return the corpus rows that are papers of any benchmark, to exclude them from training; sorted, each once."""
        rows = [benchmark.rows(evidence) for benchmark in self.benchmarks.values()]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *rows]))

    def as_json(self) -> dict[str, object]:
        return {
            "corpus_papers": self.corpus_papers,
            "exclude": len(self.rows_to_exclude()),
            "benchmarks": {name: benchmark.as_json() for name, benchmark in self.benchmarks.items()},
            "options": dict(self.options),
        }

    def __str__(self) -> str:
        heads = ["benchmark", "papers", "found", "corpus papers", *(f"by {_evidence_name(kind)}" for kind in KINDS)]
        lines = [heads]
        for name, benchmark in self.benchmarks.items():
            counts = benchmark.as_json()
            strongest: dict[str, int] = counts["strongest"]  # type: ignore[assignment]
            numbers = [counts["papers"], counts["papers_found"], counts["corpus_papers"], *strongest.values()]
            lines.append([name, *(f"{number:,}" for number in numbers)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        exclude = len(self.rows_to_exclude())
        rows.append(f"{exclude:,} of {self.corpus_papers:,} corpus papers are in a benchmark (counted by strongest)")
        return "\n".join(rows)


def _evidence_name(kind: LeakageEvidence) -> str:
    """Return the name of a kind of leakage evidence in reports.

    >>> _evidence_name(LeakageEvidence.OTHER_ID)
    'other_id'
    """
    return str(kind.name).lower()


# --- the audit ---------------------------------------------------------------------------------------

TEXT_WORDS, TEXT_MINIMUM = 3, 20
TITLE_WORDS, TITLE_MINIMUM = 2, 8
GENERIC = 10
YEARS_APART = 2
BLOCK = 4096


Ids = str | tuple[str, ...]
"""Ids of a paper: a tuple, or a text with one per line, as a corpus stores them."""


@dataclass(slots=True)
class PaperTable:
    """Columns of papers for the leakage audit, one entry per paper; omitted columns are empty.

    Columns may be lazy, such as those of a corpus: only `len`, `[i]` and iteration are used.
    """

    ids: Sequence[str]
    titles: Sequence[str] = ()
    abstracts: Sequence[str] = ()
    years: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """0 = unknown."""

    other_ids: Sequence[Ids] = ()

    def __post_init__(self) -> None:
        number = len(self.ids)
        self.titles = self.titles or [""] * number
        self.abstracts = self.abstracts or [""] * number
        self.years = np.asarray(self.years, np.int32) if len(self.years) else np.zeros(number, np.int32)
        self.other_ids = self.other_ids or [()] * number

    @classmethod
    def of_corpus(cls, corpus: Corpus) -> PaperTable:
        """Return the papers of a corpus, whose columns stay on disk."""
        return cls(corpus.ids, corpus.titles, corpus.abstracts, corpus.years.astype(np.int32), corpus.other_ids)


def audit_leakage(
    corpus: PaperTable, benchmarks: Mapping[str, PaperTable], options: LeakageOptions | None = None
) -> LeakageReport:
    """Find the papers of every benchmark that are in the corpus, by the five rules of this module."""
    options = options or LeakageOptions()
    for name, table in {"the corpus": corpus, **benchmarks}.items():
        _check_lengths(name, table)
    audits = {name: _BenchmarkPairs(table, options) for name, table in benchmarks.items()}
    _look_up_keys(corpus, list(audits.values()), options)
    for audit in audits.values():
        audit.add_seen(corpus.years)
    if options.near_duplicates:
        for group in _passes(benchmarks, options.papers_per_pass):
            _look_up_texts(corpus, [_BenchmarkShingles(audits[name], rows) for name, rows in group], options)
    return LeakageReport(len(corpus.ids), {name: audit.merge() for name, audit in audits.items()}, asdict(options))


def _check_lengths(name: str, table: PaperTable) -> None:
    for column in ("titles", "abstracts", "years", "other_ids"):
        if len(getattr(table, column)) != len(table.ids):
            lengths = f"{len(table.ids)} ids and {len(getattr(table, column))} {column}"
            raise UserError(f"{name} has {lengths}; every column must have one entry per paper, empty where unknown")


class _BenchmarkPairs:
    """Pairs of corpus papers and papers of one benchmark with their evidence, collected rule by rule."""

    def __init__(self, table: PaperTable, options: LeakageOptions) -> None:
        self.table = table
        self.known: dict[str, list[int]] = {}  # key of an id or a title -> benchmark rows
        self.seen: dict[str, list[int]] = {}  # key -> corpus rows
        self._generic = 0
        kinds = (np.int64, np.int64, np.uint8, np.float32)  # corpus row, benchmark row, evidence, similarity
        self._pieces: list[tuple[NDArray[Any], ...]] = [tuple(np.zeros(0, kind) for kind in kinds)]
        columns = zip(table.ids, table.other_ids, table.titles, strict=True)
        for row, (own, others, title) in enumerate(columns):
            for key in _keys_of(own, others, title, same_id_space=options.same_id_space):
                self.known.setdefault(key, []).append(row)

    def add(
        self,
        corpus_rows: NDArray[np.int64],
        benchmark_rows: NDArray[np.int64],
        evidence: LeakageEvidence,
        similarity: NDArray[np.float32] | None = None,
    ) -> None:
        """Add pairs of corpus and benchmark papers by one rule."""
        kinds = np.full(len(corpus_rows), evidence.value, np.uint8)
        similarity = np.full(len(corpus_rows), np.nan, np.float32) if similarity is None else similarity
        self._pieces.append((corpus_rows, benchmark_rows, kinds, similarity))

    def add_seen(self, corpus_years: NDArray[np.int32]) -> None:
        """Add the pairs of corpus and benchmark papers that share an id or a title."""
        for key, rows in self.seen.items():
            known, kind = self.known[key], _KEY_KINDS[key[0]]
            if len(rows) > GENERIC or len(known) > GENERIC:
                if kind is LeakageEvidence.TITLE:
                    self._generic += 1
                    continue
                known = known[:1]  # the id counts, but not all its pairs are listed
            corpus_rows, benchmark_rows = np.repeat(rows, len(known)), np.tile(known, len(rows))
            if kind is LeakageEvidence.TITLE and _is_short(key[1:]):
                years, others = corpus_years[corpus_rows], self.table.years[benchmark_rows]
                close = (years > 0) & (others > 0) & (abs(years - others) <= YEARS_APART)
                corpus_rows, benchmark_rows = corpus_rows[close], benchmark_rows[close]
            self.add(corpus_rows, benchmark_rows, kind)

    def merge(self) -> BenchmarkLeakage:
        """Merge the collected pairs of leaked and benchmark papers into one entry per pair, with all its evidence."""
        papers = len(self.table.ids)
        rows, others, kinds, values = map(np.concatenate, zip(*self._pieces, strict=True))
        pairs, place = np.unique(rows * max(papers, 1) + others, return_inverse=True)
        evidence = np.zeros(len(pairs), np.uint8)
        np.bitwise_or.at(evidence, place, kinds)
        similarity = np.full(len(pairs), np.nan, np.float32)
        np.fmax.at(similarity, place, values)
        return BenchmarkLeakage(papers, *np.divmod(pairs, max(papers, 1)), evidence, similarity, self._generic)


_KEY_KINDS = {"=": LeakageEvidence.ID, "~": LeakageEvidence.OTHER_ID, "t": LeakageEvidence.TITLE}


def _keys_of(own: str, others: Ids, title: str, *, same_id_space: bool) -> list[str]:
    """Return the keys by which a paper is recognized in a benchmark; the first character is the kind.

    >>> _keys_of("s2:7", ("doi:10.1000/X",), "Deep Parsing", same_id_space=False)
    ['=s2:7', '~s2:7', '~doi:10.1000/x', 'tdeep parsing']
    >>> _keys_of("7", (), "Editorial", same_id_space=False)
    []
    """
    keys = [f"={own}"] if own and (same_id_space or ":" in own) else []
    for name in dict.fromkeys((own, *(lines(others) if isinstance(others, str) else others))):
        if ":" in name:
            keys.append(f"~{(doi_id(name) or name) if name.startswith('doi:') else name}")
    folded = fold(title)
    if " " in folded:
        keys.append(f"t{folded}")
    return keys


def _is_short(folded: str) -> bool:
    return len(folded) < MINIMUM_TITLE_LETTERS or folded.count(" ") + 1 < MINIMUM_TITLE_WORDS


def _look_up_keys(corpus: PaperTable, benchmarks: Sequence[_BenchmarkPairs], options: LeakageOptions) -> None:
    """Note the corpus rows that share an id or a title with a benchmark (rules 1 to 3)."""
    for row, (own, others, title) in enumerate(zip(corpus.ids, corpus.other_ids, corpus.titles, strict=True)):
        for key in _keys_of(own, others, title, same_id_space=options.same_id_space):
            for benchmark in benchmarks:
                if key in benchmark.known:
                    benchmark.seen.setdefault(key, []).append(row)


def _passes(benchmarks: Mapping[str, PaperTable], limit: int) -> Iterator[list[tuple[str, range]]]:
    """Yield groups of benchmark papers to hold in memory together.

    >>> tables = {"a": PaperTable(["x"] * 5), "b": PaperTable(["x"])}
    >>> list(_passes(tables, 3))
    [[('a', range(0, 3))], [('a', range(3, 5)), ('b', range(0, 1))]]
    """
    group: list[tuple[str, range]] = []
    room = limit
    for name, table in benchmarks.items():
        start, stop = 0, len(table.ids)
        while start < stop:
            end = min(stop, start + room)
            group.append((name, range(start, end)))
            room -= end - start
            start = end
            if room == 0:
                yield group
                group, room = [], limit
    if group:
        yield group


class _BenchmarkShingles:
    """The word shingles of some papers of one benchmark."""

    def __init__(self, pairs: _BenchmarkPairs, rows: range) -> None:
        self.first, self.pairs = rows.start, pairs
        titles, texts = _texts_of(pairs.table, rows)
        self.titles = ShingleIndex.build(shingle_texts(titles, TITLE_WORDS))
        shingles = shingle_texts(texts, TEXT_WORDS)
        self.has_text = np.diff(shingles.bounds) >= TEXT_MINIMUM
        self.texts = ShingleIndex.build(shingles)


def _texts_of(table: PaperTable, rows: range) -> tuple[list[str], list[str]]:
    titles = [table.titles[row] for row in rows]
    return titles, [f"{title}\n{table.abstracts[row]}" for row, title in zip(rows, titles, strict=True)]


def _look_up_texts(corpus: PaperTable, benchmarks: Sequence[_BenchmarkShingles], options: LeakageOptions) -> None:
    """Add the pairs of corpus and benchmark papers with near-duplicate texts or titles (rules 4 and 5)."""
    by_text = DuplicateThreshold(containment=options.containment, minimum=TEXT_MINIMUM)
    by_title = DuplicateThreshold(jaccard=options.title_similarity, minimum=TITLE_MINIMUM)
    for start in range(0, len(corpus.ids), BLOCK):
        titles, texts = _texts_of(corpus, range(start, min(start + BLOCK, len(corpus.ids))))
        title_shingles, text_shingles = shingle_texts(titles, TITLE_WORDS), shingle_texts(texts, TEXT_WORDS)
        has_text = np.diff(text_shingles.bounds) >= TEXT_MINIMUM  # (block,)
        for part in benchmarks:
            near = part.texts.find(text_shingles, by_text)
            part.pairs.add(near.queries + start, near.rows + part.first, LeakageEvidence.TEXT, near.containment)
            near = part.titles.find(title_shingles, by_title)
            short = ~(has_text[near.queries] & part.has_text[near.rows])
            rows, others = near.queries[short] + start, near.rows[short] + part.first
            part.pairs.add(rows, others, LeakageEvidence.NEAR_TITLE, near.jaccard[short])


# --- the papers of a corpus or a benchmark -----------------------------------------------------------


def load_paper_table(path: Path) -> PaperTable:
    """Load the papers of a benchmark from a corpus folder, a data folder or a file."""
    if (path / MANIFEST).is_file():
        return PaperTable.of_corpus(Corpus.open(path))
    papers: list[Paper] = []
    for file in find_inputs([path], None, keep_outside=False).files:
        records = reader_of(file.format).read(Source(file.path), Tally())
        papers += [record for record in records if isinstance(record, Paper) and not record.stub]
    if not papers:
        raise InputError(f"{path} holds no papers to audit against; give a corpus, or files of papers")
    return PaperTable(
        ids=[paper.id for paper in papers],
        titles=[paper.title for paper in papers],
        abstracts=[paper.abstract for paper in papers],
        years=np.array([paper.year or 0 for paper in papers], np.int32),
        other_ids=[paper.ids for paper in papers],
    )


def audit_corpus(
    corpus: Corpus, benchmarks: Mapping[str, str | Path | Corpus], options: LeakageOptions | None = None
) -> LeakageReport:
    """Find the papers of benchmarks in a corpus, by id, title and text, so that they can be left out of training.

    `benchmarks` maps a name of your choice to a corpus, a folder or a file. `exclude_papers` leaves papers out.
    """
    tables = {
        name: PaperTable.of_corpus(source) if isinstance(source, Corpus) else load_paper_table(Path(source))
        for name, source in benchmarks.items()
    }
    return audit_leakage(PaperTable.of_corpus(corpus), tables, options)
