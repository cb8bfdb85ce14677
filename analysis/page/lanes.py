"""The lanes below a page's strips: why each GPU is idle, and the ranges and calls of the threads that launch.

A lane is plain data: its `label` and `kind` (idle, ranges or calls), and columns by box: `start` and `end` in ns
from the first work, `name`, `detail` and `tone` (what colours it) as positions in `texts`, `ns` of it that the box
is about, and `count` of pieces; `mixed` boxes have pieces of other names too. `sums` is the time of each tone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..account.cells import Gpus
from ..account.cpu import CPU_CAUSES, outside_operators, program_thread
from ..account.gaps import gaps_between, within
from ..account.idle import CAUSES, Pieces, pieces_of
from ..account.intervals import Intervals, cut_at
from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..summary.selection import naming_of
from ..support.layers import Layers
from ..support.small_numbers import distinct, grouped_rows, summed
from ..support.text import fit
from ..trace import Bools, Int32s, Int64s
from ..views.rows import label
from ..vocabulary import PHASES
from ..vocabulary.calls import CALL_KINDS, plain_name
from .icicle import LONGEST_KERNEL, LONGEST_RANGE

MAX_BOXES, MAX_THREADS = 1_000, 2
#: Of the strip's width: boxes of one kind are joined over a shorter gap.
SMALLEST_GAP = 1 / 4_000
NO_KIND = "another call"


@dataclass(frozen=True, slots=True)
class Shown:
    """The work that a strip shows, as positions in all work, and from when to when its lanes reach, ns."""

    attribution: Attribution  # of all work
    rows: Int64s
    first_ns: int  # the begin of the first work, where the strip's time is 0
    from_ns: int
    until_ns: int


def lanes(shown: Shown, above: int) -> list[dict[str, Any]]:
    """Return the lanes of GPUs, then those of threads; `above` is how many ranges contain everything shown."""
    if not len(shown.rows):
        return []
    if shown.attribution.trace.provenance.unit_of_work == "CPU":
        return list(_outside_operators(shown))
    return [*_of_gpus(shown), *(lane for thread in _threads(shown) for lane in _of_thread(shown, thread, above))]


def _of_gpus(shown: Shown) -> Iterator[dict[str, Any]]:
    """Yield the gaps of each GPU by cause, from the first work to the last."""
    work, gpus = shown.attribution.trace.work, Gpus(shown.attribution.trace)
    strip = Intervals(np.array([shown.first_ns], np.int64), np.array([shown.until_ns], np.int64))
    for gpu in distinct(gpus.of_work[shown.rows]).tolist():
        rows = np.flatnonzero(gpus.of_work == gpu)
        gaps = within(gaps_between(work, rows, gpu), strip)
        gaps = gaps.take((gaps.start_ns >= shown.first_ns) & (gaps.end_ns <= shown.until_ns))
        pieces = Pieces.joined([*pieces_of(shown.attribution, gaps, gpus.of_work)]) if len(gaps) else None
        if pieces is None:
            continue
        pieces = pieces.take(np.argsort(pieces.start_ns, kind="stable"))
        causes = [CAUSES[cause] for cause in pieces.cause.tolist()]
        texts = [(cause, where, cause) for cause, where in zip(causes, _where(shown, pieces), strict=True)]
        times = pieces.start_ns, pieces.end_ns
        yield _lane(shown, f"{gpus.names[gpu]} idle", "idle", times, pieces.cause.astype(np.int64), texts)


def _where(shown: Shown, pieces: Pieces) -> Iterator[str]:
    """Yield in which range, function and line the CPU was during each piece, and after which call that waited."""
    trace, paths = shown.attribution.trace, Paths(shown.attribution)
    naming, functions = naming_of(trace), ("", *trace.frame_names)
    calls = trace.calls
    called = np.append(calls.of_launch.astype(np.int64), -1)[pieces.exposed_by] if calls else pieces.exposed_by
    place = paths.names_of_node[pieces.node].tolist(), (pieces.function + 1).tolist()
    lines = _lines(shown, pieces.line)
    for path, function, line, call in zip(*place, lines, called.tolist(), strict=True):
        parts = [label(naming(paths.names[path])), functions[function], f"at {line}" if line else ""]
        parts.append(f"after {plain_name(calls.names, call)}" if calls and call >= 0 else "")
        yield fit(", ".join(filter(None, parts)), LONGEST_KERNEL)


def _lines(shown: Shown, source: Int32s) -> list[str]:
    """Return where the program was in each piece, "" where that is unknown."""
    lines = shown.attribution.lines
    called = [one.lines[0].called for one in lines.sources] if lines else []
    return [called[number] if number >= 0 else "" for number in source.tolist()]


def _outside_operators(shown: Shown) -> Iterator[dict[str, Any]]:
    """Yield the boxes of the program on a CPU while it runs no operator."""
    attribution, work = shown.attribution, shown.attribution.trace.work
    process = int(work.process[shown.rows[0]])
    of_process = (
        attribution.trace.process_of_thread()[attribution.ranges.thread[attribution.steps.range]] == process
    )
    strip = Intervals(np.array([shown.first_ns], np.int64), np.array([shown.until_ns], np.int64))
    thread = program_thread(attribution, process, attribution.steps.range[of_process].astype(np.int64))
    pieces = outside_operators(attribution, Paths(attribution), thread, strip)
    if not len(pieces):
        return
    paths, naming = Paths(attribution), naming_of(attribution.trace)
    where = [paths.names[number] for number in paths.names_of_node[pieces.node].tolist()]
    causes = [CPU_CAUSES[cause] for cause in pieces.cause.tolist()]
    texts = []
    for cause, path, line in zip(causes, where, _lines(shown, pieces.line), strict=True):
        place = label(naming(path)) + (f", at {line}" if line else "")
        texts.append((cause, fit(place, LONGEST_KERNEL), cause))
    times = pieces.start_ns, pieces.end_ns
    yield _lane(shown, "outside of operators", "idle", times, pieces.cause.astype(np.int64), texts)


def _threads(shown: Shown) -> list[int]:
    """Return the threads that launched most of the work, in the order of their first launch."""
    trace = shown.attribution.trace
    calls = trace.work.launch[shown.rows]
    thread = trace.launches.thread[calls[calls >= 0]]
    if not len(thread) or not trace.launch_times_known:
        return []
    most = np.argsort(-np.bincount(thread), kind="stable")[:MAX_THREADS]
    return sorted((int(one) for one in most if (thread == one).any()), key=thread.tolist().index)


def _of_thread(shown: Shown, thread: int, above: int) -> Iterator[dict[str, Any]]:
    """Yield a thread's outer ranges, its innermost ones where these are others, and its calls."""
    trace = shown.attribution.trace
    named = trace.threads[thread].name or f"thread {trace.threads[thread].thread_id}"
    yield from _ranges(shown, thread, fit(named, LONGEST_RANGE), above)
    calls = trace.launches
    near = (calls.thread == thread) & (calls.end_ns > shown.from_ns) & (calls.start_ns < shown.until_ns)
    rows = np.flatnonzero(near & (calls.end_ns > calls.start_ns))
    if trace.calls is None or not len(rows):
        return
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    kind, name = trace.calls.kinds[rows].astype(np.int64), trace.calls.of_launch[rows].tolist()
    names = {number: fit(plain_name(trace.calls.names, number), LONGEST_RANGE) for number in set(name)}
    kinds = [CALL_KINDS[number] or NO_KIND for number in kind.tolist()]
    texts = [(names[number], of, of) for number, of in zip(name, kinds, strict=True)]
    times = calls.start_ns[rows], calls.end_ns[rows]
    yield _lane(shown, f"{fit(named, LONGEST_RANGE)} calls", "calls", times, kind, texts)


def _ranges(shown: Shown, thread: int, named: str, above: int) -> Iterator[dict[str, Any]]:
    """Yield the thread's ranges directly below those that contain everything, and its innermost ones."""
    attribution, ranges = shown.attribution, shown.attribution.ranges
    mine = (ranges.thread == thread) & (ranges.end_ns > shown.from_ns) & (ranges.start_ns < shown.until_ns)
    rows = np.flatnonzero(mine & (ranges.end_ns > ranges.start_ns) & (attribution.home >= 0))
    if not len(rows):
        return
    bounds = ranges.start_ns[rows], ranges.end_ns[rows]
    begin, end = (np.array([ns], np.int64) for ns in (shown.from_ns, shown.until_ns))
    _, start, stop = cut_at(np.unique(np.concatenate(bounds)), begin, end)
    place = Layers(*bounds).innermost(start)
    start, stop, node = start[place >= 0], stop[place >= 0], attribution.home[rows[place[place >= 0]]]
    paths, naming = Paths(attribution), naming_of(attribution.trace, every_index=True)
    number = paths.names_of_node[node]
    phase = [PHASES[one] for one in attribution.node_phase[node].tolist()]
    full = {one: naming(paths.names[one]) for one in set(number.tolist())}
    depths = [above + 1, max(len(path) for path in full.values())]
    for depth, what in zip(depths, ("ranges", "inner ranges"), strict=True):
        if what == "inner ranges" and depth <= above + 1:
            return
        cut = {one: path[:depth] for one, path in full.items()}
        keys = {path: key for key, path in enumerate(dict.fromkeys(cut.values()))}
        key = np.array([keys[cut[one]] for one in number.tolist()], np.int64)
        shown_as = {
            path: (fit(label(path[-1:]), LONGEST_RANGE), fit(label(path), LONGEST_KERNEL)) for path in keys
        }
        texts = [(*shown_as[cut[one]], of) for one, of in zip(number.tolist(), phase, strict=True)]
        yield _lane(shown, f"{named} {what}", "ranges", (start, stop), key, texts)


def _lane(
    shown: Shown,
    title: str,
    kind: str,
    times: tuple[Int64s, Int64s],
    key: Int64s,
    texts: Sequence[tuple[str, str, str]],
) -> dict[str, Any]:
    """Join pieces, in order of time, to boxes; each has the texts of its longest piece of the key with most."""
    start, end = times
    begins = _begins(start - shown.from_ns, end - shown.from_ns, key, shown.until_ns - shown.from_ns)
    first, box = np.flatnonzero(begins), np.cumsum(begins) - 1
    (boxes, keys), cell = grouped_rows(box, key)
    of_cell = summed(cell, end - start, len(boxes))
    most = np.lexsort((-of_cell, boxes))[np.flatnonzero(np.append(True, boxes[1:] != boxes[:-1]))]
    chosen = np.flatnonzero(key == keys[most][box])
    order = chosen[np.lexsort(((start - end)[chosen], box[chosen]))]
    longest = order[np.append(True, box[order][1:] != box[order][:-1])]
    numbers: dict[str, int] = {}
    columns = [
        [numbers.setdefault(text, len(numbers)) for text in column]
        for column in zip(*(texts[row] for row in longest.tolist()), strict=True)
    ]
    sums: dict[str, int] = {}
    for (_, _, tone), duration in zip(texts, (end - start).tolist(), strict=True):
        sums[tone] = sums.get(tone, 0) + duration
    return {
        "label": title,
        "kind": kind,
        "start": (start[first] - shown.first_ns).tolist(),
        "end": (np.maximum.reduceat(end, first) - shown.first_ns).tolist(),
        "name": columns[0],
        "detail": columns[1],
        "tone": columns[2],
        "mixed": (np.bincount(boxes) > 1).tolist(),
        "ns": summed(box, end - start, len(first)).tolist(),
        "count": np.bincount(box).tolist(),
        "texts": list(numbers),
        "sums": sorted(sums.items(), key=lambda item: -item[1]),
    }


def _begins(start: Int64s, end: Int64s, key: Int64s, width: int) -> Bools:
    """Mark the pieces at which boxes begin: of one key without a gap, else also of one small part of the width."""
    begins = np.ones(len(start), np.bool_)
    reach = np.maximum.accumulate(end)
    begins[1:] = (key[1:] != key[:-1]) | (start[1:] - reach[:-1] > width * SMALLEST_GAP)
    if begins.sum() <= MAX_BOXES:
        return begins
    part = np.maximum(start, 0) * MAX_BOXES // max(width, 1)
    is_long = end - start > width // MAX_BOXES
    begins[1:] = (part[1:] != part[:-1]) | is_long[1:] | is_long[:-1]
    if begins.sum() > 3 * MAX_BOXES:  # many long ones that overlap
        begins[1:] = part[1:] != part[:-1]
    return begins
