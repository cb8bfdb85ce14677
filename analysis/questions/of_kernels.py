"""The questions of kernels: (b) the longest, (c) what is not a matrix product, (d) the share that is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial

from ..document import Column, Row, Table, headed
from ..kernel_names.short import names_by_kernel
from ..measures import attention_parts as attention
from ..report import KernelRow, Number, Path, Report, added
from ..support.units import counted, time_in_digits
from ..views import headings
from ..views.rows import kernels_of, longest_first, share
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, OTHER, PHASES, opens_phase
from .sweep import Answer, Answered, Cells, Sweep, by_phase, lacking, led, longest_kernel, no_kernels, percent

KERNEL, LAUNCHES, TIME, SHARE = headed("kernel", "launches", kernel_ns="time", share="%")

# (b): the kernel that takes the most time in the forward, how often it is launched, and whether elsewhere too.

KERNEL_CAPTION = "% is of the row's part. 5·12 + 1: five in each of 12 layers, and one more."
#: Phases that are taken together: their longest kernel, and their GEMMs.
TOGETHER = {
    FORWARD: (FORWARD,),
    BACKWARD: (BACKWARD,),
    "both": (FORWARD, BACKWARD),
    OPTIMIZER: (OPTIMIZER,),
    "step": PHASES,
}
#: The phases of (b), and what its titles call them.
SCOPES = {
    FORWARD: "the forward",
    BACKWARD: "the backward",
    "both": "forward and backward together",
    "step": "the whole step",
}


def longest(sweep: Sweep) -> Answer:
    """Show the longest kernel of the forward, of the backward, of both and of all phases.

    Of one report, people get one table with a row for each of these.
    """
    phases = [row for report in sweep.counted for row in report.phases]
    has_more = any(row.kernel_ns and row.phase not in TOGETHER["both"] for row in phases)
    scopes = [scope for scope in SCOPES if has_more or scope != "step"]
    longest_rows = (longest_kernel(report, TOGETHER[scope]) for scope in SCOPES for report in sweep.counted)
    names = names_by_kernel((row.kernel for row in longest_rows if row), sweep.detail.full_names)

    def cells(scope: str, report: Answered) -> Cells:
        row = longest_kernel(report, TOGETHER[scope])
        forward = longest_kernel(report, (FORWARD,))
        if row is None or _missing(report, scope):
            return {}
        return {
            "kernel": names[row.kernel],
            "launches": row.count,
            "made_of": report.formulas.get(scope, ""),
            "kernel_ns": row.total_ns,
            "share": share(row.total_ns, _time_ns(report, TOGETHER[scope])),
            "same": forward and ("yes" if forward.kernel == row.kernel else "no"),
        }

    def columns(*scopes: str) -> tuple[Column, ...]:
        has_formula = any(report.formulas.get(scope) for scope in scopes for report in sweep.counted)
        made_of = headed(made_of="made of") if has_formula else ()
        return (KERNEL, LAUNCHES, *made_of, TIME, SHARE)

    def table(scope: str) -> Table:
        scope_name = SCOPES[scope] if sweep.per_step or scope != "step" else "all work"
        title = f"(b) Slowest kernel in {scope_name}, {{unit}} {sweep.scope}"
        all_columns = columns(scope) if scope == FORWARD else (*columns(scope), *headed("same"))
        phase = scope if scope in PHASES else ""
        return sweep.table(f"b_{scope}", title, all_columns, partial(cells, scope), KERNEL_CAPTION, phase)

    answer = by_phase(sweep, _missing, table, scopes)
    if sweep.alone is None or not answer.tables:
        return answer
    of_scopes = {scope: cells(scope, sweep.alone) for scope in scopes}
    of_scopes = {scope: of_scope for scope, of_scope in of_scopes.items() if of_scope}
    all_columns = (Column("of", "of", "name"), *columns(*of_scopes))
    if len(of_scopes) > 1:
        all_columns += headed("same")
    rows = []
    for scope, of_scope in of_scopes.items():
        row = {**of_scope, "of": _called(sweep, scope)}
        if scope == FORWARD:
            row["same"] = ""
        rows.append(Row(tuple(row.get(column.key) for column in all_columns)))
    title = f"(b) Slowest kernel, {{unit}} {sweep.scope}"
    of_alone = Table("b", title, all_columns, tuple(rows), KERNEL_CAPTION)
    return Answer(led(_longest_sentence(sweep, sweep.alone, of_scopes), [of_alone]), answer.lacks)


def _longest_sentence(sweep: Sweep, report: Answered, cells: Mapping[str, Cells]) -> str:
    """Name the longest kernel of the forward, and whether it is that of forward and backward together."""
    if FORWARD not in cells:
        return ""
    figures = {}
    for scope, of_scope in cells.items():
        launches = headings.worded(counted(of_scope["launches"], "launch", "launches"), report.provenance)
        figures[scope] = f"{time_in_digits(of_scope['kernel_ns'])} ({percent(of_scope['share'])}), {launches}"
    most = f"In forward, {cells[FORWARD]['kernel']} takes the most time"
    sentence = f"{most}: {figures[FORWARD]}{sweep.each}"
    if both := cells.get("both"):
        kernel = "the same" if both["same"] == "yes" else both["kernel"]
        sentence += f"; in forward + backward it is {kernel}: {figures['both']}"
    return headings.Worded(f"{sentence}.")


def _called(sweep: Sweep, scope: str) -> str:
    if scope == "step" and not sweep.per_step:
        return "all"
    return "forward + backward" if scope == "both" else scope


def _missing(report: Answered, scope: str) -> str:
    """Return the reason that a scope lacks kernels: each of its phases needs some, and the whole step any."""
    if scope == "step":
        return "" if kernels_of(report) else "It has no kernels."
    reasons = [no_kernels(report, phase) for phase in TOGETHER[scope]]
    return next(filter(None, reasons), "")


# (c): what takes time in the forward besides matrix products, by kind of kernel and by operation.

#: Categories that people see; programs get all.
CATEGORIES_SHOWN, KERNELS_SHOWN = 3, 5
UNKNOWN = "unknown"
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
IN_ATTENTION = (SOFTMAX, MASK, SCALE, ROPE)
ELSEWHERE = (NORM, ACTIVATION, RESIDUAL, LOSS, CASTS, COPIES, REST)
OF_FORWARD, OF_ALL = "% is of the forward's kernel time", "% is of the kernel time of all phases"
FORWARD_TITLE = "(c) Forward kernel time by kind of kernel"
DEFINITIONS = "% is of the forward's kernel time. residual: element-wise kernels around a norm."
UNNAMED = (
    "No range of the forward is named after an operation (softmax, mask, scale, rope, norm, activation, …). Open "
    "ranges of these names around them."
)


def besides_gemms(sweep: Sweep) -> Answer:
    """Show the share of the forward that is not GEMM, its largest categories, and its operations."""

    def unnamed(report: Answered, phase: str) -> str:
        return no_kernels(report, phase) or ("" if operations_of(report) else UNNAMED)

    def operations(report: Answered) -> Cells:
        return _shares(report, operations_of(report))

    ranked = _ranked(sweep, (FORWARD,))
    of_forward = partial(_categories, sweep, ranked, (FORWARD,), "c", FORWARD_TITLE)
    kinds = by_phase(sweep, no_kernels, lambda _: of_forward(), (FORWARD,))
    sentence = ""
    if sweep.alone and (of_alone := _shares(sweep.alone, _by_category(sweep.alone))):
        parts = [f"{name} {percent(of_alone[f'{name}_share'])}" for name in ranked[:CATEGORIES_SHOWN]]
        not_gemm = percent(1 - of_alone.get("gemm_share", 0))
        sentence = f"{not_gemm} of forward's kernel time is not GEMM"
        if parts:
            sentence += f": {', '.join(parts)}"
        sentence += "."
    tables = [*led(sentence, kinds.tables)]
    if ranked and len(sweep.reports) == 1:
        tables.append(_longest_besides_gemms(sweep))

    present = {name for report in sweep.counted for name, time_ns in operations_of(report).items() if time_ns}
    elsewhere = tuple(name for name in ELSEWHERE if name in present or sweep.detail.whole)
    places = {"c_attention": ("of attention", IN_ATTENTION), "c_elsewhere": ("elsewhere", elsewhere)}
    is_named = any(not unnamed(report, FORWARD) for report in sweep.counted)
    for key, (where, names) in places.items():
        if is_named and (sweep.detail.whole or not present.isdisjoint(names)):
            title = f"(c) Operations {where} in the forward, no GEMMs, %, {sweep.scope}"
            columns = headed(**_share_headings(names))
            tables.append(sweep.table(key, title, columns, operations, DEFINITIONS, FORWARD))
    return Answer(tuple(tables), (*kinds.lacks, *lacking(sweep, unnamed, (FORWARD,))))


def _longest_besides_gemms(sweep: Sweep) -> Table:
    """Show the kernels of one report's forward that are no GEMMs, those with the most time; programs get all."""
    report = sweep.reports[0]
    kernels = (row for row in kernels_of(report, (FORWARD,)) if row.category != "gemm")
    longest = longest_first(added(kernels, ("kernel", "category")))
    if not sweep.detail.whole:
        longest = longest[:KERNELS_SHOWN]
    names = names_by_kernel((row.kernel for row in longest), sweep.detail.full_names)
    forward_ns = _time_ns(report, (FORWARD,))
    rows = [
        Row((names[row.kernel], row.category, row.count, row.total_ns, share(row.total_ns, forward_ns)))
        for row in longest
    ]
    title = f"(c) Longest kernels of the forward that are no GEMMs, {{unit}} {sweep.scope}"
    columns = (KERNEL, *headed(category="kind"), LAUNCHES, TIME, SHARE)
    return Table("c_kernels", title, columns, tuple(rows), f"{OF_FORWARD}.", FORWARD)


def operations_of(report: Report) -> dict[str, Number]:
    """Add up the time of the forward's kernels that are not GEMMs, ns, by the outermost operation that is named.

    What no range names is a residual where it is element-wise and directly in the range around a norm, a cast or a
    copy by the kernel, and else the rest. What no range could name is not in it, and nothing where none does.
    """
    paths = {row.path for row in report.ranges if row.phase == FORWARD}
    layers = {path[:depth] for path in paths for depth, name in enumerate(path) if named(name) == NORM}
    operations = {named(name) for path in paths for name in path} - {""}
    if not operations - {LOSS}:
        return {}
    operations |= {CASTS, COPIES, REST}
    if layers:
        operations.add(RESIDUAL)
    sums: dict[str, Number] = dict.fromkeys(operations, 0)
    for row in kernels_of(report, (FORWARD,)):
        if row.category != "gemm":
            sums[_operation_of(row, layers)] += row.total_ns
    return sums


def _operation_of(row: KernelRow, layers: Collection[Path]) -> str:
    """Return the operation of a kernel that is no GEMM; `layers` are the ranges around norms."""
    operations = list(filter(None, map(named, row.path)))
    if operations:
        return operations[0]
    if row.category == "copy":
        return CASTS if CAST.search(row.kernel) else COPIES
    is_in_layer = row.path in layers and not opens_phase(row.path[-1])
    return RESIDUAL if is_in_layer and row.category == "elementwise" else REST


@lru_cache(maxsize=65_536)
def named(name: str) -> str:
    """Return the operation that a range's name names, or nothing."""
    bare = name.lstrip(":").strip()
    return next((operation for operation, pattern in NAMES.items() if pattern.fullmatch(bare)), "")


def _ranked(sweep: Sweep, phases: Sequence[str]) -> list[str]:
    """Return the kinds of kernel that are no GEMMs, those first that have a large share in some report."""
    by_category = [_by_category(report, phases) for report in sweep.counted]
    shares = [_shares(*of_report, phases) for of_report in zip(sweep.counted, by_category, strict=True)]
    names = set().union(*by_category) - {"gemm"}
    largest = {name: max(of_report.get(f"{name}_share", 0) for of_report in shares) for name in names}
    return sorted(names, key=lambda name: (-largest[name], name))


def _categories(sweep: Sweep, ranked: Sequence[str], phases: Sequence[str], key: str, title: str) -> Table:
    """Show the share of each kind of kernel in some phases; `ranked` are those that are no GEMMs."""
    top = ranked if sweep.detail.whole else ranked[:CATEGORIES_SHOWN]
    others = ranked[len(top) :]
    columns = headed(gemm_share="GEMMs %", other_share="all else %", **_share_headings(top))
    columns += headed(rest_share="rest %") if others else ()

    def cells(report: Answered) -> Cells:
        by_category = dict.fromkeys(("gemm", *top), 0) | _by_category(report, phases)
        other_ns = _time_ns(report, phases) - by_category["gemm"]
        rest_ns = sum(by_category.get(name, 0) for name in others)
        return _shares(report, by_category | {"other": other_ns, "rest": rest_ns}, phases)

    is_forward = tuple(phases) == (FORWARD,)
    caption = f"{OF_FORWARD if is_forward else OF_ALL}."
    if others:
        caption += f" rest: {', '.join(others)}."
    return sweep.table(key, f"{title}, %, {sweep.scope}", columns, cells, caption, FORWARD if is_forward else "")


def _share_headings(names: Iterable[str]) -> dict[str, str]:
    return {f"{name}_share": f"{name} %" for name in names}


def _shares(report: Answered, time_ns: Mapping[str, Number], phases: Sequence[str] = (FORWARD,)) -> Cells:
    """Return the shares of some phases' kernel time, by the keys of their columns; none where they have none."""
    all_ns = _time_ns(report, phases)
    return {f"{name}_share": part_ns / all_ns for name, part_ns in time_ns.items() if all_ns}


def _time_ns(report: Answered, phases: Sequence[str]) -> Number:
    return sum(row.kernel_ns for row in report.phases if row.phase in phases)


def _by_category(report: Answered, phases: Sequence[str] = (FORWARD,)) -> dict[str, Number]:
    """Return the time of some phases' kernels, ns; `other` is what tables call all that is no GEMM."""
    rows = added(kernels_of(report, phases), ("category",))
    return {UNKNOWN if row.category == OTHER else row.category: row.total_ns for row in rows}


# (d): the GEMMs' share of the kernel time in the forward alone and in a whole training step.

ABSENT = " –: one of the phases has no kernels."
SPLIT_K = "Helpers of split-K count in the time, not in the launches."
SHARES, COUNTS = (FORWARD, "both", OPTIMIZER, "step"), (FORWARD, BACKWARD, OPTIMIZER, "step")


def gemm_share(sweep: Sweep) -> Answer:
    """Show the GEMMs' share of the kernel time and their launches, by phase and in total, and all other kinds."""

    def absent(keys: Sequence[str]) -> str:
        """Return the meaning of a dash, or "" without dashes."""
        has_dash = any(f"{key}_gemms" not in _gemms(report) for report in sweep.counted for key in keys)
        return ABSENT if has_dash else ""

    shares = headed(**{f"{key}_gemm_share": f"{_called(sweep, key)} %" for key in SHARES})
    launches = [Column(f"{key}_gemms", _called(sweep, key), "count") for key in COUNTS]
    of_what = f"% is of the kernel time of the part in the heading.{absent(SHARES)}"
    helpers = f"{SPLIT_K if sweep.unit == 'GPU' else ''}{absent(COUNTS)}".strip()
    title = f"(d) GEMMs' share of the kernel time, %, {sweep.scope}"
    tables = [
        sweep.table("d", title, shares, _gemms, of_what),
        sweep.table("d_launches", f"(d) GEMM launches, {sweep.scope}", launches, _gemms, helpers),
    ]
    all_work = "the whole step" if sweep.per_step else "all work"
    ranked = _ranked(sweep, PHASES)
    if ranked and any(_time_ns(report, PHASES) > _time_ns(report, (FORWARD,)) for report in sweep.counted):
        title = f"(d) Kernel time of {all_work} by kind of kernel"
        tables.insert(1, _categories(sweep, ranked, PHASES, "d_kinds", title))
    names = {FORWARD: "the forward", "step": all_work}
    of_alone = _gemms(sweep.alone) if sweep.alone else {}
    parts = {name: of_alone.get(f"{key}_gemm_share") for key, name in names.items()}
    texts = [f"{percent(part)} of the kernel time of {name}" for name, part in parts.items() if part is not None]
    sentence = f"GEMMs take {' and '.join(texts)}." if texts else ""
    return Answer(led(sentence, tables), lacking(sweep, no_kernels, (FORWARD,)))


def _gemms(report: Answered) -> Cells:
    """Return the GEMMs' share of the kernel time and their launches, where each of the phases has kernels."""
    cells: dict[str, Number | None] = {}
    for key, phases in TOGETHER.items():
        if key == "step" or not _missing(report, key):
            rows = [row for row in report.phases if row.phase in phases]
            gemm_ns = sum(row.gemm_ns for row in rows)
            cells[f"{key}_gemm_share"] = share(gemm_ns, _time_ns(report, phases))
            cells[f"{key}_gemms"] = sum(row.gemm_kernels for row in rows)
    return cells
