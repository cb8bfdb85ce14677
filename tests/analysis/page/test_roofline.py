"""The roofline on a page: its points are the rows of the view, its lines the peaks of the GPU."""

from pathlib import Path

import pytest
from nvtx_kernels.analysis.measures.gpu_peaks import peak_of
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import roofline as rooflines
from nvtx_kernels.analysis.support.units import si_text
from nvtx_kernels.analysis.views.efficiency import NO_COUNTS
from nvtx_kernels.analysis.views.registry import subject_of

from tests.analysis.making.shown_page import drawn
from tests.analysis.making.subjects import by, viewed
from tests.analysis.views.test_views_efficiency import counted, report

RECORDED = Path(__file__).parents[2] / "data" / "h200_train_fp32.sqlite"


def picture(path):
    return drawn(path)["roofline"]


def section(found):
    return next(part for part in found["sections"] if part["view"] == "efficiency")


def test_points_are_the_rows_of_the_view_that_compute_and_move(tmp_path):
    path = report(tmp_path, counted())
    rows = by(viewed("efficiency", path, whole=True, per_step=True), "efficiency", "range")
    points = {point["title"]: point for point in picture(path)["points"]}
    assert points.keys() == {name for name, found in rows.items() if found["flops"] and found["bytes"]}
    layer = points["step > forward > layer *"]
    assert layer["lines"] == [
        "3.00 ms", "667 TFLOP/s, 67.4% of the peak of bf16", "667 GB/s, 13.9% of memory's peak",
        "1,000 FLOPs per byte", "bound: compute",
    ]  # fmt: skip
    assert {name for name, point in points.items() if not point["outer"]} == {
        "step > forward > layer *", "step > backward",
    }  # fmt: skip


def test_lines_are_the_peaks_of_the_gpu_the_highest_first(tmp_path):
    memory, *roofs = picture(report(tmp_path, counted()))["roofs"]
    peak = peak_of(["NVIDIA H200"])
    assert memory["name"] == f"memory {si_text(peak.bytes, 'B/s')}"
    assert [line["name"] for line in roofs] == [
        "fp8 1.98 PFLOP/s", "bf16, fp16 989 TFLOP/s", "tf32 495 TFLOP/s", "fp64, fp32 67 TFLOP/s",
    ]  # fmt: skip
    assert [line["name"].split()[0] for line in roofs if line["used"]] == ["bf16,"]
    assert memory["ends"][1] == roofs[0]["ends"][0], "memory's line ends where it meets the highest peak"
    tops = [line["ends"][0][1] for line in roofs]
    assert tops == sorted(tops)


def test_no_point_of_a_recorded_report_lies_above_the_roofs():
    found = picture(RECORDED)
    memory, *roofs = found["roofs"]
    (roof,) = (line["ends"][0][1] for line in roofs if line["used"])
    (left, low), (right, high) = memory["ends"]
    assert len(found["points"]) == 34
    for point in found["points"]:
        x, y = point["at"]
        on_slope = low + (x - left) * (high - low) / (right - left)
        assert y >= max(roof, on_slope) - 1


@pytest.mark.parametrize(("marks", "gpus"), [((), ["NVIDIA H200"]), ((counted(),), ["NVIDIA Foo 9000"])])
def test_without_counts_or_peaks_there_is_no_picture(tmp_path, marks, gpus):
    found = drawn(report(tmp_path, *marks, gpus=gpus))
    assert found["roofline"] is None
    assert bool(section(found)["tables"]) == bool(marks)
    assert marks or section(found)["notes"] == [NO_COUNTS]


def test_ranges_for_which_there_is_no_room_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(rooflines, "MAX_POINTS", 2)
    found = picture(report(tmp_path, counted()))
    assert [point["title"] for point in found["points"]] == ["step", "step > backward"]
    assert found["left_out"] == {"without": 0, "smaller": 2}


def test_rows_of_a_recorded_report_are_those_of_its_view():
    rows = rooflines.counted_rows(subject_of("efficiency", opened(RECORDED)))
    step = [row["kernel_ns"] for row in rows if row["range"] == "measure > step"]
    assert sum(step) == pytest.approx(60e6, 0.01)
