"""Everything on a page, of bounded size however many kernels the reports hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..compare.answer import answer
from ..compare.changes import compare
from ..compare.sides import Side, recorded
from ..compare.tables import compared
from ..document import Detail, Document, by_key, without_commands
from ..errors import ReportError
from ..measures.efficiency import counts_of
from ..measures.gpu_peaks import peak_for
from ..measures.rank_evidence import rank_evidence
from ..opened import Opened
from ..report import Report
from ..summary.parallel import Ranked
from ..support.text import fit
from ..support.units import bytes_text, time_unit
from ..views import fix, headings, job, memory
from ..views.headings import worded
from ..views.overview import overview
from ..views.registry import Subject
from ..views.verdict import verdict
from .bars import bars, fix_first, fix_job, heading, provenance, step_bars
from .roofline import counted_rows, roofline
from .sections import memory_curve, sections, tables_of
from .timeline import timeline
from .work_rows import LONGEST_KERNEL, PathTree, work_rows

#: How much of the views is on a page, and of the tables for readers without JavaScript.
DETAIL, WITHOUT_SCRIPT = Detail(top=200), Detail(top=30)


@dataclass(frozen=True, slots=True)
class Contents:
    """A page: one dictionary of plain data per report, and per report after the first its differences to it.

    `on_cpu` says that all reports are of a CPU, whose operators are called.
    """

    title: str
    reports: tuple[dict[str, Any], ...]
    differences: tuple[dict[str, Any], ...]
    on_cpu: bool


def contents(answers: Sequence[Opened]) -> Contents:
    """Put together the page of one or more reports."""
    reports = [opened.whole for opened in answers]
    of_job = _job(answers)
    return Contents(
        title=" and ".join(dict.fromkeys(fit(report.provenance.file, LONGEST_KERNEL) for report in reports)),
        reports=tuple(map(_report, answers)),
        differences=(_ranks(of_job),) if of_job else tuple(_differences(answers)),
        on_cpu=all(report.provenance.unit_of_work == "CPU" for report in reports),
    )


def _job(answers: Sequence[Opened]) -> job.JobAnswer | None:
    """Return the answer for the job whose ranks the reports are; None without a rank of its own for each."""
    reports = [(opened.whole.provenance.file, opened.whole) for opened in answers]
    files = [file for file, _ in reports]
    if len(answers) < 2 or job.rank_names(reports) == files:
        return None
    held = [
        Ranked(file, (opened.whole, rank_evidence(opened.partition)))
        for file, opened in zip(files, answers, strict=True)
    ]
    return job.answer_of(held)


def _ranks(of_job: job.JobAnswer) -> dict[str, Any]:
    """Return who waits for whom in a job, and what to change in it: the sentence, list and table of its page."""
    return {
        "title": "Ranks",
        "answer": job.sentences(of_job.job) + fix.without_changes(of_job.advice),
        "names": [rank.name for rank in of_job.job.ranks],
        "fix": fix_job(of_job.job, of_job.advice),
        "tables": tables_of(Document(heading="", tables=(job.table(of_job.job),))),
    }


def _differences(answers: Sequence[Opened]) -> Iterator[dict[str, Any]]:
    """Yield how each report after the first differs from it."""
    if len(answers) < 2:
        return
    first, *others = answers
    side = recorded(first)
    for opened in others:
        yield difference(first.whole, opened.whole, (side, recorded(opened)))


def _report(opened: Opened) -> dict[str, Any]:
    """Build one report's data: per-step means, or totals if no step has work.

    `data` is for the page's script; the other entries are texts and pictures of the page itself.
    """
    report, whole = opened.report, opened.whole
    tree = PathTree(opened.attribution)
    rows = work_rows(opened.counted, tree, include_warm_up=whole.warm_up_included)
    per = (whole.counted_steps if opened.per_step else 0) or 1
    subject = Subject(report, opened.counted, opened.partition, DETAIL)
    counted_ranges = counted_rows(subject)
    counts = counts_of(whole)
    picture = roofline(counted_ranges, peak_for(whole.provenance.gpus, counts.peaks if counts else {}), tree)
    unit, bar = time_unit([rows.total_ns / per]), bars(whole)
    advice = fix_first(opened.fixes, rows, tree)
    counted = without_commands(Document("", (), headings.accounting_of(report), whole.notes))
    return {
        "heading": heading(report),
        "answer": verdict(report) + fix.without_changes(opened.fixes),
        "bars": bar,
        "fix": advice,
        "sections": sections(subject),
        "roofline": picture,
        "memory": memory_curve(opened.counted, include_warm_up=whole.warm_up_included),
        "step_bars": step_bars(whole),
        "without_script": _without_script(report),
        "accounting": [worded(line, whole.provenance) for line in counted.accounting],
        "notes": [fit(note, LONGEST_KERNEL) for note in counted.notes],
        "provenance": provenance(whole),
        "data": {
            "per": per,
            "unit": {"ns": unit.ns, "name": unit.name, "decimals": unit.decimals},
            "scope": headings.scope(report),
            "step_ns": bar["ns"] if bar else 0,
            "causes": bar["causes"] if bar else {},
            "rows": rows.columns,
            "changes": {change["key"]: change["rows"] for change in advice["changes"]} if advice else {},
            "timeline": timeline(opened.partition, rows, tree),
            "facts": [*_counted(picture), *_allocated(subject, tree)],
            "tree": tree.as_json(),
        },
    }


def _counted(picture: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the FLOPs and bytes of ranges, where known."""
    for point in picture["points"] if picture else ():
        yield {"name": "FLOPs and bytes", **{key: point[key] for key in ("path", "phase", "lines")}}


def _allocated(subject: Subject, tree: PathTree) -> Iterator[dict[str, Any]]:
    """Yield the memory of ranges, where known."""
    try:
        document = memory.view(replace(subject, detail=Detail(whole=True)))
    except ReportError:
        return
    for row in (row for table in document.tables if table.key == "memory" for row in by_key(table)):
        if row["range"].path:
            lines = [f"{bytes_text(row['allocated_bytes'])} allocated", f"{bytes_text(row['peak_bytes'])} at peak"]
            yield {
                "name": "memory",
                "path": tree.of_names(row["range"].path),
                "phase": row["phase"],
                "lines": lines,
            }


def _without_script(report: Report) -> list[dict[str, Any]]:
    """Return the kernels of each phase and range as tables."""
    try:
        document = without_commands(overview(report, WITHOUT_SCRIPT, with_kernels=True))
    except ReportError:
        return []
    return tables_of(replace(document, tables=tuple(table for table in document.tables if table.key != "account")))


def difference(a: Report, b: Report, sides: tuple[Side, Side] = ((), ())) -> dict[str, Any]:
    """Return whether B is faster, in sentences and tables; reports that cannot be compared say why instead."""
    try:
        comparison = compare(a, b, sides=sides)
    except ReportError as error:
        return _changed(str(error), [])
    by_kernel = compared(comparison, detail=WITHOUT_SCRIPT, by="kernel")
    tables = tables_of(compared(comparison, detail=WITHOUT_SCRIPT)) + tables_of(by_kernel)
    return _changed(answer(comparison).sentence, tables)


def _changed(sentence: str, tables: list[dict[str, Any]]) -> dict[str, Any]:
    return {"title": "Differences", "answer": sentence, "names": [], "fix": None, "tables": tables}
