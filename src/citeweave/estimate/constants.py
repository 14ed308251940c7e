"""Measured constants: what one citation, paper, token or operation costs. Every estimate is made of these alone.

    >>> value("tokens.token")
    4.2e-06
    >>> print(CONSTANTS["tokens.token"])
    4.2e-06 CPU s a token (benchmarks/estimates.py, two Neoverse-N1 cores, November 2026)

CPU seconds are of one Neoverse-N1 core, user and system, of all threads. To bring a constant up to date, run the command
that its source names and replace the number; nothing else has to be changed.
"""

from __future__ import annotations

from dataclasses import dataclass

_N1 = "two Neoverse-N1 cores, November 2026"
_STAGES = f"benchmarks/estimates.py, {_N1}"
_GRAPH = f"benchmarks/graph.py --papers 500000 --queries 50000 --peers --growth, {_N1}"
_SEARCH = f"benchmarks/search.py, 100,000 real papers and a million made-up ones, {_N1}"
_LITERATURE = f"benchmarks/literature.py --papers 560000 --citations 5000000, {_N1}"
_WHOLE = "benchmarks/literature.py, 52 million papers and 470 million citations, two Neoverse-N1 cores, November 2026"
_BANDS = f"benchmarks/literature.py, pools of 20,000 and of 681,000 papers, 128 dimensions, {_N1}"
_ROUNDED = "a rounded guess from runs on two cores"
_GUESS = "a guess, not measured"
_GPU = "benchmarks/gpu_speed.py on one H200, docs/performance.md"


@dataclass(frozen=True, slots=True)
class Constant:
    """A number and where it comes from."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:.3g} {self.unit} ({self.source})"


CONSTANTS = {
    # a process
    "process.memory": Constant(200e6, "bytes of a Python process with numpy and numba", _STAGES),
    "torch.memory": Constant(350e6, "bytes more with torch and a tokenizer", _STAGES),
    # import
    "import.citation": Constant(4.5e-6, "CPU s a citation, a third of them with sentences", _STAGES),
    "import.paper": Constant(2.0e-5, "CPU s a paper", _STAGES),
    "import.text": Constant(3e-8, "CPU s a byte of text", _STAGES),
    "import.edge": Constant(
        3.3e-7,
        "CPU s a citation of a Parquet table of edges, its papers included",
        f"between 2.9e-7 ({_LITERATURE}) and 3.6e-7 to 3.8e-7 ({_WHOLE})",
    ),
    "import.edge.parallel": Constant(0.5, "of it on all cores", f"167 CPU s in 153 s beside other work ({_WHOLE})"),
    "import.parallel": Constant(0.9, "of it on all cores", _ROUNDED),
    "import.memory": Constant(300e6, "bytes", _STAGES),
    "import.memory.worker": Constant(80e6, "bytes a worker", _STAGES),
    "import.memory.paper": Constant(16.0, "bytes a paper", _GUESS),
    "import.disk.citation": Constant(113.0, "bytes a citation, a third of them with sentences", _STAGES),
    "import.disk.paper": Constant(183.0, "bytes a paper, texts aside", _STAGES),
    "import.disk.edge": Constant(15.0, "bytes a citation, its papers included", _LITERATURE),
    # graph
    "graph.citation": Constant(
        1.2e-7, "CPU s a citation", f"between 0.9e-7 to 1.2e-7 ({_GRAPH}) and 1.4e-7 to 1.6e-7 ({_WHOLE})"
    ),
    "graph.parallel": Constant(0.0, "of it on all cores", _ROUNDED),
    "graph.disk.citation": Constant(16.0, "bytes a citation, both directions", _STAGES),
    "fastrp.gather": Constant(
        8.0e-10, "CPU s a number gathered, entry x dimension x step, of panels of at most 1 GiB", _GRAPH
    ),
    "fastrp.gather.far": Constant(2.2e-9, "CPU s a number gathered of larger panels, whose rows lie far apart", _WHOLE),
    "fastrp.number": Constant(2.0e-9, "CPU s a number of the result and step", _GRAPH),
    "fastrp.parallel": Constant(0.9, "of it on all cores", _ROUNDED),
    "prone.gather": Constant(6.4e-9, "CPU s an entry and dimension", _GRAPH),
    "prone.number": Constant(1.27e-7, "CPU s a number of the result", _GRAPH),
    "prone.parallel": Constant(0.8, "of it on all cores", _ROUNDED),
    "edges.number": Constant(2.5e-8, "CPU s an edge, dimension and epoch", _GUESS),
    "edges.parallel": Constant(0.7, "of it on all cores", _ROUNDED),
    "vectors.disk.id": Constant(30.0, "bytes of a paper's id", _STAGES),
    # mining
    "relatives.path": Constant(6.6e-8, "CPU s a paper met over two hops", _GRAPH),
    "relatives.parallel": Constant(0.9, "of it on all cores", _ROUNDED),
    "union.entry": Constant(2.0e-7, "CPU s an entry of a union of signals", _GUESS),
    "unevenness.cocited": Constant(
        4.0, "mean square of list lengths over the square of their mean", "made-up 1.3, PeerRead+ 8"
    ),
    "unevenness.coupled": Constant(9.0, "the same of citing papers", "made-up 2.6, PeerRead+ 19"),
    "unevenness.second_hop": Constant(1.2, "the same of both", "made-up 0.7, PeerRead+ 1.5"),
    "bands.number": Constant(7.0e-11, "CPU s an anchor, paper of the pool and dimension", _BANDS),
    "bands.pair": Constant(6.0e-10, "CPU s an anchor and paper of the pool", _BANDS),
    "bands.rank": Constant(1.25e-7, "CPU s an anchor and rank of its deepest band", _BANDS),
    "bands.number.gpu": Constant(
        2.1e-13,
        "s an anchor, paper of the pool and dimension",
        "benchmarks/gpu_bands.py on one H200: 3.6 s for 137,000 x 1M x 128",
    ),
    "bands.parallel": Constant(0.95, "of it on all cores", _ROUNDED),
    "samples.pick": Constant(8e-7, "CPU s a paper chosen", _STAGES),
    "samples.parallel": Constant(0.7, "of it on all cores", _ROUNDED),
    "samples.disk.pick": Constant(11.0, "bytes a paper chosen", _STAGES),
    "contexts.sentence": Constant(2.2e-5, "CPU s a citing sentence looked through for pairs", _STAGES),
    "contexts.pair": Constant(0.28, "pairs of papers of a citing sentence that are kept", _STAGES),
    # texts and networks
    "tokens.token": Constant(4.2e-6, "CPU s a token", _STAGES),
    "tokens.parallel": Constant(0.0, "of it on all cores", _ROUNDED),
    "network.core": Constant(
        2.7e10,
        "operations a second and core, real tokens alone, float32",
        "benchmarks/cpu_embedding.py, MiniLM, 230 tokens",
    ),
    "network.parallel": Constant(0.95, "of it on all cores", "benchmarks/cpu_embedding.py"),
    "network.gpu.embedding": Constant(3.8e14, "operations a second and H200, packed, bfloat16", _GPU),
    "network.gpu.training": Constant(2.6e14, "operations a second and H200, packed, steps of 32 triplets", _GPU),
    "sentences.paper": Constant(6.1, "sentences of a paper", "606,000 of 100,000 real papers, docs/performance.md"),
    "intents.sentence": Constant(
        8.4e-3, "CPU s a citing sentence", f"239 a second on two cores, docs/intents.md; {_N1}"
    ),
    "intents.sentence.gpu": Constant(2.0e-5, "s a citing sentence", "arithmetic of MiniLM at 40 tokens; not measured"),
    "index.token": Constant(4.5e-7, "CPU s a token of text: words", _SEARCH),
    "index.number": Constant(2.2e-8, "CPU s a number of a vector that is given", _SEARCH),
    "index.parallel": Constant(0.0, "of it on all cores", _ROUNDED),
    "index.disk.token": Constant(8.0, "bytes a token of text", _SEARCH),
    "index.memory.paper": Constant(1500.0, "bytes a paper", _SEARCH),
    "index.memory.number": Constant(3.0, "bytes a number of a vector, pages of mapped files included", _SEARCH),
    "evaluation.paper": Constant(2e-3, "CPU s a paper of a suite, beside reading it", _GUESS),
}
"""Name -> what was measured. `.gpu` in a name: used where there is a card."""


def value(name: str) -> float:
    """
    >>> value("fastrp.parallel")
    0.9
    """
    return CONSTANTS[name].value
