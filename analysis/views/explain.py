"""Where a kernel's launches come from: `61 = 5·12 + 1`, range by range and grid by grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..document import Column, Document, Row, Table, headed
from ..errors import ReportError
from ..kernel_names.short import distinct_short_names, short_name
from ..measures.launch_groups import STEP, Explanation, Group, LaunchGroups
from ..report import Report, added
from ..summary.selection import naming_for, where
from ..vocabulary import OTHER, PHASES
from . import headings
from .registry import Subject
from .rows import common_length, kernels_of, label, longest_first, require_measured, share

CAPTION = "ranges: ranges of that name that launch it; each: launches per range."


def view(subject: Subject) -> Document:
    """Explain the launches of the requested kernel, or of the longest of each phase.

    Raises ReportError if no kernel has the name.
    """
    require_measured(subject.report)
    report, detail = subject.report, subject.detail
    requested = _requested(subject)
    groups = LaunchGroups(subject.attribution, include_warm_up=report.warm_up_included)
    naming = naming_for(detail, report)
    explained = [groups.explain(*key, report=report, naming=naming) for key in requested[: detail.top]]
    kernels = [kernel for kernel, _ in requested]
    names = kernels if detail.full_names else distinct_short_names(kernels)
    tables = [_table(report, explanation, name) for explanation, name in zip(explained, names, strict=False)]
    if detail.whole:
        tables = [_every_group(report, explained)]
    elif tables:
        tables[-1] = replace(tables[-1], caption=CAPTION)
    left_out = len(requested) - len(explained)
    notes = [f"{left_out} more match: --top {len(requested)}."] if left_out else []
    per_step = all(explanation.unit == STEP for explanation in explained) and not detail.whole
    accounting = (headings.accounting_per_step if per_step else headings.accounting_of)(report)
    return headings.answer(report, tables, (*report.notes, *notes), accounting=accounting)


def _requested(subject: Subject) -> list[tuple[str, str]]:
    """Find kernels and their phases by name, longest first; without a name the longest of each phase.

    A kernel of exactly this name, in full or short, comes before those whose name contains it.
    """
    kernels = added(kernels_of(subject.report), ("kernel", "phase"))
    ranked = [(row.kernel, row.phase) for row in longest_first(kernels)]
    if not ranked:
        raise ReportError("The report has no kernels whose launches can be explained.")
    if not subject.kernel:
        longest = {phase: (kernel, phase) for kernel, phase in reversed(ranked)}
        return [longest[phase] for phase in PHASES if phase in longest]
    pattern = subject.kernel.lower()
    names = {kernel: (kernel.lower(), short_name(kernel).lower()) for kernel, _ in ranked}
    exact = [key for key in ranked if pattern in names[key[0]]]
    matching = exact or [key for key in ranked if any(pattern in name for name in names[key[0]])]
    if not matching:
        phases = " and ".join(row.phase for row in subject.report.phases)
        searched = where(subject.report) + (f" of {phases}" if subject.some_phases else "")
        some = "; ".join(short_name(kernel) for kernel in list(names)[:6])
        raise ReportError(f"No kernel name{searched} contains {subject.kernel!r}. The longest kernels: {some}.")
    return matching


def _table(report: Report, explanation: Explanation, name: str) -> Table:
    """Draw one kernel: its terms, and below each the ranges that make it up."""
    units = explanation.units
    groups = [group for term in explanation.terms for group in term.groups]
    common, kernel_ns = common_length(group.path for group in groups), sum(group.total_ns for group in groups)
    has_blocks = any(group.blocks for group in groups)  # none on a CPU, nor in reports that do not say

    def cells(*added_up: Group) -> tuple[float, float | None]:
        total_ns = sum(group.total_ns for group in added_up)
        return total_ns / units, share(total_ns, kernel_ns)

    rows: list[Row] = []
    several = len(explanation.terms) > 1
    for term in explanation.terms:
        if several:
            text = headings.worded(f"{term.text} launch{'es' if term.launches > 1 else ''}", report.provenance)
            rows.append(Row((text, *[""] * has_blocks, term.launches, "", "", *cells(*term.groups)), strong=True))
        for group in term.groups:
            places = group.places / units if group.places else None
            each = group.launches / group.places if group.places else None
            counts = (*[group.blocks or None] * has_blocks, group.launches / units, places, each)
            rows.append(Row((label(group.path, common), *counts, *cells(group)), indent=int(several)))
    columns = headed("range", *["blocks"] * has_blocks, "launches", places="ranges", each="each", kernel_ns="time")
    columns += headed(share="%")
    return Table("explained", _title(report, explanation, name), columns, tuple(rows))


def _title(report: Report, explanation: Explanation, name: str) -> headings.Worded:
    """Describe how many launches there are of what, and their sum."""
    phase = explanation.phase
    count = f"{explanation.sum} launch{'es' if explanation.launches > 1 else ''}"
    count = f"{name}: {headings.worded(count, report.provenance)}"
    where = "no phase" if phase == OTHER else phase
    if not explanation.unit:
        rows = [row for row in report.kernels if (row.kernel, row.phase) == (explanation.kernel, phase)]
        return headings.Worded(f"{count} in {where}, {headings.over(report, rows)}, {{unit}}")
    inside = "" if explanation.unit == phase else f" in {where}"
    return headings.Worded(f"{count} per {explanation.unit}{inside}, {{unit}}")


def _every_group(report: Report, explained: Sequence[Explanation]) -> Table:
    """Return one row per kernel, phase, range and grid, over all steps."""
    keys = ("kernel", "phase", "range", "blocks", "launches", "ranges", "total_ns", "unit", "units")
    columns = tuple(Column(key, key, "ns" if key.endswith("_ns") else "text") for key in keys)
    rows = []
    for explanation in explained:
        for group in (group for term in explanation.terms for group in term.groups):
            counts = (group.blocks or None, group.launches, group.places, group.total_ns)
            range_name = label(group.path)
            units = (explanation.unit, explanation.units)
            rows.append(Row((explanation.kernel, explanation.phase, range_name, *counts, *units)))
    return Table("explained", f"launches {headings.over(report, report.kernels)}", columns, tuple(rows))
