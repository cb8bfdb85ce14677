"""A table: plain numbers for machines, and how its columns read to people."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

GIB = 1 << 30
NOTHING = "-"
Render = Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """One column: its header with the unit, the frame's columns it is made of, and how they read."""

    header: str
    sources: tuple[str, ...]
    render: Callable[..., str]

    def texts(self, lines: pd.DataFrame) -> list[str]:
        """Return the column's cells as text; `-` where the first source is absent."""
        rows = lines[list(self.sources)].itertuples(index=False)
        return [NOTHING if pd.isna(row[0]) else self.render(*row) for row in rows]


@dataclass(frozen=True)
class Table:
    """A title, plain numbers for machines, and the columns that people see."""

    title: str
    lines: pd.DataFrame
    columns: tuple[Column, ...]

    def shown(self) -> pd.DataFrame:
        """Return the table as text."""
        return pd.DataFrame({column.header: column.texts(self.lines) for column in self.columns})


def number(digits: int, factor: float = 1) -> Render:
    """Return how a number reads: divided by `factor`, with a fixed count of decimals."""
    return lambda value: f"{value / factor:,.{digits}f}"


def significant(digits: int, factor: float = 1) -> Render:
    """Return how a number reads: divided by `factor`, with a count of significant digits."""
    return lambda value: f"{float(f'{value / factor:.{digits}g}'):,.10g}"


def spread(mean: float, std: float | None) -> str:
    """Return mean and sample standard deviation as they are usually printed."""
    return f"{mean:.3f}" if pd.isna(std) else f"{mean:.3f} ± {std:.3f}"


def word(value: Any) -> str:
    """Return how a setting's value reads."""
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


MS = number(3)
WHOLE = number(0)
GIBIBYTES = significant(3, GIB)


def trouble(lines: pd.DataFrame) -> tuple[Column, ...]:
    """Return a column that says what went wrong, if anything did."""
    if (lines["status"] == "ok").all():
        return ()
    return (Column("result", ("status", "phase", "requested_bytes"), outcome),)


def outcome(status: str, phase: str | None, requested_bytes: float | None) -> str:
    """Return what became of a configuration, in words."""
    if status != "oom":
        return status
    asked = "" if pd.isna(requested_bytes) else f", asked for {GIBIBYTES(requested_bytes)} GiB"
    return f"OOM in {phase}{asked}"
