"""The questions of kernels: (b) the longest, (c) what is not a matrix product, (d) the share that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..document import Column, Row, Table
from ..kernel_names.short import names_by_kernel
from ..report import Number, added
from ..support.units import count_text, time_text
from ..views.rows import share
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from . import figures
from .figures import Answered, longest_kernel, operations_of
from .sweep import Answer, Sweep, by_phase, lacking, led, no_kernels, percent

# (b): the kernel that takes the most time in the forward, how often it is launched, and whether elsewhere too.

KERNEL_CAPTION = (
    "% is of the kernel time of what the title names. made of: 5·12 + 1 is 5 in each of 12 ranges, and 1 in "
    "another; `per forward`: in each of the phase's ranges, where no steps tell. same: whether it is the "
    "forward's."
)
#: Of which phases the longest kernel is sought, and what they are called together.
SCOPES = {
    FORWARD: ((FORWARD,), "the forward"),
    BACKWARD: ((BACKWARD,), "the backward"),
    "both": ((FORWARD, BACKWARD), "forward and backward together"),
    "step": (PHASES, "the whole step"),
}


def longest(sweep: Sweep) -> Answer:
    """Show the longest kernel of the forward, of the backward, of both and of all phases.

    Of one report, people get one table with a row for each of these.
    """
    both_phases = SCOPES["both"][0]
    rows_by_phase = [row for report in sweep.counted for row in report.phases]
    has_more = any(row.kernel_ns and row.phase not in both_phases for row in rows_by_phase)
    scopes = [scope for scope in SCOPES if has_more or scope != "step"]
    longest_rows = (longest_kernel(report, phases) for phases, _ in SCOPES.values() for report in sweep.counted)
    names = names_by_kernel((row.kernel for row in longest_rows if row), sweep.detail.full_names)
    answer = by_phase(sweep, _no_kernels_of_scope, partial(_kernel_table, sweep, names), scopes)
    report = sweep.alone
    if report is None or not answer.tables:
        return answer

    scopes = [scope for scope in scopes if not _no_kernels_of_scope(report, scope)]
    has_formula = any(report.formulas.get(scope) for scope in scopes)
    columns = [Column("of", "of", "name"), *_kernel_columns(has_formula)]
    columns += [Column("same", "same")] if len(scopes) > 1 else []
    rows = []
    for scope in scopes:
        scope_name = {"both": "forward + backward", "step": "step" if sweep.per_step else "all"}.get(scope, scope)
        same = ("",) if scope == FORWARD else ()
        cells = (scope_name, *(_kernel_cells(scope, names, has_formula, report) or ()), *same)
        rows.append(Row(cells[: len(columns)]))
    title = f"(b) Kernel with the most cumulative time, {{unit}} {sweep.scope}"
    caption = KERNEL_CAPTION.replace("what the title names", "what the row is of")
    table = Table("b", title, tuple(columns), tuple(rows), caption)
    return Answer(led(_kernel_sentence(sweep, report, names), [table]), answer.lacks)


def _kernel_sentence(sweep: Sweep, report: Answered, names: Mapping[str, str]) -> str:
    """Name the forward's kernel, and that of forward and backward."""
    forward, both = (_kernel_cells(scope, names, False, report) for scope in (FORWARD, "both"))
    if forward is None:
        return ""
    kernel, launches, time_ns, fraction = forward
    sentence = (
        f"(b) In forward, {kernel} takes the most cumulative time: {time_text(time_ns)} ({percent(fraction)}), "
        f"{count_text(launches)} launches{sweep.each}"
    )
    if both is None:
        return f"{sentence}."
    kernel, launches, time_ns, fraction, is_same = both
    return (
        f"{sentence}; in forward + backward it is {'the same' if is_same == 'yes' else kernel}: "
        f"{time_text(time_ns)} ({percent(fraction)}), {count_text(launches)} launches."
    )


def _kernel_columns(has_formula: bool) -> list[Column]:
    return [
        Column("kernel", "kernel", "name"),
        Column("launches", "launches", "count"),
        *([Column("made_of", "made of")] if has_formula else []),
        Column("kernel_ns", "time", "ns"),
        Column("share", "%", "share"),
    ]


def _no_kernels_of_scope(report: Answered, scope: str) -> str:
    """Return why a scope has no row: where it is but one phase, that phase's table has it."""
    if scope == "both":
        return no_kernels(report, FORWARD) or no_kernels(report, BACKWARD)
    if scope == "step":
        return "" if longest_kernel(report) else "It has no kernels."
    return no_kernels(report, scope)


def _kernel_table(sweep: Sweep, names: Mapping[str, str], scope: str) -> Table:
    has_formula = any(report.formulas.get(scope) for report in sweep.counted)
    columns = _kernel_columns(has_formula) + ([] if scope == FORWARD else [Column("same", "same")])
    scope_name = SCOPES[scope][1] if sweep.per_step or scope != "step" else "all work"
    title = f"(b) Kernel with the most cumulative time in {scope_name}, {{unit}} {sweep.scope}"
    cells = partial(_kernel_cells, scope, names, has_formula)
    return sweep.table(f"b_{scope}", title, columns, cells, KERNEL_CAPTION, scope if scope in PHASES else "")


def _kernel_cells(
    scope: str, names: Mapping[str, str], has_formula: bool, report: Answered
) -> tuple[Any, ...] | None:
    phases = SCOPES[scope][0]
    longest = longest_kernel(report, phases)
    if longest is None or _no_kernels_of_scope(report, scope):
        return None
    scope_ns = sum(row.kernel_ns for row in report.phases if row.phase in phases)
    formula = [report.formulas.get(scope, "")] if has_formula else []
    same: list[str | None] = []
    if scope != FORWARD:
        forward = longest_kernel(report, (FORWARD,))
        same.append(None if forward is None else "yes" if forward.kernel == longest.kernel else "no")
    fraction = longest.total_ns / scope_ns if scope_ns else None
    return names[longest.kernel], longest.count, *formula, longest.total_ns, fraction, *same


# (c): what takes time in the forward besides matrix products, by kind of kernel and by operation.

#: Categories that people see; programs get all.
CATEGORIES_SHOWN, KERNELS_SHOWN = 3, 5
IN_ATTENTION = (figures.SOFTMAX, figures.MASK, figures.SCALE, figures.ROPE)
ELSEWHERE = (
    *(figures.NORM, figures.ACTIVATION, figures.RESIDUAL, figures.LOSS),
    *(figures.CASTS, figures.COPIES, figures.REST),
)
OF_FORWARD = "% is of the forward's kernel time"
DEFINITIONS = (
    "An operation has the kernels in the ranges named after it; –: there are none. residual: element-wise kernels "
    "in the range around a norm, in no inner one. casts, copies: in no such range, by the kernel's name. "
    "rest: all else."
)
UNNAMED = (
    "No range of the forward is named after an operation of the model (softmax, mask, scale, rope, norm, "
    "activation, …), so these cannot be distinguished. Open ranges of these names around them."
)


def besides_gemms(sweep: Sweep) -> Answer:
    """Show the share of the forward that is not GEMM, its largest categories, and its operations."""

    def unnamed(report: Answered, phase: str) -> str:
        return no_kernels(report, phase) or ("" if operations_of(report) else UNNAMED)

    largest: dict[str, float] = {}
    for report in sweep.counted:
        for name, time_ns in _by_category(report).items():
            largest[name] = max(
                largest.get(name, 0.0), time_ns / _forward_ns(report) if _forward_ns(report) else 0.0
            )
    ranked = sorted(largest.keys() - {"gemm"}, key=lambda name: (-largest[name], name))
    present = {name for report in sweep.counted for name, time_ns in operations_of(report).items() if time_ns}
    in_attention = _operations(sweep, "c_attention", "of attention", IN_ATTENTION)
    elsewhere = [name for name in ELSEWHERE if name in present or sweep.detail.whole]

    kinds = by_phase(sweep, no_kernels, lambda _: _categories(sweep, ranked), (FORWARD,))
    operations = by_phase(sweep, unnamed, lambda _: in_attention, (FORWARD,))
    has_attention = sweep.detail.whole or not present.isdisjoint(IN_ATTENTION)
    others = [_operations(sweep, "c_elsewhere", "elsewhere", elsewhere)] if elsewhere and operations.tables else []
    sentence = ""
    if sweep.alone and (forward_ns := _forward_ns(sweep.alone)):
        by_category = _by_category(sweep.alone)
        parts = [f"{name} {percent(by_category[name] / forward_ns)}" for name in ranked[:CATEGORIES_SHOWN]]
        not_gemm = percent(1 - by_category.get("gemm", 0) / forward_ns)
        sentence = f"(c) {not_gemm} of forward's kernel time is not GEMM{': ' if parts else ''}{', '.join(parts)}."
    longest = [_longest_besides_gemms(sweep)] if ranked and len(sweep.reports) == 1 else []
    tables = (*led(sentence, kinds.tables), *longest, *(operations.tables if has_attention else ()), *others)
    return Answer(tables, (*kinds.lacks, *operations.lacks))


def _longest_besides_gemms(sweep: Sweep) -> Table:
    """Show the kernels of one report's forward that are no GEMMs, those with the most time; programs get all."""
    report = sweep.reports[0]
    rows = [
        row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel" and row.category != "gemm"
    ]
    longest = sorted(added(rows, ("kernel", "category")), key=lambda row: (-row.total_ns, row.kernel))
    longest = longest if sweep.detail.whole else longest[:KERNELS_SHOWN]
    names = names_by_kernel((row.kernel for row in longest), sweep.detail.full_names)
    columns = (
        Column("kernel", "kernel", "name"),
        Column("category", "kind"),
        Column("launches", "launches", "count"),
        Column("kernel_ns", "time", "ns"),
        Column("share", "%", "share"),
    )
    forward_ns = _forward_ns(report)
    lines = [
        Row((names[row.kernel], row.category, row.count, row.total_ns, share(row.total_ns, forward_ns)))
        for row in longest
    ]
    title = f"(c) Longest kernels of the forward that are no GEMMs, {{unit}} {sweep.scope}"
    return Table("c_kernels", title, columns, tuple(lines), f"{OF_FORWARD}.", FORWARD)


def _categories(sweep: Sweep, ranked: Sequence[str]) -> Table:
    top = ranked if sweep.detail.whole else ranked[:CATEGORIES_SHOWN]
    others = ranked[len(top) :]
    columns = [_share_column("gemm", "GEMMs"), _share_column("other", "all else")]
    columns += [_share_column(name, name) for name in top] + ([_share_column("rest", "rest")] if others else [])

    def cells(report: Answered) -> list[float] | None:
        forward_ns, by_category = _forward_ns(report), _by_category(report)
        if not forward_ns:
            return None
        gemm_ns = by_category.get("gemm", 0)
        parts_ns = [by_category.get(name, 0) for name in top]
        parts_ns += [sum(by_category.get(name, 0) for name in others)] if others else []
        return [part_ns / forward_ns for part_ns in (gemm_ns, forward_ns - gemm_ns, *parts_ns)]

    caption = f"{OF_FORWARD}; the categories sum to all else."
    caption += f" rest: {', '.join(others)}." if others else ""
    title = f"(c) Forward kernel time by kind of kernel, %, {sweep.scope}"
    return sweep.table("c", title, columns, cells, caption, FORWARD)


def _operations(sweep: Sweep, key: str, where: str, names: Sequence[str]) -> Table:
    """Draw the shares of some operations."""

    def cells(report: Answered) -> list[float | None] | None:
        forward_ns, time_ns = _forward_ns(report), operations_of(report)
        if not forward_ns or not time_ns:
            return None
        return [time_ns[name] / forward_ns if name in time_ns else None for name in names]

    title = f"(c) Operations {where} in the forward, no GEMMs, %, {sweep.scope}"
    caption = f"{OF_FORWARD}; both tables sum to all else. {DEFINITIONS}"
    return sweep.table(key, title, [_share_column(name, name) for name in names], cells, caption, FORWARD)


def _share_column(key: str, heading: str) -> Column:
    return Column(f"{key}_share", f"{heading} %", "share")


def _forward_ns(report: Answered) -> Number:
    return sum(row.kernel_ns for row in report.phases if row.phase == FORWARD)


def _by_category(report: Answered) -> dict[str, Number]:
    rows = (row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel")
    return {row.category: row.total_ns for row in added(rows, ("category",))}


# (d): the GEMMs' share of the kernel time in the forward alone and in a whole training step.

ABSENT = " –: one of the phases has no kernels."
SPLIT_K = "A split-K helper's time counts above, its launch does not."


def gemm_share(sweep: Sweep) -> Answer:
    """Show the GEMMs' share of the kernel time and their launches, by phase and in total."""
    step = "step" if sweep.per_step else "all"
    together = {"optimizer": ("optimizer", (OPTIMIZER,)), "step": (step, PHASES)}
    of_share = {
        "forward": ("forward", (FORWARD,)),
        "both": ("forward + backward", (FORWARD, BACKWARD)),
        **together,
    }
    of_launches = {"forward": ("forward", (FORWARD,)), "backward": ("backward", (BACKWARD,)), **together}

    def gemm_part(report: Answered, phases: Sequence[str]) -> Number | None:
        """Return the share, None where one of the phases has no kernels; all together need but some."""
        if phases != PHASES and any(no_kernels(report, phase) for phase in phases):
            return None
        rows = [row for row in report.phases if row.phase in phases]
        return share(sum(row.gemm_ns for row in rows), sum(row.kernel_ns for row in rows))

    def launches(report: Answered, phases: Sequence[str]) -> Number | None:
        if phases != PHASES and any(no_kernels(report, phase) for phase in phases):
            return None
        return sum(row.gemm_kernels for row in report.phases if row.phase in phases)

    def absent(columns: Mapping[str, tuple[str, tuple[str, ...]]]) -> str:
        """Return what a dash means, where there is one."""
        has_dash = any(
            launches(report, phases) is None for report in sweep.counted for _, phases in columns.values()
        )
        return ABSENT if has_dash else ""

    share_columns = [Column(f"{key}_gemm_share", f"{name} %", "share") for key, (name, _) in of_share.items()]
    launch_columns = [Column(f"{key}_gemms", name, "count") for key, (name, _) in of_launches.items()]
    tables = [
        sweep.table(
            "d",
            f"(d) GEMMs' share of the kernel time, %, {sweep.scope}",
            share_columns,
            lambda report: [gemm_part(report, phases) for _, phases in of_share.values()],
            f"% is of the kernel time of what the heading names.{absent(of_share)}",
        ),
        sweep.table(
            "d_launches",
            f"(d) GEMM launches, {sweep.scope}",
            launch_columns,
            lambda report: [launches(report, phases) for _, phases in of_launches.values()],
            (SPLIT_K if sweep.unit == "GPU" else "") + absent(of_launches),
        ),
    ]
    sentence = ""
    if sweep.alone:
        names = {"the forward": (FORWARD,), "the whole step" if sweep.per_step else "all work": PHASES}
        shares = {name: gemm_part(sweep.alone, phases) for name, phases in names.items()}
        parts = [
            f"{percent(part)} of the kernel time of {name}" for name, part in shares.items() if part is not None
        ]
        sentence = f"(d) GEMMs take {' and '.join(parts)}." if parts else ""
    return Answer(led(sentence, tables), lacking(sweep, no_kernels, (FORWARD,)))
