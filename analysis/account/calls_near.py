"""The calls near some gaps, of all threads: what each does, and what it caused."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..support.small_numbers import bounds, grouped_rows, looked_up, rows_of_each
from ..trace import GRAPH, KERNEL, Bools, Int32s, Int64s, Launches, marked
from ..vocabulary.calls import COPY, KERNEL_LAUNCH, LOADING, NO_KIND, SYNCHRONIZATION

#: The first launch of a kernel that takes longer than this loads its code.
LAZY_NS = 100_000


class NearCalls:
    """Some of a report's calls: `first` is the row of the first of them, `caused` the work that came of them."""

    def __init__(self, attribution: Attribution, near: slice) -> None:
        self.attribution = attribution
        self.trace = attribution.trace
        self.near = near
        launches = self.trace.launches
        work = self.trace.work
        self.first, behind, _ = near.indices(len(launches))
        columns = [getattr(launches, name)[near] for name in Launches.__match_args__]
        self.launches = Launches(*columns)
        is_caused = (work.launch >= self.first) & (work.launch < behind)
        self.caused = np.flatnonzero(is_caused)
        self.call = work.launch[self.caused] - self.first  # of each piece of that work

    def lines_of(self, calls: Int64s | Int32s, *, before: bool = False) -> Int32s:
        """Return where some calls were made, by their rows among all, or where the program was before them."""
        lines = self.attribution.lines
        if lines is None:
            return np.full(len(calls), -1, np.int32)
        line_of_call = lines.before_launch if before else lines.of_launch
        return looked_up(line_of_call, calls, -1)

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """What each call does; a call is loading where it loads inside, or is a kernel's first and takes long."""
        launches = self.launches
        named = self.trace.calls
        kinds = np.zeros(len(launches), np.uint8)
        if named is not None:
            kinds = named.kind_of_name[named.of_launch[self.near]]
        nameless = np.flatnonzero(kinds[self.call] == NO_KIND)
        kind = self.trace.work.kind[self.caused[nameless]]
        computes = (kind == KERNEL) | (kind == GRAPH)
        kinds[self.call[nameless]] = np.where(computes, KERNEL_LAUNCH, COPY)  # by what came of them
        loading = np.flatnonzero(kinds == LOADING)
        for (thread,), rows in rows_of_each(launches.thread[loading]):
            inner_ns = np.sort(launches.start_ns[loading[rows]])
            outer = np.flatnonzero((launches.thread == thread) & (kinds != LOADING))
            first = np.searchsorted(inner_ns, launches.start_ns[outer])
            last = np.searchsorted(inner_ns, launches.end_ns[outer])
            kinds[outer[last > first]] = LOADING
        kinds[self._lazy_launches(kinds)] = LOADING
        return kinds

    def _lazy_launches(self, kinds: NDArray[np.uint8]) -> Int32s:
        """Return the calls that launch a kernel first in its process, and take long: they load its code."""
        work = self.trace.work
        launches = self.launches
        duration_ns = launches.end_ns - launches.start_ns
        is_long = (kinds == KERNEL_LAUNCH) & (duration_ns > LAZY_NS)
        kernels = (work.kind[self.caused] == KERNEL) & is_long[self.call]
        long_rows = self.caused[kernels]
        call = self.call[kernels]
        if not len(long_rows):
            return np.empty(0, np.int32)
        is_name_of_long = marked(work.name_id[long_rows], len(self.trace.names))
        is_same_kernel = is_name_of_long[work.name_id] & (work.kind == KERNEL)
        rows = np.flatnonzero(is_same_kernel & (work.launch >= 0))
        keys, group = grouped_rows(work.process[rows], work.name_id[rows])
        start_ns = self.trace.launches.start_ns[work.launch[rows]]
        first_ns, _ = bounds(group, start_ns, start_ns, len(keys[0]))
        group_of_long = group[np.searchsorted(rows, long_rows)]
        is_first = launches.start_ns[call] == first_ns[group_of_long]
        lazy: Int32s = call[is_first]
        return lazy

    @cached_property
    def waits(self) -> Bools:
        """Mark the calls that return when the GPU is done: synchronization, and copies that end first."""
        copies = np.flatnonzero(self.kinds[self.call] == COPY)
        call = self.call[copies]
        copied_ns = self.trace.work.end_ns[self.caused[copies]]
        waited = copied_ns <= self.launches.end_ns[call]
        waits: Bools = self.kinds == SYNCHRONIZATION
        waits[call[waited]] = True
        return waits

    @cached_property
    def worked(self) -> Bools:
        """Mark the calls that caused work."""
        return marked(self.call, len(self.launches))
