"""What views make and presenters draw: tables of raw values whose columns say what they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# ns: a time, drawn in the table's unit; share: a fraction of one, in percent; name: text that may be shortened.
Kind = Literal["text", "name", "count", "ns", "share", "ratio", "flops", "flops/s", "bytes", "bytes/s"]


PATH_SEPARATOR = " > "


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key in machine formats, its heading for people, and what its values are.

    Times of another size than the table's, such as means beside sums, are drawn in a unit of the column's own.
    """

    key: str
    heading: str
    kind: Kind = "text"
    own_unit: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a value per column (None: does not exist; "": has no place here).

    `indent` is how deep it is below the row above, `strong` whether it stands out; a row of counts in a table of
    times says so in `kind`.
    """

    values: tuple[Any, ...]
    indent: int = 0
    strong: bool = False
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `caption` says what its numbers are of.

    `{unit}` in the title stands for the unit of its times; without it each heading of times names the unit, as the
    heading of a column with a unit of its own always does.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """What a command answers: where the numbers come from, tables, and what must be known beside them."""

    heading: str
    tables: tuple[Table, ...]
    accounting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
