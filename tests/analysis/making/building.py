"""Builds nsys-shaped SQLite reports in two lines: `report = build(tmp_path, ranges=[...], **launched((10, 12)))`.

Threads are nsys's global thread ids, `thread(process, tid)`; the main thread of a process has its id. Times are
nanoseconds. A range whose `end` is None was never closed.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from tests.analysis.making.nsys_schema import TABLES, columns, create_statement, metadata_table

PUSH_POP, START_END, CATEGORY, MARK, DOMAIN_CREATE = 59, 60, 33, 34, 75


def thread(process, tid=None):
    """Return nsys's global thread id; without a thread, that of the process's main thread."""
    return 7 << 48 | process << 24 | (process if tid is None else tid)


def process_of(global_tid):
    """Return nsys's global process id of a thread."""
    return global_tid >> 24 << 24


MAIN, AUTOGRAD, WORKER = thread(100), thread(100, 101), thread(100, 102)


@dataclass(frozen=True)
class Range:
    """An NVTX range; `event` 60 is a start/end range, 33 a category's name, 34 a mark and 75 a domain's name."""

    name: str | None
    start: int
    end: int | None
    thread: int = MAIN
    domain: int = 0
    event: int = PUSH_POP
    category: int = 0


@dataclass(frozen=True)
class Launch:
    """A CUDA API call; `event_class` 0 is the runtime's, 1 the driver's. nsys ends names with a version."""

    correlation: int | None
    start: int
    end: int
    thread: int = MAIN
    event_class: int = 0
    name: str = "cudaLaunchKernel_v7000"


@dataclass(frozen=True)
class Wait:
    """What nsys says of a call, by its id, that waits for a stream or an event, or records an event."""

    correlation: int
    stream: int = 0
    event: int = 0
    records: bool = False
    process: int = process_of(MAIN)


@dataclass(frozen=True)
class Overhead:
    """What nsys did itself, on a thread."""

    start: int
    end: int
    thread: int = MAIN


@dataclass(frozen=True)
class Work:
    """A kernel, memcpy, memset or graph; `name` is the kernel's, or the number of a copy's direction.

    `blocks` are those of a kernel's grid.
    `source` and `target` are the kinds of memory of a copy: 0 is pageable, 1 pinned, 2 the GPU's.
    """

    correlation: int | None
    start: int
    end: int
    name: str | int = "kernel"
    kind: str = "kernel"
    process: int = process_of(MAIN)
    device: int = 0
    stream: int = 7
    node: int | None = None
    bytes: int = 0
    source: int = 0
    target: int = 2
    blocks: int = 0


@dataclass(frozen=True)
class Node:
    """The creation of a CUDA graph's node; one that was cloned has an `original`."""

    number: int
    at: int
    thread: int = MAIN
    original: int | None = None


@dataclass(frozen=True)
class Allocation:
    """An allocation, or a free if `bytes` are negative; one of CUDA's own, by its call, where `total` is None."""

    at: int
    bytes: int
    block: int
    total: int | None = None
    thread: int = MAIN
    device: int = 0
    correlation: int | None = None


@dataclass(frozen=True)
class Rows:
    """What a report holds, in the order of its rows."""

    ranges: list[Range] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    thread_names: dict[int, str] = field(default_factory=dict)
    metadata: dict[str, str | bytes] = field(default_factory=lambda: {"EXPORT_PRODUCT_VERSION": "2025.3.2.0"})
    gpus: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)


@dataclass(frozen=True)
class Dialect:
    """How an export of some year, or of some program, writes the same rows."""

    year: int = 2025
    registered: str = "none"  # which range names are registered strings: none, all, or every second one: mixed
    empty_tables: bool = False  # nsys 2022.2 wrote tables without rows; others leave them out


def launched(*calls, lasts=10, name="kernel", kind="kernel", first=1):
    """Return launches, each with one piece of work right after it: calls are (start, end[, thread])."""
    launches = [Launch(number, *call) for number, call in zip(count(first), calls)]
    work = [
        Work(call.correlation, call.end + 1, call.end + 1 + lasts, name, kind, process_of(call.thread))
        for call in launches
    ]
    return {"launches": launches, "work": work}


OWN_DOMAIN = 9
MODEL_FORWARD, MODEL_BACKWARD, TIMELINE, NO_GRADIENT = 1, 2, 4, 5
CATEGORIES = {
    "model/forward": MODEL_FORWARD,
    "model/backward": MODEL_BACKWARD,
    "phase": 3,
    "timeline": TIMELINE,
    "model/no gradient": NO_GRADIENT,
}


def annotation(main=MAIN):
    """Return the rows that name the domain and the categories of this project's annotation, in a process."""
    named = [Range(name, 0, None, main, OWN_DOMAIN, CATEGORY, number) for name, number in CATEGORIES.items()]
    return [Range("nvtx-kernels", 0, None, main, OWN_DOMAIN, DOMAIN_CREATE), *named]


def module(name, start, end, thread=MAIN, category=MODEL_FORWARD):
    """Return a range that annotation opens."""
    return Range(name, start, end, thread, OWN_DOMAIN, category=category)


def build(folder, dialect=Dialect(), **rows):
    """Write a report holding these `Rows` into the folder and return its path."""
    return write(Path(folder) / "report.sqlite", Rows(**rows), dialect)


def steps_lasting(folder, *durations):
    """Write a report of steps 1000 ns apart, each with a forward of one kernel that lasts so long."""
    starts = [1000 * number for number in range(len(durations))]
    ranges = [Range(*row) for at in starts for row in (("step", at, at + 900), ("forward", at + 1, at + 800))]
    launches = [Launch(number, at + 10, at + 20) for number, at in enumerate(starts)]
    work = [Work(n, at + 30, at + 30 + lasts) for n, (at, lasts) in enumerate(zip(starts, durations, strict=True))]
    return build(folder, ranges=ranges, launches=launches, work=work)


def write(path, rows, dialect=Dialect()):
    """Write the rows as nsys would export them, over what is there."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for table, records in _tables(rows, dialect).items():
            if records or dialect.empty_tables or table == "StringIds":
                known = columns(table, dialect.year)
                database.execute(create_statement(table, dialect.year))
                names, marks = ", ".join(f'"{name}"' for name in known), ", ".join("?" * len(known))
                values = [
                    [record.get(n, 0 if needed else None) for n, needed in known.items()] for record in records
                ]
                database.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)
        database.commit()
    return path


def alter(path, *statements):
    """Run SQL on a written report, for what no exporter would write on purpose."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


class _Strings(dict):
    def __missing__(self, text):
        self[text] = 1000 + len(self)
        return self[text]


KIND_TABLES = {"kernel": "KERNEL", "memcpy": "MEMCPY", "memset": "MEMSET", "graph": "GRAPH_TRACE"}


def _row(names, *values, **more):
    return dict(zip(names.split(), values, strict=True)) | more


def _tables(rows, dialect):
    strings = _Strings()
    tables = {table: [] for table in TABLES}
    for number, r in enumerate(rows.ranges):
        registered = dialect.registered == "all" or (dialect.registered == "mixed" and number % 2)
        name = {"textId": strings[r.name]} if registered and r.name is not None else {"text": r.name}
        names = "start end eventType globalTid domainId category"
        event = _row(names, r.start, r.end, r.event, r.thread, r.domain, r.category or None, **name)
        tables["NVTX_EVENTS"].append(event)
    for call in rows.launches:
        names = "start end eventClass globalTid correlationId nameId"
        name = strings[call.name]
        launch = _row(names, call.start, call.end, call.event_class, call.thread, call.correlation, name)
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(launch)
    for row in rows.overhead:
        names = "start end globalTid nameId"
        tables["PROFILER_OVERHEAD"].append(
            _row(names, row.start, row.end, row.thread, strings["CUPTI Buffer flush"])
        )
    for w in rows.work:
        copied = {"bytes": w.bytes, "srcKind": w.source, "dstKind": w.target}
        named = copied | {"copyKind": 1 if isinstance(w.name, str) else w.name} if w.kind == "memcpy" else {}
        if w.kind == "kernel":
            named = {"demangledName": strings[w.name], "shortName": strings["Kernel2"]}
            named |= {"gridX": w.blocks, "gridY": 1, "gridZ": 1}
        names = "start end deviceId streamId correlationId globalPid graphNodeId"
        piece = _row(names, w.start, w.end, w.device, w.stream, w.correlation, w.process, w.node, **named)
        tables[f"CUPTI_ACTIVITY_KIND_{KIND_TABLES[w.kind]}"].append(piece)
    for wait in rows.waits:
        table = "CUDA_EVENT" if wait.records else "SYNCHRONIZATION"
        names = "streamId correlationId globalPid eventId"
        row = _row(names, wait.stream, wait.correlation, wait.process, wait.event)
        tables[f"CUPTI_ACTIVITY_KIND_{table}"].append(row)
    for node in rows.nodes:
        names = "start end eventClass globalTid graphNodeId nameId"
        creation = _row(names, node.at, node.at, 77, node.thread, node.number, strings["Graph Node Creation"])
        # Of a clone, nsys 2025.3 writes a second row that names the original.
        clone = [] if node.original is None else [{**creation, "originalGraphNodeId": node.original}]
        tables["CUDA_GRAPH_NODE_EVENTS"] += [creation, *clone]
    for event in rows.allocations:
        place = {"start": event.at, "deviceId": event.device}
        of_cuda = "memoryOperationType bytes address globalPid correlationId"
        freed, size, process = int(event.bytes < 0), abs(event.bytes), process_of(event.thread)
        if event.total is None:
            row = _row(of_cuda, freed, size, event.block, process, event.correlation, **place)
            tables["CUDA_GPU_MEMORY_USAGE_EVENTS"].append(row)
        else:
            names = "globalTid block bytes totalBytes"
            row = _row(names, event.thread, event.block, event.bytes, event.total, **place)
            tables["NVTX_KERNELS_ALLOCATIONS"].append(row)
    tables["ThreadNames"] = [{"nameId": strings[n], "globalTid": t} for t, n in rows.thread_names.items()]
    tables["TARGET_INFO_GPU"] = [{"id": number, "name": name} for number, name in enumerate(rows.gpus)]
    if metadata_table(dialect.year):
        tables[metadata_table(dialect.year)] = [{"name": n, "value": v} for n, v in rows.metadata.items()]
    tables["StringIds"] = [{"id": number, "value": text} for text, number in strings.items()]
    return tables


def in_process(rows, process):
    """Return the same rows as another process's: equal correlation ids, other threads."""
    moved = {100: process}

    def there(global_tid):
        tid = global_tid & 0xFFFFFF
        return thread(process, moved.get(tid, tid))

    return Rows(
        ranges=[replace(r, thread=there(r.thread)) for r in rows.ranges],
        launches=[replace(c, thread=there(c.thread)) for c in rows.launches],
        work=[replace(w, process=thread(process, 0)) for w in rows.work],
        thread_names={there(t): name for t, name in rows.thread_names.items()},
        nodes=[replace(n, thread=there(n.thread)) for n in rows.nodes],
    )
