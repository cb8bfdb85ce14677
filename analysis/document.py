"""What views make and presenters draw: tables of raw values with typed columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

# ns: a time, drawn in the table's unit; share: a fraction of one, in percent; name: text that may be shortened;
# prose: text that may be broken; bar: pairs of a fill and its share of the bar; ms: milliseconds, to the
# microsecond; spread: a pair of these, mean and sample std; GiB, MiB: bytes, drawn in the heading's unit.
TextKind = Literal["text", "name", "prose", "bar"]
NumberKind = Literal[
    "count", "ns", "ms", "spread", "share", "ratio", "flops", "flops/s", "bytes", "bytes/s", "GiB", "MiB"
]
Kind = TextKind | NumberKind
Reader = Literal["people", "programs"]

#: Formats that programs read: every row, every index and full names.
FOR_MACHINES = frozenset({"csv", "json", "parquet"})
EVERY_ROW = 2**31


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of an answer is shown; made once, of the format that was asked for.

    `top` limits the rows of long tables, and `ranges` those of the overview's ranges (equal to `top` if that is
    given); `whole` asks for every raw row, for a program.
    """

    top: int = 10
    ranges: int = 5
    full_names: bool = False
    every_index: bool = False
    whole: bool = False


#: The default for text, and everything.
SHORT, WHOLE = Detail(), Detail(EVERY_ROW, EVERY_ROW, full_names=True, every_index=True, whole=True)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key in machine formats, its heading for people, and what its values are.

    Times of another size than the table's, such as means next to sums, have their column's own unit.
    `seen_by` hides a column from other readers.
    """

    key: str
    heading: str
    kind: Kind = "text"
    own_unit: bool = False
    seen_by: Reader | Literal["all"] = "all"


#: What a column's values are: of the first pattern that its whole key matches.
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("ns", r"\w+_ns"),
    ("share", r"(\w+_)?share|change(_inside)?|[ab]_spread"),
    ("ratio", r"(\w+_)?ratio|\w+_per_byte|\w+_to_\w+"),
    ("flops", r"flops"),
    ("flops/s", r"flops_per_s"),
    ("bytes", r"(\w+_)?bytes"),
    ("bytes/s", r"(\w+_)?bytes_per_s"),
    ("name", r"range|module|kernel|name|report|rule"),
    ("count", r"(\w+_)?(count|kernels|instances|requests|tokens)|tokens_per_s|root_or_peer|n|each|operations"),
    ("count", r"allocations|blocks|calls|gaps|launches|outliers|places|profiled|ranges|steps|streams"),
    ("text", r".*"),
)


def headed(*keys: str, **headings: str) -> tuple[Column, ...]:
    """Return columns, each of the kind that its key says, such as `"phase", kernel_ns="time"`.

    `keys` are their own headings, and come first.
    """
    return tuple(
        Column(key, heading, next(kind for kind, keys_of_kind in _KINDS if re.fullmatch(keys_of_kind, key)))
        for key, heading in (*zip(keys, keys, strict=True), *headings.items())
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a value per column (None: does not exist; "": has no place here).

    `indent` is its depth below the row above, `strong` whether it is emphasized; a row of counts in a table of
    times has its own `kind`.
    """

    values: tuple[Any, ...]
    indent: int = 0
    strong: bool = False
    kind: Kind | None = None

    @property
    def known(self) -> tuple[Any, ...]:
        """Return the values, None also for what has no place."""
        return tuple(None if value == "" else value for value in self.values)


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `caption` explains its numbers, and `phase` is its phase if it is of one.

    `lead` is its answer in a sentence, for text output; `least` is how many rows a screen of few lines leaves it.

    `{unit}` in the title or a heading is replaced by the unit of its times; without it, each heading of times
    names the unit, as the heading of a column with its own unit always does.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    phase: str = ""
    lead: str = ""
    least: int = EVERY_ROW


@dataclass(frozen=True, slots=True)
class Document:
    """What a command answers: where the numbers come from, tables, and notes.

    `verdict` is the answer in sentences, for text output; `next` are commands to run next. `lines` is how many
    lines a terminal shows at most, as far as tables can be shortened; 0 without a limit.
    `promised` makes the JSON object that docs/json.md promises instead of tables.
    """

    heading: str
    tables: tuple[Table, ...]
    accounting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    promised: Callable[[], Mapping[str, Any]] | None = None
    verdict: str = ""
    next: tuple[str, ...] = ()
    lines: int = 0


#: What text says to type on a command line: an option for more, and another view.
_OPTION = re.compile(r": --top \d+(?: shows them)?(?=\.)| \(--[\w-]+ counts it\)|, such as --unrecorded-step \w+")
_VIEW = re.compile(r"`nvtx-kernels view (\w+)`")


def without_commands(document: Document) -> Document:
    """Return a document for a page or a notebook, where there is no command line to type on."""

    def reworded(text: str) -> str:
        return _VIEW.sub(r"the view \1", _OPTION.sub("", text))

    tables = tuple(replace(table, caption=reworded(table.caption)) for table in document.tables)
    accounting, notes = (tuple(map(reworded, texts)) for texts in (document.accounting, document.notes))
    return replace(document, tables=tables, accounting=accounting, notes=notes, next=())


def seen_if(is_seen: bool, column: Column) -> Column:
    """Return a column that people see only if `is_seen`; programs always do."""
    return replace(column, seen_by="all" if is_seen else "programs")


def rows_by_key(columns: Iterable[Column], records: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Return a row for each record, whose values are by the columns' keys (None: not in the record)."""
    keys = [column.key for column in columns]
    return tuple(Row(tuple(map(record.get, keys))) for record in records)


def seen_by(reader: Reader, table: Table) -> Table:
    """Leave out the columns that are not for these readers."""
    places = [place for place, column in enumerate(table.columns) if column.seen_by in ("all", reader)]
    return table if len(places) == len(table.columns) else with_columns(table, places)


def with_columns(table: Table, places: Sequence[int]) -> Table:
    """Return a table with its columns at these places, in this order."""
    rows = tuple(replace(row, values=tuple(row.values[place] for place in places)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in places), rows=rows)


def by_key(table: Table) -> list[dict[str, Any]]:
    """Return the values of a table's rows by the columns' keys."""
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row.values, strict=True)) for row in table.rows]


def records(table: Table) -> list[dict[str, Any]]:
    """Return a table's rows by the columns' keys, for programs: None also where a value has no place."""
    return by_key(replace(table, rows=tuple(replace(row, values=row.known) for row in table.rows)))


def as_one(document: Document) -> Table:
    """Return all rows of a document's tables for programs, as one table with a leading column `table`.

    A column `phase` follows where a table is of one phase. Columns that a row's own table lacks are None.
    """
    tables = [seen_by("programs", table) for table in document.tables]
    keys = {"table": Column("table", "table")}
    if any(table.phase for table in tables):
        keys["phase"] = Column("phase", "phase")
    for column in (column for table in tables for column in table.columns):
        keys.setdefault(column.key, column)
    rows = [
        {"table": table.key, "phase": table.phase or None, **record}
        for table in tables
        for record in records(table)
    ]
    columns = tuple(keys.values())
    return Table("tables", document.heading, columns, rows_by_key(columns, rows))
