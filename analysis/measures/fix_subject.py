"""What rules look at that judge by a replay: the replayed steps' work, and the host's calls."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nvtx_kernels import DOMAIN

from ..account.gaps import Gaps, gaps_of
from ..account.idle import Pieces, pieces_of
from ..account.lines import lines_of_calls
from ..attribution.causes import Attribution
from ..report.account import LineTime
from ..support.small_numbers import distinct
from ..trace import Bools, Int32s
from ..vocabulary import BACKWARD, SETTING_HOOKS
from .gpu_subject import GpuSubject
from .timeline import WAIT, Timeline

#: How long the host takes between two calls where nothing keeps it, ns.
AT_ONCE_NS = 20_000.0


class FixSubject(GpuSubject):
    """The replayed steps, with all that rules ask; masks are per piece of work unless they say per call."""

    timeline: Timeline

    def __init__(self, attribution: Attribution, timeline: Timeline) -> None:
        GpuSubject.__init__(self, attribution, timeline.window.work.row, timeline, timeline.steps)
        self.window = timeline.window
        self.work, self.host = self.window.work, self.window.host

    @property
    def step_ns(self) -> float:
        """How long a step takes, as recorded."""
        return float(self.window.steps_ns.mean())

    def lines_of_calls(self, calls: NDArray[np.int64], *, after: bool = False) -> tuple[LineTime, ...]:
        """Return the lines that make some calls, those with the most of their time first; none if unknown.

        With `after`, they are those at which the program is after a call, by how long it is until its next one.
        """
        rows, following = self.host.row[calls], np.minimum(calls + 1, len(self.host.row) - 1)
        launches = self.trace.launches
        ns = self.timeline.before_ns[following] if after else (launches.end_ns - launches.start_ns)[rows]
        return lines_of_calls(self.attribution, rows, np.maximum(ns.astype(np.int64), 1), after=after)

    def in_most_steps(self, calls: NDArray[np.int64]) -> bool:
        """Return whether some calls are in all steps but one."""
        return len(distinct(self.timeline.step_of_call[calls])) >= max(self.steps - 1, 1)

    def calls_named(self, pattern: str) -> Bools:
        """Mark the calls whose name contains a pattern, per call."""
        calls = self.trace.calls
        if calls is None:
            return np.zeros(len(self.host.row), np.bool_)
        fits = np.array([re.search(pattern, name) is not None for name in calls.names] or [False], np.bool_)
        return fits[calls.of_launch[self.host.row]]

    @cached_property
    def waiting(self) -> Bools:
        """Mark the calls that wait for the GPU, per call."""
        waiting = np.zeros(len(self.host.row), np.bool_)
        waiting[[step.call for step in self.timeline.program.operations if step.kind == WAIT]] = True
        return waiting

    @cached_property
    def _gpu(self) -> Int32s:
        """Which work is on the GPU of the steps: 0, else -1; int32, per piece of the trace's work."""
        work, row = self.trace.work, self.work.row[0]
        same = (work.process == work.process[row]) & (work.device_id == work.device_id[row])
        return np.where(same, np.int32(0), np.int32(-1))

    @cached_property
    def gaps(self) -> Gaps:
        """The times between the steps' work in which the GPU is idle."""
        return gaps_of(self.trace, self._gpu, self.work.row)

    @cached_property
    def idle_pieces(self) -> Pieces:
        """The causes of these gaps."""
        return Pieces.joined(list(pieces_of(self.attribution, self.gaps, self._gpu)))

    def idle_before(self, call: int) -> float:
        """Return for which share of the host's time before a call the GPU had no work."""
        begin_ns, end_ns = int(self.host.end_ns[call - 1]), int(self.host.start_ns[call])
        earlier = self.work.start_ns < end_ns
        busy_until = int(self.work.end_ns[earlier].max(initial=begin_ns))
        return max(end_ns - max(begin_ns, busy_until), 0) / max(end_ns - begin_ns, 1)

    @cached_property
    def opening_backward(self) -> Bools:
        """Mark the calls before which annotation opened a backward, which takes it some time, per call."""
        ranges = self.trace.ranges
        names, domains = self.trace.names, self.trace.domains
        named, setting = (
            np.array([name == of for name in names] or [False], np.bool_)[ranges.name_id]
            for of in (BACKWARD, SETTING_HOOKS)
        )
        ours = np.array([domain.name == DOMAIN for domain in domains] or [False], np.bool_)[ranges.domain]
        starts = np.sort(ranges.start_ns[(named & ours) | setting])
        first = np.searchsorted(starts, np.r_[self.host.start_ns[:1], self.host.end_ns[:-1]])
        return np.searchsorted(starts, self.host.start_ns) > first
