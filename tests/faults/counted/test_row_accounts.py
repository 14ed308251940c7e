"""Accounts of rows: at every stage what came in is what came out and what was left out for a reason that is told."""

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import citeweave as cw
from citeweave.core import artifact, errors, progress
from citeweave.corpus import derive
from citeweave.corpus.options import DerivedTexts
from citeweave.corpus.split import split_by_share
from citeweave.evaluation.links import hold_out
from citeweave.mining.options import ExportOptions
from citeweave.search import export
from citeweave.search.describe import describe_index

# --- corpora by a seed: all that goes wrong in files of several formats; what is written is counted before a reader sees it

_TEXT = "graphs of citations tell how cells grow and models learn from data über naïve β 数学 ﬁne"
WORDS = _TEXT.split()
BROKEN = ('{"id": "x", "title": ', "[1, 2]", "null", "17", '"just a text"', "\x00\x01")
UNKNOWN = "nobody:0"


class Written:
    """Files of papers, citations and contexts by a seed, and what was written: plain ones always, others by chance."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.files, self.rng = folder, list[Path](), np.random.default_rng([4, seed])
        self.papers = self.contexts = 0  # records, good and bad
        self.citations: list[tuple[str, str]] = []  # citing and cited id of every citation that a reader can make out
        self.unread = 0  # citations that lack an end, or whose citing record is rejected
        number = int(self.rng.integers(12, 40))
        self.names = [f"p:{at}" if at % 3 else f"doi:10.1001/{at}" for at in range(number)]
        self.json_lines()
        others = (self.csv, self.bibtex, self.ris, self.web_of_science, self.csl, self.openalex, self.crossref)
        for write in (*others, self.lists, self.context_lines, self.tabs, self.commas):
            if self.chance(0.6):
                write()

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

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def number(self, least: int, beyond: int) -> int:
        return int(self.rng.integers(least, beyond))

    def title(self) -> str:
        return " ".join(self.rng.choice(WORDS, self.number(2, 8)))

    def abstract(self) -> str:
        said = (" ".join(self.rng.choice(WORDS, self.number(3, 12))) for _ in range(self.number(0, 5)))
        return " ".join(f"{one.capitalize()}." for one in said)

    def some(self, names: list[str], most: int) -> list[str]:
        return [names[at] for at in self.rng.integers(0, len(names), self.number(0, most)).tolist()]

    def cited(self) -> list[Any]:
        """References of a paper: known, unknown, itself perhaps, twice perhaps, empty ones."""
        found: list[Any] = [*self.some(self.names, 6), *([UNKNOWN] * self.number(0, 2))]
        return found + [[None], [""], [{}], [], [], []][self.number(0, 6)]

    def json_lines(self) -> None:
        """The papers themselves; some twice, some without an id or a text, some no JSON."""
        lines = []
        for name in [*self.names, *self.some(self.names, 5)]:
            paper = {"id": name, "title": self.title(), "abstract": self.abstract(), "year": self.number(1990, 2024)}
            kind, cited = self.rng.random(), self.cited()
            if kind < 0.05:
                paper["id"] = ""
            elif kind < 0.1:
                paper |= {"title": " ", "abstract": ""}
            elif kind < 0.2:
                paper["abstract"] = ""
            if self.chance(0.05):
                paper["references"] = "p:1, p:2"
                self.cite(name, ["p:1", "p:2"], readable=not kind < 0.1)
            elif self.chance(0.05):
                paper["references"] = "Turing, Computing machinery"
                self.unread += 1
            else:
                paper["references"] = cited
                self.cite(name, cited, readable=not kind < 0.1)
            lines.append(json.dumps(paper, ensure_ascii=bool(self.number(0, 2))))
        broken = self.rng.choice(BROKEN, self.number(0, 4)).tolist()
        self.papers += len(lines) + len(broken)
        for line in broken + [""] * self.number(0, 3):
            lines.insert(self.number(1, len(lines)), line)
        self.save("papers.jsonl", lines)

    def csv(self) -> None:
        rows = ["id,title,abstract,year"]
        for at in range(self.number(1, 8)):
            id, title = f"c:{at}" if self.chance(0.9) else "", self.title() if self.chance(0.9) else ""
            rows.append(f'{id},"{title}, ""quoted""",{"" if at % 2 else "Cells grow."},{2000 + at}')
        self.save("table.csv", rows, papers=len(rows) - 1)

    def bibtex(self) -> None:
        entries = ["@string{j = {Journal}}"]
        for at in range(self.number(1, 8)):
            title = f"title = {{{self.title()} of {at}}}," if self.chance(0.85) else "note = {none},"
            other = f"doi = {{10.1001/{3 * at}}}," if self.chance(0.4) else ""
            end = "}" if self.chance(0.9) else "abstract = {open"
            entries.append(
                f"\n@article{{key{self.number(0, 5)}, {title} {other} journal = j, year = 20{at + 10}\n{end}"
            )
        self.save("library.bib", entries, papers=len(entries) - 1)

    def ris(self) -> None:
        records = []
        for at in range(self.number(1, 6)):
            lines = ["TY  - JOUR", *([f"TI  - {self.title()} {at}"] * self.chance(0.8)), f"PY  - 20{at + 10}"]
            lines += [f"DO  - 10.1001/{3 * at}"] * self.chance(0.4) + ["ER  - "] * self.chance(0.9)
            records.append("\n".join(lines))
        self.save("export.ris", records, papers=len(records))

    def web_of_science(self) -> None:
        records = []
        for at in range(self.number(1, 4)):
            good = self.chance(0.8)
            lines = ["PT J", *([f"TI {self.title()}"] * good), f"DI 10.1002/{at}", f"UT WOS:{at}"]
            for place in range(self.number(0, 4)):
                usable = self.chance(0.5)
                lines.append(f"{'   ' if place else 'CR '}LAW C, 2003, RES, V{place}" + ", DOI 10.1001/3" * usable)
                self.cite(f"doi:10.1002/{at}", ["doi:10.1001/3" if usable else ""], readable=good)
            records.append("\n".join([*lines, "ER", ""]))
        self.save("savedrecs.txt", ["FN Clarivate\nVR 1.0", *records], papers=len(records), end="EF\n")

    def csl(self) -> None:
        entries: list[Any] = [{"id": "first", "type": "article-journal", "title": self.title(), "author": []}]
        for at in range(self.number(0, 5)):
            title = self.title() if self.chance(0.8) else ""
            entries.append({"id": f"z{at}", "type": "book", "title": title, "author": []})
        entries += [{}] * self.number(0, 2)
        self.save("zotero.json", [json.dumps(entries)], papers=len(entries))

    def openalex(self) -> None:
        lines, place = [], "https://openalex.org/W"
        for at in range(self.number(1, 5)):
            has_id, cited = at == 0 or self.chance(0.8), [self.number(1, 6) for _ in range(self.number(0, 4))]
            work = {"id": f"{place}{at + 1}" if has_id else None, "title": self.title(), "authorships": []}
            work |= {"doi": f"https://doi.org/10.1001/{3 * at}", "publication_year": 2001 + at}
            self.cite(f"openalex:W{at + 1}", [f"openalex:W{one}" for one in cited], readable=has_id)
            lines.append(json.dumps({**work, "referenced_works": [f"{place}{one}" for one in cited]}))
        self.save("works.jsonl", lines, papers=len(lines))

    def crossref(self) -> None:
        lines = []
        for at in range(self.number(1, 5)):
            has_id = at == 0 or self.chance(0.8)
            cited = [f"10.1001/{self.number(0, 9)}" if self.chance(0.8) else "" for _ in range(self.number(0, 4))]
            work: dict[str, Any] = {"DOI": f"10.1003/{at}" if has_id else "", "title": [self.title()]}
            references = [{"key": "k", **({"DOI": one} if one else {})} for one in cited]
            work |= {"type": "journal-article", "is-referenced-by-count": 1, "reference": references}
            self.cite(f"doi:10.1003/{at}", [one and f"doi:{one}" for one in cited], readable=has_id)
            lines.append(json.dumps(work))
        self.save("crossref.jsonl", lines, papers=len(lines))

    def lists(self) -> None:
        """Reference lists beside the papers; a single id may stand for a list."""
        lines: list[str] = []
        for name in [self.names[0], *self.some([*self.names, UNKNOWN], 6)]:
            has_id = not lines or self.chance(0.9)
            cited: Any = self.cited() if not lines or self.chance(0.8) else self.names[1]
            self.cite(name, cited if isinstance(cited, list) else [cited], readable=has_id)
            lines.append(json.dumps({"citing": name if has_id else None, "cited": cited}))
        self.save("references.jsonl", lines)

    def context_lines(self) -> None:
        lines = []
        for at in range(self.number(1, 12)):
            text = f"{self.title()} [1, 2] (Li, 2016)." if at == 0 or self.chance(0.9) else " "
            citing = str(self.rng.choice(self.names)) if self.chance(0.9) else UNKNOWN
            cited = [one for one in self.cited() if one != citing]
            told = {"citing": citing, "text": text, "cited": cited, "section": "Intro"}
            lines += [json.dumps(told)] * (1 + (at % 4 == 3))
        self.contexts += len(lines)
        self.save("contexts.jsonl", lines)

    def tabs(self) -> None:
        """Citations without a header: ids and numbers, with and without a strength, some lacking an end."""
        lines = []
        for at in range(self.number(3, 30)):
            citing, cited = (str(one) for one in self.rng.choice([*self.names, UNKNOWN], 2))
            if self.chance(0.2):
                citing, cited = str(self.number(0, 9)), str(self.number(0, 9))
            cited = "" if at > 3 and self.chance(0.1) else cited
            self.cite(citing, [cited])
            lines.append(f"{citing}\t{cited}" + "\t2" * self.number(0, 2))
        self.save("citations.tsv", lines, end="\n" * self.number(1, 3))

    def commas(self) -> None:
        lines = ["citing,cited,count,intents"]
        for _ in range(self.number(1, 15)):
            citing, cited = (str(one) for one in self.rng.choice(self.names, 2))
            lines.append(f'{citing},"{cited}",3,method' if self.chance(0.5) else f"{citing},{cited},x,")
            self.cite(citing, [cited])
        self.save("edges.csv", lines)


# --- accounts ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Hashed:
    """An encoder without a network: a text's vector is drawn by the text; one without a letter has none."""

    name: str = "hashed"
    revision: str = "1"
    dimension: int = 4

    def encode(self, texts: Sequence[str], *, reporter: progress.Reporter = progress.QUIET) -> NDArray[np.float32]:
        rows = [[len(text), *text.encode()[:3].ljust(3)] if "数" not in text else [0] * 4 for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 4)


def check_import(written: Written, corpus: cw.Corpus) -> None:
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
    pairs = np.stack([citing, cited], axis=1)[both & (citing != cited)]
    distinct = np.unique(pairs, axis=0)
    expected = {
        "citing and cited paper not in the corpus": ((citing < 0) & (cited < 0)).sum(),
        "citing paper not in the corpus": ((citing < 0) & (cited >= 0)).sum(),
        "cited paper not in the corpus": ((citing >= 0) & (cited < 0)).sum(),
        "paper cites itself": (both & (citing == cited)).sum(),
        "same citation given again (merged)": len(pairs) - len(distinct),
    }
    rejected = records["citations"]["rejected"]
    assert {reason: rejected.get(reason, 0) for reason in expected} == expected
    assert sum(number for reason, number in rejected.items() if reason not in expected) == written.unread
    assert np.stack([corpus.citing, corpus.cited], axis=1).tolist() == distinct.tolist()


def _closes(count: Mapping[str, Any], kind: str) -> None:
    assert count["read"] == count["kept"] + sum(count["rejected"].values()), kind
    assert count["kept"] >= 0 and all(number > 0 for number in count["rejected"].values()), kind


def check_parts(corpus: cw.Corpus, place: Path, rng: np.random.Generator) -> None:
    """Parts of a split, and a generation without some papers."""
    try:
        split = split_by_share(corpus.ids.take(np.arange(len(corpus))), validation=0.2, test=0.2, seed=1)
    except errors.EmptyResultError:
        split = None
    if split is not None:
        parts = np.concatenate([split.train, split.validation, split.test])
        assert sorted(parts.tolist()) == list(range(len(corpus)))
        assert np.bincount(split.of_citations(corpus.citing), minlength=3).sum() == len(corpus.citing)
        assert sum(split.as_json()[name] for name in ("train", "validation", "test")) == len(corpus)
    rows = np.sort(rng.choice(len(corpus), len(corpus) // 4, replace=False))
    left = cw.exclude_papers(corpus, rows, place / "left", why="held out")
    records = left.manifest.facts["records"]
    for kind in ("papers", "citations", "contexts"):
        _closes(records[kind], kind)
    assert left.manifest.facts["excluded"] == len(rows) == records["papers"]["rejected"].get("deleted on request", 0)
    assert records["papers"]["read"] == len(corpus) == len(left) + len(rows)
    assert records["citations"]["read"] == len(corpus.citing) + len(corpus.references_outside("citing"))
    assert records["citations"]["kept"] == len(left.citing)
    gone = np.isin(corpus.citing, rows) | np.isin(corpus.cited, rows)
    assert len(left.citing) == int((~gone).sum())


def check_graph(corpus: cw.Corpus, graph: cw.CitationGraph) -> None:
    """Edges, loops, repeats and what leads out are the citations; so are held-out ones and the others."""
    counts = graph.counts
    assert counts.nodes == len(corpus) and graph.edges == counts.edges
    given = len(corpus.citing) + len(corpus.references_outside("citing"))
    assert counts.edges + counts.to_itself + counts.duplicates + counts.dangling == given
    if graph.edges:
        held = hold_out(graph.sources(), graph.cited.targets, 0.2, 0)
        assert graph.keep_edges(~held).edges + int(held.sum()) == graph.edges


def check_samples(corpus: cw.Corpus, graph: cw.CitationGraph, place: Path, rng: Any) -> cw.Samples | None:
    """Anchors that came in are samples or were skipped for a reason."""
    drawn = int(rng.choice([0, 5]))
    asked = rng.choice(len(corpus), len(corpus) // 2, replace=False) if rng.random() < 0.3 else None
    rules = cw.parse_rules(cw.load_recipe("specter", [f"mining.anchors={drawn}"]).table("mining"))
    inputs = cw.MiningInputs(graph=graph, anchors=asked)
    try:
        samples = cw.mine_samples(corpus, rules, place / "samples", inputs, cw.MiningOptions(workers=1))
    except errors.EmptyResultError:
        return None
    facts = samples.manifest.facts
    assert facts["anchors"] == len(samples)
    assert facts["anchors"] + sum(facts["skipped"].values()) == (len(corpus) if asked is None else len(asked))
    assert sum(facts["rules_got"].values()) == len(samples.positives.rows) + len(samples.negatives.rows)
    return samples


def check_exports(corpus: cw.Corpus, samples: cw.Samples, place: Path, rng: np.random.Generator) -> None:
    """As many rows in a file as its account says, and all triplets in it or left out for a reason."""
    form = str(rng.choice(["parquet", "jsonl", "scincl", "scirepeval"]))
    is_own = form in ("parquet", "jsonl")
    to, options = ("sentence_transformers", ExportOptions(file_type=form)) if is_own else (form, None)
    told = cw.export_samples(samples, corpus, place / "export", to=to, options=options)
    for kind, count in told["records"].items():
        _closes(count, kind)
    assert told["records"]["triplets"]["read"] == len(samples.triplets())
    assert told["records"]["samples"]["read"] == len(samples)
    path = next(place / "export" / name for name in told["files"] if "metadata" not in name)
    header = form == "scincl"
    rows = pq.read_metadata(path).num_rows if form == "parquet" else len(path.read_text().splitlines()) - header
    assert rows == told["records"]["triplets"]["kept"]


def check_vectors(corpus: cw.Corpus, place: Path) -> None:
    vectors = cw.embed_papers(corpus, Hashed(), place / "vectors")
    count = vectors.manifest.facts["records"]["vectors"]
    _closes(count, "vectors")
    assert count["read"] == len(corpus) and count["kept"] == len(vectors) == len(vectors.matrix)


def check_index(corpus: cw.Corpus, place: Path) -> None:
    """All papers are documents, and each is exported once."""
    index = cw.build_index(corpus, "weave", place / "index", cw.IndexOptions(vectors=False))
    assert len(index) == describe_index(index)["papers"] == len(corpus)
    assert index.words is not None and index.words.size == len(corpus)
    papers = [index.paper(row) for row in range(len(index))]
    assert export.to_bibtex(papers).count("\n}\n") == len(json.loads(export.to_json(papers))) == len(corpus)
    assert export.to_csv(papers).count("\n") == len(corpus) + 1


def check_derived(corpus: cw.Corpus, place: Path, rng: np.random.Generator) -> None:
    """Texts that were made and those that were left out are all that there were."""
    of = str(rng.choice(["titles", "cloze", "contexts"]))
    options = DerivedTexts(of, min_words=3, **({"min_sentences": 2} if of == "cloze" else {}))
    try:
        made = derive.derive_corpus(corpus, place / of, options)
    except (errors.EmptyResultError, errors.UserError):
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
        places = sum(1 for text in abstracts for a, b in cw.sentences(text) if text[a:b].strip())
        by = {what: sum(n for why, n in rejected.items() if why.startswith(what)) for what in ("abstract", "sentence")}
        assert facts["papers"] + by["abstract"] == len(corpus)
        assert facts["sentences"] + by["sentence"] == places


def check_corpus(place: Path, seed: int) -> None:
    """All stages of one corpus."""
    rng = np.random.default_rng([44, seed])
    written = Written(place / "files", seed)
    corpus = cw.import_papers(written.files, place / "corpus").corpus
    check_import(written, corpus)
    check_parts(corpus, place, rng)
    graph = cw.build_graph(corpus, place / "graph")
    assert artifact.read_manifest(place / "graph", "graph", 1).facts["edges"] == graph.edges
    check_graph(corpus, graph)
    samples = check_samples(corpus, graph, place, rng)
    if samples is not None and len(samples.triplets()):
        check_exports(corpus, samples, place, rng)
    check_vectors(corpus, place)
    check_index(corpus, place)
    check_derived(corpus, place, rng)


def test_row_accounts(trial, tmp_path):
    for seed in trial.numbers(quick=10, whole=1000):
        with trial.attempt(f"seed {seed}"):
            check_corpus(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
