"""All benchmarks and how they are run: one declared list, a small and a full size of each.

    BENCHMARKS["graph"].arguments("small")      ["--papers", "100000", ...]
    BENCHMARKS["gpu_speed"].by_hand             "one GPU": the suite names it and does not run it

Runs nothing: `run_all.py` does.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

SIZES = ("small", "full")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script, and what it is told at either size."""

    script: str
    about: str
    small: str = ""
    full: str = ""
    by_hand: str = ""
    """What it needs that a suite cannot know: a GPU, a corpus, a folder of benchmark data."""

    def arguments(self, size: str) -> list[str]:
        """`{work}` among them stands for a folder to work in."""
        return shlex.split(self.small if size == "small" else self.full)


BENCHMARKS = {
    "import": Benchmark(
        "import_citations.py",
        "citations of Semantic Scholar's shape beside a plain gzip + json loop",
        "--records 2000000 --papers 100000",
        "--records 20000000 --papers 1000000",
    ),
    "synthesize": Benchmark(
        "synthesize.py", "generating a synthetic literature", "--papers 100000", "--papers 1000000"
    ),
    "synthetic_hardness": Benchmark("synthetic_hardness.py", "how hard the synthetic literature is", "--seeds 0", ""),
    "leakage": Benchmark(
        "leakage.py", "papers of a benchmark in a corpus", by_hand="a folder with peerread_plus and csfcube"
    ),
    "graph": Benchmark(
        "graph.py",
        "graph, co-citation, node vectors beside scikit-network, dictionaries, torchbiggraph",
        "--papers 100000 --queries 10000 --peer-queries 2000 --slow-papers 20000",
        "--papers 1000000 --growth",
    ),
    "growth": Benchmark(
        "growth.py", "exponents of the whole-literature steps by citations", "", "--sizes 500000 5000000 50000000"
    ),
    "literature": Benchmark(
        "literature.py",
        "the steps of SciNCL on a literature of structure alone",
        "--papers 56000 --citations 500000 --queries 1000 --pool 20000 --triplets 5000 --work {work}",
        "--papers 560000 --citations 5000000 --queries 10000 --pool 100000 --triplets 50000 --work {work}",
    ),
    "mining": Benchmark(
        "mining.py",
        "samples of SciNCL and SPECTER beside faiss and a plain sampler",
        "--pool 20000 --queries 2000 --peer-queries 500",
        "",
    ),
    "evaluation": Benchmark("evaluation.py", "ranking metrics beside a loop over pairs"),
    "aspects": Benchmark("aspects.py", "aspects of a synthetic literature", "--papers 200 --queries 100", ""),
    "transport": Benchmark(
        "transport.py",
        "distances between sentences beside geomloss",
        "--candidates 2000 --rounds 2 --peer-pairs 20",
        "--rounds 9",
    ),
    "sentence_search": Benchmark(
        "sentence_search.py", "exact search among sentences", "speed --sentences 20000", "speed"
    ),
    "probes": Benchmark("probes.py", "linear models beside scikit-learn", "--papers 2000 --dimension 128", ""),
    "cpu_embedding": Benchmark(
        "cpu_embedding.py",
        "MiniLM on a processor beside sentence-transformers",
        "--papers 30 --rounds 1",
        "--papers 300 --rounds 2",
    ),
    "search": Benchmark(
        "search.py",
        "a whole index, and a server under load",
        "--papers 5000 --load 10 --seconds 5 --queries 50 --runtime auto",
        "--papers 100000 --load 50 --seconds 60 --runtime auto",
    ),
    "search_scan": Benchmark(
        "search_scan.py",
        "the scan of one query beside numpy and faiss",
        "--rows 20000 --queries 50",
        "",
    ),
    "fusion": Benchmark(
        "fusion.py",
        "words, vectors and their fusions as search systems",
        by_hand="a folder with scitldr, elife and others",
    ),
    "library_questions": Benchmark(
        "library_questions.py",
        "first results of a library's questions, graded by reading",
        by_hand="an index of that library",
    ),
    "search_stores": Benchmark("search_stores.py", "LanceDB and milvus-lite", "--papers 5000 --queries 50", ""),
    "explore": Benchmark(
        "explore.py", "a library of references, from the command to answers", "--entries 100", "--entries 2000"
    ),
    "start": Benchmark("start.py", "single commands from their start", "--papers 200 --rounds 2", ""),
    "estimates": Benchmark("estimates.py", "what `citeweave estimate` estimates beside real stages", "", "--times 4"),
    "ray_embedding": Benchmark("ray_embedding.py", "embedding on a local Ray cluster beside the local run"),
    "train_processes": Benchmark("train_processes.py", "training by one and by two processes"),
    "gpu_speed": Benchmark("gpu_speed.py", "embedding and training on a GPU", by_hand="one GPU"),
    "gpu_peers": Benchmark("gpu_peers.py", "sentence-transformers on a GPU", by_hand="one GPU"),
    "gpu_sentences": Benchmark("gpu_sentences.py", "training on sentences on a GPU", by_hand="one GPU"),
    "gpu_paths": Benchmark("gpu_paths.py", "paths of CUDA that no test runs, PASS or FAIL", by_hand="one GPU"),
    "gpu_bands": Benchmark("gpu_bands.py", "exact rank bands on a GPU", by_hand="one GPU"),
    "gpu_graph": Benchmark("gpu_graph.py", "fastrp on a GPU", by_hand="one GPU"),
    "learning": Benchmark("learning.py", "what recipes learn", by_hand="one GPU and a corpus"),
    "links": Benchmark("links.py", "held-out citations by node vectors", by_hand="corpora as NAME=FOLDER"),
    "mining_setups": Benchmark("mining_setups.py", "the published set-ups, audited", "made=2000", "", ""),
    "intents": Benchmark("intents.py", "the classifier of intents", by_hand="labeled sentences, or corpora"),
    "aspect_spaces": Benchmark("aspect_spaces.py", "spaces of aspects", by_hand="a trained model with heads"),
    "results": Benchmark("results.py", "systems by all suites", by_hand="the suites' data"),
}
"""Name -> benchmark, in the order they are run."""
