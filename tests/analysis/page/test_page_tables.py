"""The views' tables on a page: folded, unfolded and sorted by all of their rows."""

import pytest
from nvtx_kernels.analysis.page.sections import ROWS_SEEN

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING
from tests.analysis.making.building import steps_lasting
from tests.analysis.making.shown_page import Page, page

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
STEPS = "[data-section=steps] .one:nth-of-type(1)"
COLUMN = """
const rows = [...document.querySelectorAll(`${arguments[0]} tbody tr`)].filter((row) => row.offsetParent);
return rows.map((row) => row.cells[arguments[1]].textContent);
"""


@pytest.fixture
def shown(tmp_path, driver):
    lasting = [1000 + 10 * ((7 * number) % 15) for number in range(15)]
    return Page(driver, page(tmp_path / "page.html", steps_lasting(tmp_path, *lasting)), "open=steps")


def test_more_rows_open_on_request(shown):
    before = shown.do(COLUMN, STEPS, 0)
    assert len(before) == ROWS_SEEN + 1, "and their mean"
    shown.click(f"{STEPS} .unfold")
    after = shown.do(COLUMN, STEPS, 0)
    assert after[:ROWS_SEEN] == before[:ROWS_SEEN]
    assert len(after) == 16
    assert shown.do(f"return document.querySelector('{STEPS} .unfold')") is None


def test_tables_of_views_are_sorted_by_all_of_their_rows_and_sums_stay_last(shown):
    for descends in (True, False):
        shown.click(f"{STEPS} th:nth-child(2) button")
        *times, uncounted, mean = shown.do(COLUMN, STEPS, 1)
        assert (len(times), uncounted) == (14, "1.030")
        assert [float(time) for time in times] == sorted(map(float, times), reverse=descends)
        assert float(mean) not in (min(map(float, times)), max(map(float, times)))
    assert shown.do(f"return document.querySelectorAll('{STEPS} th[aria-sort]').length") == 1
