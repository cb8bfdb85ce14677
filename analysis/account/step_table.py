"""The measured steps as a table: from when to when each step's time runs, and what is taken out of it.

    step 1's work    between    step 2's work          step 3's work, which begins early (prefetch)
    ─────────────┤ ············ ├─────────────────────┤
                 │                          ├─────────┼────────────────┤
                 ├──────── own time of 2 ─────────────┤ own time of 3  │

The own time of a step runs from the end of the work of the step before to the end of its own, without what is
taken out. It has a *window*, from the first start of its work, and the time *between* it and the step before. A
window that begins before the last step ended is cut there, so both add up to the own time.

Where no step is before it, a step begins with its own range, but not before earlier work of its process has ended;
a warm-up step counts as one before it. Steps without work are dropped, and a step behind one begins with its own
range. On a CPU, the steps' ranges take the place of work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.steps import range_of_nodes
from ..support.small_numbers import bounds, ordered, rows_of_each, summed
from ..trace import Bools, Columns, Int8s, Int32s, Int64s
from .intervals import Intervals, union
from .taken_out import (
    BEFORE_ALL,
    BETWEEN,
    EVALUATION,
    LOST,
    RECORDER,
    WARM_UP,
    WINDOW,
    evaluation_and_warm_up,
    recorder_pauses,
)

#: What tells when a step's time begins.
BY_STEP_BEFORE, BY_OWN_RANGE, BY_FIRST_WORK = range(3)


@dataclass(frozen=True, slots=True)
class StepTable(Columns):
    """The steps with work, loop after loop, in the order of time; ns.

    `own_ns` = `window_ns` + `between_ns`; the other times are taken out of it. All add up to the time from
    `before_ns` to `end_ns`.
    """

    number: Int64s  # place among the measured steps of the report
    loop: Int64s
    range: Int64s  # position in the attribution's ranges; -1 where all of the recording stands for a step
    begun_by: Int8s
    before_ns: Int64s
    start_ns: Int64s  # of its window
    end_ns: Int64s
    window_ns: Int64s
    between_ns: Int64s
    lost_ns: Int64s
    evaluation_ns: Int64s
    warm_up_ns: Int64s
    recorder_ns: Int64s

    @property
    def own_ns(self) -> Int64s:
        """How long each step takes."""
        return self.window_ns + self.between_ns

    @property
    def taken_out_ns(self) -> Int64s:
        """What is taken out of each step."""
        return self.lost_ns + self.evaluation_ns + self.warm_up_ns + self.recorder_ns


@dataclass(frozen=True, slots=True)
class Pieces(Columns):
    """The time of a loop from its begin to its last end, in disjoint pieces in order.

    `row` is a position in the table of steps, and `kind` one of `taken_out`'s: from LOST on it is in no step.
    """

    row: Int64s
    kind: Int8s
    start_ns: Int64s
    end_ns: Int64s

    def in_steps(self) -> Pieces:
        """Return the pieces that are part of a step."""
        return self.take(self.kind <= BETWEEN)


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that follow one another in one process."""

    process: int  # position in Trace.processes
    rows: Int64s  # positions in the table of steps
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class Steps:
    """The table, its loops, and how many measured steps have no work."""

    table: StepTable
    loops: tuple[Loop, ...]
    dropped: int


#: A loop counts if its usual step takes at least this share of the main loop's; not ranges on autograd's thread.
LEAST_OF_MAIN = 0.5


def steps_of(attribution: Attribution, steps: Int32s, *, include_warm_up: bool) -> Steps | None:
    """Return the steps that are these ranges, in order of start; None if none of them has work."""
    builder = _Builder(attribution, steps, include_warm_up)
    built = []
    for process, of_process in _loops(attribution, steps):
        worked = builder.worked[of_process]
        if worked.any():
            built.append((process, *builder.loop(process, of_process[worked], of_process[~worked])))
    main = max((table for _, table, _ in built), key=lambda table: int(table.own_ns.sum()), default=None)
    if main is None:
        return None
    tables: list[StepTable] = []
    loops: list[Loop] = []
    for process, table, pieces in built:
        if usual_ns(table.own_ns) >= LEAST_OF_MAIN * usual_ns(main.own_ns):
            first = sum(map(len, tables))
            tables.append(replace(table, loop=np.full(len(table), len(loops), np.int64)))
            loops.append(
                Loop(process, np.arange(first, first + len(table)), replace(pieces, row=pieces.row + first))
            )
    return Steps(StepTable.joined(tables), tuple(loops), int((~builder.worked).sum()))


def usual_ns(own_ns: Int64s) -> int:
    """Return the low median of some steps' own times: one of them, also of an even number."""
    return int(np.sort(own_ns)[(len(own_ns) - 1) // 2])


def all_of_it(attribution: Attribution, *, include_warm_up: bool) -> Steps:
    """Return all that was recorded of each process, without warm-up, as if it were one step."""
    work = attribution.trace.work
    left_out = attribution.left_out(include_warm_up=include_warm_up)[attribution.node]
    counted = ~left_out if not left_out.all() else left_out
    tables: list[StepTable] = []
    loops: list[Loop] = []
    for (process,), rows in rows_of_each(work.process):
        rows = rows[counted[rows]]
        if not len(rows):
            continue
        start_ns = work.start_ns[rows].min(keepdims=True)
        end_ns = work.end_ns[rows].max(keepdims=True)
        if attribution.trace.provenance.unit_of_work == "CPU":
            launches = attribution.trace.launches.take(work.launch[rows])
            start_ns = launches.start_ns.min(keepdims=True)
            end_ns = launches.end_ns.max(keepdims=True)
        periods = _Periods(start_ns, start_ns, end_ns)
        pieces = _pieces(periods, _taken_out(attribution, process, periods, include_warm_up))
        number = np.full(1, len(loops), np.int64)
        unknown = np.full(1, -1, np.int64)
        begun_by = np.full(1, BY_FIRST_WORK, np.int8)
        tables.append(_table(number, number, unknown, begun_by, periods, pieces))
        loops.append(Loop(process, number, replace(pieces, row=pieces.row + len(loops))))
    return Steps(StepTable.joined(tables), tuple(loops), 0)


def _loops(attribution: Attribution, steps: Int32s) -> Iterator[tuple[int, Int64s]]:
    """Yield the process of each loop, and which of the steps are in it.

    The steps of a process are one loop, unless threads have steps at the same time: then each thread has its own.
    """
    ranges = attribution.ranges
    thread = ranges.thread[steps]
    for (process,), rows in rows_of_each(attribution.trace.process_of_thread()[thread]):
        overlap = ranges.start_ns[steps[rows[1:]]] < ranges.end_ns[steps[rows[:-1]]]
        if overlap.any():
            for _, of_thread in rows_of_each(thread[rows]):
                yield process, rows[of_thread]
        else:
            yield process, rows


@dataclass(frozen=True, slots=True)
class _Periods(Columns):
    """When the time of each step of a loop begins, when its window does, and when it ends."""

    before_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s

    def times(self) -> Intervals:
        """Return the time of the whole loop."""
        return Intervals(self.before_ns[:1], self.end_ns[-1:])


class _Builder:
    """The measured steps and when their work ran, from which loops are built."""

    def __init__(self, attribution: Attribution, steps: Int32s, include_warm_up: bool) -> None:
        self.attribution = attribution
        self.steps = steps
        self.include_warm_up = include_warm_up
        work = attribution.trace.work
        ranges = attribution.ranges
        self.on_cpu = attribution.trace.provenance.unit_of_work == "CPU"
        self.step_of_work = range_of_nodes(attribution, steps)[attribution.node]
        self.start_ns, self.end_ns = self._extents(self.step_of_work, len(steps))
        self.worked: Bools = self.end_ns >= self.start_ns
        self.opened_ns = ranges.start_ns[steps]
        if self.on_cpu:
            self.start_ns = self.opened_ns
            self.end_ns = ranges.end_ns[steps]
        self.work = work

    def _extents(self, step_of_work: Int32s, count: int) -> tuple[Int64s, Int64s]:
        """Return the first start and the last end of each step's work; of none, the end is before the start."""
        work = self.attribution.trace.work
        rows = np.flatnonzero(step_of_work >= 0)
        return bounds(step_of_work[rows], work.start_ns[rows], work.end_ns[rows], count)

    def loop(self, process: int, chosen: Int64s, lost: Int64s) -> tuple[StepTable, Pieces]:
        """Return the table and the pieces of a loop, of its steps with work and those without."""
        start_ns = self.start_ns[chosen]
        reach_ns = np.maximum.accumulate(self.end_ns[chosen])
        first_ns, first_by = self._begin(process, int(chosen[0]))
        before_ns = np.concatenate([[first_ns], reach_ns[:-1]])
        periods = _Periods(before_ns, np.clip(start_ns, before_ns, reach_ns), reach_ns)
        taken_out = [(LOST, self._lost(periods, chosen, lost))]
        taken_out += _taken_out(self.attribution, process, periods, self.include_warm_up)
        pieces = _pieces(periods, taken_out)
        begun_by = np.zeros(len(chosen), np.int8)
        begun_by[0] = first_by
        loop = np.zeros(len(chosen), np.int64)
        return _table(chosen, loop, self.steps[chosen].astype(np.int64), begun_by, periods, pieces), pieces

    def _begin(self, process: int, first: int) -> tuple[int, int]:
        """Return when the time of a loop's first step begins, and what tells it."""
        opened_ns = int(self.opened_ns[first])
        start_ns = int(self.start_ns[first])
        if self.on_cpu:
            return start_ns, BY_OWN_RANGE
        warm_up_end_ns = self._end_of_warm_up(process, opened_ns)
        if warm_up_end_ns is not None:
            return min(warm_up_end_ns, start_ns), BY_STEP_BEFORE
        work = self.work
        earlier = (work.process == process) & (self.step_of_work != first) & (work.start_ns < start_ns)
        earlier_end_ns = int(work.end_ns[earlier].max(initial=BEFORE_ALL))
        if opened_ns >= start_ns and earlier_end_ns <= opened_ns:
            return start_ns, BY_FIRST_WORK
        return min(max(opened_ns, earlier_end_ns), start_ns), BY_OWN_RANGE

    def _end_of_warm_up(self, process: int, until_ns: int) -> int | None:
        """Return when the work of a process's warm-up steps had ended that closed before; None without any."""
        ranges = self.attribution.ranges
        steps = self.attribution.steps
        warm_up = steps.range[steps.warm_up & (not self.include_warm_up)]
        process_of = self.attribution.trace.process_of_thread()[ranges.thread[warm_up]]
        warm_up = warm_up[(process_of == process) & (ranges.end_ns[warm_up] <= until_ns)]
        if not len(warm_up):
            return None
        step_of_work = range_of_nodes(self.attribution, warm_up)[self.attribution.node]
        end_ns = int(self.work.end_ns[step_of_work >= 0].max(initial=BEFORE_ALL))
        if end_ns > BEFORE_ALL:
            return end_ns
        return None

    def _lost(self, periods: _Periods, chosen: Int64s, lost: Int64s) -> Intervals:
        """Return the time of steps without work, up to where the range of the next step opens."""
        following = np.searchsorted(self.opened_ns[chosen], self.opened_ns[lost])
        inside = (following > 0) & (following < len(chosen))
        if self.on_cpu:
            inside[:] = False
        before_ns = periods.before_ns[following[inside]]
        next_step = chosen[following[inside]]
        begin_ns = np.maximum(before_ns, self.opened_ns[lost[inside]])
        return union(begin_ns, np.maximum(before_ns, self.opened_ns[next_step]))


def _taken_out(
    attribution: Attribution, process: int, periods: _Periods, include_warm_up: bool
) -> list[tuple[int, Intervals]]:
    """Return the time taken out of a loop, apart from lost steps, by kind."""
    return [
        *evaluation_and_warm_up(attribution, process, periods.times(), include_warm_up=include_warm_up),
        (RECORDER, recorder_pauses(attribution, process)),
    ]


def _pieces(periods: _Periods, taken_out: Sequence[tuple[int, Intervals]]) -> Pieces:
    """Divide the periods of a loop at what is taken out."""
    edges = [periods.before_ns, periods.start_ns, periods.end_ns]
    edges += [side for _, times in taken_out for side in (times.start_ns, times.end_ns)]
    edges_ns = ordered(np.clip(np.concatenate(edges), periods.before_ns[0], periods.end_ns[-1]))
    start_ns = edges_ns[:-1]
    end_ns = edges_ns[1:]
    row = np.searchsorted(periods.end_ns, start_ns, "right")
    kind = np.where(start_ns < periods.start_ns[row], BETWEEN, WINDOW).astype(np.int8)
    for number, times in reversed(taken_out):
        kind[times.covered(start_ns, end_ns) > 0] = number
    return Pieces(row, kind, start_ns, end_ns)


def _table(
    number: Int64s, loop: Int64s, range_: Int64s, begun_by: Int8s, periods: _Periods, pieces: Pieces
) -> StepTable:
    """Return the rows of a loop's steps, with their times by kind of piece."""
    kinds = RECORDER + 1
    cell = pieces.row * kinds + pieces.kind
    times_ns = summed(cell, pieces.end_ns - pieces.start_ns, len(number) * kinds).reshape(-1, kinds)
    return StepTable(
        number,
        loop,
        range_,
        begun_by,
        *(periods.before_ns, periods.start_ns, periods.end_ns),
        window_ns=times_ns[:, WINDOW],
        between_ns=times_ns[:, BETWEEN],
        lost_ns=times_ns[:, LOST],
        evaluation_ns=times_ns[:, EVALUATION],
        warm_up_ns=times_ns[:, WARM_UP],
        recorder_ns=times_ns[:, RECORDER],
    )
