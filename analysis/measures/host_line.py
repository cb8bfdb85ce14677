"""The host as one line of API calls, and the GPU's work, in the steps that are replayed.

A process's calls are read in the order of their starts, whichever thread makes them: autograd's threads work
while the program's own thread waits in backward. Where two threads call at the same time, there is no such
line, and `Refused` says so. Calls inside another, and calls of threads that launch nothing, are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..account import Partition
from ..readers.requirements import words_of
from ..support.small_numbers import counted, distinct, each_row, last_marked
from ..support.units import count_text, share_text
from ..trace import Bools, Int8s, Int32s, Int64s, Trace, marked
from ..vocabulary.calls import plain_name

#: The kinds of calls that the replay tells apart.
OTHER, SYNCHRONIZES, RECORDS, STREAM_WAITS, UNSEEN = range(5)
#: The kind of the first pattern that a call's name matches. Unseen calls are parts of others, or the profiler's.
KINDS: tuple[tuple[int, str], ...] = (
    (SYNCHRONIZES, r"(?:cuda|cu|hip)(?:Stream|Device|Event|Ctx)Synchronize"),
    (RECORDS, r"(?:cuda|cu|hip)EventRecord\w*"),
    (STREAM_WAITS, r"(?:cuda|cu|hip)StreamWaitEvent"),
    (UNSEEN, r"cuKernelGet\w+|\w*Profiler\w*|(?:cuda|cu|hip)(?:Event|Stream)Query|cuGetProcAddress\w*"),
)
#: Calls of two threads may overlap in this share of all calls.
MOST_OVERLAPPING = 0.01
#: The calls to replay, in whole steps but at least in one; and the most that one step may have.
CALLS, MOST_CALLS = 20_000, 100_000
#: A window is chosen among those that have this share of the steps of the longest.
LONG_ENOUGH = 0.75

#: Numbers of events that no report has.
FIRST_LIKELY_EVENT = 1 << 40

NO_TIME = "the measured steps have no work that takes time"
NO_STEPS = "the report has no measured steps"
SAY_STEPS = "push a range named step around each of them, or say with --step which ranges are the steps"
NO_LAUNCHES = "the report does not say when work was launched"
NO_NAMES = "the report does not say which API calls the program made"
NO_EVENTS = "the report has {} streams, and no CUDA events that say which waits for which"
NO_WAITS = "the report has {} streams, and does not say for which of them calls waited"
THREADS = "several threads launch at once: {} of the calls overlap another thread's"
TOO_LONG = "a step makes {} calls"


_OF_WORK = ("start_ns", "end_ns", "stream_id")


class Refused(Exception):  # noqa: N818 - not an error of the user's: the answer shows this reason
    """Why steps cannot be replayed, in a sentence without its end, and what to do about it, or ""."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Host:
    """The calls of a process in the order of their starts, none inside another; a column each.

    `name` and `kind` say what a call is, `event` and `stream` what it records or waits for, -1 where unknown. The
    time before the first call is counted from `begin_ns` on: of a single step its begin, else the call itself.
    """

    row: Int64s  # position in Launches
    start_ns: Int64s
    end_ns: Int64s
    name: Int32s
    kind: Int8s
    stream: Int64s
    event: Int64s
    begin_ns: int

    @cached_property
    def since_ns(self) -> Int64s:
        """When the call before each call had ended."""
        since_ns: Int64s = np.r_[np.int64(self.begin_ns), self.end_ns[:-1]]
        return since_ns

    @property
    def before_ns(self) -> Int64s:
        """The host's own time between the call before and this one."""
        before_ns: Int64s = np.maximum(self.start_ns - self.since_ns, 0)
        return before_ns


@dataclass(frozen=True, slots=True)
class GpuWork:
    """The work that calls of a `Host` launched, by call and then by start; a column each."""

    row: Int64s  # position in the trace's Work
    call: Int64s  # position in the Host
    start_ns: Int64s
    end_ns: Int64s
    stream_id: Int64s


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that are replayed: consecutive measured ones of one process, and its work on one GPU.

    `begin` and `end` are positions in the host's calls: a step's first, and that behind its last. `counts` says
    which of these steps count, `steps_ns` are the own times of all that count.
    """

    host: Host
    work: GpuWork
    begin: Int64s
    end: Int64s
    ends_ns: Int64s  # when the work of each of these steps had ended
    counts: Bools
    steps_ns: Int64s
    earlier: GpuWork  # of the process and the GPU, launched before; its `call` has no meaning


def window_of(partition: Partition) -> Window:
    """Return the steps to replay: as many as `CALLS` allow, of those whose time is nearest to a step's.

    Raises Refused where the report lacks what a replay needs.
    """
    trace = partition.attribution.trace
    _require_calls(partition)
    table = partition.table
    loop = partition.steps.loops[partition.main_loop]
    rows, launched_ns = _launched(trace, loop.process)
    begin, end = _bounds(partition, loop.rows, launched_ns)
    of_loop = loop.rows[end > begin]
    if not len(of_loop):
        raise Refused(NO_TIME)
    is_of_process = trace.process_of_thread()[trace.launches.thread] == loop.process
    calls = np.flatnonzero(is_of_process)
    begins_ns = trace.launches.start_ns[calls]
    first, last = _nearest(partition, of_loop, np.sort(begins_ns))
    of_window = of_loop[first : last + 1]
    ends_ns = _ends(partition, of_window, rows, launched_ns)
    ranges = partition.attribution.ranges
    from_ns = ranges.start_ns[table.range[of_window[0]]]
    until_ns = ranges.end_ns[table.range[of_window[-1]]]
    first_row, behind_row = np.searchsorted(launched_ns, (from_ns, until_ns + 1)).tolist()
    inside = rows[first_row:behind_row]
    host = _host(trace, calls[(begins_ns >= from_ns) & (begins_ns <= until_ns)], inside)
    work = _work(trace, inside, host)
    _require_streams(trace, work, host)
    if not trace.has_events:
        host = _with_likely_events(trace, host, work)
    that_count = partition.choices[partition.main_loop].counted
    steps_ns = table.own_ns[that_count]
    if last == first:
        host = replace(host, begin_ns=int(from_ns))
    begins_at_ns = ends_ns[0] if last > first else host.begin_ns
    if not steps_ns.any() or not len(work.row) or ends_ns[-1] <= begins_at_ns:
        raise Refused(NO_TIME)
    first_call, behind = _bounds(partition, of_window, host.start_ns)
    before = rows[max(first_row - CALLS, 0) : first_row]
    earlier = GpuWork(before, before, *(getattr(trace.work, name)[before] for name in _OF_WORK))
    counts = np.isin(of_window, that_count)
    return Window(host, work, first_call, behind, ends_ns, counts, steps_ns, earlier)


def _require_calls(partition: Partition) -> None:
    """Raise Refused where a report lacks calls by name, when they launched work, or steps."""
    trace = partition.attribution.trace
    record = words_of(trace.provenance).record
    if not trace.launch_times_known:
        raise Refused(NO_LAUNCHES, record)
    if trace.calls is None or not any(trace.calls.names):
        raise Refused(NO_NAMES, record)
    if not partition.has_steps:
        raise _without_steps(partition)


def _launched(trace: Trace, process: int) -> tuple[Int64s, Int64s]:
    """Return a process's work on the GPU that it uses most, by launch, and when it was launched."""
    rows = np.flatnonzero((trace.work.launch >= 0) & (trace.work.process == process))
    if not len(rows):
        raise Refused(NO_LAUNCHES, words_of(trace.provenance).record)
    on_gpu = trace.work.device_id[rows]
    gpus, counts = counted(on_gpu)
    rows = rows[on_gpu == gpus[counts.argmax()]]
    launched_ns = trace.launches.start_ns[trace.work.launch[rows]]
    order = np.argsort(launched_ns, kind="stable")
    return rows[order], launched_ns[order]


def _bounds(partition: Partition, steps: Int64s, times_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return how many of some times in order are before the begin and the end of each step, a row of the table."""
    ranges = partition.attribution.ranges
    rows = partition.table.range[steps]
    return np.searchsorted(times_ns, ranges.start_ns[rows]), np.searchsorted(times_ns, ranges.end_ns[rows])


def _without_steps(partition: Partition) -> Refused:
    """Return why no step can be replayed: what was tried, or what is wrong with those that ranges name."""
    if tried := partition.attribution.steps.evidence.refused:
        return Refused(f"{NO_STEPS}: {tried}", SAY_STEPS)
    if partition.refusal:  # which says what to do
        return Refused(partition.refusal.rstrip("."))
    return Refused(NO_STEPS, SAY_STEPS)


def _ends(partition: Partition, steps: Int64s, rows: Int64s, launched_ns: Int64s) -> Int64s:
    """Return when the work launched in each step had ended on the GPU; `rows` are in the order of launches."""
    ended_ns = partition.attribution.trace.work.end_ns[rows]
    begin, end = _bounds(partition, steps, launched_ns)
    starts_ns = partition.attribution.ranges.start_ns[partition.table.range[steps]]
    ends = []
    for start_ns, first, behind in each_row(starts_ns, begin, end):
        ends.append(int(ended_ns[first:behind].max(initial=start_ns)))
    return np.array(ends, np.int64)


def _nearest(partition: Partition, rows: Int64s, calls_ns: Int64s) -> tuple[int, int]:
    """Return the first and the last step of the window: consecutive, and nearest to a step's time on average.

    `rows` are the steps of a loop. Nothing is taken out between two steps of a window.
    """
    table = partition.table
    own_ns = table.own_ns[rows]
    usual_ns = float(table.own_ns[partition.choices[partition.main_loop].counted].mean())
    begin, end = _bounds(partition, rows, calls_ns)
    apart = np.cumsum(np.r_[False, table.taken_out_ns[rows[1:]] > 0])
    windows = []
    for first in range(len(rows)):
        same = int(np.searchsorted(apart, apart[first], "right")) - 1
        fits = int(np.searchsorted(end, begin[first] + CALLS, "right")) - 1
        last = min(max(fits, first + 1), same)
        if (calls := int(end[last] - begin[first])) > MOST_CALLS:
            raise Refused(TOO_LONG.format(count_text(calls)))
        mean_ns = own_ns[first + 1 : last + 1].mean() if last > first else own_ns[first]
        windows.append((first, last, abs(mean_ns - usual_ns)))
    longest = max(last - first for first, last, _ in windows)
    long = [window for window in windows if window[1] - window[0] >= longest * LONG_ENOUGH]
    first, last, _ = min(long, key=lambda window: window[2])
    return first, last


def _host(trace: Trace, inside: Int64s, work: Int64s) -> Host:
    """Return the line of these calls; raises Refused where threads call at once."""
    launches = trace.launches
    name_of, kind_of = plain_calls(trace)
    works = marked(launches.thread[trace.work.launch[work]], len(trace.threads))
    inside = inside[works[launches.thread[inside]] & (kind_of[name_of[inside]] != UNSEEN)]
    order = np.lexsort((-launches.end_ns[inside], launches.start_ns[inside]))
    inside = inside[order]
    start_ns = launches.start_ns[inside]
    end_ns = launches.end_ns[inside]
    reach = np.r_[0, np.maximum.accumulate(end_ns)[:-1]] if len(inside) else end_ns
    thread = launches.thread[inside]
    nested = end_ns <= reach
    before = np.r_[-1, thread[:-1]] if len(thread) else thread
    overlapping = int(((start_ns < reach) & (thread != before)).sum())
    if overlapping > MOST_OVERLAPPING * len(inside):
        raise Refused(THREADS.format(share_text(overlapping / len(inside))))
    inside = inside[~nested]
    name = name_of[inside]
    stream, event = (np.full(len(inside), -1, np.int64) for _ in range(2))
    if trace.waits is not None:
        row, has = _places_of(trace.waits.call.astype(np.int64), inside)
        stream[has], event[has] = trace.waits.stream[row[has]], trace.waits.event[row[has]]
    times = launches.start_ns[inside], launches.end_ns[inside]
    begin_ns = int(launches.start_ns[inside[0]]) if len(inside) else 0
    return Host(inside, *times, name, kind_of[name], stream, event, begin_ns)


def plain_calls(trace: Trace) -> tuple[Int32s, Int8s]:
    """Return a number for the name of each launch, the same for all versions of a call, and each number's kind."""
    calls = trace.calls
    assert calls is not None
    plain = [plain_name(calls.names, position) for position in range(len(calls.names))]
    number = {name: place for place, name in enumerate(dict.fromkeys(plain))}
    number_of = np.array([number[name] for name in plain], np.int32)
    return number_of[calls.of_launch], np.array([kind_of(name) for name in number], np.int8)


def kind_of(call: str) -> int:
    """Return the kind of a call, by its name without a version."""
    return next((kind for kind, pattern in KINDS if re.fullmatch(pattern, call)), OTHER)


def _work(trace: Trace, rows: Int64s, host: Host) -> GpuWork:
    """Return the work that these calls launched."""
    call, has = _places_of(host.row, trace.work.launch[rows].astype(np.int64))
    rows = rows[has]
    call = call[has]
    order = np.lexsort((trace.work.start_ns[rows], call))
    rows = rows[order]
    work = trace.work
    return GpuWork(rows, call[order], *(getattr(work, name)[rows] for name in _OF_WORK))


def _places_of(values: Int64s, wanted: Int64s) -> tuple[Int64s, Bools]:
    """Return where each wanted value is among distinct values, and whether it is there."""
    order = np.argsort(values, kind="stable")
    if not len(order):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    place = order[np.minimum(np.searchsorted(values, wanted, sorter=order), len(order) - 1)]
    return place, values[place] == wanted


def _require_streams(trace: Trace, work: GpuWork, host: Host) -> None:
    """Raise Refused where work has several streams, and the report does not say which waits for which."""
    streams = len(distinct(work.stream_id))
    remedy = _how_to_record_waits(trace)
    if streams > 1 and trace.waits is None:
        raise Refused(NO_WAITS.format(streams), remedy)
    if (
        streams > 1
        and not trace.has_events
        and (host.kind == STREAM_WAITS).any()
        and not (host.kind == RECORDS).any()
    ):
        raise Refused(NO_EVENTS.format(streams), remedy)


def _with_likely_events(trace: Trace, host: Host, work: GpuWork) -> Host:
    """Return the host's line with the events that streams wait for, where a report does not say who recorded them.

    With CUDA 12.9 and newer, Kineto knows which stream waits, but not for which (pytorch/pytorch#195068). PyTorch
    records an event right behind the work that it is for, and lets a stream wait for it from the same thread: so
    it is that of the last record before, on the stream of the last launch before that. A replay of the unchanged
    steps that then misses them is refused.
    """
    thread = trace.launches.thread[host.row]
    stream = host.stream.copy()
    event = host.event.copy()
    launched = np.full(len(host.row), -1, np.int64)
    launched[work.call] = work.stream_id
    streams = distinct(work.stream_id).tolist()
    for number in distinct(thread).tolist():
        calls = np.flatnonzero(thread == number)
        last_launch = last_marked(launched[calls] >= 0)
        last_record = last_marked(host.kind[calls] == RECORDS)
        for place in np.flatnonzero((host.kind[calls] == STREAM_WAITS) & (last_record >= 0)).tolist():
            record = int(last_record[place])
            waiting = int(stream[calls[place]])
            behind = int(launched[calls[last_launch[record]]]) if last_launch[record] >= 0 else waiting
            if behind == waiting:
                behind = next((other for other in streams if other != waiting), waiting)
            stream[calls[record]] = behind
            event[calls[record]] = event[calls[place]] = FIRST_LIKELY_EVENT + int(calls[record])
    return replace(host, stream=stream, event=event)


def _how_to_record_waits(trace: Trace) -> str:
    """Return how to record which streams wait for which; empty where nothing does, as on AMD's GPUs."""
    names = trace.calls.names if trace.calls else ()
    is_hip = any(name.startswith("hip") for name in names)
    return "" if is_hip else words_of(trace.provenance).waits
