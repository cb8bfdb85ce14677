"""All views of a report agree with each other and with brute force: docs/attribution.md lists equal sums.

Each is asked per step and in total, with and without warm-up, of the real reports and of made ones with what these
lack: several ranks, other threads' work inside a step, warm-up between steps, whole graphs, memory and FLOPs.
"""

import json
from collections import Counter, defaultdict
from dataclasses import astuple

import pytest
from nvtx_kernels.analysis.document import WHOLE
from nvtx_kernels.analysis.measures.agreement import phase_times
from nvtx_kernels.analysis.measures.communication import communicated
from nvtx_kernels.analysis.measures.efficiency import counts_of
from nvtx_kernels.analysis.measures.exchanges import exchanges
from nvtx_kernels.analysis.measures.memory import memory
from nvtx_kernels.analysis.measures.steps import steps_of
from nvtx_kernels.analysis.opened import Opened
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.support.units import bytes_text
from nvtx_kernels.analysis.timeline.as_chrome_trace import chrome_trace
from nvtx_kernels.analysis.trace import KERNEL
from nvtx_kernels.analysis.views.registry import Subject, viewer
from nvtx_kernels.analysis.views.rows import NOWHERE

from tests.analysis.making.cross_cases import BEFORE, COUNTED, MADE, cases, summed_up
from tests.analysis.making.plain_sums import (
    attention,
    blocks_of,
    flops,
    inclusive,
    launch_groups,
    memory_of_ranges,
    peaks,
    rows_of,
)
from tests.analysis.making.shown_page import rows_of as page_rows
from tests.analysis.making.subjects import table

every_case = pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])


def opened(name, per_step, include_warm_up):
    """Return a report, and what tells which of its work a view so asked counts."""
    made = summed_up(name, include_warm_up=include_warm_up)
    if made is None or made[0].on_cpu or (per_step and not made[1].has_work_in_steps):
        pytest.skip("no GPU work, or no measured steps")
    divided = made[0]
    steps = {*divided.table.number[divided.counted].tolist()} if per_step else None
    return Opened(*made, per_step), {"include_warm_up": include_warm_up, "steps": steps}


def subject(name, per_step, include_warm_up, **options):
    """Return what a view looks at, with every row and every index, and the rows that it should count."""
    asked, counted = opened(name, per_step, include_warm_up)
    rows = [row for row in rows_of(asked.attribution, **counted) if row.counted]
    return Subject(asked.report, asked.counted, asked.partition, WHOLE, **options), rows


@every_case
def test_all_tables_have_the_kernel_time_of_the_work_that_they_count(name, per_step, include_warm_up):
    asked, counted = opened(name, per_step, include_warm_up)
    kernel_ns = sum(row.ns for row in rows_of(asked.attribution, **counted) if row.counted and row.kind == KERNEL)
    report = (asked.whole.counted or asked.whole) if per_step else asked.whole
    assert sum(row.total_ns for row in report.kernels if row.kind == "kernel") == kernel_ns
    assert sum(row.kernel_ns for row in report.phases) == kernel_ns
    sums = communicated(exchanges(asked.counted, include_warm_up=include_warm_up)).gpus.values()
    communicates = [row for row in report.kernels if (row.kind, row.category) == ("kernel", "communication")]
    assert sum(gpu.total_ns for gpu in sums) == sum(row.total_ns for row in communicates)
    if per_step:
        steps = steps_of(asked.counted, include_warm_up=include_warm_up)
        assert sum(step.kernel_ns for step in steps) == kernel_ns
        times = {row.name: row.kernel_ns for row in phase_times(asked.counted, include_warm_up=include_warm_up)}
        assert times["step"] == sum(row.self_ns for row in report.ranges) == kernel_ns
        mean = sum(row.total_ns for row in asked.report.kernels if row.kind == "kernel")
        assert mean == pytest.approx(kernel_ns / asked.report.counted_steps)


TOTALS = [case for case in cases() if not case.values[1]]


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), TOTALS)
def test_no_work_is_lost_or_counted_twice(name, per_step, include_warm_up):
    report = opened(name, per_step, include_warm_up)[0].whole
    totals = report.totals
    outside_ns = totals.outside_ns + totals.ambiguous_ns + totals.excluded_ns
    assert sum(row.total_ns for row in report.kernels) + totals.excluded_ns == totals.work_ns
    assert sum(row.self_work_ns for row in report.ranges) + outside_ns == totals.work_ns
    parts = totals.own_ns, totals.adopted_ns, totals.linked_ns, totals.captured_ns
    assert sum(parts) + outside_ns == totals.work_ns


@every_case
def test_explain_groups_the_launches_of_all_kernels_as_brute_force_does(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up, kernel="e")
    found = defaultdict(list)
    if expected := {key: groups for key, groups in launch_groups(rows).items() if "e" in key[0].lower()}:
        for row in table(viewer("kernels").view(asked), "explained"):
            figures = row["blocks"] or 0, row["launches"], row["ranges"], row["total_ns"]
            found[row["kernel"], row["phase"]].append(figures)
    assert {key: sorted(groups) for key, groups in found.items() if key in expected} == expected


@every_case
def test_parts_of_attention_have_the_kernels_inside_their_ranges(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up)
    expected = attention(rows)
    if not expected:
        pytest.skip("no range is a part of attention")
    divided = asked.report.counted_steps if per_step else 1
    found = {
        (row["phase"], row["part"]): tuple(row[key] * divided for key in ("kernel_ns", "gemm_ns", "kernels"))
        for row in table(viewer("attention").view(asked), "attention")
        if row["level"] != "phase"
    }
    assert found == {key: pytest.approx(figures) for key, figures in expected.items()}


@every_case
def test_efficiency_joins_the_kernel_time_of_ranges_to_what_was_counted_in_them(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up)
    if not asked.report.steps or not counts_of(asked.report):
        pytest.skip("no FLOPs, or no steps")
    divided, time = asked.report.counted_steps if per_step else 1, inclusive(rows)
    found = {
        (tuple(row["range"].split(" > ")), row["phase"]): row
        for row in table(viewer("efficiency").view(asked), "efficiency")
    }
    assert {key: row["kernel_ns"] * divided for key, row in found.items()} == {
        key: pytest.approx(time[key]) for key in found
    }
    if name in MADE:
        ranges = [(row.path, row.phase) for row in asked.report.ranges]
        steps = Counter({row.path: row.instances * divided for row in asked.report.ranges if len(row.path) == 1})
        expected = flops(ranges, COUNTED, steps)
        assert {key: (row["flops"] * divided, row["bytes"] * divided) for key, row in found.items()} == expected
    else:
        stated = asked.report.provenance.run["flops"]
        whole = sum(row["flops"] for (path, _), row in found.items() if len(path) == min(map(len, dict(found))))
        assert whole == pytest.approx(sum(stated.values()) * (1 if per_step else asked.report.steps))


@every_case
def test_memory_of_ranges_peaks_and_holders_are_those_of_brute_force(name, per_step, include_warm_up):
    asked, _ = subject(name, per_step, include_warm_up)
    if asked.attribution.trace.memory is None:
        pytest.skip("no memory was recorded")
    blocks = blocks_of(asked.partition.attribution, **opened(name, per_step, include_warm_up)[1])
    seen = memory(asked.attribution, include_warm_up=include_warm_up, in_steps=per_step)
    assert {(row.path, row.phase): astuple(row)[2:] for row in seen.ranges} == memory_of_ranges(blocks)
    assert sorted(peak.held_bytes for peak in seen.peaks if not peak.phase) == sorted(
        held for held, _ in peaks(blocks).values()
    )
    assert sum(holder.held_bytes for holder in seen.holders) == sum(held for held, _ in peaks(blocks).values())
    divided = asked.report.counted_steps if per_step else 1
    shown = {
        (tuple(row["range"].split(" > ")), row["phase"]): row["allocated_bytes"] * divided
        for row in table(viewer("memory").view(asked), "memory")
    }
    assert shown == {
        (path or (NOWHERE,), phase): pytest.approx(figures[1])
        for (path, phase), figures in memory_of_ranges(blocks).items()
    }
    assert [(balance.before_bytes, balance.unseen_bytes) for balance in seen.balances] == [(BEFORE, 0)] * len(
        seen.balances
    )


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), TOTALS)
def test_rows_of_a_page_are_all_work_of_its_steps_by_phase(name, per_step, include_warm_up):
    has_steps = opened(name, per_step, include_warm_up)[0].whole.has_work_in_steps
    asked, counted = opened(name, has_steps, include_warm_up)
    rows = [row for row in rows_of(asked.attribution, **counted) if row.counted]
    (page,) = contents([asked]).reports
    by_phase = Counter()
    for row in rows:
        by_phase[row.phase.replace("other", "no phase")] += row.ns
    of_page = Counter()
    for _, _, phase, _, _, ns, _ in page_rows(page["data"]):
        of_page[phase] += ns
    assert of_page == by_phase
    if memory_drawn := page["memory"]:
        most_held = max(held for held, _ in peaks(blocks_of(asked.attribution, **counted)).values())
        assert memory_drawn["peak"] == bytes_text(most_held)


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), TOTALS[1::2])
def test_a_timeline_draws_all_work_once_and_projects_what_ranges_contain(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up)
    events = json.loads("".join(chrome_trace(asked.attribution, arrows=False)))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    drawn, expected, projected, inside = Counter(), Counter(), Counter(), Counter()
    for event in slices:
        if "given" in event.get("args", {}):
            key = event["args"]["path"], event["args"]["phase"], event["cat"], event["args"]["blocks"]
            drawn[key] += int(event["dur"] * 1000)
        elif event["cat"] == "projected range":
            projected[event["args"]["path"]] += event["args"]["kernel_ns"]
    for row in rows:
        expected[" > ".join(row.path), row.phase, row.category, row.blocks] += row.ns
        for path, _ in row.around:
            inside[" > ".join(path)] += row.ns * (row.kind == KERNEL)
    assert drawn == expected
    assert projected == inside
