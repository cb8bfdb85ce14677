"""(d): the GEMMs' share of the kernel time in the forward alone and in a whole training step."""

from __future__ import annotations

from functools import partial

from ..document import Column, Table
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from .figures import Answered
from .sweep import Answer, Sweep, lacking, led, no_kernels, percent

#: Columns of shares: key, heading, and the phases that are added.
SHARES = (
    ("forward", "forward %", (FORWARD,)), ("both", "forward + backward %", (FORWARD, BACKWARD)),
    ("optimizer", "optimizer %", (OPTIMIZER,)), ("step", "{whole} %", PHASES),
)  # fmt: skip
LAUNCHES = (
    ("forward", "forward", (FORWARD,)), ("backward", "backward", (BACKWARD,)),
    ("optimizer", "optimizer", (OPTIMIZER,)), ("step", "{whole}", PHASES),
)  # fmt: skip
ABSENT = "–: one of the phases has no kernels."


def answer(sweep: Sweep) -> Answer:
    """Show the GEMMs' share of the kernel time and their launches, by phase and in all."""
    return Answer(
        led(_sentence(sweep), (_shares(sweep), _launches(sweep))), lacking(sweep, no_kernels, (FORWARD,))
    )


def _sentence(sweep: Sweep) -> str:
    """Say what share GEMMs have in the forward and in all."""
    report, whole = sweep.alone, "the whole step" if sweep.per_step else "all work"
    of = ((f"the {FORWARD}", (FORWARD,)), (whole, PHASES))
    said = [
        f"{percent(share)} of the kernel time of {name}"
        for name, phases in of
        if report and (share := _share(report, phases)) is not None
    ]
    return f"(d) GEMMs take {' and '.join(said)}." if said else ""


def _shares(sweep: Sweep) -> Table:
    columns = [
        Column(f"{key}_gemm_share", heading.format(whole=_whole(sweep)), "share") for key, heading, _ in SHARES
    ]
    title = f"(d) GEMMs' share of the kernel time, %, {sweep.scope}"
    caption = f"% is of the kernel time of what the heading names. {ABSENT}"
    return sweep.table("d", title, columns, lambda report: [_share(report, of) for *_, of in SHARES], caption)


def _launches(sweep: Sweep) -> Table:
    columns = [
        Column(f"{key}_gemms", heading.format(whole=_whole(sweep)), "count") for key, heading, _ in LAUNCHES
    ]
    title = f"(d) GEMM launches, {sweep.scope}"
    caption = f"A split-K helper's time counts above, its launch does not. {ABSENT}"
    return sweep.table(
        "d_launches", title, columns, lambda report: [_count(report, of) for *_, of in LAUNCHES], caption
    )


def _whole(sweep: Sweep) -> str:
    return "step" if sweep.per_step else "all"


def _share(report: Answered, phases: tuple[str, ...]) -> float | None:
    rows = [row for row in report.phases if row.phase in phases]
    whole = sum(row.kernel_ns for row in rows)
    return sum(row.gemm_ns for row in rows) / whole if whole and _has(report, phases) else None


def _count(report: Answered, phases: tuple[str, ...]) -> object:
    rows = [row for row in report.phases if row.phase in phases]
    return sum(row.gemm_kernels for row in rows) if _has(report, phases) else None


def _has(report: Answered, phases: tuple[str, ...]) -> bool:
    """Tell whether each of the phases has kernels; all together need but some."""
    missing = partial(no_kernels, report)
    return phases == PHASES or not any(map(missing, phases))
