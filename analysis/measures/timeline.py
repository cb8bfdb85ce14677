"""What was recorded of a few steps, in the columns that a replay is computed of.

A call's time is its *own* or waiting; a piece of work starts a *lag* after its launch call, and a *gap* after
what it waits for, at the earliest. Where the host waits, or streams wait for each other, is the same in all
replays: a `Program` of operations and of *runs*, each the work that one stream gets between two of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..attribution.causes import Attribution
from ..support.small_numbers import covered, medians, rows_of_each
from ..trace import Bools, Int8s, Int32s, Int64s, Trace, marked
from ..vocabulary.calls import ALLOCATION
from .gpu_time import Floats, GpuTime
from .host_line import RECORDS, STREAM_WAITS, SYNCHRONIZES, Window

#: A call's own time, or a pause between calls, above which it is the program's own and recording did not make
#: it, ns.
PAUSE_NS = 1_000_000
#: Work whose stream was free when it was launched, or so soon after, started as its call let it, ns; work that
#: could start only after such a lag was queued.
QUEUED_NS = 4_000
#: A launch call waited for room in the queue if this much work was pending, and it took this multiple of its usual
#: time.
FULL_QUEUE, FREE_QUEUE, BLOCKED_TIMES = 900, 500, 5
#: How much work a queue holds that was never full; and after how many launches room in it is looked for.
USUAL_DEPTH, LOOK_EVERY = 1_000, 64
#: How long after room was made a launch call returns, ns.
ROOM_NS = 2_000
#: Larger copies from pageable memory wait for the work before them on their stream.
STAGED_BYTES = 65_536
#: What the report shows no example of: a wait for nothing, a lag, and a gap, ns.
QUICK_WAIT_NS, USUAL_LAG_NS, USUAL_GAP_NS = 6_000.0, 8_000.0, 1_000.0

#: What an operation is: a run begins behind others; a call waits for runs, and returns so long after their end;
#: a call of a copy waits for runs before it begins; a call waits for room in the queue; a step begins or ends; the
#: host waits for runs when it has made the call before.
RUN, WAIT, STAGED, ROOM, BEGIN, END, EMPTY = range(7)


class Operation(NamedTuple):
    """One operation, at a call of the host; `runs` are those that it waits for."""

    kind: int
    call: int
    after_ns: float = 0
    runs: tuple[int, ...] = ()


class Program(NamedTuple):
    """What waits for what: operations in their order, and the runs.

    `work` are positions in the window's work, run by run; `first` is where in it each run begins. The first
    runs are those of work before the window, one a stream, which ended at `earlier_ns`; they are not in `work`.
    """

    operations: tuple[Operation, ...]
    work: Int64s
    first: Int64s
    earlier_ns: Int64s


class Copied(NamedTuple):
    """The copies among the window's work: a value for each piece of work, 0 or False for other work."""

    bytes: Int64s
    from_pageable: Bools
    to_cpu: Bools


@dataclass(frozen=True, slots=True)
class Timeline(GpuTime):
    """The columns of a replay. A change is another timeline of the same calls and the same work.

    Of a call: the host's time before it, its own time, and whether it still waits. Of a piece of work, besides
    what `GpuTime` has: lag and gap.
    """

    window: Window
    program: Program
    copied: Copied
    before_ns: Floats
    own_ns: Floats
    waits: Bools
    lag_ns: Floats
    gap_ns: Floats
    scaled: Bools  # per call: recording made its own time longer
    phase: Int8s  # per call: that of the next work launched, or of the last where it waits; a position in PHASES

    @property
    def steps(self) -> int:
        """How many steps are replayed."""
        return len(self.window.begin)

    @property
    def step_of_call(self) -> Int64s:
        """The step of each call, from 0; calls between two steps belong to the later one."""
        step = np.searchsorted(self.window.end, np.arange(len(self.before_ns)), "right")
        return np.minimum(step, self.steps - 1)

    @property
    def step_of_work(self) -> Int64s:
        """The step of each piece of work."""
        return self.step_of_call[self.window.work.call]

    def pausing(self, calls: Bools | Int64s, most_ns: float) -> Timeline:
        """Return the timeline whose host takes so long before some calls at most, ns."""
        before_ns = self.before_ns.copy()
        before_ns[calls] = np.minimum(before_ns[calls], most_ns)
        return replace(self, before_ns=before_ns)

    def returning(self, calls: Bools | Int64s) -> Timeline:
        """Return the timeline whose host waits for nothing in some calls, which take no time."""
        own_ns = self.own_ns.copy()
        own_ns[calls] = 0.0
        waits = self.waits.copy()
        waits[calls] = False
        return replace(self, own_ns=own_ns, waits=waits)

    def without(self, work: Bools) -> Timeline:
        """Return the timeline without some work, and without the calls that launch it."""
        return self.without_calls(marked(self.window.work.call[work], len(self.before_ns)), work)

    def without_part(self, work: Bools) -> Timeline:
        """Return the timeline without some work, the calls that launch it, and those between two of these."""
        places = np.flatnonzero(work)
        launches = self.window.work.call
        calls = marked(launches[places], len(self.before_ns))
        is_next = (np.diff(places) == 1) & (np.diff(self.step_of_work[places]) == 0)
        begin, end = launches[places[:-1][is_next]], launches[places[1:][is_next]]
        return self.without_calls(calls | covered(begin, end, len(calls)), work)

    def without_calls(self, calls: Bools, work: Bools) -> Timeline:
        """Return the timeline without some calls, the host's time for them, and some work."""
        return replace(
            self,
            before_ns=np.where(calls & (self.before_ns <= PAUSE_NS), 0.0, self.before_ns),
            own_ns=np.where(calls, 0.0, self.own_ns),
            waits=self.waits & ~calls,
            kept=self.kept & ~work,
        )


def recorded_timeline(attribution: Attribution, window: Window) -> Timeline:
    """Return the steps of a window as they were recorded."""
    return _Recorded(attribution, window).timeline()


def emptied(timeline: Timeline, attribution: Attribution) -> Timeline:
    """Return a timeline whose host waits for all of the GPU's work before each of the `first_calls`."""
    compiling = _Compiling(_Recorded(attribution, timeline.window), first_calls(timeline))
    return replace(timeline, program=compiling.program()[0])


def first_calls(timeline: Timeline) -> Int64s:
    """Return the first call of each step, and of each phase in it."""
    first = np.r_[True, timeline.phase[1:] != timeline.phase[:-1]]
    first[timeline.window.begin] = True
    return np.flatnonzero(first)


class _Recorded:
    def __init__(self, attribution: Attribution, window: Window) -> None:
        self.window = window
        self.host = window.host
        self.work = window.work
        self.trace = attribution.of_all_work.trace
        self.phase = attribution.of_all_work.phase[window.work.row]
        self.lasted_ns = (self.host.end_ns - self.host.start_ns).astype(np.float64)
        self.synchronizes = self.host.kind == SYNCHRONIZES
        both = np.concatenate([self.work.stream_id, window.earlier.stream_id])
        self.stream_ids, stream = np.unique(both, return_inverse=True)
        self.stream = stream[: len(self.work.row)]  # per piece of work, a position in stream_ids
        self.earlier_ns = np.full(len(self.stream_ids), self.host.begin_ns, np.int64)
        np.maximum.at(self.earlier_ns, stream[len(self.work.row) :], window.earlier.end_ns)
        self.copied = _copied(self.trace, self.work.row)

    def timeline(self) -> Timeline:
        program, ready_ns = _Compiling(self).program()
        lag_ns, gap_ns = self._lags(ready_ns)
        own_ns = self.own_ns.copy()
        staged = self.staged
        call = self.work.call[self.staged]
        own_ns[call] = np.maximum(
            self.host.end_ns[call] - np.maximum(self.host.start_ns[call], ready_ns[staged]), 0
        )
        for operation in program.operations:
            if operation.kind == WAIT:
                own_ns[operation.call] = min(own_ns[operation.call], self.quick_ns)
        scaled = ~self.synchronizes & ~self.allocates
        scaled[self.work.call[np.concatenate([self.staged, self.blocking])]] = False
        next_work = np.searchsorted(self.work.call, np.arange(len(own_ns)))
        next_work = np.where(self.synchronizes, np.maximum(next_work - 1, 0), next_work)
        return Timeline(
            window=self.window,
            program=program,
            copied=self.copied,
            before_ns=self.host.before_ns.astype(np.float64),
            own_ns=own_ns,
            waits=np.ones(len(own_ns), np.bool_),
            lag_ns=lag_ns,
            gap_ns=gap_ns,
            duration_ns=(self.work.end_ns - self.work.start_ns).astype(np.float64),
            kept=np.ones(len(lag_ns), np.bool_),
            scaled=scaled,
            phase=self.phase[np.minimum(next_work, len(self.phase) - 1)],
            work_phase=self.phase,
        )

    @property
    def allocates(self) -> Bools:
        """Mark the calls that allocate or free, which take the driver as long without recording."""
        calls = self.trace.calls
        if calls is None:
            return np.zeros(len(self.host.row), np.bool_)
        return np.equal(calls.kind_of_name[calls.of_launch[self.host.row]], ALLOCATION)

    @cached_property
    def pending(self) -> Int64s:
        """How much work was launched before each call and had not ended."""
        launched = np.bincount(self.work.call, minlength=len(self.host.row))
        ended = np.searchsorted(np.sort(self.work.end_ns), self.host.start_ns)
        return np.cumsum(launched) - launched - ended

    @cached_property
    def usual_ns(self) -> Floats:
        """How long calls of each call's name usually take."""
        return _usual(self.host.name, self.lasted_ns, ~self.synchronizes & (self.pending < FREE_QUEUE), np.inf)

    @cached_property
    def blocked(self) -> Bools:
        """Which calls waited for room in the queue."""
        slow = self.lasted_ns > BLOCKED_TIMES * self.usual_ns
        blocked: Bools = ~self.synchronizes & (self.pending >= FULL_QUEUE) & slow
        return blocked

    @property
    def depth(self) -> int:
        """How much work the queue holds."""
        return int(medians(self.pending[self.blocked])) if self.blocked.any() else USUAL_DEPTH

    @property
    def own_ns(self) -> Floats:
        """How long each call took, without waiting for room in the queue."""
        return np.where(self.blocked, np.minimum(self.usual_ns, self.lasted_ns), self.lasted_ns)

    @cached_property
    def quick_ns(self) -> float:
        """How long a call that synchronizes takes where there is nothing to wait for."""
        quick = self.lasted_ns[self.synchronizes & (self.pending <= 0)]
        return float(medians(quick)) if len(quick) else QUICK_WAIT_NS

    @cached_property
    def staged(self) -> Int64s:
        """The copies from pageable memory that wait for the work before them."""
        return np.flatnonzero(self.copied.from_pageable & (self.copied.bytes > STAGED_BYTES))

    @cached_property
    def blocking(self) -> Int64s:
        """The copies to the CPU whose call returned after their end: it waited for them."""
        copies = np.flatnonzero(self.copied.to_cpu)
        return copies[self.host.end_ns[self.work.call[copies]] >= self.work.end_ns[copies]]

    def _lags(self, ready_ns: Int64s) -> tuple[Floats, Floats]:
        """Return each piece of work's lag behind its call, and its gap behind what it waits for, ns."""
        called_ns = self.host.start_ns[self.work.call]
        lag = (self.work.start_ns - called_ns).astype(np.float64)
        gap = np.maximum(self.work.start_ns - ready_ns, 0).astype(np.float64)
        is_free = (ready_ns <= called_ns + QUEUED_NS) & (gap > QUEUED_NS)
        of_all = float(medians(lag[is_free])) if is_free.any() else USUAL_LAG_NS
        usual = _usual(self.host.name[self.work.call], lag, is_free, of_all)
        queued = ready_ns > called_ns + np.maximum(usual, QUEUED_NS)
        usual_gap = float(medians(gap[queued])) if queued.any() else USUAL_GAP_NS
        return np.where(queued, np.minimum(usual, lag), lag), np.where(queued, gap, np.minimum(usual_gap, gap))


class _Compiling:
    """Makes the program: each operation ends the runs of all streams that got work since the one before."""

    def __init__(self, recorded: _Recorded, emptied: Int64s | None = None) -> None:
        self.recorded = recorded
        self.host = recorded.host
        self.work = recorded.work
        self.emptied = (
            self.work.call[:0] if emptied is None else emptied
        )  # calls before which all work is waited for
        self.operations: list[Operation] = []
        self.runs: list[Int64s] = []
        self.end_ns: list[int] = recorded.earlier_ns.tolist()  # of each run, as recorded
        self.last = list(range(len(self.end_ns)))  # each stream's last run
        self.done = 0
        self.until: list[int] = []  # of each operation of a run, the work that was launched by then
        self.released: dict[int, set[int]] = {}  # by stream, the runs that its next run waits for
        self.run_of_event: dict[int, int] = {}
        self.ready_ns = np.zeros(len(self.work.row), np.int64)
        self.number = {int(stream): number for number, stream in enumerate(recorded.stream_ids)}

    def program(self) -> tuple[Program, Int64s]:
        """Return the program, and when what each piece of work waits for had ended, as recorded."""
        for call, order, kind in self._couplings():
            self._flush(int(np.searchsorted(self.work.call, call, "right" if order == AFTER else "left")))
            if kind in (BEGIN, END):
                self.operations.append(Operation(kind, call))
            elif kind == EMPTY:
                self.operations.append(Operation(EMPTY, call, 0, tuple(self.last)))
            elif kind == RUN:
                self._event(call)
            else:
                self._wait(kind, call)
        self._flush(len(self.work.row))
        first = np.cumsum([0, *map(len, self.runs)])[:-1]
        work = np.concatenate(self.runs)
        return Program(tuple(self.operations), work, first, self.recorded.earlier_ns), self.ready_ns

    def _couplings(self) -> list[tuple[int, int, int]]:
        """Return where the host and streams meet: calls, the order of several at one, and kinds of operation."""
        recorded = self.recorded
        call_of_work = self.work.call
        events = np.isin(self.host.kind, (RECORDS, STREAM_WAITS))
        few = call_of_work[::LOOK_EVERY] if len(call_of_work) > recorded.depth else call_of_work[:0]
        calls_of_kind = (
            (END, recorded.window.end),
            (BEGIN, recorded.window.begin),
            (EMPTY, self.emptied),
            (ROOM, few),
            (STAGED, call_of_work[recorded.staged]),
            (WAIT, np.flatnonzero(recorded.synchronizes)),
            (RUN, np.flatnonzero(events)),
        )
        couplings = {(call, AFTER, WAIT) for call in call_of_work[recorded.blocking].tolist()}
        for order, (kind, calls) in enumerate(calls_of_kind):
            couplings |= {(call, order, kind) for call in calls.tolist()}
        return sorted(couplings)

    def _flush(self, until: int) -> None:
        """End the runs of the work that was launched before this one."""
        streams = self.recorded.stream[self.done : until]
        for (stream,), rows in rows_of_each(streams) if until > self.done else ():
            rows = rows + self.done
            behind = (self.last[stream], *self.released.pop(stream, ()))
            released_ns = max(self.end_ns[run] for run in behind)
            ends_ns = np.maximum.accumulate(np.r_[self.end_ns[self.last[stream]], self.work.end_ns[rows]])
            self.ready_ns[rows] = ends_ns[:-1]
            self.ready_ns[rows[0]] = released_ns
            self.operations.append(Operation(RUN, 0, 0, behind))
            self.last[stream] = len(self.end_ns)
            self.end_ns.append(int(ends_ns[-1]))
            self.runs.append(rows)
        self.done = until

    def _event(self, call: int) -> None:
        """Note which run an event is recorded behind, or for which run a stream is to wait."""
        event = int(self.host.event[call])
        stream = self.number.get(int(self.host.stream[call]))
        if self.host.kind[call] == RECORDS and stream is not None:
            self.run_of_event[event] = self.last[stream]
        elif stream is not None and event in self.run_of_event:
            self.released.setdefault(stream, set()).add(self.run_of_event[event])

    def _wait(self, kind: int, call: int) -> None:
        """Add a wait of the host for room in the queue, for a stream, an event or everything."""
        if kind == ROOM:
            work = int(np.searchsorted(self.work.call, call)) - self.recorded.depth
            behind = self._runs_until(work)
            if behind:
                self.operations.append(Operation(ROOM, call, ROOM_NS, behind))
            return
        event = int(self.host.event[call])
        stream = self.number.get(int(self.host.stream[call]))
        if kind == STAGED or self.host.kind[call] != SYNCHRONIZES:  # a copy
            stream = int(self.recorded.stream[np.searchsorted(self.work.call, call)])
        behind = tuple(self.last) if stream is None else (self.last[stream],)
        if stream is None and event in self.run_of_event:
            behind = (self.run_of_event[event],)
        if kind == STAGED:
            self.operations.append(Operation(STAGED, call, 0, behind))
            return
        ended_ns = max(self.end_ns[run] for run in behind)
        waited = ended_ns > self.host.start_ns[call]
        after_ns = max(int(self.host.end_ns[call]) - ended_ns, 0) if waited else self.recorded.quick_ns
        self.operations.append(Operation(WAIT, call, after_ns, behind))

    def _runs_until(self, work: int) -> tuple[int, ...]:
        """Return the last run that begins with this piece of work or an earlier one; none for no such work."""
        begins = [int(rows[0]) for rows in self.runs]
        place = int(np.searchsorted(begins, work, "right")) - 1 if work >= 0 else -1
        return (place + len(self.number),) if place >= 0 else ()


#: Comes after all others of the same call: the copy itself has been launched.
AFTER = 7


def _usual(name: Int32s, values_ns: Floats, counted: Bools, otherwise: float) -> Floats:
    """Return for each row the median of the counted values of its name, or else a value for what has none."""
    usual = np.full(len(values_ns), otherwise)
    for (_,), rows in rows_of_each(name):
        some = values_ns[rows[counted[rows]]]
        usual[rows] = medians(some) if len(some) else otherwise
    return usual


def _copied(trace: Trace, rows: Int64s) -> Copied:
    """Return the copies among some work."""
    size = np.zeros(len(trace.work), np.int64)
    from_pageable = np.zeros(len(trace.work), np.bool_)
    if trace.copies is not None:
        size[trace.copies.work] = trace.copies.bytes
        from_pageable[trace.copies.work] = trace.copies.from_pageable
    from_pageable &= trace.work_named(TO_GPU.__eq__)
    return Copied(size[rows], from_pageable[rows], trace.work_named(TO_CPU.__eq__)[rows])


TO_GPU, TO_CPU = "[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]"
