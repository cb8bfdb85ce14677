"""(d): the GEMMs' share of the kernel time in the forward alone and in a whole training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..document import Column, Kind
from ..report import Number, PhaseRow
from ..views.rows import share
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from .figures import Answered
from .sweep import Answer, Sweep, lacking, led, no_kernels, percent

#: Columns: key, heading, and the phases that are added.
Columns = Sequence[tuple[str, str, tuple[str, ...]]]
WHOLE: Columns = (("optimizer", "optimizer", (OPTIMIZER,)), ("step", "{whole}", PHASES))
SHARES = (("forward", "forward", (FORWARD,)), ("both", "forward + backward", (FORWARD, BACKWARD)), *WHOLE)
LAUNCHES = (("forward", "forward", (FORWARD,)), ("backward", "backward", (BACKWARD,)), *WHOLE)
ABSENT = "–: one of the phases has no kernels."


def answer(sweep: Sweep) -> Answer:
    """Show the GEMMs' share of the kernel time and their launches, by phase and in total."""
    shares = sweep.table(
        "d", f"(d) GEMMs' share of the kernel time, %, {sweep.scope}",
        _columns(sweep, SHARES, "{}_gemm_share", "{} %", "share"), partial(_cells, SHARES, _share),
        f"% is of the kernel time of what the heading names. {ABSENT}",
    )  # fmt: skip
    launches = sweep.table(
        "d_launches", f"(d) GEMM launches, {sweep.scope}",
        _columns(sweep, LAUNCHES, "{}_gemms", "{}", "count"), partial(_cells, LAUNCHES, _launches),
        f"A split-K helper's time counts above, its launch does not. {ABSENT}",
    )  # fmt: skip
    return Answer(led(_sentence(sweep), (shares, launches)), lacking(sweep, no_kernels, (FORWARD,)))


def _sentence(sweep: Sweep) -> str:
    """Describe what share GEMMs have in the forward and in total."""
    whole = "the whole step" if sweep.per_step else "all work"
    of: Columns = (("", f"the {FORWARD}", (FORWARD,)), ("", whole, PHASES))
    shares = _cells(of, _share, sweep.alone) if sweep.alone else []
    pairs = zip(of, shares, strict=bool(shares))
    said = [f"{percent(share)} of the kernel time of {name}" for (_, name, _), share in pairs if share is not None]
    return f"(d) GEMMs take {' and '.join(said)}." if said else ""


def _columns(sweep: Sweep, of: Columns, key: str, heading: str, kind: Kind) -> list[Column]:
    whole = "step" if sweep.per_step else "all"
    return [Column(key.format(name), heading.format(said.format(whole=whole)), kind) for name, said, _ in of]


def _cells(
    of: Columns, figure: Callable[[Sequence[PhaseRow]], Number | None], report: Answered
) -> list[Number | None]:
    """Return a figure of the phases of each column, None where one has no kernels; all together need but some."""
    return [
        None
        if phases != PHASES and any(no_kernels(report, phase) for phase in phases)
        else figure([row for row in report.phases if row.phase in phases])
        for *_, phases in of
    ]


def _share(rows: Sequence[PhaseRow]) -> Number | None:
    return share(sum(row.gemm_ns for row in rows), sum(row.kernel_ns for row in rows))


def _launches(rows: Sequence[PhaseRow]) -> Number:
    return sum(row.gemm_kernels for row in rows)
