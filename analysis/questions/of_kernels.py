"""The questions of kernels: (b) the longest, (c) what is not a matrix product, (d) the share that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ..document import Column, Row, Table, headed
from ..kernel_names.short import names_by_kernel
from ..report import Number, added
from ..support.units import count_text, time_text
from ..views.rows import longest_first, share
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, OTHER, PHASES
from . import figures
from .figures import Answered, longest_kernel, operations_of
from .sweep import Answer, Cells, Sweep, by_phase, lacking, led, no_kernels, percent

KERNEL, LAUNCHES, TIME, SHARE = headed("kernel", "launches", kernel_ns="time", share="%")
MADE_OF, SAME = Column("made_of", "made of"), Column("same", "same")

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

    cells = {scope: _kernel_cells(scope, names, report) for scope in scopes}
    cells = {scope: of_scope for scope, of_scope in cells.items() if of_scope}
    compared = [SAME] if len(cells) > 1 else []
    columns = [Column("of", "of", "name"), *_kernel_columns(sweep, cells), *compared]
    called = {"both": "forward + backward", "step": "step" if sweep.per_step else "all"}
    rows = []
    for scope, of_scope in cells.items():
        row = {**of_scope, "of": called.get(scope, scope)} | ({"same": ""} if scope == FORWARD else {})
        rows.append(Row(tuple(row.get(column.key) for column in columns)))
    title = f"(b) Kernel with the most cumulative time, {{unit}} {sweep.scope}"
    caption = KERNEL_CAPTION.replace("what the title names", "what the row is of")
    table = Table("b", title, tuple(columns), tuple(rows), caption)
    sentences = []
    if forward := cells.get(FORWARD):
        figures = f"{_time_and_share(forward)}, {count_text(forward['launches'])} launches{sweep.each}"
        sentences.append(f"(b) In forward, {forward['kernel']} takes the most cumulative time: {figures}")
    if forward and (both := cells.get("both")):
        figures = f"{_time_and_share(both)}, {count_text(both['launches'])} launches"
        kernel = "the same" if both["same"] == "yes" else both["kernel"]
        sentences.append(f"in forward + backward it is {kernel}: {figures}")
    return Answer(led(f"{'; '.join(sentences)}." if sentences else "", [table]), answer.lacks)


def _time_and_share(cells: Cells) -> str:
    return f"{time_text(cells['kernel_ns'])} ({percent(cells['share'])})"


def _kernel_columns(sweep: Sweep, scopes: Iterable[str]) -> list[Column]:
    has_formula = any(report.formulas.get(scope) for scope in scopes for report in sweep.counted)
    return [KERNEL, LAUNCHES, *([MADE_OF] if has_formula else []), TIME, SHARE]


def _no_kernels_of_scope(report: Answered, scope: str) -> str:
    """Return why a scope has no row: where it is but one phase, that phase's table has it."""
    if scope == "both":
        return no_kernels(report, FORWARD) or no_kernels(report, BACKWARD)
    if scope == "step":
        return "" if longest_kernel(report) else "It has no kernels."
    return no_kernels(report, scope)


def _kernel_table(sweep: Sweep, names: Mapping[str, str], scope: str) -> Table:
    columns = [*_kernel_columns(sweep, [scope]), *([] if scope == FORWARD else [SAME])]
    scope_name = SCOPES[scope][1] if sweep.per_step or scope != "step" else "all work"
    title = f"(b) Kernel with the most cumulative time in {scope_name}, {{unit}} {sweep.scope}"
    cells = partial(_kernel_cells, scope, names)
    return sweep.table(f"b_{scope}", title, columns, cells, KERNEL_CAPTION, scope if scope in PHASES else "")


def _kernel_cells(scope: str, names: Mapping[str, str], report: Answered) -> Cells:
    phases = SCOPES[scope][0]
    longest = longest_kernel(report, phases)
    if longest is None or _no_kernels_of_scope(report, scope):
        return {}
    forward = longest_kernel(report, (FORWARD,))
    return {
        "kernel": names[longest.kernel],
        "launches": longest.count,
        "made_of": report.formulas.get(scope, ""),
        "kernel_ns": longest.total_ns,
        "share": share(longest.total_ns, sum(row.kernel_ns for row in report.phases if row.phase in phases)),
        "same": None if forward is None else "yes" if forward.kernel == longest.kernel else "no",
    }


# (c): what takes time in the forward besides matrix products, by kind of kernel and by operation.

#: Categories that people see; programs get all.
CATEGORIES_SHOWN, KERNELS_SHOWN = 3, 5
UNKNOWN = "unknown"
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

    def operations(key: str, where: str, names: Sequence[str]) -> Table:
        title = f"(c) Operations {where} in the forward, no GEMMs, %, {sweep.scope}"
        caption = f"{OF_FORWARD}; both tables sum to all else. {DEFINITIONS}"
        columns = [_share_column(name, name) for name in names]
        return sweep.table(
            key, title, columns, lambda report: _shares(report, operations_of(report)), caption, FORWARD
        )

    by_category = [_by_category(report) for report in sweep.counted]
    shares = [_shares(report, time_ns) for report, time_ns in zip(sweep.counted, by_category, strict=True)]
    largest = {
        category: max(of_report.get(f"{category}_share", 0) for of_report in shares)
        for category in set().union(*by_category) - {"gemm"}
    }
    ranked = sorted(largest, key=lambda category: (-largest[category], category))
    kinds = by_phase(sweep, no_kernels, lambda _: _categories(sweep, ranked), (FORWARD,))
    sentence = ""
    if sweep.alone and (of_alone := shares[0]):
        parts = [f"{name} {percent(of_alone[f'{name}_share'])}" for name in ranked[:CATEGORIES_SHOWN]]
        not_gemm = percent(1 - of_alone.get("gemm_share", 0))
        sentence = f"(c) {not_gemm} of forward's kernel time is not GEMM{': ' if parts else ''}{', '.join(parts)}."
    tables = [*led(sentence, kinds.tables)]
    if ranked and len(sweep.reports) == 1:
        tables.append(_longest_besides_gemms(sweep))

    present = {name for report in sweep.counted for name, time_ns in operations_of(report).items() if time_ns}
    elsewhere = [name for name in ELSEWHERE if name in present or sweep.detail.whole]
    in_attention = by_phase(
        sweep, unnamed, lambda _: operations("c_attention", "of attention", IN_ATTENTION), (FORWARD,)
    )
    if in_attention.tables and (sweep.detail.whole or not present.isdisjoint(IN_ATTENTION)):
        tables += in_attention.tables
    if in_attention.tables and elsewhere:
        tables.append(operations("c_elsewhere", "elsewhere", elsewhere))
    return Answer(tuple(tables), (*kinds.lacks, *in_attention.lacks))


def _longest_besides_gemms(sweep: Sweep) -> Table:
    """Show the kernels of one report's forward that are no GEMMs, those with the most time; programs get all."""
    report = sweep.reports[0]
    kernels = [row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel"]
    longest = longest_first(added((row for row in kernels if row.category != "gemm"), ("kernel", "category")))
    longest = longest if sweep.detail.whole else longest[:KERNELS_SHOWN]
    names = names_by_kernel((row.kernel for row in longest), sweep.detail.full_names)
    forward_ns = _forward_ns(report)
    rows = [
        Row((names[row.kernel], row.category, row.count, row.total_ns, share(row.total_ns, forward_ns)))
        for row in longest
    ]
    title = f"(c) Longest kernels of the forward that are no GEMMs, {{unit}} {sweep.scope}"
    columns = (KERNEL, Column("category", "kind"), LAUNCHES, TIME, SHARE)
    return Table("c_kernels", title, columns, tuple(rows), f"{OF_FORWARD}.", FORWARD)


def _categories(sweep: Sweep, ranked: Sequence[str]) -> Table:
    top = ranked if sweep.detail.whole else ranked[:CATEGORIES_SHOWN]
    others = ranked[len(top) :]
    columns = [_share_column("gemm", "GEMMs"), _share_column("other", "all else")]
    columns += [_share_column(name, name) for name in top] + ([_share_column("rest", "rest")] if others else [])

    def cells(report: Answered) -> Cells:
        by_category = dict.fromkeys(("gemm", *top), 0) | _by_category(report)
        other_ns = _forward_ns(report) - by_category["gemm"]
        rest_ns = sum(by_category.get(name, 0) for name in others)
        return _shares(report, by_category | {"other": other_ns, "rest": rest_ns})

    caption = f"{OF_FORWARD}; the categories sum to all else."
    caption += f" rest: {', '.join(others)}." if others else ""
    title = f"(c) Forward kernel time by kind of kernel, %, {sweep.scope}"
    return sweep.table("c", title, columns, cells, caption, FORWARD)


def _share_column(key: str, heading: str) -> Column:
    return Column(f"{key}_share", f"{heading} %", "share")


def _shares(report: Answered, time_ns: Mapping[str, Number]) -> Cells:
    """Return the shares of the forward's kernel time, by the keys of their columns; none where it has none."""
    forward_ns = _forward_ns(report)
    return {f"{name}_share": part_ns / forward_ns for name, part_ns in time_ns.items()} if forward_ns else {}


def _forward_ns(report: Answered) -> Number:
    return sum(row.kernel_ns for row in report.phases if row.phase == FORWARD)


def _by_category(report: Answered) -> dict[str, Number]:
    """Return the time of the forward's kernels, ns; `other` is what tables call all that is no GEMM."""
    rows = (row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel")
    return {UNKNOWN if row.category == OTHER else row.category: row.total_ns for row in added(rows, ("category",))}


# (d): the GEMMs' share of the kernel time in the forward alone and in a whole training step.

ABSENT = " –: one of the phases has no kernels."
SPLIT_K = "A split-K helper's time counts above, its launch does not."
#: Phases whose GEMMs are shown together. All of them need but some kernels; of the others, each needs them.
TOGETHER = {
    FORWARD: (FORWARD,),
    BACKWARD: (BACKWARD,),
    "both": (FORWARD, BACKWARD),
    OPTIMIZER: (OPTIMIZER,),
    "step": PHASES,
}
SHARES, COUNTS = (FORWARD, "both", OPTIMIZER, "step"), (FORWARD, BACKWARD, OPTIMIZER, "step")


def gemm_share(sweep: Sweep) -> Answer:
    """Show the GEMMs' share of the kernel time and their launches, by phase and in total."""
    called = {"both": "forward + backward", "step": "step" if sweep.per_step else "all"}

    def absent(keys: Sequence[str]) -> str:
        """Return what a dash means, where there is one."""
        has_dash = any(f"{key}_gemms" not in _gemms(report) for report in sweep.counted for key in keys)
        return ABSENT if has_dash else ""

    tables = [
        sweep.table(
            "d",
            f"(d) GEMMs' share of the kernel time, %, {sweep.scope}",
            [Column(f"{key}_gemm_share", f"{called.get(key, key)} %", "share") for key in SHARES],
            _gemms,
            f"% is of the kernel time of what the heading names.{absent(SHARES)}",
        ),
        sweep.table(
            "d_launches",
            f"(d) GEMM launches, {sweep.scope}",
            [Column(f"{key}_gemms", called.get(key, key), "count") for key in COUNTS],
            _gemms,
            f"{SPLIT_K if sweep.unit == 'GPU' else ''}{absent(COUNTS)}".strip(),
        ),
    ]
    parts = []
    if sweep.alone:
        names = {FORWARD: "the forward", "step": "the whole step" if sweep.per_step else "all work"}
        shares = {name: _gemms(sweep.alone).get(f"{key}_gemm_share") for key, name in names.items()}
        parts = [
            f"{percent(part)} of the kernel time of {name}" for name, part in shares.items() if part is not None
        ]
    sentence = f"(d) GEMMs take {' and '.join(parts)}." if parts else ""
    return Answer(led(sentence, tables), lacking(sweep, no_kernels, (FORWARD,)))


def _gemms(report: Answered) -> Cells:
    """Return the GEMMs' share of the kernel time and their launches, where each of the phases has kernels."""
    cells: dict[str, Number | None] = {}
    for key, phases in TOGETHER.items():
        if phases == PHASES or not any(no_kernels(report, phase) for phase in phases):
            rows = [row for row in report.phases if row.phase in phases]
            cells[f"{key}_gemm_share"] = share(
                sum(row.gemm_ns for row in rows), sum(row.kernel_ns for row in rows)
            )
            cells[f"{key}_gemms"] = sum(row.gemm_kernels for row in rows)
    return cells
