"""The slowest modules in three lines: the time of their own kernels in forward and backward."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from ..document import Row, Table, headed
from ..report import KernelRow, Number, Path, Report
from ..report.account import COMMUNICATION
from ..vocabulary import PHASES, phase_matcher, step_matcher
from . import graphs, headings
from .rows import RANKED, common_length, label, share, time_of

FIRST = 3
#: The least share of the time that is worth a row.
SMALLEST = 0.01


def slowest(report: Report) -> Table:
    """Rank the ranges below those of steps and phases by the time of their own kernels, all phases together."""
    inside = _Inside(report)
    times: dict[Path, dict[str, Number]] = defaultdict(lambda: defaultdict(int))
    rows = [row for row in report.kernels if row.kind in RANKED]
    for row in rows:
        if path := inside.path_of(row):
            times[path][row.phase] += row.total_ns
    longest = sorted(times, key=lambda path: (-sum(times[path].values()), path))[:FIRST]
    phases = [phase for phase in PHASES if any(phase in times[path] for path in longest)]
    if len(phases) == 1:
        phases = []
    common = common_length(times)
    total_ns = time_of(rows)
    lines = []
    for path in longest:
        sum_ns = sum(times[path].values())
        if sum_ns < SMALLEST * total_ns:
            break
        cells = [times[path].get(phase, 0) for phase in phases]
        lines.append(Row((label(path, common), *cells, sum_ns, share(sum_ns, total_ns))))
    over_steps = "" if report.per_step or not report.counted_steps else f" {headings.scope(report)}"
    waits = any(row.category == COMMUNICATION and inside.path_of(row) in longest for row in rows)
    figures = f"{{unit}}{over_steps or ' and % of all'}"
    columns = headed(range=f"Slowest ranges, own {graphs.counted_time(report)}, {figures}")
    columns += headed(**{f"{phase}_ns": headings.phase(phase) for phase in phases})
    columns += headed(total_ns="sum" if phases else "time", share="%")
    caption = "Times include waiting for other ranks." if waits else ""
    return Table("slowest", "", columns, tuple(lines), caption, least=0)


class _Inside:
    """Knows the ranges of a report that stand for steps and phases."""

    def __init__(self, report: Report) -> None:
        self._is_step = step_matcher(report.step)
        self._phase_of = cache(phase_matcher(report.phase_names))

    def path_of(self, row: KernelRow) -> Path:
        """Return the path of a row below its step and phase; empty if that is all there is."""
        outer = 0
        for depth, name in enumerate(row.path, 1):
            phase, part = self._phase_of(name)
            if self._is_step(name.replace("*", "0")) or (phase and not part):
                outer = depth
        return row.path[outer:]
