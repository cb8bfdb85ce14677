"""Operators and their sizes: how long their kernels take, and how far that is above the least possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..document import Column, Row, Table, headed, rows_by_key
from ..kernel_names.short import names_by_kernel
from ..measures.gpu_peaks import Peak
from ..measures.operators import (
    COMMUNICATION,
    NO_OPERATOR,
    OperatorRow,
    Wanted,
    WorkShapes,
    kernels_by_operator,
    operator_rows,
    unknown_rows,
)
from ..report import Number
from ..summary.selection import naming_for
from ..support.units import share_text
from ..vocabulary.modules import Shown
from . import headings
from .registry import Subject
from .rows import label, more, share

UNKNOWN = "Shapes do not tell what {} of the {} computes: {}."
CAUSAL = (
    "Attention with a causal mask needs about half of the scores. The operators' FLOP/s count these; ranges, MFU "
    "and HFU count all scores, as PyTorch's counter does."
)
#: So many ranges say where an operator is.
PLACES = 2
#: So many operators are named where shapes do not tell what they do.
MOST_NAMED = 4
#: Shares of the kernel time below this are not worth a note.
LEAST_SHARE = 0.0005
KERNELS_PER_OPERATOR = 3
BOUND = "% peak: the least time, by FLOPs or bytes, over the time. above: the time beyond it."


def rows_of(subject: Subject, shapes: WorkShapes) -> list[OperatorRow]:
    """Return the operators of the requested part, named as its detail asks, over what its figures are of."""
    naming = naming_for(subject.detail, subject.report)
    return operator_rows(shapes, naming, steps=steps_of(subject), wanted=part_of(subject))


def part_of(subject: Subject) -> Wanted:
    """Return a function that decides whether a path and phase are in the requested part."""
    places = {(row.path, row.phase) for row in subject.report.kernels}
    return lambda path, phase: (path, phase) in places


def steps_of(subject: Subject) -> int:
    """Return by how many steps sums are divided."""
    return subject.report.counted_steps if subject.report.per_step else 1


def table(subject: Subject, rows: Sequence[OperatorRow], peak: Peak | None) -> Table:
    """Show operators with the time that is most above its bound first; one of unknown FLOPs could be all above."""
    ordered = sorted(rows, key=lambda row: -(_above_ns(row, peak, row.kernel_ns) or 0))
    by = ", by time above the least possible" if peak else " by time"
    title = f"Operators{by}, {{unit}} {headings.scope(subject.report)}"
    if subject.detail.whole:
        records = (_every_value(row, peak) for row in ordered)
        return Table("operators", title, EVERY_COLUMN, rows_by_key(EVERY_COLUMN, records))
    computing = [row for row in ordered if row.category != COMMUNICATION]
    columns = (
        Column("name", "operator and sizes; where", "name"),
        *headed("calls", kernel_ns="time"),
        Column("flops_per_s", "TFLOP/s", "ratio"),
        Column("bytes_per_s", "TB/s", "ratio"),
    )
    if peak:
        columns += headed(peak_share="% peak", above_ns="above")
    with_phase = len({row.phase for row in computing}) > 1
    lines = []
    for row in computing[: subject.detail.top]:
        name = " ".join(filter(None, (short(row.operator), row.shape)))
        rates = (_tera(row.per_second(row.least_flops)), _tera(row.per_second(row.bytes)))
        figures: tuple[object, ...] = (row.calls, row.kernel_ns, *rates)
        if peak:
            figures += (_peak_share(row, peak), _above_ns(row, peak, None))
        lines.append(Row((name, *figures), strong=True))
        if row.path or row.arithmetic:
            lines.append(Row((_place(row, with_phase=with_phase), *[""] * len(figures)), indent=1))
    caption = (BOUND if peak else "") + more(computing, subject.detail.top, "row")
    return Table("operators", title, columns, tuple(lines), caption.strip())


EVERY_COLUMN = (
    *headed("operator", "shape", "dtype", "arithmetic", "module", "phase", "recompute", "category"),
    *headed("calls", "kernels", "kernel_ns", "flops", "flops_per_s", "bytes", "bytes_per_s"),
    *headed("bound", "bound_ns", "peak_share", "above_ns"),
)


#: The columns whose values are an operator's own.
OF_ROW = (
    *("operator", "shape", "dtype", "arithmetic", "phase", "recompute", "category"),
    *("calls", "kernels", "kernel_ns", "bytes"),
)


def _every_value(row: OperatorRow, peak: Peak | None) -> dict[str, object]:
    """Return an operator's cells by the keys of EVERY_COLUMN."""
    return {
        **{name: getattr(row, name) for name in OF_ROW},
        "module": label(row.path),
        "flops": row.least_flops,
        "flops_per_s": row.per_second(row.least_flops),
        "bytes_per_s": row.per_second(row.bytes),
        "bound": row.bound(peak) if peak else None,
        "bound_ns": row.bound_ns(peak) if peak else None,
        "peak_share": _peak_share(row, peak),
        "above_ns": _above_ns(row, peak, None),
    }


def with_kernels(subject: Subject) -> Table:
    """Show operators, longest first, and below each its kernels; programs get a row for each pair."""
    report = subject.report
    detail = subject.detail
    shapes = WorkShapes(subject.attribution)
    kernels = kernels_by_operator(shapes, steps=steps_of(subject), wanted=part_of(subject))
    total_ns = sum(row.total_ns for row in kernels)
    if detail.whole:
        columns = headed("operator", "kernel", "category", "phase", "total_ns", "share", "count")
        lines = []
        for row in kernels:
            part = share(row.total_ns, total_ns)
            cells = (row.operator, row.kernel, row.category, row.phase, row.total_ns, part, row.count)
            lines.append(Row(cells))
        return Table("operators", "operators and their kernels", columns, tuple(lines))
    under: defaultdict[str, dict[str, list[Number]]] = defaultdict(dict)
    for row in kernels:
        figures = under[row.operator].setdefault(row.kernel, [0, 0])
        figures[0] += row.total_ns
        figures[1] += row.count
    ranked = sorted(under.items(), key=lambda entry: -sum(time for time, _ in entry[1].values()))
    longest = {operator: _longest(launched) for operator, launched in ranked[: detail.top]}
    names = names_by_kernel([kernel for kernels in longest.values() for kernel in kernels], detail.full_names)
    lines = []
    for operator, launched in ranked[: detail.top]:
        time_ns, count = (sum(figures) for figures in zip(*launched.values(), strict=True))
        lines.append(Row((operator, time_ns, share(time_ns, total_ns), count), strong=True))
        for kernel in longest[operator]:
            time_ns, count = launched[kernel]
            lines.append(Row((names[kernel], time_ns, share(time_ns, total_ns), count), indent=1))
    title = f"Operators and the kernels that they launched, {{unit}} {headings.scope(report)}"
    caption = f"% is of {headings.kernels(report)}.{more(ranked, detail.top, 'operator')}"
    columns = headed(name="operator and its top kernels", kernel_ns="time", share="%", count="launches")
    return Table("operators", title, columns, tuple(lines), caption)


def _longest(launched: dict[str, list[Number]]) -> list[str]:
    """Return the kernels of an operator with the most time."""
    return sorted(launched, key=lambda kernel: -launched[kernel][0])[:KERNELS_PER_OPERATOR]


def short(operator: str) -> str:
    """Return an operator's name as short as tables need it: `mm`, `conv_backward`, `flash_attention`."""
    if not operator.startswith("aten::"):
        return operator
    return operator.removeprefix("aten::").removeprefix("_scaled_dot_product_").replace("convolution", "conv")


def _place(row: OperatorRow, *, with_phase: bool) -> Shown:
    """Return an operator's type and module, with its phase, and whether it is computed again there."""
    place = label(row.path[-PLACES:]) if row.path else Shown("")
    facts = (
        row.arithmetic,
        headings.phase(row.phase) if with_phase else "",
        "again" if row.recompute else "",
        place,
    )
    return Shown(", ".join(filter(None, facts)), place.path)


def _tera(value: float | None) -> float | None:
    return None if value is None else value / 1e12


def _peak_share(row: OperatorRow, peak: Peak | None) -> float | None:
    bound_ns = row.bound_ns(peak) if peak else None
    return share(bound_ns, row.kernel_ns) if bound_ns else None


def _above_ns(row: OperatorRow, peak: Peak | None, unknown: Number | None) -> Number | None:
    """Return the time above the bound; `unknown` where that is not known."""
    bound_ns = row.bound_ns(peak) if peak else None
    return unknown if bound_ns is None else max(row.kernel_ns - bound_ns, 0)


def notes(subject: Subject, rows: Sequence[OperatorRow]) -> Iterator[str]:
    """Yield which share of the time shapes do not tell, by operator, and what is counted of causal attention."""
    total_ns = sum(row.kernel_ns for row in rows)
    unknown = unknown_rows(rows)
    part = share(sum(row.kernel_ns for row in unknown), total_ns)
    if part and part >= LEAST_SHARE:
        time = headings.lowered(headings.kernel_time(subject.report))
        yield UNKNOWN.format(share_text(part), time, _largest(unknown, total_ns))
    if any(row.flops != row.least_flops for row in rows):
        yield CAUSAL


def _largest(rows: Iterable[OperatorRow], total_ns: Number) -> str:
    """Name the operators with the most time, and their shares."""
    by_operator: dict[str, Number] = defaultdict(int)
    for row in rows:
        name = "no operator launched it" if row.operator == NO_OPERATOR else row.operator
        by_operator[name] += row.kernel_ns
    ranked = sorted(by_operator, key=lambda name: -by_operator[name])
    texts = [f"{name} {share_text(by_operator[name] / total_ns)}" for name in ranked[:MOST_NAMED]]
    if len(ranked) > MOST_NAMED:
        texts.append("…")
    return ", ".join(texts)
