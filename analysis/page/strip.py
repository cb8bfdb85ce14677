"""Time on a page: one step as a strip per stream, by phase and range, and what memory held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import step_numbers, step_of_nodes
from ..measures.memory import held_over_time, memory
from ..summary.selection import naming_of
from ..support.small_numbers import bounds, grouped, grouped_rows
from ..support.text import fit
from ..support.units import bytes_text
from ..trace import Bools, Int64s, Path
from ..views.rows import label
from ..vocabulary import OTHER, PHASES
from .icicle import LONGEST_KERNEL, common_path, path_texts
from .lanes import Shown, lanes

MAX_BOXES, MAX_STREAMS, MAX_MOMENTS, MAX_HOLDERS = 1_500, 16, 800, 6
# Of the strip's width: a shorter gap cannot be seen before it is zoomed into.
SMALLEST_GAP = 1 / 4_000


def strip(attribution: Attribution, *, include_warm_up: bool) -> dict[str, Any]:
    """Return the step whose GPU work takes the median time, or all that counts where there are no steps, as boxes.

    A box is work of one stream, phase and range without a gap in between: its stream, start and end in ns from the
    first work, path (a position in `paths`), phase, busy ns and pieces of work. Where there are too many boxes,
    those of inner ranges are joined, and then those between which the gaps are short.
    """
    work, naming = attribution.trace.work, naming_of(attribution.trace, every_index=True)
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node].astype(np.int64)
    number, steps = _median_step(step, work.start_ns, work.end_ns)
    told = step_numbers(attribution, include_warm_up=include_warm_up)
    warm_up = np.append(attribution.warm_up, False)[attribution.node]
    rows = np.flatnonzero(step == number if steps else include_warm_up | ~warm_up)
    streams, stream = grouped_rows(work.process[rows], work.device_id[rows], work.stream_id[rows])
    counts = np.bincount(stream)
    busiest = np.sort(np.argsort(-counts, kind="stable")[:MAX_STREAMS])
    position = np.full(len(counts), -1)
    position[busiest] = np.arange(len(busiest))
    stream = position[stream]
    order = np.lexsort((work.start_ns[rows], stream))
    order = order[stream[order] >= 0]
    rows, stream = rows[order], stream[order]
    on_cpu = attribution.trace.provenance.unit_of_work == "CPU"
    of_process = "process {} · " if len(np.unique(streams[0])) > 1 else ""
    paths = Paths(attribution)
    numbers = paths.of_node[attribution.node[rows]].tolist()
    every_path = [paths.paths[number] for number in numbers]
    first = int(work.start_ns[rows].min(initial=2**62)) if len(rows) else 0
    start, end = work.start_ns[rows] - first, work.end_ns[rows] - first
    phase = attribution.phase[rows].astype(np.int64)
    span = int(end.max(initial=0))
    begins, depth = _boxes(stream, start, end, phase, every_path, span)
    of_box = np.flatnonzero(begins)
    above = len(common_path(every_path)) if every_path else 0
    box_paths = [every_path[row][: max(depth, above)] for row in of_box.tolist()]
    distinct = {path: number for number, path in enumerate(dict.fromkeys(box_paths))}
    last = int(work.end_ns[rows].max(initial=first)) if len(rows) else first
    return {
        "lanes": lanes(_shown(attribution, rows, first, last), above),
        "step": int(told[number]) if steps else None,
        "steps": steps,
        "span_ns": span,
        "streams": [
            f"thread {stream_id}" if on_cpu else f"{of_process.format(process)}GPU {device} · stream {stream_id}"
            for process, device, stream_id in np.stack(streams, axis=1)[busiest].tolist()
        ],
        "left_out": len(counts) - len(busiest),
        "paths": [path_texts(naming(path)) for path in distinct],
        "above": above,
        "stream": stream[of_box].tolist(),
        "start": start[of_box].tolist(),
        "end": np.maximum.reduceat(end, of_box).tolist() if len(of_box) else [],
        "path": [distinct[path] for path in box_paths],
        "phase": [PHASES[number] if depth >= 0 else OTHER for number in phase[of_box].tolist()],
        "ns": np.add.reduceat(end - start, of_box).tolist() if len(of_box) else [],
        "count": np.diff(np.append(of_box, len(rows))).tolist(),
    }


def _shown(attribution: Attribution, rows: Int64s, first_ns: int, last_ns: int) -> Shown:
    """Return the lanes, which begin with the first launch, at most the strip's width before it."""
    trace = attribution.trace
    calls = trace.work.launch[rows]
    begun_ns = int(trace.launches.start_ns[calls[calls >= 0]].min(initial=first_ns))
    of_all = attribution.rows_of_all[rows]
    return Shown(attribution.of_all_work, of_all, first_ns, max(begun_ns, 2 * first_ns - last_ns), last_ns)


def _median_step(step: Int64s, start_ns: Int64s, end_ns: Int64s) -> tuple[int, int]:
    """Return the step whose time from first to last work is the median, and how many steps have work."""
    inside = step >= 0
    numbers, position = grouped(step[inside])
    first, last = bounds(position, start_ns[inside], end_ns[inside], len(numbers))
    if not len(numbers):
        return -1, 0
    return int(numbers[np.argsort(last - first, kind="stable")[len(numbers) // 2]]), len(numbers)


def _boxes(
    stream: Int64s, start: Int64s, end: Int64s, phase: Int64s, paths: Sequence[Path], span: int
) -> tuple[Bools, int]:
    """Mark the rows at which boxes begin, and return how deep their ranges are: -1 where phases are joined too.

    Rows are in the order of streams and time.
    """
    begins = np.ones(len(stream), np.bool_)
    if not len(stream):
        return begins, 0
    # Work of one stream can overlap: the gap is behind all that came before.
    ended = np.maximum.accumulate(end + stream * 2 * span) - stream * 2 * span
    gap = np.append(0, start[1:] - ended[:-1])
    other_stream = np.append(True, stream[1:] != stream[:-1])
    # How deep ranges are shown, and up to which gap their boxes are joined, the finest first.
    joinings = [(depth, span * SMALLEST_GAP) for depth in range(max(map(len, paths)), -1, -1)]
    joinings += [(0, span * SMALLEST_GAP * 4**power) for power in range(1, 6)]
    for depth, shortest_gap in (*joinings, (-1, span)):
        numbers: dict[object, int] = {}
        keys = (path[:depth] if depth >= 0 else () for path in paths)
        code = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
        code = code * len(PHASES) + (phase if depth >= 0 else 0)
        begins = other_stream | np.append(True, code[1:] != code[:-1]) | (gap > shortest_gap)
        if begins.sum() <= MAX_BOXES:
            break
    return begins, depth


def memory_curve(attribution: Attribution, *, include_warm_up: bool) -> dict[str, Any] | None:
    """Return the memory in use over time on the device with the highest peak, and the ranges that held the peak.

    None where the report has no allocations.
    """
    facts = memory(attribution, include_warm_up=include_warm_up)
    whole_run = [peak for peak in facts.peaks if not peak.phase] if facts else []
    if facts is None or not whole_run:
        return None
    naming = naming_of(attribution.trace, every_index=True)
    peak = max(whole_run, key=lambda peak: peak.held_bytes)
    at_ns, held = held_over_time(attribution)[peak.device]
    stretch = (at_ns - at_ns[0]) * MAX_MOMENTS // max(int(at_ns[-1] - at_ns[0]) + 1, 1)
    order = np.lexsort((-held, stretch))
    highest = np.sort(order[np.append(True, np.diff(stretch[order]) != 0)])
    holders = [holder for holder in facts.holders if holder.device == peak.device]
    return {
        "device": peak.device,
        "peak": bytes_text(peak.held_bytes),
        "peak_bytes": peak.held_bytes,
        "at_ns": (at_ns[highest] - at_ns[0]).tolist(),
        "held": held[highest].tolist(),
        "holders": [
            (
                fit(label(naming(holder.path)), LONGEST_KERNEL)
                if holder.path is not None
                else "before the recording",
                bytes_text(holder.held_bytes),
            )
            for holder in holders[:MAX_HOLDERS]
        ],
        "left_out": max(0, len(holders) - MAX_HOLDERS),
    }
