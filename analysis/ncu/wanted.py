"""The kernels whose counters are wanted: those of some ranges, a phase, a name, in the order of their launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
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

    `rows` are positions in `Work`, `paths` the kernels' ranges; `requested` marks those asked for, `named` those
    whose name is asked for.
    """

    attribution: Attribution
    request: Asked
    rows: Int64s
    paths: list[Path]
    requested: Bools
    named: Bools

    def name(self, row: int) -> str:
        """Return the name of the kernel at a position in `Work`."""
        trace = self.attribution.trace
        name: str = trace.names[trace.work.name_id[row]]
        return name


def kernels(attribution: Attribution, request: Asked) -> Kernels:
    """Find the kernels that are asked for, in ranges, in phases, and by a part of their name, long or short.

    Raises ReportError if no kernel matches.
    """
    trace, paths = attribution.trace, Paths(attribution)
    rows = np.flatnonzero((trace.work.kind == KERNEL) & (trace.work.launch >= 0))
    rows = rows[np.argsort(trace.launches.start_ns[trace.work.launch[rows]], kind="stable")]
    part, is_named = request.kernel.lower(), np.zeros(len(trace.names), np.bool_)
    for name_id in np.unique(trace.work.name_id[rows]).tolist():
        name = trace.names[name_id]
        is_named[name_id] = part in name.lower() or part in short_name(name).lower()
    path_of = paths.names_of_node[attribution.node[rows]]
    phases = [number for number, phase in enumerate(PHASES) if not request.phases or phase in request.phases]
    named = is_named[trace.work.name_id[rows]]
    requested = named & np.isin(attribution.phase[rows], phases)
    if request.ranges:
        matches = path_matcher(request.ranges, naming_of(trace, every_index=True))
        requested &= np.array(list(map(matches, paths.names)), np.bool_)[path_of]
    if not request.include_warm_up:
        requested &= ~np.append(attribution.warm_up, False)[attribution.node[rows]]
    if not requested.any():
        conditions = [f"in ranges that match {request.ranges!r}"] if request.ranges else []
        conditions += [f"in the phase {' or '.join(request.phases)}"] if request.phases else []
        conditions += [f"whose name holds {request.kernel!r}"] if request.kernel else []
        ranges = some_of(name for path in paths.names_of_node.tolist() for name in paths.names[path])
        raise ReportError(
            f"The report has no kernel {', '.join(conditions) or 'with a launch'}. Ranges: {ranges}."
        )
    return Kernels(attribution, request, rows, [paths.names[path] for path in path_of.tolist()], requested, named)
