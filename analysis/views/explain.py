"""Where a kernel's launches come from: `61 = 5·12 + 1`, range by range and grid by grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..document import Column, Document, Row, Table, with_columns
from ..errors import ReportError
from ..kernel_names.short import distinct_short_names, short_name
from ..measures.launch_groups import STEP, Explanation, Group, LaunchGroups
from ..report import Number, Report
from ..summary.collapsing import naming_of
from ..vocabulary import OTHER, PHASES
from . import headings
from .registry import Subject
from .rows import common_length, label, require_measured, share

NUMBERS = (
    Column("blocks", "blocks", "count"), Column("launches", "launches", "count"),
    Column("places", "ranges", "count"), Column("each", "each", "count"), Column("kernel_ns", "time", "ns"),
    Column("share", "%", "share"),
)  # fmt: skip
BLOCKS = "blocks: the grid's size. "
CAPTION = (
    "launches: of this kernel in the range and in no inner one. ranges: how many of that name launch "
    "it, each so many times. "
    "% is of the kernel's time."
)
Key = tuple[str, str]  # a kernel's name and the phase


def view(subject: Subject) -> Document:
    """Explain the launches of the requested kernel, or of the longest of each phase.

    Raises ReportError if no kernel has the name.
    """
    require_measured(subject.report)
    report, found = subject.report, _asked(subject)
    groups = LaunchGroups(subject.attribution(), include_warm_up=report.warm_up_included)
    naming = tuple if subject.detail.every_index else naming_of(subject.report)
    paths = {key: {row.path for row in report.kernels if (row.kernel, row.phase) == key} for key in found}
    explained = [groups.explain(*key, paths=paths[key], naming=naming) for key in found[: subject.detail.top]]
    names = dict(zip(paths, _names([kernel for kernel, _ in found], subject.detail.full_names), strict=True))
    draw = partial(_table, report)
    tables = (
        [_whole(report, explained)]
        if subject.detail.whole
        else [draw(one, names[one.kernel, one.phase]) for one in explained]
    )
    rest = len(found) - len(explained)
    notes = [f"{rest} more kernels and phases match: --top {len(found)} shows them."] if rest > 0 else []
    per_step = all(one.unit == STEP for one in explained) and not subject.detail.whole
    accounting = (headings.accounting_per_step if per_step else headings.accounting_of)(report)
    return headings.answer(report, tables, (*report.notes, *notes), accounting=accounting)


def _asked(subject: Subject) -> list[Key]:
    """Find the kernels by name, longest first; without a name the longest of each phase."""
    time: dict[Key, Number] = {}
    for row in subject.report.kernels:
        if row.kind == "kernel":
            time[row.kernel, row.phase] = time.get((row.kernel, row.phase), 0) + row.total_ns
    ranked = sorted(time, key=lambda key: (-time[key], key))
    if subject.kernel:
        return _named(subject.kernel, ranked)
    if not ranked:
        raise ReportError("The report has no kernels whose launches can be explained.")
    longest = {phase: (kernel, phase) for kernel, phase in reversed(ranked)}
    return [longest[phase] for phase in PHASES if phase in longest]


def _named(pattern: str, ranked: list[Key]) -> list[Key]:
    """Return the kernels of exactly this name, in full or short, else those whose name contains it."""
    wanted = pattern.lower()
    names = {
        kernel: (kernel.lower(), short_name(kernel).lower()) for kernel in dict.fromkeys(k for k, _ in ranked)
    }
    exact = [key for key in ranked if wanted in names[key[0]]]
    found = exact or [key for key in ranked if any(wanted in name for name in names[key[0]])]
    if not found:
        some = "; ".join(short_name(kernel) for kernel in list(names)[:6]) or "none"
        raise ReportError(f"No kernel name contains {pattern!r}. The longest kernels: {some}.")
    return found


def _names(kernels: Sequence[str], full: bool) -> Sequence[str]:
    return kernels if full else distinct_short_names(kernels)


def _table(report: Report, one: Explanation, name: str) -> Table:
    """Draw one kernel: its terms, and below each the ranges that make it up."""
    groups = [group for term in one.terms for group in term.groups]
    common, whole = common_length(group.path for group in groups), sum(group.total_ns for group in groups)
    with_blocks = any(group.blocks for group in groups)  # not on a CPU, nor in reports that do not say
    rows: list[Row] = []
    for term in one.terms:
        if len(one.terms) > 1:
            count = headings.worded(f"{term.text} launch{'es' if term.launches > 1 else ''}", report.provenance)
            cells = (
                count,
                "",
                term.launches,
                "",
                "",
                _time(one, term.groups),
                share(sum(group.total_ns for group in term.groups), whole),
            )
            rows.append(Row(cells, strong=True))
        rows += [
            Row((label(group.path, common), *_numbers(one, group, whole)), indent=int(len(one.terms) > 1))
            for group in term.groups
        ]
    columns = (Column("range", "range", "name"), *NUMBERS)
    table = Table("explained", _title(report, one, name), columns, tuple(rows), BLOCKS + CAPTION)
    if with_blocks:
        return table
    kept = [place for place, column in enumerate(columns) if column.key != "blocks"]
    return replace(with_columns(table, kept), caption=CAPTION)


def _title(report: Report, one: Explanation, name: str) -> str:
    """Describe how many launches there are of what, and their sum."""
    trivial = one.formula in (f"{one.launches:,}", f"1·{one.launches}")
    count = f"{one.launches:,}{'' if trivial else f' = {one.formula}'} launch{'es' if one.launches > 1 else ''}"
    where = "no phase" if one.phase == OTHER else one.phase
    if not one.unit:
        rows = [row for row in report.kernels if (row.kernel, row.phase) == (one.kernel, one.phase)]
        return f"{name}: {count} in {where}, {headings.over(report, rows)}, {{unit}}"
    inside = "" if one.unit == one.phase else f" in {where}"
    return f"{name}: {count} per {one.unit}{inside}, {{unit}}, mean of {one.units}"


def _numbers(one: Explanation, group: Group, whole: int) -> tuple[object, ...]:
    """Return the cells of one range and grid."""
    places = group.places / one.units if group.places else None
    each = group.launches / group.places if group.places else None
    return (
        group.blocks or None, group.launches / one.units, places, each, _time(one, (group,)),
        share(group.total_ns, whole),
    )  # fmt: skip


def _time(one: Explanation, groups: Sequence[Group]) -> float:
    return sum(group.total_ns for group in groups) / one.units


def _whole(report: Report, explained: Sequence[Explanation]) -> Table:
    """Return one row per kernel, phase, range and grid, over all steps."""
    keys = ("kernel", "phase", "range", "blocks", "launches", "ranges", "total_ns", "unit", "units")
    columns = tuple(Column(key, key, "ns" if key.endswith("_ns") else "text") for key in keys)
    rows = tuple(
        Row(
            (
                one.kernel, one.phase, label(group.path), group.blocks or None, group.launches, group.places,
                group.total_ns, one.unit, one.units,
            )
        )
        for one in explained
        for term in one.terms
        for group in term.groups
    )  # fmt: skip
    return Table("explained", f"launches {headings.over(report, report.kernels)}", columns, rows)
