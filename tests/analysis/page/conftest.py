"""A browser for the tests of pages, and pages of two steps in it."""

import pytest

from tests.analysis.making.browsing import chromium
from tests.analysis.making.made_reports import two_steps
from tests.analysis.making.shown_page import Page, page


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    with chromium(webdriver) as driver:
        yield driver


@pytest.fixture
def steps(tmp_path, driver):
    return Page(driver, page(tmp_path / "page.html", two_steps(tmp_path / "r.sqlite", slower=60)))


@pytest.fixture
def two(tmp_path, driver):
    reports = [two_steps(tmp_path / f"{name}.sqlite", slower) for name, slower in (("before", 0), ("after", 60))]
    return Page(driver, page(tmp_path / "page.html", *reports))
