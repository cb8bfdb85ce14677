"""What the questions ask of one report: its figures per step, and what only all of its work can tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields

from analysis.agreement import PhaseTimes, phase_times
from analysis.attribution import Attribution
from analysis.launch_groups import STEP, Explanation, LaunchGroups
from analysis.report import KernelRow, Report, added, per_step
from analysis.selection import collapsed_path
from analysis.summary import summarize
from analysis.views.common import require_measured
from analysis.vocabulary import BACKWARD, FORWARD, PHASES


@dataclass(frozen=True, slots=True)
class Answered(Report):
    """A report per step, or where it has no steps in all.

    `times` are of each phase's ranges, ns, over all of them even in a report per step; `formulas` say by phase how
    the launches of its longest kernel come about, such as `5·12 + 1`.
    """

    times: tuple[PhaseTimes, ...] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)


def answered(attribution: Attribution, *, include_warm_up: bool = False) -> Answered:
    """Ask a report all that the questions need.

    Raises ReportError where all of its work is warm-up.
    """
    report = summarize(attribution, include_warm_up=include_warm_up)
    require_measured(report)
    shown = per_step(report) if report.steps else report
    groups = LaunchGroups(attribution, include_warm_up=include_warm_up)
    return Answered(
        **{each.name: getattr(shown, each.name) for each in fields(Report)},
        times=phase_times(attribution, include_warm_up=include_warm_up),
        formulas=dict(_formulas(report, groups)),
    )


def longest_kernel(report: Report, phases: Collection[str] = PHASES) -> KernelRow | None:
    """Return the kernel with the most time in these phases, all its launches there added; None without kernels."""
    rows = (row for row in report.kernels if row.kind == "kernel" and row.phase in phases)
    return min(added(rows, ("kernel",)), key=lambda row: (-row.total_ns, row.kernel), default=None)


def _formulas(report: Report, groups: LaunchGroups) -> Iterator[tuple[str, str]]:
    for phase in (FORWARD, BACKWARD):
        longest = longest_kernel(report, (phase,))
        if longest is None:
            continue
        paths = {row.path for row in report.kernels if (row.kernel, row.phase) == (longest.kernel, phase)}
        one = groups.explain(longest.kernel, phase, paths=paths, naming=collapsed_path)
        if one.unit:
            yield phase, _formula(one)


def _formula(one: Explanation) -> str:
    """Write the launches in each step as a sum, or where only the phase's ranges tell, those in each of these."""
    trivial = one.formula in (f"{one.launches:,}", f"1·{one.launches}")
    if one.unit == STEP:
        return f"{one.launches:,}" if trivial else one.formula
    return f"{one.launches:,}{'' if trivial else f' = {one.formula}'} per {one.unit}"
