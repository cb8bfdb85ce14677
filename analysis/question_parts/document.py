"""The answers to the questions asked, over a sweep of reports or of one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from analysis.errors import ReportError
from analysis.provenance import Provenance
from analysis.question_parts import accounting, settings
from analysis.question_parts.accounting import Said
from analysis.question_parts.answered import Answered
from analysis.question_parts.sweep import Answer, Sweep, sweep_of
from analysis.question_parts.timed import Row
from analysis.tables import Document, Table
from analysis.views import provenance, wording

#: Letter -> the module whose `answer` draws its tables, and what is asked.
QUESTIONS = {
    "a": ("spans", "how long do forward and backward take, on the CPU's clock and on the GPU?"),
    "b": (
        "longest",
        "which kernel takes longest in the forward, how often does it run, is it the same elsewhere?",
    ),
    "c": ("rest", "what besides GEMMs takes time in the forward?"),
    "d": ("gemms", "what share is GEMM, in the forward alone and in the whole step?"),
    "e": ("softmax", "how does softmax compare with attention's GEMMs, in time and in FLOPs?"),
}


class Question(Protocol):
    """What the module of a question offers."""

    def answer(self, sweep: Sweep) -> Answer:
        """Answer it of every report."""
        ...


def document(
    found: Sequence[tuple[str, Answered]], asked: str, *, problems: Sequence[tuple[str, str]] = (),
    full_names: bool = False, whole: bool = False, times: Sequence[Row] = (),
) -> Document:  # fmt: skip
    """Answer the questions asked, such as "ac", of reports by name; `problems` are of those that gave none.

    `times` are runs without a profiler, of `timed.read`.

    Raises ReportError where no report answers any of them.
    """
    names, reports = zip(*found, strict=True)
    sweep = sweep_of(names, reports, full_names=full_names, whole=whole, times=times)
    first = sweep.counted[0]
    answers = {letter: _question(letter).answer(sweep) for letter in asked}
    tables = [table for answer in answers.values() for table in _said_once(answer.tables)]
    lacks = _lacks(answers, first.provenance)
    alone = len(found) + len(problems) == 1
    notes = accounting.of_one(sweep) if alone else accounting.notes(sweep)
    about = list(accounting.grouped([*notes, *lacks], len(sweep.reports)))
    if not tables:
        raise ReportError(" ".join(about))
    left_out = [f"{name} is left out: {problem}" for name, problem in problems]
    heading = provenance.heading(first) if alone else settings.heading(sweep.reports, len(found) + len(problems))
    shown = tables if alone else [*tables, accounting.sources(sweep), accounting.work(sweep)]
    placed = provenance.accounting(first) if alone else ()
    return wording.document(first.provenance, heading, shown, placed, (*left_out, *about))


def _question(letter: str) -> Question:
    module: Question = importlib.import_module(f"analysis.question_parts.{QUESTIONS[letter][0]}")
    return module


def _said_once(tables: Sequence[Table]) -> list[Table]:
    """Leave out the caption of a table that the next one has too."""
    after = [*(table.caption for table in tables[1:]), ""]
    pairs = zip(tables, after, strict=False)
    return [replace(table, caption="") if table.caption == caption else table for table, caption in pairs]


def _lacks(answers: Mapping[str, Answer], source: Provenance) -> list[Said]:
    """Say of every report what it lacks, once, with the questions that it lacks it for."""
    letters: dict[tuple[str, str], list[str]] = {}
    for letter, answer in answers.items():
        for lack in dict.fromkeys(answer.lacks):
            letters.setdefault(lack, []).append(f"({letter})")
    return [
        Said(name, wording.worded(reason, source), ", ".join(asked)) for (name, reason), asked in letters.items()
    ]
