"""What people see of times in a notebook: milliseconds, and the unit in the name of each column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from ..document import Column, Document, Row, Table
from ..support.units import UNITS_NS, TimeUnit

MS: Final = "ms"
IN_NS = "_ns"
#: The end of a title that names the unit of its table, which each column then does.
UNIT_AT_END = re.compile(r"[,:] \{unit\}(?: and %(?: of all)?)?$")
#: The decimals of milliseconds by the least of most of a table's times, ns.
DECIMALS = ((1e6, 2), (1e5, 3))
MOST_DECIMALS = 4


class Frame(pd.DataFrame):
    """A frame whose columns `…_ns` are shown in milliseconds: `kernel_ns` as `kernel, ms`.

    Names and values stay as they are: `frame["kernel_ns"]` is in nanoseconds.
    """

    @property
    def _constructor(self) -> Callable[..., Frame]:
        return Frame

    def in_ms(self) -> pd.DataFrame:
        """Return a plain frame as it is shown: times in milliseconds, as the names of their columns say."""
        shown = pd.DataFrame(self).copy()
        places = [place for place, name in enumerate(self.columns) if _is_time(name)]
        for place in places:
            times_ns = self.iloc[:, place]
            if pd.api.types.is_numeric_dtype(times_ns):
                shown.isetitem(place, _rounded(times_ns).to_numpy())
        if places:
            names = [_name_in_ms(name) for name in self.columns]
            shown.columns = pd.Index(names, name=self.columns.name)
        return shown

    def __repr__(self) -> str:
        """Show times in milliseconds."""
        return repr(self.in_ms())

    def _repr_html_(self) -> str | None:
        html: str | None = self.in_ms()._repr_html_()  # type: ignore[operator]
        return html


class Times(pd.Series):
    """Times by name, ns, that are shown in milliseconds: `work_ns` as `work, ms`."""

    def __repr__(self) -> str:
        """Show times in milliseconds."""
        names = [_name_in_ms(name) for name in self.index]
        return repr(pd.Series(_rounded(self).to_numpy(), names))


def shown_in_ms(document: Document) -> Document:
    """Return a document for a notebook: its tables have times in milliseconds, and the unit in headings."""
    return replace(document, tables=tuple(map(_in_ms, document.tables)))


def _in_ms(table: Table) -> Table:
    """Return a table whose times are texts in milliseconds."""
    by_place = list(zip(*(row.values for row in table.rows), strict=True)) or [()] * len(table.columns)
    shared: list[Any] = []
    for column, cells in zip(table.columns, by_place, strict=True):
        if column.kind == "ns" and not column.own_unit:
            shared += cells
    units = []
    for column, cells in zip(table.columns, by_place, strict=True):
        of_column = _unit(cells if column.own_unit else shared)
        units.append(of_column if column.kind == "ns" else None)
    return replace(
        table,
        title=_without_unit(table.title),
        columns=tuple(map(_column_in_ms, table.columns)),
        rows=tuple(_row_in_ms(row, units) for row in table.rows),
    )


def _column_in_ms(column: Column) -> Column:
    heading = _without_unit(column.heading)
    if column.kind != "ns":
        return replace(column, heading=heading)
    return replace(column, kind=MS, heading=f"{heading}, {MS}" if heading else MS)


def _row_in_ms(row: Row, units: Iterable[TimeUnit | None]) -> Row:
    if row.kind not in (None, "ns"):
        return row
    values = []
    for value, unit in zip(row.values, units, strict=True):
        is_time = unit is not None and value is not None and not isinstance(value, str)
        values.append(unit.text(value) if unit and is_time else value)
    return replace(row, values=tuple(values))


def _unit(times_ns: Iterable[Any]) -> TimeUnit:
    """Return milliseconds with the decimals that three quarters of some times need."""
    times = sorted(abs(time) for time in times_ns if time and not isinstance(time, str))
    usual_ns = times[len(times) // 4] if times else 0.0
    decimals = next((decimals for least, decimals in DECIMALS if usual_ns >= least), MOST_DECIMALS)
    return TimeUnit(UNITS_NS[MS], MS, decimals)


def _without_unit(title: str) -> str:
    return UNIT_AT_END.sub("", title).replace("{unit} ", "")


def _is_time(name: object) -> bool:
    return isinstance(name, str) and name.endswith(IN_NS)


def _name_in_ms(name: Any) -> Any:
    return f"{name.removesuffix(IN_NS).replace('_', ' ')}, {MS}" if _is_time(name) else name


def _rounded(times_ns: pd.Series[Any]) -> pd.Series[Any]:
    return (pd.Series(times_ns) / UNITS_NS[MS]).round(MOST_DECIMALS)
