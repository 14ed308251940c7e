"""Exact top-k search and rank bands in a pool of vectors: one query or a million, on the CPU or a GPU.

nearest(pool, queries, 10)                      see `engine.py`
nearest(pool, query, 10, codes=Codes.open(folder), allowed=years > 2019)
"""

from citeweave.vectors.topk.codes import Codes, make_codes, write_codes
from citeweave.vectors.topk.engine import DEVICES, TopkOptions, far_band, nearest, search, search_blocks
from citeweave.vectors.topk.request import METRICS, Band, Neighbors
from citeweave.vectors.topk.scan import QueryScan, compare, pair_scores

__all__ = [
    "DEVICES", "METRICS", "Band", "Codes", "Neighbors", "QueryScan", "TopkOptions", "compare", "far_band", "make_codes",
    "nearest", "pair_scores", "search", "search_blocks", "write_codes",
]  # fmt: skip
