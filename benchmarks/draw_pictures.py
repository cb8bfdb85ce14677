"""Draw the pictures of the documentation: python -m benchmarks.draw_pictures.

`docs/overview.svg` is the screen of `nvtx-kernels rank`, and `docs/page-*.png` are the page in a browser. These
need chromium and chromedriver; `--screen` leaves them out. `--gallery FOLDER` takes `docs/gallery_pictures/*.png`
instead, of the recorded programs of docs/gallery.md in that folder (`loader.sqlite` and so on).
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Sequence
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
    end: str = ""  # the last thing in it; the window's end where none is named


SHOTS = (
    Shot("page-light", (REPORT,), "change=fp32", height=1300),
    Shot("page-dark", (REPORT,), "tab=icicle", "dark"),
    Shot("page-narrow", (REPORT,), width=420, height=1300),
    Shot("page-roofline", (REPORT,), "open=roofline", height=700, at="[data-section=roofline]"),
    Shot("page-compare", (REPORT, COMPILED), "report=1&tab=icicle", height=1200),
)

#: The programs of docs/gallery.md in its order, and the recordings of each.
GALLERY = {
    "loader": ("loader.sqlite",),
    "images": ("images.record.sqlite",),
    "unaligned": ("unaligned.sqlite",),
    "empty_cache": ("empty_cache.sqlite",),
    "eager_chains": ("eager_chains.sqlite",),
    "metrics_cpu": ("metrics_cpu.sqlite",),
    "moe_loop": ("moe_loop.sqlite",),
    "rank0_slow": ("rank0_slow.rank0.sqlite", "rank0_slow.rank1.sqlite"),
}

BOTTOM = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom + 4"


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


def of_gallery(folder: Path) -> list[Shot]:
    """Return the pictures of the gallery: the top of the page of each program that is recorded in a folder."""
    shots = []
    for name, recorded in GALLERY.items():
        reports = tuple(str(folder / report) for report in recorded)
        end = ".fix" if len(reports) == 1 else "[data-report='1']"
        shots.append(Shot(f"gallery_pictures/{name}", reports, width=900, at="body", end=end))
    return shots


def shoot(shots: Sequence[Shot], folder: Path) -> None:
    """Take pictures of pages, which are made in a folder, and make each small."""
    from selenium import webdriver

    from tests.analysis.making.browsing import chromium
    from tests.analysis.making.shown_page import Page

    with chromium(webdriver) as driver:
        for shot in shots:
            page = folder / f"{Path(shot.name).name}.html"
            main(["page", *shot.reports, "-o", str(page)])
            window = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
            driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            shown = Page(driver, page, shot.state, shot.scheme)
            shown.until("return performance.now() > 1500")  # what moves has come to rest
            shown.do("document.querySelector(arguments[0]).scrollIntoView()", shot.at)
            picture = driver.get_screenshot_as_png()
            bottom = shown.do(BOTTOM, shot.end) if shot.end else shot.height
            _keep(picture, DOCS / f"{shot.name}.png", math.ceil(bottom))


def _keep(picture: bytes, path: Path, height: int) -> None:
    """Write so many rows of a picture in few colours; raises ValueError where it is still too large."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        shown = image.convert("RGB").crop((0, 0, image.width, min(height, image.height)))
        few = shown.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(
            f"{path.name} has {path.stat().st_size:,} bytes: at most {MOST_BYTES:,}. Make it smaller."
        )
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as made:
        if "--gallery" in sys.argv:
            shoot(of_gallery(Path(sys.argv[-1])), Path(made))
        else:
            OVERVIEW.write_text(overview(), encoding="utf-8")
            shoot(() if "--screen" in sys.argv else SHOTS, Path(made))
