"""A page of reports in the browser, with what tests do to it, and a page's data as numbers."""

import base64
from functools import cache

import numpy as np
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import as_html
from nvtx_kernels.analysis.page.contents import contents

from tests.analysis.making.browsing import Shown

TYPES = {"1": "<u1", "2": "<u2", "4": "<u4", "8": "<f8"}


@cache
def drawn(path):
    """Return what a page has of a report, which is made once."""
    return contents([opened(path)]).reports[0]


def numbers(text):
    """Return the numbers of a packed column."""
    size, data = text.split(":")
    return np.frombuffer(base64.b64decode(data), TYPES[size]).astype(np.int64)


def rows_of(data):
    """Return the rows of a page's data: kernel, path, phase, category, part, ns and launches of each."""
    rows, tree = data["rows"], data["tree"]
    texts = []
    for name, parent in zip(tree["name"], numbers(tree["parent"]).tolist(), strict=True):
        around = texts[parent - 1] if parent else ""
        joined = name.startswith("\u2060")
        texts.append(
            f"{around}{name[1:]}"
            if joined and around
            else " > ".join(filter(None, (around, name.strip("\u2060."))))
        )
    columns = {name: numbers(rows[name]).tolist() for name in ("kernel", "path", "phase", "category", "part")}
    figures = (numbers(rows[name]).tolist() for name in ("ns", "count"))
    names = (
        [rows["kernels"][n][0] for n in columns["kernel"]],
        [texts[n] for n in columns["path"]],
        [rows["phases"][n] for n in columns["phase"]],
        [rows["categories"][n] for n in columns["category"]],
        [rows["parts"][n] for n in columns["part"]],
    )
    return list(zip(*names, *figures, strict=True))


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

    def texts(self, selector):
        return self.do(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
        )

    def column(self, table, place):
        return self.texts(f"#{table} tbody tr td:nth-child({place})")

    def choose(self, select, value):
        """Choose an option of a list."""
        script = "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.onchange()"
        self.do(script, select, value)

    def pixels(self):
        """Return how many different colours the timeline has."""
        return self.do(COLOURS)


COLOURS = """
const canvas = document.getElementById("timeline-canvas");
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
return new Set(new Uint32Array(data.buffer)).size;
"""


def page(path, *reports):
    path.write_text(as_html.present(contents(list(map(opened, reports)))), encoding="utf-8")
    return path
