"""A map of papers as it is kept in a folder and handed to a page; `search/mapping.py` says what its files hold.

    paper_map = PaperMap.open(folder)
    paper_map.as_json()["points"]

Coordinates are whole numbers from 0 to 65,535; `frame` tells where they lie in the plane in which papers were placed, so
that a later map can go on from this one. Does not place anything.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import read_manifest
from citeweave.artefacts.writing import new_artefact
from citeweave.columns import MatrixWriter, open_matrix, open_numbers, write_numbers
from citeweave.errors import ArtefactError
from citeweave.hashing import Keys
from citeweave.search.maps.plane import Floats, Plane

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
    """Points that were placed by all of their neighbours."""

    centres: Floats
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
        with new_artefact(folder, KIND, VERSION, recipe, overwrite=True) as writer:
            _write_matrix(writer.folder / "xy.npy", self.xy)
            _write_matrix(writer.folder / "centre.npy", self.centres)
            for name, column in self.columns.items():
                write_numbers(writer.folder / f"{name}.npy", column, _COLUMNS[name])
            write_numbers(writer.folder / "landmark.npy", self.landmarks, np.int32)
            writer.facts = {
                "state": self.state,
                "points": len(self),
                "fields": list(self.fields),
                "groups": [group.as_json() for group in self.groups],
                "dimension": self.centres.shape[1],
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
            points, centres = int(facts["points"]), (len(groups), int(facts["dimension"]))
            made = cls(
                state=int(facts["state"]),
                xy=open_matrix(folder / "xy.npy", np.uint16, (points, 2)),
                columns={name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _COLUMNS.items()},
                landmarks=open_numbers(folder / "landmark.npy", np.int32),
                centres=open_matrix(folder / "centre.npy", np.float32, centres),
                fields=tuple(str(name) for name in facts["fields"]),
                groups=groups,
                frame=Frame(*(float(number) for number in facts["frame"])),
                laid_out=int(facts["laid_out"]),
                model=str(facts["model"]),
                note=str(facts["note"]),
            )
        except (KeyError, TypeError, ValueError):
            raise ArtefactError(f"{folder}/manifest.json does not describe a map; make it again") from None
        marks = made.landmarks
        if any(len(column) != points for column in made.columns.values()) or (
            len(marks) and not 0 <= int(marks.min()) <= int(marks.max()) < points
        ):
            raise ArtefactError(f"{folder} is damaged: its columns do not fit together; make it again")
        return made


def _write_matrix(path: Path, matrix: NDArray[Any]) -> None:
    writer = MatrixWriter(path, matrix.dtype, matrix.shape[1])
    writer.append(matrix)
    writer.close()


def _text(column: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(column, dtype).tobytes()).decode()
