"""What `python -m profiling.run --memory` says beside its snapshot: peaks by phase, and what layers hold."""

from collections.abc import Mapping

import pandas as pd

from profiling import table_formats
from profiling.memory import LayerMemory, layer_memory, phase_peaks
from profiling.tables import Column, Table, significant
from profiling.workload import Workload

MIB = 1 << 20
MEBIBYTES = significant(4, MIB)


def text(workload: Workload) -> str:
    """Run two more steps, and return their memory as tables for the screen."""
    tables = [_of_phases(phase_peaks(workload))]
    about = []
    if "backward" in workload.settings.phases:
        tables.append(_of_layers(layer_memory(workload)))
    if workload.settings.compile:
        about = ["Layers are those of the model when it runs eagerly; what it keeps compiled is in its peaks."]
    return table_formats.as_screen(tables, about)


def _of_phases(peaks: Mapping[str, int]) -> Table:
    lines = pd.DataFrame({"phase": list(peaks), "peak_bytes": list(peaks.values())})
    columns = (Column("phase", ("phase",), str), Column("peak MiB", ("peak_bytes",), MEBIBYTES))
    return Table("Most that tensors held in each phase of one step (n = 1)", lines, columns)


def _of_layers(layers: Mapping[str, LayerMemory]) -> Table:
    """Return a line for each run of layers that hold the same."""
    lines = pd.DataFrame([{"name": name, **vars(layer)} for name, layer in layers.items()])
    held = lines[["kept_bytes", "gradient_bytes"]]
    run = (held != held.shift()).any(axis="columns").cumsum()
    alike = lines.groupby(run, sort=False).agg(
        first=("name", "first"),
        last=("name", "last"),
        count=("name", "size"),
        kept_bytes=("kept_bytes", "first"),
        gradient_bytes=("gradient_bytes", "first"),
    )
    columns = (
        Column("part", ("first", "last", "count"), _names),
        Column("kept for backward MiB", ("kept_bytes",), MEBIBYTES),
        Column("gradients MiB", ("gradient_bytes",), MEBIBYTES),
    )
    return Table("Memory of each layer in one step (n = 1)", alike, columns)


def _names(first: str, last: str, count: int) -> str:
    return first if count == 1 else f"{first} to {last.rpartition(' ')[2]}, each"
