"""Every parser of citeweave as a target of fuzzing: a function of bytes, with small valid inputs to begin from.

    targets("texts")["clean text"].run(b"...")     None, or an exception, and that is a defect

`run` lets pass nothing but the errors that users are told of.
"""

import bz2
import gzip
import hashlib
import importlib
import inspect
import io
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pydantic import BaseModel, ValidationError
from safetensors.numpy import save

import citeweave as cw
from citeweave.core import artifact, errors, inputs, progress
from citeweave.corpus import citation_marks, plain_text, text
from citeweave.corpus.plain_text import latex_to_text
from citeweave.corpus.readers import FORMATS, guess_format, reader_of
from citeweave.corpus.services import openalex, semantic_scholar
from citeweave.corpus.services.client import Client, HttpOptions
from citeweave.corpus.services.service import read_refusal, service_of
from citeweave.encoders import aspects, model_folder, untrusted_model
from citeweave.encoders.delta import read_delta
from citeweave.evaluation.open_system import read_scores
from citeweave.evaluation.suites import SUITES, benchmark_files
from citeweave.intents.classifier import ClassifierConfig
from citeweave.intents.examples import read_labeled, read_unlabeled
from citeweave.mining import formats
from citeweave.mining.formats import sentence_transformers, specter, triplets
from citeweave.pipeline.recipe import read_overrides, read_recipe
from citeweave.pipeline.run_folder import read_record
from citeweave.remote import fetch as fetch_module
from citeweave.remote import object_storage
from citeweave.search.citing_sentences import without_marks
from citeweave.search.reviewers import read_conflicts, read_people
from citeweave.search.state import read_state
from citeweave.serve import responses, schemas, zotero
from citeweave.vectors.formats import reader_for

TESTS = Path(__file__).resolve().parents[2]
DOCUMENTED = (errors.CiteweaveError, responses.RefusedError, ValidationError)
_PLACE = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


@dataclass(frozen=True)
class Target:
    """A parser."""

    name: str
    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    words: tuple[bytes, ...] = ()
    """Words that it looks for."""

    def run(self, data: bytes) -> None:
        with suppress(*DOCUMENTED):
            self.parse(data)


def fuzz_file(name: str, data: bytes) -> Path:
    """A file of this process that is written again and again."""
    folder = _PLACE / f"citeweave-fuzz-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def remove_fuzz_files() -> None:
    shutil.rmtree(_PLACE / f"citeweave-fuzz-{os.getpid()}", ignore_errors=True)


def of_file(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    return lambda data: parse(fuzz_file(name, data))


def of_folder(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    return of_file(name, lambda path: parse(path.parent))


def literals(*modules: Any) -> tuple[bytes, ...]:
    """Short words that stand in the source of a parser."""
    source = "".join(inspect.getsource(module) for module in modules)
    return tuple(sorted({word.encode() for word in re.findall(r'"([^"\\\n]{2,20})"', source)}))


# --- files of others --------------------------------------------------------------------------------------


def readers() -> Iterator[Target]:
    seeds = TESTS / "corpus" / "readers" / "seeds"
    for format in FORMATS:
        files = tuple(path.read_bytes() for path in sorted(seeds.glob(f"{format}.*")))
        reader = reader_of(format)

        def read(path: Path, reader: Any = reader) -> None:
            source = inputs.Source(path)
            reader.recognizes(source.head())
            list(reader.read(source, progress.Tally()))

        yield Target(f"reader {format}", files, of_file("input", read), literals(inspect.getmodule(reader.read)))
    every = tuple(path.read_bytes() for path in sorted(seeds.iterdir()))
    yield Target("format guessing", every, of_file("input", lambda path: guess_format(inputs.Source(path))))
    packed = (gzip.compress, bz2.compress, lzma.compress, zstandard.compress)
    compressed = tuple(pack(b"a line of text\n" * 9) for pack in packed)
    yield Target("decompression", compressed, of_file("input", lambda path: inputs.Source(path).read_document()))


def vector_files() -> Iterator[Target]:
    array, table = io.BytesIO(), io.BytesIO()
    np.save(array, np.ones((2, 3), np.float32))
    pq.write_table(pa.table({"id": ["a", "b"], "embedding": [[1.0, 2.0], [3.0, 4.0]]}), table)
    lines = b'{"paper_id": "1", "embedding": [0.5, 1]}\n{"id": "2", "vector": [1, 2]}\n{"doc": "3", "emb": [[1, 2]]}\n'

    def read(path: Path) -> None:
        (path.parent / "vectors.ids.txt").write_text("a\nb\n")
        list(reader_for(path)(inputs.Source(path), progress.Tally({"vectors": progress.Count()})))

    for suffix, seed in (("jsonl", lines), ("npy", array.getvalue()), ("parquet", table.getvalue())):
        yield Target(f"vectors {suffix}", (seed,), of_file(f"vectors.{suffix}", read), literals(reader_for))


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
    words = literals(triplets, sentence_transformers, specter)
    parsers: tuple[tuple[str, str, bytes, Callable[[Path], object]], ...] = (
        ("labeled citing sentences", "c.jsonl", citances, lambda path: read_labeled([path])),
        ("citing sentences", "c.jsonl", citances, read_unlabeled),
        ("TREC run", "a.run", run, lambda path: read_scores([path], name="x")),
        ("scores in JSON", "a.json", b'{"q1_p1": 0.5, "q1_p2": 0.25}', lambda path: read_scores([path], name="x")),
        ("TREC qrels", "a.qrel", b"q1 0 p1 1\nq1 0 p2 0\n", benchmark_files.read_qrel),
        ("table of labels", "a.csv", table, lambda path: list(benchmark_files.read_csv(path, ["pid", "class_label"]))),
        ("people in JSON", "p.jsonl", people, read_people),
        ("people in CSV", "p.csv", b"person,paper\nada,p1\n", read_people),
        ("conflicts", "c.csv", b"submission,person\ns1,ada\n", read_conflicts),
        ("Zotero RDF", "a.rdf", rdf, lambda path: zotero.write_csl_from_rdf(path, path.with_suffix(".json"))),
    )
    for name, file, seed, parse in parsers:
        yield Target(name, (seed,), of_file(file, parse), (b"person", b"papers") if name == "people in JSON" else ())
    samples = {"scincl": tsv, "scirepeval": triplet, "sentence_transformers": pairs, "specter": graph}
    for format, seed in samples.items():

        def read(path: Path, way: Any = formats.READERS[format]) -> None:
            source = inputs.Source(path)
            way.recognize(source.head())
            list(way.read([source], [], _FewNames(), progress.Tally({kind: progress.Count() for kind in way.kinds})))

        yield Target(f"samples of {format}", (seed,), of_file("input", read), words)


class _FewNames:
    """Papers by their spellings: what is of one letter is known."""

    def rows(self, ids: Sequence[str]) -> Any:
        return np.array([ord(id) % 64 if len(id) == 1 else -1 for id in ids], np.int32)

    def rows_of_any(self, spellings: Sequence[Sequence[str]]) -> Any:
        return self.rows([ids[0] if ids else "" for ids in spellings])

    rows_of_texts = rows


def suites() -> Iterator[Target]:
    """The files of every suite, as the tests of the suites write them."""
    sys.path.append(str(TESTS.parent))
    module = importlib.import_module("tests.evaluation.conftest")
    assert set(module.FOLDERS) == set(SUITES)
    for suite, values in module.FOLDERS.items():
        names = sorted(values)
        with tempfile.TemporaryDirectory() as place:
            module.write_files(Path(place), values)
            files = {name: (Path(place) / name).read_bytes() for name in names}

        def read(data: bytes, suite: str = suite, files: dict[str, bytes] = files, names: list[str] = names) -> None:
            """The first byte says which of the files is another one."""
            changed = names[data[0] % len(names)] if data else ""
            for name in names:
                path = fuzz_file(f"{suite}/{name}", data[1:] if name == changed else files[name])
            folder = path.parents[len(Path(name).parts) - 1]
            for split in ("test", "dev"):
                with suppress(errors.CiteweaveError):
                    cw.read_suite(suite, folder, split=split)

        seeds = tuple(bytes([number]) + files[name] for number, name in enumerate(names))
        yield Target(f"suite {suite}", seeds, read)


# --- texts, settings, files of citeweave ------------------------------------------------------------------

PROSE = (
    b"We follow Och et al. (2003) and [1, 2-4]; see Fig. 2. The result, e.g. 3.5 %, holds. Is it so? Yes!",
    "Über die Größe — „Zellen“ wachsen. 我们发现了细胞。これは論文です。".encode(),
    b"\\emph{A} study of {\\'e}tudes in $x^2$: 50\\% of \\textbf{cases} \\cite{a} ~ -- \\\"o {\\ss}",
    b"Background: cells grow (Smith, 2001; Chen and Li, 2014a). Methods: we count. <b>Results</b>: &alpha; = 3.",
)


def _of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode())


def _citing(passage: str) -> None:
    marks = [citation_marks.CitationMark(start, end, ("p1",)) for start, end in citation_marks.find_marks(passage)]
    list(citation_marks.citing_sentences(passage, marks))


def texts() -> Iterator[Target]:
    signs = tuple(b". |et al.|[|]|(|)|\\|{|}|$|&|;|e.g. |i.e. |[1]|2003|\n|%|</|Fig. |\\'|\xe2\x80\x9c|?|!".split(b"|"))
    for name, parse in {
        "sentences": text.sentence_texts,
        "LaTeX": latex_to_text,
        "citation marks": citation_marks.find_marks,
        "citing sentences of a passage": _citing,
        "marks left out": without_marks,
        "markup left out": plain_text.strip_markup,
        "clean text": lambda said: (plain_text.clean_text(said), plain_text.year_of(said)),
    }.items():
        yield Target(name, PROSE, _of_text(parse), signs)


_QUERIES = (
    b'{"text": "rain", "count": 5, "where": {"years": [2015, null], "venues": ["ICML"], "has_abstract": true}}',
    b'{"liked": ["a"], "disliked": ["c"], "diversity": 0.3, "aspect": "method", "by": "vectors", "offset": 10}',
    b'{"sentences": {"paper": "a", "numbers": [1, 2]}}',
    b'{"cite": {"text": "We use [CIT].", "intent": "method", "draft": "Title.", "least_share": 0.1, "each": true}}',
)


def _json(parse: Callable[[Any], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return parse(value)

    return read


def _overrides(data: bytes) -> None:
    entries = data.decode("utf-8", "replace").split("\n")
    read_overrides(entries)
    read_recipe(cw.load_recipe("scincl", entries))


def settings() -> Iterator[Target]:
    shipped = Path(cw.__file__).parent
    recipes = tuple(path.read_bytes() for path in sorted((shipped / "recipes").glob("*.toml")))
    sets = b"mining.positives.band=200", b'training.losses.triplet.margin=0.5\nencoder.init="minilm"\ntraining.seed=[1]'
    words = tuple({word for recipe in recipes for word in re.findall(rb"[\w.]{3,20}", recipe)})
    yield Target("recipe", recipes, of_file("recipe.toml", lambda path: read_recipe(cw.load_recipe(str(path)))), words)
    yield Target("--set", sets, _overrides, words)
    yield Target("query", _QUERIES, _json(cw.Query.from_json), literals(cw.Query))
    yield Target("filter", (b'{"years": [2015, null], "fields": ["x"], "local": false}',), _json(cw.Filter.from_json))
    yield Target("request bodies", (*_QUERIES, b'{"queries": [{"text": "a"}]}', b'{"texts": ["a"]}'), _bodies)
    services = {
        "OpenAlex": ("openalex", openalex.OpenAlex),
        "Semantic Scholar": ("s2", semantic_scholar.SemanticScholar),
    }
    for title, (name, service) in services.items():
        yield Target(f"answers of {title}", (_ANSWER,), _answers(service, name), literals(service))
    yield Target("refusals of a service", (b"retry-after: 7\nx-ratelimit-remaining: 0",), _refusal)


def _bodies(data: bytes) -> None:
    value = responses.parse_strictly(data)
    for model in vars(schemas).values():
        if isinstance(model, type) and issubclass(model, BaseModel) and model is not BaseModel:
            with suppress(ValidationError):
                model.model_validate(value)


_ANSWER = (
    b'{"meta": {"count": 3, "next_cursor": "x"}, "results": [{"id": "https://openalex.org/W1", "doi": "10.1/x", "title": "A", '
    b'"publication_year": 2001, "referenced_works": ["https://openalex.org/W2"], "ids": {"mag": 7}}], "total": 1, '
    b'"token": "t", "data": [{"paperId": "0a", "title": "A", "externalIds": {"DOI": "10.1/x"}, "year": 2001}]}'
)


def _answers(service: Any, name: str) -> Callable[[bytes], object]:
    """A service that answers everything with the same bytes."""

    def ask(data: bytes) -> None:
        client = Client(service_of(name), None, HttpOptions(tries=1), pause=lambda seconds: None)
        statuses = iter([200] * 19)
        client._exchange = lambda *_: (next(statuses, 404), {}, data)
        service_here = service(client)
        for records in (
            service_here.search("rain", 5),
            service_here.by_ids(["doi:10.1/x", "openalex:W1", "s2:7"]),
            iter(service_here.by_title("A study")),
            service_here.citing(["openalex:W1", "s2:7", "s2sha:0a"], 5),
        ):
            for record in records:
                service_here.ids_of(record), service_here.title_of(record), service_here.year_of(record)
                service_here.references_of(record), service_here.adapt_record(record, "arxiv:1234.5678", 2001)

    return ask


def _refusal(data: bytes) -> None:
    lines = [line.partition(":") for line in data.decode("latin-1").split("\n")]
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    read_refusal(headers, datetime(2026, 1, 1, tzinfo=UTC), 60.0)


def kept_files() -> Iterator[Target]:
    weave = Path(cw.__file__).parent / "encoders" / "weave"
    classifier = Path(cw.__file__).parent / "intents" / "default" / "config.json"
    state = b'{"format": "citeweave-index", "version": 3, "number": 3, "generation": "000003-0123abcd", "hash": "0"}'
    heads = b'{"format": "citeweave-aspects", "version": 1, "names": ["a"], "sizes": [3, 2]}'
    listed = f'{{"format": "{fetch_module.FORMAT}", "version": {fetch_module.VERSION}, "files": {{"a.txt": {{"bytes": 3, "sha256": "", "at": "a"}}}}}}'.encode()
    manifest = (weave / "manifest.json").read_bytes()
    run = b'{"version": 1, "stages": {"graph": {"key": "0", "folder": "graph", "mark": "1", "facts": {}}}, "identity": {}}'
    checked = of_folder(
        "manifest.json", lambda folder: artifact.check_files(folder, artifact.read_any_manifest(folder))
    )
    yield Target("manifest", (manifest,), checked)
    yield Target("state of an index", (state,), of_folder("state.json", read_state))
    yield Target("record of a run", (run,), of_folder("run.json", read_record))
    for name, place in (("a classifier", classifier.parent), ("weave", weave)):
        told = json.loads((place / "delta.json").read_bytes()) | {"sha256": hashlib.sha256(b"").hexdigest()}
        told["matrices"] = dict(list(told["matrices"].items())[:3])
        del told["seal"]
        yield Target(f"delta.json of {name}", (json.dumps(told).encode(),), _delta)
    yield Target("aspect heads", (heads,), _heads)
    tensors = of_file("a.safetensors", lambda path: untrusted_model.read_tensors(path, {"a": (2, 3)}))
    yield Target("safetensors", (bytes(save({"a": np.ones((2, 3), np.float32)})),), tensors)
    yield Target("config of a classifier", (classifier.read_bytes(),), of_file("config.json", ClassifierConfig.read))
    address = object_storage.Address("s3", "b", "a")
    yield Target("listing of objects", (listed,), lambda data: fetch_module.decode_listing(address, data, "here"))
    yield Target("model folder", _MODULES, _model_folder, (b"type", b"path", b"pooling_mode", b"max_seq_length"))


def _delta(data: bytes) -> None:
    folder = fuzz_file("delta/delta.json", data).parent
    (folder / "delta.safetensors").write_bytes(b"")
    read_delta(folder)


def _heads(data: bytes) -> None:
    folder = fuzz_file("model/aspects/config.json", data).parent
    tensors = {"a.0.weight": np.ones((2, 3), np.float32), "a.0.bias": np.ones(2, np.float32)}
    (folder / "model.safetensors").write_bytes(bytes(save(tensors)))
    aspects.find_heads(folder.parent)


_MODULES = (
    b'[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", '
    b'"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]\x00{"pooling_mode_mean_tokens": true}\x00'
    b'{"max_seq_length": 256, "do_lower_case": false}\x00{"default_prompt_name": "q", "prompts": {"q": "x"}}',
)


def _model_folder(data: bytes) -> None:
    names = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    folder = fuzz_file("folder/config.json", b"{}").parent
    (folder / "model.safetensors").write_bytes(b"")
    for name, part in zip(names, data.split(b"\x00", 3), strict=False):
        fuzz_file(f"folder/{name}", part)
    model_folder.read_model_folder(folder)


GROUPS: dict[str, Callable[[], Iterator[Target]]] = {
    "readers": readers, "other files": other_files, "vector files": vector_files, "texts": texts, "settings": settings,
    "kept files": kept_files, "suites": suites,
}  # fmt: skip


def targets(group: str) -> dict[str, Target]:
    """The parsers of a group by their names."""
    return {target.name: target for target in GROUPS[group]()}
