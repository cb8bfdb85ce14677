"""What the questions ask of one report: its figures per step, and what only all of its work can tell."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from ..attribution.causes import Attribution
from ..attribution.steps import in_measured_steps
from ..measures import attention_parts as attention
from ..measures.agreement import PhaseTimes, phase_times
from ..measures.launch_groups import STEP, LaunchGroups
from ..report import KernelRow, Number, Report, added, per_step
from ..summary.selection import naming_of
from ..summary.totals import summarize
from ..views.rows import require_measured
from ..vocabulary import BACKWARD, FORWARD, PHASES, opens_phase


@dataclass(frozen=True, slots=True)
class Answered(Report):
    """A report per step, or in total where it has no steps.

    `times` are of each phase's ranges in the measured steps, ns, over all of these even in a report per step;
    `parts` are attention's; `formulas` say by phase how the launches of its longest kernel come about, such as
    `5·12 + 1`; `names_attention` is true if ranges are named as attention's parts, with work or without.
    """

    times: tuple[PhaseTimes, ...] = ()
    parts: tuple[attention.Part, ...] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)
    names_attention: bool = False


def answered(attribution: Attribution, *, include_warm_up: bool = False) -> Answered:
    """Ask a report all that the questions need.

    Raises ReportError where all of its work is warm-up.
    """
    report = summarize(attribution, include_warm_up=include_warm_up)
    require_measured(report)
    of_steps = per_step(report) if report.steps else report
    if report.steps:
        attribution = in_measured_steps(attribution, include_warm_up=include_warm_up)
    groups = LaunchGroups(attribution, include_warm_up=include_warm_up)
    return Answered(
        **{column.name: getattr(of_steps, column.name) for column in fields(Report)},
        times=phase_times(attribution, include_warm_up=include_warm_up),
        parts=attention.parts_of(of_steps),
        names_attention=attention.names_attention(attribution),
        formulas=dict(_formulas(report.measured or report, groups)),
    )


def longest_kernel(report: Report, phases: Collection[str] = PHASES) -> KernelRow | None:
    """Return the kernel with the most time in these phases, all its launches there added; None without kernels."""
    rows = [row for row in report.kernels if row.kind == "kernel" and row.phase in phases]
    total_ns: dict[str, Number] = {}
    for row in rows:
        total_ns[row.kernel] = total_ns.get(row.kernel, 0) + row.total_ns
    longest = min(total_ns, key=lambda kernel: (-total_ns[kernel], kernel), default=None)
    return next(iter(added([row for row in rows if row.kernel == longest], ("kernel",))), None)


def _formulas(report: Report, groups: LaunchGroups) -> Iterator[tuple[str, str]]:
    for phase in (FORWARD, BACKWARD):
        longest = longest_kernel(report, (phase,))
        if longest is None:
            continue
        paths = {row.path for row in report.kernels if (row.kernel, row.phase) == (longest.kernel, phase)}
        launches = groups.explain(longest.kernel, phase, paths=paths, naming=naming_of(report))
        count = f"{launches.launches:,}"
        is_trivial = launches.formula in (count, f"1·{launches.launches}")
        if launches.unit == STEP:
            yield phase, count if is_trivial else launches.formula
        elif launches.unit:  # there are only the phase's ranges
            yield phase, f"{count}{'' if is_trivial else f' = {launches.formula}'} per {launches.unit}"


SOFTMAX, MASK, SCALE, ROPE, NORM = attention.SOFTMAX, attention.MASK, attention.SCALE, "rope", "norm"
ACTIVATION, RESIDUAL, LOSS, CASTS, COPIES, REST = "activation", "residual", "loss", "casts", "copies", "rest"
#: How the ranges of an operation are named, in full and in any case.
NAMES = {
    SOFTMAX: attention.NAMES[SOFTMAX],
    MASK: attention.NAMES[MASK],
    SCALE: attention.NAMES[SCALE],
    ROPE: re.compile(r"(.*[\W_])?(rope|rotary([\W_].*)?)", re.IGNORECASE),
    NORM: re.compile(r"(.*[\W_])?(((rms|layer)_?)?norm|ln)_?(\d+|f|final)?", re.IGNORECASE),
    ACTIVATION: re.compile(r"activation|act(_?fn)?|silu|swish|swiglu|gelu|relu", re.IGNORECASE),
    RESIDUAL: re.compile(r"(.*[\W_])?residual([\W_]add)?", re.IGNORECASE),
    LOSS: re.compile(r"(.*[\W_])?(loss|cross[\W_]?entropy)", re.IGNORECASE),
}
#: Copies whose names say that they change the type.
CAST = re.compile(
    r"float\w*_copy_kernel|half_copy_kernel|(Load|Store)WithCast|gpu_kernel_impl<|_to_copy|convert", re.IGNORECASE
)


def operations_of(report: Report) -> dict[str, Number]:
    """Add up the time of the forward's kernels that are not GEMMs, ns, by the outermost operation that is named.

    What no range names is a residual where it is element-wise and directly in the range around a norm, a cast or a
    copy by the kernel, and else the rest. What no range could name is not in it, and nothing where none does.
    """
    rows = [row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel"]
    paths = {row.path for row in report.ranges if row.phase == FORWARD}
    layers = {path[:depth] for path in paths for depth, name in enumerate(path) if named(name) == NORM}
    operations = {operation for path in paths for name in path if (operation := named(name))}
    if not operations - {LOSS}:
        return {}
    operations |= {CASTS, COPIES, REST, *([RESIDUAL] if layers else [])}
    sums: dict[str, Number] = dict.fromkeys(operations, 0)
    for row in (row for row in rows if row.category != "gemm"):
        operation = next((operation for name in row.path if (operation := named(name))), "")
        if not operation and row.category == "copy":
            operation = CASTS if CAST.search(row.kernel) else COPIES
        elif not operation:
            is_layer = row.path in layers and not opens_phase(row.path[-1])
            operation = RESIDUAL if is_layer and row.category == "elementwise" else REST
        sums[operation] += row.total_ns
    return sums


@lru_cache(maxsize=65_536)
def named(name: str) -> str:
    """Return the operation that a range's name names, or nothing."""
    bare = name.lstrip(":").strip()
    return next((operation for operation, pattern in NAMES.items() if pattern.fullmatch(bare)), "")
