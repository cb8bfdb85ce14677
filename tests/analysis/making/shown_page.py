"""A page of reports in the browser, with what tests do to it."""

from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import as_html
from nvtx_kernels.analysis.page.contents import contents

from tests.analysis.making.browsing import Shown


def drawn(path):
    """Return what a page has of a report."""
    return contents([opened(path)]).reports[0]


class Page(Shown):
    """A page in the browser."""

    def __init__(self, driver, path, state="", scheme="light"):
        """Open a page; `state` is what the address holds after #."""
        driver.get("about:blank")  # else another state of the same page is not loaded anew
        ready = "return document.documentElement.dataset.ready === 'yes'"
        super().__init__(driver, path.as_uri() + (f"#{state}" if state else ""), ready, scheme)

    def state(self):
        """Return what the address says is chosen."""
        return dict(self.do("return [...new URLSearchParams(location.hash.slice(1))]"))

    def press(self, selector, *keys):
        """Press keys at an element that has, or gets, the focus."""
        self.do("document.querySelector(arguments[0]).focus({ focusVisible: true })", selector)
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def click(self, selector):
        self.do("document.querySelector(arguments[0]).click()", selector)

    def text(self, selector):
        return self.do("return document.querySelector(arguments[0]).textContent", selector)

    def column(self, table, place):
        cells = f"#{table} tbody tr td:nth-child({place})"
        return self.do("return [...document.querySelectorAll(arguments[0])].map(cell => cell.textContent)", cells)

    def drawn(self, chart):
        return self.do(f"return [...document.querySelectorAll('#{chart} svg text')].map(text => text.textContent)")

    def click_box(self, label):
        """Click where the chart drew the box of this label, as a mouse would."""
        self.do(FIND_BOX)
        self.until(f"return window.boxOf('{label}') !== undefined")
        self.do(CLICK_BOX, label)


FIND_BOX = """
const texts = () => [...document.querySelectorAll('#icicle-chart svg text')];
window.boxOf = (label) => texts().find((text) => text.textContent.startsWith(label));
"""
CLICK_BOX = """
const place = window.boxOf(arguments[0]).getBoundingClientRect();
const point = { clientX: place.left + 2, clientY: place.top + 5, bubbles: true };
for (const kind of ["mousemove", "mousedown", "mouseup", "click"])
  document.querySelector("#icicle-chart > div").dispatchEvent(new MouseEvent(kind, point));
"""


def page(path, *reports):
    path.write_text(as_html.present(contents(list(map(opened, reports)))), encoding="utf-8")
    return path
