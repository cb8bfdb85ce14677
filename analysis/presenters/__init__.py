"""Presenters turn an answer into text; they know nothing of how it was found.

A format is one word in `PRESENTERS` and one file of its name; its module is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Protocol

from ..document import Document


class Presenter(Protocol):
    """What the module of a document format offers."""

    def present(self, document: Document) -> str | bytes:
        """Return the whole document as text, or as what a binary file holds."""
        ...


PRESENTERS = ("table", "markdown", "latex", "typst", "html", "csv", "json", "parquet")


def presenter(format_: str) -> Presenter:
    """Return the presenter of a format."""
    module: Presenter = importlib.import_module(f"{__package__}.as_{format_}")
    return module
