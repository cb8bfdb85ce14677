"""Values, tables and documents as text: what every presenter that is read by people shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

from ..document import Column, Document, NumberKind, Row, Table, seen_by
from ..support import units
from ..vocabulary.modules import Shown

#: How many cells a bar has.
BAR = 32
#: Makes a text safe in a format.
Text = Callable[[str], str]
TEXT: dict[str, Callable[[Any], str]] = {
    "text": str,
    "name": str,
    "count": units.count_text,
    "prose": str,
    "ms": lambda value: f"{value:,.3f}",
    "spread": lambda pair: " ± ".join(f"{value:,.3f}" for value in pair if value is not None),
    "ratio": lambda value: units.digits_text(value, 3),
    "flops": lambda value: units.si_text(value, "FLOP"),
    "flops/s": lambda value: units.si_text(value, "FLOP/s"),
    "bytes": units.bytes_text,
    "bytes/s": lambda value: units.si_text(value, "B/s"),
    "GiB": lambda value: units.digits_text(value / 2**30, 3),
    "MiB": lambda value: units.digits_text(value / 2**20, 4),
}


def for_people(document: Document) -> list[Table]:
    """Return the tables with the columns for text."""
    return [seen_by("people", table) for table in document.tables]


def is_number(column: Column) -> bool:
    """Return whether a column's values are aligned to the right."""
    return column.kind in get_args(NumberKind)


def units_of(table: Table) -> tuple[units.TimeUnit, list[units.TimeUnit]]:
    """Return the time unit that suits a whole table, and that of each column: the table's, or the column's own."""
    rows_of_times = [row.values for row in table.rows if row.kind in (None, "ns")]
    shared_times: list[Any] = []
    own_times: dict[int, list[Any]] = {}
    for place, column in enumerate(table.columns):
        if column.kind != "ns":
            continue
        times = [values[place] for values in rows_of_times if values[place] not in (None, "")]
        if column.own_unit and any(times):
            own_times[place] = times
        elif not column.own_unit:
            shared_times += times
    shared = units.time_unit(shared_times)
    of_columns = [shared] * len(table.columns)
    for place, times in own_times.items():
        of_columns[place] = units.column_unit(times)
    return shared, of_columns


def title(table: Table) -> str:
    """Return the title, with the unit of the table's times if it asks for it."""
    return table.title.replace("{unit}", units_of(table)[0].name)


def headings(table: Table) -> list[str]:
    """Return the headings; those of times name their unit, unless the title or a heading does."""
    shared, of_columns = units_of(table)
    texts = (table.title, *(column.heading for column in table.columns))
    named = shared if any("{unit}" in text for text in texts) else None
    headings = []
    for column, unit in zip(table.columns, of_columns, strict=True):
        if column.kind == "ns" and unit != named:
            headings.append(f"{column.heading} {unit.name}")
        else:
            headings.append(column.heading.replace("{unit}", shared.name))
    return headings


def texts(table: Table, *, decimals: int = 1, classes: bool = True, bar: int = BAR) -> list[list[str]]:
    """Return all values as text.

    Percentages have this many decimals, names of modules their classes, and bars so much room, cells.
    """
    _, of_columns = units_of(table)
    lines = []
    for row in table.rows:
        line = []
        for value, column, unit in zip(row.values, table.columns, of_columns, strict=True):
            text = _text(value, row, column, unit, decimals, bar)
            line.append(text + behind(value) if classes else text)
        lines.append(line)
    return lines


def behind(value: Any) -> str:
    """Return the text after a module's name: its class, if all modules in the row share it."""
    return f" {value.class_name}" if isinstance(value, Shown) and value.class_name else ""


def _text(value: Any, row: Row, column: Column, unit: units.TimeUnit, decimals: int, bar: int) -> str:
    if value is None:
        return units.ABSENT
    if isinstance(value, str):
        return value
    kind = row.kind or column.kind
    if kind == "bar":
        return bar_text(value, bar)
    if kind == "share":
        text = units.share_text(value, decimals)
        return text.removesuffix("%") if "%" in column.heading else text
    return unit.text(value) if kind == "ns" else TEXT[kind](value)


def bar_text(pieces: Iterable[tuple[str, float]], width: int) -> str:
    """Return a bar of pieces, each a fill and its share of the width; the first one seen has a cell at least."""
    bar = ""
    drawn = 0.0
    for fill, share in pieces:
        begin = round(drawn * width)
        drawn += share
        end = round(drawn * width)
        least = 1 if share and not bar.strip() and fill.strip() else 0
        bar = bar.ljust(begin) + fill * max(end - begin, least)
    return bar[:width].rstrip()


def laid_out(
    document: Document,
    text: Text,
    table: Callable[[Table], Iterable[str]],
    heading: str,
    paragraph: str = "%s",
    remark: str = "",
) -> Iterator[str]:
    """Yield a document's parts: `text` makes a text safe, `table` draws one, and forms stand around a text."""

    def written(lines: Iterable[str], form: str = paragraph) -> Iterator[str]:
        return (form % text(line) for line in lines if line)

    yield heading % text(document.heading)
    yield from written([document.verdict])
    for table_ in for_people(document):
        yield from written([table_.lead])
        yield from table(table_)
    yield from written(document.accounting)
    yield from written((f"Note: {note}" for note in document.notes), remark or paragraph)


def grid(table: Table, text: Text, strong: str, indent: Callable[[int], str]) -> list[list[str]]:
    """Return a table's texts by row, made safe; those of strong rows strong, and their first ones indented."""
    lines = []
    for row, cells in zip(table.rows, texts(table), strict=True):
        line = [strong % text(cell) if row.strong and cell else text(cell) for cell in cells]
        line[0] = indent(row.indent) + line[0]
        lines.append(line)
    return lines


def drawn(table: Table, text: Text, strong: str, form: str) -> str:
    """Draw a table in one of tabulate's formats."""
    from tabulate import tabulate

    rows, heads = grid(table, text, strong, "&emsp;".__mul__), map(text, headings(table))
    aligned = ["right" if is_number(column) else "left" for column in table.columns]
    return str(tabulate(rows, list(heads), tablefmt=form, colalign=aligned, disable_numparse=True))
