"""A ranking drawn with matplotlib: a step as a bar, phases by category, the longest ranges, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report import Path, Report, added
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
#: The parts of a step's bar in order, and their colours: by what they are, else by their kind; the page's.
ORDER = (COMPUTE, OPERATORS, COMMUNICATION, COPY, IDLE)
COLOURS = {
    "forward": "#7fb2ec",
    "backward": "#f5a572",
    "optimizer": "#7cc795",
    "launching": "#ee8a8e",
    "host code": "#d3a25c",
    "Python": "#d3a25c",
    "data loading": "#6fc7bd",
    COMPUTE: "#b4b8c0",
    OPERATORS: "#b4b8c0",
    COMMUNICATION: "#2fb5a3",
    COPY: "#54b4ee",
    IDLE: "#c3c7ce",
}
#: Parts of at least this share of a step have their time in the bar.
TIMED_FROM = 0.09
#: Beyond so many steps, not each has its number below its bar.
MOST_NUMBERS = 20
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
    longest = 0.0
    named: set[str] = set()  # in the legend, once each
    for gpu in account.gpus:
        if not gpu.steps:
            continue
        sums: dict[State, int] = {}
        for part in gpu.parts:
            sums[part.state] = sums.get(part.state, 0) + part.total_ns
        begin = 0.0
        for state in sorted(sums, key=lambda state: (ORDER.index(state[0]), -sums[state])):
            kind, detail = state
            width = sums[state] / gpu.steps / unit.ns
            colour = COLOURS[kind] if kind in (COMMUNICATION, COPY) else COLOURS.get(detail, COLOURS[kind])
            hatch = "///" if kind == IDLE else ""
            name = state_name(state, on_cpu=account.on_cpu)
            bar = axes.barh(
                gpu.gpu,
                width,
                left=begin,
                color=colour,
                edgecolor="white",
                hatch=hatch,
                label=None if name in named else name,
            )
            named.add(name)
            if sums[state] >= TIMED_FROM * gpu.total_own_ns:
                axes.bar_label(bar, [f"{width:.3g}"], label_type="center", fontsize="small")
            begin += width
        longest = max(longest, begin)
    axes.set_xlim(0, longest)
    axes.invert_yaxis()
    axes.legend(fontsize="small", ncols=5, loc="lower left", bbox_to_anchor=(0, 1))
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
    axes.legend(fontsize="x-small", ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def _range_name(path: Path, phase: str) -> str:
    """Return a range's last three names and its phase; the phase alone for its own range."""
    if path[-1:] == (phase,):
        return phase
    return f"{head_of(label(path[-3:]), LABEL_WIDTH)} ({headings.phase(phase)})"


def _ranges(axes: Axes, report: Report, per: str) -> None:
    """Draw the ranges in which most kernel time was launched directly."""
    rows = sorted(renamed(report).ranges, key=lambda row: -row.self_ns)[:MOST_RANGES]
    unit = time_unit([row.self_ns for row in rows])
    names = [_range_name(row.path, row.phase) for row in rows]
    axes.barh(range(len(rows)), [row.self_ns / unit.ns for row in rows], tick_label=names)
    axes.invert_yaxis()
    axes.set_xlabel(f"kernel time{per}, without ranges inside, {unit.name}")


def _steps(axes: Axes, steps_ns: Sequence[float]) -> None:
    """Draw the kernel time of each step."""
    unit = time_unit(steps_ns)
    numbers = range(len(steps_ns))
    axes.bar(numbers, [time / unit.ns for time in steps_ns])
    if len(numbers) <= MOST_NUMBERS:
        axes.set_xticks(numbers)
    axes.set_xlabel("step")
    axes.set_ylabel(f"kernel time per step, {unit.name}")
