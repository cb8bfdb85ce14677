"""From attributed work to a `Report`: sums per phase, per path and per kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..account import Partition, partition
from ..account.sums import summed_up
from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.placing import AMBIGUOUS, HOW, OUTSIDE
from ..attribution.steps import measured_steps, nodes_in, step_of_nodes
from ..kernel_names.categories import classify
from ..measures.recording import recording
from ..report import (
    COULD_BE_OF_TWO,
    LAUNCHED_OUTSIDE,
    NO_LAUNCH,
    KernelRow,
    OutsideRow,
    PhaseRow,
    RangeRow,
    Report,
    Totals,
    in_tree_order,
)
from ..report.account import Account
from ..report.recording import NO_MARK, Recording
from ..support.small_numbers import NEVER, bounds, distinct, each_row, grouped_rows, summed
from ..support.threads import at_once
from ..trace import KERNEL, KINDS, Int64s, marked
from ..vocabulary import PHASES
from .caveats import notes, of_serving
from .selection import naming_of


def summarize(
    attribution: Attribution, *, include_warm_up: bool = False, unrecorded_step_ns: float | None = None
) -> Report:
    """Add up the work; what lies in warm-up ranges is left out unless asked for.

    With steps, `counted` adds up the work of those that count alone, unless that is all work. `unrecorded_step_ns`
    is how long a step takes without recording, as measured elsewhere.
    """
    return accounted(attribution, include_warm_up=include_warm_up, unrecorded_step_ns=unrecorded_step_ns)[1]


def accounted(
    attribution: Attribution, *, include_warm_up: bool = False, unrecorded_step_ns: float | None = None
) -> tuple[Partition, Report]:
    """Return the partition of a report's time, and the report as `summarize` does."""
    divided = partition(attribution, include_warm_up=include_warm_up)
    rank = attribution.trace.provenance.run.get("rank")
    account = summed_up(divided, naming_of(attribution.trace), rank if type(rank) is int else None)
    cost = recording(divided, account, unrecorded_step_ns=unrecorded_step_ns) if account.has_steps else None
    return divided, _report(attribution, divided, account, cost)


def renamed(named: Attribution, divided: Partition, report: Report) -> Report:
    """Return a report with its kernels named as in `named`, which changes nothing else of the attribution."""
    assert report.account is not None
    again = _report(named, replace(divided, attribution=named), report.account, report.recording)
    return replace(again, notes=report.notes)


def _report(attribution: Attribution, divided: Partition, account: Account, cost: Recording | None) -> Report:
    """Return the sums of a report beside its account, and what recording did to it."""
    everything = _Summary(attribution, divided.include_warm_up)
    everything.steps = len(account.rows) if account.has_steps else 0
    everything.counted_steps = 0
    if cost is None:
        (report,) = _added_up(everything)
        report = replace(everything.noted(report), account=account)
        return replace(report, no_steps=report.all_warm_up or divided.refusal)
    everything.counted_steps = len(divided.counted)
    of_steps = everything.of_steps(divided)
    if len(of_steps.kept) < len(everything.kept):
        report, counted = _added_up(everything, of_steps)
        report = replace(report, unmeasured_ns=everything.in_no_step_ns(), unaccounted=_unaccounted(everything))
    else:  # the same tables, but for the warm-up in their totals
        (report,) = _added_up(everything)
        counted = replace(report, totals=of_steps.totals(), outside=())
    report = replace(everything.noted(report), account=account, recording=cost)
    if not cost.trusted and cost.reason != NO_MARK:
        report = replace(report, notes=(*report.notes, cost.reason))
    counted = replace(counted, account=account, recording=cost, notes=report.notes)
    return replace(report, counted=counted if len(of_steps.work) < len(everything.work) else None)


def _unaccounted(everything: _Summary) -> tuple[tuple[str, int, int], ...]:
    """Return the work outside of measured steps, warm-up and evaluation: of all work, then of each phase's.

    Only work between the first and the last measured step counts.
    """
    attribution = everything.attribution
    work = everything.work
    step = step_of_nodes(attribution, include_warm_up=everything.include_warm_up)[attribution.node]
    measured = np.flatnonzero(step >= 0)
    if not len(measured):
        return ()
    first_ns = work.start_ns[measured].min()
    last_ns = work.end_ns[measured].max()
    within = np.flatnonzero((work.start_ns >= first_ns) & (work.end_ns <= last_ns))
    evaluates = attribution.steps.evaluation | nodes_in(attribution, attribution.steps.validation)
    counts_node = np.append(~(evaluates | attribution.warm_up), True)
    counts = counts_node[attribution.node[within]]
    beyond = within[(step[within] < 0) & counts]

    def by_phase_ns(rows: Int64s) -> list[int]:
        sums_ns: list[int] = summed(attribution.phase[rows], everything.duration[rows], len(PHASES)).tolist()
        return sums_ns

    beyond_ns = by_phase_ns(beyond)
    total_ns = by_phase_ns(within)
    rows = [("", sum(beyond_ns), sum(total_ns))]
    rows += [row for row in zip(PHASES, beyond_ns, total_ns, strict=True) if row[2]]
    return tuple(rows)


def _added_up(*summaries: _Summary) -> list[Report]:
    """Add up all tables of all summaries at once."""
    calls: list[Callable[[], Any]] = []
    for summary in summaries:
        calls += (summary.ranges, summary.kernels)
    tables_of_all = iter(at_once(calls, len(summaries[0].kept)))
    pairs = zip(summaries, tables_of_all, tables_of_all, strict=True)
    return [summary.report(ranges, kernels) for summary, ranges, kernels in pairs]


class _Summary:
    def __init__(self, attribution: Attribution, include_warm_up: bool, paths: Paths | None = None) -> None:
        self.attribution = attribution
        self.work = attribution.trace.work
        self.duration = self.work.duration_ns
        self.node = attribution.node
        self.is_left_out = attribution.left_out(include_warm_up=include_warm_up)  # per node
        self.left_out = self.is_left_out[self.node]
        self.kept = np.flatnonzero(~self.left_out)
        self.include_warm_up = include_warm_up
        self.steps = self.counted_steps = 0
        self.paths = paths or Paths(attribution)  # of the forest, which a part of the work shares

    def of_steps(self, divided: Partition) -> _Summary:
        """Return the summary of the work in the steps that count."""
        summary = _Summary(divided.of_counted_steps, self.include_warm_up, self.paths)
        summary.steps = self.steps
        summary.counted_steps = self.counted_steps
        return summary

    def in_no_step_ns(self) -> int:
        """Return the work that is in no measured step, and not in warm-up, ns."""
        step = step_of_nodes(self.attribution, include_warm_up=self.include_warm_up)[self.node[self.kept]]
        return int(self.duration[self.kept[step < 0]].sum())

    def report(self, ranges: tuple[RangeRow, ...], kernels: tuple[KernelRow, ...]) -> Report:
        """Return the tables, and what follows from them."""
        attribution = self.attribution
        worked_in = {row.phase for row in kernels}
        return Report(
            provenance=attribution.trace.provenance,
            totals=self.totals(),
            phases=tuple(_phase(phase, kernels) for phase in PHASES if phase in worked_in),
            ranges=ranges,
            kernels=kernels,
            outside=self.outside(),
            steps=self.steps,
            counted_steps=self.counted_steps,
            ranks=self.ranks() if self.steps else 0,
            step=attribution.rules.step,
            phase_names=tuple(attribution.rules.phase_names),
            warm_up_included=self.include_warm_up,
        )

    def noted(self, report: Report) -> Report:
        """Return the report with sentences on what was decided, and on what cannot be known."""
        attribution = self.attribution
        sentences = notes(attribution, self.left_out, report.kernels)
        return replace(report, notes=(*attribution.trace.notes, *sentences, *of_serving(report.ranges)))

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
        counted = self.kept
        work = self.work
        names = self.attribution.trace.names
        groups, group = grouped_rows(
            self.paths.names_of_node[self.node[counted]] + 1,
            self.attribution.phase[counted],
            work.kind[counted],
            work.name_id[counted],
        )
        path, phase, kind, name = groups
        duration = self.duration[counted]
        total = summed(group, duration, len(path))
        count = np.bincount(group, minlength=len(path))
        shortest, longest = bounds(group, duration, duration, len(path))
        # The category of each kernel's name, and whether it is one matrix product.
        ids = distinct(name[kind == KERNEL]).tolist()
        classes_of_ids = classify([names[name_id] for name_id in ids], self.attribution.trace.categories)
        classes = dict(zip(ids, classes_of_ids, strict=True))
        keys = each_row(path, phase, kind, name)
        figures = each_row(count, total, shortest, longest)
        rows = []
        for key, (launches, total_ns, min_ns, max_ns) in zip(keys, figures, strict=True):
            path_number, phase_number, kind_number, name_id = key
            category = KINDS[kind_number]
            is_gemm = False
            if kind_number == KERNEL:
                category, is_gemm = classes[name_id]
            rows.append(
                KernelRow(
                    path=self.paths.names[path_number - 1],
                    phase=PHASES[phase_number],
                    kind=KINDS[kind_number],
                    kernel=names[name_id],
                    category=category,
                    count=launches,
                    total_ns=total_ns,
                    min_ns=min_ns,
                    max_ns=max_ns,
                    gemm_launch=is_gemm,
                )
            )
        return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.path, row.kernel, row.phase)))

    def ranges(self) -> tuple[RangeRow, ...]:
        """One row per path, outer before inner, siblings by time."""
        attribution = self.attribution
        forest = self.attribution.forest
        work = self.work
        count = len(self.paths)
        path = self.paths.of_node[:-1]
        nodes = len(forest)
        # Per node: the work launched directly in it, and the first start and last end; then of all its work.
        placed = self.kept[self.node[self.kept] >= 0]
        node = self.node[placed]
        kernel = (work.kind[placed] == KERNEL).astype(np.int64)
        columns = {
            "kernels": summed(node, kernel, nodes),
            "ns": summed(node, self.duration[placed] * kernel, nodes),
            "work_ns": summed(node, self.duration[placed], nodes),
        }
        start, end = bounds(node, work.start_ns[placed], work.end_ns[placed], nodes)
        direct = {name: summed(path, column, count) for name, column in columns.items()}
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
        span_ns = summed(span_path, last - first, count)
        has_span = np.bincount(span_path, minlength=count) > 0
        home = attribution.home
        ranges = attribution.ranges
        counted = np.flatnonzero((home >= 0) & ~self.is_left_out[home])
        home_path = self.paths.of_node[home[counted]]
        instances = np.bincount(home_path, minlength=count)
        cpu_ns = summed(home_path, (ranges.end_ns - ranges.start_ns)[counted], count)
        linked = marked(path[attribution.linked], count)
        rows = [
            RangeRow(
                path=self.paths.paths[p],
                phase=PHASES[self.paths.phase[p]],
                instances=int(instances[p]) or None,
                kernels=int(inclusive["kernels"][p]),
                self_kernels=int(direct["kernels"][p]),
                self_ns=int(direct["ns"][p]),
                inclusive_ns=int(inclusive["ns"][p]),
                self_work_ns=int(direct["work_ns"][p]),
                inclusive_work_ns=int(inclusive["work_ns"][p]),
                span_ns=int(span_ns[p]) if has_span[p] and not linked[p] else None,
                cpu_ns=int(cpu_ns[p]) if instances[p] else None,
            )
            for p in np.flatnonzero(has_span | (instances > 0)).tolist()
        ]
        return in_tree_order(rows)

    def outside(self) -> tuple[OutsideRow, ...]:
        """Return the work that could not be assigned to a range, and the reasons."""
        how = self.attribution.how
        launched = self.work.launch >= 0
        reasons = {
            NO_LAUNCH: (how == OUTSIDE) & ~launched,
            LAUNCHED_OUTSIDE: (how == OUTSIDE) & launched,
            COULD_BE_OF_TWO: how == AMBIGUOUS,
        }
        rows = []
        for reason, has_reason in reasons.items():
            for kind, name in enumerate(KINDS):
                is_outside = has_reason & (self.work.kind == kind)
                if is_outside.any():
                    total_ns = int(self.duration[is_outside].sum())
                    rows.append(OutsideRow(reason, name, int(is_outside.sum()), total_ns))
        return tuple(rows)

    def ranks(self) -> int:
        """Count the processes that have measured steps."""
        trace = self.attribution.trace
        steps = measured_steps(self.attribution, include_warm_up=self.include_warm_up)
        threads = distinct(self.attribution.ranges.thread[steps])
        return len({trace.threads[thread].process for thread in threads})


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
