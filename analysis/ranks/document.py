"""Many ranks as tables: what they take, which step and range differ by rank, and who makes the others wait."""

from __future__ import annotations

from collections import Counter
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
#: What else is shown of collectives, as far as it is known.
OF_COLLECTIVES = {"waiting_ns": "waiting", "bytes": "bytes", "bus_bytes_per_s": "bus B/s"}
#: Coming late counts only if it takes this share of a step.
LEAST_WAITING = 0.005


def ranks_document(ranks: Ranks, detail: Detail = SHORT) -> Document:
    """Show what the ranks take, and which are clearly slower than the others: in which step, range, collective."""
    tables = (
        _phases(ranks),
        _stragglers(ranks, detail),
        _late(ranks, detail),
        _collectives(ranks, detail),
        _ranges(ranks, detail),
        _steps(ranks, detail),
    )
    filled = tuple(table for table in tables if table.rows)
    return headings.document(ranks.provenance, _heading(ranks), filled, (), _notes(ranks))


def _heading(ranks: Ranks) -> str:
    """Name how many ranks and hosts there are, their GPUs, and how many steps they measured."""
    hosts = {rank.host for rank in ranks.ranks if rank.host}
    step_counts = [rank.steps for rank in ranks.ranks]
    fewest, most = min(step_counts), max(step_counts)
    parts = (
        f"{len(ranks.ranks)} ranks",
        f"{len(hosts)} hosts" if hosts else "",
        " + ".join(ranks.gpus[:2]),
        f"{fewest} steps measured" if fewest == most else f"{fewest} to {most} steps measured",
    )
    return " · ".join(filter(None, parts))


def _notes(ranks: Ranks) -> tuple[str, ...]:
    """Name the ranks that are missing, and the collectives whose waiting is not decided."""
    notes = list(ranks.missing)
    if ranks.aligned is None:
        return tuple(notes)
    by_reason: dict[str, list[str]] = {}
    for collective, reason in sorted(ranks.aligned.undecided):
        by_reason.setdefault(reason, []).append(collective)
    for reason, collectives in by_reason.items():
        names = ", ".join(dict.fromkeys(collectives))
        notes.append(f"The waiting of {names} is not decided: {reason}.")
    if (ranks.aligned.waiting_ns[ranks.some_absent] >= 0).any():
        notes.append(ABSENT)
    return tuple(notes)


def _spread(ranks: Ranks, values_ns: Floats) -> tuple[float, float, float, str, str, int]:
    """Return the least, median and most of a row by rank, the slowest rank and its host, and how many are slow."""
    slowest = ranks.ranks[int(np.nanargmax(values_ns))]
    return (
        float(np.nanmin(values_ns)),
        float(np.nanmedian(values_ns)),
        float(np.nanmax(values_ns)),
        slowest.name,
        slowest.host,
        int(clearly_above(values_ns).sum()),
    )


def _phases(ranks: Ranks) -> Table:
    names, kernel_ns = ranks.phases
    rows = []
    for phase in sorted(names, key=PHASES.index):
        of_phase_ns = kernel_ns[names.index(phase)]
        if of_phase_ns.any():
            rows.append(Row((phase, *_spread(ranks, of_phase_ns))))
    rows.append(Row(("all", *_spread(ranks, kernel_ns.sum(0))), strong=True))
    title = "Kernel time of a step by phase, over ranks, {unit}"
    columns = (*headed("phase"), *SPREAD)
    return Table("phases", title, columns, tuple(rows), f"outliers: ranks clearly above. {CLEARLY}")


def _named(ranks: Ranks, detail: Detail, path: Path) -> str:
    """Return a range for people without what is around all that have kernels, such as `measure > step`."""
    return label(path) if detail.whole else label(ranks.naming(path), ranks.common_ranges)


def _ranges(ranks: Ranks, detail: Detail) -> Table:
    """Rank ranges by how far their slowest rank is above the median, in kernels of no range below."""
    keys, self_ns = ranks.ranges
    excess_ns = self_ns.max(1, initial=0) - _medians(self_ns)
    longest_first = np.argsort(-excess_ns, kind="stable")
    order = longest_first[excess_ns[longest_first] > 0].tolist()
    rows = []
    for number in order[: detail.top]:
        path, _phase = keys[number]
        rows.append(Row((_named(ranks, detail, path), *_spread(ranks, self_ns[number]))))
    title = "Ranges whose slowest rank is furthest above the median: kernels in no range below, {unit} per step"
    columns = (*headed("range"), *SPREAD)
    return Table("ranges", title, columns, tuple(rows), more(order, detail.top, "range").strip())


def _medians(self_ns: Floats) -> Floats:
    """Return the median rank's time in each range, ns."""
    return np.asarray(np.median(self_ns, axis=1)) if len(self_ns) else np.empty(0)


def _steps(ranks: Ranks, detail: Detail) -> Table:
    """Show each step's spans, and the rank whose kernels other than collectives take longest in it."""
    span_ns, compute_ns = ranks.span_ns, ranks.compute_ns
    has_both = np.isfinite(span_ns) & np.isfinite(compute_ns)
    order = np.flatnonzero(has_both.any(1)).tolist()
    rows = []
    for step in order[: detail.top]:
        least, middle, most, *_ = _spread(ranks, span_ns[step])
        of_step_ns = compute_ns[step]
        critical = ranks.ranks[int(np.nanargmax(of_step_ns))]
        excess_ns = float(np.nanmax(of_step_ns) - np.nanmedian(of_step_ns))
        rows.append(Row((str(step), least, middle, most, critical.name, critical.host, excess_ns)))
    title = "Steps: GPU span over ranks, and the rank that computes longest, {unit}"
    longest = Column("critical", "computes longest", "name")
    columns = (*headed("step"), *TIMES, longest, HOST, *headed(excess_ns="above median"))
    caption = "Computes: kernels other than collectives, in which a rank also waits. "
    caption += more(order, detail.top, "step")
    return Table("steps", title, columns, tuple(rows), caption.strip())


def _stragglers(ranks: Ranks, detail: Detail) -> Table:
    """List the ranks that compute clearly longer than the others; if all of a host's do, the host is one row."""
    rows = list(_straggling(ranks, detail))
    rows.sort(key=lambda row: -row.values[2])
    columns = (RANK, HOST, *headed(excess_ns="above median", share="%", steps="steps", range="most of it in"))
    title = "Ranks that compute clearly longer than the others, {unit} per step"
    return Table("stragglers", title, columns, tuple(rows), "% is of the median.")


def _straggling(ranks: Ranks, detail: Detail) -> Iterator[Row]:
    """Yield a row for each slow rank, or host of slow ranks; none of two ranks, of which either may be slow."""
    has_step = np.isfinite(ranks.compute_ns)
    if has_step.any(0).sum() <= 2:
        return
    steps = has_step.sum(0)
    all_steps_ns = np.where(has_step, ranks.compute_ns, 0).sum(0)
    compute_ns = all_steps_ns / np.where(steps, steps, np.nan)
    median_ns = float(np.nanmedian(compute_ns))
    in_steps = clearly_above(ranks.compute_ns[has_step.any(1)])
    keys, self_ns = ranks.ranges
    of_ranges_ns = _medians(self_ns)
    for places, name in _by_host(ranks, np.flatnonzero(clearly_above(compute_ns))):
        host = ranks.ranks[places[0]].host
        excess_ns = float(compute_ns[places].mean() - median_ns)
        slow_steps = float(in_steps[:, places].mean(1).sum())
        range_name = ""
        if keys:
            of_ranges_excess_ns = self_ns[:, places].mean(1) - of_ranges_ns
            path, _phase = keys[int(of_ranges_excess_ns.argmax())]
            range_name = _named(ranks, detail, path)
        yield Row((name, host, excess_ns, excess_ns / median_ns, slow_steps, range_name))


def _by_host(ranks: Ranks, slow: Int64s) -> Iterator[tuple[Int64s, str]]:
    """Yield slow ranks with their names: together those of a host whose ranks are all slow, others alone."""
    hosts = np.array([rank.host for rank in ranks.ranks], object)
    for host in dict.fromkeys(hosts[slow].tolist()):
        on_host = (hosts == host).sum()
        slow_there = slow[hosts[slow] == host]
        if host and on_host == len(slow_there) > 1:
            yield slow_there, f"all {on_host} of {host}"
            continue
        for place in slow_there.tolist():
            yield np.array([place]), ranks.ranks[place].name


def _late(ranks: Ranks, detail: Detail) -> Table:
    """List who came to collectives clearly later than the others, by range and collective."""
    late_ns, table = ranks.late_ns, ranks.exchanges
    has_spans = np.isfinite(ranks.span_ns).any()
    least_ns = LEAST_WAITING * float(np.nanmedian(ranks.span_ns)) if has_spans else 0.0
    events = np.flatnonzero(late_ns > least_ns)
    of_events = zip(
        table.columns["place"][events].tolist(),
        table.texts("path", events),
        table.texts("collective", events),
        late_ns[events].tolist(),
        strict=True,
    )
    times: Counter[tuple[int, str, str]] = Counter()
    sums_ns: dict[tuple[int, str, str], float] = {}
    for place, path, collective, lateness_ns in of_events:
        key = place, _named(ranks, detail, tuple(path.split(SEPARATOR))), collective
        times[key] += 1
        sums_ns[key] = sums_ns.get(key, 0.0) + lateness_ns
    latest = sorted(sums_ns, key=lambda key: (-sums_ns[key], key))
    rows = []
    for key in latest[: detail.top]:
        place, path, collective = key
        rank = ranks.ranks[place]
        rows.append(Row((rank.name, rank.host, path, collective, times[key], sums_ns[key])))
    columns = (RANK, HOST, *headed("range", "collective", count="times", late_ns="late by"))
    title = "Ranks that come to collectives clearly later than the others, which wait for them, {unit} in all"
    caption = f"late by: less waiting than the median rank's, added up. {more(latest, detail.top, 'row')}".strip()
    return Table("late", title, columns, tuple(rows), caption)


def _collectives(ranks: Ranks, detail: Detail) -> Table:
    """Show what the collectives of each range take, wait and carry in the median rank, the longest first."""
    places, figures = ranks.collected
    medians = {key: [_median(of_ranks) for of_ranks in figure] for key, figure in figures.items()}
    names = [(_named(ranks, detail, path), collective) for path, collective in places]
    times_ns = medians["time_ns"]
    longest_first = sorted(range(len(names)), key=lambda number: (-(times_ns[number] or 0), names[number]))
    headings_of = {"count": "calls", "time_ns": "time", **OF_COLLECTIVES}
    for key in OF_COLLECTIVES:
        if not detail.whole and all(value is None for value in medians[key]):
            del headings_of[key]
    rows = []
    for number in longest_first[: detail.top]:
        cells = [medians[key][number] for key in headings_of]
        rows.append(Row((*names[number], *cells)))
    per = "per step" if len(ranks.span_ns) else "in all"
    waits = any(value is not None for value in medians["waiting_ns"])
    caption = (CLOCKS if waits else "") + more(names, detail.top, "row")
    title = f"Collectives by range, median of the ranks, {{unit}} {per}"
    columns = headed("range", "collective", **headings_of)
    return Table("collectives", title, columns, tuple(rows), caption.strip())


def _median(of_ranks: Floats) -> float | None:
    """Return the median of the ranks that have a figure; None where none has."""
    of_those = of_ranks[~np.isnan(of_ranks)]
    return float(np.median(of_those)) if len(of_those) else None
