"""What the reports of `compiled.py` say: shares of kernel time, GEMMs by projection, launches of replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvtx_kernels.analysis.attribution import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report import KernelRow, Report
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.vocabulary import collapsed, fused_parts, spans_layers

Rows = list[Sequence[object]]
PHASES = ("forward", "backward")
#: How far a path's ranges reach that are no module's: mode, step, phase.
FRAME = 3


def answer(path: Path) -> Iterator[tuple[str, Rows]]:
    """Yield the tables of one case's report."""
    report = summarize(attribute(read(path)))
    modes = [mode for mode in ("eager", "compiled", "graphed") if _rows(report, mode)]
    yield "share of kernel time, %", shares(report, modes)
    yield "GEMM launches per step", gemms(report, modes)
    yield "kernel time by projection, us per step", projections(report, modes)
    if "graphed" in modes:
        yield "launches by module, graphed against compiled", replays(report)


def identical(digests: Sequence[Sequence[str]]) -> str:
    """Return whether processes computed the same, given the digests of each one's repeated steps."""
    if any(len(set(own)) > 1 for own in digests):
        return "not comparable: a step repeated in one process differs, too"
    return "the same" if len({own[0] for own in digests}) == 1 else "NOT the same"


def _rows(report: Report, mode: str, phase: str = "") -> list[KernelRow]:
    """Return the kernels of a mode's measured steps, in one phase or all."""
    return [
        row
        for row in report.kernels
        if row.kind == "kernel" and row.path[:2] == (mode, "step") and phase in ("", row.phase)
    ]


def _part(row: KernelRow) -> tuple[str, ...]:
    """Return a path below its phase."""
    after = [number for number, name in enumerate(row.path) if name in PHASES]
    return row.path[after[-1] + 1 :] if after else row.path[FRAME:]


def shares(report: Report, modes: Sequence[str]) -> Rows:
    """Return per mode and phase: ms per step, and shares in ranges, in one alone, in fusions, across layers."""
    table: Rows = [("mode", "phase", "ms", "in a module or fusion", "in one alone", "fused", "across layers")]
    for mode in modes:
        for phase in PHASES:
            rows = _rows(report, mode, phase)
            whole = sum(row.total_ns for row in rows) or 1
            parts = [(row.total_ns, fused_parts(_part(row)[-1])) for row in rows if _part(row)]
            inside, fused = sum(ns for ns, _ in parts), sum(ns for ns, of in parts if of)
            across = sum(ns for ns, of in parts if spans_layers(of))
            percents = [100 * ns / whole for ns in (inside, inside - fused, fused, across)]
            table.append((mode, phase, f"{whole / _steps(report) / 1e6:.3f}", *percents))
    return table


def _steps(report: Report) -> int:
    """Return how many steps each mode measured."""
    modes = {row.path[0] for row in report.ranges if row.path[1:] == ("step",)}
    return max(report.steps // max(len(modes), 1), 1)


def gemms(report: Report, modes: Sequence[str]) -> Rows:
    """Return GEMM launches per step, forward and backward, by mode."""
    table: Rows = [("mode", *PHASES)]
    for mode in modes:
        counts = [sum(row.count for row in _rows(report, mode, phase) if row.gemm_launch) for phase in PHASES]
        table.append((mode, *(f"{count / _steps(report):g}" for count in counts)))
    return table


def projections(report: Report, modes: Sequence[str]) -> Rows:
    """Return the GEMM time of each part by mode, those first that take longest; the last column is a ratio."""
    times = {mode: _gemm_times(report, mode) for mode in modes}
    parts = sorted(times[modes[0]], key=lambda part: -times[modes[0]][part])[:16]
    table: Rows = [("part", *modes, "compiled/eager")]
    for part in parts:
        spent = [times[mode][part] / _steps(report) / 1e3 for mode in modes]
        ratio = f"{spent[1] / spent[0]:.3f}" if len(spent) > 1 and spent[0] else ""
        table.append((" > ".join(part), *spent, ratio))
    return table


def _gemm_times(report: Report, mode: str) -> Counter[tuple[str, ...]]:
    times: Counter[tuple[str, ...]] = Counter()
    for row in _rows(report, mode):
        if row.gemm_launch:
            times[(row.phase, *map(collapsed, _part(row)))] += int(row.total_ns)
    return times


def replays(report: Report) -> Rows:
    """Compare launches by module of the graphed and the compiled run; copies into a graph's inputs aside."""
    counts = {}
    for mode in ("compiled", "graphed"):
        counts[mode] = Counter[tuple[str, ...]]()
        for row in _rows(report, mode):
            counts[mode][(row.phase, *_part(row))] += int(row.count)
    differing = [part for part in {**counts["compiled"], **counts["graphed"]} if len(part) > 1]
    differing = [part for part in differing if counts["compiled"][part] != counts["graphed"][part]]
    table: Rows = [("part", "compiled", "graphed")]
    table += [(" > ".join(part), counts["compiled"][part], counts["graphed"][part]) for part in differing[:20]]
    placed = len([part for part in counts["compiled"] if len(part) > 1])
    return [*table, (f"{len(differing)} of {placed} parts differ", "", "")]
