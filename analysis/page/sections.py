"""The views on a page, as the terminal shows them, and a list of what in them to look at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..document import Document, Table, by_key, without_commands
from ..errors import ReportError
from ..presenters import cell_text
from ..support.text import fit
from ..support.units import bytes_text, share_text, si_text, time_text
from ..views import communication, idle, memory
from ..views.registry import Subject, viewer
from .icicle import LONGEST_KERNEL
from .roofline import far_below


class Section(NamedTuple):
    """A view's section: its title, whether it is open although nothing in it stands out, and of GPUs alone.

    Where the view has no data for one of the reasons `absent`, there is no section. On a CPU it may have another
    title.
    """

    title: str
    open: bool
    of_gpus: bool = False
    absent: tuple[str, ...] = ()
    on_cpu: str = ""


SECTIONS = {
    "idle": Section(
        "Why is the GPU idle?",
        open=True,
        absent=(idle.NEVER_IDLE,),
        on_cpu="What does the program do outside of operators?",
    ),
    "agreement": Section("Do the clocks agree?", open=False),
    "attention": Section("What the parts of attention cost", open=True),
    "communication": Section(
        "Which communication and copies are exposed?",
        open=False,
        absent=(communication.NOTHING, communication.ON_CPU),
    ),
    "efficiency": Section("How near are ranges to the peaks?", open=True),
    "memory": Section("What allocates and holds memory?", open=True, absent=(memory.NO_MEMORY,)),
}
#: A sentence, and the section that it is about.
Item = tuple[str, str]
STEPS = "From step to step"


def title_of(section: str) -> str:
    """Return the title of the section that an item leads to."""
    return SECTIONS[section].title if section in SECTIONS else STEPS


def sections(
    subject: Subject, counted_ranges: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[Item]]:
    """Return the sections as plain data, and what to look at: sentences, each with the section it is about.

    `counted_ranges` are those with FLOPs or bytes, as roofline.counted_rows returns them. A view that cannot
    answer is a section that says why, and has nothing to look at.
    """
    answers: dict[str, Document | str] = {}
    for name in SECTIONS:
        try:
            answers[name] = without_commands(viewer(name).view(subject))
        except ReportError as error:
            answers[name] = str(error)
    items = [
        (text, name)
        for name, look in LOOK.items()
        if isinstance(answer := answers[name], Document)
        for text in look({table.key: table for table in answer.tables})
    ]
    items += [(text, "efficiency") for text in far_below(counted_ranges)]
    about, known_notes = {section for _, section in items}, set(subject.report.notes)
    on_gpu = subject.report.provenance.unit_of_work == "GPU"
    shown = []
    for name, section in SECTIONS.items():
        answer = answers[name]
        if answer in section.absent or (section.of_gpus and not on_gpu):
            continue
        if isinstance(answer, str):
            tables, notes = [], [answer]
        else:
            tables = [as_table(table) for table in cell_text.for_people(answer)]
            notes = [fit(note, LONGEST_KERNEL) for note in answer.notes if note not in known_notes]
        shown.append(
            {
                "name": name,
                "title": section.title if on_gpu else section.on_cpu or section.title,
                "command": f"nvtx-kernels view {name}",
                "open": (section.open or name in about) and isinstance(answer, Document),
                "tables": tables,
                "notes": notes,
            }
        )
    return shown, items


#: How many rows of a table are seen before the others are asked for, and from which length of text it is wide.
ROWS_SEEN, WIDE_FROM = 10, 24


def as_table(table: Table) -> dict[str, Any]:
    """Return a table as texts: title, caption, headings, and cells that say whether they are numbers.

    Cells of shares of a whole hold their `share`, cut to 0 to 1, for a bar; numbers their value, to sort by.
    Rows after the first are folded, but for sums; of trees, which are not sorted, the deepest.
    """
    deepest = _deepest_seen([row.indent for row in table.rows])
    is_tree = deepest is not None
    numbers = [cell_text.is_number(column) for column in table.columns]
    shares = [column.kind == "share" and column.key != "change" for column in table.columns]
    rows: list[dict[str, Any]] = []
    for row, texts in zip(table.rows, cell_text.texts(table), strict=True):
        cells: list[dict[str, Any]] = [
            {
                "text": fit(text, LONGEST_KERNEL),
                "number": number,
                "share": min(1.0, max(0.0, float(value))) if share and isinstance(value, int | float) else None,
                "value": value if number and isinstance(value, int | float) else None,
            }
            for text, value, number, share in zip(texts, row.values, numbers, shares, strict=True)
        ]
        is_beyond = len(rows) >= ROWS_SEEN if deepest is None else row.indent > deepest
        folded = is_beyond and not row.strong
        rows.append({"strong": row.strong, "indent": row.indent, "folded": folded, "cells": cells})
    names = cell_text.headings(table)
    lengths = [len(cell["text"]) for line in rows for cell in line["cells"] if not cell["number"]]
    return {
        "wide": max(lengths, default=0) > WIDE_FROM,
        "sortable": not is_tree and sum(not row.strong for row in table.rows) > 1,
        "folded": sum(line["folded"] for line in rows),
        "of": next((noun for noun in ("range", "kernel") if noun in " ".join(names)), "row"),
        "title": cell_text.title(table),
        "caption": table.caption,
        "headings": list(zip(cell_text.headings(table), numbers, strict=True)),
        "rows": rows,
    }


def _deepest_seen(indents: Sequence[int]) -> int | None:
    """Return down to which depth about twenty rows of a tree are seen; None if the rows are no tree."""
    if not any(indents):
        return None
    depths = [depth for depth in range(max(indents) + 1) if sum(n <= depth for n in indents) <= 2 * ROWS_SEEN]
    return max(depths, default=0)


def _agreement(tables: Mapping[str, Table]) -> Iterator[str]:
    """Name the phases whose CPU range is far from what the GPU did, and both times."""
    rows = [row for row in by_key(tables["agreement"]) if row["cpu_ns"] is not None]
    span = next(column.heading for column in tables["agreement"].columns if column.key == "span_ns")
    for verdict in ("CPU longer", "not synchronized"):
        times = [
            f"{row['phase']} {time_text(row['cpu_ns'])} and {time_text(row['span_ns'])}"
            for row in rows
            if row["verdict"] == verdict and abs(row["cpu_ns"] - row["span_ns"]) > MUCH * row["cpu_ns"]
        ]
        if times:
            yield f"CPU range and {span} differ ({verdict}): {', '.join(times)}."


def _communication(tables: Mapping[str, Table]) -> Iterator[str]:
    """Name the range whose collectives are exposed the longest, of those that are."""
    rows = by_key(tables["communication"]) if "communication" in tables else []
    first = next(iter(rows), None)
    if first and first["exposed_ns"]:
        where = fit(first["range"], LONGEST_KERNEL)
        yield (
            f"{first['collective']} of {where} is exposed the longest: {time_text(first['exposed_ns'])} of "
            f"{time_text(first['time_ns'])} on {first['gpu']}."
        )


def _memory(tables: Mapping[str, Table]) -> Iterator[str]:
    """Say where each device held most, and which range had allocated most of that, if that is known."""
    largest: dict[str, dict[str, Any]] = {}
    for holder in by_key(tables["holders"]) if "holders" in tables else ():
        largest.setdefault(holder["device"], holder)
    for peak in (row for row in by_key(tables["peaks"]) if row["phase"] == memory.WHOLE_RUN):
        where = fit(peak["range"], LONGEST_KERNEL)
        sentence = f"{peak['device']} holds at most {bytes_text(peak['held_bytes'])}, in {where}"
        held = largest.get(peak["device"])
        if held and held["share"] is not None:
            sentence += f": {share_text(held['share'])} of it is of {fit(held['range'], LONGEST_KERNEL)}"
        yield f"{sentence}."


def _efficiency(tables: Mapping[str, Table]) -> Iterator[str]:
    """Report MFU: what share of the GPU's peak the model's FLOPs reach in a step."""
    model = by_key(tables["step"])[0]
    if model.get("share") is not None:
        yield (
            f"While recorded, MFU is {share_text(model['share'])}: a step computes "
            f"{si_text(model['flops'], 'FLOP')} of the model in {time_text(model['time_ns'])}."
        )


#: By which share two clocks must differ to be named.
MUCH = 0.1


#: What is to be looked at in a view's tables, the most telling view first.
LOOK: dict[str, Callable[[Mapping[str, Table]], Iterator[str]]] = {
    "agreement": _agreement,
    "communication": _communication,
    "efficiency": _efficiency,
    "memory": _memory,
}
