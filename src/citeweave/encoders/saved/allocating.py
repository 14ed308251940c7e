"""Which coding every matrix gets, so that all together fit into so many bytes and lose least.

Every matrix has options, each with bytes and an error; to store nothing costs nothing and leaves everything. Only options on
the lower convex hull of error over bytes are ever worth it. Bytes are spent where the next step along a hull takes away most
error a byte, until no step fits (Shoham and Gersho 1988, bit allocation, without its search for the multiplier).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

Point = tuple[int, float]
"""Bytes, and the error that is left."""


def hull_of(points: Iterable[Point]) -> list[Point]:
    """The points of the lower convex hull, from few bytes to many; a point that is no better than a cheaper one is none.

    >>> hull_of([(0, 10.0), (1, 9.5), (2, 4.0), (3, 4.5), (4, 3.0), (5, 3.0)])
    [(0, 10.0), (2, 4.0), (4, 3.0)]
    """
    found: list[Point] = []
    for point in sorted(points):
        if found and point[1] >= found[-1][1]:
            continue
        while len(found) > 1 and _gain(found[-2], found[-1]) <= _gain(found[-1], point):
            found.pop()
        found.append(point)
    return found


def allocate(options: Mapping[str, Iterable[Point]], budget: int) -> dict[str, Point]:
    """The point of each matrix; those that begin with 0 bytes may get nothing.

    >>> allocate({"a": [(0, 9.0), (4, 1.0), (8, 0.0)], "b": [(0, 3.0), (4, 1.0)]}, 8)
    {'a': (4, 1.0), 'b': (4, 1.0)}
    """
    hulls = {name: hull_of(points) for name, points in options.items()}
    chosen = dict.fromkeys(hulls, 0)
    left = budget - sum(hull[0][0] for hull in hulls.values())
    steps = [_step(name, hull, 0) for name, hull in hulls.items() if len(hull) > 1]
    heapq.heapify(steps)
    while steps:
        _, name, number = heapq.heappop(steps)
        hull = hulls[name]
        cost = hull[number][0] - hull[number - 1][0]
        if cost > left:
            continue  # dearer steps of this matrix come after it, those of others may still fit
        left -= cost
        chosen[name] = number
        if number + 1 < len(hull):
            heapq.heappush(steps, _step(name, hull, number))
    return {name: hulls[name][number] for name, number in chosen.items()}


def _gain(before: Point, after: Point) -> float:
    """Error that goes away a byte."""
    return (before[1] - after[1]) / (after[0] - before[0])


def _step(name: str, hull: list[Point], number: int) -> tuple[float, str, int]:
    return -_gain(hull[number], hull[number + 1]), name, number + 1
