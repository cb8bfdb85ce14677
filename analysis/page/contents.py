"""Everything on a page, of bounded size however many kernels the reports hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from statistics import fmean, median, stdev
from typing import Any, get_args

from ..attribution.causes import Attribution
from ..attribution.steps import step_numbers
from ..compare import tables
from ..compare.answer import answer
from ..compare.changes import Axis, Change, Comparison, changes, compare, notes
from ..compare.sides import Side, recorded
from ..document import Detail
from ..errors import ReportError
from ..measures.efficiency import counts_of
from ..measures.fix_list import Fix, Fixes
from ..measures.gpu_peaks import peak_for
from ..measures.steps import ranges_of
from ..opened import Opened
from ..report import Report, added
from ..report.account import Account
from ..report.recording import Recording
from ..summary.selection import naming_of, renamed
from ..support.text import fit
from ..support.units import count_text, share_text, time_in_digits, time_text, time_unit
from ..views import fix, graphs, headings
from ..views.headings import category, worded
from ..views.registry import Subject
from ..views.rows import kernels_of, label
from ..views.verdict import verdict
from ..vocabulary import OTHER, step_matcher
from .icicle import LONGEST_KERNEL, LONGEST_RANGE, common_path, icicle, kernel_rows, kernel_texts, path_texts
from .roofline import counted_rows, roofline
from .sections import as_table, sections
from .strip import memory_curve, strip

#: How much of the views is on a page.
DETAIL = Detail(top=200)
LONGEST_FACT = 200
MAX_RANGES, MAX_VALUES, MAX_DIFFERENCES = 150, 30_000, 400


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
    return Contents(
        title=" and ".join(dict.fromkeys(fit(report.provenance.file, LONGEST_FACT) for report in reports)),
        reports=tuple(map(_report, answers)),
        differences=tuple(
            differences(reports[0], report, (recorded(answers[0]), recorded(opened)))
            for report, opened in zip(reports[1:], answers[1:], strict=True)
        ),
        on_cpu=all(report.provenance.unit_of_work == "CPU" for report in reports),
    )


def _report(opened: Opened) -> dict[str, Any]:
    """Build one report's data: per-step means, or totals if no step has work.

    Graphs that ran whole count among the kernels that they hide.
    """
    whole, drawn_report, attribution = opened.whole, opened.report, opened.counted
    with_warm_up = whole.warm_up_included
    report = (whole.counted or whole) if opened.per_step else replace(whole, steps=0, counted_steps=0)
    accounting = headings.accounting_of(drawn_report)
    subject, counts = Subject(drawn_report, attribution, opened.partition, DETAIL), counts_of(report)
    counted_ranges = counted_rows(subject)
    parts, look = sections(subject, counted_ranges)
    counted = graphs.counted(report)
    together = renamed(counted)
    per = report.counted_steps or 1
    total_ns = sum(row.kernel_ns for row in counted.phases)
    unit = time_unit([time / per for time in (total_ns, *(row.inclusive_ns for row in together.ranges))])
    icicles = {"together": icicle(together)}
    if len(together.ranges) < len(report.ranges):
        icicles["apart"] = icicle(renamed(counted, naming_of(counted, every_index=True)))
    drawn_strip = strip(attribution, include_warm_up=with_warm_up)
    return {
        "verdict": verdict(drawn_report) + fix.unsure(opened.fixes),
        "fix": fix_first(opened.fixes, drawn_strip),
        "look": look,
        "sections": parts,
        "roofline": roofline(counted_ranges, peak_for(report.provenance.gpus, counts.peaks if counts else {})),
        "scope": _scope(report),
        "per": per,
        "unit": {"ns": unit.ns, "name": unit.name, "decimals": unit.decimals},
        "facts": _facts(report, accounting),
        "phases": phases(counted),
        "icicles": icicles,
        "strip": drawn_strip,
        "memory": memory_curve(attribution, include_warm_up=with_warm_up),
        "kernels": kernel_rows(together),
        "steps": steps(attribution if counted is report else graphs.counted_work(attribution), report),
    }


def fix_first(advice: Fixes, drawn_strip: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the texts of the changes to make first, each with its work's part of the strip, or None."""
    if not advice.fixes:
        return None
    rows = []
    for number, each in enumerate(advice.fixes, 1):
        then = fix.then(advice, number)
        is_same = "(" in then
        rows.append(
            {
                "sentence": f"{fix.located(each)}.",
                "alone": fix.alone(advice, each),
                "then": then.strip("()").capitalize() if is_same else f"Then a step takes {then}." * bool(then),
                "part": part_of_strip(each, drawn_strip),
                "paths": paths_of(each, drawn_strip),
            }
        )
    return {"title": fix.title(advice), "caption": fix.caption(advice), "rows": rows}


def part_of_strip(each: Fix, drawn_strip: Mapping[str, Any]) -> tuple[int, int]:
    """Return from when to when in the strip the ranges of a change have work, else all of the strip."""
    fits = set(paths_of(each, drawn_strip))
    boxes = [box for box, path in enumerate(drawn_strip["path"]) if path in fits]
    if not boxes:
        return 0, drawn_strip["span_ns"]
    return min(drawn_strip["start"][box] for box in boxes), max(drawn_strip["end"][box] for box in boxes)


def paths_of(each: Fix, drawn_strip: Mapping[str, Any]) -> list[int]:
    """Return which of the strip's paths are in the ranges of a change, or around them."""
    wanted = [path_texts(path) for path in each.where]
    return [
        number
        for number, path in enumerate(drawn_strip["paths"])
        if any(path == of[: len(path)] or of == path[: len(of)] for of in wanted)
    ]


def _facts(report: Report, accounting: Sequence[str]) -> dict[str, Any]:
    """Return heading, provenance, accounting and the figures at the top as texts, and the work's parts in ns.

    A figure is a label, its text, and what it is of: the whole, each phase, GEMMs and launches.
    """
    source, per = report.provenance, report.counted_steps or 1
    time = graphs.counted_time(report)
    of_graphs = bool(graphs.of_graphs(report))
    measured = f"{time[0].upper()}{time[1:]}" if of_graphs else headings.kernel_time(report)
    kernels = [row for row in graphs.counted(report).phases if row.kernels]
    total_ns, gemm_ns = sum(row.kernel_ns for row in kernels), sum(row.gemm_ns for row in kernels)
    launches = sum(row.kernels for row in kernels)
    shares = [row.kernel_ns / total_ns if total_ns else 0 for row in kernels]
    launches_name = worded(f"{'kernel and graph' if of_graphs else 'kernel'} launches", source)
    provenance = [
        ("File", source.file),
        ("GPU", ", ".join(source.gpus)),
        ("Recorded by", source.tool),
        ("Export schema", source.schema),
        ("Unit of work", source.unit_of_work),
        ("Measured steps", report.steps or "none"),
        ("Steps that count", report.counted_steps or "none"),
        ("Warm-up", "counted" if report.warm_up_included else "left out"),
        # Facts on each range are too many for a list.
        *(
            (f"Run: {key.replace('_', ' ')}", value)
            for key, value in source.run.items()
            if not isinstance(value, Mapping)
        ),
    ]
    return {
        "heading": [fit(part, LONGEST_FACT) for part in headings.facts(report)],
        "measured": measured,
        "time": worded(time, source),
        "span": headings.span(report),
        "provenance": [
            (name, fit(str(value), LONGEST_FACT))
            for name, value in provenance
            if value not in ("", None, "unknown")
        ],
        "accounting": [worded(line, source) for line in accounting],
        "parts": [
            (worded(part, source), getattr(report.totals, key))
            for key, part, _ in headings.ALL_PARTS
            if getattr(report.totals, key)
        ],
        "figures": [
            *step_figures(report.account, report.recording),
            (measured, time_text(total_ns / per), _scope(report)),
            *(
                (row.phase, time_text(row.kernel_ns / per), f"{share_text(share)} of it")
                for row, share in zip(kernels, shares, strict=True)
            ),
            ("GEMM", share_text(gemm_ns / total_ns if total_ns else 0), time_text(gemm_ns / per)),
            (launches_name, count_text(round(launches / per, 1)), _scope(report)),
        ],
        "notes": [fit(note, 5 * LONGEST_FACT) for note in report.notes],
    }


def step_figures(account: Account | None, cost: Recording | None) -> list[tuple[str, str, str]]:
    """Return the figure of a step's time, with how long a GPU works in it; none where it is not known.

    It is the recorded step, with that without recording behind it where this is trusted.
    """
    if account is None or account.step_ns is None:
        return []
    of_what = "by the clock of the CPU"
    if account.busy_ns is not None:
        of_what = f"GPU busy {share_text(account.busy_ns / account.step_ns if account.step_ns else 0.0, 0)}"
    if cost and cost.alone_ns:
        at_most = "at most " if cost.is_upper_limit else ""
        of_what += f"; {at_most}{time_in_digits(cost.alone_ns)} without recording"
    if account.varies:
        of_what += f"; ⚠ steps vary by {share_text(account.spread or 0.0, 0)}"
    return [("Step time", time_in_digits(account.step_ns), of_what)]


def _scope(report: Report) -> str:
    """Return over what the page's figures are counted: they are means per step where there are steps."""
    if not report.counted_steps:
        return "total"
    return f"per {report.unit}, mean of {report.counted_steps}" if report.counted_steps > 1 else "in the one step"


def phases(report: Report) -> dict[str, Any]:
    """Return the phases, the categories (longest first), and ns and launches by category and phase."""
    names = [row.phase for row in report.phases if row.kernels]
    kernels = kernels_of(report)
    cells = {(row.category, row.phase): row for row in added(kernels, ("category", "phase"))}
    ranked = sorted(added(kernels, ("category",)), key=lambda row: -row.total_ns)
    lines = [[cells.get((row.category, name)) for name in names] for row in ranked]
    return {
        "phases": names,
        "categories": [category(row.category) for row in ranked],
        "ns": [[cell.total_ns if cell else 0 for cell in line] for line in lines],
        "count": [[cell.count if cell else 0 for cell in line] for line in lines],
    }


def steps(attribution: Attribution, report: Report) -> dict[str, Any]:
    """Return per range the median, bounds and spread over the steps, and its time in each of them.

    The ranges with the most kernel time come first; `left_out` says how many are not here. Kernel time and GPU
    span of single steps are given for as many ranges as `MAX_VALUES` allows; a null is a step without the range.
    """
    if not report.counted_steps:
        return {"count": 0, "ranges": [], "left_out": 0}
    range_steps = ranges_of(attribution, naming_of(report), include_warm_up=report.warm_up_included)
    ranked = sorted(range_steps, key=lambda range_: -sum(range_.kernel_ns))
    numbers = step_numbers(attribution, include_warm_up=report.warm_up_included).tolist()
    is_step = step_matcher(report.step)
    ranges: list[dict[str, Any]] = []
    for range_ in ranked[:MAX_RANGES]:
        count = len(numbers) if len(ranges) < MAX_VALUES // len(numbers) else 0
        stands_for_step = range_.phase == OTHER and is_step(range_.path[-1].replace("*", "0"))
        times = {"kernel": range_.kernel_ns, "span": range_.span_ns}
        in_steps = {}
        for name, values in times.items():
            time_of_step = {step: ns for step, ns in zip(range_.steps, values, strict=True) if not isnan(ns)}
            in_steps[f"{name}_ns"] = [time_of_step.get(step) for step in numbers[:count]] or None
        ranges.append(
            {
                "path": path_texts(range_.path),
                "phase": "step" if stands_for_step else range_.phase,
                "steps": len(range_.steps),
                "slowest": range_.slowest,
                **{name: None if any(map(isnan, ns)) else _statistics(ns) for name, ns in times.items()},
                **in_steps,
            }
        )
    return {
        "count": len(numbers),
        "numbers": numbers,
        "ranges": ranges,
        "left_out": max(0, len(ranked) - MAX_RANGES),
    }


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Return median, bounds, mean and sample standard deviation, ns."""
    std = stdev(values) if len(values) > 1 else 0.0
    return {"median": median(values), "min": min(values), "max": max(values), "mean": fmean(values), "std": std}


def differences(a: Report, b: Report, sides: tuple[Side, Side] = ((), ())) -> dict[str, Any]:
    """Return both totals as texts, and the largest differences along each axis with the sum of the others.

    `sides` are the steps of both, by which the answer says whether B is faster. Reports that cannot be compared
    say why instead.
    """
    try:
        comparison = compare(a, b, sides=sides)
    except ReportError as error:
        return {"refused": str(error), "lead": "", "account": []}
    total, launches = comparison.total(), worded("launches", a.provenance)
    change = "" if total.change is None else f"{_signed(share_text(total.change), total.change)} of A"
    return {
        "lead": answer(comparison).sentence,
        "account": [as_table(table) for table in tables.account(comparison)],
        "measured": headings.kernel_time(a),
        "scope": tables.scope(comparison),
        "figures": [
            ("A", time_text(total.a_ns), f"{count_text(round(total.a_count, 1))} {launches}"),
            ("B", time_text(total.b_ns), f"{count_text(round(total.b_count, 1))} {launches}"),
            ("B − A", _signed(time_text(total.delta_ns), total.delta_ns), change),
        ],
        "notes": [fit(note, LONGEST_KERNEL) for note in notes(comparison)],
        "total": _numbers(total),
        "by": {axis: _axis(comparison, axis) for axis in get_args(Axis)},
    }


def _signed(text: str, value: float) -> str:
    """Write a difference with its sign."""
    return f"+{text}" if value > 0 else text.replace("-", "−")


def _axis(comparison: Comparison, axis: Axis) -> dict[str, Any]:
    """Return the largest differences along an axis, each with its name, and in full where that is longer."""
    every = [row for row in changes(comparison, axis, comparison.naming()) if row.a_count or row.b_count]
    rows, left_out = every[:MAX_DIFFERENCES], every[MAX_DIFFERENCES:]
    if axis == "kernel":
        texts = kernel_texts(row.key[0] for row in rows)
        names = [texts[row.key[0]] for row in rows]
    elif axis == "range":
        above = len(common_path([row.key for row in rows if row.key]))
        names = [(fit(label(row.key, above), LONGEST_RANGE), fit(label(row.key), LONGEST_KERNEL)) for row in rows]
    else:
        names = [(category(row.key[0]), "") for row in rows]
    return {
        "rows": [
            {"name": name, "detail": detail, **_numbers(row)}
            for (name, detail), row in zip(names, rows, strict=True)
        ],
        "left_out": {"rows": len(left_out), "delta_ns": sum(row.delta_ns for row in left_out)},
    }


def _numbers(row: Change) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("a_ns", "b_ns", "a_count", "b_count", "state")}
