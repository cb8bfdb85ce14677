"""The answers to the questions, over a sweep of reports or of one, and where all their work went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..document import SHORT, Column, Detail, Document, Row, Table
from ..errors import ReportError
from ..views import headings
from ..views.rows import share
from . import of_kernels, of_ranges, sweep, timed
from .asked import QUESTIONS
from .figures import Answered
from .sweep import NAME, ON_CPU, Answer, Sweep

ANSWERS: Mapping[str, Callable[[Sweep], Answer]] = {
    "a": of_ranges.times,
    "b": of_kernels.longest,
    "c": of_kernels.besides_gemms,
    "d": of_kernels.gemm_share,
    "e": of_ranges.softmax,
}
#: The parts that all of a report's work is the sum of, and what they are called.
PARTS = {key: key.removesuffix("_ns") for key, _ in headings.PARTS} | {"excluded_ns": "warm-up"}
#: Of more reports than these, a note gives the number.
NAMED = 3


class Note(NamedTuple):
    """A sentence about a report, by name, and the questions that it is about; none where it is about all."""

    name: str
    sentence: str
    questions: str = ""


def document(
    reports: Sequence[tuple[str, Answered]],
    letters: str,
    detail: Detail = SHORT,
    *,
    problems: Sequence[tuple[str, str]] = (),
    times: Sequence[timed.Row] = (),
) -> Document:
    """Answer questions, such as "ac", of reports by name; `problems` are of those that could not be read.

    `times` are runs without a profiler, of `timed.read`. Each answer begins with its question.

    Raises ReportError where no report answers any of them.
    """
    names, answered = zip(*reports, strict=True)
    swept = sweep.sweep_of(names, answered, detail, times=times)
    first, is_alone = swept.counted[0], len(reports) + len(problems) == 1
    tables: list[Table] = []
    letters_of_lack: dict[tuple[str, str], list[str]] = {}
    for letter in letters:
        answer = ANSWERS[letter](swept)
        if answer.tables:
            question, sentence = f"({letter}) {QUESTIONS[letter]}", answer.tables[0].lead
            lead = f"{question} {sentence.removeprefix(f'({letter}) ')}".strip()
            tables += _caption_once([replace(answer.tables[0], lead=lead), *answer.tables[1:]])
        for lack in dict.fromkeys(answer.lacks):
            letters_of_lack.setdefault(lack, []).append(f"({letter})")

    notes = []
    for name, report in zip(swept.names, swept.reports, strict=True):
        is_counted = is_alone or swept.counts(report)
        notes += [Note(name, note) for note in (report.notes if is_counted else [ON_CPU])]
    notes += [
        Note(name, headings.worded(reason, first.provenance), ", ".join(questions))
        for (name, reason), questions in letters_of_lack.items()
    ]
    about = list(_grouped(notes, len(swept.reports)))
    if not tables:
        raise ReportError(" ".join(about))
    about = [*(f"{name} is left out: {problem}" for name, problem in problems), *about]
    if is_alone:
        accounting = headings.accounting_of(first)
        return headings.document(first.provenance, headings.heading(first), tables, accounting, about)
    heading = sweep.heading(swept.reports, len(reports) + len(problems))
    return headings.document(first.provenance, heading, [*tables, _sources(swept), _work(swept)], (), about)


def _caption_once(tables: Sequence[Table]) -> Iterator[Table]:
    """Leave out the caption of a table that the next one has too."""
    for table, later in zip(tables, [*tables[1:], None], strict=True):
        yield replace(table, caption="") if later and table.caption == later.caption else table


def _sources(swept: Sweep) -> Table:
    """Show which file each row is of, what recorded it where that differs, and how many steps it measured."""
    facts: list[tuple[Column, Sequence[object]]] = [
        (Column("gpu", "GPU", "name"), [" + ".join(report.provenance.gpus) or None for report in swept.reports]),
        (Column("tool", "recorded by", "name"), [report.provenance.tool or None for report in swept.reports]),
    ]
    facts = [(column, values) for column, values in facts if len(set(values)) > 1]
    if NAME not in swept.columns:
        facts.insert(0, (NAME, swept.names))
    facts.append((Column("steps", "steps", "count"), [report.steps for report in swept.reports]))
    columns, values = zip(*facts, strict=True)
    rows = [
        Row((*identity, *cells)) for identity, cells in zip(swept.cells, zip(*values, strict=True), strict=True)
    ]
    return Table("reports", "Reports, and the steps measured in each", (*swept.columns, *columns), tuple(rows))


def _work(swept: Sweep) -> Table:
    """Show what part of each report's work was placed how; the shares sum to 100%."""
    present = [key for key in PARTS if any(getattr(report.totals, key) for report in swept.counted)]
    columns = [Column(key.replace("_ns", "_share"), f"{PARTS[key]} %", "share") for key in present]

    def cells(report: Answered) -> sweep.Cells:
        work_ns = report.totals.work_ns
        shares = {
            column.key: share(getattr(report.totals, key), work_ns)
            for key, column in zip(present, columns, strict=True)
        }
        return {"work_ns": work_ns, **shares}

    meanings = dict(headings.PARTS)
    caption = "; ".join(f"{PARTS[key]}: {meanings[key]}" for key in present if PARTS[key] != meanings[key])
    kind = headings.work(swept.counted[0])
    title = f"All {kind} of each report, {{unit}} {swept.scope}, and how it was placed"
    return swept.table(
        "work", title, [Column("work_ns", "work", "ns"), *columns], cells, f"% is of the work. {caption}."
    )


def _grouped(notes: Sequence[Note], reports: int) -> Iterator[str]:
    """Yield every sentence once, with the reports that it is about, unless these are all."""
    about: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        names = about.setdefault((note.questions, note.sentence), [])
        names += [note.name] if note.name not in names else []
    for (questions, sentence), names in about.items():
        listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        subject = " of ".join(filter(None, (questions, "" if len(names) == reports else listed)))
        yield ": ".join(filter(None, (subject, sentence)))
