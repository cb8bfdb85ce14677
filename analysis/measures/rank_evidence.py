"""What one rank's report shows of its part in a job: collectives, pauses of its program, reads of reduced values.

    a step of accumulation   forward backward │ forward backward │ update
    its collectives                   early                last

All is by step of the report's first loop, so that the reports of a job can be laid side by side (`job`); it is
computed where a report is read, and sent to the process that compares them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..account import Partition
from ..account.cells import COPIES, copy_called, split
from ..account.idle import CAUSES, DATA_LOADING, HOST_CODE
from ..account.intervals import Intervals, union
from ..account.lines import lines_of_work
from ..kernel_names.categories import categorize
from ..report.account import LineTime
from ..support.small_numbers import grouped_rows, summed
from ..trace import KERNEL, MEMCPY, Bools, Int64s, Path, marked
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from ..vocabulary.calls import COPY, KERNEL_LAUNCH, OTHER_LAUNCH, SYNCHRONIZATION
from .exchanges import COLLECTIVES, OTHER, SEND_RECV, Exchanges, exchanges
from .overlap import COMMUNICATION, communication
from .timeline import PAUSE_NS, TO_CPU, TO_GPU

#: So many kernels may compute with a reduced value before the program reads it, such as a division.
MOST_BEFORE_READ = 4
#: Collectives that the CPU's decisions need, or that nobody names: their reads are not judged.
NEEDED = (SEND_RECV, OTHER, "all_to_all")
#: How NCCL's kernels say that they add integers: `AllReduce_Sum_u32_RING_LL`, `AllReduce_RING_LL_Sum_int32_t`.
ADDS_INTEGERS = re.compile(r"allreduce\w*_(?:[uis]32|u?int32_t)(?![0-9])", re.IGNORECASE)
ON_GPU = "on GPU"
#: The bytes of one parameter in DDP's map of used parameters.
MAP_BYTES = 4

_FORWARD, _BACKWARD, _OPTIMIZER = (PHASES.index(phase) for phase in (FORWARD, BACKWARD, OPTIMIZER))


@dataclass(frozen=True, slots=True)
class Reads:
    """Collectives outside of the model for whose end the program waits: by step, ns or their number.

    `waiting_ns` is how long its calls wait, `handling_ns` the rest of the time from a collective's launch to the
    end of the wait. After a `barrier` nothing is copied to the CPU, of a value something is. `path` is the range
    around most of them.
    """

    waiting_ns: Int64s
    handling_ns: Int64s
    values: Int64s
    barriers: Int64s
    path: Path
    lines: tuple[LineTime, ...]


@dataclass(frozen=True, slots=True)
class Early:
    """Gradients' collectives of backwards that are not the last before an update: `kernels` marks them.

    By step, ns: how long copies on the GPU last in these backwards, which are of reduced gradients, and what the
    host takes for these copies and the collectives.
    """

    kernels: Bools
    copies_ns: Int64s
    calls_ns: Int64s
    lines: tuple[LineTime, ...]


@dataclass(frozen=True, slots=True)
class Maps:
    """Sums of DDP's maps of used parameters: `kernels` marks them.

    A map has this many `parameters`, 0 if unknown; it is `copied_back` if one of them is not used.
    """

    kernels: Bools
    parameters: int
    copied_back: bool


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What the report of one rank shows, by step of its first loop, or by kernel of its `exchanges`.

    `pauses_ns` is how long its program makes no call for over 1 ms at a time, and `idle_pauses_ns`, by cause, how
    long its GPU is idle meanwhile; `paused_outside_ns` is what of that is in no forward, backward or update.
    `copies_ns` is how long copies last, by direction, hidden or not. `kernels` are the number of launches and the
    time of each computing kernel with its grid, over the steps that count.
    """

    exchanges: Exchanges
    pauses_ns: Int64s
    idle_pauses_ns: Mapping[str, Int64s]
    paused_outside_ns: Int64s
    copies_ns: Mapping[str, Int64s]
    reads: Reads
    early: Early
    maps: Maps
    kernels: Mapping[tuple[str, int], tuple[int, int]]


def rank_evidence(partition: Partition) -> RankEvidence | None:
    """Return a report's evidence on its rank, over all steps; None without steps, and of a CPU."""
    if partition.on_cpu or not partition.has_steps:
        return None
    held = exchanges(partition.attribution, include_warm_up=partition.include_warm_up)
    return _Rank(partition, held).evidence()


class _Rank:
    """One report with its collectives, from which the evidence is collected."""

    def __init__(self, partition: Partition, held: Exchanges) -> None:
        self.partition = partition
        self.held = held
        self.attribution = partition.attribution
        self.trace, self.work = self.attribution.trace, self.attribution.trace.work
        self.loop = partition.steps.loops[0]
        self.steps = len(self.loop.rows)
        self.row = held.kernels.row
        self.phase = self.attribution.phase[self.row]

    def evidence(self) -> RankEvidence:
        pauses = self._pauses()
        idle_pauses_ns, paused_outside_ns = self._idle_pauses(pauses)
        return RankEvidence(
            exchanges=self.held,
            pauses_ns=self._by_step(pauses),
            idle_pauses_ns=idle_pauses_ns,
            paused_outside_ns=paused_outside_ns,
            copies_ns=self._copies(),
            reads=self._reads(),
            early=self._early(),
            maps=self._maps(),
            kernels=self._kernels(),
        )

    def _by_step(self, times: Intervals) -> Int64s:
        """Return how much of some times is in each step, ns: int64 (steps,)."""
        pieces = self.loop.pieces.in_steps()
        _, piece, start_ns, end_ns = split(times.start_ns, times.end_ns, pieces)
        return summed(pieces.row[piece] - self.loop.rows[0], end_ns - start_ns, self.steps)

    def _pauses(self) -> Intervals:
        """Return when no thread that launches work makes a call, for over 1 ms at a time."""
        launches = self.trace.launches
        launched = self.work.launch[self.work.process == self.loop.process]
        threads = marked(launches.thread[launched[launched >= 0]], len(self.trace.threads))
        calls = launches.take(threads[launches.thread])
        calling = union(calls.start_ns, calls.end_ns)
        start_ns = calling.end_ns[:-1]
        end_ns = calling.start_ns[1:]
        is_long = end_ns - start_ns > PAUSE_NS
        return Intervals(start_ns[is_long], end_ns[is_long])

    def _idle_pauses(self, pauses: Intervals) -> tuple[dict[str, Int64s], Int64s]:
        """Return how long the GPU is idle in pauses by cause and step, and in those outside of phases by step."""
        idle = self.partition.idle_pieces()
        paused_ns = pauses.covered(idle.start_ns, idle.end_ns)
        ends_ns = self.partition.table.end_ns[self.loop.rows]
        step = np.minimum(np.searchsorted(ends_ns, idle.start_ns, "right"), self.steps - 1)
        by_cause = {
            CAUSES[cause]: summed(step, np.where(idle.cause == cause, paused_ns, 0), self.steps)
            for cause in (HOST_CODE, DATA_LOADING)
        }
        in_phase = np.append(np.isin(self.attribution.node_phase, (_FORWARD, _BACKWARD, _OPTIMIZER)), False)
        is_paused = np.isin(idle.cause, (HOST_CODE, DATA_LOADING))
        outside_ns = np.where(is_paused & ~in_phase[idle.node], paused_ns, 0)
        return by_cause, summed(step, outside_ns, self.steps)

    def _copies(self) -> dict[str, Int64s]:
        """Return how long copies last by direction and step, whatever runs beside them, ns."""
        of_name = np.array([COPIES.index(copy_called(name)) for name in self.trace.names] or [0], np.int64)
        rows = np.flatnonzero((self.work.kind == MEMCPY) & (self.work.process == self.loop.process))
        step = self._step_of(rows)
        direction = of_name[self.work.name_id[rows]]
        lasts_ns = self.work.duration_ns[rows]
        return {
            COPIES[number]: summed(step, np.where(direction == number, lasts_ns, 0), self.steps)
            for number in np.unique(direction).tolist()
        }

    def _step_of(self, rows: Int64s) -> Int64s:
        """Return the step in which some work ends, the last for later work: int64 (rows,)."""
        ends_ns = self.partition.table.end_ns[self.loop.rows]
        return np.minimum(np.searchsorted(ends_ns, self.work.end_ns[rows], "left"), self.steps - 1)

    def _early(self) -> Early:
        """Return gradients' collectives of backwards that are not the last before an update.

        What forward has too, such as tensor parallelism's sums, is of no gradients.
        """
        follows = self._is_followed()
        kernels = self.held.kernels
        kind = kernels.collective * (len(self.held.groups) + 1) + kernels.group
        in_forward = kind[self.phase == _FORWARD]
        in_last = kind[(self.phase == _BACKWARD) & ~follows[self.row]]
        early: Bools = follows[self.row] & ~np.isin(kind, in_forward) & np.isin(kind, in_last)
        on_gpu = self.trace.work_named(lambda name: copy_called(name) == ON_GPU)
        copies = np.flatnonzero(follows & (self.work.kind == MEMCPY) & on_gpu & early.any())
        both = np.concatenate([self.row[early], copies])
        return Early(
            early,
            summed(self._step_of(copies), self.work.duration_ns[copies], self.steps),
            summed(self._step_of(both), self._since_last_launch(both), self.steps),
            lines_of_work(self.attribution, self.row[early]),
        )

    def _is_followed(self) -> Bools:
        """Mark work of backward behind which another forward begins before the next update, bool (work,)."""
        rows = np.flatnonzero((self.work.launch >= 0) & (self.work.process == self.loop.process))
        rows = rows[np.argsort(self.trace.launches.start_ns[self.work.launch[rows]], kind="stable")]
        phase = self.attribution.phase[rows]
        is_known = np.isin(phase, (_FORWARD, _BACKWARD, _OPTIMIZER))
        rows = rows[is_known]
        phase = phase[is_known]
        before = np.concatenate([phase[:1], phase[:-1]])
        updates = np.cumsum((phase == _OPTIMIZER) & (before != _OPTIMIZER))
        batch = np.cumsum((phase == _FORWARD) & (before != _FORWARD))
        update_of = np.full(int(batch.max(initial=0)) + 2, -1, np.int64)
        in_model = phase != _OPTIMIZER
        update_of[batch[in_model]] = updates[in_model]
        is_updated = update_of < updates.max(initial=0)
        has_next = is_updated[batch] & (update_of[batch] == update_of[batch + 1])
        result = np.zeros(len(self.work), np.bool_)
        result[rows] = has_next & (phase == _BACKWARD)
        return result

    def _since_last_launch(self, rows: Int64s) -> Int64s:
        """Return how long before the end of each launch its thread's launch before it had ended, ns."""
        launches = self.trace.launches
        launch = np.flatnonzero(marked(self.work.launch, len(launches)))
        order = launch[np.lexsort((launches.start_ns[launch], launches.thread[launch]))]
        end_ns = launches.end_ns[order]
        thread = launches.thread[order]
        since_ns = np.zeros(len(launches) + 1, np.int64)
        same = thread[1:] == thread[:-1]
        since_ns[order[1:]] = np.where(same, np.maximum(end_ns[1:] - end_ns[:-1], 0), 0)
        return np.minimum(since_ns[self.work.launch[rows]], PAUSE_NS)

    def _reads(self) -> Reads:
        """Return the collectives outside of forward, backward and optimizer whose end the program waits for."""
        kernels = self.held.kernels
        launches = self.trace.launches
        calls = self.trace.calls
        waiting, handling, values, barriers = np.zeros((4, self.steps), np.int64)
        inside = np.isin(self.phase, (_FORWARD, _BACKWARD, _OPTIMIZER))
        needed = np.isin(kernels.collective, [COLLECTIVES.index(name) for name in NEEDED])
        launch = self.work.launch[self.row]
        some = np.flatnonzero(~inside & ~needed & (launch >= 0) & (kernels.step >= 0))
        is_read = np.zeros(len(self.row), np.bool_)
        knows_phases = np.isin((_FORWARD, _BACKWARD), self.attribution.phase).all()
        if calls is None or not len(some) or not knows_phases:
            return Reads(waiting, handling, values, barriers, (), ())
        line = _CallLine(self.partition, np.unique(launches.thread[launch[some]]))
        reached = 0  # the end of the read before: a later collective begins there
        for kernel in some[np.argsort(launches.start_ns[launch[some]], kind="stable")].tolist():
            read = line.read_after(int(launch[kernel]))
            if read is None:
                continue
            begin_ns = int(launches.start_ns[launch[kernel]])
            begin_ns = reached if 0 < begin_ns - reached < PAUSE_NS else max(begin_ns, reached)
            reached = max(read.end_ns, reached)
            lasted_ns = max(read.end_ns - begin_ns, 0)
            waiting_ns = min(read.waiting_ns, lasted_ns)
            step = min(int(kernels.step[kernel]), self.steps - 1)
            waiting[step] += waiting_ns
            handling[step] += lasted_ns - waiting_ns
            values[step] += read.copies
            barriers[step] += not read.copies
            is_read[kernel] = True
        path = self._path(is_read)
        lines = lines_of_work(self.attribution, self.row[is_read])
        return Reads(waiting, handling, values, barriers, path, lines)

    def _path(self, chosen: Bools) -> Path:
        """Return the ranges around the most of some collectives, without PyTorch's own of the collective."""
        node = self.attribution.node[self.row[chosen]]
        names = self.partition.paths.names
        paths = [names[self.partition.paths.names_of_node[number]] for number in node.tolist()]
        outside = Counter(tuple(name for name in path if not name.startswith("nccl:")) for path in paths)
        return outside.most_common(1)[0][0] if outside else ()

    def _maps(self) -> Maps:
        """Return sums of integers in backward behind a copy to the GPU: of DDP's maps of used parameters."""
        trace = self.trace
        is_map = trace.work_named(ADDS_INTEGERS.search)[self.row] & (self.phase == _BACKWARD)
        parameters = 0
        for kernel in np.flatnonzero(is_map).tolist():
            copy = self._copy_before(int(self.row[kernel]))
            is_map[kernel] = copy >= 0
            if copy >= 0 and trace.copies is not None:
                of_copy = trace.copies.bytes[trace.copies.work == copy]
                parameters = int(of_copy.max(initial=0)) // MAP_BYTES
        is_copied = trace.work_named(TO_CPU.__eq__) & (self.attribution.phase == _BACKWARD)
        return Maps(is_map, parameters, bool(is_map.any() and is_copied.any()))

    def _copy_before(self, row: int) -> int:
        """Return the copy to the GPU that the thread of some work launched just before it; -1 if it did not."""
        work = self.work
        launches = self.trace.launches
        launch = int(work.launch[row])
        if launch < 0:
            return -1
        thread = launches.thread[launch]
        is_of_thread = (work.launch >= 0) & (launches.thread[work.launch] == thread)
        begun_ns = np.where(is_of_thread, launches.start_ns[work.launch], launches.start_ns[launch])
        earlier = np.flatnonzero(begun_ns < launches.start_ns[launch])
        if not len(earlier):
            return -1
        before = int(earlier[begun_ns[earlier].argmax()])
        return before if self.trace.names[work.name_id[before]] == TO_GPU else -1

    def _kernels(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the number and time of the computing kernels of each name and grid, in steps that count."""
        work = self.partition.of_counted_steps.trace.work
        rows = np.flatnonzero(work.kind == KERNEL)
        (name, grid), group = grouped_rows(work.name_id[rows], work.grid[rows])
        count = np.bincount(group, minlength=len(name)).tolist()
        total_ns = summed(group, work.duration_ns[rows], len(name)).tolist()
        names = [self.trace.names[number] for number in name.tolist()]
        category = categorize(names, self.trace.categories)
        keys = zip(names, grid.tolist(), strict=True)
        of_keys = zip(keys, count, total_ns, category, strict=True)
        return {key: (number, ns) for key, number, ns, of_key in of_keys if of_key != COMMUNICATION}


@dataclass(frozen=True, slots=True)
class _Read:
    """A wait for a collective: its end, how long calls waited, and whether a copy to the CPU was before it."""

    end_ns: int
    waiting_ns: int
    copies: bool


class _CallLine:
    """The calls of some threads, each thread's in the order of time."""

    def __init__(self, partition: Partition, threads: Int64s) -> None:
        trace = partition.attribution.trace
        launches = trace.launches
        work = trace.work
        assert trace.calls is not None
        rows = np.flatnonzero(np.isin(launches.thread, threads))
        self.order = rows[np.lexsort((launches.start_ns[rows], launches.thread[rows]))]
        self.place = np.full(len(launches), -1, np.int64)
        self.place[self.order] = np.arange(len(self.order))
        self.thread = launches.thread[self.order]
        self.start_ns, self.end_ns = launches.start_ns[self.order], launches.end_ns[self.order]
        self.kind = trace.calls.kinds[self.order]
        launched = work.launch[(work.kind == KERNEL) & communication(trace)[work.name_id]]
        is_exchange = marked(launched, len(launches))[self.order]
        computes = np.isin(self.kind, (KERNEL_LAUNCH, OTHER_LAUNCH)) & ~is_exchange
        self.computed = np.cumsum(computes)
        self.waits = np.flatnonzero(self.kind == SYNCHRONIZATION)
        self.is_copy = marked(work.launch[trace.work_named(TO_CPU.__eq__)], len(launches))[self.order]

    def read_after(self, launch: int) -> _Read | None:
        """Return the next wait of the thread after a launch call; None if it computes more before."""
        place = int(self.place[launch])
        following = int(np.searchsorted(self.waits, place, "right"))
        if following == len(self.waits):
            return None
        wait = int(self.waits[following])
        if self.thread[wait] != self.thread[place]:
            return None
        if self.computed[wait] - self.computed[place] > MOST_BEFORE_READ:
            return None
        calls = slice(place + 1, wait + 1)
        waiting = np.isin(self.kind[calls], (SYNCHRONIZATION, COPY))
        waiting_ns = int((self.end_ns[calls] - self.start_ns[calls])[waiting].sum())
        return _Read(int(self.end_ns[wait]), waiting_ns, bool(self.is_copy[calls].any()))
