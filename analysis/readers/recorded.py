"""What only a recording of ours has: marks about itself, its pauses, and what it could not record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from ..support.small_numbers import distinct
from ..support.units import time_text
from ..trace import CallNames, Launches, Overhead, Ranges, Trace
from ..vocabulary import SETTING_HOOKS
from .calls import named_calls, overhead_of
from .lines import marked_lines
from .marks import Count
from .requirements import INTERRUPTED_BY
from .written import Written

#: How much is read of a reason.
LONGEST_FACT = 300


class Mark(NamedTuple):
    """A text that the program sent at a moment on a thread, a position in `Trace.threads`."""

    at_ns: int
    thread: int
    text: str


class Recording(msgspec.Struct, frozen=True):
    """What a recording says of itself, as far as its answers need it."""

    interrupted_by: str = ""
    ended_early: str = ""
    ranges_dropped: Count = 0
    unrecorded_ns: Count = 0

    def shortfalls(self) -> Iterator[str]:
        """Yield a sentence for each thing that could not be recorded."""
        if reason := _bounded(self.ended_early):
            yield f"The recording ended early: {reason}. What came later is missing."
        if self.ranges_dropped:
            yield f"{self.ranges_dropped:,} later ranges were dropped, and their work is missing."
        if error := _bounded(self.interrupted_by):
            yield f"{INTERRUPTED_BY} {error}; the last step may be incomplete."
        if self.unrecorded_ns:
            lost = time_text(self.unrecorded_ns)
            yield f"Incomplete: {lost} was lost while data was written out. Record fewer steps."


def _bounded(text: str) -> str:
    return " ".join(text.split())[:LONGEST_FACT]


def as_recorded(trace: Trace, marks: Iterable[Mark], recording: Recording) -> Trace:
    """Return the trace of a recording's tables with what its marks and its head say."""
    written = Written()
    for mark in marks:
        written.mark((trace.threads[mark.thread].process, 0), mark.text, mark.at_ns, mark.thread)
    notes = written.notes()
    lines = None
    if written.lines is not None:
        lines_mark, _, at_ns = written.lines
        number_of = {thread.thread_id: number for number, thread in enumerate(trace.threads)}
        lines, unread = marked_lines(lines_mark, at_ns, number_of.get, trace.launches)
        notes += unread
    provenance = replace(
        trace.provenance,
        run=written.run,
        models=written.models(),
        attributes=written.attributes(),
        steps=written.steps,
        counted=tuple(written.counted.values()),
    )
    shortfalls = tuple(recording.shortfalls())
    return replace(
        trace,
        provenance=provenance,
        notes=(*trace.notes, *notes, *shortfalls),
        shortfalls=shortfalls,
        facts=tuple(sorted(written.facts, key=attrgetter("at_ns"))),
        lines=lines,
        overhead=_overhead(trace),
        calls=trace.calls or _operators_as_calls(trace),
    )


def _overhead(trace: Trace) -> Overhead | None:
    """Return when the recorder kept a thread waiting, or annotation did, setting hooks."""
    pauses = trace.pauses
    columns = (pauses.start_ns.tolist(), pauses.end_ns.tolist(), pauses.thread.tolist())
    rows = [(start, end, thread) for start, end, thread in zip(*columns, strict=True) if start < end]
    if SETTING_HOOKS in trace.names:
        process = [thread.process for thread in trace.threads]
        rows += setting_hooks(trace.ranges, trace.names.index(SETTING_HOOKS), trace.launches, process)
    return overhead_of(rows) if rows else None


def setting_hooks(
    ranges: Ranges, name_id: int, launches: Launches, process: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return when annotation set hooks, and on which thread: (start, end, thread) rows.

    `name_id` is that of these ranges, and `process` that of each thread. Which other thread waits for that, to
    run the nodes, is not known: it can be any that launches.
    """
    setting = np.flatnonzero(ranges.name_id == name_id)
    if not len(setting):
        return []
    launching = distinct(launches.thread).tolist()
    columns = (column[setting].tolist() for column in (ranges.start_ns, ranges.end_ns, ranges.thread))
    return [
        (start, end, thread)
        for start, end, by in zip(*columns, strict=True)
        for thread in sorted({by, *launching})
        if process[thread] == process[by]
    ]


def _operators_as_calls(trace: Trace) -> CallNames:
    """Return the names of a CPU's launches: each launches the work of the operator that it is."""
    work = trace.work
    used = distinct(work.name_id)
    is_launched = work.launch >= 0
    code_of_launch = np.full(len(trace.launches), len(used))
    code_of_launch[work.launch[is_launched]] = np.searchsorted(used, work.name_id[is_launched])
    return named_calls(code_of_launch, [*(trace.names[number] for number in used.tolist()), ""])
