"""All views of a report agree with each other and with brute force: docs/attribution.md lists equal sums.

Each is asked per step and in total, with and without warm-up, of the real reports and of made ones with what these
lack: several ranks, other threads' work inside a step, warm-up between steps, whole graphs, memory and FLOPs.
"""

import json
from collections import Counter, defaultdict
from dataclasses import astuple

import pytest
from nvtx_kernels.analysis import report as reports
from nvtx_kernels.analysis.attribution.steps import in_measured_steps, measured_steps
from nvtx_kernels.analysis.document import WHOLE
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.analysis.measures.agreement import phase_times
from nvtx_kernels.analysis.measures.balance import balance
from nvtx_kernels.analysis.measures.communication import communicated
from nvtx_kernels.analysis.measures.efficiency import counts_of
from nvtx_kernels.analysis.measures.exchanges import exchanges
from nvtx_kernels.analysis.measures.memory import memory
from nvtx_kernels.analysis.measures.overlap import overlap
from nvtx_kernels.analysis.measures.steps import steps_of
from nvtx_kernels.analysis.opened import Opened
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.readers.requirements import require_work
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.timeline.as_chrome_trace import chrome_trace
from nvtx_kernels.analysis.trace import KERNEL
from nvtx_kernels.analysis.views.registry import Subject, viewer
from nvtx_kernels.analysis.views.rows import NOWHERE

from tests.analysis.making.cross_cases import BEFORE, COUNTED, MADE, attributed, cases
from tests.analysis.making.plain_sums import (
    attention,
    blocks_of,
    flops,
    inclusive,
    launch_groups,
    median_step,
    memory_of_ranges,
    on_page,
    peaks,
    rows_of,
    states,
)
from tests.analysis.making.subjects import table


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])
def test_all_views_agree_with_each_other_and_with_brute_force(name, per_step, include_warm_up):
    whole = attributed(name)
    try:
        require_work(whole.trace)
    except NoGpuWork:
        pytest.skip("nothing ran on a GPU")
    if whole.trace.provenance.unit_of_work == "CPU":
        pytest.skip("of a CPU, which has no such states")
    counted = {"include_warm_up": include_warm_up}
    if per_step and not len(measured_steps(whole, **counted)):
        pytest.skip("no measured steps")
    expected = states(rows_of(whole, per_step=per_step, **counted), per_step=per_step)
    seen = in_measured_steps(whole, **counted) if per_step else whole
    of_gpus, of_states = overlap(seen, **counted), balance(seen, **counted)
    assert sorted(
        (gpu.span_ns, gpu.busy_ns, gpu.compute_ns, gpu.communication_ns, gpu.hidden_ns) for gpu in of_gpus.gpus
    ) == sorted(
        tuple(times[key] for key in ("span", "busy", "compute", "communication", "hidden"))
        for times in expected.values()
    )
    if per_step or of_states.phases[0].name == "all work":
        rows = [row for row in of_states.phases if row.name in ("step", "all work")]
        assert [(row.gpu, row.span_ns, row.busy_ns) for row in rows] == [
            (gpu.gpu, gpu.span_ns, gpu.busy_ns) for gpu in of_gpus.gpus
        ]
        assert sum(owner.idle_ns for owner in of_states.owners) <= sum(row.idle_ns for row in rows)
    sums = communicated(exchanges(seen, **counted)).gpus
    for gpu in of_gpus.gpus:
        if gpu.communication_ns:
            assert (sums[gpu.gpu].time_ns, sums[gpu.gpu].hidden_ns) == (gpu.communication_ns, gpu.hidden_ns)
    report = summarize(whole, **counted)
    shown = (report.measured or report) if per_step else report
    kernel_ns = sum(times["kernel"] for times in expected.values())
    kernels = [row for row in shown.kernels if row.kind == "kernel"]
    assert sum(row.total_ns for row in kernels) == kernel_ns
    assert sum(row.kernel_ns for row in shown.phases) == kernel_ns
    totals = report.totals
    outside_ns = totals.outside_ns + totals.ambiguous_ns + totals.excluded_ns
    assert sum(row.total_ns for row in report.kernels) + totals.excluded_ns == totals.work_ns
    assert sum(row.self_work_ns for row in report.ranges) + outside_ns == totals.work_ns
    parts = totals.own_ns, totals.adopted_ns, totals.linked_ns, totals.captured_ns
    assert sum(parts) + outside_ns == totals.work_ns
    if per_step:
        assert sum(step.kernel_ns for step in steps_of(whole, **counted)) == kernel_ns
        assert report.steps == len(measured_steps(whole, **counted))
        times = {row.name: row.kernel_ns for row in phase_times(seen, **counted)}
        assert times["step"] == kernel_ns
        assert sum(row.self_ns for row in shown.ranges) == kernel_ns
        mean = reports.per_step(report)
        assert sum(row.total_ns for row in mean.kernels if row.kind == "kernel") == pytest.approx(
            kernel_ns / report.steps
        )
    for row in shown.busy:
        of_phase = [each for each in of_states.phases if each.name == row.phase]
        assert (row.span_ns, row.busy_ns, row.kernels) == tuple(
            sum(getattr(each, key) for each in of_phase) for key in ("span_ns", "busy_ns", "kernels")
        )


TOTALS = [case for case in cases() if not case.values[1]]


def subject(name, per_step, include_warm_up, **options):
    """Return what a view looks at, with every row and every index, and the rows that it should count."""
    whole = attributed(name)
    report = summarize(whole, include_warm_up=include_warm_up)
    if not report.kernels or (per_step and not report.steps):
        pytest.skip("nothing ran on a GPU, or no measured steps")
    if whole.trace.provenance.unit_of_work == "CPU":
        pytest.skip("of a CPU, which has no such states")
    rows = rows_of(whole, per_step=per_step, include_warm_up=include_warm_up)
    counted = in_measured_steps(whole, include_warm_up=include_warm_up) if per_step else whole
    report = reports.per_step(report) if per_step else report
    return Subject(report, counted, WHOLE, **options), [row for row in rows if row.counted]


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])
def test_explain_groups_the_launches_of_all_kernels_as_brute_force_does(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up, kernel="e")
    found = defaultdict(list)
    if expected := {key: groups for key, groups in launch_groups(rows).items() if "e" in key[0].lower()}:
        for row in table(viewer("kernels").view(asked), "explained"):
            figures = row["blocks"] or 0, row["launches"], row["ranges"], row["total_ns"]
            found[row["kernel"], row["phase"]].append(figures)
    assert {key: sorted(groups) for key, groups in found.items() if key in expected} == expected


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])
def test_parts_of_attention_have_the_kernels_inside_their_ranges(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up)
    expected = attention(rows)
    if not expected:
        pytest.skip("no range is a part of attention")
    divided = asked.report.steps if per_step else 1
    found = {
        (row["phase"], row["part"]): tuple(row[key] * divided for key in ("kernel_ns", "gemm_ns", "kernels"))
        for row in table(viewer("attention").view(asked), "attention")
        if row["level"] != "phase"
    }
    assert found == {key: pytest.approx(figures) for key, figures in expected.items()}


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])
def test_efficiency_joins_the_kernel_time_of_ranges_to_what_was_counted_in_them(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up)
    if not asked.report.steps or not counts_of(asked.report):
        pytest.skip("no FLOPs, or no steps")
    divided, time = asked.report.steps if per_step else 1, inclusive(rows)
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


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])
def test_memory_of_ranges_peaks_and_holders_are_those_of_brute_force(name, per_step, include_warm_up):
    asked, _ = subject(name, per_step, include_warm_up)
    if asked.attribution.trace.memory is None:
        pytest.skip("no memory was recorded")
    blocks = blocks_of(attributed(name), per_step=per_step, include_warm_up=include_warm_up)
    seen = memory(asked.attribution, include_warm_up=include_warm_up, in_steps=per_step)
    assert {(row.path, row.phase): astuple(row)[2:] for row in seen.ranges} == memory_of_ranges(blocks)
    assert sorted(peak.held_bytes for peak in seen.peaks if not peak.phase) == sorted(
        held for held, _ in peaks(blocks).values()
    )
    assert sum(holder.held_bytes for holder in seen.holders) == sum(held for held, _ in peaks(blocks).values())
    divided = asked.report.steps if per_step else 1
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
def test_a_page_draws_the_kernel_time_of_its_steps_in_every_part(name, per_step, include_warm_up):
    asked, rows = subject(name, per_step, include_warm_up)
    (page,) = contents([Opened(asked.attribution, asked.report)]).reports
    drawn = on_page(rows, steps=asked.report.steps)
    kernel_ns, boxes = sum(row.ns for row in drawn), page["icicles"]["together"]
    assert boxes["ns"][0] == page["kernels"]["total_ns"] == sum(map(sum, page["phases"]["ns"])) == kernel_ns
    leaves = [ns for ns, kind in zip(boxes["ns"], boxes["kind"], strict=True) if kind in ("kernel", "rest")]
    assert sum(leaves) == kernel_ns
    by_phase = Counter()
    for row in drawn:
        by_phase[row.phase] += row.ns
    columns = zip(*page["phases"]["ns"], strict=True)
    assert dict(zip(page["phases"]["phases"], map(sum, columns), strict=True)) == by_phase
    strip, step = page["strip"], median_step(rows)
    first, last = min(row.start for row in step), max(row.end for row in step)
    assert strip["left_out"] or (sum(strip["ns"]), sum(strip["count"]), strip["span_ns"]) == (
        sum(row.ns for row in step), len(step), last - first,
    )  # fmt: skip
    if memory_drawn := page["memory"]:
        assert memory_drawn["peak_bytes"] == max(
            held
            for held, _ in peaks(
                blocks_of(asked.attribution, per_step=bool(asked.report.steps), include_warm_up=include_warm_up)
            ).values()
        )


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
