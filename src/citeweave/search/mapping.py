"""A map of an index: its papers as points of a plane, with years, fields and named groups, kept beside the index.

    find_map(index)              the map of this very state, None where it was not made yet
    make_map(index)              makes it, or finds it; the papers that an earlier map knows stay where they are

    index/maps/000012-1f2e3d4c/
      xy.npy                     uint16, (papers, 2)
      row.npy key.npy year.npy field.npy group.npy     of each point: row of the index, key of its id, ...
      landmark.npy               points that t-SNE placed; all others lie beside the landmarks they are like
      centre.npy                 float32, (groups, dimension)
      manifest.json              names of fields and groups, the frame of the plane, how it was made

On it are the live papers with a vector, but for those known only as references. Where an index has grown by half since
t-SNE placed its landmarks, or has vectors of another model, they are placed again, from where they were. Does not draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.ownership import remove_artefact
from citeweave.corpus.layout import STUB
from citeweave.errors import UserError
from citeweave.files import hash_json
from citeweave.hashing import Keys, mix
from citeweave.progress import QUIET, Reporter
from citeweave.search.index import Index
from citeweave.search.maps.groups import assign, count_groups, find_centres, name_groups
from citeweave.search.maps.paper_map import Frame, Group, PaperMap
from citeweave.search.maps.plane import FEWEST, Floats, Plane, densest, lay_out, place_others, unit
from citeweave.search.naming import fields_of

LANDMARKS = 5000
FIELDS = 20
"""Fields that have a number of their own."""

OTHER = "other"
GROWTH = 1.5
"""How many times more papers than when t-SNE last ran make it run again."""

_BLOCK = 8192
_TITLES = 50_000
"""Titles that name the groups."""


@dataclass(frozen=True)
class Points:
    """The papers of a map."""

    index: Index
    rows: NDArray[np.int64]
    keys: Keys

    def vectors(self, points: NDArray[Any]) -> Floats:
        """Vectors of length 1, (points, dimension)."""
        if not len(points):  # an index without any vector knows no dimension
            return np.zeros((0, 1), np.float32)
        return unit(self.index.take(self.rows[points]))


class Placed(NamedTuple):
    """Points of the plane."""

    xy: NDArray[np.uint16]
    frame: Frame
    landmarks: NDArray[np.int32]
    centres: Floats
    laid_out: int
    note: str


def find_map(index: Index, *, seed: int = 0, most_landmarks: int = LANDMARKS) -> PaperMap | None:
    """The map of this state, None where there is none that can be read."""
    try:
        return PaperMap.open(_folder(index, _recipe(index, seed, most_landmarks)))
    except UserError:
        return None


def make_map(index: Index, *, seed: int = 0, most_landmarks: int = LANDMARKS, reporter: Reporter = QUIET) -> PaperMap:
    """The map of this state; saved beside the index, unless that cannot be written."""
    known = find_map(index, seed=seed, most_landmarks=most_landmarks)
    if known is not None:
        return known
    rows = np.flatnonzero(index.with_vector & _own_papers(index))
    points = Points(index, rows, index.keys_of(rows))
    old = _newest(index.folder / "maps")
    placed = _stay(points, old) or _place(points, old, seed, most_landmarks, reporter)
    made = _describe(points, placed)
    recipe = _recipe(index, seed, most_landmarks)
    try:
        made.save(_folder(index, recipe), recipe)
    except (UserError, OSError):  # a folder that cannot be written, or another process that makes the same map
        return made
    _remove_older(_folder(index, recipe))
    return made


def _recipe(index: Index, seed: int, most_landmarks: int) -> dict[str, Any]:
    segments = [[segment.name, int(segment.alive.sum())] for segment in index.segments]
    return {"state": index.number, "segments": segments, "seed": seed, "landmarks": most_landmarks}


def _folder(index: Index, recipe: dict[str, Any]) -> Path:
    return index.folder / "maps" / f"{index.number:06}-{hash_json(recipe)[:8]}"


def _own_papers(index: Index) -> NDArray[np.bool_]:
    return np.concatenate([np.empty(0, bool), *((segment.flags & STUB) == 0 for segment in index.segments)])


def _model(index: Index) -> str:
    return "" if index.provenance is None else index.provenance.label


def _newest(folder: Path) -> PaperMap | None:
    """The last map that was made of another state."""
    if not folder.is_dir():
        return None
    for path in sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True):
        try:
            found = PaperMap.open(path)
        except UserError:
            continue
        if len(found):
            return found
    return None


def _remove_older(folder: Path) -> None:
    for path in folder.parent.iterdir():
        if path.name < folder.name and not path.name.startswith("."):  # another process may be at work in a hidden one
            remove_artefact(path)


def _known_to(old: PaperMap, keys: Keys) -> NDArray[np.int64]:
    """The point of an earlier map that each key has, -1 where it has none."""
    order = np.argsort(old.keys)
    at = np.minimum(np.searchsorted(old.keys, keys, sorter=order), len(order) - 1)
    return np.where(old.keys[order[at]] == keys, order[at], -1)


def _stay(points: Points, old: PaperMap | None) -> Placed | None:
    """Known papers where they were, new ones beside the landmarks; None where t-SNE has to run."""
    if old is None or old.model != _model(points.index) or len(points.rows) > GROWTH * old.laid_out:
        return None
    before = _known_to(old, points.keys)  # (points,)
    marked = np.zeros(len(old), bool)
    marked[old.landmarks] = True
    landmarks = np.flatnonzero((before >= 0) & marked[before])
    if len(landmarks) < FEWEST or 2 * len(landmarks) < len(old.landmarks):
        return None
    xy = np.where((before >= 0)[:, None], old.xy[before], 0).astype(np.uint16)  # (points, 2)
    places = old.frame.to_plane(xy[landmarks])
    new = np.flatnonzero(before < 0)
    xy[new] = old.frame.to_whole(_beside(points, new, landmarks, places))
    return Placed(xy, old.frame, landmarks.astype(np.int32), np.asarray(old.centres), old.laid_out, old.note)


def _place(points: Points, old: PaperMap | None, seed: int, most_landmarks: int, reporter: Reporter) -> Placed:
    """Landmarks by t-SNE, all others beside them."""
    # by their keys, so that a little larger index has nearly the same landmarks
    order = np.argsort(mix(points.keys, np.full(len(points.keys), seed, np.uint64)))
    landmarks = np.sort(order[:most_landmarks])
    vectors = points.vectors(landmarks)
    layout = lay_out(vectors, seed=seed, start=_start(points, old, landmarks), reporter=reporter)
    plane = np.empty((len(points.rows), 2))
    plane[landmarks] = layout.xy
    others = np.setdiff1d(np.arange(len(points.rows)), landmarks, assume_unique=True)
    plane[others] = _beside(points, others, landmarks, layout.xy)
    frame = Frame.around(plane)
    centres = find_centres(vectors, count_groups(len(points.rows)), seed=seed)
    note = layout.note
    if len(others):
        note += f" {len(landmarks):,} papers were placed so, the others beside those they are most like."
    return Placed(frame.to_whole(plane), frame, landmarks.astype(np.int32), centres, len(points.rows), note)


def _start(points: Points, old: PaperMap | None, landmarks: NDArray[np.int64]) -> Plane | None:
    """Where the landmarks were on an earlier map, new ones beside them; None where too few were on it."""
    if old is None:
        return None
    before = _known_to(old, points.keys[landmarks])
    known = before >= 0
    if known.sum() < max(FEWEST, len(landmarks) // 4):
        return None
    start = np.empty((len(landmarks), 2))
    start[known] = old.frame.to_plane(old.xy[before[known]])
    start[~known] = _beside(points, landmarks[~known], landmarks[known], start[known])
    return start


def _beside(points: Points, which: NDArray[np.int64], landmarks: NDArray[np.int64], places: Plane) -> Plane:
    """Places of points beside landmarks, block by block, (which, 2)."""
    plane = np.empty((len(which), 2))
    if len(which):
        vectors = points.vectors(landmarks)
        for start in range(0, len(which), _BLOCK):
            part = which[start : start + _BLOCK]
            plane[start : start + len(part)] = place_others(points.vectors(part), vectors, places, points.keys[part])
    return plane


def _describe(points: Points, placed: Placed) -> PaperMap:
    index, rows = points.index, points.rows
    owners = np.zeros(len(rows), np.uint8)
    for start in range(0, len(rows), _BLOCK):
        part = np.arange(start, min(start + _BLOCK, len(rows)))
        owners[part] = assign(points.vectors(part), placed.centres)
    field, fields = fields_of(index).number_rows(rows, FIELDS)
    years = index.years[rows].astype(np.int16)
    columns: dict[str, NDArray[Any]] = {
        "row": rows.astype(np.int32),
        "key": points.keys,
        "year": years,
        "field": field,
        "group": owners,
    }
    return PaperMap(
        state=index.number,
        xy=placed.xy,
        columns=columns,
        landmarks=placed.landmarks,
        centres=placed.centres,
        fields=(*fields, OTHER),
        groups=_groups(points, placed.xy, owners, len(placed.centres)),
        frame=placed.frame,
        laid_out=placed.laid_out,
        model=_model(index),
        note=placed.note if len(rows) else "No paper has a vector yet.",
    )


def _groups(points: Points, xy: NDArray[np.uint16], owners: NDArray[np.uint8], count: int) -> tuple[Group, ...]:
    some = np.sort(np.argsort(points.keys)[:_TITLES])  # keys are spread evenly: a fair sample
    titles = [points.index.title(row) for row in points.rows[some].tolist()]
    names = name_groups(titles, owners[some], count)
    sizes = np.bincount(owners, minlength=count)
    middles = [densest(xy[owners == group]) for group in range(count)]
    return tuple(
        Group(name, int(x), int(y), int(size)) for name, (x, y), size in zip(names, middles, sizes, strict=True)
    )
