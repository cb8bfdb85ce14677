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
from ..support.small_numbers import NEVER, distinct, grouped_rows, summed
from ..trace import GRAPH, KERNEL, Columns, Int8s, Int32s, Int64s, Trace, Work
from ..vocabulary import OTHER, PHASES
from .cpu import outside_operators, program_thread
from .gaps import Gaps, gaps_between, within
from .idle import GAPS_AT_ONCE, NO_MORE_WORK, pieces_of
from .idle import Pieces as Idle
from .intervals import Intervals, numbered, union
from .step_table import Loop, Pieces, Steps, StepTable

#: The states of a GPU, of which the first that applies has a moment.
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
        cpus = [gpus.processes.index(loop.process) for loop in steps.loops]
        of_loops = zip(steps.loops, cpus, strict=True)
        return Cells.joined([_of_cpu(attribution, paths, steps.table, loop, cpu) for loop, cpu in of_loops])
    work, states = attribution.trace.work, _States(attribution)
    timelines: list[_Timeline] = []
    gaps: list[Gaps] = []
    for gpu, process in enumerate(gpus.processes):
        rows = np.flatnonzero(gpus.of_work == gpu)
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        loops = [loop for loop in steps.loops if loop.process == process]
        mine = [
            timeline
            for loop in loops
            if (timeline := _Timeline(work, rows, gpu, loop.pieces.in_steps())).rows.size
        ]
        if mine:
            since_ns = min(int(timeline.pieces.start_ns[0]) for timeline in mine)
            pieces = Pieces.joined([timeline.pieces for timeline in mine])
            gaps.append(within(gaps_between(work, rows, gpu, since_ns), union(pieces.start_ns, pieces.end_ns)))
            timelines += mine
    parts = [_nothing(), *(cells for timeline in timelines for cells in timeline.cells(states))]
    if not timelines:
        return parts[0]
    for idle in pieces_of(attribution, Gaps.joined(gaps), gpus.of_work, at_once=at_once):
        parts += [_idle_cells(attribution, paths, idle, timeline) for timeline in timelines]
    return Cells.joined(parts)


class _States:
    """The state of a GPU in each piece of work."""

    def __init__(self, attribution: Attribution) -> None:
        trace, work = attribution.trace, attribution.trace.work
        ids = distinct(work.name_id)
        names = [trace.names[number] for number in ids.tolist()]
        category, copy = np.zeros((2, len(trace.names)), np.int8)
        category[ids] = [CATEGORIES.index(name) for name in categorize(names, trace.categories)]
        copy[ids] = [COPIES.index(copy_called(name)) for name in names]
        is_kernel, is_graph = work.kind == KERNEL, work.kind == GRAPH
        communicates = is_kernel & (category[work.name_id] == CATEGORIES.index("communication"))
        self.kind: Int8s = np.where(is_kernel | is_graph, np.where(communicates, COMMUNICATION, COMPUTE), COPY)
        self.what = np.where(is_kernel, category[work.name_id], copy[work.name_id])
        self.what[is_graph] = CATEGORIES.index("graph")
        self.phase = attribution.phase


def copy_called(name: str) -> str:
    """Return what a copy or memset is called, one of COPIES, by its name in the trace."""
    return "memset" if "memset" in name else _COPY_OF_NAME.get(name, COPIES[-1])


class _Timeline:
    """The time of a loop on one GPU: its pieces, and the work of the GPU that overlaps them, by start."""

    def __init__(self, work: Work, rows: Int64s, gpu: int, pieces: Pieces) -> None:
        self.work, self.gpu, self.pieces = work, gpu, pieces
        self.last_end_ns = int(work.end_ns[rows].max())
        begins_before_end = work.start_ns[rows] < pieces.end_ns[-1:].max(initial=0)
        self.rows = rows[begins_before_end & (work.end_ns[rows] > pieces.start_ns[:1].min(initial=NEVER))]

    def cells(self, states: _States) -> Iterator[Cells]:
        """Yield the cells of each kind of work, and the time after the GPU's last."""
        higher = Intervals(*np.empty((2, 0), np.int64))
        for kind in (COMPUTE, COMMUNICATION, COPY):
            rows = self.rows[states.kind[self.rows] == kind]
            rows, start_ns, end_ns = _first_owned(self.work, rows)
            owner, piece, start_ns, end_ns = split(start_ns, end_ns, self.pieces)
            of_work = rows[owner]
            ns = end_ns - start_ns - higher.covered(start_ns, end_ns)
            state = np.full(len(ns), kind, np.int8), states.what[of_work], states.phase[of_work]
            yield _added_up(self.pieces.row[piece], self.gpu, *state, ns)
            higher = higher.joined_with(union(self.work.start_ns[rows], self.work.end_ns[rows]))
        last = Intervals(np.array([self.last_end_ns]), np.array([NEVER]))
        ns = last.covered(self.pieces.start_ns, self.pieces.end_ns)
        yield _added_up(self.pieces.row, self.gpu, *_constant(len(ns), IDLE, NO_MORE_WORK), ns)


def _first_owned(work: Work, rows: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return disjoint intervals of some work, by start: of what overlaps, what began first has the time."""
    start_ns, end_ns = work.start_ns[rows], work.end_ns[rows]
    reach_ns = np.maximum.accumulate(end_ns)
    begin_ns = np.concatenate([start_ns[:1], np.maximum(start_ns[1:], reach_ns[:-1])])
    owns = end_ns > begin_ns
    return rows[owns], begin_ns[owns], end_ns[owns]


def split(start_ns: Int64s, end_ns: Int64s, pieces: Pieces) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Cut intervals at the bounds of disjoint pieces: which interval and which piece, start and end (parts,)."""
    first = np.searchsorted(pieces.end_ns, start_ns, "right")
    behind = np.searchsorted(pieces.start_ns, end_ns, "left")
    interval, number = numbered(np.maximum(behind - first, 0))
    piece = first[interval] + number
    start_ns = np.maximum(start_ns[interval], pieces.start_ns[piece])
    return interval, piece, start_ns, np.minimum(end_ns[interval], pieces.end_ns[piece])


def _idle_cells(attribution: Attribution, paths: Paths, idle: Idle, timeline: _Timeline) -> Cells:
    """Return the cells of the pieces of idle time that are of the timeline's GPU."""
    calls, idle = attribution.trace.calls, idle.take(idle.gpu == timeline.gpu)
    owner, piece, start_ns, end_ns = split(idle.start_ns, idle.end_ns, timeline.pieces)
    idle = idle.take(owner)
    after = idle.exposed_by.astype(np.int64)
    if calls is not None:
        after = np.append(calls.of_launch.astype(np.int64), -1)[idle.exposed_by]
    phase = np.append(attribution.node_phase, np.int8(_NO_PHASE))[idle.node]
    state = np.full(len(idle), IDLE, np.int8), idle.cause, phase
    place = paths.names_of_node[idle.node], after.astype(np.int32), idle.function, idle.line
    return _added_up(timeline.pieces.row[piece], timeline.gpu, *state, end_ns - start_ns, *place)


def _nothing() -> Cells:
    """Return no cells."""
    no_ns = np.empty(0, np.int64)
    return _added_up(no_ns, 0, *_constant(0, IDLE, NO_MORE_WORK), no_ns)


def _constant(count: int, kind: int, what: int) -> tuple[Int8s, Int8s, Int8s]:
    """Return the kind, the detail and no phase, `count` times."""
    return np.full(count, kind, np.int8), np.full(count, what, np.int8), np.full(count, _NO_PHASE, np.int8)


def _added_up(
    row: Int64s,
    gpu: int,
    kind: Int8s,
    what: Int8s,
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
    states, state = grouped_rows(kind, what, phase)
    (row, state, place), cell = grouped_rows(row, state, place)
    total_ns = summed(cell, ns, len(row))
    gpus = np.full(len(row), gpu, np.int32)
    kinds, whats, phases = (column[state] for column in states)
    of_places = (column[place] for column in places)
    cells = Cells(row.astype(np.int32), gpus, kinds, whats, phases, total_ns, *of_places)
    return cells.take(total_ns > 0)


def _of_cpu(attribution: Attribution, paths: Paths, table: StepTable, loop: Loop, gpu: int) -> Cells:
    """Return the cells of the steps of a CPU: of operators, and of the program's thread outside of them.

    Operators have times of their own, without those that they call, but these are no intervals. So the time in
    which some operator runs is exact, and is divided among categories and phases in proportion to their own times.
    """
    trace, pieces = attribution.trace, loop.pieces.in_steps()
    step_ranges = table.range[loop.rows]
    thread = program_thread(attribution, loop.process, step_ranges[step_ranges >= 0])
    outside = outside_operators(attribution, paths, thread, Intervals(pieces.start_ns, pieces.end_ns))
    phase = np.append(attribution.node_phase, np.int8(_NO_PHASE))[outside.node]
    state = np.full(len(outside), IDLE, np.int8), outside.cause, phase
    after = np.full(len(outside), -1, np.int32)
    place = paths.names_of_node[outside.node], after, outside.function, outside.line
    idle_ns = outside.end_ns - outside.start_ns
    idle = _added_up(pieces.row[outside.window], gpu, *state, idle_ns, *place)

    states, work = _States(attribution), trace.work
    operators_ns = table.own_ns - summed(idle.row, idle.ns, len(table))
    owner, piece, start_ns, end_ns = split(work.start_ns, work.end_ns, pieces)
    of_loop = work.process[owner] == loop.process
    owner, row = owner[of_loop], pieces.row[piece[of_loop]]
    own = _added_up(
        row,
        gpu,
        np.full(len(row), COMPUTE, np.int8),
        states.what[owner],
        states.phase[owner],
        (end_ns - start_ns)[of_loop],
    )
    return Cells.joined([_in_proportion(own, operators_ns, loop.rows, gpu), idle])


def _in_proportion(cells: Cells, total_ns: Int64s, rows: Int64s, gpu: int) -> Cells:
    """Return the cells of each step scaled to its total, exactly; a step without any gets one of no category."""
    parts = []
    for row in rows.tolist():
        of_row = cells.take(cells.row == row)
        if not len(of_row):
            state = _constant(1, COMPUTE, CATEGORIES.index(OTHER))
            parts.append(_added_up(np.full(1, row, np.int64), gpu, *state, total_ns[row : row + 1]))
            continue
        until = np.cumsum(of_row.ns).tolist()
        scaled = [0, *(int(total_ns[row]) * part // until[-1] for part in until)]
        edges = np.array(scaled, np.int64)
        parts.append(replace(of_row, ns=edges[1:] - edges[:-1]))
    joined = Cells.joined(parts)
    return joined.take(joined.ns > 0)
