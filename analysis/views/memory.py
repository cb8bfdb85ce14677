"""What each range allocated, kept for backward and freed, and what held memory when most was in use."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..document import Column, Document, Row, Table, headed, seen_if
from ..errors import ReportError
from ..measures import memory as measures
from ..measures.memory import Memory, RangeMemory
from ..report import Report, added, tree_order, under_paths
from ..summary.selection import naming_for, naming_of, path_matcher
from ..support.units import bytes_text
from ..vocabulary import some_of
from ..vocabulary.modules import Naming, Shown
from . import headings
from .registry import Subject
from .rows import NOWHERE, depths, in_tree, label, last_names, more, per_step, share

NO_MEMORY = (
    "The report does not say what was allocated. Record it with memory: nk.profile(model, optimizer, path, "
    "memory=True), nvtx-kernels record --memory, or nvtx-kernels run --record FILE --memory."
)
NOT_MEASURED = (
    "Nothing was allocated or freed in the measured part. --include-warmup counts warm-up; --totals counts work "
    "in "
    "no step."
)
NO_MATCH = "Nothing was allocated or freed in a range that matches {!r}. Ranges: {}."
NARROWED = (
    "Ranges, allocations and use at the peak are those of {!r}; peaks and balance are of all that was recorded."
)
WHOLE_RUN = "all"
OTHERS = "(other ranges, or unseen)"
OF_CUDA = (
    "These are CUDA's own allocations, such as cudaMalloc. PyTorch cuts tensors out of few large ones, which nsys "
    "does not see: for tensors, use nvtx-kernels record --memory."
)
OF_CPU = "Memory that the CPU held before the recording is unknown: figures begin with 0."
SUMS = "kept: in use from forward to backward. at peak: in use when the device held most."
PEAKS = "held: the most in use at a moment of each phase."
HOLDERS = "Own allocations of each range, of warm-up and other steps too."
UNEXPLAINED = "(before the recording, or unseen)"


def view(subject: Subject) -> Document:
    """Show memory by range, the peaks, what is held at the highest, and the largest allocations.

    Raises ReportError where the report has no allocations, or none in what is measured.
    """
    report = subject.report
    memory = measures.memory(
        subject.attribution, include_warm_up=report.warm_up_included, in_steps=report.per_step
    )
    if memory is None:
        raise ReportError(NO_MEMORY)
    if not memory.peaks:
        raise ReportError(NOT_MEASURED)
    naming = naming_for(subject.detail, report)
    accounting = _accounting(report, memory)
    notes = list(report.notes)
    if subject.ranges:
        memory = _of_ranges(report, memory, subject.ranges)
        notes.insert(0, NARROWED.format(subject.ranges))
    if subject.some_phases:  # what is held at the peak stays
        memory = replace(
            memory,
            ranges=tuple(row for row in memory.ranges if row.phase in subject.phases),
            peaks=tuple(row for row in memory.peaks if row.phase in subject.phases),
            blocks=tuple(row for row in memory.blocks if row.phase in subject.phases),
        )
    tables = (
        _ranges(subject, memory, naming),
        _peaks(memory, naming),
        _holders(subject, memory, naming),
        _largest(subject, memory, naming),
        _balance(memory),
    )
    if not memory.of_tensors:
        notes.append(OF_CUDA)
    elif report.provenance.unit_of_work == "CPU":
        notes.append(OF_CPU)
    return headings.answer(report, [table for table in tables if table.rows], notes, accounting=accounting)


def _of_ranges(report: Report, memory: Memory, pattern: str) -> Memory:
    """Leave what is of the ranges that match, and at a peak one sum of all else.

    Raises ReportError if nothing is of them.
    """
    matches = path_matcher(pattern, naming_of(report, every_index=True))
    ranges = tuple(row for row in memory.ranges if matches(row.path))
    if not ranges:
        names = some_of(name for row in memory.ranges for name in row.path)
        raise ReportError(NO_MATCH.format(pattern, names))
    holders, others = [], []
    for holder in memory.holders:
        if holder.path and matches(holder.path):
            holders.append(holder)
        else:
            others.append(replace(holder, path=(OTHERS,), phase="", blocks=0))
    holders += added(others, ("device",))
    blocks = tuple(block for block in memory.blocks if matches(block.path))
    return replace(memory, ranges=ranges, holders=tuple(holders), blocks=blocks)


def _scope(report: Report, memory: Memory) -> str:
    in_steps = report.per_step or (report.steps and memory.of_steps)
    return headings.over_steps(report) if in_steps else "total"


def _accounting(report: Report, memory: Memory) -> tuple[str, ...]:
    """Report where all that was allocated went."""
    inside = sum(block.count * block.bytes for block in memory.blocks if block.path)
    outside = sum(block.count * block.bytes for block in memory.blocks if not block.path)
    total_text = bytes_text(per_step(report, inside + outside))
    inside_text = bytes_text(per_step(report, inside))
    outside_text = bytes_text(per_step(report, outside))
    line = f"{total_text} was allocated {_scope(report, memory)}: {inside_text} in ranges, {outside_text} outside."
    left_out = sum(balance.allocated_bytes for balance in memory.balances) - inside - outside
    if not left_out:
        return (line,)
    where = "warm-up or in no step" if report.per_step else "warm-up"
    return line, f"Left out: {bytes_text(left_out)}, allocated in {where}."


def _ranges(subject: Subject, memory: Memory, naming: Naming) -> Table:
    """Show one row per range and phase, outer before inner, and what is in no range.

    Where ranges were chosen, those that open the phases may be missing: then each row says its phase.
    """
    report, detail = subject.report, subject.detail

    def figures(row: RangeMemory) -> tuple[object, ...]:
        sums = (row.allocations, row.allocated_bytes, row.kept_bytes, row.freed_bytes)
        return *(per_step(report, value) for value in sums), row.peak_bytes

    together = added(under_paths(memory.ranges, naming), ("path", "phase"))
    outside = [row for row in together if not row.path]
    rows = [row for row in together if row.path]
    order = tree_order([(row.path, (row.allocated_bytes,)) for row in rows])
    rows.sort(key=lambda row: (order(row.path), row.phase))
    with_phase = detail.whole or bool(subject.ranges)
    columns = headed("range", *["phase"] * with_phase, allocations="number", allocated_bytes="allocated")
    columns += headed(kept_bytes="kept", freed_bytes="freed", peak_bytes="at peak")
    title = f"Allocations by range, {_scope(report, memory)}"
    if detail.whole:
        lines = [Row((label(row.path), row.phase, *figures(row))) for row in (*rows, *outside)]
        return Table("memory", title, columns, tuple(lines), SUMS)
    chosen = in_tree(rows, "allocated_bytes", detail.top, report.phase_names)
    names = [label(row.path[-1:]) for row in chosen] if subject.ranges else last_names(chosen)
    lines = []
    for name, depth, row in zip(names, depths(chosen), chosen, strict=True):
        lines.append(Row((name, *[row.phase] * with_phase, *figures(row)), indent=depth))
    lines += [Row((NOWHERE, *figures(row))) for row in outside]
    return Table("memory", title, columns, tuple(lines), SUMS + more(rows, len(chosen), "range"))


def _peaks(memory: Memory, naming: Naming) -> Table:
    """Show the most that was in use, at all and in each phase."""
    columns = headed("device", "phase", held_bytes="held", range="in the range")
    rows = []
    for peak in memory.peaks:
        cells = (peak.device, peak.phase or WHOLE_RUN, peak.held_bytes, label(naming(peak.path)))
        rows.append(Row(cells, strong=not peak.phase))
    return Table("peaks", "The most memory in use, by phase", columns, tuple(rows), PEAKS)


def _holders(subject: Subject, memory: Memory, naming: Naming) -> Table:
    """Show which ranges had allocated what was in use at the peak; the rows add up to it."""
    blocks: Counter[tuple[str, Shown | str, str]] = Counter()
    held_bytes = blocks.copy()
    device_bytes: Counter[str] = Counter()
    for holder in memory.holders:
        range_name = UNEXPLAINED if holder.path is None else label(naming(holder.path))
        key = holder.device, range_name, holder.phase
        blocks[key] += holder.blocks
        held_bytes[key] += holder.held_bytes
        device_bytes[holder.device] += holder.held_bytes
    ranked = sorted(held_bytes, key=lambda key: (key[0], -held_bytes[key], key))
    columns = (
        seen_if(len(device_bytes) > 1, Column("device", "device")),
        *headed("range", "phase", blocks="number", held_bytes="held", share="%"),
    )
    rows = []
    for key in ranked[: subject.detail.top]:
        device, range_name, phase = key
        figures = (blocks[key] or None, held_bytes[key], share(held_bytes[key], device_bytes[device]))
        rows.append(Row((device, range_name, phase or None, *figures)))
    title = "What was in use at the peak, by the range that allocated it"
    return Table("holders", title, columns, tuple(rows), HOLDERS + more(ranked, len(rows), "row"))


def _largest(subject: Subject, memory: Memory, naming: Naming) -> Table:
    """Show the largest allocations, those of one size, place and end together."""
    counts: Counter[tuple[int, Shown, str, str]] = Counter()
    for block in memory.blocks:
        key = -block.bytes, label(naming(block.path)), block.phase, block.freed_in or "not freed"
        counts[key] += block.count
    ordered = sorted(counts, key=lambda key: (key[0], -counts[key], key))
    columns = headed("range", "phase", bytes="each", count="number", freed_in="freed in")
    report = subject.report
    rows = []
    for key in ordered[: subject.detail.top]:
        size, range_name, phase, freed_in = key
        rows.append(Row((range_name, phase, -size, per_step(report, counts[key]), freed_in)))
    caption = "One row per range, size and phase of the free." + more(ordered, len(rows), "row")
    return Table("largest", f"The largest allocations, {_scope(report, memory)}", columns, tuple(rows), caption)


def _balance(memory: Memory) -> Table:
    """Show that the allocator's own figures and the events agree, over the whole recording."""
    columns = headed("device", before_bytes="before", allocated_bytes="+ allocated", freed_bytes="− freed")
    columns += headed(unseen_bytes="+ unseen", after_bytes="= after")
    rows = tuple(Row(tuple(getattr(row, column.key) for column in columns)) for row in memory.balances)
    caption = "unseen: changes of the total that no recorded allocation or free explains."
    return Table("balance", "Memory in use before and after all that was recorded", columns, rows, caption)
