"""Frames of numbers as tables of a document: every number for programs, and columns made of them for people."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from nvtx_kernels.analysis.document import Column, Document, Kind, Row, Table
from nvtx_kernels.analysis.presenters.output import format_of, presented, write
from nvtx_kernels.analysis.support.units import bytes_text


class Shown(NamedTuple):
    """A column that people see: its heading, the frame's columns it is made of, what its values are.

    `value` computes the value from the frame's columns; it is None if the first of them is missing.
    """

    heading: str
    sources: tuple[str, ...]
    kind: Kind = "text"
    value: Callable[..., Any] = lambda value: value

    def of(self, line: Mapping[str, Any]) -> Any:
        """Return the value in a line."""
        values = [line[source] for source in self.sources]
        return None if values[0] is None else self.value(*values)


def table(key: str, title: str, lines: pd.DataFrame, columns: tuple[Shown, ...]) -> Table:
    """Return a table with all columns of a frame for programs, and the given ones for text."""
    for_programs = [Column(str(name), str(name), seen_by="programs") for name in lines.columns]
    for_people = [Column(one.heading, one.heading, one.kind, seen_by="people") for one in columns]
    rows = []
    for values in lines.itertuples(index=False):
        line = dict(zip(map(str, lines.columns), map(_plain, values), strict=True))
        rows.append(Row((*line.values(), *(one.of(line) for one in columns))))
    return Table(key, title, (*for_programs, *for_people), tuple(rows))


def _plain(value: Any) -> Any:
    """Return a plain Python value; None if it is missing."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def show(document: Document, asked: Mapping[str, Any], before: str = "") -> None:
    """Write a document as the options `format` and `output` ask, below a text if one is given."""
    found = presented(document, format_of(asked["format"], asked["output"]), asked["output"])
    write(before + found if isinstance(found, str) else found, asked["output"])


def pair(mean: float, std: float | None) -> tuple[float, float | None]:
    """Return a value for a column of the kind `spread`."""
    return mean, std


def setting(heading: str, name: str) -> Shown:
    """Return the column of a setting, or of anything else that reads as it is written."""
    return Shown(heading, (name,), "text", word)


def number(heading: str, name: str, kind: Kind) -> Shown:
    """Return the column of a number."""
    return Shown(heading, (name,), kind)


def word(value: Any) -> str:
    """Return how a setting's value reads."""
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


def trouble(lines: pd.DataFrame) -> tuple[Shown, ...]:
    """Return a column with what went wrong, if anything did."""
    if (lines["status"] == "ok").all():
        return ()
    return (Shown("result", ("status", "phase", "requested_bytes"), "prose", outcome),)


def outcome(status: str, phase: str | None, requested_bytes: float | None) -> str:
    """Describe the result of a configuration."""
    if status != "oom":
        return status
    asked = "" if requested_bytes is None else f", asked for {bytes_text(requested_bytes)}"
    return f"OOM in {phase}{asked}"
