"""Accounts of rows: at every stage what came in is what came out and what was left out for a reason that is told."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.core.artifact import read_manifest
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derive import derive_corpus
from citeweave.corpus.derived_texts import DerivedTexts
from citeweave.corpus.ingest import exclude_papers, import_papers
from citeweave.corpus.split import split_by_share
from citeweave.corpus.text import sentences
from citeweave.encoders.embed import embed_papers
from citeweave.evaluation.links import hold_out
from citeweave.graph.citations import CitationGraph, build_graph
from citeweave.mining.formats.convert import export_samples
from citeweave.mining.formats.triplet_rows import ExportOptions
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.mining.samples import Samples
from citeweave.pipeline.recipe import load_recipe
from citeweave.search.build import IndexOptions, build_index, describe_index
from citeweave.search.export import to_bibtex, to_csv, to_json
from citeweave.search.index import Index

from .counting import Trial

# --- corpora by a seed: all that goes wrong in files of several formats; what is written is counted before a reader sees it

_TEXT = "graphs of citations tell how cells grow and models learn from data über naïve β 数学 ﬁne"
WORDS = _TEXT.split()
BROKEN = ('{"id": "x", "title": ', "[1, 2]", "null", "17", '"just a text"', "\x00\x01")
UNKNOWN = "nobody:0"


@dataclasses.dataclass
class Written:
    """What was written."""

    folder: Path
    rng: np.random.Generator
    files: list[Path] = dataclasses.field(default_factory=list)
    papers: int = 0
    """Records of papers, good and bad."""

    citations: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Citing and cited id of every citation that a reader can make out, in all files."""

    unread: int = 0
    """Citations that lack an end, or whose citing record is rejected."""

    contexts: int = 0

    def save(self, name: str, lines: list[str], *, papers: int = 0, end: str = "\n") -> None:
        self.papers += papers
        self.files.append(self.folder / name)
        self.files[-1].write_text("\n".join(lines) + end, encoding="utf-8")

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
    written.save("papers.jsonl", lines)


def _write_csv(written: Written, names: list[str]) -> None:
    rng, rows = written.rng, ["id,title,abstract,year"]
    for at in range(int(rng.integers(1, 8))):
        id, title = f"c:{at}" if rng.random() < 0.9 else "", _title(rng) if rng.random() < 0.9 else ""
        rows.append(f'{id},"{title}, ""quoted""",{"" if at % 2 else "Cells grow."},{2000 + at}')
    written.save("table.csv", rows, papers=len(rows) - 1)


def _write_bibtex(written: Written, names: list[str]) -> None:
    rng, entries = written.rng, ["@string{j = {Journal}}"]
    for at in range(int(rng.integers(1, 8))):
        title = f"title = {{{_title(rng)} of {at}}}," if rng.random() < 0.85 else "note = {none},"
        other = f"doi = {{10.1001/{3 * at}}}," if rng.random() < 0.4 else ""
        end = "}" if rng.random() < 0.9 else "abstract = {open"
        entries.append(f"\n@article{{key{int(rng.integers(5))}, {title} {other} journal = j, year = 20{at + 10}\n{end}")
    written.save("library.bib", entries, papers=len(entries) - 1)


def _write_ris(written: Written, names: list[str]) -> None:
    rng, records = written.rng, []
    for at in range(int(rng.integers(1, 6))):
        lines = ["TY  - JOUR", *([f"TI  - {_title(rng)} {at}"] if rng.random() < 0.8 else []), f"PY  - 20{at + 10}"]
        lines += [f"DO  - 10.1001/{3 * at}"] if rng.random() < 0.4 else []
        lines += ["ER  - "] if rng.random() < 0.9 else []
        records.append("\n".join(lines))
    written.save("export.ris", records, papers=len(records))


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
    written.save("savedrecs.txt", ["FN Clarivate\nVR 1.0", *records], papers=len(records), end="EF\n")


def _write_csl(written: Written, names: list[str]) -> None:
    rng = written.rng
    entries: list[Any] = [{"id": "first", "type": "article-journal", "title": _title(rng), "author": []}]
    for at in range(int(rng.integers(0, 5))):
        title = _title(rng) if rng.random() < 0.8 else ""
        entries.append({"id": f"z{at}", "type": "book", "title": title, "author": []})
    entries += [{}] * int(rng.integers(0, 2))
    written.save("zotero.json", [json.dumps(entries)], papers=len(entries))


def _write_openalex(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, []
    for at in range(int(rng.integers(1, 5))):
        has_id = at == 0 or rng.random() < 0.8
        cited = [f"https://openalex.org/W{int(rng.integers(1, 6))}" for _ in range(int(rng.integers(0, 4)))]
        id = f"https://openalex.org/W{at + 1}" if has_id else None
        work = {"id": id, "title": _title(rng), "referenced_works": cited}
        work |= {"doi": f"https://doi.org/10.1001/{3 * at}", "authorships": [], "publication_year": 2001 + at}
        written.cite(f"openalex:W{at + 1}", [f"openalex:{one.rpartition('/')[2]}" for one in cited], readable=has_id)
        lines.append(json.dumps(work))
    written.save("works.jsonl", lines, papers=len(lines))


def _write_crossref(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, []
    for at in range(int(rng.integers(1, 5))):
        has_id = at == 0 or rng.random() < 0.8
        count = int(rng.integers(0, 4))
        cited = [f"10.1001/{int(rng.integers(0, 9))}" if rng.random() < 0.8 else "" for _ in range(count)]
        work: dict[str, Any] = {"DOI": f"10.1003/{at}" if has_id else "", "title": [_title(rng)]}
        references = [{"key": "k", **({"DOI": one} if one else {})} for one in cited]
        work |= {"type": "journal-article", "is-referenced-by-count": 1, "reference": references}
        written.cite(f"doi:10.1003/{at}", [one and f"doi:{one}" for one in cited], readable=has_id)
        lines.append(json.dumps(work))
    written.save("crossref.jsonl", lines, papers=len(lines))


def _write_lists(written: Written, names: list[str]) -> None:
    """Reference lists beside the papers; a single id may stand for a list."""
    rng, lines = written.rng, []
    for name in [names[0], *_some(rng, [*names, UNKNOWN], 6)]:
        has_id = not lines or rng.random() < 0.9
        cited: Any = _cited(rng, names) if not lines or rng.random() < 0.8 else names[1]
        written.cite(name, cited if isinstance(cited, list) else [cited], readable=has_id)
        lines.append(json.dumps({"citing": name if has_id else None, "cited": cited}))
    written.save("references.jsonl", lines)


def _write_contexts(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, []
    for at in range(int(rng.integers(1, 12))):
        text = f"{_title(rng)} [1, 2] (Li, 2016)." if at == 0 or rng.random() < 0.9 else " "
        citing = names[int(rng.integers(len(names)))] if rng.random() < 0.9 else UNKNOWN
        cited = [one for one in _cited(rng, names) if one != citing]
        told = {"citing": citing, "text": text, "cited": cited, "section": "Intro"}
        lines += [json.dumps(told)] * (1 + (at % 4 == 3))
    written.contexts += len(lines)
    written.save("contexts.jsonl", lines)


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
    written.save("citations.tsv", lines, end="\n" * int(rng.integers(1, 3)))


def _write_commas(written: Written, names: list[str]) -> None:
    rng, lines = written.rng, ["citing,cited,count,intents"]
    for _ in range(int(rng.integers(1, 15))):
        citing, cited = (str(one) for one in rng.choice(names, 2))
        lines.append(f'{citing},"{cited}",3,method' if rng.integers(2) else f"{citing},{cited},x,")
        written.cite(citing, [cited])
    written.save("edges.csv", lines)


# --- accounts ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Hashed:
    """An encoder without a network: a text's vector is drawn by the text; one without a letter has none."""

    name: str = "hashed"
    revision: str = "1"
    dimension: int = 4

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        rows = [[len(text), *text.encode()[:3].ljust(3)] if "数" not in text else [0] * 4 for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 4)


def check_import(written: Written, corpus: Corpus) -> None:
    """Every record that was written was read, and is a row or has a reason; citations by what their ends are."""
    facts = corpus.manifest.facts
    records: dict[str, dict[str, Any]] = facts["records"]
    for kind, rows in (("papers", len(corpus)), ("citations", len(corpus.citing)), ("contexts", len(corpus.contexts))):
        _closes(records[kind], kind)
        assert records[kind]["kept"] == facts[kind] == rows, kind
    assert records["papers"]["read"] == written.papers
    assert records["contexts"]["read"] == written.contexts
    assert records["citations"]["read"] == len(written.citations) + written.unread
    citing, cited = (corpus.rows([pair[side] for pair in written.citations]) for side in (0, 1))
    both = (citing >= 0) & (cited >= 0)
    expected = {
        "citing and cited paper not in the corpus": int(((citing < 0) & (cited < 0)).sum()),
        "citing paper not in the corpus": int(((citing < 0) & (cited >= 0)).sum()),
        "cited paper not in the corpus": int(((citing >= 0) & (cited < 0)).sum()),
        "paper cites itself": int((both & (citing == cited)).sum()),
    }
    pairs = np.stack([citing, cited], axis=1)[both & (citing != cited)]
    distinct = np.unique(pairs, axis=0)
    expected["same citation given again (merged)"] = len(pairs) - len(distinct)
    rejected = records["citations"]["rejected"]
    assert {reason: rejected.get(reason, 0) for reason in expected} == expected
    assert sum(number for reason, number in rejected.items() if reason not in expected) == written.unread
    assert np.stack([corpus.citing, corpus.cited], axis=1).tolist() == distinct.tolist()


def _closes(count: Mapping[str, Any], kind: str) -> None:
    assert count["read"] == count["kept"] + sum(count["rejected"].values()), kind
    assert count["kept"] >= 0 and all(number > 0 for number in count["rejected"].values()), kind


def check_parts(corpus: Corpus, place: Path, rng: np.random.Generator) -> None:
    """Parts of a split, and a generation without some papers."""
    try:
        split = split_by_share(corpus.ids.take(np.arange(len(corpus))), validation=0.2, test=0.2, seed=1)
    except EmptyResultError:
        split = None
    if split is not None:
        parts = np.concatenate([split.train, split.validation, split.test])
        assert sorted(parts.tolist()) == list(range(len(corpus)))
        assert np.bincount(split.of_citations(corpus.citing), minlength=3).sum() == len(corpus.citing)
        assert sum(split.as_json()[name] for name in ("train", "validation", "test")) == len(corpus)
    rows = np.sort(rng.choice(len(corpus), len(corpus) // 4, replace=False))
    left = exclude_papers(corpus, rows, place / "left", why="held out")
    records = left.manifest.facts["records"]
    for kind in ("papers", "citations", "contexts"):
        _closes(records[kind], kind)
    assert left.manifest.facts["excluded"] == len(rows) == records["papers"]["rejected"].get("deleted on request", 0)
    assert records["papers"]["read"] == len(corpus) == len(left) + len(rows)
    assert records["citations"]["read"] == len(corpus.citing) + len(corpus.references_outside("citing"))
    assert records["citations"]["kept"] == len(left.citing)
    gone = np.isin(corpus.citing, rows) | np.isin(corpus.cited, rows)
    assert len(left.citing) == int((~gone).sum())


def check_graph(corpus: Corpus, graph: CitationGraph) -> None:
    """Edges, loops, repeats and what leads out are the citations; so are held-out ones and the others."""
    counts = graph.counts
    assert counts.nodes == len(corpus) and graph.edges == counts.edges
    given = len(corpus.citing) + len(corpus.references_outside("citing"))
    assert counts.edges + counts.to_itself + counts.duplicates + counts.dangling == given
    if graph.edges:
        held = hold_out(graph.sources(), graph.cited.targets, 0.2, 0)
        assert graph.keep_edges(~held).edges + int(held.sum()) == graph.edges


def check_samples(corpus: Corpus, graph: CitationGraph, place: Path, rng: np.random.Generator) -> Samples | None:
    """Anchors that came in are samples or were skipped for a reason."""
    drawn = int(rng.choice([0, 5]))
    asked = rng.choice(len(corpus), len(corpus) // 2, replace=False) if rng.random() < 0.3 else None
    rules = parse_rules(load_recipe("specter", [f"mining.anchors={drawn}"]).table("mining"))
    inputs = MiningInputs(graph=graph, anchors=asked)
    try:
        samples = mine_samples(corpus, rules, place / "samples", inputs, MiningOptions(workers=1))
    except EmptyResultError:
        return None
    facts = samples.manifest.facts
    assert facts["anchors"] == len(samples)
    assert facts["anchors"] + sum(facts["skipped"].values()) == (len(corpus) if asked is None else len(asked))
    assert sum(facts["rules_got"].values()) == len(samples.positives.rows) + len(samples.negatives.rows)
    return samples


def check_exports(corpus: Corpus, samples: Samples, place: Path, rng: np.random.Generator) -> None:
    """As many rows in a file as its account says, and all triplets in it or left out for a reason."""
    form = str(rng.choice(["parquet", "jsonl", "scincl", "scirepeval"]))
    is_own = form in ("parquet", "jsonl")
    to, options = ("sentence_transformers", ExportOptions(file_type=form)) if is_own else (form, None)
    told = export_samples(samples, corpus, place / "export", to=to, options=options)
    for kind, count in told["records"].items():
        _closes(count, kind)
    assert told["records"]["triplets"]["read"] == len(samples.triplets())
    assert told["records"]["samples"]["read"] == len(samples)
    path = next(place / "export" / name for name in told["files"] if "metadata" not in name)
    header = form == "scincl"
    rows = pq.read_metadata(path).num_rows if form == "parquet" else len(path.read_text().splitlines()) - header
    assert rows == told["records"]["triplets"]["kept"]


def check_vectors(corpus: Corpus, place: Path) -> None:
    vectors = embed_papers(corpus, Hashed(), place / "vectors")
    count = vectors.manifest.facts["records"]["vectors"]
    _closes(count, "vectors")
    assert count["read"] == len(corpus) and count["kept"] == len(vectors) == len(vectors.matrix)


def check_index(corpus: Corpus, place: Path) -> None:
    """All papers are documents, and each is exported once."""
    index: Index = build_index(corpus, "weave", place / "index", IndexOptions(vectors=False))
    assert len(index) == describe_index(index)["papers"] == len(corpus)
    assert sum(segment.words.size for segment in index.segments if segment.words is not None) == len(corpus)
    papers = [index.paper(row) for row in np.flatnonzero(index.alive).tolist()]
    assert to_bibtex(papers).count("\n}\n") == len(json.loads(to_json(papers))) == len(corpus)
    assert to_csv(papers).count("\n") == len(corpus) + 1


def check_derived(corpus: Corpus, place: Path, rng: np.random.Generator) -> None:
    """Texts that were made and those that were left out are all that there were."""
    of = str(rng.choice(["titles", "cloze", "contexts"]))
    options = DerivedTexts(of, least_words=3, **({"least_sentences": 2} if of == "cloze" else {}))
    try:
        made = derive_corpus(corpus, place / of, options)
    except (EmptyResultError, UserError):
        return
    facts = made.manifest.facts["derived"]
    rejected = facts["rejected"]
    for kind in ("papers", "citations", "contexts"):
        _closes(made.manifest.facts["records"][kind], kind)
    if of == "titles":
        assert facts["titles"] + sum(rejected.values()) == len(corpus)
    elif of == "contexts":
        assert facts["contexts"] + sum(rejected.values()) == len(corpus.contexts)
    else:
        abstracts = dict.fromkeys(corpus.abstracts.take(np.arange(len(corpus))))
        places = sum(1 for text in abstracts for a, b in sentences(text) if text[a:b].strip())
        by = {what: sum(n for why, n in rejected.items() if why.startswith(what)) for what in ("abstract", "sentence")}
        assert facts["papers"] + by["abstract"] == len(corpus)
        assert facts["sentences"] + by["sentence"] == places


def check_corpus(place: Path, seed: int) -> None:
    rng = np.random.default_rng([44, seed])
    written = write_corpus(place / "files", seed)
    corpus = import_papers(written.files, place / "corpus").corpus
    check_import(written, corpus)
    check_parts(corpus, place, rng)
    graph = build_graph(corpus, place / "graph")
    assert read_manifest(place / "graph", "graph", 1).facts["edges"] == graph.edges
    check_graph(corpus, graph)
    samples = check_samples(corpus, graph, place, rng)
    if samples is not None and len(samples.triplets()):
        check_exports(corpus, samples, place, rng)
    check_vectors(corpus, place)
    check_index(corpus, place)
    check_derived(corpus, place, rng)


def test_row_accounts(trial: Trial, tmp_path: Path) -> None:
    for seed in trial.numbers(quick=10, whole=1000):
        with trial.attempt(f"seed {seed}"):
            check_corpus(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
