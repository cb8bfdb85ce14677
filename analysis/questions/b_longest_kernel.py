"""(b): the kernel that takes the most time in the forward, how often it is launched, and whether elsewhere too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..document import Column, Row, Table
from ..kernel_names.short import names_by_kernel
from ..support.units import count_text, time_text
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .figures import Answered, longest_kernel
from .sweep import Answer, Sweep, answer_by_phase, led, no_kernels, percent

CAPTION = (
    "% is of the kernel time of what the title names. made of: launches in each range times such ranges, added; "
    "`per forward`: in each of the phase's ranges, where no steps tell. same: whether it is the forward's."
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Of which phases the longest kernel is sought, and what they are called together."""

    phases: tuple[str, ...]
    title: str


SCOPES = {
    FORWARD: Scope((FORWARD,), "the forward"),
    BACKWARD: Scope((BACKWARD,), "the backward"),
    "both": Scope((FORWARD, BACKWARD), "forward and backward together"),
    "step": Scope(PHASES, "the whole step"),
}


def answer(sweep: Sweep) -> Answer:
    """Show the longest kernel of the forward, of the backward, of both and of all phases."""
    names = _names(sweep)
    beyond = any(
        row.kernel_ns and row.phase not in SCOPES["both"].phases for one in sweep.counted for row in one.phases
    )
    scopes = [scope for scope in SCOPES if beyond or scope != "step"]
    found = answer_by_phase(sweep, _missing, lambda scope: _table(sweep, scope, names), scopes)
    report = sweep.alone
    if report is None or not found.tables:
        return found
    shown = [scope for scope in scopes if not _missing(report, scope)]
    return Answer(led(_sentence(sweep, report, names), [_together(sweep, report, shown, names)]), found.lacks)


def _sentence(sweep: Sweep, report: Answered, names: Mapping[str, str]) -> str:
    """Name the forward's kernel, and that of forward and backward."""
    forward = _cells(FORWARD, names, False, report)
    if forward is None:
        return ""
    kernel, launches, time, share = forward
    first = (
        f"(b) In forward, {kernel} takes the most cumulative time: {time_text(time)} ({percent(share)}), "
        f"{count_text(launches)} launches{sweep.each}"
    )
    both = _cells("both", names, False, report)
    if both is None:
        return f"{first}."
    other = "the same" if both[-1] == "yes" else both[0]
    return f"{first}; in forward + backward it is {other}: {time_text(both[2])} ({percent(both[3])}), " + (
        f"{count_text(both[1])} launches."
    )


def _together(sweep: Sweep, report: Answered, scopes: Sequence[str], names: Mapping[str, str]) -> Table:
    """Show a row for each scope of one report."""
    told = any(report.formulas.get(scope) for scope in scopes)
    columns = (Column("of", "of", "name"), *_columns(told), *([Column("same", "same")] if len(scopes) > 1 else []))
    rows = []
    for scope in scopes:
        cells = _cells(scope, names, told, report) or ()
        same = ("",) if scope == FORWARD else ()
        rows.append(Row((_scope_name(sweep, scope), *cells, *same)[: len(columns)]))
    title = f"(b) Kernel with the most cumulative time, {{unit}} {sweep.scope}"
    return Table("b", title, columns, tuple(rows), CAPTION.replace("what the title names", "what the row is of"))


def _columns(told: bool) -> tuple[Column, ...]:
    return (
        Column("kernel", "kernel", "name"), Column("launches", "launches", "count"),
        *([Column("made_of", "made of")] if told else []), Column("kernel_ns", "time", "ns"),
        Column("share", "%", "share"),
    )  # fmt: skip


def _scope_name(sweep: Sweep, scope: str) -> str:
    named = {"both": "forward + backward", "step": "step" if sweep.per_step else "all"}
    return named.get(scope, scope)


def _missing(report: Answered, scope: str) -> str:
    """Return why a scope has no row: where it is but one phase, that phase's table has it."""
    if scope in (FORWARD, BACKWARD):
        return no_kernels(report, scope)
    if scope == "both":
        return no_kernels(report, FORWARD) or no_kernels(report, BACKWARD)
    return "" if longest_kernel(report) else "It has no kernels."


def _names(sweep: Sweep) -> Mapping[str, str]:
    """Call every kernel that is longest anywhere by one name in all tables."""
    found = (
        row.kernel for scope in SCOPES.values() for report in sweep.counted
        if (row := longest_kernel(report, scope.phases))
    )  # fmt: skip
    return names_by_kernel(found, sweep.detail.full_names)


def _table(sweep: Sweep, scope: str, names: Mapping[str, str]) -> Table:
    told = any(report.formulas.get(scope) for report in sweep.counted)
    columns = (*_columns(told), *([] if scope == FORWARD else [Column("same", "same")]))
    what = SCOPES[scope].title if sweep.per_step or scope != "step" else "all work"
    phase = scope if scope in PHASES else ""
    title = f"(b) Kernel with the most cumulative time in {what}, {{unit}} {sweep.scope}"
    return sweep.table(f"b_{scope}", title, columns, partial(_cells, scope, names, told), CAPTION, phase)


def _cells(scope: str, names: Mapping[str, str], told: bool, report: Answered) -> tuple[Any, ...] | None:
    phases = SCOPES[scope].phases
    longest = longest_kernel(report, phases)
    if longest is None or _missing(report, scope):
        return None
    whole = sum(row.kernel_ns for row in report.phases if row.phase in phases)
    formula = [report.formulas.get(scope, "")] if told else []
    same = [] if scope == FORWARD else [_same(report, longest.kernel)]
    share = longest.total_ns / whole if whole else None
    return names[longest.kernel], longest.count, *formula, longest.total_ns, share, *same


def _same(report: Answered, kernel: str) -> str | None:
    """Return whether a kernel is the forward's longest; None where there is no forward."""
    forward = longest_kernel(report, (FORWARD,))
    return None if forward is None else "yes" if forward.kernel == kernel else "no"
