"""Which kernels each phase and range launches, and where a kernel's launches come from: `61 = 5·12 + 1`."""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ..document import Column, Detail, Document, Row, Table, headed
from ..errors import ReportError
from ..kernel_names.parts import split_name
from ..kernel_names.short import distinct_short_names, names_by_kernel, short_name
from ..measures.launch_groups import STEP, Explanation, Group, LaunchGroups
from ..report import KernelRow, Path, Report, added, per_step
from ..summary.selection import naming_for, renamed, where
from ..trace import PUSH_POP
from ..vocabulary import OTHER, PHASES
from . import graphs, headings, operators
from .phases import phases
from .registry import Subject
from .rows import (
    RANKED,
    common_length,
    count_of,
    in_phase,
    kernels_of,
    label,
    longest_first,
    more,
    phases_to_say,
    require_measured,
    share,
    time_of,
)

KERNELS_PER_RANGE = 3
RANKING = {"kernel_ns": "time", "share": "%", "count": "launches"}
#: What ncu's filters take for their own syntax.
NEEDS_BACKSLASH = re.compile(r"[@,\[\]/*+]")
CAPTION = "ranges: ranges of that name that launch it; each: launches per range."


def view(subject: Subject) -> Document:
    """Explain the launches of the requested kernel, and how to profile it; else rank all, and explain the longest.

    Raises ReportError if no kernel has the name.
    """
    require_measured(subject.report)
    if subject.by == "operator":
        return headings.answer(subject.report, [operators.with_kernels(subject)], subject.report.notes)
    report, detail = subject.report, subject.detail
    requested = _requested(subject)
    groups = LaunchGroups(subject.attribution, include_warm_up=report.warm_up_included)
    naming = naming_for(detail, report)
    explained = [groups.explain(*key, report=report, naming=naming) for key in requested[: detail.top]]
    is_per_step = all(explanation.unit == STEP for explanation in explained) and not detail.whole
    kernels = [kernel for kernel, _ in requested]
    names = kernels if detail.full_names else distinct_short_names(kernels)
    tables = [_table(report, explanation, name) for explanation, name in zip(explained, names, strict=False)]
    if detail.whole:
        tables = [_every_group(report, explained)]
    elif tables:
        tables[-1] = replace(tables[-1], caption=CAPTION)
    notes = list(report.notes)
    if left_out := len(requested) - len(explained):
        notes.append(f"{left_out} more match: --top {len(requested)}.")
    if subject.kernel:
        notes.append(ncu_command(subject, *requested[0]))
    elif not detail.whole:
        scaled = per_step(report) if is_per_step and not report.per_step else report
        together = renamed(scaled, naming)
        tables = [phases(together), ranges_with_kernels(together, detail), *tables]
    accounting_of = headings.accounting_per_step if is_per_step else headings.accounting_of
    return headings.answer(report, tables, notes, accounting=accounting_of(report))


def ranges_with_kernels(report: Report, detail: Detail) -> Table:
    """Rank the paths by the time of the kernels launched in them and in no inner one, and name those kernels."""
    inside: dict[tuple[Path, str], list[KernelRow]] = defaultdict(list)
    for kernel in report.kernels:
        if kernel.kind in RANKED:
            inside[kernel.path, kernel.phase].append(kernel)
    ranked = sorted(inside.items(), key=lambda item: -time_of(item[1]))
    total_ns = sum(map(time_of, inside.values()))
    top = ranked[: detail.ranges]
    longest = {key: longest_first(kernels)[:KERNELS_PER_RANGE] for key, kernels in top}
    names = [kernel.kernel for kernels in longest.values() for kernel in kernels]
    short_names = names_by_kernel(names, detail.full_names)
    common = common_length(row.path for row in report.ranges if row.self_ns)
    rows: list[Row] = []

    def add(name: str, kernels: Sequence[KernelRow], indent: int) -> None:
        time_ns = time_of(kernels)
        cells = (time_ns, share(time_ns, total_ns), count_of(kernels))
        rows.append(Row((name, *cells), indent, strong=not indent))

    for (key, kernels), phase in zip(top, phases_to_say(list(longest)), strict=True):
        path, _ = key
        add(in_phase(label(path, common), phase), kernels, indent=0)
        for kernel in longest[key]:
            add(short_names[kernel.kernel], [kernel], indent=1)
    time = graphs.counted_time(report)
    own = "launches" if graphs.of_graphs(report) else "kernels"
    title = f"Slowest ranges, own {own} only, {{unit}} {headings.scope(report)}"
    caption = f"% is of {headings.kernels(report, time)}.{more(ranked, detail.ranges, 'range')}"
    return Table("ranges", title, headed(name="range and its top kernels", **RANKING), tuple(rows), caption)


def ncu_command(subject: Subject, kernel: str, phase: str) -> str:
    """Return the command by which Nsight Compute profiles a kernel, in the range with most of its time under nsys.

    Ranges are named as "NVTX Filtering" of the Nsight Compute CLI manual (2025.3) has it: `domain@outer/*/inner`.
    """
    rows = [row for row in subject.report.kernels if (row.kernel, row.phase) == (kernel, phase)]
    longest = max(rows, key=lambda row: row.total_ns)
    function, *_ = split_name(kernel)
    words = [
        "ncu",
        *_nvtx_filter(subject, longest.path),
        "--kernel-name",
        function.rsplit("::", 1)[-1],
        "--launch-count",
        str(math.ceil(longest.count)),
        "--clock-control",
        "none",
        "python",
        "train.py",
    ]
    return f"Its counters in {label(longest.path)}: {shlex.join(words)}"


def _nvtx_filter(subject: Subject, path: Path) -> list[str]:
    """Return ncu's options for the ranges of a path that NVTX has under these names; none for other reports."""
    trace = subject.attribution.trace
    ranges = trace.ranges.take(trace.ranges.style == PUSH_POP)
    domain_of = {trace.names[name]: domain for name, domain in zip(ranges.name_id, ranges.domain, strict=True)}
    names = [name for name in path if name in domain_of and name not in trace.shortened]
    if not names or "nsys" not in trace.provenance.tool:
        return []
    domain = trace.domains[domain_of[names[-1]]].name
    names = [name for name in names if trace.domains[domain_of[name]].name == domain]
    quoted = [NEEDS_BACKSLASH.sub(r"\\\g<0>", name) for name in names[-2:]]
    include = f"{domain}@" * bool(domain) + "/*/".join(quoted) + "/" * (len(quoted) == 1)
    # Backward is launched from autograd's thread, the ranges around it are another's.
    return ["--nvtx", "--nvtx-push-pop-scope", "process", "--nvtx-include", include]


def _requested(subject: Subject) -> list[tuple[str, str]]:
    """Find kernels and their phases by name, longest first; without a name the longest of each phase.

    A kernel of exactly this name, in full or short, comes before those whose name contains it.
    """
    kernels = added(kernels_of(subject.report), ("kernel", "phase"))
    ranked = [(row.kernel, row.phase) for row in longest_first(kernels)]
    if not ranked:
        raise ReportError("The report has no kernels whose launches can be explained.")
    if not subject.kernel:
        longest = {phase: (kernel, phase) for kernel, phase in reversed(ranked)}
        return [longest[phase] for phase in PHASES if phase in longest]
    pattern = subject.kernel.lower()
    exact, containing = [], []
    for kernel, phase in ranked:
        names = (kernel.lower(), short_name(kernel).lower())
        if pattern in names:
            exact.append((kernel, phase))
        if any(pattern in name for name in names):
            containing.append((kernel, phase))
    matching = exact or containing
    if not matching:
        searched = where(subject.report)
        if subject.some_phases:
            searched += f" of {' and '.join(row.phase for row in subject.report.phases)}"
        longest_kernels = list(dict.fromkeys(kernel for kernel, _ in ranked))
        some = "; ".join(map(short_name, longest_kernels[:6]))
        raise ReportError(f"No kernel name{searched} contains {subject.kernel!r}. The longest kernels: {some}.")
    return matching


def _table(report: Report, explanation: Explanation, name: str) -> Table:
    """Draw one kernel: its terms, and below each the ranges that make it up."""
    units = explanation.units
    groups = [group for term in explanation.terms for group in term.groups]
    common = common_length(group.path for group in groups)
    kernel_ns = sum(group.total_ns for group in groups)
    has_blocks = any(group.blocks for group in groups)  # none on a CPU, nor in reports that do not say
    rows: list[Row] = []

    several = len(explanation.terms) > 1

    def add(name: str, counts: Sequence[object], groups: Sequence[Group], *, is_sum: bool = False) -> None:
        total_ns = sum(group.total_ns for group in groups)
        cells = (name, *counts, total_ns / units, share(total_ns, kernel_ns))
        rows.append(Row(cells, indent=int(several and not is_sum), strong=is_sum))

    for term in explanation.terms:
        if several:
            text = headings.worded(f"{term.text} launch{'es' if term.launches > 1 else ''}", report.provenance)
            add(text, (*[""] * has_blocks, term.launches, "", ""), term.groups, is_sum=True)
        for group in term.groups:
            places = each = None
            if group.places:
                places = group.places / units
                each = group.launches / group.places
            blocks = [group.blocks or None] * has_blocks
            add(label(group.path, common), (*blocks, group.launches / units, places, each), [group])
    columns = headed("range", *["blocks"] * has_blocks, "launches", places="ranges", each="each")
    columns += headed(kernel_ns="time", share="%")
    return Table("explained", _title(report, explanation, name), columns, tuple(rows))


def _title(report: Report, explanation: Explanation, name: str) -> headings.Worded:
    """Describe how many launches there are of what, and their sum."""
    phase = explanation.phase
    count = f"{explanation.sum} launch{'es' if explanation.launches > 1 else ''}"
    count = f"{name}: {headings.worded(count, report.provenance)}"
    where = "no phase" if phase == OTHER else phase
    if not explanation.unit:
        rows = [row for row in report.kernels if (row.kernel, row.phase) == (explanation.kernel, phase)]
        return headings.Worded(f"{count} in {where}, {headings.over(report, rows)}, {{unit}}")
    inside = "" if explanation.unit == phase else f" in {where}"
    return headings.Worded(f"{count} per {explanation.unit}{inside}, {{unit}}")


def _every_group(report: Report, explained: Sequence[Explanation]) -> Table:
    """Return one row per kernel, phase, range and grid, over all steps."""
    keys = ("kernel", "phase", "range", "blocks", "launches", "ranges", "total_ns", "unit", "units")
    columns = tuple(Column(key, key, "ns" if key.endswith("_ns") else "text") for key in keys)
    rows = []
    for explanation in explained:
        for group in (group for term in explanation.terms for group in term.groups):
            cells = (
                explanation.kernel,
                explanation.phase,
                label(group.path),
                group.blocks or None,
                group.launches,
                group.places,
                group.total_ns,
                explanation.unit,
                explanation.units,
            )
            rows.append(Row(cells))
    return Table("explained", f"launches {headings.over(report, report.kernels)}", columns, tuple(rows))
