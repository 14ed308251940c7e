"""A map of papers as it is kept in a folder and handed to a page; `search/map.py` says what its files hold.

    paper_map = PaperMap.open(folder)
    paper_map.as_json()["points"]

Coordinates are whole numbers from 0 to 65,535; `frame` tells where they lie in the plane in which papers were placed, so
that a later map can go on from this one. Does not place anything.

A map of an index: its papers as points of a plane, with years, fields and named groups, kept beside the index.

    find_map(index)              the map of this very state, None where it was not made yet
    make_map(index)              makes it, or finds it; the papers that an earlier map knows stay where they are

    index/maps/000012-1f2e3d4c/
      xy.npy                     uint16, (papers, 2)
      row.npy key.npy year.npy field.npy group.npy     of each point: row of the index, key of its id, ...
      landmark.npy               points that t-SNE placed; all others lie beside the landmarks they are like
      center.npy                 float32, (groups, dimension)
      manifest.json              names of fields and groups, the frame of the plane, how it was made

On it are the live papers with a vector, but for those known only as references. Where an index has grown by half since
t-SNE placed its landmarks, or has vectors of another model, they are placed again, from where they were. Does not draw.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import check_files, new_artifact, read_manifest
from citeweave.core.columns import MatrixWriter, open_matrix, open_numbers, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact
from citeweave.core.randomness import Keys, mix
from citeweave.corpus.corpus import STUB
from citeweave.search.filters import fields_of
from citeweave.search.index import Index
from citeweave.search.map_layout import (
    FEWEST,
    Floats,
    Plane,
    assign,
    count_groups,
    densest,
    find_centers,
    lay_out,
    name_groups,
    place_others,
    unit,
)

KIND, VERSION = "paper_map", 1
WHOLE = 65535
"""The largest coordinate."""

_EDGE = 0.02
"""Empty margin of the frame."""

_COLUMNS = {"row": np.int32, "key": np.uint64, "year": np.int16, "field": np.uint8, "group": np.uint8}


@dataclass(frozen=True)
class Frame:
    """A square of the plane."""

    left: float
    top: float
    side: float

    @classmethod
    def around(cls, plane: Plane) -> Frame:
        """The square around these places, with a margin."""
        if not len(plane):
            return cls(0.0, 0.0, 1.0)
        low, high = plane.min(axis=0), plane.max(axis=0)
        side = float((high - low).max()) * (1 + 2 * _EDGE) or 1.0
        left, top = (low + high) / 2 - side / 2
        return cls(float(left), float(top), side)

    def to_whole(self, plane: Plane) -> NDArray[np.uint16]:
        """Places as coordinates, (papers, 2); what lies outside is moved to the edge."""
        share = (plane - [self.left, self.top]) / self.side
        return np.rint(np.clip(share, 0, 1) * WHOLE).astype(np.uint16)

    def to_plane(self, xy: NDArray[np.uint16]) -> Plane:
        return np.asarray(xy.astype(np.float64) / WHOLE * self.side + [self.left, self.top])


@dataclass(frozen=True)
class Group:
    """Papers that are alike."""

    name: str
    x: int
    y: int
    size: int

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "x": self.x, "y": self.y, "size": self.size}


@dataclass(frozen=True, eq=False)
class PaperMap:
    """The papers of one state of an index as points."""

    state: int
    """Number of the state."""

    xy: NDArray[np.uint16]
    """(points, 2)"""

    columns: dict[str, NDArray[Any]]
    """Row, key, year, field and group of every point, (points,) each."""

    landmarks: NDArray[np.int32]
    """Points that were placed by all of their neighbors."""

    centers: Floats
    """(groups, dimension)"""

    fields: tuple[str, ...]
    """Names of the fields by number, the last one for all others."""

    groups: tuple[Group, ...]
    frame: Frame
    laid_out: int
    """Papers that there were when the landmarks were placed."""

    model: str
    note: str
    """What a careful reader must know."""

    def __len__(self) -> int:
        return len(self.xy)

    @property
    def keys(self) -> Keys:
        return self.columns["key"]

    def as_json(self) -> dict[str, Any]:
        """As `GET /map` gives it; numbers are base64 of little-endian bytes."""
        return {
            "points": len(self),
            "state": self.state,
            "xy": _text(self.xy, "<u2"),
            "year": _text(self.columns["year"], "<i2"),
            "field": _text(self.columns["field"], "u1"),
            "fields": list(self.fields),
            "cluster": _text(self.columns["group"], "u1"),
            "clusters": [group.as_json() for group in self.groups],
            "row": _text(self.columns["row"], "<i4"),
            "note": self.note,
        }

    def save(self, folder: Path, recipe: dict[str, Any]) -> None:
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=True) as writer:
            _write_matrix(writer.folder / "xy.npy", self.xy)
            _write_matrix(writer.folder / "center.npy", self.centers)
            for name, column in self.columns.items():
                write_numbers(writer.folder / f"{name}.npy", column, _COLUMNS[name])
            write_numbers(writer.folder / "landmark.npy", self.landmarks, np.int32)
            writer.facts = {
                "state": self.state,
                "points": len(self),
                "fields": list(self.fields),
                "groups": [group.as_json() for group in self.groups],
                "dimension": self.centers.shape[1],
                "frame": [self.frame.left, self.frame.top, self.frame.side],
                "laid_out": self.laid_out,
                "model": self.model,
                "note": self.note,
            }
            writer.finish()

    @classmethod
    def open(cls, folder: Path) -> PaperMap:
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        facts = manifest.facts
        try:
            groups = tuple(
                Group(str(one["name"]), int(one["x"]), int(one["y"]), int(one["size"])) for one in facts["groups"]
            )
            points, centers = int(facts["points"]), (len(groups), int(facts["dimension"]))
            made = cls(
                state=int(facts["state"]),
                xy=open_matrix(folder / "xy.npy", np.uint16, (points, 2)),
                columns={name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _COLUMNS.items()},
                landmarks=open_numbers(folder / "landmark.npy", np.int32),
                centers=open_matrix(folder / "center.npy", np.float32, centers),
                fields=tuple(str(name) for name in facts["fields"]),
                groups=groups,
                frame=Frame(*(float(number) for number in facts["frame"])),
                laid_out=int(facts["laid_out"]),
                model=str(facts["model"]),
                note=str(facts["note"]),
            )
        except (KeyError, TypeError, ValueError):
            raise ArtifactError(f"{folder}/manifest.json does not describe a map; make it again") from None
        marks = made.landmarks
        if any(len(column) != points for column in made.columns.values()) or (
            len(marks) and not 0 <= int(marks.min()) <= int(marks.max()) < points
        ):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; make it again")
        return made


def _write_matrix(path: Path, matrix: NDArray[Any]) -> None:
    writer = MatrixWriter(path, matrix.dtype, matrix.shape[1])
    writer.append(matrix)
    writer.close()


def _text(column: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(column, dtype).tobytes()).decode()


# A map of an index: its papers as points of a plane, with years, fields and named groups, kept beside the index.

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


class MapPoints(NamedTuple):
    """Points of the plane."""

    xy: NDArray[np.uint16]
    frame: Frame
    landmarks: NDArray[np.int32]
    centers: Floats
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
            remove_artifact(path)


def _known_to(old: PaperMap, keys: Keys) -> NDArray[np.int64]:
    """The point of an earlier map that each key has, -1 where it has none."""
    order = np.argsort(old.keys)
    at = np.minimum(np.searchsorted(old.keys, keys, sorter=order), len(order) - 1)
    return np.where(old.keys[order[at]] == keys, order[at], -1)


def _stay(points: Points, old: PaperMap | None) -> MapPoints | None:
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
    return MapPoints(xy, old.frame, landmarks.astype(np.int32), np.asarray(old.centers), old.laid_out, old.note)


def _place(points: Points, old: PaperMap | None, seed: int, most_landmarks: int, reporter: Reporter) -> MapPoints:
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
    centers = find_centers(vectors, count_groups(len(points.rows)), seed=seed)
    note = layout.note
    if len(others):
        note += f" {len(landmarks):,} papers were placed so, the others beside those they are most like."
    return MapPoints(frame.to_whole(plane), frame, landmarks.astype(np.int32), centers, len(points.rows), note)


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


def _describe(points: Points, placed: MapPoints) -> PaperMap:
    index, rows = points.index, points.rows
    owners = np.zeros(len(rows), np.uint8)
    for start in range(0, len(rows), _BLOCK):
        part = np.arange(start, min(start + _BLOCK, len(rows)))
        owners[part] = assign(points.vectors(part), placed.centers)
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
        centers=placed.centers,
        fields=(*fields, OTHER),
        groups=_groups(points, placed.xy, owners, len(placed.centers)),
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
