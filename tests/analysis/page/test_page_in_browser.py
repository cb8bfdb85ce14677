"""The page in a real headless Chromium: it draws, filters, sorts, follows light and dark, and loads nothing."""

import re
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import as_html
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING
from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.engines import served, vllm_call, vllm_step
from tests.analysis.making.made_reports import two_steps
from tests.analysis.making.shown_page import Page, page
from tests.analysis.page.test_page import WIDE

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)

HOSTILE = [
    "<script>window.hacked=1</script>", "</script><script>window.hacked=1</script>", "{{ 7*7 }}", "__proto__",
    "<img src=x onerror=window.hacked=1>", "\"'--><svg onload=window.hacked=1>", "{a|b} %{x}", "\x1b[31m\u202e",
    "a" * 9999,
]  # fmt: skip


def hostile(folder):
    ranges = [Range("step", 0, 10**6), *(Range(n, 100 + i * 1000, 900 + i * 1000) for i, n in enumerate(HOSTILE))]
    launches = [Launch(i + 1, 110 + i * 1000, 120 + i * 1000) for i in range(len(HOSTILE))]
    work = [Work(i + 1, 130 + i * 1000, 630 + i * 1000 + i, name) for i, name in enumerate(HOSTILE)]
    return [build(folder, ranges=ranges, launches=launches, work=work, gpus=["<b>GPU</b>"])]


def step_of(folder, *work):
    return [build(folder, ranges=[Range("step", 0, 1000)], launches=[Launch(1, 10, 20)], work=work)]


GRAPH = Work(1, 30, 400, "g", "graph")
PAGES = {
    "hostile": hostile, "graphs only": lambda folder: step_of(folder, GRAPH),
    "copies only": lambda folder: step_of(folder, Work(1, 30, 400, 1, "memcpy")),
    "no ranges": lambda folder: [build(folder, work=[Work(None, 1, 5, "sgemm")])],
    "two steps": lambda folder: [two_steps(folder / "a.sqlite")],
    "against itself": lambda folder: [two_steps(folder / "a.sqlite")] * 2,
    "three": lambda folder: [two_steps(folder / f"{name}.sqlite", name) for name in range(3)],
}  # fmt: skip


@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)
def test_any_report_is_drawn_without_complaint_and_without_a_request(tmp_path, driver, made):
    shown = Page(driver, page(tmp_path / "page.html", *made(tmp_path)))
    for button in range(shown.do("return document.querySelectorAll('.choice button').length")):
        shown.do("document.querySelectorAll('.choice button')[arguments[0]].click()", button)
    assert shown.drawn("accounting-chart")
    assert shown.complaints() == []
    assert shown.requests() == [shown.url]
    assert shown.do("return document.documentElement.scrollWidth") <= 1280


def test_hostile_names_are_shown_as_they_are_and_do_nothing(tmp_path, driver):
    shown = Page(driver, page(tmp_path / "page.html", *hostile(tmp_path)))
    assert shown.do("return window.hacked") is None
    assert "<img src=x onerror=window.hacked=*>" in shown.column("kernel-table", 2)
    assert "__proto__" in shown.column("kernel-table", 1)
    assert shown.do("return document.querySelectorAll('img, main script, main svg [onload]').length") == 0
    assert "<b>GPU</b>" in shown.text("header")


def test_graphs_that_hide_their_kernels_are_drawn_and_listed(tmp_path, driver):
    shown = Page(driver, page(tmp_path / "page.html", *step_of(tmp_path, GRAPH)))
    assert "all kernels and CUDA graphs" in shown.drawn("icicle-chart")
    assert shown.column("kernel-table", 1) == ["[CUDA graph]"]
    assert shown.text("#kernel-sum").endswith("100.0% of all kernel and CUDA graph time.")


def test_boxes_are_drawn_for_ranges_and_kernels(steps):
    labels = " ".join(steps.drawn("icicle-chart"))
    for label in ("all kernels", "forward  57.7%", "backward  42.3%", "layer *  57.7%", "ampere_sgemm_128x64_nn"):
        assert label in labels
    steps.click("#icicle-indices [data-value=apart]")
    steps.until("return document.querySelector('#icicle-chart').textContent.includes('layer 1')")


def test_a_clicked_box_lists_its_kernels_and_a_click_on_its_name_all_again(steps):
    steps.click_box("layer *")
    assert steps.column("kernel-table", 1) == ["ampere_sgemm_128x64_nn", "softmax_warp_forward"]
    assert steps.text("#path-filter") == "step > forward > layer *"
    assert steps.text("#kernel-sum") == "2 of 3 rows: 450.00 µs, 57.7% of all kernel time."
    steps.click("#path-filter")
    assert len(steps.column("kernel-table", 1)) == 3


def test_kernels_are_filtered_by_phase_category_and_name(steps):
    choose = "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.onchange()"
    steps.do(choose, "phase-filter", "backward")
    assert steps.column("kernel-table", 1) == ["ampere_sgemm_32x128_nt"]
    steps.do(choose, "phase-filter", "")
    steps.do(choose, "category-filter", "softmax")
    assert steps.column("kernel-table", 1) == ["softmax_warp_forward"]
    steps.do(choose, "category-filter", "")
    search = steps.driver.find_element("css selector", "#kernels input[type=search]")
    search.send_keys("128x64")
    assert steps.column("kernel-table", 1) == ["ampere_sgemm_128x64_nn"]


@pytest.mark.parametrize(
    ("heading", "clicks", "times"),
    [
        ("kernel", 2, ["40.00", "330.00", "410.00"]),
        ("µs", 1, ["40.00", "330.00", "410.00"]),
        ("launches", 2, ["330.00", "40.00", "410.00"]),
    ],
)
def test_kernels_are_sorted_by_a_click_on_a_heading(steps, heading, clicks, times):
    assert steps.column("kernel-table", 5) == ["410.00", "330.00", "40.00"]
    headings = steps.driver.find_elements("css selector", "#kernel-table thead th")
    for _ in range(clicks):
        next(head for head in headings if head.text == heading).click()
    cells = "[...document.querySelectorAll('#kernel-table tbody td:nth-child(5)')].map(cell => cell.textContent)"
    steps.until(f"return {cells}.join() === '{','.join(times)}'")


def test_a_clicked_range_is_drawn_in_each_step(steps):
    assert "slowest" in steps.text("#step-table thead")
    row = steps.column("step-table", 1).index("step > backward") + 1
    steps.click(f"#step-table tbody tr:nth-child({row})")
    steps.until("return document.querySelector('#step-chart').textContent.includes('step > backward')")
    assert {"0", "1", "400 µs", "Kernel time", "GPU span"} <= set(steps.drawn("step-chart"))
    assert steps.column("step-table", 7)[row - 1] == "18.2%"


def test_dark_is_followed_while_the_page_is_open(steps):
    paper = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('#phase-chart svg text').getAttribute('fill')"
    light = steps.do(paper), steps.do(ink)
    steps.scheme("dark")
    steps.until("return document.documentElement.classList.contains('dark')")
    dark = steps.do(paper), steps.do(ink)
    assert (light[0], dark[0]) == ("rgb(246, 247, 249)", "rgb(17, 19, 21)")
    assert light[1] != dark[1]
    assert steps.complaints() == []


def test_differences_of_two_reports_are_drawn_along_each_axis(two):
    figures = two.do("return [...document.querySelectorAll('#difference-figures dd')].map(dd => dd.textContent)")
    assert figures == ["750.00 µs", "780.00 µs", "+30.00 µs"]
    assert two.text("#differences .verdict") == (
        "Not known whether B differs: a step takes 1.00 and 1.06 ms (+6.0%). Two steps a side are too few: record "
        "five or more. Kernel time changed most by phase backward (+30.00 µs) and by category GEMM (+30.00 µs)."
    )
    assert two.column("difference-table", 1) == ["forward", "backward"], "it opens on phases"
    two.click("#difference-axis [data-value=range]")
    assert two.column("difference-table", 4)[:2] == ["+30.000", "0.000"]
    assert "+30.00 µs (+10.0%)" in two.drawn("difference-chart")
    two.click("#difference-axis [data-value=kernel]")
    assert two.column("difference-table", 1)[0] == "ampere_sgemm_32x128_nt"
    assert sum(map(float, two.column("difference-table", 4))) == 30


def test_the_other_report_is_shown_when_it_is_chosen(two):
    assert two.text("#kernel-sum").startswith("3 of 3 rows: 750.00 µs")
    two.click("#report [data-value='1']")
    assert two.text("#kernel-sum").startswith("3 of 3 rows: 780.00 µs")
    assert two.do("return document.querySelector('[data-report=\"1\"] dd').offsetParent !== null")


def test_charts_follow_the_width_of_the_window(steps):
    width = "return document.querySelector('#phase-chart svg').getBoundingClientRect().width"
    wide = steps.do(width)
    steps.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 800, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    steps.until(f"{width} < 780")
    assert steps.do("return document.documentElement.scrollWidth") <= 800 < wide
    steps.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_largest_page_opens_in_seconds(tmp_path, driver):
    wide = replace(opened(two_steps(tmp_path / "r.sqlite")), whole=WIDE)
    (tmp_path / "page.html").write_text(as_html.present(contents([wide] * 2)), encoding="utf-8")
    times = [Page(driver, tmp_path / "page.html").do("return performance.now()") for _ in range(3)]
    assert min(times) < 10_000  # 1.2 s on two idle cores; other tests run at the same time


def test_a_page_of_a_cpu_speaks_of_operators_in_its_charts_and_tables_too(tmp_path, driver):
    starts = (0, 1000)
    ranges = [Range("step", start, start + 900) for start in starts]
    ranges += [Range("forward", start + 10, start + 800) for start in starts]
    launches = [Launch(number, start + 50, start + 90) for number, start in enumerate(starts)]
    work = [Work(number, start + 50, start + 90, "aten::mm") for number, start in enumerate(starts)]
    facts = {"NVTX_KERNELS_WORK": "CPU"}
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, metadata=facts)
    shown = Page(driver, page(tmp_path / "page.html", *[path.rename(tmp_path / "recording.sqlite")] * 2))
    text = shown.do("return document.querySelector('main').innerText + document.title").replace("nvtx-kernels", "")
    assert re.findall(r"\b(?:kernels?|launch\w*|GPU)\b", text.replace("no GPU", ""), re.IGNORECASE) == []
    assert "all operators" in shown.drawn("icicle-chart")


def test_the_axis_of_small_differences_names_their_unit(two):
    labels = two.drawn("difference-chart")
    assert any(re.fullmatch(r"[−+]?[\d.]+ µs", label) for label in labels), labels


COLOUR = "((dot) => getComputedStyle(dot).backgroundColor)"
DOT = f"""
const dot = document.querySelector("main").appendChild(document.createElement("i"));
dot.className = `dot ${{arguments[0]}}`;
return {COLOUR}(dot);
"""


def test_every_phase_has_a_colour_of_its_own_in_light_and_in_dark(tmp_path, driver):
    steps = [(vllm_step(1, 512, 0, 0), 512), (vllm_step(0, 0, 8, 8), 8)]
    shown = Page(driver, page(tmp_path / "page.html", build(tmp_path, **served("Llama", vllm_call, steps))))
    assert shown.text("#icicle-key") == "prefilldecodekernels lighter"
    for scheme in ("light", "dark"):
        shown.scheme(scheme)
        dots = [shown.do(DOT, phase) for phase in PHASES]
        assert len(set(dots)) == len(PHASES)
        in_key = shown.do(f"return [...document.querySelectorAll('#icicle-key i')].map((dot) => {COLOUR}(dot))")
        assert in_key == [dots[PHASES.index(phase)] for phase in ("prefill", "decode")]
    boxes = (
        "return [...document.querySelectorAll('#icicle-chart svg path')].map((box) => box.getAttribute('fill'))"
    )
    assert len(set(shown.do(boxes))) > 4, "ranges, kernels of two phases, and all"
    shown.press("#icicle-chart", "\ue015")
    assert shown.text("#icicle-said").endswith("5 launches"), "a range of both phases claims neither"
    assert shown.complaints() == []
