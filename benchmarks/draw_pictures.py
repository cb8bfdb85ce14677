"""Draw the pictures of the documentation: python -m benchmarks.draw_pictures.

`docs/overview.svg` is the screen of `nvtx-kernels rank`, and `docs/page-*.png` are the page in a browser. These
need chromium and chromedriver; `--screen` leaves them out.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from rich.console import Console
from rich.text import Text

from nvtx_kernels.__main__ import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REPORT, COMPILED = "tests/data/h200_train_fp32.sqlite", "tests/data/h200_compiled.sqlite"
COMMAND = ("rank", REPORT)
OVERVIEW = DOCS / "overview.svg"
WIDTH = 92
COLOURS = 256
MOST_BYTES = 150_000


class Shot(NamedTuple):
    """A picture of a page: its reports, state (after # in its address), scheme and window."""

    name: str
    reports: tuple[str, ...]
    state: str = ""
    scheme: str = "light"
    width: int = 1200
    height: int = 1250
    at: str = "body"  # what is at the top


SHOTS = (
    Shot("page-light", (REPORT,), "change=fp32", height=1300),
    Shot("page-dark", (REPORT,), "tab=icicle", "dark"),
    Shot("page-narrow", (REPORT,), width=420, height=1300),
    Shot("page-roofline", (REPORT,), "open=roofline", height=700, at="[data-section=roofline]"),
    Shot("page-compare", (REPORT, COMPILED), "report=1&tab=icicle", height=1200),
)


class Terminal(io.StringIO):
    """What a command takes for a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def screen() -> str:
    """Return the overview on a terminal of `WIDTH` columns, with its colours."""
    terminal = Terminal()
    settings = {"COLUMNS": str(WIDTH), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with patch.dict(os.environ, settings), redirect_stdout(terminal):
        os.environ.pop("NO_COLOR", None)
        main(COMMAND)
    return terminal.getvalue()


def overview() -> str:
    """Return the overview as SVG, without the fonts that Rich would have a reader's browser load."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(screen().rstrip("\n")))
    drawn = console.export_svg(title=" ".join(("nvtx-kernels", *COMMAND)), unique_id="overview")
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def shoot(folder: Path) -> None:
    """Take the pictures of the pages, and make each small."""
    from selenium import webdriver

    from tests.analysis.making.browsing import chromium
    from tests.analysis.making.shown_page import Page

    with chromium(webdriver) as driver:
        for shot in SHOTS:
            page = folder / f"{shot.name}.html"
            main(["page", *shot.reports, "-o", str(page)])
            window = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
            shown = Page(driver, page, shot.state, shot.scheme)
            shown.until("return performance.now() > 1500")  # what moves has come to rest
            shown.do("document.querySelector(arguments[0]).scrollIntoView()", shot.at)
            _keep(driver.get_screenshot_as_png(), DOCS / f"{shot.name}.png")


def _keep(picture: bytes, path: Path) -> None:
    """Write a picture in few colours; raises ValueError where it is still too large."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        few = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(
            f"{path.name} has {path.stat().st_size:,} bytes: at most {MOST_BYTES:,}. Make it smaller."
        )
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    os.chdir(ROOT)
    OVERVIEW.write_text(overview(), encoding="utf-8")
    if "--screen" not in sys.argv:
        with tempfile.TemporaryDirectory() as made:
            shoot(Path(made))
