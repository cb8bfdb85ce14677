"""The answers to the questions, over a sweep of reports or of one, and where all their work went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..errors import ReportError
from ..views import headings
from ..views.rows import share
from . import of_kernels, of_ranges
from .asked import QUESTIONS
from .sweep import ON_CPU, Answer, Answered, Cells, Run, Sweep, sweep_of

ANSWERS: Mapping[str, Callable[[Sweep], Answer]] = {
    "a": of_ranges.times,
    "b": of_kernels.longest,
    "c": of_kernels.besides_gemms,
    "d": of_kernels.gemm_share,
    "e": of_ranges.softmax,
}
#: Of more reports than these, a note gives the number.
NAMED = 3


def document(
    reports: Sequence[tuple[str, Answered]],
    letters: str,
    detail: Detail = SHORT,
    *,
    problems: Sequence[tuple[str, str]] = (),
    times: Sequence[Run] = (),
) -> Document:
    """Answer questions, such as "ac", of reports by name; `problems` are of those that could not be read.

    `times` are runs without a profiler, of `timed.read`. Each answer begins with its question.

    Raises ReportError where no report answers any of them.
    """
    names, answered = zip(*reports, strict=True)
    swept = sweep_of(names, answered, detail, times=times)
    first = swept.counted[0]
    is_alone = len(reports) + len(problems) == 1
    tables: list[Table] = []
    letters_of_lack: dict[tuple[str, str], list[str]] = {}
    for letter in letters:
        answer = ANSWERS[letter](swept)
        if answer.tables:
            texts = (f"({letter}) {QUESTIONS[letter]}", answer.tables[0].lead)
            lead = " ".join(headings.worded(text, first.provenance) for text in texts if text)
            drawn = [replace(answer.tables[0], lead=headings.Worded(lead)), *answer.tables[1:]]
            for table, following in pairwise(drawn):
                is_repeated = table.caption == following.caption
                tables.append(replace(table, caption="") if is_repeated else table)
            tables.append(drawn[-1])
        for lack in dict.fromkeys(answer.lacks):
            letters_of_lack.setdefault(lack, []).append(f"({letter})")

    # Every sentence once, by the questions that it is about, with the reports that it is about.
    names_of: dict[tuple[str, str], dict[str, None]] = {}
    for name, report in zip(swept.names, swept.reports, strict=True):
        is_counted = is_alone or swept.counts(report)
        for note in report.notes if is_counted else [ON_CPU]:
            names_of.setdefault(("", note), {})[name] = None
    for (name, reason), questions in letters_of_lack.items():
        key = ", ".join(questions), headings.worded(reason, first.provenance)
        names_of.setdefault(key, {})[name] = None
    about = []
    for (questions_text, sentence), of_reports in names_of.items():
        of_all = len(of_reports) == len(swept.reports)
        subject = " of ".join(filter(None, (questions_text, "" if of_all else _listed(list(of_reports)))))
        about.append(": ".join(filter(None, (subject, sentence))))
    if not tables:
        raise ReportError(" ".join(about))
    about = [*(f"{name} is left out: {problem}" for name, problem in problems), *about]
    if is_alone:
        accounting = headings.accounting_of(first)
        return headings.document(first.provenance, headings.heading(first), tables, accounting, about)
    common = headings.common([headings.facts(report)[1:] for report in swept.reports])
    heading = " · ".join([f"{len(reports)} of {len(reports) + len(problems)} reports", *common])
    return headings.document(first.provenance, heading, [*tables, _sources(swept), _work(swept)], (), about)


def _listed(names: Sequence[str]) -> str:
    """Name some reports, of many the first."""
    listed = ", ".join(names[:NAMED])
    return f"{listed} and {len(names) - NAMED} more" if len(names) > NAMED else listed


def _sources(swept: Sweep) -> Table:
    """Show which file each row is of, what recorded it where that differs, and how many steps it measured."""
    report_column, steps_column = headed("report", "steps")
    facts: dict[Column, Sequence[object]] = {}
    if report_column not in swept.columns:
        facts[report_column] = swept.names
    gpus = [" + ".join(report.provenance.gpus) or None for report in swept.reports]
    tools = [report.provenance.tool or None for report in swept.reports]
    if len(set(gpus)) > 1:
        facts[Column("gpu", "GPU", "name")] = gpus
    if len(set(tools)) > 1:
        facts[Column("tool", "recorded by", "name")] = tools
    facts[steps_column] = [report.steps for report in swept.reports]
    cells = zip(swept.cells, zip(*facts.values(), strict=True), strict=True)
    rows = tuple(Row((*identity, *of_report)) for identity, of_report in cells)
    return Table("reports", "Reports, and the steps measured in each", (*swept.columns, *facts), rows)


def _work(swept: Sweep) -> Table:
    """Show what part of each report's work was placed how; the shares sum to 100%."""
    parts = []
    columns = headed(work_ns="work")
    for key, _, name in headings.ALL_PARTS:
        if any(getattr(report.totals, key) for report in swept.counted):
            parts.append(key)
            columns += headed(**{key.replace("_ns", "_share"): f"{name} %"})

    def cells(report: Answered) -> Cells:
        totals = report.totals
        shares = {key.replace("_ns", "_share"): share(getattr(totals, key), totals.work_ns) for key in parts}
        return {"work_ns": totals.work_ns, **shares}

    kind = headings.work(swept.counted[0])
    title = f"{kind} of each report and how it was placed, {{unit}} {swept.scope}"
    return swept.table("work", title, columns, cells, "% is of the work.")
