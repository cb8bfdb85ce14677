"""The lanes below a page's strips: idle time by cause and the CPU's ranges and calls, on the strip's clock."""

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.page import lanes
from nvtx_kernels.analysis.page.strip import strip
from nvtx_kernels.analysis.readers import read

from tests.analysis.making.building import AUTOGRAD, Launch, Range, Work, build
from tests.analysis.making.bundled import OURS, unpacked
from tests.analysis.making.plain_sql import busy_within
from tests.analysis.making.plain_sums import rows_of

US = 1000
COLUMNS = ("start", "end", "name", "detail", "tone", "mixed", "ns", "count")


def drawn(path):
    return strip(attribute(read(path)), include_warm_up=False)


def of_kind(path, kind):
    return {lane["label"]: lane for lane in drawn(path)["lanes"] if lane["kind"] == kind}


def boxes(lane):
    """Return a lane's boxes: name, start and end in microseconds."""
    return [
        (lane["texts"][name], start / US, end / US)
        for name, start, end in zip(lane["name"], lane["start"], lane["end"], strict=True)
    ]


@pytest.fixture
def made(tmp_path):
    """A step whose GPU works from 10 to 20 and from 260 to 270 us, the second launched by autograd's thread."""
    ranges = [("step", 0, 300), ("forward", 2, 40), ("layer", 3, 30), ("backward", 40, 290)]
    calls = [
        Launch(1, 4 * US, 6 * US, name="cudaLaunchKernel_v7000"),
        Launch(None, 50 * US, 80 * US, name="cudaMalloc_v3020"),
        Launch(2, 250 * US, 255 * US, AUTOGRAD, name="cudaLaunchKernel_v7000"),
    ]
    return build(
        tmp_path,
        ranges=[Range(name, start * US, end * US) for name, start, end in ranges],
        launches=calls,
        work=[Work(1, 10 * US, 20 * US), Work(2, 260 * US, 270 * US)],
        thread_names={AUTOGRAD: "pt_autograd_0"},
    )


def test_gaps_have_their_causes_on_the_strips_clock(made):
    (lane,) = of_kind(made, "idle").values()
    assert boxes(lane) == [
        ("host code", 10, 40), ("allocation", 40, 70), ("host code", 70, 240), ("launching", 240, 245),
        ("latency", 245, 250),
    ]  # fmt: skip
    assert dict(lane["sums"]) == {
        "host code": 200 * US,
        "allocation": 30 * US,
        "launching": 5 * US,
        "latency": 5 * US,
    }
    assert sum(lane["ns"]) == 240 * US


def test_gaps_name_the_range_and_the_call_that_exposed_them(tmp_path):
    ranges = [Range("step", 0, 900 * US), Range("load", 90 * US, 600 * US)]
    calls = [
        Launch(1, 4 * US, 6 * US, name="cudaLaunchKernel_v7000"),
        Launch(None, 8 * US, 50 * US, name="cudaDeviceSynchronize_v3020"),
        Launch(2, 600 * US, 605 * US, name="cudaLaunchKernel_v7000"),
    ]
    work = [Work(1, 10 * US, 49 * US), Work(2, 606 * US, 700 * US)]
    (lane,) = of_kind(build(tmp_path, ranges=ranges, launches=calls, work=work), "idle").values()
    details = {lane["texts"][detail] for detail in lane["detail"]}
    assert "step > load, after cudaDeviceSynchronize" in details


def test_calls_and_ranges_are_those_of_the_threads_that_launch(made):
    calls, ranges = of_kind(made, "calls"), of_kind(made, "ranges")
    main, autograd = list(calls)
    assert boxes(calls[main]) == [("cudaLaunchKernel", -6, -4), ("cudaMalloc", 40, 70)]
    assert boxes(calls[autograd]) == [("cudaLaunchKernel", 240, 245)]
    assert autograd == "pt_autograd_0 calls"
    outer, inner = ranges.values()
    assert [name for name, *_ in boxes(outer)] == ["forward", "backward"]
    assert [name for name, *_ in boxes(inner)] == ["layer", "forward", "backward"]


@pytest.mark.parametrize("name", OURS)
def test_lanes_of_real_reports_are_bounded_and_hold_all_idle_time(tmp_path, name):
    path = unpacked(name, tmp_path)
    attribution, shown = attribute(read(path)), drawn(path)
    for lane in shown["lanes"]:
        assert {len(lane[column]) for column in COLUMNS} == {len(lane["start"])}
        assert 0 < len(lane["start"]) <= 3 * lanes.MAX_BOXES
        assert all(end > start for start, end in zip(lane["start"], lane["end"], strict=True))
    (idle,) = (lane for lane in shown["lanes"] if lane["kind"] == "idle")
    assert sum(ns for _, ns in idle["sums"]) == sum(idle["ns"])
    rows = rows_of(attribution, include_warm_up=False)
    drawn_rows = [row for row in rows if row.counted and shown["step"] in (row.step, None)]
    first, last = min(row.start for row in drawn_rows), max(row.end for row in drawn_rows)
    assert sum(idle["ns"]) == last - first - busy_within(sorted((row.start, row.end) for row in rows), first, last)


def test_many_pieces_are_joined_and_called_by_what_most_of_them_are(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "MAX_BOXES", 5)
    names = ("cudaLaunchKernel_v7000", "cudaEventQuery_v3020")
    calls = [Launch(n or None, 10 * n, 10 * n + (7 if n % 2 else 2), name=names[n % 2 == 0]) for n in range(200)]
    path = build(tmp_path, ranges=[Range("step", 0, 5_000)], launches=calls, work=[Work(1, 100, 2_000)])
    (lane,) = of_kind(path, "calls").values()
    assert len(lane["start"]) <= 3 * 5
    assert {lane["texts"][name] for name in lane["name"]} == {"cudaLaunchKernel"}
    assert all(lane["mixed"])
    assert sum(lane["count"]) == sum(call.start < 2_000 and call.end > 10 for call in calls)


def test_a_cpu_has_the_time_outside_of_operators(tmp_path):
    ranges = [Range("step", 0, 100 * US), Range("load batch", 20 * US, 60 * US)]
    launches = [Launch(n, start * US, (start + 10) * US) for n, start in enumerate((0, 90))]
    work = [Work(n, start * US, (start + 10) * US, "aten::mm") for n, start in enumerate((0, 90))]
    facts = {"NVTX_KERNELS_WORK": "CPU"}
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, metadata=facts)
    (lane,) = drawn(path)["lanes"]
    assert boxes(lane) == [("Python", 10, 20), ("data loading", 20, 60), ("Python", 60, 90)]


def test_reports_without_launches_have_no_lanes_of_threads(tmp_path):
    shown = drawn(build(tmp_path, work=[Work(None, 1, 5), Work(None, 9, 12)]))
    assert [lane["kind"] for lane in shown["lanes"]] == ["idle"]
    assert shown["lanes"][0]["sums"] == [("unknown", 4)]
