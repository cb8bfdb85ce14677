"""Presenters turn an answer into text; they know nothing of how it was found.

A format is one line in `PRESENTERS` and one file; its module is imported when it is asked for.
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


PRESENTERS = {
    "table": "nvtx_kernels.analysis.presenters.as_table",
    "markdown": "nvtx_kernels.analysis.presenters.as_markdown",
    "latex": "nvtx_kernels.analysis.presenters.as_latex",
    "typst": "nvtx_kernels.analysis.presenters.as_typst",
    "html": "nvtx_kernels.analysis.presenters.as_html",
    "csv": "nvtx_kernels.analysis.presenters.as_csv",
    "json": "nvtx_kernels.analysis.presenters.as_json",
    "parquet": "nvtx_kernels.analysis.presenters.as_parquet",
}


def presenter(format_: str) -> Presenter:
    """Return the presenter of a format."""
    module: Presenter = importlib.import_module(PRESENTERS[format_])
    return module
