"""(b): the kernel that takes most time in the forward, how often it is launched, and whether it is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from analysis.kernel_names import distinct_short_names
from analysis.question_parts.answered import Answered, longest_kernel
from analysis.question_parts.sweep import Answer, Sweep, answer_by_phase, no_kernels
from analysis.tables import Column, Table
from analysis.vocabulary import BACKWARD, FORWARD, PHASES

CAPTION = (
    "% is of the kernel time of what the title names. made of: launches in each range times such ranges, added; "
    "`per forward`: in each of the phase's ranges, where no steps tell. same: whether it is the forward's longest."
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
    return answer_by_phase(sweep, _missing, lambda scope: _table(sweep, scope, names), scopes)


def _missing(report: Answered, scope: str) -> str:
    """Say why a scope has no row: where it is but one phase, that phase's table has it."""
    if scope in (FORWARD, BACKWARD):
        return no_kernels(report, scope)
    if scope == "both":
        return no_kernels(report, FORWARD) or no_kernels(report, BACKWARD)
    return "" if longest_kernel(report) else "It has no kernels."


def _names(sweep: Sweep) -> Mapping[str, str]:
    """Call every kernel that is longest anywhere by one name in all tables."""
    found = [
        row.kernel for scope in SCOPES.values() for report in sweep.counted
        if (row := longest_kernel(report, scope.phases))
    ]  # fmt: skip
    kernels = list(dict.fromkeys(found))
    return dict(zip(kernels, kernels if sweep.full_names else distinct_short_names(kernels), strict=True))


def _table(sweep: Sweep, scope: str, names: Mapping[str, str]) -> Table:
    told = any(report.formulas.get(scope) for report in sweep.counted)
    columns = (
        Column("kernel", "kernel", "name"), Column("launches", "launches", "count"),
        *([Column("made_of", "made of")] if told else []), Column("kernel_ns", "time", "ns"),
        Column("share", "%", "share"), *([] if scope == FORWARD else [Column("same", "same")]),
    )  # fmt: skip
    what = SCOPES[scope].title if sweep.per_step or scope != "step" else "all work"
    title = f"(b) Longest kernel of {what}, {{unit}} {sweep.scope}"
    return sweep.table(f"b_{scope}", title, columns, partial(_cells, scope, names, told), CAPTION)


def _cells(scope: str, names: Mapping[str, str], told: bool, report: Answered) -> tuple[object, ...] | None:
    phases = SCOPES[scope].phases
    longest = longest_kernel(report, phases)
    if longest is None or _missing(report, scope):
        return None
    whole = sum(row.kernel_ns for row in report.phases if row.phase in phases)
    formula = [report.formulas.get(scope)] if told else []
    same = [] if scope == FORWARD else [_same(report, longest.kernel)]
    share = longest.total_ns / whole if whole else None
    return names[longest.kernel], longest.count, *formula, longest.total_ns, share, *same


def _same(report: Answered, kernel: str) -> str | None:
    """Tell whether a kernel is the forward's longest; None where there is no forward."""
    forward = longest_kernel(report, (FORWARD,))
    return None if forward is None else "yes" if forward.kernel == kernel else "no"
