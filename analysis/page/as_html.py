"""One self-contained HTML file: data, pictures and script in it, nothing loaded.

The page's own policy forbids it every request, and every script but the one that is in it. Names are escaped by
the template and by the encoding of the data; the script makes text of them, never HTML.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..presenters.as_html import PAGE
from ..views.headings import ON_CPU, on_cpu
from .contents import Contents

ASSETS = files(__package__) / "assets"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def present(page: Contents) -> str:
    """Write a page; equal contents give equal pages."""
    parts = sorted(asset.name for asset in ASSETS.iterdir() if asset.name.endswith(".js"))
    script = "\n".join(_read(name) for name in parts)
    script = f'"use strict";\n{{\n{script}}}\n'
    environment = Environment(
        loader=PackageLoader(__package__, "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["say"] = on_cpu if page.on_cpu else str
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.jinja").render(
        title=page.title,
        reports=page.reports,
        differences=page.differences,
        generator=PAGE,
        letters=LETTERS if len(page.reports) > 1 else "",
        longest=max((_longest(report) for report in page.reports), default=0) or 1,
        contents={
            "reports": [report["data"] for report in page.reports],
            "words": ON_CPU if page.on_cpu else {},
        },
        style=_read("page.css"),
        script=script,
        policy=(
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'"
        ),
    )


def _longest(report: Mapping[str, Any]) -> float:
    """Return the time of the longest bar of a report, ns."""
    gpus = report["bars"]["gpus"] if report["bars"] else []
    return max((gpu["ns"] for gpu in gpus), default=0.0)


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
