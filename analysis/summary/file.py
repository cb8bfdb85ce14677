"""One rank's summary as a small Parquet file: what `summarize` writes, and `rank` and `compare` read.

The file has one table, whose rows are those of docs/json.md, of each measured step, and of each kernel that
communicates; each column has its own type.
`table` says which row it is, and `of` whether it is of all work or of the steps that count; a column that a row
does not have is null. What the numbers are of stands in the file's metadata under KEY, as JSON with a version.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path as FilePath
from types import UnionType
from typing import Any, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..account.choice import choose
from ..attribution.causes import Attribution
from ..attribution.steps import step_of_nodes
from ..errors import NotAReport
from ..kernel_names.categories import categorize
from ..measures.exchanges import COLLECTIVES, exchanges
from ..measures.steps import StepTimes, step_times, steps_of
from ..readers.safety import OBJECT_BYTES, opened_file, require_within
from ..report import KernelRow, OutsideRow, PhaseRow, RangeRow, Report
from ..report.account import GpuAccount
from ..report.evidence import NAMED, STEP
from ..support import arrow
from ..support.small_numbers import distinct, summed
from ..trace import KERNEL, Int64s, Provenance
from ..vocabulary import PHASES
from .selection import naming_of

VERSION = 2
KEY = b"nvtx-kernels.summary"

SUMS: dict[str, type[Any]] = {
    "phases": PhaseRow,
    "ranges": RangeRow,
    "kernels": KernelRow,
    "outside": OutsideRow,
}
#: One phase of one measured step, or with an empty phase the whole step; times in ns. `communication_ns` is the
#: part of `kernel_ns` in collectives, where a rank also waits for the others.
STEPS = {
    "step": int,
    "phase": str,
    "kernel_ns": int,
    "communication_ns": int,
    "kernels": int,
    "span_ns": int,
    "cpu_ns": int,
}
#: One kernel that communicates, on its report's clock; `step` is -1 for none, `group` empty if unknown.
EXCHANGES = {
    "gpu": str,
    "path": tuple,
    "phase": str,
    "collective": str,
    "group": str,
    "ranks": int,
    "step": int,
    "start_ns": int,
    "end_ns": int,
    "time_ns": int,
    "hidden_ns": int,
    "message_bytes": int,
    "bus_bytes": float,
}
ALL = "all"
MEASURED = "measured"
TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), tuple: pa.list_(pa.string())}


#: The rows of one table, of all work or of the steps that count: (table, of, rows).
Rows: TypeAlias = tuple[str, str, pa.Table]


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """What a file's metadata says: its version, which rank it is of, and a report's fields other than tables."""

    version: int
    rank: int
    host: str
    provenance: Provenance
    reports: dict[str, dict[str, Any]]  # by `of`

    @property
    def of(self) -> str:
        """Which rows figures per step come from."""
        if MEASURED in self.reports:
            return MEASURED
        return ALL

    @property
    def steps_of_a_rank(self) -> int:
        """How many steps each rank of the report measured."""
        return int(self.reports[ALL]["steps"]) // max(int(self.reports[ALL]["ranks"]), 1)


def _schema() -> pa.Schema:
    """Return the columns of all kinds of rows; figures that may be means elsewhere are integers here."""
    columns: dict[str, pa.DataType] = {"table": pa.string(), "of": pa.string()}
    for hints in (*map(get_type_hints, SUMS.values()), STEPS, EXCHANGES):
        for name, hint in hints.items():
            parts = (getattr(hint, "__origin__", hint),)
            if isinstance(hint, UnionType):
                parts = get_args(hint)
            columns[name] = next(TYPES[part] for part in parts if part in TYPES)
    columns["step_ns"] = pa.list_(pa.int64())  # of a row of kernels, its time in each measured step
    return pa.schema(columns)


SCHEMA = _schema()
TEXT_COLUMNS = [field.name for field in SCHEMA if field.type == pa.string()] + [
    f"{field.name}.list.element" for field in SCHEMA if field.type == pa.list_(pa.string())
]


def as_parquet(attribution: Attribution, report: Report, *, rank: int, host: str) -> bytes:
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
    schema = SCHEMA.with_metadata({KEY: msgspec.json.encode(head, enc_hook=_as_recorded)})
    times = step_times(attribution)
    parts: list[tuple[str, str, dict[str, list[Any]]]] = []
    for extent, part in reports.items():
        for table, row_type in SUMS.items():
            rows = getattr(part, table)
            columns: dict[str, list[Any]] = {}
            for field in fields(row_type):
                columns[field.name] = [getattr(row, field.name) for row in rows]
            if table == "kernels" and extent == head.of:
                places = ((row.path, row.phase, row.kind, row.kernel) for row in rows)
                columns["step_ns"] = [times.get(place) for place in places]
            parts.append((table, extent, columns))
    parts += [("steps", ALL, _steps(attribution)), ("exchanges", ALL, _exchanges(attribution))]
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table, extent, columns in parts:  # a group of rows each, so that readers can pass over the others
            count = len(next(iter(columns.values())))
            if not count:
                continue
            columns |= {"table": [table] * count, "of": [extent] * count}
            missing = [None] * count
            arrays = [pa.array(columns.get(field.name, missing), field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return file.getvalue()


def _as_recorded(value: Any) -> str:
    """Return a name that knows how screens write it as the plain text that was recorded.

    Raises NotImplementedError for other values, as msgspec asks.
    """
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"a summary holds no {type(value).__name__}")


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


def columns_of(names: Sequence[str]) -> pa.Schema:
    """Return the schema of some columns."""
    return pa.schema([SCHEMA.field(name) for name in names])


def read_groups(path: FilePath, columns: Mapping[str, Sequence[str]]) -> tuple[Head, list[Rows]]:
    """Return a summary's head, and the columns asked for of some tables (table, of, rows).

    A file's groups of rows are of one table each, so that only those wanted are read.
    Raises NotAReport if the file is damaged, of a later version, or unpacks to more than it may.
    """
    try:
        opened_file(path).close()  # else it may be a pipe
        # Texts are read as numbers of a dictionary, and compared only once their length is known.
        with pq.ParquetFile(path, pre_buffer=False, read_dictionary=TEXT_COLUMNS) as file:
            schema = file.schema_arrow
            head = msgspec.json.decode((schema.metadata or {})[KEY], type=Head)
            if head.version > VERSION:
                raise NotAReport(f"{path} was written by a later nvtx-kernels; upgrade this one to read it.")
            if head.steps_of_a_rank < 0:
                raise ValueError("its number of steps is negative")
            _require_readable_columns(path, file)
            groups = []
            unpacked = 0
            for number in range(file.num_row_groups):
                about = file.metadata.row_group(number)
                require_within(path, unpacked + about.num_rows * OBJECT_BYTES)
                table, extent = _table_of(file, number)
                if table in columns:
                    names = columns[table]
                    unpacked += _stored_values(about, names) * OBJECT_BYTES
                    require_within(path, unpacked)
                    rows = file.read_row_group(number, columns=list(names), use_threads=False).select(names)
                    rows.validate(full=True)  # that texts are text, and their numbers in their dictionary
                    unpacked += arrow.text_bytes(rows)
                    require_within(path, unpacked)
                    groups.append((table, extent, rows.cast(columns_of(names))))
            return head, groups
    except (OSError, KeyError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise NotAReport(f"{path} is not a whole summary ({reason}); write it again with `summarize`.") from error


def _require_readable_columns(path: FilePath, file: pq.ParquetFile) -> None:
    """Raise ArrowException or OSError where a file's data on a column is damaged.

    Arrow ends the process where that is asked for; before it reads a row ahead, it looks at all columns itself.
    """
    stored = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
    require_within(path, stored)
    with pq.ParquetFile(path, pre_buffer=True, metadata=file.metadata, read_dictionary=TEXT_COLUMNS) as ahead:
        next(ahead.iter_batches(1, row_groups=range(file.num_row_groups), use_threads=False), None)


def _table_of(file: pq.ParquetFile, number: int) -> tuple[str, str]:
    """Return the table and the kind of work of a group's rows; raises ValueError for rows of several."""
    rows = file.read_row_group(number, columns=["table", "of"], use_threads=False)
    arrow.require_texts(rows)
    tables = rows["table"].unique().to_pylist()
    extents = rows["of"].unique().to_pylist()
    if len(tables) != 1 or len(extents) != 1:
        raise ValueError("its groups of rows are not of one table each")
    return tables[0], extents[0]


def _stored_values(about: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """Return how many values a group of rows has in these columns, those of lists included."""
    count = 0
    for place in range(about.num_columns):
        column = about.column(place)
        name = column.path_in_schema.split(".")[0]
        if name in names:
            count += max(column.num_values, about.num_rows)
    return count


def read_summary(path: FilePath) -> Report:
    """Return the report of a summary, whose name is the file's; raises NotAReport as `read_groups` does."""
    columns = {}
    for table, row_type in SUMS.items():
        columns[table] = [field.name for field in fields(row_type)]
    head, groups = read_groups(path, columns)
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table, extent, of_group in groups:
        rows.setdefault((extent, table), []).extend(of_group.to_pylist())
    try:
        provenance = msgspec.to_builtins(head.provenance)
        reports: dict[str, Report] = {}
        for extent, about in head.reports.items():
            tables = {table: rows.get((extent, table), []) for table in SUMS}
            if head.version <= 1:
                about = _upgraded(about)
            reports[extent] = msgspec.convert({**about, **tables, "provenance": provenance}, Report)
    except msgspec.ValidationError as error:
        raise NotAReport(f"{path} is not a whole summary ({error}); write it again with `summarize`.") from error
    named = {extent: _with_names(report) for extent, report in reports.items()}
    report = replace(named[ALL], counted=named.get(MEASURED))
    return replace(report, provenance=replace(report.provenance, file=path.name))


def _upgraded(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report's fields in a file of version 1, which has the times of steps but no account of them."""
    rows = (about.get("step_time") or {}).get("rows", [])
    upgraded = {**about, "counted_steps": about["steps"], "account": None}
    if not rows:
        return upgraded
    own_ns = [row["own_ns"] for row in rows]
    is_known = np.array([not row["first"] for row in rows])
    counted = choose(own_ns, is_known, is_first=True).counted.tolist()
    rows = [{**row, "counted": number in counted} for number, row in enumerate(rows)]
    on_cpu = any(row["busy_ns"] is None for row in rows)
    upgraded["account"] = {"per": STEP, "steps_by": NAMED, "rows": rows, "gpus": [], "on_cpu": on_cpu}
    return upgraded


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
    """Return the time of each row of kernels in each measured step; raises NotAReport as `read_groups` does."""
    head, groups = read_groups(path, {"kernels": ["path", "phase", "kind", "kernel", "step_ns"]})
    return {
        (tuple(row["path"]), row["phase"], row["kind"], row["kernel"]): np.array(row["step_ns"], np.int64)
        for _, extent, rows in groups
        if extent == head.of
        for row in rows.to_pylist()
        if row["step_ns"] is not None
    }


def read_steps(path: FilePath) -> list[dict[str, Any]]:
    """Return the rows STEPS of whole measured steps, in order; raises NotAReport as `read_groups` does."""
    _, groups = read_groups(path, {"steps": list(STEPS)})
    steps = [row for _, _, rows in groups for row in rows.to_pylist() if not row["phase"]]
    if [row["step"] for row in steps] != [*range(len(steps))] or any(row["kernels"] is None for row in steps):
        raise NotAReport(f"{path} is not a whole summary (its steps); write it again with `summarize`.")
    return steps
