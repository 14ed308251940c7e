"""Objects in notebooks and data frames: HTML tables, pandas and polars frames, progress bars of a Jupyter kernel.

    class Answers(Tabular):                    # gets to_pandas, to_polars and a table as its notebook display
        def records(self): return [{"id": "s2:1", "score": 0.5}]

    >>> html_table([{"id": "s2:1", "title": "<b>Maps</b>"}], "1 paper").count("&lt;b&gt;Maps")
    1

All texts are escaped: titles are untrusted input. The pages of this module load nothing, have no script and take colors from
the notebook, light or dark. pandas and polars are imported where a frame is made; without IPython there is no notebook, so
that nothing here is imported outside one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from citeweave.core.errors import choose, require

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

MAX_SHOWN = 10
"""Rows of a table in a notebook; the caption has the number of all."""

_MAX_TEXT = 200
_JOINERS = "\u200c\u200d"
"""Not printable, yet parts of words in some scripts and of many emoji."""
_FRAMES = "frames"
_CELL = "text-align:left;vertical-align:top"
_NUMBER = "text-align:right;vertical-align:top;font-variant-numeric:tabular-nums"


# tqdm, which other libraries load, warns of missing widgets; the bars of this module need none
warnings.filterwarnings("ignore", "IProgress not found")


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which displays HTML.

    >>> in_notebook()
    False
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


# --- tables ----------------------------------------------------------------------------------------------


class Tabular:
    """A result with one record per row: shown as a table in notebooks, and convertible to a data frame."""

    __slots__ = ()

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the table, one dictionary of plain values per row, all with the same keys."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Return the result as a pandas data frame, one row per record; needs `pip install 'citeweave[frames]'`."""
        frame: pandas.DataFrame = require("pandas", extra=_FRAMES).DataFrame(self.records())
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Return the result as a polars data frame, one row per record; needs `pip install 'citeweave[frames]'`."""
        # every record is read before the types of the columns are chosen
        frame: polars.DataFrame = require("polars", extra=_FRAMES).DataFrame(self.records(), infer_schema_length=None)
        return frame

    def _repr_html_(self) -> str:
        return html_table(self.records(), "")


def frame_of(table: pyarrow.Table, library: str) -> Any:
    """Convert an Arrow table to a data frame of pandas or polars; integers with missing values stay integers."""
    frames = require(choose(library, ("pandas", "polars"), "library"), extra=_FRAMES)
    if library == "polars":
        return frames.from_arrow(table)
    import pyarrow

    integers = {pyarrow.int16(): frames.Int16Dtype(), pyarrow.int32(): frames.Int32Dtype()}
    return table.to_pandas(types_mapper=integers.get)


def html_table(records: Sequence[Mapping[str, Any]], caption: str, *, notes: Sequence[str] = ()) -> str:
    """Return records as one HTML table for notebooks, below a caption: at most `MAX_SHOWN` rows, all text escaped.

    Columns that are empty in all rows are left out. The notes are lines below the table.
    """
    shown = records[:MAX_SHOWN]
    names = [
        name for name in dict.fromkeys(key for row in shown for key in row) if any(_text(row, name) for row in shown)
    ]
    numeric = {name for name in names if all(isinstance(row.get(name), int | float | None) for row in shown)}
    styles = {name: _NUMBER if name in numeric else _CELL for name in names}
    head = "".join(f'<th style="{styles[name]}">{escape(name)}</th>' for name in names)
    lines = ["".join(f'<td style="{styles[name]}">{escape(_text(row, name))}</td>' for name in names) for row in shown]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if shown else ""
    left_out = [f"{len(records) - len(shown):,} more rows"] if len(records) > len(shown) else []
    return html_block(caption, table, [*left_out, *notes])


def html_block(caption: str, content: str, notes: Sequence[str] = ()) -> str:
    """Return HTML of a notebook display: a caption, its content, which is HTML already, and notes in small print."""
    title = f"<p><strong>{escape(caption)}</strong></p>" if caption else ""
    small = "".join(f"<p><small>{escape(note)}</small></p>" for note in notes if note)
    return f"<div>{title}{content}{small}</div>"


def _text(row: Mapping[str, Any], name: str) -> str:
    """Return a cell of a table as text: lists joined, long texts cut, numbers short.

    >>> _text({"authors": ["Ada", "Bo"]}, "authors"), _text({"score": 0.123456}, "score"), _text({"year": None}, "year")
    ('Ada, Bo', '0.123', '')
    """
    value = row.get(name)
    if value is None or value == "":
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return one_line(", ".join(map(str, value)) if isinstance(value, list | tuple) else value, _MAX_TEXT)


def one_line(value: object, max_chars: int = 200) -> str:
    """Return untrusted text for HTML on one line, without invisible characters and changes of writing direction.

    >>> one_line("a" + chr(10) + " b" + chr(0x202e) + "c", 4)
    'a bc'
    >>> one_line("abcdef", 4)
    'abc…'
    """
    # ten times as many characters hold enough printable ones, however long the text is
    line = " ".join(str(value)[: 10 * max_chars + 100].split())
    if not line.isprintable():
        shown = "".join(character for character in line if character.isprintable() or character in _JOINERS)
        line = " ".join(shown.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


# --- progress --------------------------------------------------------------------------------------------


class ProgressBar:
    """A progress bar below the cell of a notebook, drawn by the browser and updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str, done: int, total: int | None) -> None:
        """Draw the bar with its line of text; a task of unknown length has the line alone."""
        bar = (
            f'<progress value="{done}" max="{total}" style="width:12em;vertical-align:middle"></progress> '
            if total
            else ""
        )
        self._draw(f"<div>{bar}<small>{escape(line)}</small></div>", line)

    def end(self, line: str) -> None:
        """Replace the bar by its last line."""
        self._draw(f"<div><small>{escape(line)}</small></div>" if line else "", line)

    def _draw(self, html: str, text: str) -> None:
        content = {"text/html": html, "text/plain": text}
        if self._handle is not None:
            self._handle.update(content, raw=True)
        else:
            display = sys.modules["IPython"].display  # loaded by every kernel
            self._handle = display.display(content, raw=True, display_id=True)
