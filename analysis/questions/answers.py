"""The answers to the questions asked, over a sweep of reports or of one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ..document import SHORT, Detail, Document, Table
from ..errors import ReportError
from ..report import Report
from ..views import headings
from . import accounting
from . import sweep as settings
from .accounting import Said
from .asked import QUESTIONS
from .figures import Answered
from .sweep import Answer, Sweep, sweep_of
from .timed import Row


class Question(Protocol):
    """What the module of a question offers."""

    def answer(self, sweep: Sweep) -> Answer:
        """Answer it of every report."""
        ...


def document(
    found: Sequence[tuple[str, Answered]], asked: str, detail: Detail = SHORT, *,
    problems: Sequence[tuple[str, str]] = (), times: Sequence[Row] = (),
) -> Document:  # fmt: skip
    """Answer the questions asked, such as "ac", of reports by name; `problems` are of those that gave none.

    `times` are runs without a profiler, of `timed.read`.

    Raises ReportError where no report answers any of them.
    """
    names, reports = zip(*found, strict=True)
    sweep = sweep_of(names, reports, detail, times=times)
    first = sweep.counted[0]
    answers = {letter: _question(letter).answer(sweep) for letter in asked}
    tables = [table for answer in answers.values() for table in _said_once(answer.tables)]
    lacks = _lacks(answers, first)
    alone = len(found) + len(problems) == 1
    notes = accounting.of_one(sweep) if alone else accounting.notes(sweep)
    about = list(accounting.grouped([*notes, *lacks], len(sweep.reports)))
    if not tables:
        raise ReportError(" ".join(about))
    left_out = [f"{name} is left out: {problem}" for name, problem in problems]
    heading = headings.heading(first) if alone else settings.heading(sweep.reports, len(found) + len(problems))
    shown = tables if alone else [*tables, accounting.sources(sweep), accounting.work(sweep)]
    placed = headings.accounting_of(first) if alone else ()
    return headings.document(first.provenance, heading, shown, placed, (*left_out, *about))


def _question(letter: str) -> Question:
    module: Question = importlib.import_module(f"{__package__}.{QUESTIONS[letter][0]}")
    return module


def _said_once(tables: Sequence[Table]) -> list[Table]:
    """Leave out the caption of a table that the next one has too."""
    after = [*(table.caption for table in tables[1:]), ""]
    pairs = zip(tables, after, strict=False)
    return [replace(table, caption="") if table.caption == caption else table for table, caption in pairs]


def _lacks(answers: Mapping[str, Answer], first: Report) -> list[Said]:
    """List what every report lacks, once, with the questions that it lacks it for."""
    letters: dict[tuple[str, str], list[str]] = {}
    for letter, answer in answers.items():
        for lack in dict.fromkeys(answer.lacks):
            letters.setdefault(lack, []).append(f"({letter})")
    return [
        Said(name, headings.worded(reason, first.provenance), ", ".join(asked))
        for (name, reason), asked in letters.items()
    ]
