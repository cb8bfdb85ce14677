"""Idle time added up: by cause and step, by cause and range, and in one pause; and when only copies ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..attribution.places import Paths
from ..report import IdleReport, IdleRow, Path, Pause
from ..support.small_numbers import bounds, grouped_rows, medians, ordered, rows_of_each, summed
from ..trace import KERNEL, MEMCPY, MEMSET, Bools, Int8s, Int32s, Int64s
from ..vocabulary.calls import plain_name
from .idle import CAUSES, IdleTime
from .overlap import communication
from .spans import Extents, Spans, union

#: From this share of all idle time on, a single gap of a report without steps is reported as a pause.
PAUSE_FROM = 0.5
#: Medians speak for a phase if they add up to this share of its idle time.
TYPICAL_FROM = 0.1


@dataclass(frozen=True, slots=True)
class CauseSum:
    """The idle time of one cause, ns: in the windows, between steps, and its median over the steps (of both).

    `alone_ns` is by how much the step with the most has more than any other, and `alone_step` that step, from 0;
    0 and None with fewer than two steps.
    """

    cause: str
    idle_ns: int
    between_ns: int
    median_ns: int
    alone_ns: int
    alone_step: int | None


@dataclass(frozen=True, slots=True)
class PlaceSum:
    """The idle time of one cause in one range, ns; its gaps, and the largest; and a step's alone, as above.

    `function` is the innermost Python function of a trace with stacks, "" where none is known. `waited_ns` is the
    part that follows a call that waits for the GPU, `waited_for` the call with most of it.
    """

    cause: str
    path: Path
    function: str
    idle_ns: int
    between_ns: int
    gaps: int
    largest_ns: int
    waited_ns: int
    waited_for: str
    alone_ns: int
    alone_step: int | None


def by_cause(idle: IdleTime) -> list[CauseSum]:
    """Add up the causes, the one with the largest median first."""
    inside, between = (_by_step(idle, idle.pieces.cause, len(CAUSES), which) for which in (False, True))
    rows = []
    for number, cause in enumerate(CAUSES):
        alone_ns, alone_step = _alone(idle, inside[number] + between[number])
        rows.append(
            CauseSum(
                cause,
                int(inside[number].sum()),
                int(between[number].sum()),
                _median(idle, inside[number], between=False) + _median(idle, between[number], between=True),
                alone_ns,
                alone_step,
            )
        )
    return sorted((row for row in rows if row.idle_ns or row.between_ns), key=lambda row: -row.median_ns)


def by_place(
    idle: IdleTime, paths: Paths, naming: Callable[[Path], Path], *, by_function: bool = True
) -> list[PlaceSum]:
    """Add up the idle time by cause, range (`naming` joins its paths) and perhaps function, the most first."""
    pieces, calls = idle.pieces, idle.attribution.trace.calls
    number: dict[Path, int] = {}
    named = np.array([number.setdefault(naming(path), len(number)) for path in paths.names], np.int64)
    functions = ("", *idle.attribution.trace.frame_names)
    function_of = pieces.function + 1 if by_function else np.zeros(len(pieces), np.int32)
    (cause, path, function), row = grouped_rows(pieces.cause, named[paths.names_of_node[pieces.node]], function_of)
    (row_of_gap, _), cell = grouped_rows(row, pieces.gap)
    in_gap = summed(cell, pieces.duration_ns, len(row_of_gap))
    _, largest = bounds(row_of_gap, in_gap, in_gap, len(cause))
    gaps = np.bincount(row_of_gap, minlength=len(cause))
    inside, between = (_by_step(idle, row, len(cause), which) for which in (False, True))
    has_waited = pieces.exposed_by >= 0
    waited = summed(row[has_waited], pieces.duration_ns[has_waited], len(cause))
    waited_for = _waited_for(idle, row)
    names = list(number)
    places = [
        PlaceSum(
            CAUSES[cause[place]],
            names[path[place]],
            functions[function[place]],
            int(inside[place].sum()),
            int(between[place].sum()),
            int(gaps[place]),
            int(largest[place]),
            int(waited[place]),
            plain_name(calls.names, waited_for[place]) if calls and place in waited_for else "",
            *_alone(idle, inside[place] + between[place]),
        )
        for place in range(len(cause))
    ]
    return sorted(places, key=lambda place: (-place.idle_ns - place.between_ns, place.path, place.function))


def main_functions(idle: IdleTime) -> dict[str, str]:
    """Return, by cause, the function with at least half of its time; of a cause without one nothing."""
    pieces, names = idle.pieces, idle.attribution.trace.frame_names
    of_cause = summed(pieces.cause.astype(np.int64), pieces.duration_ns, len(CAUSES))
    known = pieces.take(pieces.function >= 0)
    (cause, function), group = grouped_rows(known.cause, known.function)
    time_ns = summed(group, known.duration_ns, len(cause))
    return {
        CAUSES[one]: names[name]
        for one, name, ns in zip(cause.tolist(), function.tolist(), time_ns.tolist(), strict=True)
        if 2 * ns >= of_cause[one]
    }


def _waited_for(idle: IdleTime, row: Int64s) -> dict[int, int]:
    """Return, by row, the name of the call after which most of it passed: a position in the calls' names."""
    calls, pieces = idle.attribution.trace.calls, idle.pieces
    exposed = np.flatnonzero(pieces.exposed_by >= 0)
    if calls is None or not len(exposed):
        return {}
    (rows, names), group = grouped_rows(row[exposed], calls.of_launch[pieces.exposed_by[exposed]])
    time_ns = summed(group, pieces.duration_ns[exposed], len(rows))
    order = np.argsort(time_ns, kind="stable")  # what is written last has the most
    return dict(zip(rows[order].tolist(), names[order].tolist(), strict=True))


def _by_step(idle: IdleTime, row: Int64s | Int8s, rows: int, between: bool) -> Int64s:
    """Add up pieces by row and step, ns: int64 (rows, steps); without steps, all in one column."""
    window = idle.window_of_piece
    chosen = idle.windows.between[window] == between
    steps = max(int(idle.windows.step.max(initial=0)) + 1, 1)
    cell = row[chosen].astype(np.int64) * steps + np.maximum(idle.windows.step[window[chosen]], 0)
    return summed(cell, idle.pieces.duration_ns[chosen], rows * steps).reshape(rows, steps)


def _median(idle: IdleTime, of_step_ns: Int64s, *, between: bool) -> int:
    """Return the median over the steps looked at; of two steps the less, so that one step alone is no median."""
    steps = ordered(idle.windows.step[idle.windows.between == between])
    if not len(steps):
        return 0
    values = np.sort(of_step_ns[np.maximum(steps, 0)])
    return int(values[0]) if len(values) == 2 else int(medians(values))


def _alone(idle: IdleTime, of_step_ns: Int64s) -> tuple[int, int | None]:
    steps = ordered(idle.windows.step[~idle.windows.between])
    if len(steps) < 2:
        return 0, None
    values = of_step_ns[steps]
    second, first = np.argsort(values, kind="stable")[-2:]
    return int(values[first] - values[second]), int(steps[first]) if values[first] > values[second] else None


def main_cause(idle: IdleTime, spans: Spans) -> tuple[str, float]:
    """Return the largest cause of the idle time in spans of one GPU, and its share; "" and 0 without idle time.

    Causes are compared by their medians over the steps, so that idle time of a single step does not count, unless
    it is nearly all.
    """
    pieces = idle.pieces.take(idle.gaps.gpu[idle.pieces.gap] == spans.gpu[0])
    when = union(spans.start_ns, spans.end_ns)
    place = np.searchsorted(when.start_ns, pieces.start_ns, "right") - 1
    inside = (place >= 0) & (when.end_ns[place] >= pieces.end_ns)
    steps, step = np.unique(idle.windows.step[idle.window[pieces.gap[inside]]], return_inverse=True)
    cell = pieces.cause[inside].astype(np.int64) * max(len(steps), 1) + step
    of_step = summed(cell, pieces.duration_ns[inside], len(CAUSES) * max(len(steps), 1)).reshape(len(CAUSES), -1)
    median_ns = of_step.min(axis=1) if len(steps) == 2 else medians(of_step)
    sum_ns = of_step.sum(axis=1)
    is_typical = median_ns.sum() * max(len(steps), 1) >= TYPICAL_FROM * sum_ns.sum()
    total_ns = median_ns if is_typical else sum_ns
    most = int(total_ns.argmax())
    return (CAUSES[most], float(total_ns[most] / total_ns.sum())) if total_ns.any() else ("", 0.0)


@dataclass(frozen=True, slots=True)
class AloneSum:
    """The time in which only copies, or only communication, ran in a range, ns: idle time cannot show it."""

    kind: str
    path: Path
    time_ns: int


ONLY_COPIES, ONLY_COMMUNICATION = "only copies ran", "only communication ran"


def only_ran(extents: Extents, idle: IdleTime, paths: Paths, naming: Callable[[Path], Path]) -> list[AloneSum]:
    """Add up by range when the steps' GPUs ran only copies and memsets, or only communication; the most first."""
    attribution, gpu = idle.attribution, extents.gpu_of_all
    trace, work = attribution.trace, attribution.trace.work
    communicates = (work.kind == KERNEL) & communication(trace)[work.name_id]
    copies = (work.kind == MEMCPY) | (work.kind == MEMSET)
    sums: dict[tuple[str, Path], int] = {}
    for kind, some in ((ONLY_COPIES, copies), (ONLY_COMMUNICATION, communicates)):
        for rows, time_ns in _alone_on_gpus(idle, some, gpu):
            path, group = grouped_rows(paths.names_of_node[attribution.node[rows]])
            totals = summed(group, time_ns, len(path[0]))
            for number, total in zip(path[0].tolist(), totals.tolist(), strict=True):
                key = kind, naming(paths.names[number])
                sums[key] = sums.get(key, 0) + total
    alone = [AloneSum(*key, total) for key, total in sums.items() if total]
    return sorted(alone, key=lambda row: (-row.time_ns, row.kind, row.path))


def _alone_on_gpus(idle: IdleTime, some: Bools, gpu: Int32s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield, by GPU, work of some kind and how long it ran alone in the steps' windows, ns."""
    work, windows = idle.attribution.trace.work, idle.windows
    for (number,), places in rows_of_each(windows.gpu):
        when = windows.take(places[~windows.between[places]])
        rows = np.flatnonzero(some & (gpu == number))
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        if not len(rows) or not len(when):
            continue
        # Of pieces that overlap, the first has the time that they share.
        reach = np.maximum.accumulate(work.end_ns[rows])
        start = work.start_ns[rows].copy()
        start[1:] = np.maximum(start[1:], reach[:-1])
        end = np.maximum(work.end_ns[rows], start)
        others = np.flatnonzero(~some & (gpu == number))
        # What is outside of the windows counts as if other work ran there.
        bounds_ns = np.append(np.append(-(2**62), when.end_ns), np.append(when.start_ns, 2**62)).reshape(2, -1)
        outside = bounds_ns[1] > bounds_ns[0]
        busy = union(
            np.concatenate([work.start_ns[others], bounds_ns[0][outside]]),
            np.concatenate([work.end_ns[others], bounds_ns[1][outside]]),
        )
        yield rows, end - start - busy.covered(start, end)


def idle_report(idle: IdleTime, paths: Paths, naming: Callable[[Path], Path]) -> IdleReport | None:
    """Return a whole report's idle time, given that of typical steps, or of all work; None without any.

    `paths` are those of its attribution, which `naming` joins.
    """
    if not len(idle.gaps):
        return None
    places, functions = by_place(idle, paths, naming, by_function=False), main_functions(idle)
    rows = []
    for cause in by_cause(idle):
        of_cause = max(
            (place for place in places if place.cause == cause.cause),
            key=lambda place: place.idle_ns + place.between_ns - place.alone_ns,
        )
        rows.append(
            IdleRow(
                cause.cause,
                cause.median_ns,
                of_cause.path,
                of_cause.waited_for if of_cause.waited_ns * 2 > of_cause.idle_ns + of_cause.between_ns else "",
                cause.alone_ns,
                cause.alone_step,
                functions.get(cause.cause, ""),
            )
        )
    windows, of_gap = idle.windows, summed(idle.window, idle.gaps.duration_ns, len(idle.windows))
    steps = max(int(windows.step.max(initial=0)) + 1, 1)
    values = {}
    for name, of_window in (("idle", of_gap), ("span", windows.duration_ns)):
        for between in (False, True):
            some = windows.between == between
            by_step = summed(np.maximum(windows.step[some], 0), of_window[some], steps)
            values[name, between] = _median(idle, by_step, between=between)
    return IdleReport(
        per_step=bool((windows.step >= 0).any()),
        idle_ns=values["idle", False] + values["idle", True],
        span_ns=values["span", False] + values["span", True],
        between_ns=values["idle", True],
        rows=tuple(rows),
        pause=None if (windows.step >= 0).any() else _pause(idle, paths),
    )


def _pause(idle: IdleTime, paths: Paths) -> Pause | None:
    """Return the gap that holds most of the idle time of a report without steps, and what remains without it."""
    gaps, attribution = idle.gaps, idle.attribution
    total_ns = int(gaps.duration_ns.sum())
    longest = int(gaps.duration_ns.argmax()) if len(gaps) else -1
    if longest < 0 or gaps.duration_ns[longest] < PAUSE_FROM * total_ns or len(gaps) < 2:
        return None
    work = attribution.trace.work
    on_gpu = idle.windows.gpu == gaps.gpu[longest]
    begun = int(idle.windows.start_ns[on_gpu].min())
    ended = np.flatnonzero(work.end_ns == gaps.start_ns[longest])
    before, after = (
        paths.names[paths.names_of_node[attribution.node[row]]] for row in (int(ended[0]), gaps.next[longest])
    )
    pieces = idle.pieces.take(idle.pieces.gap != longest)
    left = summed(pieces.cause, pieces.duration_ns, len(CAUSES))
    span_ns = int(idle.windows.duration_ns.sum())
    duration_ns = int(gaps.duration_ns[longest])
    return Pause(
        duration_ns,
        int(gaps.start_ns[longest]) - begun,
        before,
        after,
        span_ns - duration_ns,
        total_ns - duration_ns,
        CAUSES[int(left.argmax())],
        int(left.max()),
    )
