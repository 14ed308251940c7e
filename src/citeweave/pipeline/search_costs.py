"""The estimated cost of a search service: vectors, index, server, and the time of one exact query.

    sizes = sizes_from_counts(10_000_000, 0)
    print(estimate_search(sizes, parse_machine("server"), sentences=True))

    embedding       as in a recipe; papers and sentences share one pass of the network
    index           words, and vectors that are precomputed
    server          the process, and the pages of the index that queries read
    one query       numbers of the vectors compared, from int8 codes; papers that share a word with the text

A query compares every vector, so that its result is exact. What was measured is 100,000 and a million papers; other sizes
are in proportion to the numbers that are compared, within the bandwidth of the memory. Stages are those of
`stage_costs.py`, constants those of `costs.toml`. Does not count import, nor copies of an index in a database (docs/stores.md).
"""

from __future__ import annotations

from dataclasses import replace

from citeweave.core.progress import format_duration
from citeweave.encoders.model_names import DEFAULT_MODEL
from citeweave.pipeline.cost import Estimate, network_shape
from citeweave.pipeline.cost_constants import MINILM, Machine, NetworkShape, Sizes, get_constant
from citeweave.pipeline.stage_costs import StageWork, embedding_work, index_work

SEARCH = "search"
"""What `citeweave estimate` takes in place of a recipe."""

MAX_TOKENS = 512
"""Tokens at which models truncate a text; weave and MiniLM at half of them."""

MEASURED = 1_000_000
"""Papers of the largest index whose queries were measured."""

QUERY_SENTENCES = 2
"""Sentences of a query by sentences, as many as were measured."""


def estimate_search(sizes: Sizes, machine: Machine, *, model: str = "", sentences: bool = False) -> Estimate:
    """Estimate what a search service needs: time to embed and index, memory of the server, disk, time of one query."""
    shape = network_shape(model or DEFAULT_MODEL)
    tokens = min(sizes.tokens, MAX_TOKENS / 2 if shape == MINILM else float(MAX_TOKENS))
    built = index_work(shape, sizes, tokens, sentences=sentences)
    # the index takes over the vectors that were embedded for it
    embedded = replace(embedding_work(shape, sizes, tokens), disk=0.0)
    if sentences:
        embedded = replace(embedded, size=f"{embedded.size} and their sentences, in one pass")
    works = [embedded, built, _server_work(shape, sizes, sentences=sentences)]
    queries, notes = _query_works(shape, sizes, sentences=sentences), _notes(sizes, shape, tokens, machine)
    return Estimate(SEARCH, machine, f"{sizes.papers:,} papers", works, queries, notes)


def _compared(shape: NetworkShape, texts: float) -> float:
    """Return the numbers of the vectors of some texts."""
    return texts * shape.hidden


def _sentence_count(sizes: Sizes) -> float:
    return sizes.texts * get_constant("sentences.paper")


def _server_work(shape: NetworkShape, sizes: Sizes, *, sentences: bool) -> StageWork:
    """Estimate the memory of one server process, pages of mapped files included; opening an index takes no time."""
    numbers = _compared(shape, sizes.texts + _sentence_count(sizes) * sentences)
    process = get_constant("process.memory") + get_constant("torch.memory") + 4.0 * shape.parameters
    paper, number = get_constant("server.memory.paper"), get_constant("index.memory.number")
    return StageWork(
        "server",
        f"{sizes.texts:,} papers, their words and vectors" + (", with sentences" if sentences else ""),
        memory=process + paper * sizes.texts + number * numbers,
        constants=("process.memory", "torch.memory", "server.memory.paper", "index.memory.number"),
        fits_by="with less, queries read the index from the disk; or vectors in Milvus on other machines (docs/stores.md)",
    )


def _query_works(shape: NetworkShape, sizes: Sizes, *, sentences: bool) -> list[StageWork]:
    """Estimate one query of each kind, alone on the machine."""
    numbers = _compared(shape, sizes.texts)
    works = [
        _query("by vector or paper", numbers),
        _query("by text, vectors and words", numbers, words=sizes.texts),
    ]
    if sentences:
        compared = _compared(shape, QUERY_SENTENCES * _sentence_count(sizes))
        works.append(_query(f"by {QUERY_SENTENCES} sentences", compared))
    return works


def _query(name: str, numbers: float, *, words: int = 0) -> StageWork:
    """Return the work of one query: numbers compared on all cores; its words looked up, and its text encoded, on one."""
    scanned = get_constant("query.number") * numbers
    alone = get_constant("query.word") * words + get_constant("query.text") * (words > 0)
    return StageWork(
        name,
        f"{numbers:,.0f} numbers compared" + (f", words of {words:,} papers" if words else ""),
        cpu=scanned + alone,
        parallel=get_constant("query.parallel") * scanned / (scanned + alone),
        moved=numbers,  # one byte each
        constants=("query.number", *(("query.word", "query.text") if words else ())),
    )


def _notes(sizes: Sizes, shape: NetworkShape, tokens: float, machine: Machine) -> list[str]:
    """Say what is extrapolated, and what the figures leave out."""
    notes = [
        "queries were measured on two cores, with 100,000 and a million papers of 384 numbers (docs/performance.md); "
        "more cores are extrapolated"
    ]
    if sizes.texts > MEASURED or shape != MINILM:
        notes.append(
            f"{sizes.texts:,} papers of {shape.hidden} numbers are extrapolated in proportion, memory and disk as well"
        )
    if machine.gpus:
        tokenizing = format_duration(get_constant("tokens.token") * sizes.texts * tokens)
        notes.append(f"tokenizing takes {tokenizing} of one core, for which a small model on a GPU may have to wait")
    else:
        notes.append(
            "embedding is by torch in float32; --runtime auto is up to 4.6 times as fast (docs/performance.md)"
        )
    notes.append("a change builds the next generation beside the current one: meanwhile up to twice the disk")
    return notes
