"""A page's contents, tables and card of changes lead to what they are about."""

import pytest
from nvtx_kernels.analysis.page.sections import ROWS_SEEN

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING
from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.bundled import DATA
from tests.analysis.making.shown_page import Page, drawn, page

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
H200 = DATA / "h200_train_fp32.sqlite"
PLACES = "#idle-0 .one:nth-of-type(3)"
COLUMN = """
const rows = [...document.querySelectorAll(`${arguments[0]} tbody tr`)].filter((row) => !row.hidden);
return rows.map((row) => row.cells[arguments[1]].textContent);
"""
SEEN = """
return [...document.querySelectorAll(".contents a")].filter((a) => a.offsetParent).map((a) => a.dataset.at);
"""
PALE = "#strip-chart svg path[fill-opacity], #strip-chart svg path[opacity]"
ZOOM = "return echarts.getInstanceByDom(document.getElementById('strip-chart')).getOption().dataZoom[0]"


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    return page(tmp_path_factory.mktemp("page") / "page.html", H200)


@pytest.fixture
def shown(driver, h200):
    return Page(driver, h200)


def test_contents_list_all_sections_in_their_order_and_lead_there(shown):
    places = shown.do(SEEN)
    assert places[0] == "answer"
    assert places[-1] == "accounting"
    top = (
        "return (document.getElementById(`${arguments[0]}-0`) ?? document.getElementById(arguments[0])).offsetTop"
    )
    tops = [shown.do(top, name) for name in places]
    assert tops == sorted(tops)
    titles = "return [...document.querySelectorAll('main section h2')].filter((h) => h.offsetParent).length"
    assert len(places) >= shown.do(titles) - 2, "the cards of the answer have no entries of their own"
    shown.click(".contents a[data-at=idle]")
    assert shown.state()["at"] == "idle"
    assert 0 <= shown.do("return document.getElementById('idle-0').getBoundingClientRect().top") < 60
    shown.until("return document.querySelector('.contents [aria-current]').dataset.at === 'idle'")


def test_contents_leave_out_what_a_report_lacks(tmp_path, driver):
    path = build(tmp_path, work=[Work(None, 1, 5, 1, "memcpy")])
    shown = Page(driver, page(tmp_path / "page.html", path))
    seen = shown.do(SEEN)
    assert "kernels" not in seen
    assert "time" in seen


def test_contents_fold_on_a_narrow_screen(driver, h200):
    size = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        shown = Page(driver, h200)
        assert shown.do("return document.querySelector('.contents details').open") is False
        assert shown.do("return document.documentElement.scrollWidth") <= 420
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_more_rows_open_on_request(shown):
    before = shown.do(COLUMN, PLACES, 1)
    assert len(before) == ROWS_SEEN
    more = int(shown.text(f"{PLACES} .unfold").split()[0])
    shown.click(f"{PLACES} .unfold")
    after = shown.do(COLUMN, PLACES, 1)
    assert after[:ROWS_SEEN] == before
    assert len(after) == ROWS_SEEN + more
    assert shown.do(f"return document.querySelector('{PLACES} .unfold')") is None


def test_tables_of_views_are_sorted_by_all_of_their_rows(shown):
    heading = f"{PLACES} th:nth-child(3) button"
    largest_first = [float(text) for text in shown.do(COLUMN, PLACES, 2)]
    for expected in (False, True):
        shown.click(heading)
        times = [float(text) for text in shown.do(COLUMN, PLACES, 2)]
        assert len(times) > ROWS_SEEN
        assert times == sorted(times, reverse=not expected)
    assert min(times) < min(largest_first)
    shown.click(f"{PLACES} th:nth-child(2) button")
    assert shown.do(COLUMN, PLACES, 1)[:2] != ["step > optimizer", "step > optimizer"]
    assert shown.do(f"return document.querySelectorAll('{PLACES} th[aria-sort]').length") == 1


def test_sums_stay_last_when_a_table_is_sorted(shown):
    table = "#idle-0 .one:nth-of-type(2)"
    shown.click(f"{table} th:nth-child(2) button")
    shown.click(f"{table} th:nth-child(2) button")
    assert shown.do(COLUMN, table, 0)[-1] == "step"


@pytest.mark.parametrize("clicked", ["", " a"])
def test_a_change_leads_to_its_kernels_in_the_step(shown, clicked):
    row = next(row for row in drawn(H200)["fix"]["rows"] if "optimizer" in row["sentence"])
    number = [one["sentence"] for one in drawn(H200)["fix"]["rows"]].index(row["sentence"]) + 1
    shown.click(f".fix li:nth-of-type({number}){clicked}")
    assert shown.state()["at"] == "time"
    zoom = shown.do(ZOOM)
    assert (zoom["startValue"], zoom["endValue"]) == pytest.approx(row["part"], rel=0.01)
    strip = drawn(H200)["strip"]
    inside = {
        strip["phase"][n]
        for n, path in enumerate(strip["path"])
        if path in row["paths"] and strip["end"][n] > row["part"][0] and strip["start"][n] < row["part"][1]
    }
    assert inside == {"optimizer"}
    shown.until(f"return document.querySelectorAll('{PALE}').length > 0")


def test_the_strip_names_the_ranges_the_causes_and_the_calls(shown):
    texts = shown.drawn("strip-chart")
    assert {"GPU 0 idle", "python3 ranges", "python3 calls", "pt_autograd_0 calls"} <= set(texts)
    assert {"forward", "backward", "optimizer"} <= set(texts)
    assert shown.text("#strip-key").startswith("GPU idle:launching ")


def test_only_warnings_are_yellow(tmp_path, driver):
    shown = Page(driver, page(tmp_path / "page.html", DATA / "h200_recorder.sqlite"))
    notes = "[...document.querySelectorAll('main .note:not(.warning)')]"
    colours = shown.do(f"return {notes}.map((note) => getComputedStyle(note).backgroundColor)")
    assert set(colours) == {"rgba(0, 0, 0, 0)"}


def test_hostile_names_are_inert_in_lanes_and_contents(tmp_path, driver):
    bad = "<img src=x onerror=window.hacked=1>"
    ranges = [Range("step", 0, 10**6), Range(bad, 100, 10**5), Range(f"{bad}2", 200, 900)]
    launches = [Launch(1, 300, 400, name=bad), Launch(2, 50_000, 50_100, name=f"cudaLaunchKernel{bad}")]
    work = [Work(1, 500, 9_000), Work(2, 50_200, 60_000)]
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, thread_names={7: bad})
    shown = Page(driver, page(tmp_path / "page.html", path))
    assert shown.do("return window.hacked") is None
    assert shown.do("return document.querySelectorAll('img').length") == 0
    assert shown.complaints() == []
