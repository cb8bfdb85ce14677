"""Changes that make a report hostile: `changed(report, changes)` of its values, rows, tables and bytes.

What is a row in nsys's exports is an event in traces of PyTorch's profiler, and a column one of its fields.
"""

import copy
import gzip
import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.analysis.making.building import AUTOGRAD, MAIN

INTEGERS = (
    0, 1, -1, 2, 34, 59, 60, 70, 75, 255, 2**24, 2**31 - 1, 2**31, 2**32, 2**40, 2**44, 2**48, 2**53, 2**55, 2**62,
    2**62 + 1, 2**63 - 1, -(2**31), -(2**53), -(2**62), -(2**63), 1_795_173_292_279_457_769, MAIN, AUTOGRAD,
)  # fmt: skip
NAMES = (
    "", "step", "step 3", "warmup", "forward", "backward", "optimizer", "layer 7", "layer *", "a > b", "x" * 5000,
    "aten::mm, seq = 12", "aten::mm, seq = ", f"aten::mm, seq = {'9' * 30}", "aten::mm, op_id = 3, sizes = [[1]]",
    "autograd::engine::evaluate_function: MmBackward0", "MmBackward0, seq = 12", ", seq = 3", "ncclGroup",
    "\x1b[31mred\x1b]0;x\x07", "[bold]x[/] [/nope]", "<script>alert(1)</script>", "=1+1", "a\x00b", "\u202eb",
    "\n", "/home/jdoe/model.py", "void f<g<h>>(T*)", "triton_poi_fused_add_3", "_ZN2at6native4copyILi512EEEv",
    "<" * 300, "</script><script>alert(1)</script>", "<!--<script>alert(1)", "\u2028", "{{7*7}}", "\\input{x}",
    "@SUM(1)", "\t=1", "-2+3", "%s%n{0}",
)  # fmt: skip
ODD = (None, 1.5, float("inf"), "text", "12", b"\xff\x00", "é\udcff".encode("utf-8", "surrogateescape"), b"")
VALUES = st.one_of(
    st.sampled_from(INTEGERS), st.sampled_from(NAMES), st.sampled_from(ODD), st.integers(-(2**63), 2**63 - 1),
    st.integers(-1000, 1000), st.text(max_size=12), st.binary(max_size=8),
)  # fmt: skip
#: Marks as this project writes them, and what a forged one has in place of one of their values, in JSON.
MARKS = {
    "nvtx-kernels.run ": {
        "size": "small", "batch_size": 4, "dtype": "bf16", "compile": False, "torch": "2.9.0", "tf32": True,
        "context_length": 512, "flops_convention": "2", "flops": {"forward": 10}, "bytes": {"forward": 10},
        "anomaly_mode": True, "distributed_debug": "INFO", "memory_peak_bytes": 5, "odd_sizes": {"head": [9, 8]},
        "loaders": [{"num_workers": 2, "pin_memory": True, "persistent_workers": False}],
        "untrained": ["layer"], "frozen": ["layer"], "positions": 512, "used_positions": 200,
    },
    "nvtx-kernels annotation: ": {
        "version": 1, "model": "layer", "modules": 2, "classes": {"layer *": "Linear"}, "steps": "steps of AdamW",
        "attributes": {"layer *": "layers.*"},
        "categories": {"model/forward": 1, "model/backward": 2, "phase": 3},
    },
    "nvtx-kernels flops: ": {
        "version": 1, "part": 0, "parts": 1, "calls": {"layer": 2}, "uncounted": {"aten::sort": [1, 8]},
        "ranges": {"forward": {"layer *": [2, 64, {"bf16": 128}]}},
        "peaks": {"tflops": {"bf16": 800.5}, "gigabytes_per_s": 4100.0},
    },
    "nvtx-kernels unrecorded: ": {
        "version": 1, "clock": "gpu", "step_ns": [100.0, 110.0], "where": "after", "shape": "fbA", "sizes": 64,
        "span_ns": {"forward": [40.0, 41.0], "backward": [50.0, 51.0]}, "host_ns": {"forward": 30.0},
        "allocations": [3, 4096], "dropped": {"ramp": 2},
    },
    "nvtx-kernels recorded: ": {"shapes": ["fbA"], "sizes": [64], "allocations": [[3, 4096]]},
    "nvtx-kernels call: ": {"positions": 31},
    "nvtx-kernels training: ": {
        "event": "begin", "optimizer": "AdamW", "optimizers": ["AdamW"], "warmup": 1, "steps": 3, "error": "",
    },
    "nvtx-kernels lines: ": {
        "version": 1, "reason": "tracing failed", "frames": [["train.py", 3, "train"], ["net.py", 5, "forward"]],
        "stacks": [[0], [1, 0]], "begun": [-90, -65], "span": [-65, -20],
        "data": "eJxjZIAARih95D8EcDGgApg8VPo/TBwAvZcPww==",
    },
    "nvtx-kernels memory: ": {"now_ns": 5, "version": 1, "part": 0, "parts": 1, "data": "eJwDAAAAAAE="},
}  # fmt: skip
NO_VALUES = (
    "1.0", "1e999", "-1e999", "NaN", "Infinity", "null", "true", "-1", "256", "9" * 30, "1e30", "1e-320", '"x"',
    '""', "[]", "[1]", "[1, 2]", "{}", '{"": 1}', '{"a > b": "c"}', '{"a": {"b": [1, 1, {"": 1}]}}', "[" * 2000,
)  # fmt: skip


def forged(prefix, field, inner, new):
    """Return a mark with other JSON in place of a field, or of an entry of it."""
    content = copy.deepcopy(MARKS[prefix])
    table, key = content, [*content][field % len(content)]
    while inner and isinstance(table[key], dict) and table[key]:
        table, inner = table[key], inner - 1
        key = [*table][inner % len(table)]
    table[key] = "a place"
    return prefix + json.dumps(content).replace('"a place"', new)


FORGED = st.builds(
    forged, st.sampled_from([*MARKS]), st.integers(0, 9), st.integers(0, 3), st.sampled_from(NO_VALUES)
)
READ_TABLES = (
    "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "ThreadNames",
    "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "TARGET_INFO_GPU", "META_DATA_EXPORT", "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "rocpd_region", "rocpd_event", "rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_string",
    "rocpd_info_process", "rocpd_info_kernel_symbol",
)  # fmt: skip
# What is done to a table, with its name, a column, a row, another row, and a value as the parameter.
IN_TABLES = {
    "a value": 'UPDATE "{table}" SET "{column}" = ? WHERE rowid = {row}',
    "a run of values": 'UPDATE "{table}" SET "{column}" = ? WHERE rowid BETWEEN {row} AND {other}',
    "a column": 'UPDATE "{table}" SET "{column}" = ?',
    "shifted numbers": 'UPDATE "{table}" SET "{column}" = "{column}" + ? WHERE rowid >= {row}',
    "a value from elsewhere": """UPDATE "{table}" SET "{column}" =
        (SELECT "{column}" FROM "{table}" WHERE rowid = {other}) WHERE rowid = {row} AND ? IS NOT 0.5""",
    "rows again": 'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE rowid >= {row} AND ? IS NOT 0.5 LIMIT 50',
    "rows gone": 'DELETE FROM "{table}" WHERE rowid BETWEEN {row} AND {other} AND ? IS NOT 0.5',
    "backwards": 'UPDATE "{table}" SET "end" = start - 1 WHERE rowid >= {row} AND ? IS NOT 0.5',
    "longer": 'UPDATE "{table}" SET "end" = "end" + 1000 * rowid WHERE rowid >= {row} AND ? IS NOT 0.5',
    "another event": 'UPDATE "{table}" SET eventType = 34 + {row} % 42 WHERE rowid = {other} AND ? IS NOT 0.5',
}
# Ranges more, on the thread of one and from its start on.
MANY_RANGES = """INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid, domainId)
    WITH RECURSIVE
    one AS (SELECT start, globalTid, domainId FROM NVTX_EVENTS WHERE eventType = 59 LIMIT 1 OFFSET {{row}}),
    counted(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n < {count})
    SELECT start + {start}, start + {start} + {length}, 59, {name}, globalTid, domainId FROM counted, one"""
OF_TABLES = {
    "no table": 'DROP TABLE "{table}"',
    "no column": 'ALTER TABLE "{table}" DROP COLUMN "{column}"',
    "a column renamed": 'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "renamed"',
    "a table renamed": 'ALTER TABLE "{table}" RENAME TO "renamed"',
    "a column more": 'ALTER TABLE "{table}" ADD COLUMN "rowid" TEXT DEFAULT \'x\'',
    "a mark": """INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId)
        SELECT start, 34, ?, globalTid, domainId FROM NVTX_EVENTS ORDER BY start LIMIT 1 OFFSET {row}""",
    "crossing ranges": MANY_RANGES.format(
        count="5 * {other}", start="7919 * n % 100000", length="104729 * n % 100000", name="'crossing'"
    ),
    "many names": MANY_RANGES.format(count="50 * {other}", start="3 * n", length="1", name="? || n"),
    "no rows": 'DELETE FROM "{table}"',
    "an index": 'CREATE INDEX "theirs" ON "{table}" ("{column}")',
    "a view": 'CREATE VIEW "theirs" AS SELECT * FROM "{table}"',
}
# What is done to events of a trace: to one, a run, those from one on or all; in which field (None: any); and the
# new value, by the one of the change, the old one and that of another event.
IN_EVENTS = {
    "a value": ("one", None, lambda value, old, other: value),
    "a run of values": ("run", None, lambda value, old, other: value),
    "a column": ("all", None, lambda value, old, other: value),
    "shifted numbers": ("rest", "ts", lambda value, old, other: old + value if isinstance(value, int) else value),
    "a value from elsewhere": ("one", None, lambda value, old, other: other),
    "backwards": ("rest", "dur", lambda value, old, other: -1),
    "longer": ("rest", "dur", lambda value, old, other: 1e6),
    "another event": ("one", "cat", lambda value, old, other: other),
}
#: Blocks more, as in tables: of which each crosses others, and each with a name of its own.
MORE_EVENTS = {
    "crossing ranges": lambda event, count, value: [
        {**event, "ph": "X", "cat": "user_annotation", "ts": 7919 * n % 100_000, "dur": 104_729 * n % 100_000}
        for n in range(5 * count)
    ],
    "many names": lambda event, count, value: [
        {**event, "ph": "X", "cat": "user_annotation", "name": f"{value}{n}", "ts": 3 * n, "dur": 1}
        for n in range(50 * count)
    ],
}
FIELDS = (
    "ts", "dur", "name", "cat", "ph", "pid", "tid", "args", "args.correlation", "args.device", "args.stream",
    "args.grid", "args.Sequence number", "args.External id", "args.name", "args.module_fqn", "args.graph node id",
    "args.graph id", "args.original_stream", "args.Bytes", "args.Device Type", "args.Total Allocated",
    "args.Collective name", "args.In msg nelems", "args.Group size", "args.dtype",
)  # fmt: skip
AROUND = ("schemaVersion", "deviceProperties", "computeProperties", "distributedInfo", "traceName", "{}")
IN_BYTES = ("flipped", "cut", "zeros", "a page for another", "header", "appended", "gzipped")
KINDS = (*IN_TABLES, *IN_TABLES, *IN_TABLES, *OF_TABLES, *IN_BYTES)


@dataclass(frozen=True)
class Change:
    """One change; numbers choose a table, a column, rows or bytes, as far as there are any."""

    kind: str
    table: int
    column: int
    row: int
    other: int
    value: object


NUMBERS = st.integers(0, 400)
PLACES = st.integers(0, len(READ_TABLES) - 1), st.integers(0, 30), NUMBERS, NUMBERS
CHANGES = st.lists(
    st.builds(Change, st.sampled_from(KINDS), *PLACES, VALUES)
    | st.builds(Change, st.just("a mark"), *PLACES, FORGED),
    min_size=1,
    max_size=6,
)


def changed(report, changes):
    """Apply changes to a report's bytes: those of its values first, for a damaged file takes none."""
    of_values = [change for change in changes if change.kind not in IN_BYTES]
    if report.lstrip().startswith(b"{"):
        trace = json.loads(report)
        for change in of_values:
            raw = isinstance(change.value, bytes)
            _change_trace(trace, change, change.value.decode("utf-8", "surrogateescape") if raw else change.value)
        content = bytearray(json.dumps(trace, ensure_ascii=False).encode("utf-8", "surrogateescape"))
    else:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(report)
            for change in of_values:
                _change_table(database, change)
            database.commit()
            content = bytearray(database.serialize())
    for change in changes:
        if change.kind in IN_BYTES:
            _change_bytes(content, change)
    return bytes(content)


def _change_table(database, change):
    table = READ_TABLES[change.table]
    columns = [name for _, name, *_ in database.execute(f'PRAGMA table_info("{table}")')]
    if columns:
        sql = {**IN_TABLES, **OF_TABLES}[change.kind]
        column = columns[change.column % len(columns)]
        low, high = sorted((change.row, change.other))
        with suppress(sqlite3.Error, OverflowError):
            value = (change.value,) if "?" in sql else ()
            database.execute(sql.format(table=table, column=column, row=low, other=high), value)


def _change_trace(trace, change, value):
    events = trace["traceEvents"]
    low, high = sorted((change.row % (len(events) + 1), change.other % (len(events) + 1)))
    if change.kind in IN_EVENTS:
        _change_events(events, low, high, change, value)
    elif change.kind == "rows again":
        events += [dict(event) for event in events[low : low + 50]]
    elif change.kind == "rows gone":
        del events[low : high + 1]
    elif change.kind in MORE_EVENTS:
        events += MORE_EVENTS[change.kind](events[low % len(events)] if events else {}, change.other, value)
    else:
        trace[AROUND[change.table % len(AROUND)]] = value


def _change_events(events, low, high, change, value):
    which, field, new = IN_EVENTS[change.kind]
    field = field or FIELDS[change.column % len(FIELDS)]
    ends = {"one": (low, low + 1), "run": (low, high + 1), "rest": (low, None), "all": (None, None)}[which]
    for event in events[slice(*ends)]:
        at, name = _place(event, field)
        of_other, _ = _place(events[high % len(events)], field)
        with suppress(TypeError):  # a sum with what is no number any more
            at[name] = new(value, at.get(name), of_other.get(name))


def _place(event, field):
    """Return the object in which a field of an event stands, and its name there."""
    if not field.startswith("args."):
        return event, field
    if not isinstance(event.get("args"), dict):
        event["args"] = {}
    return event["args"], field.removeprefix("args.")


def _change_bytes(content, change):
    size = len(content)
    if not size:
        return
    at = (change.row * 4096 + change.other * 37 + change.column) % size
    value = change.value if isinstance(change.value, bytes) else repr(change.value).encode()[:50]
    if change.kind == "gzipped":
        content[:] = gzip.compress(content, compresslevel=1, mtime=0)
    elif change.kind == "cut":
        del content[at:]
    elif change.kind == "appended":
        content += value * 1000
    elif change.kind == "a page for another":
        page, other = (4096 * (number % max(1, size // 4096)) for number in (change.row, change.other))
        content[page : page + 4096] = content[other : other + 4096]
    else:
        where = {"header": change.other % 100, "flipped": at, "zeros": at}[change.kind]
        new = bytes(64 * (1 + change.column)) if change.kind == "zeros" else value
        content[where : where + len(new)] = new[: size - where]
