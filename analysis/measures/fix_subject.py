"""What rules of `fixes` look at: the replayed steps' work with its names, ranges, phases and arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvtx_kernels import DOMAIN

from ..account.gaps import Gaps, gaps_of
from ..account.idle import Pieces, pieces_of
from ..account.lines import lines_of_calls, lines_of_work
from ..attribution.causes import Attribution
from ..kernel_names.categories import classify
from ..report.account import LineTime
from ..support.small_numbers import distinct, ordered, rows_of_each
from ..trace import KERNEL, Bools, Int32s, Int64s, Path
from ..vocabulary import BACKWARD, PHASES, SETTING_HOOKS
from .efficiency import Counts, counted_in, keys_of
from .gpu_peaks import Peak, peak_for
from .timeline import WAIT, Timeline

#: How long the host takes between two calls where nothing keeps it, ns.
AT_ONCE_NS = 20_000.0
MOST_PLACES = 20
#: What ranges of attention are called, whose parts can have ranges of their own.
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


class FixSubject:
    """The recorded steps, with all that rules ask; masks are per piece of work unless they say per call."""

    def __init__(self, attribution: Attribution, timeline: Timeline) -> None:
        self.attribution, self.timeline = attribution.of_all_work, timeline
        self.trace, self.window = self.attribution.trace, timeline.window
        self.work, self.host, self.steps = self.window.work, self.window.host, timeline.steps
        self.name_id = self.trace.work.name_id[self.work.row]
        self.kernel: Bools = self.trace.work.kind[self.work.row] == KERNEL
        self.node = self.attribution.node[self.work.row]
        self.duration_ns = timeline.duration_ns
        self.run: Mapping[str, Any] = self.trace.provenance.run
        self._paths: dict[int, Path] = {-1: ()}

    @cached_property
    def _of_names(self) -> tuple[Int64s, list[str]]:
        ids, code = np.unique(self.name_id, return_inverse=True)
        return code, [self.trace.names[name] for name in ids.tolist()]

    @cached_property
    def _classes(self) -> list[tuple[str, bool]]:
        return classify(self._of_names[1])

    def matching(self, pattern: str) -> Bools:
        """Mark the work whose name contains a pattern, ignoring case."""
        return self.named(lambda name: re.search(pattern, name, re.IGNORECASE) is not None)

    def of_category(self, *categories: str) -> Bools:
        """Mark the kernels of some categories."""
        code, _ = self._of_names
        return np.array([category in categories for category, _ in self._classes], np.bool_)[code] & self.kernel

    @cached_property
    def products(self) -> Bools:
        """The kernels that multiply matrices."""
        code, _ = self._of_names
        return np.array([is_product for _, is_product in self._classes], np.bool_)[code] & self.kernel

    def named(self, fits: Callable[[str], bool]) -> Bools:
        """Mark the work whose name fits."""
        code, names = self._of_names
        return np.array([fits(name) for name in names], np.bool_)[code]

    def of_phase(self, *phases: str) -> Bools:
        """Mark the work of some phases."""
        return np.isin(self.timeline.work_phase, [PHASES.index(phase) for phase in phases])

    def path(self, node: int) -> Path:
        """Return the ranges around a node, outermost first."""
        if node not in self._paths:
            forest, ranges = self.attribution.forest, self.attribution.ranges
            name = self.trace.names[ranges.name_id[forest.range[node]]]
            self._paths[node] = (*self.path(int(forest.parent[node])), name)
        return self._paths[node]

    def places(self, work: Bools) -> tuple[Path, ...]:
        """Return the ranges of some work, those with the most time first."""
        rows = np.flatnonzero(work & (self.node >= 0))
        _, first, group = np.unique(self.path_id[rows], return_index=True, return_inverse=True)
        order = np.lexsort((first, -np.bincount(group, self.duration_ns[rows])))
        return tuple(self.path(node) for node in self.node[rows[first[order[:MOST_PLACES]]]].tolist())

    def lines_of(self, work: Bools) -> tuple[LineTime, ...]:
        """Return the lines that launch some work, those with the most time first; none if unknown."""
        return lines_of_work(self.attribution, self.work.row[work])

    def lines_of_calls(self, calls: NDArray[np.int64], *, after: bool = False) -> tuple[LineTime, ...]:
        """Return the lines that make some calls, those with the most of their time first; none if unknown.

        With `after`, they are those at which the program is after a call, by how long it is until its next one.
        """
        rows, following = self.host.row[calls], np.minimum(calls + 1, len(self.host.row) - 1)
        launches = self.trace.launches
        ns = self.timeline.before_ns[following] if after else (launches.end_ns - launches.start_ns)[rows]
        return lines_of_calls(self.attribution, rows, np.maximum(ns.astype(np.int64), 1), after=after)

    @cached_property
    def path_id(self) -> Int64s:
        """A number for each piece of work's innermost range's path: equal paths have equal numbers."""
        number: dict[Path, int] = {}
        nodes, code = np.unique(self.node, return_inverse=True)
        ids = [number.setdefault(self.path(node), len(number)) for node in nodes.tolist()]
        return np.array(ids, np.int64)[code]

    @cached_property
    def attention_range(self) -> Int64s:
        """The range instance of each piece of work, or that around it where its name says attention."""
        forest, nodes = self.attribution.forest, ordered(self.node)
        instance = {-1: -1}
        for node in nodes[nodes >= 0].tolist():
            parent = int(forest.parent[node])
            around = parent if parent >= 0 and ATTENTION.search(self.path(parent)[-1]) else node
            instance[node] = int(forest.range[around])
        return np.array([instance[node] for node in nodes.tolist()], np.int64)[np.searchsorted(nodes, self.node)]

    def per_step(self, work: Bools) -> float:
        """Return how many of these pieces of work a step has."""
        return float(work.sum()) / self.steps

    def time_ns(self, work: Bools) -> float:
        """Return how long these pieces of work take in a step."""
        return float(self.duration_ns[work].sum()) / self.steps

    def in_most_steps(self, calls: NDArray[np.int64]) -> bool:
        """Return whether some calls are in all steps but one."""
        return len(distinct(self.timeline.step_of_call[calls])) >= max(self.steps - 1, 1)

    @cached_property
    def waiting(self) -> Bools:
        """Mark the calls that wait for the GPU, per call."""
        waiting = np.zeros(len(self.host.row), np.bool_)
        waiting[[step.call for step in self.timeline.program.operations if step.kind == WAIT]] = True
        return waiting

    @cached_property
    def launches(self) -> Bools:
        """Mark the calls that launch work, per call."""
        launches = np.zeros(len(self.host.row), np.bool_)
        launches[self.work.call] = True
        return launches

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

    @cached_property
    def counts(self) -> Counts | None:
        """What was counted of a step."""
        return counted_in(self.trace.provenance, self.attribution.rules.step)

    @cached_property
    def peak(self) -> Peak | None:
        """What the GPU can do at most."""
        return peak_for(self.trace.provenance.gpus, self.counts.peaks if self.counts else {})

    @cached_property
    def counted(self) -> dict[tuple[int, int], Any]:
        """The counts of the work's innermost ranges, by the number of a path and a phase."""
        entries = self.counts.by_key if self.counts and not self.counts.is_stated else {}
        found, steps = {}, self._step_names
        for (path_id, phase), rows in rows_of_each(self.path_id, self.timeline.work_phase):
            path = self.path(int(self.node[rows[0]]))
            below = next((at for at, name in enumerate(path) if name in steps), -1)
            key = next((key for key in keys_of(PHASES[phase], path[below + 1 :]) if key in entries), None)
            if key is not None and entries[key].paths is not None:
                found[path_id, phase] = entries[key].figures
        return found

    @property
    def _step_names(self) -> set[str]:
        """What the measured steps are called."""
        ranges = self.attribution.ranges
        return {self.trace.names[ranges.name_id[step]] for step in self.attribution.steps.range.tolist()}
