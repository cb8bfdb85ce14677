"""Steps that are times of a process, put into the forest as ranges of their own above the program's.

A step owns all work that its process launches in its time, on every thread. A range that lies in one step is moved
below it as a whole; one that spans several, such as an epoch, has a copy in each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..trace import NO_CATEGORY, PUSH_POP, Bools, Int32s, Int64s, Ranges, Trace
from ..vocabulary import OTHER, PHASES
from .attributed import Attribution, Steps
from .nesting import Forest
from .placing import AMBIGUOUS, OUTSIDE, OWN
from .step_decisions import Windows
from .user_ranges import NameFacts

STEP, EVALUATION = "step", "evaluation"
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Segments:
    """A process's time in segments, each after the one before: who owns what is launched in it, -1 for nobody.

    Owners are the steps, and after them the stretches of evaluation, which may interrupt a step; `thread` is the
    one that trains.
    """

    edges_ns: Int64s  # segment n is after edge n - 1, and not after edge n
    owner: Int64s  # (edges + 1,)
    thread: int

    @classmethod
    def of(cls, windows: Windows, thread: int) -> Segments:
        """Cut the time at the bounds of steps and of evaluation."""
        low_ns = np.concatenate([windows.start_ns, windows.evaluation_start_ns - 1])
        high_ns = np.concatenate([windows.end_ns, windows.evaluation_end_ns])
        edges_ns = np.unique(np.concatenate([low_ns, high_ns]))
        owner = np.full(len(edges_ns) + 1, NOBODY, np.int64)
        bounds = zip(np.searchsorted(edges_ns, low_ns), np.searchsorted(edges_ns, high_ns), strict=True)
        for number, (low, high) in enumerate(bounds):
            owner[low + 1 : high + 1] = number
        return cls(edges_ns, owner, thread)


class _Timeline:
    """The segments of all processes, numbered; segment 0 is that of processes without any, and has no owner."""

    def __init__(self, trace: Trace, segments: dict[int, Segments], owners_before: dict[int, int]) -> None:
        self._process = trace.process_of_thread()
        self._segments, self._first = segments, dict[int, int]()
        owner = [np.array([NOBODY])]
        for process, of_process in segments.items():
            self._first[process] = sum(map(len, owner))
            owner.append(np.where(of_process.owner >= 0, of_process.owner + owners_before[process], NOBODY))
        self.owner: Int64s = np.concatenate(owner)

    def at(self, thread: Int32s, moment_ns: Int64s, *, after: Bools | None = None) -> Int64s:
        """Return the segment of each moment of a thread; those `after` belong to what begins just then."""
        segment = np.zeros(len(thread), np.int64)
        for process, of_process in self._segments.items():
            rows = np.flatnonzero(self._process[thread] == process)
            segment[rows] = np.searchsorted(of_process.edges_ns, moment_ns[rows], "left") + self._first[process]
            if after is not None:
                right = np.searchsorted(of_process.edges_ns, moment_ns[rows], "right") + self._first[process]
                segment[rows] = np.where(after[rows], right, segment[rows])
        return segment


class _Copies:
    """Copies of nodes whose range spans several owners: one below each owner that something there belongs to."""

    def __init__(self, forest: Forest, spanning: Bools, owner_node: Int32s) -> None:
        self._forest, self._owner_node = forest, owner_node
        self._spanning = np.append(spanning, False)  # and node -1, which is no node
        self._keys: Int64s = np.empty(0, np.int64)
        self._first = len(forest)
        self.original: Int64s = np.empty(0, np.int64)

    def make(self, *nodes_and_owners: tuple[Int32s, Int64s]) -> None:
        """Copy the nodes, and those above them, for the owner that is given with each; -1 for none."""
        count = max(1, len(self._owner_node))
        pending = []
        for nodes, owner in nodes_and_owners:
            chosen = self._spanning[nodes] & (owner >= 0)
            pending.append(nodes[chosen].astype(np.int64) * count + owner[chosen])
        keys = np.unique(np.concatenate(pending))
        levels = [keys]
        while len(keys):
            above = self._forest.parent[keys // count].astype(np.int64)
            keys = np.unique((above * count + keys % count)[above >= 0])
            levels.append(keys)
        self._keys = np.unique(np.concatenate(levels))
        self.original = self._keys // count
        above, owner = self._forest.parent[self.original], self._keys % count
        self._forest.add(self.of(above, owner), self._forest.range[self.original])

    def of(self, nodes: Int32s, owner: Int64s) -> Int32s:
        """Return the place of nodes below their owners: of -1 the owner itself, of a spanning one its copy."""
        count = max(1, len(self._owner_node))
        copy = self._first + np.searchsorted(self._keys, nodes.astype(np.int64) * count + owner)
        place = np.where(nodes < 0, self._owner_node[owner], np.where(self._spanning[nodes], copy, nodes))
        return np.where(owner >= 0, place, nodes).astype(np.int32)


def placed_in_windows(
    attribution: Attribution, windows: dict[int, Windows], segments: dict[int, Segments]
) -> Attribution:
    """Return the attribution with a range, and its node, for each step and each stretch of evaluation.

    `windows` and `segments` are by process. The new steps join those that the attribution has.
    """
    trace, facts = _with_names(attribution.trace, attribution.facts)
    owners, is_step, is_warm_up, before = _owners(trace, windows, segments)
    timeline = _Timeline(trace, segments, before)
    old_forest, ranges = attribution.forest, attribution.ranges
    forest = Forest(old_forest.parent.copy())
    forest.range = old_forest.range
    owner_node = forest.add(
        np.full(len(owners), -1, np.int32), np.arange(len(ranges), len(ranges) + len(owners), dtype=np.int32)
    )

    lasting = ranges.end_ns > ranges.start_ns
    first_segment = timeline.at(ranges.thread, ranges.start_ns, after=lasting)
    is_in_one = first_segment == timeline.at(ranges.thread, ranges.end_ns)
    spanning = _spanning(old_forest, attribution.linked | ~is_in_one[old_forest.range])
    node_owner = timeline.owner[first_segment[old_forest.range]]
    is_top = np.append(spanning, True)[old_forest.parent] & ~spanning
    moved = np.flatnonzero(is_top & (node_owner >= 0))

    work_owner, memory_owner = _owners_of_work(attribution, timeline)
    copies = _Copies(forest, np.append(spanning, np.zeros(len(owners), np.bool_)), owner_node)
    above = forest.parent[moved]
    copies.make(
        (above, node_owner[moved]), (attribution.node, work_owner), (attribution.memory_node, memory_owner)
    )
    forest.parent[moved] = copies.of(above, node_owner[moved])
    original = np.concatenate([np.arange(len(old_forest)), np.full(len(owners), -1), copies.original])
    new = slice(len(old_forest), len(old_forest) + len(owners))
    warm_up, recompute, linked = (
        np.append(flags, False)[original]
        for flags in (attribution.warm_up, attribution.recompute, attribution.linked)
    )
    warm_up[new] = is_warm_up
    evaluation = np.zeros(len(forest), np.bool_)
    evaluation[new] = ~is_step
    for nodes in forest.by_depth()[1:]:
        warm_up[nodes] |= warm_up[forest.parent[nodes]]
        evaluation[nodes] |= evaluation[forest.parent[nodes]]
    how = attribution.how.copy()
    how[(how == OUTSIDE) & (work_owner >= 0)] = OWN

    known_steps = attribution.steps
    step_range = np.concatenate([known_steps.range, len(ranges) + np.flatnonzero(is_step)]).astype(np.int32)
    joined = Ranges.joined([ranges, owners])
    order = np.argsort(joined.start_ns[step_range], kind="stable")
    return replace(
        attribution,
        trace=trace,
        facts=facts,
        ranges=joined,
        forest=forest,
        home=np.append(attribution.home, owner_node),
        node=copies.of(attribution.node, work_owner),
        how=how,
        node_phase=np.append(attribution.node_phase, np.int8(PHASES.index(OTHER)))[original],
        warm_up=warm_up,
        recompute=recompute,
        linked=linked,
        memory_node=copies.of(attribution.memory_node, memory_owner),
        steps=Steps(
            step_range[order],
            np.append(known_steps.warm_up, is_warm_up[is_step])[order],
            evaluation,
            known_steps.ended_by,
            known_steps.notes,
        ),
    )


def _owners_of_work(attribution: Attribution, timeline: _Timeline) -> tuple[Int64s, Int64s]:
    """Return who owns each piece of work, and each allocation or free, by its time; nobody what is ambiguous."""
    trace, launches = attribution.trace, attribution.trace.launches
    work_owner = np.full(len(trace.work), NOBODY, np.int64)
    rows = np.flatnonzero((trace.work.launch >= 0) & (attribution.how != AMBIGUOUS))
    launch = trace.work.launch[rows]
    work_owner[rows] = timeline.owner[timeline.at(launches.thread[launch], launches.start_ns[launch])]
    memory_owner = np.full(len(attribution.memory_node), NOBODY, np.int64)
    if trace.memory is not None:
        has_thread = np.flatnonzero(trace.memory.thread >= 0)
        moments = trace.memory.thread[has_thread], trace.memory.at_ns[has_thread]
        memory_owner[has_thread] = timeline.owner[timeline.at(*moments)]
    return work_owner, memory_owner


def _spanning(forest: Forest, several: Bools) -> Bools:
    """Mark the nodes that belong to several owners, given those that may, with all above them."""
    spanning = np.zeros(len(forest), np.bool_)
    for depth, nodes in enumerate(forest.by_depth() if len(forest) else []):
        spanning[nodes] = several[nodes] & (spanning[forest.parent[nodes]] if depth else True)
    return spanning


def _owners(
    trace: Trace, windows: dict[int, Windows], segments: dict[int, Segments]
) -> tuple[Ranges, Bools, Bools, dict[int, int]]:
    """Return the ranges of steps and of evaluation, which is which, and how many precede a process."""
    first_ns = int(min(trace.launches.start_ns.min(initial=2**62), trace.ranges.start_ns.min(initial=2**62)))
    last_ns = int(max(trace.launches.end_ns.max(initial=0), trace.ranges.end_ns.max(initial=0)))
    parts: list[Ranges] = []
    are_steps, are_warm_up, before = [], [], dict[int, int]()
    for process, of_process in windows.items():
        steps, stretches = len(of_process.start_ns), len(of_process.evaluation_start_ns)
        before[process] = sum(len(part) for part in parts)
        names = [trace.names.index(STEP)] * steps + [trace.names.index(EVALUATION)] * stretches
        count = steps + stretches
        start_ns = np.concatenate([of_process.start_ns, of_process.evaluation_start_ns])
        end_ns = np.concatenate([of_process.end_ns, of_process.evaluation_end_ns])
        none = np.zeros(count, np.bool_)
        parts.append(
            Ranges(
                start_ns=np.clip(start_ns, first_ns, last_ns),
                end_ns=np.clip(end_ns, first_ns, last_ns),
                thread=np.full(count, segments[process].thread, np.int32),
                name_id=np.array(names, np.int32),
                domain=np.zeros(count, np.int32),
                seq=np.full(count, -1, np.int64),
                style=np.full(count, PUSH_POP, np.uint8),
                open_ended=none,
                category=np.full(count, NO_CATEGORY, np.int8),
            )
        )
        are_steps.append(np.arange(count) < steps)
        are_warm_up.append(np.append(of_process.warm_up, np.zeros(stretches, np.bool_)))
    return Ranges.joined(parts), np.concatenate(are_steps), np.concatenate(are_warm_up), before


def _with_names(trace: Trace, facts: NameFacts) -> tuple[Trace, NameFacts]:
    """Return both with the names of steps and of evaluation."""
    new = [name for name in (STEP, EVALUATION) if name not in trace.names]
    longer = {
        field: np.append(getattr(facts, field), np.zeros(len(new), getattr(facts, field).dtype))
        for field in ("operator", "backward_operator", "warm_up", "step", "measured", "phase", "part")
    }
    longer["phase"][len(trace.names) :] = -1
    names = [*trace.names, *new]
    longer["measured"] = longer["step"] = longer["step"] | np.array([name == STEP for name in names])
    return replace(trace, names=names), replace(facts, **longer)
