"""One self-contained HTML file: data, charts (ECharts) and tables (DataTables) in it, nothing loaded.

The page's own policy forbids it every request, and every script but the three that are in it. Names are escaped by
the template, by the encoding of the data, and by the page's script where it makes text.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..presenters.as_html import PAGE
from ..views.headings import ON_CPU, on_cpu
from .contents import Contents
from .sections import title_of

PARTS = files(__package__)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LIBRARIES = ("echarts.min.js", "dataTables.min.js")
TABLE_STYLE = "dataTables.dataTables.min.css"


def present(page: Contents) -> str:
    """Write a page; equal contents give equal pages."""
    own_parts = sorted(asset.name for asset in (PARTS / "assets").iterdir() if asset.name.endswith(".js"))
    own_script = "\n".join(_read("assets", name) for name in own_parts)
    scripts = [*(_read("vendor", name) for name in LIBRARIES), f'"use strict";\n{{\n{own_script}}}\n']
    environment = Environment(
        loader=PackageLoader(__package__, "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["say"] = on_cpu if page.on_cpu else str
    environment.filters["title_of"] = title_of
    json_options = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    environment.policies["json.dumps_kwargs"] = json_options
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return environment.get_template("page.html.jinja").render(
        title=page.title,
        reports=page.reports,
        differences=page.differences,
        words=page.on_cpu,
        generator=PAGE,
        letters=LETTERS if len(page.reports) > 1 else "",
        contents={
            # What the page's script needs of a report; the other texts are in the page already.
            "reports": [
                _without(report, "verdict", "look", "sections")
                | {"facts": {name: report["facts"][name] for name in ("measured", "time", "span", "parts")}}
                for report in page.reports
            ],
            "differences": [_without(difference, "lead", "account") for difference in page.differences],
            "words": ON_CPU if page.on_cpu else {},
        },
        styles=[_read("vendor", TABLE_STYLE), _read("assets", "page.css")],
        scripts=scripts,
        policy=(
            f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'"
        ),
    )


def _without(contents: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: part for name, part in contents.items() if name not in names}


def _read(folder: str, name: str) -> str:
    return (PARTS / folder / name).read_text(encoding="utf-8")
