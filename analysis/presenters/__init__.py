"""Presenters turn an answer into text; they know nothing of how it was found.

A format is a line in `PRESENTERS` and one file of its name; its module is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from types import ModuleType

#: The formats, and how files of each end.
PRESENTERS = {
    "table": ".txt",
    "markdown": ".md",
    "latex": ".tex",
    "html": ".html",
    "csv": ".csv",
    "json": ".json",
    "parquet": ".parquet",
}


def presenter(format_: str) -> ModuleType:
    """Return the module of a format: its `present(document)` is the whole document as str, or as bytes."""
    return importlib.import_module(f"{__package__}.as_{format_}")
