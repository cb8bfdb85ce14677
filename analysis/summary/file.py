"""One rank's summary as a small Parquet file: what `summarize` writes, and `rank` and `compare` read.

The file has one table, whose rows are those of docs/json.md and of `rank_rows`, each column of its own type.
`table` says which row it is, and `of` whether it is of all work or of the measured steps; a column that a row does
not have is null. What the numbers are of stands in the file's metadata under KEY, as JSON with a version.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..attribution.causes import Attribution
from ..errors import NotAReport
from ..measures.steps import StepTimes, step_times
from ..report import BusyRow, KernelRow, OutsideRow, PhaseRow, RangeRow, Report
from ..trace import Provenance
from .rank_rows import ExchangeRow, StepRow, exchange_rows, step_rows

VERSION = 1
KEY = b"nvtx-kernels.summary"
SUMS: dict[str, type[Any]] = {
    "phases": PhaseRow,
    "ranges": RangeRow,
    "kernels": KernelRow,
    "outside": OutsideRow,
    "busy": BusyRow,
}
ROWS = SUMS | {"steps": StepRow, "exchanges": ExchangeRow}
ALL, MEASURED = "all", "measured"
TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), tuple: pa.list_(pa.string())}


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """What a file's metadata says: its version, which rank it is of, and all of a report that is no table."""

    version: int
    rank: int
    host: str
    provenance: Provenance
    reports: dict[str, dict[str, Any]]  # by `of`

    @property
    def of(self) -> str:
        """Which rows figures per step come from."""
        return MEASURED if MEASURED in self.reports else ALL

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return int(self.reports[ALL]["steps"])


def _schema() -> pa.Schema:
    """Return the columns of all kinds of rows; figures that may be means elsewhere are integers here."""
    columns: dict[str, pa.DataType] = {"table": pa.string(), "of": pa.string()}
    for row in ROWS.values():
        for name, hint in get_type_hints(row).items():
            parts = get_args(hint) if isinstance(hint, UnionType) else (getattr(hint, "__origin__", hint),)
            columns[name] = next(TYPES[part] for part in parts if part in TYPES)
    columns["step_ns"] = pa.list_(pa.int64())  # of a row of kernels, its time in each measured step
    return pa.schema(columns)


SCHEMA = _schema()


def as_parquet(attribution: Attribution, report: Report, *, rank: int, host: str) -> bytes:
    """Return the file of a report of totals, and of the work that it sums up."""
    reports = {ALL: report} | ({MEASURED: report.measured} if report.measured else {})
    head = Head(VERSION, rank, host, report.provenance, {extent: _about(part) for extent, part in reports.items()})
    schema = SCHEMA.with_metadata({KEY: msgspec.json.encode(head)})
    parts = [(table, extent, getattr(part, table)) for extent, part in reports.items() for table in SUMS]
    parts += [("steps", ALL, tuple(step_rows(attribution))), ("exchanges", ALL, tuple(exchange_rows(attribution)))]
    times = step_times(attribution)
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table, extent, rows in parts:  # a group of rows each, so that readers can pass over the others
            if rows:
                writer.write_table(_columns(table, extent, rows, times if extent == head.of else {}, schema))
    return file.getvalue()


def _columns(table: str, extent: str, rows: Sequence[Any], times: StepTimes, schema: pa.Schema) -> pa.Table:
    names = {field.name for field in fields(ROWS[table])}
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    columns |= {"table": [table] * len(rows), "of": [extent] * len(rows)}
    if table == "kernels":
        columns["step_ns"] = [times.get((row.path, row.phase, row.kind, row.kernel)) for row in rows]
    empty = [None] * len(rows)
    arrays = [pa.array(columns.get(field.name, empty), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _about(report: Report) -> dict[str, Any]:
    """Return the fields of a report that are no tables and not what it is of."""
    apart = {*SUMS, "provenance", "measured"}
    about = {field.name: getattr(report, field.name) for field in fields(report) if field.name not in apart}
    return {**about, "totals": asdict(report.totals)}


def is_summary(path: Path) -> bool:
    """Return whether a file is a summary, by its metadata."""
    if path.suffix != ".parquet" or not path.is_file():
        return False
    try:
        return KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return path.name.endswith(".summary.parquet")  # which is damaged


def read_rows(path: Path, tables: Sequence[str], columns: Sequence[str]) -> tuple[Head, pa.Table]:
    """Return what a summary is of, and some columns of its rows of some tables.

    Raises NotAReport if the file is damaged, or of a later version.
    """
    try:
        file = pq.ParquetFile(path)
        head = msgspec.json.decode((file.schema_arrow.metadata or {})[KEY], type=Head)
        if head.version > VERSION:
            raise NotAReport(f"{path} was written by a later nvtx-kernels; upgrade this one to read it.")
        place = file.schema_arrow.names.index("table")
        groups = [
            group
            for group in range(file.num_row_groups)
            if file.metadata.row_group(group).column(place).statistics.min in tables
        ]
        wanted_columns = ["table", "of", *columns]
        schema = pa.schema([SCHEMA.field(name) for name in wanted_columns])
        return head, file.read_row_groups(groups, columns=wanted_columns).select(wanted_columns).cast(schema)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise NotAReport(f"{path} is not a whole summary ({error}); write it again with `summarize`.") from error


def read_summary(path: Path) -> Report:
    """Return the report of a summary, whose name is the file's; raises NotAReport as `read_rows` does."""
    names = {table: [field.name for field in fields(row)] for table, row in SUMS.items()}
    head, table = read_rows(path, [*SUMS], sorted({name for each in names.values() for name in each}))
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        extent, kind = row["of"], row["table"]
        rows.setdefault((extent, kind), []).append({name: row[name] for name in names.get(kind, ())})
    try:
        reports = dict(_reports(head, rows))
    except msgspec.ValidationError as error:
        raise NotAReport(f"{path} is not a whole summary ({error}); write it again with `summarize`.") from error
    report = replace(reports[ALL], measured=reports.get(MEASURED))
    return replace(report, provenance=replace(report.provenance, file=path.name))


def read_step_times(path: Path) -> StepTimes:
    """Return the time of each row of kernels in each measured step; raises NotAReport as `read_rows` does."""
    head, table = read_rows(path, ["kernels"], ["path", "phase", "kind", "kernel", "step_ns"])
    return {
        (tuple(row["path"]), row["phase"], row["kind"], row["kernel"]): np.array(row["step_ns"], np.int64)
        for row in table.to_pylist()
        if row["of"] == head.of and row["step_ns"] is not None
    }


def _reports(head: Head, rows: dict[tuple[str, str], list[dict[str, Any]]]) -> Iterator[tuple[str, Report]]:
    for extent, about in head.reports.items():
        tables = {table: rows.get((extent, table), []) for table in SUMS}
        yield (
            extent,
            msgspec.convert({**about, **tables, "provenance": msgspec.to_builtins(head.provenance)}, Report),
        )
