"""Heat maps as tables: numbers in shaded cells, from the lowest of a column, palest, to its highest.

    >>> heat_table("field", ["map"], {"Art": [40.0], "Biology": [60.0]}).count("<td")
    2
    >>> shades([40.0, 60.0, None])
    [0, 10, None]

A table, as its numbers can be read, copied and heard. Does not compute the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from citeweave.evaluation.reporting.document import number, text
from citeweave.evaluation.reporting.drawing import is_number
from citeweave.evaluation.reporting.style import SHADES

Cell = float | None


def heat_table(
    corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], *, counts: Mapping[str, int] | None = None
) -> str:
    """Rows by name, in percent; `counts` says of how many queries each row is the mean."""
    names = list(rows)
    shaded = [shades([rows[name][at] for name in names]) for at in range(len(columns))]  # by column
    heads = [corner, *(["queries"] if counts else []), *(text(column, 60) for column in columns)]
    lines = []
    for place, name in enumerate(names):
        first = f"<td>{counts[name]:,}</td>" if counts else ""
        cells = "".join(_cell(rows[name][at], shaded[at][place]) for at in range(len(columns)))
        lines.append(f'<tr><th scope="row">{text(name, 80)}</th>{first}{cells}</tr>')
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="heat map"><table class="heat"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def shades(values: Sequence[Cell]) -> list[int | None]:
    """Steps of the scale for the numbers of one column; the middle where all are equal."""
    known = [value for value in values if is_number(value) and value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    found: list[int | None] = []
    for value in values:
        if value is None or not is_number(value):
            found.append(None)
        elif high > low:
            found.append(round((SHADES - 1) * (value - low) / (high - low)))
        else:
            found.append(SHADES // 2)
    return found


def _cell(value: Cell, shade: int | None) -> str:
    return "<td></td>" if shade is None else f'<td class="h{shade}">{number(value)}</td>'
