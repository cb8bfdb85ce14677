"""The kernels whose counters are wanted: those of some ranges, a phase, a name, in the order of their launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..errors import ReportError
from ..kernel_names.short import short_name
from ..report import Path
from ..summary.selection import named_by, path_matcher
from ..trace import KERNEL, Bools, Int64s
from ..vocabulary import PHASES, some_of


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: a pattern of ranges, phases, and a part of the kernel's name; empty asks for all."""

    ranges: str = ""
    phases: tuple[str, ...] = ()
    kernel: str = ""
    include_warm_up: bool = False

    def named(self, path: Path) -> Path | None:
        """Return the names in a path that were asked for; None where it has not all of them, or none was."""
        return named_by(self.ranges)(path) if self.ranges else None


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that the report shows with their launch, in the order of the launches.

    `rows` are positions in `Work`; `wanted` marks those asked for, `named` those whose name is asked for.
    """

    attribution: Attribution
    asked: Asked
    rows: Int64s
    wanted: Bools
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


def kernels(attribution: Attribution, asked: Asked) -> Kernels:
    """Find the kernels that are asked for.

    Raises ReportError where there are none.
    """
    work, launches = attribution.trace.work, attribution.trace.launches
    rows = np.flatnonzero((work.kind == KERNEL) & (work.launch >= 0))
    rows = rows[np.argsort(launches.start_ns[work.launch[rows]], kind="stable")]
    named = _named(attribution, rows, asked.kernel)
    in_ranges = _in_ranges(attribution, asked)[attribution.node[rows]]
    phases = [number for number, phase in enumerate(PHASES) if not asked.phases or phase in asked.phases]
    wanted = in_ranges & named & np.isin(attribution.phase[rows], phases)
    if not wanted.any():
        raise ReportError(_nothing(attribution, asked))
    return Kernels(attribution, asked, rows, wanted, named)


def _nothing(attribution: Attribution, asked: Asked) -> str:
    parts = [f"in ranges that match {asked.ranges!r}"] if asked.ranges else []
    parts += [f"in the phase {' or '.join(asked.phases)}"] if asked.phases else []
    parts += [f"whose name holds {asked.kernel!r}"] if asked.kernel else []
    known = some_of(name for path in _paths(attribution) for name in path)
    return f"The report has no kernel {', '.join(parts) or 'with a launch'}. Ranges: {known}."


def _named(attribution: Attribution, rows: Int64s, part: str) -> Bools:
    """Mark the kernels whose name, in full or short, holds a text; case does not count."""
    names, ids = attribution.trace.names, attribution.trace.work.name_id[rows]
    holds = np.zeros(len(names), np.bool_)
    for one in np.unique(ids).tolist():
        holds[one] = part.lower() in names[one].lower() or part.lower() in short_name(names[one]).lower()
    found: Bools = holds[ids]
    return found


def _in_ranges(attribution: Attribution, asked: Asked) -> Bools:
    """Mark the nodes whose path matches, one more for node -1; warm-up only where it is asked for."""
    matches = path_matcher(asked.ranges) if asked.ranges else bool
    found = np.array([bool(matches(path)) for path in _paths(attribution)], np.bool_)
    if not asked.ranges:
        found[-1] = True
    if not asked.include_warm_up:
        found[:-1] &= ~attribution.warm_up
    return found


def _paths(attribution: Attribution) -> list[Path]:
    """Return the names from the outermost range to each node's, and the empty path for node -1."""
    forest, names = attribution.forest, attribution.trace.names
    paths: list[Path] = [()] * (len(forest) + 1)
    own = attribution.ranges.name_id[forest.range] if len(forest) else forest.range
    for nodes in forest.by_depth() if len(forest) else []:
        for node in nodes.tolist():
            above = forest.parent[node]
            paths[node] = (*(paths[above] if above >= 0 else ()), names[own[node]])
    return paths
