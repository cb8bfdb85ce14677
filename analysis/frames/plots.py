"""A ranking drawn with matplotlib: phases by category, the longest ranges, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report import Report, added
from ..summary.selection import renamed
from ..support.text import head_of
from ..support.units import time_unit
from ..views.rows import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RANGES = 10
LABEL_WIDTH = 40
INCHES = (12.0, 7.0)
ABOVE_STEPS = [["phases", "ranges"], ["steps", "ranges"]]
ALONE = [["phases", "ranges"]]


def figure(report: Report, steps_ns: Sequence[float] = ()) -> Figure:
    """Return the figure; `steps_ns` is the kernel time of each measured step, in order.

    Raises ModuleNotFoundError, with what to install, if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        message = "plots need matplotlib: pip install 'nvtx-kernels[plot]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    drawn = Figure(figsize=INCHES, layout="constrained")
    axes = drawn.subplot_mosaic(ABOVE_STEPS if steps_ns else ALONE)  # type: ignore[arg-type]
    per = " per step" if report.per_step else ""
    _phases(axes["phases"], report, per)
    _ranges(axes["ranges"], report, per)
    if steps_ns:
        _steps(axes["steps"], steps_ns)
    drawn.suptitle(report.provenance.file)
    return drawn


def _phases(axes: Axes, report: Report, per: str) -> None:
    """Stack the kernel time of each phase's categories."""
    phases = [row.phase for row in report.phases]
    rows = added([row for row in report.kernels if row.kind == "kernel"], ("phase", "category"))
    unit = time_unit([row.kernel_ns for row in report.phases])
    base = dict.fromkeys(phases, 0.0)
    totals = {row.category: row.total_ns for row in added(rows, ("category",))}
    for category in sorted(totals, key=lambda name: -totals[name]):
        times = {row.phase: row.total_ns / unit.ns for row in rows if row.category == category}
        heights = [times.get(phase, 0.0) for phase in phases]
        axes.bar(phases, heights, bottom=list(base.values()), label=category)
        base = {phase: base[phase] + times.get(phase, 0.0) for phase in phases}
    axes.set_ylabel(f"kernel time{per}, {unit.name}")
    axes.legend(fontsize="small")


def _ranges(axes: Axes, report: Report, per: str) -> None:
    """Draw the ranges in which most kernel time was launched directly."""
    rows = sorted(renamed(report).ranges, key=lambda row: -row.self_ns)[:MOST_RANGES]
    unit = time_unit([row.self_ns for row in rows])
    names = [head_of(label(row.path[-3:]), LABEL_WIDTH) for row in rows]
    axes.barh(range(len(rows)), [row.self_ns / unit.ns for row in rows], tick_label=names)
    axes.invert_yaxis()
    axes.set_xlabel(f"kernel time launched directly in the range{per}, {unit.name}")


def _steps(axes: Axes, steps_ns: Sequence[float]) -> None:
    """Draw the kernel time of each step."""
    unit = time_unit(steps_ns)
    axes.bar(range(len(steps_ns)), [time / unit.ns for time in steps_ns])
    axes.set_xlabel("step")
    axes.set_ylabel(f"kernel time, {unit.name}")
