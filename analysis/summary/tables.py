"""What a rank's summary has, whichever file it is in: tables with a type for each column, and what is no table."""

from __future__ import annotations

from types import UnionType
from typing import Any, TypeAlias, get_args, get_type_hints

import msgspec

from ..report import KernelRow, OutsideRow, PhaseRow, RangeRow
from ..trace import Provenance

SUMS: dict[str, type[Any]] = {
    "phases": PhaseRow,
    "ranges": RangeRow,
    "kernels": KernelRow,
    "outside": OutsideRow,
}
#: One phase of one measured step, or with an empty phase the whole step; times in ns. `communication_ns` is the
#: part of `kernel_ns` in collectives, where a rank also waits for the others.
STEPS = {
    "step": int,
    "phase": str,
    "kernel_ns": int,
    "communication_ns": int,
    "kernels": int,
    "span_ns": int,
    "cpu_ns": int,
}
#: One kernel that communicates, on its report's clock; `step` is -1 for none, `group` empty if unknown.
EXCHANGES = {
    "gpu": str,
    "path": tuple[str, ...],
    "phase": str,
    "collective": str,
    "group": str,
    "ranks": int,
    "step": int,
    "start_ns": int,
    "end_ns": int,
    "time_ns": int,
    "hidden_ns": int,
    "message_bytes": int,
    "bus_bytes": float,
}
#: The type of each column where a row has it. Of a row of kernels, `step_ns` is its time in each measured step.
COLUMNS: dict[str, dict[str, Any]] = {
    **{table: get_type_hints(row_type) for table, row_type in SUMS.items()},
    "steps": STEPS,
    "exchanges": EXCHANGES,
}
COLUMNS["kernels"]["step_ns"] = tuple[int, ...]
for of_table in COLUMNS.values():
    for column, hint in of_table.items():
        if isinstance(hint, UnionType):  # figures that may be means elsewhere are integers here
            of_table[column] = get_args(hint)[0]
#: The types of columns of texts, of which many are equal: a text, and a path.
TEXTS = (str, tuple[str, ...])
ALL = "all"
MEASURED = "measured"

#: Columns of one table by their names; None stands for what a row does not have.
Columns: TypeAlias = dict[str, list[Any]]
#: Tables by their names, and by whether they are of all work or of the steps that count.
Tables: TypeAlias = dict[tuple[str, str], Columns]


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """What is no table: the version, which rank it is of, and a report's fields other than tables."""

    version: int
    rank: int
    host: str
    provenance: Provenance
    reports: dict[str, dict[str, Any]]  # by ALL, and MEASURED where some work is in no step that counts

    @property
    def of(self) -> str:
        """Which rows figures per step come from."""
        if MEASURED in self.reports:
            return MEASURED
        return ALL

    @property
    def steps_of_a_rank(self) -> int:
        """How many steps each rank of the report measured."""
        return int(self.reports[ALL]["steps"]) // max(int(self.reports[ALL]["ranks"]), 1)
