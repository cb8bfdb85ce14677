"""Show why the GPU is idle, by cause and by range, and when only copies or communication ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..attribution.places import Paths
from ..document import Column, Document, Row, Table, headed
from ..errors import ReportError
from ..measures.idle import CAUSES, IdleTime, idle_time
from ..measures.idle_sums import CauseSum, PlaceSum, by_cause, by_place, only_ran
from ..measures.spans import Extents
from ..report import Report
from ..summary.selection import naming_for
from ..support.units import time_text
from . import headings, idle_on_cpu
from .idle_words import MEANING
from .registry import Subject
from .rows import common_length, function_column, label, more, per_step, require_measured, share

#: A share of the idle time below which people see causes in one row.
SMALL = 0.005
NEVER_IDLE = "The GPU is never idle in what is measured."


def view(subject: Subject) -> Document:
    """Show why the GPU is idle.

    Raises ReportError for a selection without work, and for a GPU that is never idle.
    """
    report = subject.report
    require_measured(report)
    if report.provenance.unit_of_work == "CPU":
        return idle_on_cpu.view(subject)
    idle = idle_time(subject.attribution, subject.phases, include_warm_up=report.warm_up_included)
    if not len(idle.pieces):
        raise ReportError(NEVER_IDLE)
    extents = Extents(subject.attribution, include_warm_up=report.warm_up_included)
    naming, paths = naming_for(subject.detail, report), Paths(idle.attribution)
    tables = [_windows(report, idle), _causes(report, idle, whole=subject.detail.whole)]
    tables.append(_places(subject, by_place(idle, paths, naming)))
    alone = only_ran(extents, idle, paths, naming)
    if alone:
        common = 0 if subject.detail.whole else common_length(row.path for row in alone)
        rows = tuple(
            Row((row.kind, label(row.path, common), per_step(report, row.time_ns)))
            for row in alone[: subject.detail.top]
        )
        title = f"GPU busy with copies or communication only, {{unit}} {headings.scope(report)}"
        caption = more(alone, subject.detail.top, "range").strip()
        columns = headed("kind", range="range that launched it", time_ns="time")
        tables.append(Table("alone", title, columns, rows, caption))
    return headings.answer(report, tables, [*report.notes, *_doubts(idle)])


def _doubts(idle: IdleTime) -> list[str]:
    unknown_ns = int(idle.pieces.duration_ns[idle.pieces.cause == CAUSES.index("unknown")].sum())
    if unknown_ns:
        return [f"The cause of {time_text(unknown_ns)} is unknown: the launch of the next work was not recorded."]
    return []


def _windows(report: Report, idle: IdleTime) -> Table:
    """Show how the windows are divided: span = busy + idle, by block and GPU."""
    windows = idle.windows
    of_window = np.bincount(idle.window, idle.gaps.duration_ns, len(windows)).astype(np.int64)
    rows = []
    for between in (False, True):
        for gpu, name in enumerate(idle.gpus):
            some = (windows.between == between) & (windows.gpu == gpu)
            span_ns, idle_ns = int(windows.duration_ns[some].sum()), int(of_window[some].sum())
            if span_ns:
                block = "between steps" if between else "step" if (windows.step >= 0).any() else "all work"
                figures = (span_ns, span_ns - idle_ns, idle_ns)
                scaled = (per_step(report, ns) for ns in figures)
                rows.append(Row((block, *[name] * (len(idle.gpus) > 1), *scaled, share(idle_ns, span_ns))))
    columns = headed("block", **({"gpu": "GPU"} if len(idle.gpus) > 1 else {}), span_ns="span", busy_ns="busy")
    columns += headed(idle_ns="idle", idle_share="idle %")
    title = f"GPU busy and idle, {{unit}} {headings.scope(report)}"
    return Table("windows", title, columns, tuple(rows), "span: from the first start to the last end of the work.")


def _causes(report: Report, idle: IdleTime, *, whole: bool) -> Table:
    """Show the causes, the largest typical one first; the column of idle time adds up to span less busy."""
    causes = by_cause(idle)
    total_ns, has_steps = sum(row.idle_ns for row in causes), bool((idle.windows.step >= 0).any())
    between = any(row.between_ns for row in causes)
    everything_ns = total_ns + sum(row.between_ns for row in causes)
    small = [row for row in causes if row.idle_ns + row.between_ns < SMALL * everything_ns and not whole]
    shown = [row for row in causes if row not in small] if len(small) > 1 else causes
    lines = [_cause_row(report, row, total_ns, between=between, has_steps=has_steps) for row in shown]
    if len(small) > 1:
        idle_ns, between_ns, median_ns = (
            sum(getattr(row, name) for row in small) for name in ("idle_ns", "between_ns", "median_ns")
        )
        rest = CauseSum("other causes", idle_ns, between_ns, median_ns, 0, None)
        lines.append(_cause_row(report, rest, total_ns, between=between, has_steps=has_steps))
    columns = headed("cause", idle_ns="idle", share="%")
    columns += headed(between_ns="between steps") if between else ()
    columns += (
        headed(median_ns="median step", alone_ns="one step more", alone_step="its step") if has_steps else ()
    )
    glosses = "; ".join(f"{row.cause}: {MEANING[row.cause]}" for row in shown[:2])
    title = f"Idle time by cause, {{unit}} {headings.scope(report)}"
    return Table("idle", title, columns, tuple(lines), f"{glosses}.")


def _cause_row(report: Report, row: CauseSum, total_ns: int, *, between: bool, has_steps: bool) -> Row:
    cells: tuple[Any, ...] = (row.cause, per_step(report, row.idle_ns), share(row.idle_ns, total_ns))
    cells += (per_step(report, row.between_ns),) if between else ()
    cells += (row.median_ns, row.alone_ns, "" if row.alone_step is None else row.alone_step) if has_steps else ()
    return Row(cells)


def _places(subject: Subject, places: Sequence[PlaceSum]) -> Table:
    """Rank causes in ranges by their idle time, in steps and between them."""
    report, detail = subject.report, subject.detail
    total_ns = sum(row.idle_ns + row.between_ns for row in places)
    common = 0 if detail.whole else common_length(row.path for row in places)
    rows, has_functions = [], any(row.function for row in places)
    for row in places[: detail.top]:
        idle_ns = row.idle_ns + row.between_ns
        figures = (per_step(report, idle_ns), share(idle_ns, total_ns), per_step(report, row.gaps), row.largest_ns)
        waited = row.waited_ns / idle_ns if row.waited_ns else ""
        alone = row.alone_ns / idle_ns if row.alone_step is not None else ""
        where = label(row.path, common), row.function
        rows.append(Row((row.cause, *where, *figures, waited, row.waited_for, alone)))
    columns = (*headed("cause", "range"), function_column(has_functions))
    columns += headed(idle_ns="idle", share="%", gaps="gaps", largest_ns="largest", waited_share="waited %")
    columns += (Column("waited_for", "call", seen_by="programs"), *headed(alone_share="1 step %"))
    title = f"Idle time by cause and range, {{unit}} {headings.scope(report)}"
    calls = ", ".join(dict.fromkeys(row.waited_for for row in places[: detail.top] if row.waited_for))
    waited = f" waited: right after {calls}." if calls else ""
    caption = waited + more(places, detail.top, "row" if has_functions else "range")
    return Table("places", title, columns, tuple(rows), caption.strip())
