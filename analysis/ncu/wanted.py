"""The kernels whose counters are wanted: those of some ranges, a phase, a name, in the order of their launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..errors import ReportError
from ..kernel_names.short import short_name
from ..report import Path
from ..summary.selection import named_by, naming_of, path_matcher
from ..trace import KERNEL, Bools, Int64s
from ..vocabulary import PHASES, phase_of, some_of
from ..vocabulary.modules import Naming


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: a pattern of ranges, phases, and a part of the kernel's name; empty asks for all."""

    ranges: str = ""
    phases: tuple[str, ...] = ()
    kernel: str = ""
    include_warm_up: bool = False

    def named(self, path: Path, naming: Naming) -> Path:
        """Return the names in a path that were asked for, by themselves or by their phase."""
        of_pattern = (named_by(self.ranges, naming)(path) or ()) if self.ranges else ()
        return (*(name for name in path if self.phases and phase_of(name) in self.phases), *of_pattern)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that the report shows with their launch, in the order of the launches.

    `rows` are positions in `Work`; `requested` marks those asked for, `named` those whose name is asked for.
    """

    attribution: Attribution
    request: Asked
    rows: Int64s
    requested: Bools
    named: Bools

    def name(self, row: int) -> str:
        """Return the name of the kernel at a position in `Work`."""
        trace = self.attribution.trace
        name: str = trace.names[trace.work.name_id[row]]
        return name

    def paths(self) -> list[Path]:
        """Return the path of each kernel's ranges."""
        of_node = _paths(self.attribution)
        return [of_node[node] for node in self.attribution.node[self.rows].tolist()]


def kernels(attribution: Attribution, request: Asked) -> Kernels:
    """Find the kernels that are asked for, in ranges, in phases, and by a part of their name, long or short.

    Raises ReportError where there are none.
    """
    trace, paths = attribution.trace, _paths(attribution)
    rows = np.flatnonzero((trace.work.kind == KERNEL) & (trace.work.launch >= 0))
    rows = rows[np.argsort(trace.launches.start_ns[trace.work.launch[rows]], kind="stable")]
    part, is_named = request.kernel.lower(), np.zeros(len(trace.names), np.bool_)
    for name_id in np.unique(trace.work.name_id[rows]).tolist():
        name = trace.names[name_id]
        is_named[name_id] = part in name.lower() or part in short_name(name).lower()
    matches = (
        path_matcher(request.ranges, naming_of(trace, every_index=True)) if request.ranges else lambda _: True
    )
    in_request = np.array([bool(matches(path)) for path in paths], np.bool_)  # the last is of work in no range
    if not request.include_warm_up:
        in_request[:-1] &= ~attribution.warm_up
    phases = [number for number, phase in enumerate(PHASES) if not request.phases or phase in request.phases]
    named = is_named[trace.work.name_id[rows]]
    requested = in_request[attribution.node[rows]] & named & np.isin(attribution.phase[rows], phases)
    if not requested.any():
        conditions = [f"in ranges that match {request.ranges!r}"] if request.ranges else []
        conditions += [f"in the phase {' or '.join(request.phases)}"] if request.phases else []
        conditions += [f"whose name holds {request.kernel!r}"] if request.kernel else []
        ranges = some_of(name for path in paths for name in path)
        raise ReportError(
            f"The report has no kernel {', '.join(conditions) or 'with a launch'}. Ranges: {ranges}."
        )
    return Kernels(attribution, request, rows, requested, named)


def _paths(attribution: Attribution) -> list[Path]:
    """Return the names from the outermost range to each node's, and the empty path for node -1."""
    forest, names = attribution.forest, attribution.trace.names
    paths: list[Path] = [()] * (len(forest) + 1)
    if len(forest):
        name_ids = attribution.ranges.name_id[forest.range]
        for nodes in forest.by_depth():
            for node in nodes.tolist():
                paths[node] = (*paths[forest.parent[node]], names[name_ids[node]])
    return paths
