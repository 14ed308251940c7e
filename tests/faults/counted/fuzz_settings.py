"""Targets of fuzzing: texts, what users and clients write, and the small files that folders of citeweave hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors.numpy import save

import citeweave
from citeweave.core.artifact import check_files, read_any_manifest
from citeweave.corpus import plain_text, text
from citeweave.corpus.citation_marks import CitationMark, citing_sentences, find_marks
from citeweave.corpus.plain_text import latex_to_text
from citeweave.corpus.services.client import Client, HttpOptions
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import SemanticScholar
from citeweave.corpus.services.service import read_refusal, service_of
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.compact_delta import read_compact
from citeweave.encoders.delta import read_delta
from citeweave.encoders.model_folder import read_model_folder
from citeweave.encoders.untrusted_model import read_tensors
from citeweave.intents.classifier import ClassifierConfig
from citeweave.pipeline.recipe import load_recipe, read_overrides, read_recipe
from citeweave.pipeline.run_folder import read_record
from citeweave.remote import object_list
from citeweave.remote.object_storage import Address
from citeweave.search.citing_sentences import without_marks
from citeweave.search.filters import Filter
from citeweave.search.query import Query
from citeweave.search.state import read_state
from citeweave.serve import schemas
from citeweave.serve.responses import parse_strictly

from .fuzz_target import Target, exhaust, fuzz_file, literals, of_file

PROSE = (
    b"We follow Och et al. (2003) and [1, 2-4]; see Fig. 2. The result, e.g. 3.5 %, holds. Is it so? Yes!",
    "Über die Größe — „Zellen“ wachsen. 我们发现了细胞。これは論文です。".encode(),
    b"\\emph{A} study of {\\'e}tudes in $x^2$: 50\\% of \\textbf{cases} \\cite{a} ~ -- \\\"o {\\ss}",
    b"Background: cells grow (Smith, 2001; Chen and Li, 2014a). Methods: we count. <b>Results</b>: &alpha; = 3.",
)


def _of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode())


def _citing(passage: str) -> None:
    marks = [CitationMark(start, end, ("p1",)) for start, end in find_marks(passage)]
    exhaust(citing_sentences(passage, marks))


def texts() -> Iterator[Target]:
    signs = tuple(b". |et al.|[|]|(|)|\\|{|}|$|&|;|e.g. |i.e. |[1]|2003|\n|%|</|Fig. |\\'|\xe2\x80\x9c|?|!".split(b"|"))
    yield Target("sentences", PROSE, _of_text(text.sentence_texts), signs)
    yield Target("LaTeX", PROSE, _of_text(latex_to_text), signs)
    yield Target("citation marks", PROSE, _of_text(find_marks), signs)
    yield Target("citing sentences of a passage", PROSE, _of_text(_citing), signs)
    yield Target("marks left out", PROSE, _of_text(without_marks), signs)
    yield Target("markup left out", PROSE, _of_text(plain_text.strip_markup), signs)
    yield Target(
        "clean text", PROSE, _of_text(lambda said: (plain_text.clean_text(said), plain_text.year_of(said))), signs
    )


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


def _recipe(path: Path) -> None:
    read_recipe(load_recipe(str(path)))


def _overrides(data: bytes) -> None:
    entries = data.decode("utf-8", "replace").split("\n")
    read_overrides(entries)
    read_recipe(load_recipe("scincl", entries))


def settings() -> Iterator[Target]:
    shipped = Path(citeweave.__file__).parent
    recipes = tuple(path.read_bytes() for path in sorted((shipped / "recipes").glob("*.toml")))
    sets = (
        b"mining.positives.band=200",
        b'training.losses.triplet.margin=0.5\nencoder.init="minilm"\ntraining.seed=[1]',
    )
    words = tuple({word for recipe in recipes for word in re.findall(rb"[\w.]{3,20}", recipe)})
    yield Target("recipe", recipes, of_file("recipe.toml", _recipe), words)
    yield Target("--set", sets, _overrides, words)
    yield Target("query", _QUERIES, _json(Query.from_json), literals(Query))
    yield Target("filter", (b'{"years": [2015, null], "fields": ["x"], "local": false}',), _json(Filter.from_json))
    yield Target("request bodies", (*_QUERIES, b'{"queries": [{"text": "a"}]}', b'{"texts": ["a"]}'), _bodies)
    yield Target("answers of OpenAlex", (_ANSWER,), _answers(OpenAlex, "openalex"), literals(OpenAlex))
    yield Target("answers of Semantic Scholar", (_ANSWER,), _answers(SemanticScholar, "s2"), literals(SemanticScholar))
    yield Target("refusals of a service", (b"retry-after: 7\nx-ratelimit-remaining: 0",), _refusal)


def _bodies(data: bytes) -> None:
    value = parse_strictly(data)
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
        asked = [0]

        def exchange(address: str, body: bytes | None) -> tuple[int, dict[str, str], bytes]:
            asked[0] += 1
            return (200 if asked[0] < 20 else 404), {}, data

        client._exchange = exchange  # type: ignore[method-assign]
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
    weave = Path(citeweave.__file__).parent / "encoders" / "weave"
    classifier = Path(citeweave.__file__).parent / "intents" / "default" / "config.json"
    delta = (
        b'{"format": "citeweave-delta", "version": 1, "kind": "bias", "base": "minilm", "base_revision": "d58e0d201cf7", '
        b'"settings": {"pooling": "mean", "max_tokens": 20, "normalize": true, "lower": false, "prompt": ""}, '
        b'"lora": {"rank": 2, "alpha": 4.0, "layers": ["encoder.layer.0"]}}'
    )
    state = (
        b'{"format": "citeweave-index", "version": 2, "number": 3, "facts": {}, "segments": '
        b'[{"name": "000001-0123abcd", "hash": "0", "papers": 7, "deleted": 2, "deleted_in": 1}]}'
    )
    heads = b'{"format": "citeweave-aspects", "version": 1, "names": ["a"], "sizes": [3, 2]}'
    listed = f'{{"format": "{object_list.FORMAT}", "version": {object_list.VERSION}, "files": {{"a.txt": {{"bytes": 3, "sha256": "", "at": "a"}}}}}}'.encode()
    manifest = (weave / "manifest.json").read_bytes()
    run = b'{"version": 1, "stages": {"graph": {"key": "0", "folder": "graph", "mark": "1", "facts": {}}}, "identity": {}}'
    yield Target("manifest", (manifest,), of_file("manifest.json", _manifest))
    yield Target("state of an index", (state,), of_file("state.json", lambda path: read_state(path.parent)))
    yield Target("record of a run", (run,), of_file("run.json", lambda path: read_record(path.parent)))
    yield Target("delta.json", (delta,), of_file("delta.json", lambda path: read_delta(path.parent)))
    compact = json.loads((weave / "delta.json").read_bytes()) | {"sha256": hashlib.sha256(b"").hexdigest()}
    compact["matrices"] = dict(list(compact["matrices"].items())[:3])
    yield Target("compact delta.json", (json.dumps(compact).encode(),), _compact)
    yield Target("aspect heads", (heads,), _heads)
    yield Target("safetensors", (_tensors(),), of_file("a.safetensors", lambda path: read_tensors(path, {"a": (2, 3)})))
    yield Target("config of a classifier", (classifier.read_bytes(),), of_file("config.json", ClassifierConfig.read))
    yield Target(
        "listing of objects", (listed,), lambda data: object_list.decode_listing(Address("s3", "b", "a"), data, "here")
    )
    yield Target("model folder", _MODULES, _model_folder, (b"type", b"path", b"pooling_mode", b"max_seq_length"))


def _manifest(path: Path) -> None:
    check_files(path.parent, read_any_manifest(path.parent))


def _compact(data: bytes) -> None:
    folder = fuzz_file("compact/delta.json", data).parent
    (folder / "delta.safetensors").write_bytes(b"")
    read_compact(folder)


def _tensors() -> bytes:
    return bytes(save({"a": np.ones((2, 3), np.float32)}))


def _heads(data: bytes) -> None:
    folder = fuzz_file("model/aspects/config.json", data).parent
    tensors = {"a.0.weight": np.ones((2, 3), np.float32), "a.0.bias": np.ones(2, np.float32)}
    (folder / "model.safetensors").write_bytes(bytes(save(tensors)))
    find_heads(folder.parent)


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
    read_model_folder(folder)
