"""The timeline of a page: one step's work, idle time by cause, and what the CPU does, on one clock."""

from collections import Counter

import pytest
from nvtx_kernels.analysis.page import timeline

from tests.analysis.making.building import AUTOGRAD, Launch, Range, Work, build, steps_lasting
from tests.analysis.making.bundled import OURS, unpacked
from tests.analysis.making.shown_page import drawn, numbers, rows_of

US = 1000


def lanes(path, kind):
    """Return the lanes of a kind with their numbers, and the texts and rows that these are positions in."""
    data = drawn(path)["data"]
    found = []
    for lane in data["timeline"]["lanes"]:
        columns = {name: value for name, value in lane.items() if name not in ("label", "kind")}
        if lane["kind"] == kind:
            found.append(
                {"label": lane["label"]} | {name: numbers(value).tolist() for name, value in columns.items()}
            )
    return found, data


def boxes(path, kind, text="text"):
    """Return the boxes of all lanes of a kind: what they are called, start and end in microseconds."""
    found, data = lanes(path, kind)
    texts = data["timeline"]["texts"]
    return [
        (texts[name], start / US, end / US)
        for lane in found
        for name, start, end in zip(lane[text], lane["start"], lane["end"], strict=True)
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


def test_single_kernels_know_their_row_and_when_they_were_launched(made):
    (lane,), data = lanes(made, "work")
    assert list(zip(lane["start"], lane["end"], lane["launch"], strict=True)) == [
        (10 * US, 20 * US, 4 * US),
        (260 * US, 270 * US, 250 * US),
    ]
    rows = rows_of(data)
    assert [rows[row - 1][1] for row in lane["row"]] == ["step > forward > layer", "step > backward"]
    assert data["timeline"]["span"] == 270 * US


def test_idle_time_has_its_causes_and_the_work_that_it_is_before(made):
    found = boxes(made, "idle", "tone")
    assert [(cause, end) for cause, _, end in found if end <= 20][-1] == ("latency", 10)
    sums = Counter()
    for cause, start, end in found:
        sums[cause] += (end - start) * (start >= 20)
    assert +sums == {"host code": 200, "allocation": 30, "launching": 5, "latency": 5}
    (lane,), _ = lanes(made, "idle")
    (work,), _ = lanes(made, "work")
    assert {row for row, end in zip(lane["row"], lane["end"], strict=True) if end > 20 * US} == {work["row"][1]}


def test_idle_time_names_the_range_and_the_call_that_exposed_it(tmp_path):
    ranges = [Range("step", 0, 900 * US), Range("load", 90 * US, 600 * US)]
    calls = [
        Launch(1, 4 * US, 6 * US, name="cudaLaunchKernel_v7000"),
        Launch(None, 8 * US, 50 * US, name="cudaDeviceSynchronize_v3020"),
        Launch(2, 600 * US, 605 * US, name="cudaLaunchKernel_v7000"),
    ]
    work = [Work(1, 10 * US, 49 * US), Work(2, 606 * US, 700 * US)]
    texts = [text for text, *_ in boxes(build(tmp_path, ranges=ranges, launches=calls, work=work), "idle")]
    assert "step > load, after cudaDeviceSynchronize" in texts


def test_calls_and_ranges_are_those_of_the_threads_that_launch(made):
    assert boxes(made, "calls") == [
        ("cudaLaunchKernel", 4, 6), ("cudaMalloc", 50, 80), ("cudaLaunchKernel", 250, 255),
    ]  # fmt: skip
    assert [lane["label"] for lane in lanes(made, "calls")[0]][1] == "pt_autograd_0 calls"
    (lane,), data = lanes(made, "ranges")
    assert [data["tree"]["name"][path - 1] for path in lane["path"]] == [
        "step", "forward", "layer", "forward", "backward",
    ]  # fmt: skip


def test_the_step_of_the_median_time_is_drawn(tmp_path):
    shown = drawn(steps_lasting(tmp_path, 500, 100, 300))["data"]["timeline"]
    assert shown["step"] == 2


@pytest.mark.parametrize("name", OURS)
def test_the_drawn_step_of_real_reports_is_busy_or_idle_at_every_moment(tmp_path, name):
    path = unpacked(name, tmp_path)
    (idle,), data = lanes(path, "idle")
    work, _ = lanes(path, "work")
    tick, span = data["timeline"]["tick_ns"], data["timeline"]["span"]
    edges = sorted(
        (start, end) for lane in (*work, idle) for start, end in zip(lane["start"], lane["end"], strict=True)
    )
    reach = 0
    for start, end in edges:
        assert start <= reach + 1, "nothing is left out"
        reach = max(reach, end)
    assert reach == span
    assert tick == 1
    assert sum(map(len, (lane["start"] for lane in work))) <= timeline.MAX_BOXES * timeline.MAX_STREAMS


def test_many_pieces_are_joined_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MAX_BOXES", 5)
    names = ("cudaLaunchKernel_v7000", "cudaEventQuery_v3020")
    calls = [Launch(n or None, 10 * n, 10 * n + (7 if n % 2 else 2), name=names[n % 2 == 0]) for n in range(200)]
    path = build(tmp_path, ranges=[Range("step", 0, 5_000)], launches=calls, work=[Work(1, 100, 2_000)])
    (lane,), data = lanes(path, "calls")
    assert len(lane["start"]) <= 5
    assert {data["timeline"]["texts"][name] for name in lane["text"]} == {"cudaLaunchKernel"}, (
        "the longest of each"
    )
    assert sum(lane["count"]) == len(calls)


def test_a_cpu_has_the_time_outside_of_operators(tmp_path):
    ranges = [Range("step", 0, 100 * US), Range("load batch", 20 * US, 60 * US)]
    launches = [Launch(n, start * US, (start + 10) * US) for n, start in enumerate((0, 90))]
    work = [Work(n, start * US, (start + 10) * US, "aten::mm") for n, start in enumerate((0, 90))]
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, metadata={"NVTX_KERNELS_WORK": "CPU"})
    assert boxes(path, "idle", "tone") == [("Python", 10, 20), ("data loading", 20, 60), ("Python", 60, 90)]


def test_reports_without_launches_have_no_lanes_of_threads(tmp_path):
    shown = drawn(build(tmp_path, work=[Work(None, 1, 5), Work(None, 9, 12)]))["data"]["timeline"]
    assert [lane["kind"] for lane in shown["lanes"]] == ["work", "idle"]
    assert (shown["step"], shown["span"]) == (None, 11)
