"""The peers of `graph.py`: the same work by plain Python, scipy, scikit-network and torchbiggraph.

Every function is a step for `measuring.run_step`: what stands before `with clock` is not measured.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from made_edges import Ints, Made
from measuring import Clock

LONGEST = 1000
"""Papers in the middle with longer lists do not count; the same for all."""


def build_matrix(clock: Clock, made: Made) -> dict[str, Any]:
    """scikit-network's matrix of the same edges and its transpose, in memory."""
    from sknetwork.data import from_edge_list  # type: ignore[import-untyped]

    edges = np.stack(made.edges(), axis=1)  # (citations, 2)
    with clock:
        matrix = from_edge_list(edges, directed=True, shape=(made.papers, made.papers), matrix_only=True)
        back = matrix.T.tocsr()
    return {"edges": back.nnz}


def build_dicts(clock: Clock, made: Made) -> dict[str, Any]:
    citing, cited = made.edges()
    with clock:
        forward, backward = _dicts(citing, cited)
    return {"edges": sum(map(len, forward.values())), "cited": len(backward)}


def _dicts(citing: Ints, cited: Ints) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    forward: dict[int, list[int]] = defaultdict(list)
    backward: dict[int, list[int]] = defaultdict(list)
    for one, other in zip(citing.tolist(), cited.tolist(), strict=True):
        forward[one].append(other)
        backward[other].append(one)
    return forward, backward


def count_in_matrix(clock: Clock, made: Made, signal: str, order: str) -> dict[str, Any]:
    """The same by sparse products of 10,000 rows at a time; `ascending` are their columns as in citeweave's rows."""
    from scipy import sparse  # type: ignore[import-untyped]

    (first, second), rows = _hops(made, signal), made.rows()
    shape = (made.papers, made.papers)
    ones = np.ones(made.citations, np.int32)
    out = sparse.csr_matrix((ones, first), shape=shape)
    on = sparse.csr_matrix((ones, second), shape=shape)
    on = sparse.csr_matrix(sparse.diags_array(np.diff(on.indptr) <= LONGEST, dtype=np.int32) @ on)
    on.eliminate_zeros()
    pairs = 0
    with clock:
        for start in range(0, len(rows), 10_000):
            part = rows[start : start + 10_000]
            product = out[part] @ on  # (part, papers)
            if order == "ascending":
                product.sort_indices()
            itself = np.asarray(product[np.arange(len(part)), part]).ravel()
            pairs += product.nnz - int((itself > 0).sum())
    return {"pairs": pairs}


def count_in_dicts(clock: Clock, made: Made, signal: str) -> dict[str, Any]:
    """The same by a `Counter` for every one of a few queries; `times` is how many more paths all queries have."""
    (start, middle), (again, _) = _hops(made, signal)
    first, _ = _dicts(start, middle)
    second, _ = _dicts(*_hops(made, signal)[1])
    lengths = np.bincount(again, minlength=made.papers)
    reached = np.where(lengths[middle] <= LONGEST, lengths[middle], 0)
    paths = np.bincount(start, weights=reached, minlength=made.papers)[made.rows()]  # (queries,)
    few = made.rows()[: made.peer_queries].tolist()
    pairs = 0
    with clock:
        for query in few:
            counts: Counter[int] = Counter()
            for between in first.get(query, ()):
                if len(second[between]) <= LONGEST:
                    counts.update(second[between])
            pairs += len(counts) - (query in counts)
    times = float(paths.sum() / paths[: made.peer_queries].sum())
    return {"of_few": pairs, "queries": len(few), "times": times}


def _hops(made: Made, signal: str) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """From the query to the papers in the middle, and on from those."""
    citing, cited = made.edges()
    along, against = (citing, cited), (cited, citing)
    return (against, along) if signal == "cocited" else (along, against)


def embed_in_matrix(clock: Clock, made: Made, method: str) -> dict[str, Any]:
    from sknetwork import embedding  # type: ignore[import-untyped]
    from sknetwork.data import from_edge_list

    edges = np.stack(made.edges(), axis=1)  # (citations, 2)
    shape = (made.papers, made.papers)
    matrix = from_edge_list(edges, directed=False, weighted=False, shape=shape, matrix_only=True)
    del edges
    with clock:
        found = getattr(embedding, method)(made.dimension).fit_transform(matrix.astype(np.float64))
    return {"shape": found.shape}


def embed_with_biggraph(clock: Clock, made: Made) -> dict[str, Any]:
    """One epoch with SciNCL's settings; edges and counts are handed over in torchbiggraph's own files."""
    import logging
    import os
    import warnings

    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"  # for its workers
    import h5py  # type: ignore[import-untyped]
    from torchbiggraph.config import parse_config  # type: ignore[import-untyped]
    from torchbiggraph.train import train  # type: ignore[import-untyped]

    folder = Path(tempfile.mkdtemp(dir=made.folder))
    (folder / "entity_count_paper_id_0.txt").write_text(f"{made.papers}\n")
    with h5py.File(folder / "edges_0_0.h5", "w") as file:
        file.attrs["format_version"] = 1
        citing, cited = made.edges()
        for name, column in (("lhs", citing), ("rhs", cited), ("rel", np.zeros_like(citing))):
            file.create_dataset(name, data=column)
    config = parse_config(_biggraph_config(folder, made.dimension))
    logging.getLogger("torchbiggraph").setLevel(logging.ERROR)
    with clock:
        train(config)
    return {}


def _biggraph_config(folder: Path, dimension: int) -> dict[str, Any]:
    """malteos/scincl, biggraph_configs/s2orc_128d_dot.py, with one epoch of its 20 (paper) or 30 (file)."""
    return {
        "entity_path": str(folder),
        "edge_paths": [str(folder)],
        "checkpoint_path": str(folder / "model"),
        "entities": {"paper_id": {"num_partitions": 1}},
        "relations": [{"name": "citation", "lhs": "paper_id", "rhs": "paper_id", "operator": "none"}],
        "dimension": dimension,
        "max_norm": 1.0,
        "global_emb": False,
        "comparator": "dot",
        "num_epochs": 1,
        "num_edge_chunks": 10,
        "batch_size": 10_000,
        "num_uniform_negs": 0,
        "margin": 0.15,
        "lr": 0.1,
        "eval_fraction": 0.0,
    }
