"""Read what Kineto saved of a session, for the recorder: joins `analysis`, which reads traces, to `profiling`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from .analysis.errors import NotAReport
from .analysis.readers.calls import named_calls
from .analysis.readers.chrome_columns import TraceColumns
from .analysis.readers.chrome_events import TraceFile
from .analysis.readers.chrome_values import whole_number
from .analysis.readers.pytorch_trace import Assembly
from .analysis.trace import KERNEL, Int64s, Provenance, Ranges, Spots, Thread, Trace
from .profiling.recorder.seen import SEQUENCE_BITS, Blocks, Seen, SpansOf

# Kineto escapes no quote: not in a name, which has a line of its own or is before `pid`, nor in the file's path.
_TEXT = re.compile(rb'("(?:name|traceName)": ")(.*)("(?:, "pid": .*|,| }))\s*\Z')
#: In the names of CUDA's calls that launch one kernel each.
LAUNCHES_KERNEL = "LaunchKernel"
#: So many launches without a kernel at the end of a session are no coincidence.
MANY_LOST = 64


def read(path: Path, *, on_gpu: bool, spans_of: SpansOf | None = None) -> Seen:
    """Read a session's file, given what says which ranges were open meanwhile.

    With `on_gpu` the GPU's work is read, else the self time of operators. Raises NotAReport for a file that is
    damaged, as Kineto leaves it on a full disk.
    """
    try:
        assembly = _assembly(path)
    except NotAReport:
        escaped = path.with_name(f"{path.name}.escaped")
        try:
            _escape(path, escaped)
            assembly = _assembly(escaped)
        finally:
            escaped.unlink(missing_ok=True)
    base_ns = whole_number(assembly.envelope.base_ns) or 0
    threads = assembly.threads()
    ranges = assembly.ranges()
    blocks = _blocks(assembly, ranges, threads, base_ns)
    names = list(assembly.columns.names)
    spans = spans_of(names, threads, blocks) if spans_of else None
    if on_gpu:
        work, launches = assembly.gpu_work()
    else:
        work, _, launches = assembly.self_times(ranges, _on_threads(spans, threads, base_ns) if spans else None)
    trace = Trace(
        work=work,
        launches=launches,
        ranges=Ranges.empty(),
        names=names,
        threads=threads,
        processes=assembly.processes(),
        domains=[],
        provenance=Provenance(path.name),
        memory=assembly.memory(not on_gpu),
    )
    if not on_gpu:
        return Seen(trace, base_ns, blocks, None)
    waits, has_events = assembly.waits()
    columns = assembly.columns
    trace = replace(
        trace,
        waits=waits,
        has_events=has_events,
        copies=assembly.copies(),
        messages=assembly.messages(work),
        calls=named_calls(columns.launches["call"], list(columns.calls)),
        graph_node=assembly.graph_nodes(),
    )
    return Seen(trace, base_ns, blocks, _lost_from(assembly, base_ns))


def _assembly(path: Path) -> Assembly:
    file = TraceFile(path)
    columns = TraceColumns()
    for events in file.blocks():
        columns.take(events)
    return Assembly(path, columns, file.envelope)


def _escape(path: Path, escaped: Path) -> None:
    """Copy a file with what JSON wants escaped in names and paths escaped."""
    with path.open("rb") as lines, escaped.open("wb") as file:
        for line in lines:
            match = _TEXT.search(line)
            if match is not None:
                begin, text, end = match.groups()
                text = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
                line = line[: match.start()] + begin + text + end + b"\n"
            file.write(line)


def _blocks(assembly: Assembly, ranges: Ranges, threads: list[Thread], base_ns: int) -> Blocks:
    table = assembly.columns.ranges
    return Blocks(
        ranges.start_ns + base_ns,
        ranges.end_ns + base_ns,
        ranges.thread,
        ranges.name_id,
        _sequence(assembly, ranges, threads),
        table["is_operator"] == 1,
        table["forward"],
    )


def _on_threads(spans: Spots, threads: list[Thread], base_ns: int) -> Spots:
    """Return ranges by the session's numbers of threads, and without those of threads that it did not see."""
    number = {thread.thread_id: place for place, thread in enumerate(threads)}
    thread = np.array([number.get(thread_id, -1) for thread_id in spans.thread.tolist()], np.int32)
    rows = np.flatnonzero(thread >= 0)
    return Spots(spans.start_ns[rows] - base_ns, spans.end_ns[rows] - base_ns, thread[rows])


def _sequence(assembly: Assembly, ranges: Ranges, threads: list[Thread]) -> Int64s:
    """Return numbers with the system's id of a thread, as sessions number their threads in different orders.

    Where a session has no flow from forward to backward, an operator counts in its own thread, and which one a
    node counts in is not known.
    """
    table = assembly.columns.ranges
    number = table["sequence"]
    thread_ids = np.array([*(thread.thread_id for thread in threads), 0], np.int64)
    unknown = len(threads)
    without_flow = np.where(table["forward"] > 0, unknown, ranges.thread)
    place = (ranges.seq >> SEQUENCE_BITS) - 1
    place = np.where(place >= 0, place, without_flow)
    thread_id = thread_ids[np.minimum(place, unknown)]
    in_thread = number & ((1 << SEQUENCE_BITS) - 1)
    with_thread = (thread_id + 1) << SEQUENCE_BITS | in_thread
    return np.where(number >= 0, with_thread, -1)


def _lost_from(assembly: Assembly, base_ns: int) -> int | None:
    """Return from when on launches have no kernel: the GPU's events have filled the profiler's buffers."""
    calls = assembly.columns.launches
    work = assembly.columns.work
    launches_kernel = np.array([LAUNCHES_KERNEL in name for name in assembly.columns.calls] or [False])
    launches = np.flatnonzero(launches_kernel[calls["call"]])
    launches = launches[np.argsort(calls["start"][launches], kind="stable")]
    kernels = work["correlation"][work["kind"] == KERNEL]
    has_kernel = np.isin(calls["correlation"][launches], kernels)
    if not has_kernel.any():
        return None
    last = int(np.flatnonzero(has_kernel)[-1])
    lost = launches[last + 1 :]
    return int(calls["start"][lost[0]]) + base_ns if len(lost) >= MANY_LOST else None
