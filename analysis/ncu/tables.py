"""ncu's values as columns of the ranking: a row for each kernel in each range, with its launches on both sides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as File

from ..document import Column, Detail, Document, Kind, Row, Table, with_columns
from ..kernel_names.short import distinct_short_names
from ..report import Path
from ..views.rows import common_length, label
from ..vocabulary import PHASES
from .counters import Launch
from .joining import Joined, Twin
from .wanted import Kernels

# What people see of a file, by the metric's name (`--page raw`, or `--metrics`) and its label (the default page).
SHOWN: Mapping[str, tuple[str, ...]] = {
    "ncu time": ("gpu__time_duration.sum", "Duration"),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
    "SM": (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput", "SM [%]",
    ),
    "DRAM": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput",
    ),
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
}  # fmt: skip
_TIME, *_REST = SHOWN
# Warps that wait for a reason, at each cycle in which one issues (section WarpStateStats).
_STALL = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.(?:ratio|pct)")
_NO_STALL = {"selected"}
_RATES = re.compile(r"%|.*/.*|")
CAPTION = (
    "launches: in the report; in ncu: in its file. Times are of one launch, the mean; ncu's is under its replay, "
    "which flushes caches. Percentages are means over the launches, weighted by ncu's time. "
    "main stall: what warps waited for most, with its share of the warps' cycles."
)
Key = tuple[Path, str, str]  # ranges, phase, kernel


def document(kernels: Kernels, joined: Joined, file: File, detail: Detail) -> Document:
    """Show the wanted kernels with their counters, those with the most kernel time in the report first."""
    source = kernels.attribution.trace.provenance
    groups = _groups(kernels, joined.twins)
    shown = sorted(groups, key=lambda key: (-_total_ns(kernels, groups[key]), key))[: detail.top]
    metrics = list(dict.fromkeys(name for one in _launches(joined.twins) for name in one.metrics))
    names = dict.fromkeys(kernel for *_, kernel in shown)
    short = dict(zip(names, names if detail.full_names else distinct_short_names(list(names)), strict=True))
    common = 0 if detail.whole else common_length(path for path, *_ in shown)
    rows = tuple(
        Row((
            label(key[0], common), key[1], short[key[2]], *_counts(kernels, groups[key]),
            *_values(list(_launches(groups[key])), metrics, whole=detail.whole),
        ))
        for key in shown
    )  # fmt: skip
    table = Table("counters", _title(shown, common), _columns(joined, metrics, detail), rows, CAPTION)
    heading = " · ".join(
        filter(None, [source.file, " + ".join(source.gpus[:2]), source.tool, f"counters: {file.name}"])
    )
    more = (
        [f"{len(groups) - len(shown)} more rows: --top {len(groups)} shows them."]
        if len(groups) > len(shown)
        else []
    )
    table = table if detail.whole else _for_people(table)
    return Document(heading, (table,), notes=(*joined.notes, *more, *_agreement(kernels, joined)))


def _agreement(kernels: Kernels, joined: Joined) -> list[str]:
    """Report how many launches are on both sides."""
    ours, theirs = int(kernels.wanted.sum()), sum(joined.profiled.values())
    if ours == theirs and not joined.notes:
        return [f"The file has the report's {ours:,} launches, all joined."]
    return [f"{ours:,} launches in the report, {theirs:,} of these kernels in ncu's file."]


def _groups(kernels: Kernels, twins: Iterable[Twin]) -> dict[Key, list[Twin]]:
    groups: dict[Key, list[Twin]] = defaultdict(list)
    phase = kernels.attribution.phase
    for twin in twins:
        groups[twin.path, PHASES[phase[twin.row]], kernels.name(twin.row)].append(twin)
    return groups


def _launches(twins: Iterable[Twin]) -> Iterable[Launch]:
    return (launch for twin in twins for launch in twin.launches)


def _total_ns(kernels: Kernels, twins: Sequence[Twin]) -> int:
    duration = kernels.attribution.trace.work.duration_ns
    return sum(int(duration[twin.row]) for twin in twins)


def _counts(kernels: Kernels, twins: Sequence[Twin]) -> tuple[int, int, float]:
    return len(twins), sum(1 for _ in _launches(twins)), _total_ns(kernels, twins) / len(twins)


def _columns(joined: Joined, metrics: Sequence[str], detail: Detail) -> tuple[Column, ...]:
    units = {name: unit for one in _launches(joined.twins) for name, unit in one.units.items()}
    about = (
        Column("range", "range", "name"), Column("phase", "phase"), Column("kernel", "kernel", "name"),
        Column("launches", "launches", "count"), Column("profiled", "in ncu", "count"),
        Column("mean_ns", "time", "ns"),
    )  # fmt: skip
    if detail.whole:
        return (*about, *(Column(name, f"{name} {units[name]}".strip(), _kind(units[name])) for name in metrics))
    kinds: dict[str, Kind] = {_TIME: "ns", "registers": "count"}
    known = (Column(_key(name), name, kinds.get(name, "share")) for name in SHOWN)
    return (*about, *known, Column("stall", "main stall"))


def _kind(unit: str) -> Kind:
    return "ns" if unit == "ns" else "bytes" if unit == "byte" else "bytes/s" if unit == "byte/s" else "ratio"


def _key(name: str) -> str:
    return name.replace(" ", "_").lower()


def _values(launches: Sequence[Launch], metrics: Sequence[str], *, whole: bool) -> list[float | str | None]:
    """Return the values of a row: of every metric, or of those that people see."""
    if whole:
        return [_mean(launches, name) for name in metrics]
    found = {name: _first(launches, metrics_of) for name, metrics_of in SHOWN.items()}
    shares = [(value / 100 if value is not None else None) for name, value in found.items() if name in _REST[:-1]]
    return [found[_TIME], *shares, found["registers"], _stall(launches, metrics)]


def _first(launches: Sequence[Launch], names: Iterable[str]) -> float | None:
    return next((mean for name in names if (mean := _mean(launches, name)) is not None), None)


def _mean(launches: Iterable[Launch], name: str) -> float | None:
    """Return the mean of a metric over launches; of a rate weighted by ncu's time, where the file has it."""
    having = [one for one in launches if name in one.metrics]
    if not having:
        return None
    times = [next((one.metrics[time] for time in SHOWN[_TIME] if time in one.metrics), 0.0) for one in having]
    weighted = _RATES.fullmatch(having[0].units[name]) and all(times)
    weights = times if weighted else [1.0] * len(having)
    return sum(one.metrics[name] * weight for one, weight in zip(having, weights, strict=True)) / sum(weights)


def _stall(launches: Sequence[Launch], metrics: Iterable[str]) -> str | None:
    found = {stall[1]: _mean(launches, name) or 0.0 for name in metrics if (stall := _STALL.fullmatch(name))}
    total = sum(found.values())
    waits = {reason: value for reason, value in found.items() if reason not in _NO_STALL}
    if not waits or not total:
        return None
    most = max(waits, key=lambda reason: waits[reason])
    return f"{most.replace('_', ' ')} {waits[most] / total:.0%}"


def _title(shown: Sequence[Key], common: int) -> str:
    inside = " > ".join(shown[0][0][:common]) if shown and common else ""
    phases = {phase for _, phase, _ in shown}
    of = f" of {phases.pop()}" if len(phases) == 1 else ""
    return f"Counters of kernels{of}{f' in {inside}' if inside else ''}"


def _for_people(table: Table) -> Table:
    """Put each range above its kernels, and leave out the columns that say nothing here.

    These are those of metrics that no row has, of one phase, and of the file's launches where all are in it.
    """
    columns = dict(zip((column.key for column in table.columns), _turned(table.rows), strict=True))
    idle = {key for key, values in columns.items() if not any(value is not None for value in values)}
    idle |= {"range"} | ({"phase"} if len(set(columns["phase"])) == 1 else set())
    idle |= {"profiled"} if columns["profiled"] == columns["launches"] else set()
    kept = [place for place, column in enumerate(table.columns) if column.key not in idle]
    kept = [2, *(place for place in kept if place != 2)]
    shown = with_columns(table, kept)
    rows: list[Row] = []
    for name in dict.fromkeys(columns["range"]):
        rows.append(Row((name, *[""] * (len(kept) - 1)), strong=True))
        pairs = zip(columns["range"], shown.rows, strict=True)
        rows += [replace(row, indent=1) for where, row in pairs if where == name]
    return replace(shown, rows=tuple(rows))


def _turned(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    return list(zip(*(row.values for row in rows), strict=True))
