"""The roofline on a page: its points are the rows of the view, its lines the peaks of the GPU."""

from pathlib import Path

import pytest
from nvtx_kernels.analysis.measures.gpu_peaks import peak_of
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import roofline as rooflines
from nvtx_kernels.analysis.page.roofline import far_below
from nvtx_kernels.analysis.views.efficiency import NO_COUNTS
from nvtx_kernels.analysis.views.registry import subject_of
from nvtx_kernels.analysis.views.rows import label

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING
from tests.analysis.making.shown_page import Page, drawn, page
from tests.analysis.making.subjects import by, viewed
from tests.analysis.views.test_views_efficiency import MS, counted, report

in_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
RECORDED = Path(__file__).parents[2] / "data" / "h200_train_fp32.sqlite"
SOFTMAX = "backward: measure > step > backward > layer * > attention > computing softmax"
CIRCLES = """
const circles = [...document.querySelectorAll('#roofline-chart-0 svg path[d^="M1 0A1 1"]')];
return circles.filter((circle) => circle.getAttribute(arguments[0]) === arguments[1]).length;
"""


def picture(path):
    return drawn(path)["roofline"]


def section(found):
    return next(part for part in found["sections"] if part["name"] == "efficiency")


def row(path, ns, bound, of_memory=0.1, of_compute=None):
    return {
        "range": label(tuple(path.split(" > "))), "phase": "forward", "kernel_ns": ns, "bound": bound,
        "memory_share": of_memory, "compute_share": of_compute,
    }  # fmt: skip


def test_points_are_the_rows_of_the_view_that_compute_and_move(tmp_path):
    path = report(tmp_path, counted())
    rows = by(viewed("efficiency", path, whole=True, per_step=True), "efficiency", "range")
    points = {point["path"]: point for point in picture(path)["points"]}
    assert points.keys() == {name for name, found in rows.items() if found["flops"] and found["bytes"]}
    layer = points["step > forward > layer *"]
    assert (layer["ns"], layer["flops"], layer["intensity"]) == (3 * MS, pytest.approx(2e12 / 3e-3), 1000)
    assert layer["of_compute"] == pytest.approx(2e12 / 3e-3 / 989.4e12)
    assert layer["flops"] == pytest.approx(layer["intensity"] * layer["bytes"])
    assert {name for name, point in points.items() if not point["outer"]} == {
        "step > forward > layer *", "step > backward",
    }  # fmt: skip


def test_lines_are_the_peaks_of_the_gpu(tmp_path):
    found, peak = picture(report(tmp_path, counted())), peak_of(["NVIDIA H200"])
    assert found["memory"] == peak.bytes
    heights = {kind: line["flops"] for line in found["roofs"] for kind in line["kinds"]}
    assert heights == {kind: peak.flops(kind) for kind in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")}
    assert [line["kinds"] for line in found["roofs"] if line["used"]] == [["bf16", "fp16"]]


def test_no_point_of_a_recorded_report_lies_above_the_roofs():
    found = picture(RECORDED)
    (roof,) = (line["flops"] for line in found["roofs"] if line["used"])
    assert len(found["points"]) == 34
    for point in found["points"]:
        assert 0 < point["flops"] <= min(roof, point["intensity"] * found["memory"])


@pytest.mark.parametrize(("marks", "gpus"), [((), ["NVIDIA H200"]), ((counted(),), ["NVIDIA Foo 9000"])])
def test_without_counts_or_peaks_there_is_no_picture(tmp_path, marks, gpus):
    found = drawn(report(tmp_path, *marks, gpus=gpus))
    assert found["roofline"] is None
    assert not any(where == "efficiency" for _, where in found["look"])
    assert bool(section(found)["tables"]) == bool(marks)
    assert marks or section(found)["notes"] == [NO_COUNTS]


def test_ranges_for_which_there_is_no_room_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(rooflines, "MAX_POINTS", 2)
    found = picture(report(tmp_path, counted()))
    assert [point["path"] for point in found["points"]] == ["step", "step > backward"]
    assert found["left_out"] == {"without": 0, "smaller": 2}


def test_the_longest_innermost_range_that_nothing_bounds_is_looked_at():
    rows = [
        row("step", 90, "neither"), row("step > a", 60, "compute"),
        row("step > b > c", 20, "neither", 0.08, 0.002),
        row("step > b", 20, "neither"), row("step > d", 10, "neither"),
    ]  # fmt: skip
    assert list(far_below(rows)) == [
        "b > c (forward, 20 ns) is bound by neither compute nor memory: it reaches 0.2% of peak FLOP/s and 8.0% "
        "of peak B/s."
    ]
    assert list(far_below(rows[:2])) == list(far_below([])) == []


def test_what_is_said_of_a_recorded_report_is_what_its_view_says():
    rows = rooflines.counted_rows(subject_of("efficiency", opened(RECORDED)))
    assert sum(found["kernel_ns"] for found in rows if found["range"] == "measure > step") == pytest.approx(
        60e6, 0.01
    )
    look = [text for text, where in drawn(RECORDED)["look"] if where == "efficiency"]
    assert look[0] == "While recorded, MFU is 29.8%: a step computes 1.6 TFLOP of the model in 80.35 ms."
    assert look[1].startswith("backward > layer * > attention > computing softmax (4.73 ms) is bound by neither")


@in_browser
def test_the_roofline_is_drawn_with_its_lines_and_a_circle_per_range(tmp_path, driver):
    shown = Page(driver, page(tmp_path / "page.html", RECORDED))
    texts = set(shown.drawn("roofline-chart-0"))
    assert {"memory 4.8 TB/s", "fp64, fp32 67 TFLOP/s", "bf16, fp16 989 TFLOP/s", "1 TFLOP/s", "100"} <= texts
    assert shown.do(CIRCLES, "fill", "none") == sum(point["outer"] for point in picture(RECORDED)["points"])
    assert shown.text("#roofline-key-0") == "forwardbackwardotherwith other ranges inside"
    assert "16 ranges without FLOPs or bytes" in shown.text("#roofline-rest-0")
    assert shown.complaints() == []


@in_browser
@pytest.mark.slow
def test_ranges_are_reached_and_chosen_with_the_keyboard_and_an_address_keeps_the_choice(tmp_path, driver):
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    shown = Page(driver, page(tmp_path / "page.html", RECORDED))
    shown.press("#roofline-chart-0", keys.HOME, *[keys.ARROW_DOWN] * 40)
    said = shown.text("#roofline-said-0")
    assert said.startswith(
        SOFTMAX.split(": ")[1] + " · backward, 4.73 ms per step, mean of 2, 7.9% of all kernel time"
    )
    assert "128 GFLOP/s, 0.2% of the peak of fp32 · 383 GB/s, 8.0% of memory's peak" in said
    assert "point" not in shown.state()
    shown.press("#roofline-chart-0", keys.ENTER)
    assert shown.state()["point"] == SOFTMAX
    address = shown.do("return location.hash.slice(1)")
    again = Page(driver, tmp_path / "page.html", address)
    assert again.text("#roofline-said-0") == said
    ink = again.do("return getComputedStyle(document.body).getPropertyValue('--text')")
    assert again.do(CIRCLES, "stroke", ink) == 1, "the chosen range stands out"
    again.press("#roofline-chart-0", keys.ESCAPE)
    assert "point" not in again.state()
    again.driver.back()
    again.until("return document.getElementById('roofline-said-0').textContent.includes('computing softmax')")
    assert again.complaints() == []


@in_browser
def test_a_closed_roofline_is_drawn_when_it_is_opened_and_follows_light_and_dark(tmp_path, driver):
    shown = Page(driver, page(tmp_path / "page.html", RECORDED), "toggled=efficiency")
    assert shown.drawn("roofline-chart-0") == []
    shown.click("#efficiency-0 summary")
    shown.until("return document.querySelectorAll('#roofline-chart-0 svg text').length")
    ink = "return document.querySelector('#roofline-chart-0 svg text').getAttribute('fill')"
    light = shown.do(ink)
    shown.scheme("dark")
    shown.until("return document.documentElement.classList.contains('dark')")
    assert shown.do(ink) != light
    assert shown.complaints() == []


@in_browser
@pytest.mark.slow
def test_the_roofline_fits_a_narrow_window_and_each_report_has_its_own(tmp_path, driver):
    made = page(tmp_path / "page.html", RECORDED, report(tmp_path, counted()))
    window = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
    shown = Page(driver, made, f"point={SOFTMAX.replace(' ', '+')}")
    assert shown.do("return document.documentElement.scrollWidth") <= 420
    assert shown.do("return document.querySelector('#roofline-chart-0 svg').getBoundingClientRect().width") < 400
    shown.click("#report [data-value='1']")
    shown.until("return document.querySelectorAll('#roofline-chart-1 svg text').length")
    assert shown.text("#roofline-said-1").startswith("Arrow keys move"), "it has no such range"
    assert shown.complaints() == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
