"""The map of an index: its papers as points of a plane, with years, fields and named groups; kept on disk.

    find_map(index)              the map of the current state, None where it was not made yet
    make_map(index)              makes it, or opens it; papers of an earlier map stay where they are
    PaperMap.open(folder).as_json()["points"]

    index/maps/000012-1f2e3d4c/
      xy.npy                     uint16, (papers, 2)
      row.npy key.npy year.npy field.npy group.npy     of each point: row of the index, key of its id, ...
      landmark.npy               points that t-SNE placed; all others lie beside the landmarks they are similar to
      center.npy                 float32, (groups, dimension)
      manifest.json              names of fields and groups, the frame of the plane, how it was made

The map shows the live papers with a vector, except those known only as references. Coordinates are integers from 0 to
65,535; the frame says where they lie in the plane of t-SNE, so that a later map can continue this one. Where an index has
grown by half since t-SNE placed its landmarks, or has vectors of another model, they are placed again, from where they
were. Does not draw.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import check_files, new_artifact, read_manifest
from citeweave.core.columns import MatrixWriter, find_keys, open_matrix, open_numbers, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import Keys, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact
from citeweave.corpus.corpus import STUB
from citeweave.evaluation.paper_map import MIN_T_SNE_PAPERS, Floats, Plane, unit
from citeweave.search.filters import fields_of
from citeweave.search.index import Index
from citeweave.search.map_groups import assign_groups, find_centers
from citeweave.search.map_labels import label_groups
from citeweave.search.map_layout import densest_place, lay_out, place_others

KIND, VERSION = "paper_map", 1
MAX_COORDINATE = 65535

GROUPING = 2
"""Version of how groups are found: those of an earlier map are kept only if they were found in this way."""

_MARGIN = 0.02
"""Empty margin of the frame, as a share of its side."""

_COLUMNS = {"row": np.int32, "key": np.uint64, "year": np.int16, "field": np.uint8, "group": np.uint8}


@dataclass(frozen=True)
class MapFrame:
    """The frame of an index's map: the square of the t-SNE plane that it shows."""

    left: float
    top: float
    side: float

    @classmethod
    def around(cls, plane: Plane) -> MapFrame:
        """Return the frame of a map: the square around these places of the plane, with a margin."""
        if not len(plane):
            return cls(0.0, 0.0, 1.0)
        low, high = plane.min(axis=0), plane.max(axis=0)
        side = float((high - low).max()) * (1 + 2 * _MARGIN) or 1.0
        left, top = (low + high) / 2 - side / 2
        return cls(float(left), float(top), side)

    def to_coordinates(self, plane: Plane) -> NDArray[np.uint16]:
        """Return places of the plane as map coordinates, (papers, 2); those outside are moved to the edge."""
        share = (plane - [self.left, self.top]) / self.side
        return np.rint(np.clip(share, 0, 1) * MAX_COORDINATE).astype(np.uint16)

    def to_plane(self, xy: NDArray[np.uint16]) -> Plane:
        """Return map coordinates as places of the plane, (papers, 2)."""
        return np.asarray(xy.astype(np.float64) / MAX_COORDINATE * self.side + [self.left, self.top])


@dataclass(frozen=True)
class PaperGroup:
    """A named group of similar papers on the map of an index: where its name stands, and its size."""

    name: str
    x: int
    y: int
    size: int


@dataclass(frozen=True, eq=False)
class PaperMap:
    """A map of one state of an index: its papers as points of a plane, with fields, years and named groups."""

    state: int
    """Number of the state."""

    xy: NDArray[np.uint16]
    """(points, 2)"""

    columns: dict[str, NDArray[Any]]
    """Row, key, year, field and group of every point, (points,) each."""

    landmarks: NDArray[np.int32]
    """Points that t-SNE placed."""

    centers: Floats
    """(groups, dimension)"""

    fields: tuple[str, ...]
    """Names of the fields by number, the last one for all others."""

    groups: tuple[PaperGroup, ...]
    frame: MapFrame
    laid_out: int
    """Number of papers when the landmarks were placed."""

    model: str
    note: str
    """How the map was made, for its readers."""

    grouping: int = GROUPING
    """Version of how the groups were found."""

    def __len__(self) -> int:
        return len(self.xy)

    @property
    def keys(self) -> Keys:
        return self.columns["key"]

    def as_json(self) -> dict[str, Any]:
        """Return the map of an index as JSON; columns are base64 of little-endian bytes."""
        return {
            "points": len(self),
            "state": self.state,
            "xy": _base64(self.xy, "<u2"),
            "year": _base64(self.columns["year"], "<i2"),
            "field": _base64(self.columns["field"], "u1"),
            "fields": list(self.fields),
            "cluster": _base64(self.columns["group"], "u1"),
            "clusters": [asdict(group) for group in self.groups],
            "row": _base64(self.columns["row"], "<i4"),
            "note": self.note,
        }

    def save(self, folder: Path, recipe: dict[str, Any]) -> None:
        """Save the map of an index into a new folder."""
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
                "groups": [asdict(group) for group in self.groups],
                "dimension": self.centers.shape[1],
                "frame": [self.frame.left, self.frame.top, self.frame.side],
                "laid_out": self.laid_out,
                "model": self.model,
                "note": self.note,
                "grouping": self.grouping,
            }
            writer.finish()

    @classmethod
    def open(cls, folder: Path) -> PaperMap:
        """Open the map of an index in a folder after checking its files and columns."""
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        facts = manifest.facts
        try:
            groups = tuple(
                PaperGroup(str(group["name"]), int(group["x"]), int(group["y"]), int(group["size"]))
                for group in facts["groups"]
            )
            points, centers = int(facts["points"]), (len(groups), int(facts["dimension"]))
            paper_map = cls(
                state=int(facts["state"]),
                xy=open_matrix(folder / "xy.npy", np.uint16, (points, 2)),
                columns={name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _COLUMNS.items()},
                landmarks=open_numbers(folder / "landmark.npy", np.int32),
                centers=open_matrix(folder / "center.npy", np.float32, centers),
                fields=tuple(str(name) for name in facts["fields"]),
                groups=groups,
                frame=MapFrame(*(float(number) for number in facts["frame"])),
                laid_out=int(facts["laid_out"]),
                model=str(facts["model"]),
                note=str(facts["note"]),
                grouping=int(facts.get("grouping", 1)),
            )
        except (KeyError, TypeError, ValueError):
            raise ArtifactError(f"{folder}/manifest.json does not describe a map; make it again") from None
        landmarks = paper_map.landmarks
        if any(len(column) != points for column in paper_map.columns.values()) or (
            len(landmarks) and not 0 <= int(landmarks.min()) <= int(landmarks.max()) < points
        ):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; make it again")
        return paper_map


def _write_matrix(path: Path, matrix: NDArray[Any]) -> None:
    writer = MatrixWriter(path, matrix.dtype, matrix.shape[1])
    writer.append(matrix)
    writer.close()


def _base64(column: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(column, dtype).tobytes()).decode()


# --- making the map of an index --------------------------------------------------------------------------

LANDMARKS = 5000
FIELDS = 20
"""Fields that get a number and a color of their own."""

OTHER = "other"
GROWTH = 1.5
"""Growth of the index since t-SNE last ran from which on it runs again."""

_BLOCK = 8192
_LABELED = 10_000
"""Papers from which the groups get their labels."""


@dataclass(frozen=True)
class MappedPapers:
    """The papers of an index that are points of its map."""

    index: Index
    rows: NDArray[np.int64]
    keys: Keys

    def vectors(self, points: NDArray[Any]) -> Floats:
        """Return the vectors of some points at length 1, (points, dimension)."""
        if not len(points):  # an index without any vector has no dimension
            return np.zeros((0, 1), np.float32)
        return unit(self.index.take(self.rows[points]))


class PlacedPoints(NamedTuple):
    """Points of the map of an index: coordinates of its papers, and how they were placed."""

    xy: NDArray[np.uint16]
    frame: MapFrame
    landmarks: NDArray[np.int32]
    centers: Floats
    laid_out: int
    note: str


def find_map(index: Index, *, seed: int = 0, max_landmarks: int = LANDMARKS) -> PaperMap | None:
    """Open the map of an index's current state; None where none was made or it cannot be read."""
    try:
        return PaperMap.open(_folder(index, _recipe(index, seed, max_landmarks)))
    except UserError:
        return None


def make_map(index: Index, *, seed: int = 0, max_landmarks: int = LANDMARKS, reporter: Reporter = QUIET) -> PaperMap:
    """Make the map of an index's current state and save it in the index folder, or open it where it exists.

    Papers of an earlier map stay where they are. Where the folder cannot be written, the map is only returned.
    """
    known = find_map(index, seed=seed, max_landmarks=max_landmarks)
    if known is not None:
        return known
    rows = np.flatnonzero(index.with_vector & ((index.flags & STUB) == 0))
    points = MappedPapers(index, rows, np.asarray(index.keys[rows]))
    old = _newest_map(index.folder / "maps")
    placed = _keep_places(points, old, seed) or _place_all(points, old, seed, max_landmarks, reporter)
    paper_map = _label_points(points, placed)
    recipe = _recipe(index, seed, max_landmarks)
    try:
        paper_map.save(_folder(index, recipe), recipe)
    except (UserError, OSError):  # a folder that cannot be written, or another process that makes the same map
        return paper_map
    _remove_older(_folder(index, recipe))
    return paper_map


def _recipe(index: Index, seed: int, max_landmarks: int) -> dict[str, Any]:
    return {"index": index.manifest.hash, "seed": seed, "landmarks": max_landmarks, "grouping": GROUPING}


def _folder(index: Index, recipe: dict[str, Any]) -> Path:
    return index.folder / "maps" / f"{index.number:06}-{hash_json(recipe)[:8]}"


def _model(index: Index) -> str:
    return "" if index.provenance is None else index.provenance.label


def _newest_map(folder: Path) -> PaperMap | None:
    """Open the newest readable map of an earlier state of the index."""
    if not folder.is_dir():
        return None
    for path in sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True):
        try:
            paper_map = PaperMap.open(path)
        except UserError:
            continue
        if len(paper_map):
            return paper_map
    return None


def _remove_older(folder: Path) -> None:
    for path in folder.parent.iterdir():
        if path.name < folder.name and not path.name.startswith("."):  # another process may be at work in a hidden one
            remove_artifact(path)


def _keep_places(points: MappedPapers, old: PaperMap | None, seed: int) -> PlacedPoints | None:
    """Keep papers of an earlier map in place and put new ones beside landmarks; None where t-SNE has to run."""
    if old is None or old.model != _model(points.index) or len(points.rows) > GROWTH * old.laid_out:
        return None
    before = find_keys(points.keys, old.keys)  # (points,)
    marked = np.zeros(len(old), bool)
    marked[old.landmarks] = True
    landmarks = np.flatnonzero((before >= 0) & marked[before])
    if len(landmarks) < MIN_T_SNE_PAPERS or 2 * len(landmarks) < len(old.landmarks):
        return None
    xy = np.where((before >= 0)[:, None], old.xy[before], 0).astype(np.uint16)  # (points, 2)
    places = old.frame.to_plane(xy[landmarks])
    new = np.flatnonzero(before < 0)
    xy[new] = old.frame.to_coordinates(_place_beside(points, new, landmarks, places))
    kept = old.grouping == GROUPING
    centers = np.asarray(old.centers) if kept else find_centers(points.vectors(landmarks), seed=seed)
    return PlacedPoints(xy, old.frame, landmarks.astype(np.int32), centers, old.laid_out, old.note)


def _place_all(
    points: MappedPapers, old: PaperMap | None, seed: int, max_landmarks: int, reporter: Reporter
) -> PlacedPoints:
    """Place landmarks by t-SNE and all other papers beside them."""
    # landmarks by hashed keys, so that a slightly larger index has nearly the same ones
    order = np.argsort(mix_keys(points.keys, np.full(len(points.keys), seed, np.uint64)))
    landmarks = np.sort(order[:max_landmarks])
    vectors = points.vectors(landmarks)
    layout = lay_out(vectors, seed=seed, start=_start_places(points, old, landmarks), reporter=reporter)
    plane = np.empty((len(points.rows), 2))
    plane[landmarks] = layout.xy
    others = np.setdiff1d(np.arange(len(points.rows)), landmarks, assume_unique=True)
    plane[others] = _place_beside(points, others, landmarks, layout.xy)
    frame = MapFrame.around(plane)
    centers = find_centers(vectors, seed=seed)
    note = layout.note
    if len(others):
        note += f" {len(landmarks):,} papers were placed this way, the others beside those they are most similar to."
    return PlacedPoints(frame.to_coordinates(plane), frame, landmarks.astype(np.int32), centers, len(points.rows), note)


def _start_places(points: MappedPapers, old: PaperMap | None, landmarks: NDArray[np.int64]) -> Plane | None:
    """Return where t-SNE starts: the landmarks' places on an earlier map; None where too few were on it."""
    if old is None:
        return None
    before = find_keys(points.keys[landmarks], old.keys)
    known = before >= 0
    if known.sum() < max(MIN_T_SNE_PAPERS, len(landmarks) // 4):
        return None
    start = np.empty((len(landmarks), 2))
    start[known] = old.frame.to_plane(old.xy[before[known]])
    start[~known] = _place_beside(points, landmarks[~known], landmarks[known], start[known])
    return start


def _place_beside(points: MappedPapers, which: NDArray[np.int64], landmarks: NDArray[np.int64], places: Plane) -> Plane:
    """Return places for points beside the landmarks they are similar to, block by block, (which, 2)."""
    plane = np.empty((len(which), 2))
    if len(which):
        vectors = points.vectors(landmarks)
        for start in range(0, len(which), _BLOCK):
            part = which[start : start + _BLOCK]
            plane[start : start + len(part)] = place_others(points.vectors(part), vectors, places, points.keys[part])
    return plane


def _label_points(points: MappedPapers, placed: PlacedPoints) -> PaperMap:
    """Label placed points with years, fields and named groups."""
    index, rows = points.index, points.rows
    owners = np.zeros(len(rows), np.uint8)
    for start in range(0, len(rows), _BLOCK):
        part = np.arange(start, min(start + _BLOCK, len(rows)))
        owners[part] = assign_groups(points.vectors(part), placed.centers)
    field, fields = fields_of(index).number_rows(rows, FIELDS)
    columns: dict[str, NDArray[Any]] = {"row": rows, "key": points.keys, "year": index.years[rows]}
    columns = {name: np.asarray(column, _COLUMNS[name]) for name, column in columns.items()}
    columns |= {"field": field, "group": owners}
    return PaperMap(
        state=index.number,
        columns=columns,
        fields=(*fields, OTHER),
        groups=_name_groups(points, placed.xy, owners, len(placed.centers)),
        model=_model(index),
        **placed._replace(note=placed.note if len(rows) else "No paper has a vector yet.")._asdict(),
    )


def _name_groups(
    points: MappedPapers, xy: NDArray[np.uint16], owners: NDArray[np.uint8], count: int
) -> tuple[PaperGroup, ...]:
    """Name the groups of a map by phrases of their titles, each at its densest place."""
    sample = np.sort(np.argsort(points.keys)[:_LABELED])  # keys are spread evenly: a fair sample
    index = points.index
    papers = [(index.titles[row], index.abstracts[row]) for row in points.rows[sample].tolist()]
    names = label_groups(papers, owners[sample], count)
    sizes = np.bincount(owners, minlength=count)
    centers = [densest_place(xy[owners == group]) for group in range(count)]
    return tuple(
        PaperGroup(name, int(x), int(y), int(size)) for name, (x, y), size in zip(names, centers, sizes, strict=True)
    )
