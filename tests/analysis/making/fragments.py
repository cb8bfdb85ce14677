"""Short stretches of real reports, as nsys and as PyTorch write them, as bytes: what the fuzzer begins with."""

import json
import lzma
import sqlite3
import tempfile
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from nvtx_kernels.analysis.readers.nsys_tables import NEEDED, RECORDED_ALLOCATIONS

from tests.analysis.making import generated
from tests.analysis.making.building import thread
from tests.analysis.making.bundled import DATA, OTHERS, OURS, SHARED
from tests.analysis.making.kineto import MAIN, PROCESS, Block, Call, Program, Work, events_of, trace_text
from tests.analysis.making.rocpd_database import of_process, sayable, write

KERNELS, CALLS, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
OTHER_WORK = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("MEMCPY", "MEMSET", "GRAPH_TRACE"))
READ = {*NEEDED, RECORDED_ALLOCATIONS.name}
CALLS_KEPT, RANGES_KEPT = 80, 150
COLLECTIVE = tuple(
    {
        "graph node id": 3 << 32 | 2, "module_fqn": "layers.0", "name": "all_reduce", "original_stream": "13",
        "Collective name": "allreduce", "In msg nelems": "256", "Out msg nelems": "256", "dtype": "Float",
        "Group size": "2", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }.items()
)  # fmt: skip
STRETCHES = (0.02, 0.5, 0.8)


REPORTS = [path for path in [*map(DATA.joinpath, OURS), *map(SHARED.joinpath, OTHERS)] if path.exists()]


@cache
def fragments():
    """Return stretches of every report at hand: each a small database without types or constraints."""
    stretches = (stretch for path in REPORTS for stretch in of_report(path))
    return (*stretches, ANNOTATED.encode(), with_payloads(), of_rocprof())


@cache
def of_report(path):
    """Return three stretches of a report, and the second once more as a trace."""
    report = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    stretches = [fragment(report, at) for at in STRETCHES]
    return *stretches, trace(stretches[1])


def fragment(report, at):
    """Cut a report down to the calls from a fraction of it on, with their work and the ranges around them."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.text_factory = bytes
        database.deserialize(report)
        tables = {
            name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if CALLS in tables:
            count = database.execute(f"SELECT count(*) FROM {CALLS}").fetchone()[0]
            first = f"SELECT rowid FROM {CALLS} ORDER BY start LIMIT {CALLS_KEPT} OFFSET {int(at * count)}"
            database.execute(f"DELETE FROM {CALLS} WHERE rowid NOT IN ({first})")
            for table in sorted({KERNELS, *OTHER_WORK} & tables):
                launched = f"SELECT correlationId FROM {CALLS}"
                database.execute(f"DELETE FROM {table} WHERE correlationId NOT IN ({launched})")
        if RANGES in tables:
            if CALLS in tables:
                calls = f'(SELECT min(start) FROM {CALLS}) AND start < (SELECT max("end") FROM {CALLS})'
                database.execute(f'DELETE FROM {RANGES} WHERE eventType IN (59, 60) AND NOT ("end" > {calls})')
            longest = 'ORDER BY eventType IN (59, 60), start - "end"'
            kept = f"SELECT rowid FROM {RANGES} {longest} LIMIT {RANGES_KEPT}"
            database.execute(f"DELETE FROM {RANGES} WHERE rowid NOT IN ({kept})")
        used = {KERNELS: "demangledName", CALLS: "nameId", RANGES: "textId", "ThreadNames": "nameId"}
        texts = " UNION ".join(f"SELECT {name} FROM {table}" for table, name in used.items() if table in tables)
        database.execute(f"DELETE FROM StringIds WHERE id NOT IN ({texts or 'NULL'})")
        for table in sorted(tables - READ):
            database.execute(f'DROP TABLE "{table}"')
        for table in sorted(tables & READ):
            database.execute(f'CREATE TABLE "loose" AS SELECT * FROM "{table}"')
            database.execute(f'DROP TABLE "{table}"')
            database.execute(f'ALTER TABLE "loose" RENAME TO "{table}"')
        database.commit()
        database.execute("VACUUM")
        return database.serialize()


# What PyTorch's profiler would have written: record_function blocks and operators, CUDA's calls, and kernels.
IN_TRACE = {
    "blocks": (Block, f"""
        SELECT coalesce(text, value, ''), start, coalesce("end", start), globalTid & 0xFFFFFF,
               iif(coalesce(text, value, '') LIKE '%::%', 'cpu_op', 'user_annotation')
        FROM {RANGES} LEFT JOIN StringIds ON id = textId WHERE eventType = 59"""),
    "calls": (Call, f'SELECT correlationId, start, "end", globalTid & 0xFFFFFF FROM {CALLS}'),
    "work": (Work, f"""
        SELECT correlationId, start, "end", value FROM {KERNELS} JOIN StringIds ON id = demangledName"""),
}  # fmt: skip


#: What no report at hand has: a CUDA graph that PyTorch annotated, with its collectives, and allocations.
IN_GRAPH = (("graph node id", 3 << 32 | 1), ("module_fqn", "layers.0.mlp.w1"))
GRAPHED = Program(
    [Block("step", 0, 900), Block("forward", 5, 800)],
    [Call(7, 20, 30, name="cudaGraphLaunch"), Call(8, 40, 50)],
    [
        Work(7, 100, 150, "gemm", said=IN_GRAPH),
        Work(7, 160, 190, "ncclDevKernel_AllReduce", said=COLLECTIVE),
        Work(8, 200, 210, "add", said=(("graph node id", 2), ("graph id", 3), ("name", "loss"))),
    ],
)
MEMORY = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PROCESS, "tid": MAIN}
OF_MEMORY = {"Addr": 64, "Device Id": 0, "Device Type": 1}
ALLOCATIONS = [
    json.dumps({**MEMORY, "ts": at / 1000, "args": {"Total Allocated": total, "Bytes": size, **OF_MEMORY}})
    for at, size, total in ((25, 512, 512), (45, 256, 768), (60, -512, 256))
]
ANNOTATED = trace_text([*events_of(GRAPHED), *ALLOCATIONS])


def with_payloads():
    """Return an export of NCCL's ranges with their payloads."""
    from tests.analysis.readers.test_nccl_payloads import START, report, size

    ranges = [START, ("ncclAllReduce", 10, size(4096)), ("ncclAllGather", 40, size(64))]
    with tempfile.TemporaryDirectory() as folder:
        return report(Path(folder), ranges, [12, 60]).read_bytes()


def of_rocprof():
    """Return a database of rocprofv3's, with calls, ranges, dispatches and copies of one process."""
    rows = of_process(sayable(generated.Program(7).run()), thread(100) >> 24)
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / "12_results.db", rows, guid="").read_bytes()


def trace(stretch):
    """Return a stretch of a report as a trace of PyTorch's profiler."""
    parts = {}
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(stretch)
        for part, (row, sql) in IN_TRACE.items():
            with suppress(sqlite3.OperationalError):  # a table or a column that this report lacks
                parts[part] = [row(*values) for values in database.execute(sql)]
    return trace_text(events_of(Program(**parts))).encode()
