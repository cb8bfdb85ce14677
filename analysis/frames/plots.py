"""A ranking drawn with matplotlib: a step as a bar, phases by category, the longest ranges, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report import Report, added
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, OPERATORS, Account, State
from ..summary.selection import renamed
from ..support.text import head_of
from ..support.units import time_unit
from ..views import evidence, headings
from ..views.account import state_name
from ..views.rows import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .picture import Picture

MOST_RANGES = 10
LABEL_WIDTH = 40
#: The colours of a step's parts, in the order of a bar; those of this share of it are labelled.
COLOURS = {COMPUTE: "#7fb2ec", OPERATORS: "#7fb2ec", COMMUNICATION: "#2fb5a3", COPY: "#f5a572", IDLE: "#d5d8dd"}
LABELLED_FROM = 0.09
INCHES = (12.0, 7.0)
ABOVE_STEPS = [["phases", "ranges"], ["steps", "ranges"]]
ALONE = [["phases", "ranges"]]


def figure(report: Report, steps_ns: Sequence[float] = ()) -> Picture:
    """Return the figure; `steps_ns` is the kernel time of each measured step, in order.

    Raises ModuleNotFoundError, with what to install, if matplotlib is missing.
    """
    try:
        from .picture import Picture
    except ModuleNotFoundError as error:
        message = "plots need matplotlib: pip install 'nvtx-kernels[plot]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    drawn = Picture(figsize=INCHES, layout="constrained")
    rows = ABOVE_STEPS if steps_ns else ALONE
    account = report.account
    has_bar = account is not None and bool(account.recorded_ns)
    mosaic = [["step", "step"], *rows] if has_bar else rows
    heights = [0.5, *[1.0] * len(rows)] if has_bar else None
    axes = drawn.subplot_mosaic(mosaic, height_ratios=heights)  # type: ignore[arg-type]
    if account is not None and has_bar:
        _step(axes["step"], account)
    per = " per step" if report.per_step else ""
    _phases(axes["phases"], report, per)
    _ranges(axes["ranges"], report, per)
    if steps_ns:
        _steps(axes["steps"], steps_ns)
    drawn.suptitle(report.provenance.file)
    return drawn


def _step(axes: Axes, account: Account) -> None:
    """Draw where a step goes on each GPU: its parts add up to it."""
    unit = time_unit([account.recorded_ns])
    gpus = [gpu for gpu in account.gpus if gpu.steps]
    for gpu in gpus:
        sums: dict[State, int] = {}
        for part in gpu.parts:
            sums[part.state] = sums.get(part.state, 0) + part.total_ns
        begin = 0.0
        for state in sorted(sums, key=lambda state: (list(COLOURS).index(state[0]), -sums[state])):
            width = sums[state] / gpu.steps / unit.ns
            bar = axes.barh(gpu.gpu, width, left=begin, color=COLOURS[state[0]], edgecolor="white")
            if sums[state] >= LABELLED_FROM * gpu.total_own_ns:
                axes.bar_label(
                    bar, [state_name(state, on_cpu=account.on_cpu)], label_type="center", fontsize="small"
                )
            begin += width
    axes.invert_yaxis()
    axes.set_xlabel(
        f"{evidence.subject_of(account) if account.has_steps else 'all that was recorded'}, {unit.name}"
    )


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
    names = [f"{head_of(label(row.path[-3:]), LABEL_WIDTH)} ({headings.phase(row.phase)})" for row in rows]
    axes.barh(range(len(rows)), [row.self_ns / unit.ns for row in rows], tick_label=names)
    axes.invert_yaxis()
    axes.set_xlabel(f"kernel time launched directly in the range{per}, {unit.name}")


def _steps(axes: Axes, steps_ns: Sequence[float]) -> None:
    """Draw the kernel time of each step."""
    unit = time_unit(steps_ns)
    axes.bar(range(len(steps_ns)), [time / unit.ns for time in steps_ns])
    axes.set_xlabel("step")
    axes.set_ylabel(f"kernel time per step, {unit.name}")
