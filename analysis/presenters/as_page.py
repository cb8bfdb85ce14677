"""One self-contained HTML file: page data, charts (Plotly) and tables (DataTables) in it, nothing loaded.

The libraries' bundles come from the packages that ship them, `plotly` and `itables`; they are packed into the page
and unpacked by it. The page's own policy forbids it every request and every script but its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.page_parts.contents import Contents

ASSETS = files("analysis") / "page_parts" / "assets"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BUNDLES = {
    "plotly": ("plotly", "package_data/plotly.min.js"),
    "datatables": ("itables", "html/dt_bundle.js"),
}
TABLE_STYLE = ("itables", "html/dt_bundle.css")


def present(page: Contents) -> str:
    """Write a page; equal contents give equal pages."""
    script = "\n".join(_asset(name) for name in sorted(_names(".js")))
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            title=page.title,
            reports=page.reports,
            differences=page.differences,
            letters=LETTERS if len(page.reports) > 1 else "",
            contents={"reports": [_drawn(report) for report in page.reports], "differences": page.differences},
            libraries={name: packed(*where) for name, where in BUNDLES.items()},
            # Ours and the libraries' own, not a user's: these are not escaped.
            table_style=Markup(_shipped(*TABLE_STYLE).decode()),  # noqa: S704
            style=Markup(_asset("page.css")),  # noqa: S704
            script=Markup(script),  # noqa: S704
            policy=policy(script),
        )
    )


def policy(script: str) -> str:
    """Return the page's Content-Security-Policy: its own script, what it unpacks, and no request at all."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def packed(package: str, path: str) -> str:
    """Return a bundle compressed, as base64 text."""
    return base64.b64encode(gzip.compress(_shipped(package, path), 9, mtime=0)).decode()


def _drawn(report: dict[str, Any]) -> dict[str, Any]:
    """Return what the page's script needs of a report; the other texts are in the page already."""
    facts = {name: report["facts"][name] for name in ("measured", "span", "parts")}
    return {**report, "facts": facts}


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("analysis", "page_parts/assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return environment


def _names(suffix: str) -> list[str]:
    return [asset.name for asset in ASSETS.iterdir() if PurePath(asset.name).suffix == suffix]


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _shipped(package: str, path: str) -> bytes:
    return files(package).joinpath(path).read_bytes()
