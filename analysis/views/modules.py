"""The slowest modules in three lines: the time of their own kernels in forward and backward."""

from __future__ import annotations

from functools import cache

from ..document import Row, Table, headed
from ..report import KernelRow, Number, Path, Report
from ..vocabulary import PHASES, phase_matcher, step_matcher
from . import graphs, headings
from .rows import RANKED, common_length, label, share, time_of

FIRST = 3
#: The least share of the time that is worth a row.
SMALLEST = 0.01


def slowest(report: Report) -> Table:
    """Rank the ranges below those of steps and phases by the time of their own kernels, all phases together."""
    inside = _Inside(report)
    times: dict[Path, dict[str, Number]] = {}
    rows = [row for row in report.kernels if row.kind in RANKED]
    for row in rows:
        if path := inside.path_of(row):
            of_path = times.setdefault(path, {})
            of_path[row.phase] = of_path.get(row.phase, 0) + row.total_ns
    ranked = sorted(times.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    phases = [phase for phase in PHASES if any(phase in of_path for _, of_path in ranked[:FIRST])]
    phases = phases if len(phases) > 1 else []
    common, total_ns = common_length(times), time_of(rows)
    lines = []
    for path, of_path in ranked[:FIRST]:
        sum_ns = sum(of_path.values())
        if sum_ns < SMALLEST * total_ns:
            break
        cells = [of_path.get(phase, 0) for phase in phases]
        lines.append(Row((label(path, common), *cells, sum_ns, share(sum_ns, total_ns))))
    over_steps = "" if report.per_step or not report.counted_steps else f" {headings.scope(report)}"
    columns = headed(range=f"Slowest ranges, {graphs.counted_time(report)}, {{unit}}{over_steps}")
    columns += headed(**{f"{phase}_ns": headings.phase(phase) for phase in phases})
    columns += headed(total_ns="sum" if phases else "time", share="%")
    return Table("slowest", "", columns, tuple(lines), least=0)


class _Inside:
    """Knows the ranges of a report that stand for steps and phases."""

    def __init__(self, report: Report) -> None:
        self._is_step, self._phase_of = step_matcher(report.step), cache(phase_matcher(report.phase_names))

    def path_of(self, row: KernelRow) -> Path:
        """Return the path of a row below its step and phase; empty if that is all there is."""
        outer = 0
        for depth, name in enumerate(row.path, 1):
            phase, part = self._phase_of(name)
            if self._is_step(name.replace("*", "0")) or (phase and not part):
                outer = depth
        return row.path[outer:]
