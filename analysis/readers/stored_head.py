"""The head of a file of ours: what `container.py` writes that is no table."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ..container import ROWS, Layout
from ..errors import NotAReport
from .sqlite import Database

Counts = dict[str, Annotated[int, msgspec.Meta(ge=0)]]


def read_head(database: Database, layout: Layout) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the head says by name, and how many rows of each table are complete.

    Raises NotAReport for a file of a later version, and KeyError, TypeError or ValueError for a damaged head.
    """
    rows = database.rows(f"SELECT what, value FROM {layout.head}")  # noqa: S608 - a name of ours
    head = {key: msgspec.json.decode(value) for key, value in rows}
    counts = msgspec.convert(head.get(ROWS, {}), Counts)
    if int(head["version"]) > layout.version:
        raise NotAReport(f"{database.path} was written by a later nvtx-kernels; upgrade this one to read it.")
    return head, counts
