"""Where the time of each step goes on each GPU: every nanosecond in one state.

Each moment of a step has the first of these that applies: a compute kernel or a whole CUDA graph runs; a kernel
that communicates runs, with no compute to hide it; a copy or memset runs, with neither; else the GPU is idle, for
a cause. Of work of one kind that overlaps, the one that began first has the time.

    compute        ▓▓▓▓▓▓▓      ▓▓▓▓▓
    communication      ▓▓▓▓▓▓▓▓
    copies                          ▓▓▓▓
    a cell of      ├ compute ┤ comm.┤ compute ┤copy┤ idle: launching ┤
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..kernel_names.categories import MEANINGS, categorize
from ..support.small_numbers import NEVER, distinct, grouped_rows, looked_up, positions_between, sorted_by, summed
from ..trace import GRAPH, KERNEL, Columns, Int8s, Int32s, Int64s, Trace, Work
from ..vocabulary import OTHER, PHASES
from .cpu import outside_operators, program_thread
from .gaps import Gaps, gaps_between, within
from .idle import GAPS_AT_ONCE, NO_MORE_WORK, pieces_of
from .idle import Pieces as Idle
from .intervals import Intervals, union
from .step_table import Loop, Pieces, Steps, StepTable

#: The states of a GPU: a moment is in the first one that applies.
KINDS = ("compute", "communication", "copy", "idle")
COMPUTE, COMMUNICATION, COPY, IDLE = range(len(KINDS))
CATEGORIES = tuple(MEANINGS)
#: What copies are called, by how their names begin.
COPIES = ("to GPU", "to host", "on GPU", "between GPUs", "memset", "of another kind")
_COPY_OF_NAME = {
    "[CUDA memcpy Host-to-Device]": "to GPU",
    "[CUDA memcpy Device-to-Host]": "to host",
    "[CUDA memcpy Device-to-Device]": "on GPU",
    "[CUDA memcpy Peer-to-Peer]": "between GPUs",
}
_NO_PHASE = PHASES.index(OTHER)


@dataclass(frozen=True, slots=True)
class Cells(Columns):
    """Time of a step on a GPU in one state: the rows of a step and a GPU add up to the step's own time.

    `what` is a position in CATEGORIES, in COPIES or in the causes of idle time, by `kind`. The phase of work is
    its own, that of idle time is of the range then open. The last four columns are of idle time, else -1.
    """

    row: Int32s  # position in the table of steps
    gpu: NDArray[np.int32]  # position in the names of GPUs
    kind: Int8s  # position in KINDS
    what: Int8s
    phase: Int8s  # position in PHASES
    ns: Int64s
    path: Int32s  # position in Paths.names: the ranges then open
    after: Int32s  # the call that waited for the GPU before: a position in Trace.calls.names
    function: Int32s  # the Python function then running: a position in Trace.frame_names
    line: Int32s  # where the program then was: a position in Attribution.lines.sources


class Gpus:
    """The GPUs of a report: their names, the one of each piece of work, and the process that uses each.

    Processes number their GPUs themselves, so equal numbers in two processes need not be one GPU. Of a CPU, each
    process has one.
    """

    def __init__(self, trace: Trace) -> None:
        work = trace.work
        on_cpu = trace.provenance.unit_of_work == "CPU"
        device = np.zeros(len(work), np.int32) if on_cpu else work.device_id
        (owners, devices), gpu = grouped_rows(work.process, device)
        self.of_work: Int32s = gpu.astype(np.int32)
        self.processes: list[int] = owners.tolist()
        several = {number for number in devices.tolist() if (devices == number).sum() > 1}
        self.names: list[str] = []
        for owner, number in zip(self.processes, devices.tolist(), strict=True):
            name = "CPU" if on_cpu else f"GPU {number}"
            process = trace.processes[owner].process_id
            self.names.append(f"{name} of {process}" if number in several else name)


def cells_of(
    attribution: Attribution, paths: Paths, steps: Steps, gpus: Gpus, *, at_once: int = GAPS_AT_ONCE
) -> Cells:
    """Return the cells of all steps, on every GPU that works in them; this many gaps are examined at a time."""
    if attribution.trace.provenance.unit_of_work == "CPU":
        parts = []
        for loop in steps.loops:
            cpu = gpus.processes.index(loop.process)
            parts.append(_of_cpu(attribution, paths, steps.table, loop, cpu))
        return Cells.joined(parts)
    work = attribution.trace.work
    states = _States(attribution)
    timelines: list[_Timeline] = []
    gaps: list[Gaps] = []
    for gpu, process in enumerate(gpus.processes):
        rows = np.flatnonzero(gpus.of_work == gpu)
        rows = sorted_by(rows, work.start_ns)
        of_process = [loop for loop in steps.loops if loop.process == process]
        of_gpu = [_Timeline(work, rows, gpu, loop.pieces.in_steps()) for loop in of_process]
        of_gpu = [timeline for timeline in of_gpu if timeline.rows.size]
        if of_gpu:
            since_ns = min(int(timeline.pieces.start_ns[0]) for timeline in of_gpu)
            pieces = Pieces.joined([timeline.pieces for timeline in of_gpu])
            in_steps = union(pieces.start_ns, pieces.end_ns)
            all_gaps = gaps_between(work, rows, gpu, since_ns)
            gaps.append(within(all_gaps, in_steps))
            timelines += of_gpu
    parts = [_nothing()]
    if not timelines:
        return parts[0]
    for timeline in timelines:
        parts += timeline.cells(states)
    for idle in pieces_of(attribution, Gaps.joined(gaps), gpus.of_work, at_once=at_once):
        parts += [_idle_cells(attribution, paths, idle, timeline) for timeline in timelines]
    return Cells.joined(parts)


class _States:
    """The state of a GPU in each piece of work."""

    def __init__(self, attribution: Attribution) -> None:
        trace = attribution.trace
        work = trace.work
        ids = distinct(work.name_id)
        names = [trace.names[number] for number in ids.tolist()]
        category_of_name, copy_of_name = np.zeros((2, len(trace.names)), np.int8)
        category_of_name[ids] = [CATEGORIES.index(name) for name in categorize(names, trace.categories)]
        copy_of_name[ids] = [COPIES.index(copy_called(name)) for name in names]
        category = category_of_name[work.name_id]
        is_kernel = work.kind == KERNEL
        is_graph = work.kind == GRAPH
        communicates = is_kernel & (category == CATEGORIES.index("communication"))
        self.kind = np.full(len(work), COPY, np.int8)
        self.kind[is_kernel | is_graph] = COMPUTE
        self.kind[communicates] = COMMUNICATION
        self.what = np.where(is_kernel, category, copy_of_name[work.name_id])
        self.what[is_graph] = CATEGORIES.index("graph")
        self.phase = attribution.phase


def copy_called(name: str) -> str:
    """Name a copy or memset, one of COPIES, by its name in the trace."""
    if "memset" in name:
        return "memset"
    return _COPY_OF_NAME.get(name, COPIES[-1])


class _Timeline:
    """The time of a loop on one GPU: its pieces, and the work of the GPU that overlaps them, by start."""

    def __init__(self, work: Work, rows: Int64s, gpu: int, pieces: Pieces) -> None:
        self.work = work
        self.gpu = gpu
        self.pieces = pieces
        self.last_end_ns = int(work.end_ns[rows].max())
        begin_ns = pieces.start_ns[:1].min(initial=NEVER)
        end_ns = pieces.end_ns[-1:].max(initial=0)
        overlaps = (work.start_ns[rows] < end_ns) & (work.end_ns[rows] > begin_ns)
        self.rows = rows[overlaps]

    def cells(self, states: _States) -> Iterator[Cells]:
        """Yield the cells of each kind of work, and the time after the GPU's last."""
        higher = Intervals(*np.empty((2, 0), np.int64))
        for kind in (COMPUTE, COMMUNICATION, COPY):
            rows = self.rows[states.kind[self.rows] == kind]
            rows, start_ns, end_ns = _first_owned(self.work, rows)
            owner, piece, start_ns, end_ns = split(start_ns, end_ns, self.pieces)
            of_work = rows[owner]
            yield _added_up(
                row=self.pieces.row[piece],
                gpu=self.gpu,
                kind=np.full(len(of_work), kind, np.int8),
                detail=states.what[of_work],
                phase=states.phase[of_work],
                ns=end_ns - start_ns - higher.covered(start_ns, end_ns),
            )
            of_kind = union(self.work.start_ns[rows], self.work.end_ns[rows])
            higher = higher.joined_with(of_kind)
        after_last = Intervals(np.array([self.last_end_ns]), np.array([NEVER]))
        ns = after_last.covered(self.pieces.start_ns, self.pieces.end_ns)
        state = _constant(len(ns), IDLE, NO_MORE_WORK)
        yield _added_up(self.pieces.row, self.gpu, *state, ns)


def _first_owned(work: Work, rows: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return disjoint intervals of some work, by start: of what overlaps, what began first has the time."""
    start_ns = work.start_ns[rows]
    end_ns = work.end_ns[rows]
    reach_ns = np.maximum.accumulate(end_ns)
    begin_ns = np.concatenate([start_ns[:1], np.maximum(start_ns[1:], reach_ns[:-1])])
    owns = end_ns > begin_ns
    return rows[owns], begin_ns[owns], end_ns[owns]


def split(start_ns: Int64s, end_ns: Int64s, pieces: Pieces) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Cut intervals at the bounds of disjoint pieces: which interval and which piece, start and end (parts,)."""
    first = np.searchsorted(pieces.end_ns, start_ns, "right")
    behind = np.searchsorted(pieces.start_ns, end_ns, "left")
    interval, piece = positions_between(first, np.maximum(behind, first))
    part_start_ns = np.maximum(start_ns[interval], pieces.start_ns[piece])
    part_end_ns = np.minimum(end_ns[interval], pieces.end_ns[piece])
    return interval, piece, part_start_ns, part_end_ns


def _idle_cells(attribution: Attribution, paths: Paths, idle: Idle, timeline: _Timeline) -> Cells:
    """Return the cells of the pieces of idle time that are of the timeline's GPU."""
    calls = attribution.trace.calls
    idle = idle.take(idle.gpu == timeline.gpu)
    owner, piece, start_ns, end_ns = split(idle.start_ns, idle.end_ns, timeline.pieces)
    idle = idle.take(owner)
    after = idle.exposed_by.astype(np.int64)
    if calls is not None:
        after = looked_up(calls.of_launch.astype(np.int64), idle.exposed_by, -1)
    phase_of_node = np.append(attribution.node_phase, np.int8(_NO_PHASE))
    return _added_up(
        row=timeline.pieces.row[piece],
        gpu=timeline.gpu,
        kind=np.full(len(idle), IDLE, np.int8),
        detail=idle.cause,
        phase=phase_of_node[idle.node],
        ns=end_ns - start_ns,
        path=paths.names_of_node[idle.node],
        after=after.astype(np.int32),
        function=idle.function,
        line=idle.line,
    )


def _nothing() -> Cells:
    """Return no cells."""
    no_ns = np.empty(0, np.int64)
    state = _constant(0, IDLE, NO_MORE_WORK)
    return _added_up(no_ns, 0, *state, no_ns)


def _constant(count: int, kind: int, detail: int) -> tuple[Int8s, Int8s, Int8s]:
    """Return the kind, the detail and no phase, `count` times."""
    kinds = np.full(count, kind, np.int8)
    details = np.full(count, detail, np.int8)
    phases = np.full(count, _NO_PHASE, np.int8)
    return kinds, details, phases


def _added_up(
    row: Int64s,
    gpu: int,
    kind: Int8s,
    detail: Int8s,
    phase: Int8s,
    ns: Int64s,
    path: Int32s | None = None,
    after: Int32s | None = None,
    function: Int32s | None = None,
    line: Int32s | None = None,
) -> Cells:
    """Return cells with the time of each step, state and place added up; without places, these are unknown."""
    nowhere = np.full(len(row), -1, np.int32)
    columns = (nowhere if column is None else column for column in (path, after, function, line))
    places, place = grouped_rows(*columns)
    states, state = grouped_rows(kind, detail, phase)
    (row, state, place), cell = grouped_rows(row, state, place)
    total_ns = summed(cell, ns, len(row))
    gpus = np.full(len(row), gpu, np.int32)
    kinds, details, phases = (column[state] for column in states)
    of_places = (column[place] for column in places)
    cells = Cells(row.astype(np.int32), gpus, kinds, details, phases, total_ns, *of_places)
    return cells.take(total_ns > 0)


def _of_cpu(attribution: Attribution, paths: Paths, table: StepTable, loop: Loop, gpu: int) -> Cells:
    """Return the cells of the steps of a CPU: of operators, and of the program's thread outside of them.

    Operators have times of their own, without those that they call, but these are no intervals. So the time in
    which some operator runs is exact, and is divided among categories and phases in proportion to their own times.
    """
    trace = attribution.trace
    pieces = loop.pieces.in_steps()
    step_ranges = table.range[loop.rows]
    thread = program_thread(attribution, loop.process, step_ranges[step_ranges >= 0])
    outside = outside_operators(attribution, paths, thread, Intervals(pieces.start_ns, pieces.end_ns))
    phase_of_node = np.append(attribution.node_phase, np.int8(_NO_PHASE))
    idle = _added_up(
        row=pieces.row[outside.window],
        gpu=gpu,
        kind=np.full(len(outside), IDLE, np.int8),
        detail=outside.cause,
        phase=phase_of_node[outside.node],
        ns=outside.end_ns - outside.start_ns,
        path=paths.names_of_node[outside.node],
        function=outside.function,
        line=outside.line,
    )

    states = _States(attribution)
    work = trace.work
    operators_ns = table.own_ns - summed(idle.row, idle.ns, len(table))
    owner, piece, start_ns, end_ns = split(work.start_ns, work.end_ns, pieces)
    of_loop = work.process[owner] == loop.process
    owner = owner[of_loop]
    row = pieces.row[piece[of_loop]]
    operators = _added_up(
        row=row,
        gpu=gpu,
        kind=np.full(len(row), COMPUTE, np.int8),
        detail=states.what[owner],
        phase=states.phase[owner],
        ns=(end_ns - start_ns)[of_loop],
    )
    scaled = _in_proportion(operators, operators_ns, loop.rows, gpu)
    return Cells.joined([scaled, idle])


def _in_proportion(cells: Cells, total_ns: Int64s, rows: Int64s, gpu: int) -> Cells:
    """Return the cells of each step scaled to its total, exactly; a step without any gets one of no category."""
    parts = []
    for row in rows.tolist():
        of_row = cells.take(cells.row == row)
        if not len(of_row):
            state = _constant(1, COMPUTE, CATEGORIES.index(OTHER))
            of_other = _added_up(np.array([row], np.int64), gpu, *state, total_ns[row : row + 1])
            parts.append(of_other)
            continue
        until = np.cumsum(of_row.ns).tolist()
        row_ns = int(total_ns[row])
        scaled = [row_ns * part // until[-1] for part in until]
        edges = np.array([0, *scaled], np.int64)
        parts.append(replace(of_row, ns=edges[1:] - edges[:-1]))
    joined = Cells.joined(parts)
    return joined.take(joined.ns > 0)
