"""A page is used with the keyboard alone, and its address says what is chosen on it, back and forward too."""

import pytest

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING
from tests.analysis.making.made_reports import two_steps
from tests.analysis.making.shown_page import Page, page

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)


def seen(shown):
    """Return what a page shows by its controls."""
    return {
        "tab": shown.text("[role=tab][aria-selected=true]"),
        "layers": shown.text("[data-chooses=indices] [aria-checked=true]"),
        "kernels": shown.column("kernels", 1),
        "chips": shown.texts("#chips button"),
        "filters": [shown.do("return document.getElementById(arguments[0]).value", n) for n in ("phase", "text")],
        "order": shown.do("return document.querySelector('#kernels th[aria-sort]')?.textContent"),
        "open": shown.do("return document.querySelector('[data-section=counted]').open"),
        "zoom": shown.do("return document.getElementById('timeline-canvas').toDataURL()"),
    }


def test_an_address_shows_again_what_was_chosen(tmp_path, driver, steps):
    before = seen(steps)
    assert steps.state() == {}, "nothing was chosen"
    steps.click("#kernels-tab")
    steps.click("[data-value=apart]")
    steps.click("#kernels tbody tr:nth-child(2) .link")
    steps.choose("phase", "forward")
    steps.driver.find_element("css selector", "#text").send_keys("sgemm")
    steps.click("#kernels thead th:nth-child(1) button")
    steps.click("[data-zoom=in]")
    steps.click("[data-section=counted] summary")
    steps.until("return location.hash.includes('open=counted')")
    after = seen(steps)
    assert all(before[name] != after[name] for name in before), (before, after)
    assert steps.state().keys() == {"tab", "indices", "path", "kernel", "phase", "text", "sort", "zoom", "open"}
    again = Page(driver, tmp_path / "page.html", steps.do("return location.hash.slice(1)"))
    assert seen(again) == after
    assert again.complaints() == []


def test_back_and_forward_take_choices_back_and_bring_them_again(steps):
    steps.click("[data-part='compute forward']")
    steps.choose("category", "softmax")
    steps.driver.back()
    steps.until("return document.getElementById('category').value === ''")
    assert steps.texts("#chips button") == ["compute forward"]
    steps.driver.back()
    steps.until("return !document.querySelector('#chips button')")
    assert steps.state() == {}
    steps.driver.forward()
    steps.driver.forward()
    steps.until("return document.getElementById('category').value === 'softmax'")


@pytest.mark.parametrize(
    "state",
    ["tab=none&indices=7&report=9&zoom=x", "path=no+such&phase=no&part=no&sort=99+up&zoom=5-1", "at=none", "%"],
)
def test_an_address_that_says_nothing_opens_the_page(tmp_path, driver, state):
    shown = Page(driver, page(tmp_path / "page.html", two_steps(tmp_path / "r.sqlite")), state)
    assert shown.text("#listing-sum").endswith("100.0% of all work.")
    assert shown.texts("[aria-selected=true], [aria-checked=true]") == ["Tree", "layers together"]
    assert shown.complaints() == []


def test_the_timeline_is_reached_read_and_used_with_keys(steps):
    steps.press("#timeline-canvas", keys.ARROW_RIGHT)
    assert steps.text("#timeline-said").startswith("forward · step > forward · ")
    steps.press("#timeline-canvas", keys.ARROW_DOWN)
    said = "ampere_sgemm_128x64_nn · step > forward > layer 0 · forward · 200 µs"
    assert steps.text("#timeline-said").startswith(said)
    steps.press("#timeline-canvas", keys.ENTER)
    assert steps.texts("#chips button") == ["step > forward > layer 0", "ampere_sgemm_128x64_nn"]
    steps.press("#timeline-canvas", "+", "+")
    begin, end = map(int, steps.state()["zoom"].split("-"))
    assert end - begin == pytest.approx(1_000_000 / 4, rel=0.1)
    steps.press("#timeline-canvas", keys.HOME, keys.ESCAPE)
    assert steps.state() == {}
    assert steps.complaints() == []


def test_boxes_are_reached_entered_and_left_with_keys(steps):
    focused = "return document.activeElement.title.split('\\n')[0]"
    steps.click("#icicle-tab")
    steps.press("#icicle .box", keys.ARROW_DOWN, keys.ARROW_DOWN)
    assert steps.do(focused) == "step > forward"
    steps.press("#icicle .box:nth-child(3)", keys.ARROW_RIGHT)
    assert steps.do(focused) == "step > backward"
    steps.driver.switch_to.active_element.send_keys(keys.ENTER)
    assert steps.texts("#chips button") == ["step > backward"]
    steps.press("#icicle .box", keys.ESCAPE)
    assert steps.state() == {"tab": "icicle"}


def test_a_group_of_buttons_is_one_stop_and_arrows_choose_in_it(steps):
    stops = "return [...document.querySelectorAll('[role=tab]')].filter((b) => b.tabIndex === 0).length"
    assert steps.do(stops) == 1
    steps.press("#tree-tab", keys.ARROW_RIGHT)
    assert steps.text("[role=tab][aria-selected=true]") == "Icicle"
    assert (steps.do(stops), steps.do("return document.activeElement.id")) == (1, "icicle-tab")


def test_a_slash_goes_to_the_search(steps):
    steps.press("#tree-tab", "/")
    assert steps.do("return document.activeElement.id") == "text"
    steps.driver.switch_to.active_element.send_keys("a/b")
    assert steps.state()["text"] == "a/b"


def test_everything_that_can_be_used_has_a_name(steps):
    nameless = """return [...document.querySelectorAll('button, select, input, canvas, [role], summary, a')]
      .filter((one) => one.offsetParent && !(one.ariaLabel || one.caption || one.textContent.trim() || one.title))
      .filter((one) => !(one.labels?.length || one.getAttribute('aria-labelledby') || one.placeholder))
      .filter((one) => !one.matches('[role=status]'))
      .map((one) => one.outerHTML.slice(0, 120))"""
    assert steps.do(nameless) == []
