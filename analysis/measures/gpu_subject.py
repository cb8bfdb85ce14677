"""What rules look at that judge by the GPU's work alone: its names, ranges, phases and arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account.lines import lines_of_work
from ..attribution.causes import Attribution
from ..kernel_names.arithmetic import arithmetic_of
from ..kernel_names.categories import classify
from ..readers.columns import Interner
from ..support.small_numbers import ordered, rows_of_each
from ..trace import KERNEL, Bools, Int32s, Int64s, Path
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .efficiency import Counts, counted_in, keys_of
from .gpu_peaks import Peak, peak_for
from .gpu_time import Floats, GpuTime
from .symptoms import Concerned, Found, with_most

MOST_PLACES = 20
#: Kernels that are bound by memory, and what a compiler calls those that it makes of them.
MOVES_MEMORY = ("elementwise", "copy", "reduction", "normalization", "softmax", "index", "dropout")
COMPILED = r"^triton_"
#: What ranges of attention are called, whose parts can have ranges of their own.
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


class GpuSubject:
    """Some of a report's work in the order of its launches, with all that rules ask; masks are per piece of it.

    `row` are positions in the trace's work, `steps` says how many steps the work is of.
    """

    timeline: GpuTime

    def __init__(self, attribution: Attribution, row: Int64s, timeline: GpuTime, steps: int) -> None:
        self.attribution = attribution.of_all_work
        self.row = row
        self.timeline = timeline
        self.steps = steps
        self.trace = self.attribution.trace
        self.name_id = self.trace.work.name_id[row]
        self.kernel: Bools = self.trace.work.kind[row] == KERNEL
        self.node = self.attribution.node[row]
        self.duration_ns: Floats = timeline.duration_ns
        self.run: Mapping[str, Any] = self.trace.provenance.run
        self._paths: dict[int, Path] = {-1: ()}

    @cached_property
    def _of_names(self) -> tuple[Int64s, list[str]]:
        ids, code = np.unique(self.name_id, return_inverse=True)
        return code, [self.trace.names[name] for name in ids.tolist()]

    @cached_property
    def _classes(self) -> list[tuple[str, bool]]:
        return classify(self._of_names[1])

    @property
    def names(self) -> list[str]:
        """The distinct names of the work."""
        return self._of_names[1]

    @property
    def code(self) -> Int64s:
        """The name of each piece of work, a position in `names`."""
        return self._of_names[0]

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

    def of_arithmetic(self, *kinds: str) -> Bools:
        """Mark the work whose name says that it computes in one of some precisions, such as `tf32`."""
        return self.named(lambda name: arithmetic_of(name) in kinds)

    def in_places(self, fits: Callable[[Path], bool]) -> Bools:
        """Mark the work whose ranges, outermost first, fit."""
        nodes, code = np.unique(self.node, return_inverse=True)
        return np.array([fits(self.path(node)) for node in nodes.tolist()], np.bool_)[code]

    def of_phase(self, *phases: str) -> Bools:
        """Mark the work of some phases."""
        return np.isin(self.timeline.work_phase, [PHASES.index(phase) for phase in phases])

    def path(self, node: int) -> Path:
        """Return the ranges around a node, outermost first."""
        if node not in self._paths:
            forest = self.attribution.forest
            ranges = self.attribution.ranges
            name = self.trace.names[ranges.name_id[forest.range[node]]]
            self._paths[node] = (*self.path(int(forest.parent[node])), name)
        return self._paths[node]

    def concerned(self, symptom: Found) -> Concerned:
        """Return the work of a symptom."""
        cause = symptom.work if symptom.cause is None else symptom.cause
        lines = symptom.lines
        if lines is None:
            lines = lines_of_work(self.attribution, self.row[cause])
        places, most = self.places_of(self.node[cause], self.duration_ns[cause])
        return Concerned(places, most, lines, self.per_step(symptom.work))

    def places(self, work: Bools) -> tuple[Path, ...]:
        """Return the ranges of some work, those with the most time first."""
        return self.places_of(self.node[work], self.duration_ns[work])[0]

    def places_of(self, node: Int32s, ns: Floats) -> tuple[tuple[Path, ...], Path]:
        """Return the ranges of some nodes, -1 for none, with the most of `ns` first, and that with most of it."""
        in_range = node >= 0
        node = node[in_range]
        _, first, group = np.unique(self._path_ids(node), return_index=True, return_inverse=True)
        group_ns = np.bincount(group, ns[in_range])
        order = np.lexsort((first, -group_ns))
        paths = [self.path(index) for index in node[first[order]].tolist()]
        inside = map(self.below_step, paths)
        most = with_most(dict(zip(inside, group_ns[order].tolist(), strict=True)), float(ns.sum()))
        return tuple(paths[:MOST_PLACES]), most

    @cached_property
    def path_id(self) -> Int64s:
        """A number for each piece of work's path: equal paths, below steps of any name, have equal numbers."""
        return self._path_ids(self.node)

    def _path_ids(self, node: Int32s) -> Int64s:
        number = Interner[Path]()
        nodes, code = np.unique(node, return_inverse=True)
        ids = [number(self.below_step(self.path(node))) for node in nodes.tolist()]
        return np.array(ids, np.int64)[code]

    def below_step(self, path: Path) -> Path:
        """Return the part of a path below its step, whose name can have a number: `ProfilerStep#3`."""
        for depth, name in enumerate(path, 1):
            if name in self._step_names:
                return path[depth:]
        return path

    @cached_property
    def attention_range(self) -> Int64s:
        """The range instance of each piece of work, or that around it where its name says attention."""
        forest = self.attribution.forest
        nodes = ordered(self.node)
        instance = {-1: -1}
        for node in nodes[nodes >= 0].tolist():
            parent = int(forest.parent[node])
            around = parent if parent >= 0 and ATTENTION.search(self.path(parent)[-1]) else node
            instance[node] = int(forest.range[around])
        return np.array([instance[node] for node in nodes.tolist()], np.int64)[np.searchsorted(nodes, self.node)]

    @cached_property
    def is_compiled(self) -> bool:
        """Whether the model is compiled: as the run says, or by most of the time of its memory-bound kernels."""
        if self.run.get("compile"):
            return True
        fused = self.matching(COMPILED) & self.kernel
        plain = self.of_category(*MOVES_MEMORY) & ~fused
        in_model = self.of_phase(FORWARD, BACKWARD)
        return self.time_ns(fused & in_model) > self.time_ns(plain & in_model)

    def run_number(self, name: str) -> int:
        """Return a number that the run wrote, such as `parameters`; 0 if it did not."""
        return int(self.run.get(name) or 0)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """The peak of memory that the program used, and what the GPU has; 0 where unknown."""
        return self.run_number("memory_peak_bytes"), self.run_number("device_memory_bytes")

    def taking_over(self, work: Bools, dropped: Bools, *group: NDArray[Any]) -> Floats:
        """Return by which factor work lasts so that what is not dropped takes the time of all, float64 (work,).

        `group` are columns (work,): that of equal rows is taken over together.
        """
        factor = np.ones(len(work))
        chosen = np.flatnonzero(work)
        for _key, places in rows_of_each(*(column[chosen] for column in group)):
            rows = chosen[places]
            left = rows[~dropped[rows]]
            factor[left] = self.duration_ns[rows].sum() / self.duration_ns[left].sum()
        return factor

    def per_step(self, work: Bools) -> float:
        """Return how many of these pieces of work a step has."""
        return float(work.sum()) / self.steps

    def time_ns(self, work: Bools) -> float:
        """Return how long these pieces of work take in a step."""
        return float(self.duration_ns[work].sum()) / self.steps

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
        figures = {}
        for (path_id, phase), rows in rows_of_each(self.path_id, self.timeline.work_phase):
            path = self.below_step(self.path(int(self.node[rows[0]])))
            key = next((key for key in keys_of(PHASES[phase], path) if key in entries), None)
            if key is not None and entries[key].paths is not None:
                figures[path_id, phase] = entries[key].figures
        return figures

    @cached_property
    def _step_names(self) -> set[str]:
        """What the measured steps are called."""
        ranges = self.attribution.ranges
        return {self.trace.names[ranges.name_id[step]] for step in self.attribution.steps.range.tolist()}
