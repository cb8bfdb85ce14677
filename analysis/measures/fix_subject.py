"""What rules look at that judge by a replay: the replayed steps' work, and the host's calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nvtx_kernels import DOMAIN

from ..account.gaps import Gaps, gaps_of
from ..account.idle import Pieces, pieces_of
from ..account.in_turn import has_workers, loading_of
from ..account.intervals import Intervals, union
from ..account.lines import lines_of_host
from ..attribution.causes import Attribution
from ..support.layers import Layers
from ..support.small_numbers import distinct, last_marked, looked_up, rows_of_each
from ..trace import Bools, Frames, Int32s, Int64s, Ranges, fitting, marked
from ..vocabulary import BACKWARD, OPTIMIZER, OTHER, PHASES, SETTING_HOOKS
from ..vocabulary.calls import plain_name
from .gpu_subject import GpuSubject
from .host_line import SYNCHRONIZES
from .symptoms import Concerned, Found
from .timeline import PAUSE_NS, WAIT, Timeline

#: How long the host takes between two calls where nothing keeps it, ns.
AT_ONCE_NS = 20_000.0
#: What comes behind the optimizer and before the next step's forward.
BETWEEN_STEPS = "between steps"
#: Pauses of one run are as long as those of another but for this share.
NEARLY_ALL = 0.8


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

    def concerned(self, symptom: Found) -> Concerned:
        """Return the time a symptom concerns: its work, or of a rule about the host, the time concerned.

        Pieces are those of its work, else calls.
        """
        if symptom.host is None:
            return GpuSubject.concerned(self, symptom)
        calls, pauses = symptom.host
        call_ns = self.host.end_ns[calls] - self.host.start_ns[calls]
        pause_ns = self.timeline.before_ns[pauses].astype(np.int64)
        # An instant call has a line, too.
        ns = np.maximum(np.concatenate([call_ns, pause_ns]), 1)
        lines = lines_of_host(self.attribution, self.host.row[calls], self.host.row[pauses], ns)
        middle_ns = self.host.start_ns[pauses] - pause_ns // 2
        both = np.concatenate([calls, pauses])
        node = self.nodes_at(both, np.concatenate([self.host.start_ns[calls], middle_ns]))
        count = self.per_step(symptom.work) or len(calls) / self.steps
        places, most = self.places_of(node, ns.astype(np.float64))
        return Concerned(places, most, lines, count, self._phase_before(both))

    def _phase_before(self, calls: Int64s) -> str:
        """Return after which phase most of some calls come: `code after backward`; "" if no work has a phase."""
        phase = self.timeline.work_phase
        has_phase = phase != PHASES.index(OTHER)
        latest = last_marked(has_phase)
        before = np.append(latest, -1)[np.searchsorted(self.work.call, calls) - 1]
        phases = phase[before[before >= 0]]
        if not phases.size:
            return ""
        usual = PHASES[int(np.bincount(phases).argmax())]
        return BETWEEN_STEPS if usual == OPTIMIZER else f"code after {usual}"

    def nodes_at(self, calls: Int64s, at_ns: Int64s) -> Int32s:
        """Return the node of the innermost range that is open on each call's thread at a moment.

        Where none is, as on autograd's threads, it is that of the next work.
        """
        ranges = self.attribution.ranges
        home = self.attribution.home
        thread = self.trace.launches.thread[self.host.row[calls]]
        near = (ranges.start_ns < at_ns.max(initial=0)) & (ranges.end_ns > at_ns.min(initial=0)) & (home >= 0)
        node = np.full(len(calls), -1, np.int32)
        for (number,), rows in rows_of_each(thread):
            open_ranges = np.flatnonzero(near & (ranges.thread == number))
            layers = Layers(ranges.start_ns[open_ranges], ranges.end_ns[open_ranges])
            innermost = layers.innermost(at_ns[rows])
            node[rows] = looked_up(home[open_ranges], innermost, -1)
        following = np.minimum(np.searchsorted(self.work.call, calls), len(self.work.call) - 1)
        return np.where(node >= 0, node, self.node[following])

    def in_most_steps(self, calls: NDArray[np.int64]) -> bool:
        """Return whether some calls are in all steps but one."""
        return len(distinct(self.timeline.step_of_call[calls])) >= max(self.steps - 1, 1)

    def rows_in_most_steps(self, work: Bools) -> Int64s:
        """Return the positions of some work, by place, of the ranges that have it in all steps but one."""
        rows = np.flatnonzero(work)
        parts = [rows[:0]]
        for _, some in rows_of_each(self.path_id[rows]):
            if self.in_most_steps(self.work.call[rows[some]]):
                parts.append(rows[some])
        return np.concatenate(parts)

    def waits_behind(self, work: Bools | Int64s) -> Int64s:
        """Return the calls right behind those of some work that wait for the GPU."""
        behind = np.minimum(self.work.call[work] + 1, len(self.host.row) - 1)
        waits: Int64s = behind[self.host.kind[behind] == SYNCHRONIZES]
        return waits

    def calls_named(self, pattern: str) -> Bools:
        """Mark the calls whose name contains a pattern, per call."""
        calls = self.trace.calls
        if calls is None:
            return np.zeros(len(self.host.row), np.bool_)
        return fitting(calls.names, re.compile(pattern).search)[calls.of_launch[self.host.row]]

    @cached_property
    def waiting(self) -> Bools:
        """Mark the calls that wait for the GPU, per call."""
        calls = [step.call for step in self.timeline.program.operations if step.kind == WAIT]
        return marked(np.array(calls, np.int64), len(self.host.row))

    @cached_property
    def _gpu(self) -> Int32s:
        """Which work is on the GPU of the steps: 0, else -1; int32, per piece of the trace's work."""
        work = self.trace.work
        row = self.work.row[0]
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

    def idle_in_pauses(self, unrecorded_ns: float) -> float:
        """Return which share of the GPU's idle time in pauses can be the program's, if a step takes so long alone.

        All of it, unless recording made them longer: then they are longer than the step has idle time.
        """
        idle_ns = float(self.gaps.duration_ns.sum()) / self.steps
        left_ns = max(unrecorded_ns - (self.step_ns - idle_ns), 0.0)
        paused_ns = float(self.gaps.duration_ns[self.gaps.duration_ns > PAUSE_NS].sum()) / self.steps
        share = left_ns / paused_ns if paused_ns else 1.0
        return share if share < NEARLY_ALL else 1.0

    def idle_before(self, call: int) -> float:
        """Return for which share of the host's time before a call the GPU had no work."""
        begin_ns = int(self.host.since_ns[call])
        end_ns = int(self.host.start_ns[call])
        earlier = self.work.start_ns < end_ns
        busy_until = int(self.work.end_ns[earlier].max(initial=begin_ns))
        return max(end_ns - max(begin_ns, busy_until), 0) / max(end_ns - begin_ns, 1)

    def loads_data(self, calls: Int64s) -> bool:
        """Return whether the program gets the next batch in most of the pauses before some calls, as names say."""
        return bool(self._loading.contain(self.amid_pauses(calls)).mean() > 0.5)

    @cached_property
    def _loading(self) -> Intervals:
        """When the program gets its next batch."""
        spots = loading_of(self.trace)
        return union(spots.start_ns, spots.end_ns)

    def amid_pauses(self, calls: Int64s) -> Int64s:
        """Return the middle of the pause before each of some calls."""
        middle_ns: Int64s = (self.host.start_ns[calls] + self.host.since_ns[calls]) // 2
        return middle_ns

    @cached_property
    def has_workers(self) -> bool | None:
        """Whether other processes make the program's batches; None if the report does not say."""
        return has_workers(self.trace, self.run)

    def running_before(self, calls: Int64s) -> set[str]:
        """Return the innermost functions and ranges that are open amid the pauses before some calls."""
        middle_ns = self.amid_pauses(calls)
        thread = self.trace.launches.thread[self.host.row[calls]]
        names = self.trace.names
        running = _innermost(self.trace.ranges, names, thread, middle_ns)
        frames = self.trace.frames
        return running | (_innermost(frames, self.trace.frame_names, thread, middle_ns) if frames else set())

    def host_call(self, call: int) -> str:
        """Return the name of a call of the host, a position in its calls; "" if it is unknown."""
        calls = self.trace.calls
        return plain_name(calls.names, int(calls.of_launch[self.host.row[call]])) if calls and call >= 0 else ""

    @cached_property
    def opening_backward(self) -> Bools:
        """Mark the calls before which annotation opened a backward, which takes it some time, per call."""
        ranges = self.trace.ranges
        names = self.trace.names
        domains = [domain.name for domain in self.trace.domains]
        backward = fitting(names, BACKWARD.__eq__)[ranges.name_id]
        setting = fitting(names, SETTING_HOOKS.__eq__)[ranges.name_id]
        ours = fitting(domains, DOMAIN.__eq__)[ranges.domain]
        starts = np.sort(ranges.start_ns[(backward & ours) | setting])
        first = np.searchsorted(starts, self.host.since_ns)
        return np.searchsorted(starts, self.host.start_ns) > first


def _innermost(table: Ranges | Frames, names: Sequence[str], thread: Int32s, at_ns: Int64s) -> set[str]:
    """Return the names of the innermost intervals that are open on some threads at some moments."""
    running = set()
    for (number,), rows in rows_of_each(thread):
        of_thread = np.flatnonzero(table.thread == number)
        innermost = Layers(table.start_ns[of_thread], table.end_ns[of_thread]).innermost(at_ns[rows])
        opened = of_thread[innermost[innermost >= 0]]
        running |= {names[name] for name in distinct(table.name_id[opened])}
    return running
