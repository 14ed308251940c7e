"""Targets of fuzzing: files of others, of every import format, of vectors, samples, people, scores and benchmarks."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from citeweave.core.errors import CiteweaveError
from citeweave.core.inputs import Source
from citeweave.core.progress import Count, Tally
from citeweave.corpus.readers import FORMATS, guess_format, reader_of
from citeweave.evaluation.precomputed import read_scores
from citeweave.evaluation.suites.benchmark_files import read_csv, read_qrel
from citeweave.evaluation.suites.registry import SUITES, read_suite
from citeweave.intents.examples import read_labeled, read_unlabeled
from citeweave.mining.formats import scincl, scirepeval, sentence_transformers, specter
from citeweave.mining.formats.convert import READERS
from citeweave.search.reviewers import read_conflicts, read_people
from citeweave.serve.zotero import write_csl_from_rdf
from citeweave.vectors.formats import reader_for

from .fuzz_target import TESTS, Target, exhaust, fuzz_file, literals, of_file


def readers() -> Iterator[Target]:
    seeds = TESTS / "corpus" / "readers" / "seeds"
    for format in FORMATS:
        files = tuple(path.read_bytes() for path in sorted(seeds.glob(f"{format}.*")))
        reader = reader_of(format)

        def read(path: Path, reader: Any = reader) -> None:
            source = Source(path)
            reader.recognizes(source.head())
            exhaust(reader.read(source, Tally()))

        yield Target(f"reader {format}", files, of_file("input", read), literals(reader))
    every = tuple(path.read_bytes() for path in sorted(seeds.iterdir()))
    yield Target("format guessing", every, of_file("input", lambda path: guess_format(Source(path))))
    yield Target("decompression", _compressed(), of_file("input", lambda path: Source(path).read_document()))


def _compressed() -> tuple[bytes, ...]:
    text = b"a line of text\n" * 9
    return gzip.compress(text), bz2.compress(text), lzma.compress(text), zstandard.compress(text)


def vector_files() -> Iterator[Target]:
    array = io.BytesIO()
    np.save(array, np.ones((2, 3), np.float32))
    lines = b'{"paper_id": "1", "embedding": [0.5, 1]}\n{"id": "2", "vector": [1, 2]}\n{"doc": "3", "emb": [[1, 2]]}\n'
    for suffix, seed in (("jsonl", lines), ("npy", array.getvalue()), ("parquet", _parquet())):

        def read(path: Path) -> None:
            (path.parent / "vectors.ids.txt").write_text("a\nb\n")
            exhaust(reader_for(path)(Source(path), Tally({"vectors": Count()})))

        yield Target(f"vectors {suffix}", (seed,), of_file(f"vectors.{suffix}", read), literals(reader_for))


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["a", "b"], "embedding": [[1.0, 2.0], [3.0, 4.0]]}), sink)
    return bytes(sink.getvalue().to_pybytes())


def other_files() -> Iterator[Target]:
    citances = (
        b'{"string": "We use [1].", "label": "method", "sectionName": "Methods", "citeStart": 7, "citeEnd": 10}\n'
    )
    run, table = b"q1 Q0 p1 1 0.5 tag\nq1 Q0 p2 2 0.4 tag\n", b"pid,class_label\np1,2\np2,3\n"
    people = b'{"person": "ada", "papers": ["p1", "p2"]}\n'
    rdf = (
        b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:bib="http://purl.org/net/biblio#" '
        b'xmlns:dc="http://purl.org/dc/elements/1.1/"><bib:Article rdf:about="#1"><z:itemType xmlns:z="http://www.zotero.org/namespaces/export#">book</z:itemType><dc:title>A</dc:title></bib:Article></rdf:RDF>'
    )
    tsv = b"query_paper_id,positive_id,negative_id\na,b,c\n"
    triplet = b'{"query": {"corpus_id": 1, "title": "a"}, "pos": {"corpus_id": 2}, "neg": {"corpus_id": 3}}\n'
    pairs = b'{"anchor": "a b", "positive": "c", "negative": "d"}\n'
    graph = b'{"a": {"b": {"count": 5}, "c": {"count": 1}}, "b": {}}'
    words = literals(scincl, scirepeval, sentence_transformers, specter)
    yield Target("labeled citing sentences", (citances,), of_file("c.jsonl", lambda path: read_labeled([path])))
    yield Target("citing sentences", (citances,), of_file("c.jsonl", read_unlabeled))
    yield Target("TREC run", (run,), of_file("a.run", lambda path: read_scores([path], name="x")))
    yield Target(
        "scores in JSON",
        (b'{"q1_p1": 0.5, "q1_p2": 0.25}',),
        of_file("a.json", lambda path: read_scores([path], name="x")),
    )
    yield Target("TREC qrels", (b"q1 0 p1 1\nq1 0 p2 0\n",), of_file("a.qrel", read_qrel))
    yield Target(
        "table of labels", (table,), of_file("a.csv", lambda path: exhaust(read_csv(path, ["pid", "class_label"])))
    )
    yield Target("people in JSON", (people,), of_file("p.jsonl", read_people), (b"person", b"papers"))
    yield Target("people in CSV", (b"person,paper\nada,p1\n",), of_file("p.csv", read_people))
    yield Target("conflicts", (b"submission,person\ns1,ada\n",), of_file("c.csv", read_conflicts))
    yield Target(
        "Zotero RDF", (rdf,), of_file("a.rdf", lambda path: write_csl_from_rdf(path, path.with_suffix(".json")))
    )
    for format, seed in (
        ("scincl", tsv),
        ("scirepeval", triplet),
        ("sentence_transformers", pairs),
        ("specter", graph),
    ):
        yield Target(f"samples of {format}", (seed,), of_file("input", partial(_samples, READERS[format])), words)


def _samples(way: Any, path: Path) -> None:
    tally = Tally({kind: Count() for kind in way.kinds})
    source = Source(path)
    way.recognize(source.head())
    exhaust(way.read([source], [], _FewNames(), tally))


class _FewNames:
    """Papers by their spellings: what is of one letter is known."""

    def rows(self, ids: Sequence[str]) -> Any:
        return np.array([ord(id) % 64 if len(id) == 1 else -1 for id in ids], np.int32)

    def rows_of_any(self, spellings: Sequence[Sequence[str]]) -> Any:
        return self.rows([ids[0] if ids else "" for ids in spellings])

    rows_of_texts = rows


def _toy_suites() -> dict[str, dict[str, bytes]]:
    """The files of every suite, as the tests of the suites write them."""
    spec = importlib.util.spec_from_file_location("toy_suites", TESTS / "evaluation" / "conftest.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = {name: getattr(module, name)() for name in ("scidocs", "scirepeval", "csfcube", "beir", "reviewers", "mdcr")}
    made |= {"relish": module.aspire("relish", "dev"), "treccovid_rf": module.aspire("treccovid", "dev")}
    return {suite: {name: text.encode() for name, text in files.items()} for suite, files in made.items()}


def suites() -> Iterator[Target]:
    toys = _toy_suites()
    assert set(toys) == set(SUITES)
    for suite, files in toys.items():
        names = sorted(files)

        def read(data: bytes, suite: str = suite, files: dict[str, bytes] = files, names: list[str] = names) -> None:
            """The first byte says which of the files is another one."""
            changed = names[data[0] % len(names)] if data else ""
            for name in names:
                path = fuzz_file(f"{suite}/{name}", data[1:] if name == changed else files[name])
            folder = path.parents[len(Path(name).parts) - 1]
            for split in ("test", "dev"):
                with suppress(CiteweaveError):
                    read_suite(suite, folder, split=split)

        seeds = tuple(bytes([number]) + files[name] for number, name in enumerate(names))
        yield Target(f"suite {suite}", seeds, read)
