"""A page is used with the keyboard alone, and its address says what is chosen on it, back and forward too."""

import pytest

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING
from tests.analysis.making.made_reports import two_steps
from tests.analysis.making.shown_page import Page, page

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)

CHECKED = "return document.querySelector(arguments[0] + ' [aria-checked=true]').dataset.value"
FOCUSED = "return document.activeElement.closest('[id]').id"
FILTER = "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.onchange()"


def chosen_everywhere(shown):
    """Choose something else than what a page opens on, with every control."""
    shown.click("#phase-scale [data-value=share]")
    shown.click_box("layer *")
    shown.do(FILTER, "phase-filter", "forward")
    shown.do(FILTER, "category-filter", "GEMM")
    shown.driver.find_element("css selector", "#kernels input[type=search]").send_keys("sgemm")
    shown.click("#kernel-table thead th:nth-child(1)")
    row = shown.column("step-table", 1).index("step > backward") + 1
    shown.click(f"#step-table tbody tr:nth-child({row})")
    shown.click("#idle-0 summary")
    shown.until("return location.hash.includes('toggled')")


def seen(shown):
    """Return what a page shows by its controls."""
    return {
        "scale": shown.do(CHECKED, "#phase-scale"),
        "kernels": shown.column("kernel-table", 1),
        "range": shown.text("#path-filter"),
        "filters": [
            shown.do(f"return document.getElementById('{n}-filter').value") for n in ("phase", "category")
        ],
        "search": shown.do("return document.querySelector('#kernels input[type=search]').value"),
        "order": shown.do("return document.querySelector('#kernel-table th[aria-sort]')?.textContent"),
        "step": shown.text("#step-table tr.chosen td"),
        "open": shown.do("return document.getElementById('idle-0').open"),
    }


@pytest.mark.slow
def test_an_address_shows_again_what_was_chosen(tmp_path, driver, steps):
    before = seen(steps)
    assert steps.state() == {}, "nothing was chosen"
    chosen_everywhere(steps)
    after = seen(steps)
    assert all(before[name] != after[name] for name in before), (before, after)
    assert steps.state().keys() == {
        "scale", "range", "phase", "category", "step", "toggled", "kernel-search", "kernel-order",
    }  # fmt: skip
    address = steps.do("return location.hash.slice(1)")
    again = Page(driver, tmp_path / "page.html", address)
    again.until("return document.querySelector('#path-filter').textContent !== ''")
    assert seen(again) == after
    assert again.complaints() == []


def test_back_and_forward_take_choices_back_and_bring_them_again(steps):
    steps.click("#phase-scale [data-value=share]")
    steps.click_box("layer *")
    assert steps.text("#path-filter") == "step > forward > layer *"
    steps.driver.back()
    steps.until("return document.getElementById('path-filter').hidden")
    assert steps.do(CHECKED, "#phase-scale") == "share"
    steps.driver.back()
    steps.until("return document.querySelector('#phase-scale [data-value=time]').ariaChecked === 'true'")
    assert steps.state() == {}
    steps.driver.forward()
    steps.driver.forward()
    steps.until("return !document.getElementById('path-filter').hidden")
    assert steps.text("#path-filter") == "step > forward > layer *"


@pytest.mark.parametrize(
    "state",
    ["scale=none&indices=7&report=9&pair=x", "range=no+such&phase=no&step=no&kernel-order=99+up", "at=none", "%"],
)
def test_an_address_that_says_nothing_opens_the_page(tmp_path, driver, state):
    shown = Page(driver, page(tmp_path / "page.html", two_steps(tmp_path / "r.sqlite")), state)
    assert len(shown.column("kernel-table", 1)) == 3
    assert shown.do(CHECKED, "#phase-scale") == "time"
    assert shown.complaints() == []


def test_the_compared_reports_and_the_axis_are_in_the_address(tmp_path, driver):
    reports = [two_steps(tmp_path / f"{name}.sqlite", slower) for name, slower in (("a", 0), ("b", 60), ("c", 90))]
    shown = Page(driver, page(tmp_path / "page.html", *reports), "report=2&pair=1&axis=kernel")
    assert [shown.do(CHECKED, group) for group in ("#report", "#difference-pair", "#difference-axis")] == [
        "2", "1", "kernel",
    ]  # fmt: skip
    assert "ampere_sgemm_32x128_nt" in shown.column("difference-table", 1)
    assert shown.text("#kernel-sum").startswith("3 of 3 rows: 795.00 µs")


def test_what_to_look_at_leads_to_its_section(steps):
    links = steps.do("return [...document.querySelectorAll('.look:not(.fix) a')].map((link) => link.textContent)")
    assert list(dict.fromkeys(links)) == ["Do the clocks agree?"]
    steps.click("#agreement-0 summary")
    steps.until("return !document.getElementById('agreement-0').open")
    steps.click(".look:not(.fix) a")
    steps.until("return document.getElementById('agreement-0').open")
    assert steps.do(FOCUSED) == "agreement-0"
    assert steps.do("return document.getElementById('agreement-0').getBoundingClientRect().top") < 50
    assert steps.state()["at"] == "agreement"


def test_boxes_are_reached_entered_and_left_with_the_keyboard(steps):
    steps.press("#icicle-chart", keys.ARROW_DOWN)
    assert steps.text("#icicle-said").startswith("forward · step > forward · 450.00 µs per step, mean of 2, 57.7%")
    steps.press("#icicle-chart", keys.ENTER)
    assert steps.text("#path-filter") == "step > forward"
    steps.press("#icicle-chart", keys.ARROW_DOWN, keys.ENTER)
    assert steps.text("#path-filter") == "step > forward > layer *"
    assert steps.column("kernel-table", 1) == ["ampere_sgemm_128x64_nn", "softmax_warp_forward"]
    steps.press("#icicle-chart", keys.ESCAPE)
    assert steps.text("#path-filter") == "step > forward"
    steps.press("#icicle-chart", keys.ESCAPE)
    assert len(steps.column("kernel-table", 1)) == 3
    steps.press("#icicle-chart", keys.ARROW_DOWN, keys.ARROW_RIGHT)
    assert steps.text("#icicle-said").startswith("backward")
    assert steps.complaints() == []


def test_the_box_with_the_cursor_and_the_chart_have_a_visible_ring(steps):
    ringed = "return document.querySelectorAll('#icicle-chart svg path[stroke-width=\"2\"]').length"
    assert steps.do(ringed) == 0
    steps.press("#icicle-chart", keys.ARROW_DOWN)
    steps.until(f"{ringed} === 1")
    assert steps.do("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_rows_of_steps_are_chosen_with_the_keyboard(steps):
    second = steps.column("step-table", 1)[1]
    steps.press("#step-table tbody tr", keys.ARROW_DOWN, keys.ENTER)
    assert steps.text("#step-table tr[aria-current] td") == second
    assert steps.state()["step"].endswith(second)


def test_a_group_of_buttons_is_one_stop_and_arrows_choose_in_it(steps):
    stops = "return [...document.querySelectorAll('#phase-scale button')].filter((b) => b.tabIndex === 0).length"
    assert steps.do(stops) == 1
    steps.press("#phase-scale [data-value=time]", keys.ARROW_RIGHT)
    assert steps.do(CHECKED, "#phase-scale") == "share"
    assert (steps.do(stops), steps.do("return document.activeElement.dataset.value")) == (1, "share")


def test_everything_that_can_be_used_has_a_name(steps):
    nameless = """return [...document.querySelectorAll('button, select, input, table, [role], summary, a')]
      .filter((one) => !(one.hidden || one.ariaLabel || one.caption || one.textContent.trim()))
      .filter((one) => !(one.labels?.length || one.getAttribute('aria-labelledby') || one.placeholder))
      .map((one) => one.outerHTML.slice(0, 120))"""
    assert steps.do(nameless) == []
