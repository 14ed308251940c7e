"""Compiled functions load numba when they are first called, and give the same result without it on little data."""

import json
import subprocess
import sys

import numpy as np

from citeweave.core.compiled import before_compiling, compiled, numba_is_loaded

WITHOUT_NUMBA = """
import json, sys
import numpy as np
import citeweave.graph.build, citeweave.mining.mine, citeweave.search.answer, citeweave.search.build
from citeweave.core.hash_keys import hash_text
from citeweave.corpus.id_index import IdIndex
from citeweave.vectors.topk.engine import nearest
hashes = [int(hash_text(text)) for text in ("doi:10.1/x", "", "na\\u00efve \\u2603 and more than eight bytes")]
ids = IdIndex.of(np.array([3, 7, 2**63], np.uint64), np.array([2, 0, 1], np.int32))
found = ids.rows_of(np.array([7, 2**63, 8], np.uint64)).tolist()
near = []
for dtype in (np.float32, np.float16):
    rng = np.random.default_rng(5)
    pool = rng.normal(size=(5000, 37)).astype(dtype)
    pool[4999], pool[10] = pool[3], 0
    allowed = rng.random(5000) < 0.9
    allowed[[3, 4999, 10]] = True
    for count in (8, 5000):
        one = nearest(pool, pool[3:4].astype(np.float32), count, allowed=allowed, itself=np.array([7]))
        near += [one.rows.tolist(), one.scores.view(np.int32).tolist()]
print(json.dumps({"numba": "numba" in sys.modules, "hashes": hashes, "found": found, "near": near}))
"""


def test_little_work_needs_no_numba_and_gives_the_same_bits():
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True)
    without = json.loads(done.stdout)
    assert not without.pop("numba")
    compiled_here(np.arange(3))
    assert numba_is_loaded()
    scope: dict[str, object] = {}
    printed: list[str] = []
    exec(WITHOUT_NUMBA.replace("print(", "printed.append("), scope | {"printed": printed})
    result = json.loads(printed[0])
    assert result.pop("numba") and result == without


prepared: list[str] = []


@compiled(cache=False)
def _double(number):
    return 2 * number


@compiled(cache=False)
def compiled_here(numbers):
    """Add the doubles of numbers."""
    total = 0
    for number in numbers:
        total += _double(number)
    return total


def test_compiled_functions_call_each_other():
    before_compiling(lambda: prepared.append("once"))

    @compiled(cache=False)
    def triple(number):
        return number + _double(number)

    assert compiled_here.__doc__ == "Add the doubles of numbers."
    assert compiled_here(np.arange(4)) == compiled_here.small(np.arange(4)) == 12
    assert not prepared or prepared == ["once"]
    assert (triple(2), triple(3.5), prepared) == (6, 10.5, ["once"])


def test_integers_wrap_around_without_a_warning():
    assert compiled_here.small(np.array([2**63 - 1, 1], np.int64)) == compiled_here(np.array([2**63 - 1, 1], np.int64))
