"""What tells the reports of a sweep apart: the settings in their marks that differ, else the files' names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.report import Report
from analysis.tables import Column
from analysis.views import provenance

#: Settings of a run's mark, in the order of the columns.
SETTINGS = (
    Column("size", "size"), Column("d_model", "d_model", "count"), Column("d_ff", "d_ff", "count"),
    Column("layers", "layers", "count"), Column("heads", "heads", "count"),
    Column("vocab_size", "vocabulary", "count"), Column("context_length", "context", "count"),
    Column("batch_size", "batch", "count"), Column("dtype", "dtype"), Column("mode", "mode"),
    Column("attention", "attention"), Column("compile", "compile"), Column("optimizer", "optimizer"),
    Column("torch", "PyTorch"), Column("device_name", "GPU", "name"),
)  # fmt: skip
NAME = Column("report", "report", "name")
#: What rows are sorted by before all other settings: sizes grow with their parameters, not with their names.
BY_NUMBER = ("parameters", "context_length", "batch_size")


def identity(
    names: Sequence[str], reports: Sequence[Report]
) -> tuple[tuple[Column, ...], list[tuple[object, ...]]]:
    """Return the first columns of every table, and each report's cells of them."""
    columns = _differing(reports)
    cells = [tuple(_value(report, column.key) for column in columns) for report in reports]
    if columns and len(set(cells)) == len(cells) and all(report.provenance.run for report in reports):
        return columns, cells
    return (NAME, *columns), [(name, *cell) for name, cell in zip(names, cells, strict=True)]


def order(reports: Sequence[Report]) -> list[int]:
    """Return the places of the reports by their settings; as they are where one of them has no mark."""
    places = list(range(len(reports)))
    if not all(report.provenance.run for report in reports):
        return places
    return sorted(places, key=lambda place: _rank(reports[place]))


def heading(reports: Sequence[Report], given: int) -> str:
    """Say how many reports of how many given there are, and what they have in common."""
    common = provenance.common([provenance.facts(report)[1:] for report in reports])
    return " · ".join([f"{len(reports)} of {given} reports", *common])


def _differing(reports: Sequence[Report]) -> tuple[Column, ...]:
    marked = [report for report in reports if report.provenance.run]
    return tuple(column for column in SETTINGS if len({str(_value(report, column.key)) for report in marked}) > 1)


def _value(report: Report, key: str) -> Any:
    """Return a setting as it is shown: None where the mark does not say."""
    value = report.provenance.run.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if value is None or isinstance(value, int | float) else str(value)


def _rank(report: Report) -> tuple[object, ...]:
    run = report.provenance.run
    numbers = [value if isinstance(value := run.get(key), int | float) else 0 for key in BY_NUMBER]
    return (*numbers, *(str(run.get(column.key)) for column in SETTINGS))
