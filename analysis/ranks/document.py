"""Many ranks as tables: what they take, which step and range differ by rank, and who makes the others wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..trace import Int64s, Path
from ..views import headings
from ..views.rows import label, more
from ..vocabulary import PHASES
from .reduce import DEVIATIONS, LEAST_SHARE, SEPARATOR, Floats, Ranks, clearly_above

RANK, HOST = Column("rank", "rank", "name"), Column("host", "host", "name")
TIMES = headed(min_ns="min", median_ns="median", max_ns="max")
SPREAD = (*TIMES, Column("slowest", "slowest", "name"), HOST, *headed("outliers"))
CLEARLY = (
    f"Clearly: over {LEAST_SHARE:.0%} above the median of the ranks, and over {DEVIATIONS:.0f} deviations (1.4826 "
    "× the median absolute deviation)."
)
ABSENT = "Waiting is for the last of the ranks that are here: one that is not may have come later."
CLOCKS = "waiting: what a rank needed longer than the fastest; clocks of ranks are not compared."
#: Coming late counts only if it takes this share of a step.
LEAST_WAITING = 0.005


def ranks_document(ranks: Ranks, detail: Detail = SHORT) -> Document:
    """Show what the ranks take, and which are clearly slower than the others: in which step, range, collective."""
    tables = (
        _phases(ranks),
        _stragglers(ranks, detail),
        *(table(ranks, detail) for table in (_late, _collectives, _ranges, _steps)),
    )
    hosts = sorted({rank.host for rank in ranks.ranks if rank.host})
    step_counts = [rank.steps for rank in ranks.ranks]
    fewest, most = min(step_counts), max(step_counts)
    parts = (
        f"{len(ranks.ranks)} ranks",
        f"{len(hosts)} hosts" if hosts else "",
        " + ".join(ranks.gpus[:2]),
        f"{fewest} steps measured" if fewest == most else f"{fewest} to {most} steps measured",
    )
    notes = list(ranks.missing)
    if ranks.aligned is not None:
        by_reason: dict[str, list[str]] = {}
        for collective, reason in sorted(ranks.aligned.undecided):
            by_reason.setdefault(reason, []).append(collective)
        notes += [
            f"The waiting of {', '.join(dict.fromkeys(names))} is not decided: {reason}."
            for reason, names in by_reason.items()
        ]
        if (ranks.aligned.waiting_ns[ranks.some_absent] >= 0).any():
            notes.append(ABSENT)
    heading = " · ".join(filter(None, parts))
    return headings.document(
        ranks.provenance, heading, tuple(table for table in tables if table.rows), (), tuple(notes)
    )


def _spread(ranks: Ranks, values_ns: Floats) -> tuple[float, float, float, str, str, int]:
    """Return the least, median and most of a row by rank, the slowest rank and its host, and how many are slow."""
    slowest = ranks.ranks[int(np.nanargmax(values_ns))]
    least, middle, most = (float(figure(values_ns)) for figure in (np.nanmin, np.nanmedian, np.nanmax))
    return least, middle, most, slowest.name, slowest.host, int(clearly_above(values_ns).sum())


def _phases(ranks: Ranks) -> Table:
    names, kernel_ns = ranks.phases
    rows = [
        Row((name, *_spread(ranks, kernel_ns[number])))
        for number, name in sorted(enumerate(names), key=lambda pair: PHASES.index(pair[1]))
        if kernel_ns[number].any()
    ]
    rows.append(Row(("all", *_spread(ranks, kernel_ns.sum(0))), strong=True))
    title, columns = "Kernel time of a step by phase, over ranks, {unit}", (*headed("phase"), *SPREAD)
    return Table("phases", title, columns, tuple(rows), f"outliers: ranks clearly above. {CLEARLY}")


def _named(ranks: Ranks, detail: Detail, path: Path) -> str:
    """Return a range for people without what is around all that have kernels, such as `measure > step`."""
    return label(path) if detail.whole else label(ranks.naming(path), ranks.common_ranges)


def _ranges(ranks: Ranks, detail: Detail) -> Table:
    """Rank ranges by how far their slowest rank is above the median, in kernels of no range below."""
    keys, self_ns = ranks.ranges
    excess_ns = self_ns.max(1, initial=0) - np.median(self_ns, axis=1) if len(keys) else np.empty(0)
    order = [number for number in np.argsort(-excess_ns, kind="stable").tolist() if excess_ns[number] > 0]
    rows = [
        Row((_named(ranks, detail, keys[number][0]), *_spread(ranks, self_ns[number])))
        for number in order[: detail.top]
    ]
    title = "Ranges whose slowest rank is furthest above the median: kernels in no range below, {unit} per step"
    columns = (*headed("range"), *SPREAD)
    return Table("ranges", title, columns, tuple(rows), more(order, detail.top, "range").strip())


def _steps(ranks: Ranks, detail: Detail) -> Table:
    """Show each step's spans, and the rank whose kernels other than collectives take longest in it."""
    span_ns, compute_ns = ranks.span_ns, ranks.compute_ns
    order = np.flatnonzero((np.isfinite(span_ns) & np.isfinite(compute_ns)).any(1)).tolist()
    rows = []
    for step in order[: detail.top]:
        least, middle, most, *_ = _spread(ranks, span_ns[step])
        critical = ranks.ranks[int(np.nanargmax(compute_ns[step]))]
        excess_ns = float(np.nanmax(compute_ns[step]) - np.nanmedian(compute_ns[step]))
        rows.append(Row((str(step), least, middle, most, critical.name, critical.host, excess_ns)))
    title = "Steps: GPU span over ranks, and the rank that computes longest, {unit}"
    longest = Column("critical", "computes longest", "name")
    columns = (*headed("step"), *TIMES, longest, HOST, *headed(excess_ns="above median"))
    caption = "Computes: kernels other than collectives, in which a rank also waits. "
    return Table("steps", title, columns, tuple(rows), (caption + more(order, detail.top, "step")).strip())


def _stragglers(ranks: Ranks, detail: Detail) -> Table:
    """List the ranks that compute clearly longer than the others; if all of a host's do, the host is one row."""
    rows, (keys, self_ns) = [], ranks.ranges
    known = np.isfinite(ranks.compute_ns)
    if known.any(0).sum() > 2:
        steps = known.sum(0)
        compute_ns = np.where(known, ranks.compute_ns, 0).sum(0) / np.where(steps, steps, np.nan)
        median_ns, of_ranges_ns = float(np.nanmedian(compute_ns)), np.median(self_ns, axis=1)
        in_steps = clearly_above(ranks.compute_ns[known.any(1)])
        for places, name in _by_host(ranks, np.flatnonzero(clearly_above(compute_ns))):
            excess_ns = float(compute_ns[places].mean() - median_ns)
            slow_steps, host = float(in_steps[:, places].mean(1).sum()), ranks.ranks[places[0]].host
            range_name = ""
            if len(keys):
                longest = int((self_ns[:, places].mean(1) - of_ranges_ns).argmax())
                range_name = _named(ranks, detail, keys[longest][0])
            rows.append(Row((name, host, excess_ns, excess_ns / median_ns, slow_steps, range_name)))
    rows.sort(key=lambda row: -row.values[2])
    columns = (RANK, HOST, *headed(excess_ns="above median", share="%", steps="steps", range="most of it in"))
    title = "Ranks that compute clearly longer than the others, {unit} per step"
    return Table("stragglers", title, columns, tuple(rows), "% is of the median.")


def _by_host(ranks: Ranks, slow: Int64s) -> Iterator[tuple[Int64s, str]]:
    """Yield slow ranks with their names: together those of a host whose ranks are all slow, others alone."""
    hosts = np.array([rank.host for rank in ranks.ranks], object)
    for host in dict.fromkeys(hosts[slow].tolist()):
        of_host, slow_there = np.flatnonzero(hosts == host), slow[hosts[slow] == host]
        if host and len(of_host) == len(slow_there) > 1:
            yield slow_there, f"all {len(of_host)} of {host}"
        else:
            yield from ((np.array([place]), ranks.ranks[place].name) for place in slow_there.tolist())


def _late(ranks: Ranks, detail: Detail) -> Table:
    """List who came to collectives clearly later than the others, by range and collective."""
    late_ns, table = ranks.late_ns, ranks.exchanges
    least_ns = LEAST_WAITING * float(np.nanmedian(ranks.span_ns)) if np.isfinite(ranks.span_ns).any() else 0.0
    events = np.flatnonzero(late_ns > least_ns)
    texts = (table.texts("path", events), table.texts("collective", events))
    of_events = (table.columns["place"][events].tolist(), *texts, late_ns[events].tolist())
    sums: dict[tuple[int, str, str], list[float]] = {}
    for place, path, collective, lateness_ns in zip(*of_events, strict=True):
        key = place, _named(ranks, detail, tuple(path.split(SEPARATOR))), collective
        of_key = sums.setdefault(key, [0, 0.0])
        of_key[0] += 1
        of_key[1] += lateness_ns
    ranked = sorted(sums.items(), key=lambda pair: (-pair[1][1], pair[0]))
    rows = [
        Row((ranks.ranks[place].name, ranks.ranks[place].host, path, collective, *figures))
        for (place, path, collective), figures in ranked[: detail.top]
    ]
    columns = (RANK, HOST, *headed("range", "collective", count="times", late_ns="late by"))
    title = "Ranks that come to collectives clearly later than the others, which wait for them, {unit} in all"
    caption = f"late by: less waiting than the median rank's, added up. {more(ranked, detail.top, 'row')}".strip()
    return Table("late", title, columns, tuple(rows), caption)


def _collectives(ranks: Ranks, detail: Detail) -> Table:
    """Show what the collectives of each range take, wait and carry in the median rank, the longest first."""
    places, figures = ranks.collected
    middle = [
        [float(np.median(known)) if len(known := of_ranks[~np.isnan(of_ranks)]) else None for of_ranks in figure]
        for figure in figures.values()
    ]
    keys = [(_named(ranks, detail, path), collective) for path, collective in places]
    cells = sorted(zip(keys, *middle, strict=True), key=lambda row: (-(row[2] or 0), row[0]))
    columns = headed("range", "collective", count="calls", time_ns="time", waiting_ns="waiting", bytes="bytes")
    columns += headed(bus_bytes_per_s="bus B/s")
    known = [
        number
        for number in range(len(columns))
        if number < 4 or detail.whole or any(value is not None for value in middle[number - 2])
    ]
    rows = [Row((*key, *(row[number - 2] for number in known[2:]))) for key, *row in cells[: detail.top]]
    per = "per step" if len(ranks.span_ns) else "in all"
    waits = any(value is not None for value in middle[2])
    caption = (CLOCKS if waits else "") + more(cells, detail.top, "row")
    title = f"Collectives by range, median of the ranks, {{unit}} {per}"
    return Table("collectives", title, tuple(columns[number] for number in known), tuple(rows), caption.strip())
