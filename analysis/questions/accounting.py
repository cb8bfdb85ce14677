"""Where all the work of a sweep's reports went, and what must be known of some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..document import Column, Row, Table
from ..views import headings
from .figures import Answered
from .sweep import NAME, ON_CPU, Sweep

#: The parts that all of a report's work is the sum of, and what they are called.
PARTS = {key: key.removesuffix("_ns") for key, _ in headings.PARTS} | {"excluded_ns": "warm-up"}
#: Of more reports than these, a note gives the number.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence about a report, by name, and the questions that it is about; none where it is about all."""

    name: str
    sentence: str
    questions: str = ""


def sources(sweep: Sweep) -> Table:
    """Show which file each row is of, what recorded it where that differs, and how many steps it measured."""
    facts = [
        (Column("gpu", "GPU", "name"), [" + ".join(report.provenance.gpus) or None for report in sweep.reports]),
        (Column("tool", "recorded by", "name"), [report.provenance.tool or None for report in sweep.reports]),
    ]
    shown: list[tuple[Column, Sequence[object]]] = [(NAME, sweep.names)] if NAME not in sweep.columns else []
    shown += [(column, values) for column, values in facts if len(set(values)) > 1]
    shown.append((Column("steps", "steps", "count"), [report.steps for report in sweep.reports]))
    columns, values = zip(*shown, strict=True)
    rows = [Row((*own, *each)) for own, each in zip(sweep.cells, zip(*values, strict=True), strict=True)]
    return Table("reports", "Reports, and the steps measured in each", (*sweep.columns, *columns), tuple(rows))


def work(sweep: Sweep) -> Table:
    """Show what part of each report's work was placed how; the shares sum to 100%."""
    what = headings.work(sweep.counted[0])
    present = [key for key in PARTS if any(getattr(report.totals, key) for report in sweep.counted)]
    columns = (
        Column("work_ns", "work", "ns"),
        *(Column(key.replace("_ns", "_share"), f"{PARTS[key]} %", "share") for key in present),
    )  # fmt: skip

    def cells(report: Answered) -> tuple[object, ...]:
        whole = report.totals.work_ns
        return (whole, *(getattr(report.totals, key) / whole if whole else None for key in present))

    said = dict(headings.PARTS)
    caption = "; ".join(f"{PARTS[key]}: {said[key]}" for key in present if PARTS[key] != said[key])
    title = f"All {what} of each report, {{unit}} {sweep.scope}, and how it was placed"
    return sweep.table("work", title, columns, cells, f"% is of the work. {caption}.")


def of_one(sweep: Sweep) -> list[Said]:
    """Return what a single report says of itself; the accounting below its tables tells the rest."""
    return [Said(name, note) for name, report in sweep.named for note in report.notes]


def notes(sweep: Sweep) -> Iterator[Said]:
    """Yield what must be known of each of several reports."""
    for name, report in zip(sweep.names, sweep.reports, strict=True):
        if not sweep.counts(report):
            yield Said(name, ON_CPU)
            continue
        yield from (Said(name, note) for note in report.notes)


def grouped(said: Iterable[Said], reports: int) -> Iterator[str]:
    """Return every sentence once, with the reports that it is about, unless these are all."""
    about: dict[tuple[str, str], list[str]] = {}
    for one in said:
        about.setdefault((one.questions, one.sentence), []).append(one.name)
    for (questions, sentence), names in about.items():
        names = list(dict.fromkeys(names))
        whom = "" if len(names) == reports else _listed(names)
        yield ": ".join(filter(None, (" of ".join(filter(None, (questions, whom))), sentence)))


def _listed(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
