"""One rank's summary as a small SQLite file: what `summarize` writes, and `rank` and `compare` read.

```
summary (what, value)          what is no table, as JSON: `Head`
phases, ranges, kernels, …     a row a row of docs/json.md, over all work; `step_ns` is JSON
measured_phases, …             the same over the steps that count, where some work is in none
steps, exchanges               a row for each measured step and phase, and for each kernel that communicates
texts                          what columns of texts and paths are positions in; a path is JSON
```

Earlier versions wrote Parquet, which `parquet.py` reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path as FilePath
from typing import Any, get_origin

import msgspec
import numpy as np
import pyarrow as pa

from nvtx_kernels import SUMMARY_ID

from ..attribution.causes import Attribution
from ..attribution.steps import step_of_nodes
from ..container import Container, Layout
from ..errors import NotAReport
from ..kernel_names.categories import categorize
from ..measures.exchanges import COLLECTIVES, exchanges
from ..measures.steps import StepTimes, step_times, steps_of
from ..readers import is_sqlite
from ..readers.safety import opened_file
from ..readers.sqlite import Database
from ..readers.stored_head import read_head
from ..report import KernelRow, Report
from ..report.account import GpuAccount
from ..support.small_numbers import distinct, summed
from ..trace import KERNEL, Int64s
from ..vocabulary import PHASES
from .selection import naming_of
from .tables import ALL, COLUMNS, EXCHANGES, MEASURED, STEPS, SUMS, TEXTS, Columns, Head, Tables

VERSION = 3
LAYOUT = Layout(SUMMARY_ID, "summary", VERSION)
AGAIN = "Write it again with `summarize`."


def as_sqlite(attribution: Attribution, report: Report, *, rank: int, host: str) -> bytes:
    """Return the file of a report of totals, and of the work that it sums up."""
    reports = {ALL: report}
    if report.counted:
        reports[MEASURED] = report.counted
    elsewhere = (*SUMS, "provenance", "counted")
    about = {}
    for extent, part in reports.items():
        facts = {field.name: getattr(part, field.name) for field in fields(Report) if field.name not in elsewhere}
        about[extent] = facts | {"totals": asdict(part.totals)}
    head = Head(VERSION, rank, host, report.provenance, about)
    times = step_times(attribution)
    tables: Tables = {}
    for extent, part in reports.items():
        for table, row_type in SUMS.items():
            rows = getattr(part, table)
            columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(row_type)}
            if table == "kernels":
                is_counted = extent == head.of
                columns["step_ns"] = [_listed(times, row) if is_counted else None for row in rows]
            tables[table, extent] = columns
    tables["steps", ALL] = _steps(attribution)
    tables["exchanges", ALL] = _exchanges(attribution)
    return stored(head, tables)


def stored(head: Head, tables: Tables) -> bytes:
    """Return the file of a head and of columns."""
    number_of: dict[Any, int] = {}
    with closing(sqlite3.connect(":memory:")) as database:
        container = Container(database, LAYOUT)
        for (table, extent), columns in tables.items():
            numbered = dict(columns)
            for name, values in columns.items():
                if COLUMNS[table][name] in TEXTS:
                    numbered[name] = [number_of.setdefault(text, len(number_of)) for text in values]
            container.append(_stored_name(table, extent), numbered)
        container.append("texts", {"value": list(number_of)})
        container.commit(msgspec.structs.asdict(head))
        return database.serialize()


def _stored_name(table: str, extent: str) -> str:
    """Return what a table of all work, or of the steps that count, is called in the file."""
    return table if extent == ALL else f"{extent}_{table}"


def _listed(times: StepTimes, row: KernelRow) -> list[int] | None:
    """Return the time of a row of kernels in each measured step, ns; None if it is in none."""
    of_steps = times.get((row.path, row.phase, row.kind, row.kernel))
    return None if of_steps is None else of_steps.tolist()


def _steps(attribution: Attribution) -> dict[str, list[Any]]:
    """Return the columns STEPS: a row for each phase with kernels of each measured step, and one for the step."""
    work = attribution.trace.work
    names = attribution.trace.names
    figures = steps_of(attribution)
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    rows = np.flatnonzero((step >= 0) & (work.kind == KERNEL))
    name_id = work.name_id[rows]
    duration_ns = work.duration_ns[rows]
    ids = distinct(name_id).tolist()
    kinds = categorize([names[number] for number in ids], attribution.trace.categories)
    exchanging = [number for number, kind in zip(ids, kinds, strict=True) if kind == "communication"]
    communication_ns = np.where(np.isin(name_id, exchanging), duration_ns, 0)
    cell = step[rows].astype(np.int64) * len(PHASES) + attribution.phase[rows]

    def by_step_and_phase(values: Int64s) -> Int64s:
        return summed(cell, values, len(figures) * len(PHASES)).reshape(len(figures), len(PHASES))

    kernel_sums_ns = by_step_and_phase(duration_ns)
    exchanged_sums_ns = by_step_and_phase(communication_ns)
    counts = by_step_and_phase(np.ones_like(cell))
    cells: list[tuple[int | str | None, ...]] = []
    for of_step in figures:
        number = of_step.step
        kernel_ns = kernel_sums_ns[number].tolist()
        exchanged_ns = exchanged_sums_ns[number].tolist()
        kernels = counts[number].tolist()
        for phase, ns, of_exchanges_ns, count in zip(PHASES, kernel_ns, exchanged_ns, kernels, strict=True):
            if count:
                cells.append((number, phase, ns, of_exchanges_ns, count, None, None))
        sums = sum(kernel_ns), sum(exchanged_ns), sum(kernels)
        cells.append((number, "", *sums, of_step.span_ns, of_step.cpu_ns))
    columns = map(list, zip(*cells, strict=True)) if cells else ([] for _ in STEPS)
    return dict(zip(STEPS, columns, strict=True))


def _exchanges(attribution: Attribution) -> dict[str, list[Any]]:
    """Return the columns EXCHANGES: a row for each kernel that communicates."""
    exchanged = exchanges(attribution, step=attribution.rules.step)
    kernels = exchanged.kernels
    recorded = [name for name in EXCHANGES if name not in ("path", "phase")]
    columns: dict[str, list[Any]] = {name: getattr(kernels, name).tolist() for name in recorded}
    places = [exchanged.places[place] for place in kernels.place.tolist()]
    columns["path"] = [path for path, _ in places]
    columns["phase"] = [phase for _, phase in places]
    texts_of = {"gpu": exchanged.gpus, "collective": COLLECTIVES, "group": exchanged.groups}
    for name, texts in texts_of.items():
        columns[name] = [texts[number] for number in columns[name]]
    return columns


def read_tables(
    path: FilePath, columns: Mapping[str, Iterable[str]], *, of_all: bool = False
) -> tuple[Head, Tables]:
    """Return a summary's head, and columns of some tables: of the steps that count, with `of_all` of all work too.

    Raises NotAReport if the file is damaged, of a later version, or unpacks to more than it may.
    """
    names_of = {table: list(names) for table, names in columns.items()}
    try:
        with opened_file(path) as file:  # else it may be a pipe
            read = _read_sqlite if is_sqlite(file.read(100)) else _read_parquet
        head, tables = read(path, names_of, of_all)
        if head.steps_of_a_rank < 0:
            raise ValueError("its number of steps is negative")
        for (table, _), of_table in tables.items():
            if len(set(map(len, of_table.values()))) > 1:
                raise ValueError(f"columns of {table} have different lengths")
            for name, values in of_table.items():
                kind: Any = COLUMNS[table][name]
                column_type: Any = list[kind | None]
                of_table[name] = msgspec.convert(values, column_type, strict=kind is not bool)
        return head, tables
    except (OSError, LookupError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise NotAReport(f"{path} is not a whole summary ({reason}); write it again with `summarize`.") from error


def _read_sqlite(path: FilePath, columns: Mapping[str, Sequence[str]], of_all: bool) -> tuple[Head, Tables]:
    database = Database(path, AGAIN)
    stored, counts = read_head(database, LAYOUT)
    head = msgspec.convert({field: stored[field] for field in Head.__struct_fields__}, Head)
    places = [(table, extent) for table in columns for extent in _extents(head, table, of_all)]
    statements = {"texts": "SELECT value FROM texts ORDER BY row"}
    for table, extent in places:
        name = _stored_name(table, extent)
        some = ", ".join(f'"{column}"' for column in columns[table])
        statements[name] = f'SELECT {some} FROM "{name}" ORDER BY row'  # noqa: S608 - names of ours
    if absent := [name for name in statements if name not in counts]:
        raise ValueError(f"it has no table {absent[0]}")
    results = dict(zip(statements, database.bounded_rows(statements.values()), strict=True))
    if missing := [name for name, rows in results.items() if len(rows) != counts[name]]:
        raise ValueError(f"rows of {missing[0]} are missing")
    texts = [text for (text,) in results["texts"]]
    tables: Tables = {}
    for table, extent in places:
        rows = results[_stored_name(table, extent)]
        of_columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in columns[table])
        tables[table, extent] = {}
        for name, values in zip(columns[table], of_columns, strict=True):
            kind = COLUMNS[table][name]
            of_kind = [texts[number] for number in values] if kind in TEXTS else values
            tables[table, extent][name] = _lists(of_kind) if get_origin(kind) is tuple else of_kind
    return head, tables


def _lists(texts: Sequence[str | None]) -> list[Any]:
    """Return the lists of a column of JSON, equal ones once."""
    distinct = list(dict.fromkeys(text for text in texts if text is not None))
    lists = dict(zip(distinct, msgspec.json.decode(f"[{','.join(distinct)}]"), strict=True))
    return [None if text is None else lists[text] for text in texts]


def _read_parquet(path: FilePath, columns: Mapping[str, Sequence[str]], of_all: bool) -> tuple[Head, Tables]:
    from .parquet import listed, read_groups

    head, groups = read_groups(path, columns)
    tables: Tables = {}
    for table, names in columns.items():
        for extent in _extents(head, table, of_all):
            tables[table, extent] = {name: [] for name in names}
    for table, extent, rows in groups:
        if (table, extent) in tables:
            for name in columns[table]:
                tables[table, extent][name] += listed(rows[name].combine_chunks())
    return head, tables


def _extents(head: Head, table: str, of_all: bool) -> Iterable[str]:
    """Return which work a table is read of."""
    if table not in SUMS:
        return (ALL,)
    return head.reports if of_all else (head.of,)


def read_summary(path: FilePath) -> Report:
    """Return the report of a summary, whose name is the file's; raises NotAReport as `read_tables` does."""
    columns = {table: [field.name for field in fields(row_type)] for table, row_type in SUMS.items()}
    head, tables = read_tables(path, columns, of_all=True)
    try:
        provenance = msgspec.to_builtins(head.provenance)
        reports: dict[str, Report] = {}
        for extent, about in head.reports.items():
            rows = {table: list(_rows(tables[table, extent])) for table in SUMS}
            reports[extent] = msgspec.convert({**about, **rows, "provenance": provenance}, Report)
    except msgspec.ValidationError as error:
        raise NotAReport(f"{path} is not a whole summary ({error}); write it again with `summarize`.") from error
    named = {extent: _with_names(report) for extent, report in reports.items()}
    report = replace(named[ALL], counted=named.get(MEASURED))
    return replace(report, provenance=replace(report.provenance, file=path.name))


def _rows(columns: Columns) -> Iterable[dict[str, Any]]:
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _with_names(report: Report) -> Report:
    """Return a report whose idle time is at names that know how screens write them, as in the report itself."""
    if report.account is None:
        return report
    naming = naming_of(report)

    def named(gpu: GpuAccount) -> GpuAccount:
        causes = [replace(cause, path=naming(cause.path)) for cause in gpu.causes]
        return replace(gpu, causes=tuple(causes))

    gpus = tuple(map(named, report.account.gpus))
    return replace(report, account=replace(report.account, gpus=gpus))


def read_step_times(path: FilePath) -> StepTimes:
    """Return the time of each row of kernels in each measured step; raises NotAReport as `read_tables` does."""
    head, tables = read_tables(path, {"kernels": ["path", "phase", "kind", "kernel", "step_ns"]})
    rows = zip(*tables["kernels", head.of].values(), strict=True)
    return {tuple(place): np.array(step_ns, np.int64) for *place, step_ns in rows if step_ns is not None}


def read_steps(path: FilePath) -> list[dict[str, Any]]:
    """Return the rows STEPS of whole measured steps, in order; raises NotAReport as `read_tables` does."""
    _, tables = read_tables(path, {"steps": STEPS})
    steps = [row for row in _rows(tables["steps", ALL]) if not row["phase"]]
    if [row["step"] for row in steps] != [*range(len(steps))] or any(row["kernels"] is None for row in steps):
        raise NotAReport(f"{path} is not a whole summary (its steps); write it again with `summarize`.")
    return steps
