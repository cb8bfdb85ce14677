"""(c): what takes time in the forward besides matrix products, by kind of kernel and by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..document import Column, Table
from ..report import Number, added
from ..vocabulary import FORWARD
from . import figures
from .figures import Answered, operations_of
from .sweep import Answer, Sweep, answer_by_phase, led, no_kernels, percent

#: Categories that people are shown; programs get all.
CATEGORIES_SHOWN = 3
IN_ATTENTION = (figures.SOFTMAX, figures.MASK, figures.SCALE, figures.ROPE)
ELSEWHERE = (
    figures.NORM, figures.ACTIVATION, figures.RESIDUAL, figures.LOSS, figures.CASTS,
    figures.COPIES, figures.REST,
)  # fmt: skip
OF_FORWARD = "% is of the forward's kernel time"
DEFINITIONS = (
    "An operation has the kernels in the ranges named after it; –: there are none. residual: element-wise kernels "
    "in the range around a norm, in no inner one. casts, copies: in no such range, by the kernel's name. "
    "rest: all else."
)
UNNAMED = (
    "No range of the forward is named after an operation of the model (softmax, mask, scale, rope, norm, "
    "activation, …), so these cannot be distinguished; torch.compile drops ranges inside the model."
)


def answer(sweep: Sweep) -> Answer:
    """Show the share of the forward that is not GEMM, its largest categories, and its operations."""
    kinds = answer_by_phase(sweep, no_kernels, lambda _: _categories(sweep), (FORWARD,))
    parts = answer_by_phase(sweep, _unnamed, lambda _: _operations(sweep, IN_ATTENTION), (FORWARD,))
    rest = any(map(_shown(sweep), ELSEWHERE)) and parts.tables
    elsewhere = (_operations(sweep, ELSEWHERE),) if rest else ()
    return Answer((*led(_sentence(sweep), kinds.tables), *parts.tables, *elsewhere), (*kinds.lacks, *parts.lacks))


def _sentence(sweep: Sweep) -> str:
    """Describe what the forward's time goes to besides GEMMs."""
    if not sweep.alone or not (whole := _whole(sweep.alone)):
        return ""
    time = _by_category(sweep.alone)
    some = [f"{name} {percent(time[name] / whole)}" for name in _ranked_categories(sweep)[:CATEGORIES_SHOWN]]
    rest = percent(1 - time.get("gemm", 0) / whole)
    return f"(c) {rest} of forward's kernel time is not GEMM{': ' if some else ''}{', '.join(some)}."


def _unnamed(report: Answered, phase: str) -> str:
    """Return why the operations cannot be identified; where there is no forward at all, that is said already."""
    return no_kernels(report, phase) or ("" if operations_of(report) else UNNAMED)


def _categories(sweep: Sweep) -> Table:
    ranked = _ranked_categories(sweep)
    top = ranked if sweep.detail.whole else ranked[:CATEGORIES_SHOWN]
    rest = ranked[len(top) :]
    columns = (
        _share("gemm", "GEMMs"), _share("other", "all else"), *(_share(name, name) for name in top),
        *([_share("rest", "rest")] if rest else []),
    )  # fmt: skip

    def cells(report: Answered) -> list[float] | None:
        whole, time = _whole(report), _by_category(report)
        if not whole:
            return None
        parts = [time.get(name, 0) for name in top] + [sum(time.get(name, 0) for name in rest)][: len(rest)]
        gemm = time.get("gemm", 0)
        return [part / whole for part in (gemm, whole - gemm, *parts)]

    caption = f"{OF_FORWARD}; the categories sum to all else." + (f" rest: {', '.join(rest)}." if rest else "")
    return sweep.table(
        "c", f"(c) Forward kernel time by kind of kernel, %, {sweep.scope}", columns, cells, caption, FORWARD
    )


def _operations(sweep: Sweep, names: Sequence[str]) -> Table:
    """Draw the shares of some operations."""
    shown = list(filter(_shown(sweep), names))

    def cells(report: Answered) -> list[float | None] | None:
        whole, time = _whole(report), operations_of(report)
        return [time[name] / whole if name in time else None for name in shown] if whole and time else None

    key, where = ("c_attention", "of attention") if names is IN_ATTENTION else ("c_elsewhere", "elsewhere")
    title = f"(c) Operations {where} in the forward, no GEMMs, %, {sweep.scope}"
    caption = f"{OF_FORWARD}; both tables sum to all else. {DEFINITIONS}"
    return sweep.table(key, title, [_share(name, name) for name in shown], cells, caption, FORWARD)


def _shown(sweep: Sweep) -> Callable[[str], bool]:
    """Return which operations have a column: those that any report has, and in attention and for programs all."""
    found = {name for report in sweep.counted for name, time in operations_of(report).items() if time}
    return lambda name: name in found or name in IN_ATTENTION or sweep.detail.whole


def _share(key: str, heading: str) -> Column:
    return Column(f"{key}_share", f"{heading} %", "share")


def _whole(report: Answered) -> Number:
    return sum(row.kernel_ns for row in report.phases if row.phase == FORWARD)


def _by_category(report: Answered) -> dict[str, Number]:
    rows = (row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel")
    return {row.category: row.total_ns for row in added(rows, ("category",))}


def _ranked_categories(sweep: Sweep) -> list[str]:
    """Name the categories but GEMM, the largest share in any report first."""
    largest: dict[str, float] = {}
    for report in sweep.counted:
        for name, time in _by_category(report).items():
            largest[name] = max(largest.get(name, 0.0), time / _whole(report) if _whole(report) else 0.0)
    return sorted(largest.keys() - {"gemm"}, key=lambda name: (-largest[name], name))
