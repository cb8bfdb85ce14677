"""What rocprofv3 (ROCm 7) writes with `-f rocpd`: a SQLite database with a set of tables for each process.

Tables and columns are those of rocprofiler-sdk's rocpd_tables.sql, and what is in them is by its
lib/output/generateRocpd.cpp. A region is a call (of HIP, HSA, RCCL) or a roctx range, whose text is the message in
its event's `extdata`. `stack_id` of an event is rocprofiler's own correlation id: a dispatch or copy has that of
the call which was innermost on its thread, or without traced calls, of the roctx range that was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import NotAReport
from ..trace import KERNEL, MEMCPY, Trace
from .nsys_tables import CALLS, EVENTS, PUSH_POP_TYPES, START_END_TYPES, WORK, NsysTables, Part, Table
from .nsys_trace import read_trace
from .requirements import RECORD_ROCM
from .sqlite import Database

RANGES_KIND = "MARKER_CORE_RANGE_API"
PUSH_POP_CALLS = ("roctxThreadRangeA", "roctxRangePushA")
START_END_CALLS = ("roctxProcessRangeA", "roctxRangeStartA")
NEEDED = ("string", "event", "region", "kernel_dispatch", "memory_copy")
NEEDED_OF_INFO = ("info_process", "info_thread", "info_agent", "info_kernel_symbol")
MOST_PROCESSES = 1024
ROWS_PER_PART = 200_000
NO_CALLS = (
    "The file has no HIP calls: work is in the roctx range that was open on its thread when it was dispatched, "
    "and when it was launched is not known. rocprofv3 --hip-trace records it."
)

# Ids are numbered like nsys's: bits 24 and up of a thread's are its process's, which begin with the set of tables.
PROCESS_NUMBER = "(({number} << 24) | (coalesce(process.pid, event_of.pid) & 0xFFFFFF))"
THREAD = f"(({PROCESS_NUMBER} << 24) | (coalesce(thread.tid, event_of.tid) & 0xFFFFFF))"
PROCESS = f"({PROCESS_NUMBER} << 24)"
OF_EVENTS = """
FROM (SELECT * FROM {table} WHERE {rows}) AS event_of LEFT JOIN {event} AS event ON event.id = event_of.event_id
LEFT JOIN {info_process} AS process ON process.id = event_of.pid
LEFT JOIN {info_thread} AS thread ON thread.id = event_of.tid
"""
CORRELATION = "coalesce(nullif(event.stack_id, 0), -1) AS correlation"
RANGES_SQL = f"""
SELECT event_of.start AS start, event_of."end" AS "end",
    CASE WHEN event_of.name_id IN {{start_end}} THEN {START_END_TYPES[0]} ELSE {PUSH_POP_TYPES[0]} END AS event,
    {THREAD} AS thread,
    CAST(coalesce(iif(json_valid(event.extdata), json_extract(event.extdata, '$.message'), ''), '') AS TEXT)
        AS text
{OF_EVENTS} WHERE event.category_id IN {{of_ranges}} AND event_of.name_id IN {{ranges}}
"""
IS_RANGE = "coalesce(event.category_id IN {of_ranges}, 0)"
CALLS_SQL = f"""
SELECT event_of.start AS start, iif({IS_RANGE}, event_of.start, event_of."end") AS "end", {THREAD} AS thread,
    {CORRELATION}, event_of.name_id * {{names}} + 2 * {{number}} AS name
{OF_EVENTS} WHERE {IS_RANGE} = {{ranges_launch}}
"""
# A grid is given in work-items.
GRID = " * ".join(
    f"((event_of.grid_size_{axis} + max(event_of.workgroup_size_{axis}, 1) - 1)"
    f" / max(event_of.workgroup_size_{axis}, 1))"
    for axis in "xyz"
)
DISPATCHES_SQL = f"""
SELECT event_of.start AS start, event_of."end" AS "end", {PROCESS} AS process, {CORRELATION},
    coalesce(agent.type_index, event_of.agent_id) AS device, coalesce(event_of.stream_id, 0) AS stream,
    event_of.kernel_id * {{names}} + 2 * {{number}} + 1 AS name, coalesce({GRID}, 0) AS grid
{OF_EVENTS} LEFT JOIN {{info_agent}} AS agent ON agent.id = event_of.agent_id
"""
# A copy's direction as CUPTI numbers it.
COPIES_SQL = f"""
SELECT event_of.start AS start, event_of."end" AS "end", {PROCESS} AS process, {CORRELATION},
    coalesce(iif(target.type = 'GPU', target.type_index, source.type_index), 0) AS device,
    coalesce(event_of.stream_id, 0) AS stream,
    CASE source.type || target.type WHEN 'CPUGPU' THEN 1 WHEN 'GPUCPU' THEN 2 WHEN 'CPUCPU' THEN 9
        WHEN 'GPUGPU' THEN iif(source.id = target.id, 8, 10) ELSE 0 END AS name
{OF_EVENTS} LEFT JOIN {{info_agent}} AS source ON source.id = event_of.src_agent_id
LEFT JOIN {{info_agent}} AS target ON target.id = event_of.dst_agent_id
"""
#: What takes the place of nsys's tables; memsets are dispatches, and graphs' kernels are listed. Where graphs'
#: nodes were created is not recorded, and a free does not say how many bytes it gives back.
TABLES = {
    EVENTS.name: ("region", RANGES_SQL),
    CALLS.name: ("region", CALLS_SQL),
    WORK[KERNEL].name: ("kernel_dispatch", DISPATCHES_SQL),
    WORK[MEMCPY].name: ("memory_copy", COPIES_SQL),
}
GPUS_SQL = """
SELECT DISTINCT coalesce(nullif(product_name, ''), name) FROM {info_agent}
WHERE type = 'GPU' AND id IN (SELECT agent_id FROM {kernel_dispatch})
"""
HAS_CALL_SQL = f"""
SELECT 1 FROM {{region}} AS event_of JOIN {{event}} AS event ON event.id = event_of.event_id
WHERE NOT {IS_RANGE} LIMIT 1
"""  # noqa: S608 - constants only
# What names a kernel whatever rocprofv3 was told to display.
KERNELS_SQL = """
SELECT id, coalesce(iif(json_valid(extdata), json_extract(extdata, '$.demangled_kernel_name'), NULL),
    nullif(display_name, ''), kernel_name)
FROM {info_kernel_symbol} WHERE id IN (SELECT value FROM json_each(?))
"""
STRINGS_SQL = "SELECT id, string FROM {string} WHERE id IN (SELECT value FROM json_each(?))"
#: Columns that name who ran a program, where and how.
SURROUNDINGS = frozenset(("system_name", "hostname", "domain_name", "command"))
#: How the names of kernels' symbols end.
SYMBOL_ENDS = (" [clone .kd]", ".kd")


class Rocpd(NsysTables):
    """One database of rocprofv3's, as the tables that nsys has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        tables = [re.fullmatch(r"rocpd_kernel_dispatch(\w*)", name, re.ASCII) for name in self.database.columns]
        suffixes = [table[1] for table in tables if table]
        if not suffixes or len(suffixes) > MOST_PROCESSES:
            raise NotAReport(
                f"{path} has rocpd's tables of {len(suffixes):,} processes, and no dispatches to read by these: "
                f"record it again with {RECORD_ROCM}"
            )
        # Of each process's set of tables, what takes the place of names in braces.
        self.processes = [self._terms(number, suffix, len(suffixes)) for number, suffix in enumerate(suffixes)]

    def _terms(self, number: int, suffix: str, count: int) -> dict[str, str]:
        tables = {name: f'"rocpd_{name}{suffix}"' for name in (*NEEDED, *NEEDED_OF_INFO)}
        missing = [name for name in tables.values() if name.strip('"') not in self.database.columns]
        if missing:
            raise NotAReport(
                f"{self.path} has no table {missing[0]}, which rocprofv3 writes for each process: record it again "
                f"with {RECORD_ROCM}"
            )
        ids = {
            "of_ranges": (RANGES_KIND,),
            "ranges": (*PUSH_POP_CALLS, *START_END_CALLS),
            "start_end": START_END_CALLS,
        }
        sql = f"SELECT id FROM {tables['string']} WHERE string IN (SELECT value FROM json_each(?))"  # noqa: S608
        sets = {}
        for name, texts in ids.items():
            rows = self.database.rows(sql, json.dumps(texts))
            sets[name] = f"({', '.join(str(number) for (number,) in rows if isinstance(number, int))})"
        terms = {**tables, **sets, "number": str(number), "names": str(2 * count)}
        has_calls = bool(self.database.rows(HAS_CALL_SQL.format(**terms)))
        return {**terms, "ranges_launch": "0" if has_calls else "1"}

    def parts(self, table: Table) -> Sequence[Part]:
        """Divide a table of every process into parts of its rows."""
        parts: list[Part] = []
        theirs, sql = TABLES.get(table.name, ("", ""))
        for process in self.processes if theirs else ():
            statement = sql.format(**process, table=process[theirs], rows="{}")
            parts += self.database.parts(process[theirs].strip('"'), statement, ROWS_PER_PART)
        return parts

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these numbers: of kernels (the odd ones), and of calls."""
        count = 2 * len(self.processes)
        ids_of: dict[int, list[int]] = {}
        for code in ids:
            ids_of.setdefault(code % count, []).append(code // count)
        texts = {}
        for kind, numbers in ids_of.items():
            sql = (KERNELS_SQL if kind % 2 else STRINGS_SQL).format(**self.processes[kind // 2])
            for number, text in self.database.rows(sql, json.dumps(sorted(numbers))):
                if isinstance(number, int) and isinstance(text, str):
                    end = next(filter(text.endswith, SYMBOL_ENDS), "")
                    texts[number * count + kind] = text.removesuffix(end)
        return texts

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows of the threads that have a name."""
        sql = f"""SELECT {THREAD}, event_of.name FROM {{info_thread}} AS event_of
            LEFT JOIN {{info_process}} AS process ON process.id = event_of.pid
            LEFT JOIN {{info_thread}} AS thread ON thread.id = event_of.id"""  # noqa: S608 - constants only
        rows = [row for process in self.processes for row in self.database.rows(sql.format(**process))]
        return [(thread, name) for thread, name in rows if isinstance(thread, int) and isinstance(name, str)]

    def gpus(self) -> list[tuple[int, str]]:
        """Return (number, name) rows of the GPUs to which kernels were dispatched; a node has others too."""
        rows = [row for process in self.processes for row in self.database.rows(GPUS_SQL.format(**process))]
        return list(enumerate(str(name) for (name,) in rows if name))

    def metadata(self) -> dict[str, str]:
        """Return the program that wrote it, and the schema's version."""
        tables = [name for name in self.database.columns if re.fullmatch(r"rocpd_metadata\w*", name, re.ASCII)]
        sql = "SELECT value FROM \"{}\" WHERE tag = 'schema_version'"
        versions = [str(value) for table in tables for (value,) in self.database.rows(sql.format(table))]
        return {"EXPORT_PRODUCT_NAME": "rocprofv3", "EXPORT_SCHEMA_VERSION": versions[0] if versions else ""}

    def surroundings(self) -> frozenset[str]:
        """Return the hosts and commands of its processes."""
        columns = [
            (table, column)
            for table, names in self.database.columns.items()
            for column in set(names) & SURROUNDINGS
            if re.match(r"rocpd_info_(node|process)", table)
        ]
        read = [self.database.rows(f'SELECT "{column}" FROM "{table}"') for table, column in columns]  # noqa: S608
        return frozenset(text for rows in read for (text,) in rows if isinstance(text, str))


def read(path: Path) -> Trace:
    """Read a database of rocprofv3's.

    Raises NotAReport for one of other tables, for a damaged one, and for one that is being written.
    """
    tables = Rocpd(path)
    trace = read_trace(tables)
    if not len(trace.work) or all(process["ranges_launch"] == "0" for process in tables.processes):
        return trace
    return replace(trace, notes=(*trace.notes, NO_CALLS), launch_times_known=False)
