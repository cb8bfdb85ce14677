"""Presenters turn an answer into text; they know nothing of how it was found.

A format is one line in `PRESENTERS` and one file; its module is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Protocol

from analysis.tables import Document


class Presenter(Protocol):
    """What the module of a document format offers."""

    def present(self, document: Document) -> str:
        """Return the whole document as text."""
        ...


# Formats that draw any document. JSON of a whole report is the contract of `as_json` and is not among them;
# neither is Parquet (`as_parquet`), which is no text and holds one table.
PRESENTERS = {
    "table": "analysis.presenters.as_table",
    "markdown": "analysis.presenters.as_markdown",
    "latex": "analysis.presenters.as_latex",
    "typst": "analysis.presenters.as_typst",
    "csv": "analysis.presenters.as_csv",
    "json": "analysis.presenters.as_tables_json",
}


def presenter(format_: str) -> Presenter:
    """Return the presenter of a format."""
    module: Presenter = importlib.import_module(PRESENTERS[format_])
    return module
