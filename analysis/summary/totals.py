"""From attributed work to a `Report`: sums per phase, per path and per kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.placing import AMBIGUOUS, HOW, OUTSIDE
from ..attribution.steps import in_measured_steps, measured_steps, nodes_in, step_of_nodes
from ..kernel_names.categories import classify
from ..measures.balance import busy_rows, idle_of_typical_steps
from ..measures.idle import IdleTime
from ..measures.idle_on_cpu import cpu_idle_report, outside_operators
from ..measures.idle_sums import idle_report
from ..measures.recording import recording
from ..measures.spans import Extents
from ..measures.step_time import step_time
from ..report import (
    COULD_BE_OF_TWO,
    LAUNCHED_OUTSIDE,
    NO_LAUNCH,
    BusyRow,
    IdleReport,
    KernelRow,
    OutsideRow,
    PhaseRow,
    RangeRow,
    Report,
    Totals,
    in_tree_order,
)
from ..report.recording import Recording
from ..support.small_numbers import NEVER, bounds, distinct, grouped_rows, summed
from ..support.threads import at_once
from ..trace import KERNEL, KINDS
from ..vocabulary import PHASES
from .caveats import notes, of_serving
from .selection import naming_of


def summarize(
    attribution: Attribution, *, include_warm_up: bool = False, unrecorded_step_ns: float | None = None
) -> Report:
    """Add up the work; what lies in warm-up ranges is left out unless asked for.

    With steps, `measured` adds up their work alone, unless that is all work. Without steps there is no `measured`.
    `unrecorded_step_ns` is how long a step takes without recording, as measured elsewhere.
    """
    everything = _Summary(attribution, include_warm_up)
    everything.idle = _idle(everything)
    everything.idle_on_cpu = _idle_on_cpu(attribution, include_warm_up)
    if not everything.steps()[0]:
        (report,) = _added_up(everything)
        return replace(everything.noted(report), no_steps=report.all_warm_up or attribution.steps.refusal)
    time, cost = step_time(attribution, include_warm_up=include_warm_up), None
    if time is not None:
        cost = recording(attribution, time, unrecorded_step_ns=unrecorded_step_ns, include_warm_up=include_warm_up)
    everything.recording = cost
    in_steps = everything.in_steps()
    if len(in_steps.kept) < len(everything.kept):
        report, measured = _added_up(everything, in_steps)
        beyond_ns = int(report.totals.work_ns - report.totals.excluded_ns - measured.totals.work_ns)
        report = replace(report, unmeasured_ns=beyond_ns, unaccounted=_unaccounted(everything))
    else:  # the same tables, but for the warm-up in their totals
        (report,) = _added_up(everything)
        measured = replace(report, totals=in_steps.totals(), outside=())
    report = replace(everything.noted(report), step_time=time, recording=cost)
    measured = replace(measured, step_time=time, recording=cost, notes=report.notes)
    return replace(report, measured=measured if len(in_steps.work) < len(everything.work) else None)


def _idle(everything: _Summary) -> IdleTime | None:
    """Return the GPUs' idle time in typical steps; None for a CPU, and without measured work."""
    trace = everything.attribution.trace
    if trace.provenance.unit_of_work == "CPU" or not len(trace.work):
        return None
    return idle_of_typical_steps(everything.extents)


def _idle_on_cpu(attribution: Attribution, include_warm_up: bool) -> IdleReport | None:
    """Return the time of the program outside of operators; None for a GPU, and without operators."""
    if attribution.trace.provenance.unit_of_work != "CPU" or not len(attribution.trace.work):
        return None
    naming = naming_of(attribution.trace)
    return cpu_idle_report(outside_operators(attribution, naming, include_warm_up=include_warm_up))


def _unaccounted(everything: _Summary) -> tuple[tuple[str, int, int], ...]:
    """Return the work outside of measured steps, warm-up and evaluation: of all work, then of each phase's.

    Only work between the first and the last measured step counts.
    """
    attribution, work = everything.attribution, everything.work
    step = step_of_nodes(attribution, include_warm_up=everything.include_warm_up)[attribution.node]
    measured = np.flatnonzero(step >= 0)
    if not len(measured):
        return ()
    first_ns, last_ns = work.start_ns[measured].min(), work.end_ns[measured].max()
    within = np.flatnonzero((work.start_ns >= first_ns) & (work.end_ns <= last_ns))
    evaluates = attribution.steps.evaluation | nodes_in(attribution, attribution.steps.validation)
    counted = np.append(~(evaluates | attribution.warm_up), True)
    beyond = within[(step[within] < 0) & counted[attribution.node[within]]]
    sums = [
        summed(attribution.phase[some], everything.duration[some], len(PHASES)).tolist()
        for some in (beyond, within)
    ]
    rows = [("", sum(sums[0]), sum(sums[1]))]
    rows += [
        (phase, part_ns, whole_ns) for phase, part_ns, whole_ns in zip(PHASES, *sums, strict=True) if whole_ns
    ]
    return tuple(rows)


def _added_up(*summaries: _Summary) -> list[Report]:
    """Add up all tables of all summaries at once."""
    calls: list[Callable[[], Any]] = []
    for summary in summaries:
        calls += (summary.busy, summary.ranges, summary.kernels)
    tables_of_all = iter(at_once(calls, len(summaries[0].kept)))
    return [
        summary.report(*tables)
        for summary, *tables in zip(summaries, tables_of_all, tables_of_all, tables_of_all, strict=True)
    ]


class _Summary:
    def __init__(self, attribution: Attribution, include_warm_up: bool, paths: Paths | None = None) -> None:
        self.attribution = attribution
        self.work = attribution.trace.work
        self.duration = self.work.duration_ns
        self.node = attribution.node
        self.warm_up = np.append(attribution.warm_up, False)
        self.left_out = self.warm_up[self.node] & (not include_warm_up)
        self.kept = np.flatnonzero(~self.left_out)
        self.include_warm_up = include_warm_up
        self.idle: IdleTime | None = None  # of typical steps
        self.idle_on_cpu: IdleReport | None = None
        self.recording: Recording | None = None  # what it cost, if the report has steps
        self.paths = paths or Paths(attribution)  # of the forest, which a part of the work shares

    @cached_property
    def extents(self) -> Extents:
        return Extents(self.attribution, include_warm_up=self.include_warm_up)

    def in_steps(self) -> _Summary:
        """Return the summary of the work in measured steps, with the same answers about typical steps."""
        of_steps = in_measured_steps(self.attribution, include_warm_up=self.include_warm_up)
        summary = _Summary(of_steps, self.include_warm_up, self.paths)
        summary.idle, summary.idle_on_cpu, summary.recording = self.idle, self.idle_on_cpu, self.recording
        return summary

    def report(
        self, busy: tuple[BusyRow, ...], ranges: tuple[RangeRow, ...], kernels: tuple[KernelRow, ...]
    ) -> Report:
        """Return the tables, and what follows from them."""
        attribution, (steps, ranks) = self.attribution, self.steps()
        return Report(
            provenance=attribution.trace.provenance,
            totals=self.totals(),
            phases=tuple(_phase(phase, kernels) for phase in PHASES if any(row.phase == phase for row in kernels)),
            ranges=ranges,
            kernels=kernels,
            outside=self.outside(),
            steps=steps,
            ranks=ranks,
            step=attribution.rules.step,
            phase_names=tuple(attribution.rules.phase_names),
            warm_up_included=self.include_warm_up,
            busy=busy,
            idle=idle_report(self.idle, self.paths, naming_of(attribution.trace)) if self.idle else None,
            idle_on_cpu=self.idle_on_cpu,
        )

    def noted(self, report: Report) -> Report:
        """Return the report with sentences on what was decided, and on what cannot be known."""
        attribution = self.attribution
        sentences = notes(attribution, self.left_out, report.kernels)
        return replace(report, notes=(*attribution.trace.notes, *sentences, *of_serving(report.ranges)))

    def busy(self) -> tuple[BusyRow, ...]:
        return busy_rows(self.extents, idle=self.idle, recording=self.recording)

    def totals(self) -> Totals:
        kernel = self.work.kind == KERNEL
        by_how = summed(self.attribution.how[self.kept], self.duration[self.kept], len(HOW)).tolist()
        return Totals(
            work_ns=int(self.duration.sum()),
            kernel_ns=int(self.duration[kernel].sum()),
            excluded_ns=int(self.duration[self.left_out].sum()),
            **{f"{how}_ns": ns for how, ns in zip(HOW, by_how, strict=True)},
        )

    def kernels(self) -> tuple[KernelRow, ...]:
        """One row per path, phase, kind and name, longest first."""
        counted, work, names = self.kept, self.work, self.attribution.trace.names
        path = self.paths.names_of_node[self.node[counted]] + 1
        columns = path, self.attribution.phase[counted], work.kind[counted], work.name_id[counted]
        groups, group = grouped_rows(*columns)
        duration, groups_count = self.duration[counted], len(groups[0])
        total, count = summed(group, duration, groups_count), np.bincount(group, minlength=groups_count)
        low, high = bounds(group, duration, duration, groups_count)
        # The category of each kernel's name, and whether it is one matrix product.
        ids = distinct(groups[3][groups[2] == KERNEL]).tolist()
        classes = dict(zip(ids, classify([names[name] for name in ids]), strict=True))
        rows = [
            KernelRow(
                path=self.paths.names[p - 1],
                phase=PHASES[phase],
                kind=KINDS[kind],
                kernel=names[name],
                category=classes[name][0] if kind == KERNEL else KINDS[kind],
                count=n,
                total_ns=t,
                min_ns=a,
                max_ns=b,
                gemm_launch=kind == KERNEL and classes[name][1],
            )
            for (p, phase, kind, name), n, t, a, b in zip(
                np.stack(groups, axis=1).tolist(),
                count.tolist(),
                total.tolist(),
                low.tolist(),
                high.tolist(),
                strict=True,
            )
        ]
        return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.path, row.kernel, row.phase)))

    def ranges(self) -> tuple[RangeRow, ...]:
        """One row per path, outer before inner, siblings by time."""
        attribution, forest, work, count = self.attribution, self.attribution.forest, self.work, len(self.paths)
        path, nodes = self.paths.of_node[:-1], len(forest)
        # Per node: the work launched directly in it, and the first start and last end; then of all its work.
        placed = self.kept[self.node[self.kept] >= 0]
        node, kernel = self.node[placed], (work.kind[placed] == KERNEL).astype(np.int64)
        columns = {
            "kernels": summed(node, kernel, nodes),
            "ns": summed(node, self.duration[placed] * kernel, nodes),
            "work_ns": summed(node, self.duration[placed], nodes),
        }
        start, end = bounds(node, work.start_ns[placed], work.end_ns[placed], nodes)
        own = {name: summed(path, column, count) for name, column in columns.items()}
        for level in forest.by_depth()[:0:-1]:
            above = forest.parent[level]
            for column in columns.values():
                np.add.at(column, above, column[level])
            np.minimum.at(start, above, start[level])
            np.maximum.at(end, above, end[level])
        inclusive = {name: summed(path, column, count) for name, column in columns.items()}
        # Per path: its instances' spans, and how many ranges have it as their own, open on the CPU for how long.
        worked = np.flatnonzero(start < NEVER)
        (span_path, _), group = grouped_rows(path[worked], forest.range[worked])
        first, last = bounds(group, start[worked], end[worked], len(span_path))
        span_ns, has_span = summed(span_path, last - first, count), np.bincount(span_path, minlength=count) > 0
        home, ranges = attribution.home, attribution.ranges
        counted = np.flatnonzero((home >= 0) & ~(self.warm_up[home] & (not self.include_warm_up)))
        home_path = self.paths.of_node[home[counted]]
        instances = np.bincount(home_path, minlength=count)
        cpu_ns = summed(home_path, (ranges.end_ns - ranges.start_ns)[counted], count)
        linked = np.zeros(count, np.bool_)
        linked[path[attribution.linked]] = True
        rows = [
            RangeRow(
                path=self.paths.paths[p],
                phase=PHASES[self.paths.phase[p]],
                instances=int(instances[p]) or None,
                kernels=int(inclusive["kernels"][p]),
                self_kernels=int(own["kernels"][p]),
                self_ns=int(own["ns"][p]),
                inclusive_ns=int(inclusive["ns"][p]),
                self_work_ns=int(own["work_ns"][p]),
                inclusive_work_ns=int(inclusive["work_ns"][p]),
                span_ns=int(span_ns[p]) if has_span[p] and not linked[p] else None,
                cpu_ns=int(cpu_ns[p]) if instances[p] else None,
            )
            for p in np.flatnonzero(has_span | (instances > 0)).tolist()
        ]
        return in_tree_order(rows)

    def outside(self) -> tuple[OutsideRow, ...]:
        """Return the work that could not be assigned to a range, and the reasons."""
        how, launched = self.attribution.how, self.work.launch >= 0
        reasons = {
            NO_LAUNCH: (how == OUTSIDE) & ~launched,
            LAUNCHED_OUTSIDE: (how == OUTSIDE) & launched,
            COULD_BE_OF_TWO: how == AMBIGUOUS,
        }
        rows = [
            OutsideRow(reason, name, int(chosen.sum()), int(self.duration[chosen].sum()))
            for reason, rows in reasons.items()
            for kind, name in enumerate(KINDS)
            if (chosen := rows & (self.work.kind == kind)).any()
        ]
        return tuple(rows)

    def steps(self) -> tuple[int, int]:
        """Count the measured steps, and the processes that they are in."""
        trace = self.attribution.trace
        steps = measured_steps(self.attribution, include_warm_up=self.include_warm_up)
        threads = distinct(self.attribution.ranges.thread[steps])
        return len(steps), len({trace.threads[thread].process for thread in threads})


def _phase(phase: str, kernels: Sequence[KernelRow]) -> PhaseRow:
    rows = [row for row in kernels if row.phase == phase]
    launched = [row for row in rows if row.kind == KINDS[KERNEL]]
    gemms = [row for row in launched if row.category == "gemm"]
    return PhaseRow(
        phase=phase,
        kernel_ns=sum(row.total_ns for row in launched),
        kernels=sum(row.count for row in launched),
        gemm_ns=sum(row.total_ns for row in gemms),
        gemm_kernels=sum(row.count for row in gemms if row.gemm_launch),
        work_ns=sum(row.total_ns for row in rows),
    )
