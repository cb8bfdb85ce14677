"""What each range allocated, kept for backward and freed, and what held memory when most was in use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..document import Column, Document, Row, Table
from ..errors import ReportError
from ..measures import memory as measures
from ..measures.memory import Holder, Memory, RangeMemory
from ..report import Report, added, tree_order
from ..summary.collapsing import Naming, naming_of
from ..summary.selection import path_matcher
from ..support.units import bytes_text
from ..vocabulary import some_of
from . import headings
from .registry import Subject
from .rows import NOWHERE, depths, in_tree, label, last_names, more, per_step, share

NO_MEMORY = (
    "The report does not say what was allocated. Record it with memory: nk.profile(model, optimizer, path, "
    "memory=True), nvtx-kernels record --memory, or nvtx-kernels run --record FILE --record-memory."
)
NOT_MEASURED = (
    "Nothing was allocated or freed in the measured part. --include-warmup counts warm-up; without --per-step, "
    "what lies in no step counts too."
)
NO_MATCH = "Nothing was allocated or freed in a range that matches {!r}. Ranges: {}."
NARROWED = (
    "Ranges, the largest allocations and what was in use at the peak are those of {!r}. The peaks, the balance "
    "and the accounting are of all that was recorded."
)
OTHERS = "(other ranges, or unseen)"
OF_CUDA = (
    "These are CUDA's own allocations (cudaMalloc and the like), as nsys saw them. PyTorch's allocator takes few "
    "large blocks from CUDA and hands out tensors from them, which nsys does not see. For tensors, record with: "
    "nvtx-kernels record --memory."
)
OF_CPU = "What the CPU held before the recording is not known: figures begin with 0."
SUMS = (
    "Ranges include all inside them. allocated, freed: in the range, whoever freed or had allocated it. kept: "
    "allocated in forward, and still in use when the backward of its step began. at peak: allocated by the range, "
    "and in use when the device held most, not per step."
)
PEAKS = "held: the most in use at a moment of each phase, with what was there when it began."
HOLDERS = "Each range without those inside it, and warm-up and other steps too: what they allocated is in use."
UNEXPLAINED = "(before the recording, or unseen)"
WHOLE_RUN = "all"
NEVER = "not freed"


def view(subject: Subject) -> Document:
    """Show memory by range, the peaks, what is held at the highest, and the largest allocations.

    Raises ReportError where the report has no allocations, or none in what is measured.
    """
    report = subject.report
    found = measures.memory(
        subject.attribution(), include_warm_up=report.warm_up_included, in_steps=report.per_step
    )
    if found is None:
        raise ReportError(NO_MEMORY)
    if not found.peaks:
        raise ReportError(NOT_MEASURED)
    naming = tuple if subject.detail.every_index else naming_of(report)
    accounting = tuple(_accounting(report, found))
    found = _of_ranges(found, subject.ranges) if subject.ranges else found
    found = _of_phases(found, report) if subject.some_phases else found
    tables = (
        _ranges(subject, found, naming),
        _peaks(found, naming),
        _holders(subject, found, naming),
        _largest(subject, found, naming),
        _balance(found),
    )
    shown = (table for table in tables if table.rows)
    notes = (*([NARROWED.format(subject.ranges)] if subject.ranges else []), *report.notes, *_notes(report, found))
    return headings.answer(report, shown, notes, accounting=accounting)


def _of_ranges(found: Memory, pattern: str) -> Memory:
    """Leave what is of the ranges that match; of the rest, the sum of what is held at a peak.

    Raises ReportError if nothing is of them.
    """
    matches = path_matcher(pattern)
    ranges = tuple(row for row in found.ranges if matches(row.path))
    if not ranges:
        raise ReportError(NO_MATCH.format(pattern, some_of(name for row in found.ranges for name in row.path)))
    held = [one for one in found.holders if one.path and matches(one.path)]
    rest: dict[str, int] = {}
    for one in found.holders:
        if one not in held:
            rest[one.device] = rest.get(one.device, 0) + one.held_bytes
    others = (Holder(device, (OTHERS,), "", 0, size) for device, size in rest.items())
    blocks = tuple(one for one in found.blocks if matches(one.path))
    return replace(found, ranges=ranges, holders=(*held, *others), blocks=blocks)


def _of_phases(found: Memory, report: Report) -> Memory:
    """Leave what is of the phases that were asked for; what is held at the peak stays."""
    asked = {row.phase for row in report.phases}
    return replace(
        found,
        ranges=tuple(row for row in found.ranges if row.phase in asked),
        peaks=tuple(row for row in found.peaks if row.phase in asked),
        blocks=tuple(row for row in found.blocks if row.phase in asked),
    )


def _scope(report: Report, found: Memory) -> str:
    if report.per_step:
        return f"per step, mean of {report.steps}"
    return f"over {report.steps} step{'s' * (report.steps > 1)}" if report.steps and found.of_steps else "total"


def _accounting(report: Report, found: Memory) -> Iterator[str]:
    """Report where all that was allocated went."""
    inside, outside = (
        sum(one.count * one.bytes for one in found.blocks if bool(one.path) is in_range)
        for in_range in (True, False)
    )
    whole = inside + outside
    parts = ((whole, ""), (inside, " in ranges"), (outside, " outside all ranges"))
    total, *rest = (f"{bytes_text(per_step(report, size))}{where}" for size, where in parts)
    yield f"All memory allocated, {_scope(report, found)}: {total} = {' + '.join(rest)}."
    left = sum(one.allocated_bytes for one in found.balances) - whole
    if left:
        yield f"Left out: {bytes_text(left)} that was allocated in warm-up{' or in no step' * report.per_step}."


def _ranges(subject: Subject, found: Memory, naming: Naming) -> Table:
    """Show one row per range and phase, outer before inner, and what is in no range.

    Where ranges were chosen, those that open the phases may be missing: then each row says its phase.
    """
    report, detail = subject.report, subject.detail
    named = added((replace(row, path=naming(row.path)) for row in found.ranges), ("path", "phase"))
    order = tree_order([(row.path, (row.allocated_bytes,)) for row in named if row.path])
    rows = sorted((row for row in named if row.path), key=lambda row: (order(row.path), row.phase))
    outside = [row for row in named if not row.path]
    columns = (
        Column("range", "range", "name"), *([Column("phase", "phase")] if detail.whole or subject.ranges else []),
        Column("allocations", "number", "count"), Column("allocated_bytes", "allocated", "bytes"),
        Column("kept_bytes", "kept", "bytes"), Column("freed_bytes", "freed", "bytes"),
        Column("peak_bytes", "at peak", "bytes"),
    )  # fmt: skip
    title = f"Allocations by range, {_scope(report, found)}"
    if detail.whole:
        lines = [Row((label(row.path), row.phase, *_figures(report, row))) for row in (*rows, *outside)]
        return Table("memory", title, columns, tuple(lines), SUMS)
    chosen = in_tree(rows, "allocated_bytes", detail.top, report.phase_names)
    names = [row.path[-1] for row in chosen] if subject.ranges else last_names(chosen)
    lines = [
        Row((name, *([row.phase] if subject.ranges else []), *_figures(report, row)), indent=depth)
        for name, depth, row in zip(names, depths(chosen), chosen, strict=True)
    ]
    lines += [Row((NOWHERE, *_figures(report, row))) for row in outside]
    return Table("memory", title, columns, tuple(lines), SUMS + more(rows, len(chosen), "range"))


def _figures(report: Report, row: RangeMemory) -> tuple[object, ...]:
    sums = (row.allocations, row.allocated_bytes, row.kept_bytes, row.freed_bytes)
    return *(per_step(report, value) for value in sums), row.peak_bytes


def _peaks(found: Memory, naming: Naming) -> Table:
    """Show the most that was in use, at all and in each phase."""
    columns = (
        Column("device", "device"), Column("phase", "phase"), Column("held_bytes", "held", "bytes"),
        Column("range", "in the range", "name"),
    )  # fmt: skip
    rows = tuple(
        Row((one.device, one.phase or WHOLE_RUN, one.held_bytes, label(naming(one.path))), strong=not one.phase)
        for one in found.peaks
    )
    return Table("peaks", "The most memory in use, by phase", columns, rows, PEAKS)


def _holders(subject: Subject, found: Memory, naming: Naming) -> Table:
    """Show which ranges had allocated what was in use at the peak; the rows add up to it."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    whole: dict[str, int] = {}
    for one in found.holders:
        key = one.device, UNEXPLAINED if one.path is None else label(naming(one.path)), one.phase
        blocks, held = sums.get(key, (0, 0))
        sums[key] = blocks + one.blocks, held + one.held_bytes
        whole[one.device] = whole.get(one.device, 0) + one.held_bytes
    found_rows = sorted(sums.items(), key=lambda item: (item[0][0], -item[1][1], item[0]))
    several = len(whole) > 1
    columns = (
        Column("device", "device", seen_by="all" if several else "programs"), Column("range", "range", "name"),
        Column("phase", "phase"), Column("blocks", "number", "count"), Column("held_bytes", "held", "bytes"),
        Column("share", "%", "share"),
    )  # fmt: skip
    rows = tuple(
        Row((key[0], key[1], key[2] or None, blocks or None, held, share(held, whole[key[0]])))
        for key, (blocks, held) in found_rows[: subject.detail.top]
    )
    caption = HOLDERS + more(found_rows, len(rows), "row")
    return Table("holders", "What was in use at the peak, by the range that allocated it", columns, rows, caption)


def _largest(subject: Subject, found: Memory, naming: Naming) -> Table:
    """Show the largest allocations, those of one size, place and end together."""
    counts: dict[tuple[int, str, str, str], int] = {}
    for one in found.blocks:
        key = -one.bytes, label(naming(one.path)), one.phase, one.freed_in or NEVER
        counts[key] = counts.get(key, 0) + one.count
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    columns = (
        Column("range", "range", "name"), Column("phase", "phase"), Column("bytes", "each", "bytes"),
        Column("count", "number", "count"), Column("freed_in", "freed in"),
    )  # fmt: skip
    report = subject.report
    rows = tuple(
        Row((where, phase, -size, per_step(report, count), end))
        for (size, where, phase, end), count in ordered[: subject.detail.top]
    )
    caption = "One row per range, size and phase of the free." + more(ordered, len(rows), "row")
    return Table("largest", f"The largest allocations, {_scope(report, found)}", columns, rows, caption)


def _balance(found: Memory) -> Table:
    """Show that the allocator's own figures and the events agree, over the whole recording."""
    columns = (
        Column("device", "device"), Column("before_bytes", "before", "bytes"),
        Column("allocated_bytes", "+ allocated", "bytes"), Column("freed_bytes", "− freed", "bytes"),
        Column("unseen_bytes", "+ unseen", "bytes"), Column("after_bytes", "= after", "bytes"),
    )  # fmt: skip
    rows = tuple(
        Row(
            (one.device, one.before_bytes, one.allocated_bytes, one.freed_bytes, one.unseen_bytes, one.after_bytes)
        )
        for one in found.balances
    )
    caption = "unseen: changes of the allocator's total that no recorded allocation or free explains."
    return Table("balance", "Memory in use before and after all that was recorded", columns, rows, caption)


def _notes(report: Report, found: Memory) -> Iterator[str]:
    if not found.of_tensors:
        yield OF_CUDA
    elif report.provenance.unit_of_work == "CPU":
        yield OF_CPU
