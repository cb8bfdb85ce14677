"""The closed sections of a page: views as the terminal shows them, and what memory held over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..attribution.causes import Attribution
from ..document import Column, Document, Table, without_commands
from ..errors import ReportError
from ..measures.memory import held_over_time, memory
from ..presenters import cell_text
from ..support.text import fit
from ..support.units import bytes_text, time_text
from ..views import communication
from ..views import memory as memory_view
from ..views.registry import Subject, viewer
from .work_rows import LONGEST_KERNEL

MAX_MOMENTS = 800
#: How many rows of a table are seen before the others are asked for, and from which length of text it is wide.
ROWS_SEEN, WIDE_FROM = 10, 24


class Section(NamedTuple):
    """A section of a view; None where the view has no data for one of the reasons `absent`."""

    title: str
    view: str
    absent: tuple[str, ...] = ()


SECTIONS = (
    Section("Steps", "steps"),
    Section("Ranks", "communication", (communication.NOTHING, communication.ON_CPU)),
    Section("Memory", "memory", (memory_view.NO_MEMORY,)),
    Section("Roofline", "efficiency"),
)


def sections(subject: Subject) -> list[dict[str, Any]]:
    """Return the sections as plain data; a view that cannot answer is a section that says why."""
    shown = []
    for section in SECTIONS:
        try:
            document = without_commands(viewer(section.view).view(subject))
        except ReportError as error:
            document = Document("", (), notes=(str(error),))
        if any(note in section.absent for note in document.notes):
            continue
        said_above = subject.report.notes if document.tables else ()
        shown.append(
            {
                "title": section.title,
                "view": section.view,
                "tables": tables_of(document),
                "notes": [fit(note, LONGEST_KERNEL) for note in document.notes if note not in said_above],
            }
        )
    return shown


def tables_of(document: Document) -> list[dict[str, Any]]:
    """Return the tables that people see, as texts."""
    return [as_table(table) for table in cell_text.for_people(document)]


def as_table(table: Table) -> dict[str, Any]:
    """Return a table as texts: title, caption, headings, and cells that say whether they are numbers.

    Cells of shares of a whole hold their `share`, cut to 0 to 1, for a bar; numbers their value, to sort by.
    Rows after the first are folded, but for sums; of trees, which are not sorted, the deepest.
    """
    deepest = _deepest_seen([row.indent for row in table.rows])
    rows: list[dict[str, Any]] = []
    longest = 0
    for row, texts in zip(table.rows, cell_text.texts(table), strict=True):
        cells = []
        for column, text, value in zip(table.columns, texts, row.values, strict=True):
            cell = _as_cell(column, text, value)
            cells.append(cell)
            if not cell["number"]:
                longest = max(longest, len(cell["text"]))
        is_beyond = len(rows) >= ROWS_SEEN if deepest is None else row.indent > deepest
        folded = is_beyond and not row.strong
        rows.append({"strong": row.strong, "indent": row.indent, "folded": folded, "cells": cells})
    numbers = map(cell_text.is_number, table.columns)
    return {
        "wide": longest > WIDE_FROM,
        "sortable": deepest is None and sum(not row.strong for row in table.rows) > 1,
        "folded": sum(row["folded"] for row in rows),
        "title": cell_text.title(table),
        "caption": table.caption,
        "headings": list(zip(cell_text.headings(table), numbers, strict=True)),
        "rows": rows,
    }


def _as_cell(column: Column, text: str, value: object) -> dict[str, Any]:
    """Return one cell as text, with its value if it is a number, and its share of a whole."""
    is_number = cell_text.is_number(column)
    amount = float(value) if is_number and isinstance(value, int | float) else None
    share = None
    if amount is not None and column.kind == "share" and column.key != "change":
        share = min(1.0, max(0.0, amount))
    return {"text": fit(text, LONGEST_KERNEL), "number": is_number, "share": share, "value": amount}


def _deepest_seen(indents: Sequence[int]) -> int | None:
    """Return down to which depth about twenty rows of a tree are seen; None if the rows are no tree."""
    if not any(indents):
        return None
    deepest = 0
    for depth in range(max(indents) + 1):
        if sum(indent <= depth for indent in indents) <= 2 * ROWS_SEEN:
            deepest = depth
    return deepest


def memory_curve(attribution: Attribution, *, include_warm_up: bool) -> dict[str, Any] | None:
    """Return the memory in use over time on the device with the highest peak, as points from 0 to 1.

    None where the report has no allocations.
    """
    facts = memory(attribution, include_warm_up=include_warm_up)
    of_run = [peak for peak in facts.peaks if not peak.phase] if facts else []
    if not of_run:
        return None
    peak = max(of_run, key=lambda peak: peak.held_bytes)
    at_ns, held = held_over_time(attribution)[peak.device]
    since_ns = at_ns - at_ns[0]
    width_ns = max(int(since_ns[-1]), 1)
    most = max(int(held.max()), 1)
    stretch = since_ns * MAX_MOMENTS // (width_ns + 1)
    order = np.lexsort((-held, stretch))
    highest = np.sort(order[np.append(True, np.diff(stretch[order]) != 0)])
    places = (since_ns[highest] / width_ns).tolist()
    heights = (held[highest] / most).tolist()
    return {
        "device": peak.device,
        "peak": bytes_text(peak.held_bytes),
        "most": bytes_text(most),
        "lasts": time_text(width_ns),
        "points": list(zip(places, heights, strict=True)),
    }
