"""What the reports of `compiled.py` say: shares of kernel time, GEMMs by projection, launches of replays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.compare import changes as differences
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report import KernelRow, Report
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.vocabulary import collapsed, fused_parts, spans_layers

Rows = list[Sequence[object]]
Part = tuple[str, ...]
PHASES = ("forward", "backward")
MODES = ("eager", "compiled", "graphed", "autotuned")
#: How far a path's ranges reach that are no module's: mode, step, phase.
FRAME = 3
COMMUNICATION = "communication"
#: The head of the summary: shares are of the kernel time without communication.
PLACED = ("in module or fusion %", "in one alone %", "fused %", "across layers %")
SUMMARY = ("program", "mode", "phase", "ms", *PLACED, "GEMMs", "same kernel", "worst ratio")


@dataclass(frozen=True)
class Times:
    """The GEMM kernels of one part of a program, in one mode: which ones, how often, for how long per step."""

    kernels: frozenset[tuple[str, float]]
    ns: float


def load(path: Path) -> Report:
    """Return a report's sums."""
    return summarize(attribute(read(path)))


def modes_of(report: Report) -> list[str]:
    """Return the modes that a report has measured steps of."""
    return [mode for mode in MODES if _rows(report, mode)]


def summary(program: str, report: Report) -> Iterator[Sequence[object]]:
    """Yield a row of `SUMMARY` per mode and phase."""
    for mode in modes_of(report):
        for phase in PHASES:
            rows = _rows(report, mode, phase)
            ms = sum(row.total_ns for row in rows) / _steps(report, mode) / 1e6
            launches = sum(row.count for row in rows if row.gemm_launch) / _steps(report, mode)
            yield (
                program,
                mode,
                phase,
                f"{ms:.3f}",
                *_shares(rows),
                f"{launches:g}",
                *_worst(report, mode, phase),
            )


def _shares(rows: Sequence[KernelRow]) -> Iterator[float]:
    """Yield the shares of kernel time, %: in a module or fusion, in one alone, in fusions, across layers."""
    whole = sum(row.total_ns for row in rows) or 1
    parts = [(row.total_ns, fused_parts(_part(row)[-1])) for row in rows if _part(row)]
    inside, fused = sum(ns for ns, _ in parts), sum(ns for ns, of in parts if of)
    across = sum(ns for ns, of in parts if spans_layers(of))
    yield from (100 * ns / whole for ns in (inside, inside - fused, fused, across))


def _worst(report: Report, mode: str, phase: str) -> tuple[str, str]:
    """Return how many projections have eager's kernels, and the ratio to eager's time that is furthest from 1."""
    eager, other = (_gemms(report, one, phase) for one in ("eager", mode))
    same = [part for part in eager if part in other and eager[part].kernels == other[part].kernels]
    ratios = [other[part].ns / eager[part].ns for part in same if eager[part].ns]
    worst = f"{max(ratios, key=lambda ratio: abs(ratio - 1)):.3f}" if ratios else ""
    return (f"{len(same)} of {len(eager)}", worst) if mode != "eager" else ("", "")


def tables(report: Report) -> Iterator[tuple[str, Rows]]:
    """Yield the tables of one program's report: GEMMs by projection, launches of replays, what is in no part."""
    modes = modes_of(report)
    yield "GEMM kernel time by projection, us per step", projections(report, modes)
    if "graphed" in modes:
        yield "launches per step by module, graphed against compiled", replays(report)
    yield (
        "kernels across layers, us per step",
        _largest(report, lambda row: spans_layers(fused_parts(row.path[-1]))),
    )
    yield "kernels in no module or fusion, us per step", _largest(report, lambda row: not _part(row))


def planted(eager: Report, compiled: Report) -> Rows:
    """Return the first rows of the comparison by range of an eager program and a compiled, slowed one."""
    table: Rows = [("range", "ms longer")]
    found = differences.changes(differences.compare(eager, compiled), "range")
    return [*table, *((" > ".join(map(str, one.key)), one.delta_ns / 1e6) for one in found[:4])]


def _rows(report: Report, mode: str, phase: str = "") -> list[KernelRow]:
    """Return the kernels of a mode's measured steps, in one phase or all, without communication."""
    return [
        row
        for row in report.kernels
        if row.kind == "kernel"
        and row.category != COMMUNICATION
        and row.path[:2] == (mode, "step")
        and phase in ("", row.phase)
    ]


def _part(row: KernelRow) -> Part:
    """Return a path below its phase."""
    after = [number for number, name in enumerate(row.path) if name in PHASES]
    return row.path[after[-1] + 1 :] if after else row.path[FRAME:]


def _steps(report: Report, mode: str) -> float:
    """Return how many steps a mode measured."""
    return sum(row.instances or 0 for row in report.ranges if row.path == (mode, "step")) or 1


def _gemms(report: Report, mode: str, phase: str = "") -> dict[Part, Times]:
    """Return the GEMMs of each part, layers taken together, fusions left out."""
    found: defaultdict[Part, list[KernelRow]] = defaultdict(list)
    for row in _rows(report, mode, phase):
        part = _part(row)
        if row.gemm_launch and part and not fused_parts(part[-1]):
            found[(row.phase, *map(collapsed, part))].append(row)
    steps = _steps(report, mode)
    return {
        part: Times(_kernels(rows, steps), sum(row.total_ns for row in rows) / steps)
        for part, rows in found.items()
    }


def _kernels(rows: Sequence[KernelRow], steps: float) -> frozenset[tuple[str, float]]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.kernel] += int(row.count)
    return frozenset((kernel, count / steps) for kernel, count in counts.items())


def projections(report: Report, modes: Sequence[str]) -> Rows:
    """Return the GEMM time of each part by mode, the longest first, and whether each mode has eager's kernels."""
    times = {mode: _gemms(report, mode) for mode in modes}
    first, *others = modes
    table: Rows = [("part", *modes, *(f"{mode}/{first}" for mode in others))]
    for part in sorted(times[first], key=lambda part: -times[first][part].ns)[:16]:
        spent = [times[mode][part].ns / 1e3 if part in times[mode] else 0.0 for mode in modes]
        table.append((" > ".join(part), *spent, *(_ratio(times, part, first, mode) for mode in others)))
    return table


def _ratio(times: dict[str, dict[Part, Times]], part: Part, first: str, mode: str) -> str:
    one, other = times[first][part], times[mode].get(part)
    if other is None or not one.ns:
        return ""
    return f"{other.ns / one.ns:.3f}" + ("" if other.kernels == one.kernels else " (other kernel)")


def replays(report: Report) -> Rows:
    """Compare launches by module and kernel of the graphed and the compiled run.

    Before a replay, PyTorch copies what is no parameter (here tokens and labels) into the graph's own inputs: one
    launch outside the graph that the compiled run does not need. It is shown, for it is work that was done.
    """
    counts = {mode: _launches(report, mode) for mode in ("compiled", "graphed")}
    parts = dict.fromkeys((*counts["compiled"], *counts["graphed"]))
    differing = [part for part in parts if counts["compiled"][part] != counts["graphed"][part]]
    table: Rows = [("part", "compiled", "graphed", "kernels that differ")]
    for part in differing[:20]:
        more = counts["graphed"][part] - counts["compiled"][part]
        less = counts["compiled"][part] - counts["graphed"][part]
        names = ", ".join(f"{sign}{kernel[:90]}" for sign, of in (("+", more), ("-", less)) for kernel in of)
        table.append((" > ".join(part), *(f"{counts[mode][part].total():g}" for mode in counts), names))
    return [*table, (f"{len(differing)} of {len(parts)} parts differ", "", "", "")]


def _launches(report: Report, mode: str) -> defaultdict[Part, Counter[str]]:
    counts: defaultdict[Part, Counter[str]] = defaultdict(Counter)
    for row in _rows(report, mode):
        counts[(row.phase, *_part(row))][row.kernel] += int(row.count) / _steps(report, mode)  # type: ignore[assignment]
    return counts


def _largest(report: Report, wanted: object) -> Rows:
    """Return the wanted kernels of compiled modes that take longest, layers taken together."""
    spent: Counter[Part] = Counter()
    for mode in modes_of(report)[1:]:
        for row in _rows(report, mode):
            if wanted(row):  # type: ignore[operator]
                where = " > ".join(map(collapsed, _part(row)[-1:])) or "-"
                spent[mode, row.phase, where, row.kernel[:60]] += row.total_ns / _steps(report, mode)  # type: ignore[assignment]
    table: Rows = [("mode", "phase", "range", "kernel", "us")]
    return [*table, *((*key, ns / 1e3) for key, ns in spent.most_common(6))]
