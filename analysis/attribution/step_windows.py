"""Steps that are times of a process, put into the forest as ranges of their own above the program's.

A step owns all work that its process launches in its time, on every thread. A range that lies in one step is moved
below it as a whole; one that spans several, such as an epoch, has a copy in each. If steps are times on the GPU,
the work that begins in a step belongs to it, and every range has a copy in each step in which its work is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..support.small_numbers import looked_up, rows_of_each
from ..trace import NO_CATEGORY, PUSH_POP, Bools, Int32s, Int64s, Ranges, Spots, Thread, Trace, Work
from ..vocabulary import OTHER, PHASES
from .forest import Forest
from .places import Attribution
from .placing import AMBIGUOUS, OUTSIDE, OWN
from .step_decisions import Windows
from .user_ranges import with_names

STEP = "step"
EVALUATION = "evaluation"
NOBODY = -1


class _Timeline:
    """The time of processes in segments, each after the one before: who owns what is launched in it.

    Owners are numbered: the windows of each process, where evaluation may interrupt a step. Segment n of a process
    is after edge n - 1, and not after edge n. Segment 0 belongs to processes without windows.
    """

    def __init__(self, windows: dict[int, Windows]) -> None:
        self._edges: dict[int, tuple[Int64s, int]] = {}  # of each process, and the number of its first segment
        owner = [np.array([NOBODY])]
        owners = 0
        for process, times in windows.items():
            low_ns = times.start_ns - ~times.is_step
            high_ns = times.end_ns
            edges_ns = np.unique(np.concatenate([low_ns, high_ns]))
            self._edges[process] = edges_ns, sum(map(len, owner))
            of_segment = np.full(len(edges_ns) + 1, NOBODY)
            first = np.searchsorted(edges_ns, low_ns) + 1
            behind = np.searchsorted(edges_ns, high_ns) + 1
            for number in range(len(low_ns)):
                of_segment[first[number] : behind[number]] = owners + number
            owner.append(of_segment)
            owners += len(low_ns)
        self.owner: Int64s = np.concatenate(owner)

    def at(self, process: Int32s, moment_ns: Int64s, *, after: Bools | None = None) -> Int64s:
        """Return the segment of each moment of a process; those `after` belong to what begins just then."""
        segment = np.zeros(len(process), np.int64)
        for (number,), rows in rows_of_each(process):
            if number not in self._edges:
                continue
            edges_ns, first = self._edges[number]
            segment[rows] = np.searchsorted(edges_ns, moment_ns[rows], "left") + first
            if after is not None:
                rows = rows[after[rows]]
                segment[rows] = np.searchsorted(edges_ns, moment_ns[rows], "right") + first
        return segment


class _Copies:
    """Copies of nodes whose range spans several owners: one below each owner that something there belongs to.

    `owners` are given with nodes, -1 for none: those nodes are copied, and all above them.
    """

    def __init__(self, forest: Forest, spanning: Bools, owner_node: Int32s, nodes: Int32s, owners: Int64s) -> None:
        self._owner_node = owner_node
        self._first = len(forest)
        self._count = max(1, len(owner_node))
        self._spanning = np.append(spanning, False)  # and node -1, which is no node
        is_copied = self._spanning[nodes] & (owners >= 0)
        keys = np.unique(self._key(nodes[is_copied], owners[is_copied]))
        levels = [keys]
        while len(keys):
            node, owner = np.divmod(keys, self._count)
            above = forest.parent[node]
            has_above = above >= 0
            keys = np.unique(self._key(above[has_above], owner[has_above]))
            levels.append(keys)
        self._keys = np.unique(np.concatenate(levels))
        self.original, owner = np.divmod(self._keys, self._count)
        parent = self.of(forest.parent[self.original], owner)
        forest.add(parent, forest.range[self.original])

    def _key(self, nodes: Int32s, owner: Int64s) -> Int64s:
        """Return one number for each pair of a node and an owner."""
        return nodes.astype(np.int64) * self._count + owner

    def of(self, nodes: Int32s, owner: Int64s) -> Int32s:
        """Return the place of nodes below their owners: of -1 the owner itself, of a spanning one its copy."""
        copy = self._first + np.searchsorted(self._keys, self._key(nodes, owner))
        place = np.where(self._spanning[nodes], copy, nodes)
        place = np.where(nodes < 0, self._owner_node[owner], place)
        return np.where(owner >= 0, place, nodes).astype(np.int32)


def placed_in_windows(attribution: Attribution, windows: dict[int, Windows]) -> Attribution:
    """Return the attribution with a range, and its node, for each step and each stretch of evaluation.

    `windows` are by process. The new steps join those that the attribution has.
    """
    trace, facts = with_names(attribution.trace, attribution.facts, [STEP, EVALUATION])
    trace, windows = _with_threads(trace, windows)
    is_called_step = facts.step | np.array([name == STEP for name in trace.names])
    facts = replace(facts, step=is_called_step, measured=is_called_step)
    owners, is_step, is_warm_up = _owners(trace, windows)
    timeline = _Timeline(windows)
    process_of_thread = trace.process_of_thread()
    old_forest = attribution.forest
    ranges = attribution.ranges
    forest = Forest(old_forest.parent.copy())
    forest.range = old_forest.range
    owner_range = np.arange(len(ranges), len(ranges) + len(owners), dtype=np.int32)
    owner_node = forest.add(np.full(len(owners), -1, np.int32), owner_range)

    # The nodes that belong to several owners, with all above them; what a link made may.
    process = process_of_thread[ranges.thread]
    first_segment = timeline.at(process, ranges.start_ns, after=ranges.end_ns > ranges.start_ns)
    is_in_one = first_segment == timeline.at(process, ranges.end_ns)
    on_gpu = [number for number, times in windows.items() if times.on_gpu]
    is_in_one &= ~np.isin(process, on_gpu)
    spanning = attribution.linked | ~is_in_one[old_forest.range]
    for nodes in old_forest.by_depth()[1:]:
        spanning[nodes] &= spanning[old_forest.parent[nodes]]
    node_owner = timeline.owner[first_segment[old_forest.range]]
    is_top = looked_up(spanning, old_forest.parent, True) & ~spanning
    moved = np.flatnonzero(is_top & (node_owner >= 0))

    how = attribution.how.copy()
    work_owner = _owners_of_work(trace, how != AMBIGUOUS, timeline, on_gpu)
    how[(how == OUTSIDE) & (work_owner >= 0)] = OWN
    memory_owner = _owners_of_memory(trace, len(attribution.memory_node), timeline, on_gpu)

    above = forest.parent[moved]
    spanning = np.append(spanning, np.zeros(len(owners), np.bool_))
    copied = np.concatenate([above, attribution.node, attribution.memory_node])
    copied_for = np.concatenate([node_owner[moved], work_owner, memory_owner])
    copies = _Copies(forest, spanning, owner_node, copied, copied_for)
    forest.parent[moved] = copies.of(above, node_owner[moved])
    original = np.concatenate([np.arange(len(old_forest)), np.full(len(owners), -1), copies.original])
    phase = looked_up(attribution.node_phase, original, PHASES.index(OTHER))
    warm_up = looked_up(attribution.warm_up, original, False)
    recompute = looked_up(attribution.recompute, original, False)
    linked = looked_up(attribution.linked, original, False)
    warm_up[owner_node] = is_warm_up
    evaluation = np.zeros(len(forest), np.bool_)
    evaluation[owner_node] = ~is_step

    steps = attribution.steps
    joined = Ranges.joined([ranges, owners])
    step_range = np.concatenate([steps.range, owner_range[is_step]])
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
        node_phase=phase,
        warm_up=forest.below(warm_up)[:-1],
        recompute=recompute,
        linked=linked,
        memory_node=copies.of(attribution.memory_node, memory_owner),
        steps=replace(
            steps,
            range=step_range[order],
            warm_up=np.append(steps.warm_up, is_warm_up[is_step])[order],
            evaluation=forest.below(evaluation)[:-1],
        ),
    )


def _with_threads(trace: Trace, windows: dict[int, Windows]) -> tuple[Trace, dict[int, Windows]]:
    """Return both with a thread for each process that has windows and, as launches are not known, no thread."""
    threads = list(trace.threads)
    placed = {}
    for process, times in windows.items():
        placed[process] = times
        if times.thread < 0:
            placed[process] = replace(times, thread=len(threads))
            threads.append(Thread(process, thread_id=0))
    return replace(trace, threads=threads), placed


def _owners_of_work(trace: Trace, is_known: Bools, timeline: _Timeline, on_gpu: Sequence[int]) -> Int64s:
    """Return who owns each known piece of work, by the time of its launch, or of its start: int64 (work,)."""
    work = trace.work
    launches = trace.launches
    owner = np.full(len(work), NOBODY, np.int64)
    by_start = np.isin(work.process, on_gpu)
    rows = np.flatnonzero((work.launch >= 0) & is_known & ~by_start)
    launch = work.launch[rows]
    process = trace.process_of_thread()[launches.thread[launch]]
    segment = timeline.at(process, launches.start_ns[launch])
    owner[rows] = timeline.owner[segment]
    rows = np.flatnonzero(by_start & is_known)
    segment = timeline.at(work.process[rows], work.start_ns[rows])
    owner[rows] = timeline.owner[segment]
    return owner


def _owners_of_memory(trace: Trace, count: int, timeline: _Timeline, on_gpu: Sequence[int]) -> Int64s:
    """Return who owns each allocation or free, by its time: int64 (count,)."""
    owner = np.full(count, NOBODY, np.int64)
    memory = trace.memory
    if memory is None:
        return owner
    process = np.where(memory.thread >= 0, trace.process_of_thread()[memory.thread], -1)
    rows = np.flatnonzero((process >= 0) & ~np.isin(process, on_gpu))
    segment = timeline.at(process[rows], memory.at_ns[rows])
    owner[rows] = timeline.owner[segment]
    return owner


def _owners(trace: Trace, windows: dict[int, Windows]) -> tuple[Ranges, Bools, Bools]:
    """Return the ranges of steps and of evaluation, which of them are steps, and which are warm-up."""
    tables: list[Spots | Work] = [trace.launches, trace.ranges]
    if any(times.on_gpu for times in windows.values()):
        tables.append(trace.work)
    first_ns = min(int(table.start_ns.min(initial=2**62)) for table in tables)
    last_ns = max(int(table.end_ns.max(initial=0)) for table in tables)
    start_ns = np.concatenate([times.start_ns for times in windows.values()])
    end_ns = np.concatenate([times.end_ns for times in windows.values()])
    is_step = np.concatenate([times.is_step for times in windows.values()])
    is_warm_up = np.concatenate([times.warm_up for times in windows.values()])
    threads = [np.full(len(times.end_ns), times.thread, np.int32) for times in windows.values()]
    name_id = np.where(is_step, trace.names.index(STEP), trace.names.index(EVALUATION))
    count = len(start_ns)
    owners = Ranges(
        start_ns=np.clip(start_ns, first_ns, last_ns),
        end_ns=np.clip(end_ns, first_ns, last_ns),
        thread=np.concatenate(threads),
        name_id=name_id.astype(np.int32),
        domain=np.zeros(count, np.int32),
        seq=np.full(count, -1, np.int64),
        style=np.full(count, PUSH_POP, np.uint8),
        open_ended=np.zeros(count, np.bool_),
        category=np.full(count, NO_CATEGORY, np.int8),
    )
    return owners, is_step, is_warm_up
