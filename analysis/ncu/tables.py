"""ncu's values as columns of the ranking: a row for each kernel in each range, with its launches on both sides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as File

from ..document import Column, Detail, Document, Kind, Row, Table, headed, with_columns
from ..kernel_names.short import names_by_kernel
from ..report import Path
from ..summary.selection import naming_for
from ..support.units import counted
from ..views.rows import common_length, label
from ..vocabulary import PHASES
from .counters import Launch
from .joining import Joined, Twin
from .wanted import Kernels

# What people see of a file, by the metric's name (`--page raw`, or `--metrics`) and its label (the default page).
SHOWN: Mapping[str, tuple[str, ...]] = {
    "ncu time": ("gpu__time_duration.sum", "Duration"),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
    "SM": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput", "SM [%]"),
    "DRAM": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput",
    ),
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
}
TIME, SHARES = "ncu time", ("occupancy", "SM", "DRAM")
KINDS: Mapping[str, Kind] = {"ns": "ns", "byte": "bytes", "byte/s": "bytes/s"}
# Warps that wait for a reason, at each cycle in which one issues (section WarpStateStats).
_STALL = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.(?:ratio|pct)")
NO_STALL = ("selected",)
_RATES = re.compile(r"%|.*/.*|")
CAPTION = (
    "launches: in the report; in ncu: in its file. Times are of one launch, the mean; ncu's is under its replay, "
    "which flushes caches. Percentages are means over the launches, weighted by ncu's time. "
    "main stall: what warps waited for most, with its share of the warps' cycles."
)
Key = tuple[Path, str, str]  # ranges, phase, kernel


def document(kernels: Kernels, joined: Joined, file: File, detail: Detail) -> Document:
    """Show the wanted kernels with their counters, those with the most kernel time in the report first.

    People see the metrics of SHOWN and the main stall; machine formats have every metric of the file.
    """
    attribution = kernels.attribution
    duration, source = attribution.trace.work.duration_ns, attribution.trace.provenance
    naming = naming_for(detail, attribution.trace)
    groups: dict[Key, list[Twin]] = defaultdict(list)
    total_ns: dict[Key, int] = defaultdict(int)
    for twin in joined.twins:
        key = twin.path, PHASES[attribution.phase[twin.row]], kernels.name(twin.row)
        groups[key].append(twin)
        total_ns[key] += int(duration[twin.row])
    keys = sorted(groups, key=lambda key: (-total_ns[key], key))[: detail.top]
    units = {
        name: unit for twin in joined.twins for launch in twin.launches for name, unit in launch.units.items()
    }
    short = names_by_kernel((kernel for *_, kernel in keys), detail.full_names)
    common = 0 if detail.whole else common_length(path for path, *_ in keys)
    rows = []
    for path, phase, kernel in keys:
        twins = groups[path, phase, kernel]
        launches = [launch for twin in twins for launch in twin.launches]
        mean_ns = total_ns[path, phase, kernel] / len(twins)
        counts = len(twins), len(launches), mean_ns
        values = [_mean(launches, (name,)) for name in units] if detail.whole else _shown(launches, units)
        rows.append(Row((label(naming(path), common), phase, short[kernel], *counts, *values)))
    inside = label(naming(keys[0][0][:common])) if keys and common else ""
    phases = {phase for _, phase, _ in keys}
    of_phase = f" of {phases.pop()}" if len(phases) == 1 else ""
    title = f"Counters of kernels{of_phase}{f' in {inside}' if inside else ''}"
    columns = headed("range", "phase", "kernel", "launches", profiled="in ncu", mean_ns="time")
    if detail.whole:
        metrics = ((name, f"{name} {unit}".strip(), KINDS.get(unit, "ratio")) for name, unit in units.items())
    else:
        kinds: dict[str, Kind] = {TIME: "ns", "registers": "count"}
        metrics = ((name.replace(" ", "_").lower(), name, kinds.get(name, "share")) for name in SHOWN)
    columns += (*(Column(*metric) for metric in metrics), *(() if detail.whole else headed(stall="main stall")))
    table = Table("counters", title, columns, tuple(rows), CAPTION)
    notes = list(joined.notes)
    if len(groups) > len(keys):
        notes.append(f"{len(groups) - len(keys)} more rows: --top {len(groups)} shows them.")
    requested, profiled = int(kernels.requested.sum()), joined.profiled
    asked = counted(requested, "launch", "launches")
    if requested == profiled and not joined.notes:
        notes.append(f"The file has the report's {asked}, all joined.")
    else:
        notes.append(f"{asked} in the report, {profiled:,} of these kernels in ncu's file.")
    heading = [source.file, " + ".join(source.gpus[:2]), source.tool, f"counters: {file.name}"]
    table = table if detail.whole else _for_people(table)
    return Document(" · ".join(filter(None, heading)), (table,), notes=tuple(notes))


def _shown(launches: Sequence[Launch], metrics: Iterable[str]) -> list[float | str | None]:
    """Return the values that people see: of SHOWN, and what warps waited for most."""
    means = {name: _mean(launches, metrics_of) for name, metrics_of in SHOWN.items()}
    shares = {name: mean / 100 for name, mean in means.items() if mean is not None and name in SHARES}
    cycles = {match[1]: _mean(launches, (name,)) or 0.0 for name in metrics if (match := _STALL.fullmatch(name))}
    waits = {reason: mean for reason, mean in cycles.items() if reason not in NO_STALL}
    stall = None
    if waits and (total := sum(cycles.values())):
        reason = max(waits, key=waits.__getitem__)
        stall = f"{reason.replace('_', ' ')} {waits[reason] / total:.0%}"
    return [*({**means, **shares}.values()), stall]


def _mean(launches: Sequence[Launch], names: Iterable[str]) -> float | None:
    """Return the mean of the first metric that is there; of a rate, weighted by ncu's time if the file has it."""
    for name in names:
        if having := [launch for launch in launches if name in launch.metrics]:
            times = [
                next((launch.metrics[time] for time in SHOWN[TIME] if time in launch.metrics), 0.0)
                for launch in having
            ]
            weighted = _RATES.fullmatch(having[0].units[name]) and all(times)
            weights = times if weighted else [1.0] * len(having)
            total = sum(launch.metrics[name] * weight for launch, weight in zip(having, weights, strict=True))
            return total / sum(weights)
    return None


def _for_people(table: Table) -> Table:
    """Put each range above its kernels, and leave out the columns that say nothing here.

    These are those of metrics that no row has, of one phase, and of the file's launches where all are in it.
    """
    values = zip(*(row.values for row in table.rows), strict=True)
    columns = dict(zip((column.key for column in table.columns), values, strict=True))
    idle = {key for key, cells in columns.items() if all(cell is None for cell in cells)} | {"range"}
    idle |= {"phase"} if len(set(columns["phase"])) == 1 else set()
    idle |= {"profiled"} if columns["profiled"] == columns["launches"] else set()
    places = [place for place, column in enumerate(table.columns) if column.key not in idle]
    places.sort(key=lambda place: table.columns[place].key != "kernel")
    narrow = with_columns(table, places)
    rows: list[Row] = []
    for range_name in dict.fromkeys(columns["range"]):
        rows.append(Row((range_name, *[""] * (len(places) - 1)), strong=True))
        pairs = zip(columns["range"], narrow.rows, strict=True)
        rows += [replace(row, indent=1) for name, row in pairs if name == range_name]
    return replace(narrow, rows=tuple(rows))
