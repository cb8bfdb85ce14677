"""Summaries of many ranks, made of one real report's: equal but for noise, and for what is planted.

Each step has COLLECTIVES collectives. A rank computes, comes to a collective, and waits until the last has come;
so a slow rank makes the others wait, and all steps are equally long. Every rank has a clock of its own, which may
be another time's, and run faster or slower.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from nvtx_kernels.analysis.summary.file import VERSION, read_tables, stored
from nvtx_kernels.analysis.summary.tables import ALL, COLUMNS, Head

from tests.analysis.making.old_summaries import OLD

STEPS, COLLECTIVES, RANKS_OF_A_HOST = 6, 8, 8
#: Of the tables of sums those that comparing ranks reads: those of kernels are most of a summary.
COMPARED = ("phases", "ranges")
TRANSFER_NS = 200_000
LATE_NS = 20_000_000
GATHERED = ("measure", "step", "forward", "layer 3")
SLOW_RANGE = ("measure", "step", "forward", "layer 3", "ffn")


@dataclass(frozen=True)
class Planted:
    """What differs: a rank or host whose kernels take 10% longer, a rank slow in one range, or late once."""

    slow_rank: int = -1
    slow_host: int = -1
    slow_range: int = -1
    late: int = -1


@cache
def template():
    """Return a real summary's tables of sums, and its head; steps and exchanges are made for each rank."""
    head, tables = read_tables(OLD, {table: COLUMNS[table] for table in COMPARED})
    return {table: columns for (table, _), columns in tables.items()}, head


@cache
def slow_rows(table):
    """Return by column which rows of a table a slow range makes longer: those around it, and its own."""
    paths = template()[0][table].get("path", ())
    inside = np.array([path == SLOW_RANGE[: len(path)] and bool(path) for path in paths])
    return {"inclusive_ns": inside, "self_ns": np.array([path == SLOW_RANGE for path in paths])}


@dataclass(frozen=True)
class Clocks:
    """How far apart the ranks' clocks are, ns, and by which share one may run faster or slower than another."""

    apart_ns: int = 1 << 40
    drift: float = 0.0


def made(folder, ranks, planted=Planted(), seed=0, noise=0.002, clocks=Clocks()):
    """Write a summary for each rank with the tables that comparing ranks reads, and return their paths."""
    random = np.random.default_rng(seed)
    sums, head = template()
    base_ns = sum(sums["ranges"]["self_ns"])
    factor = 1 + noise * random.standard_normal(ranks)
    hosts = np.arange(ranks) // RANKS_OF_A_HOST
    factor[(np.arange(ranks) == planted.slow_rank) | (hosts == planted.slow_host)] *= 1.1
    compute_ns = base_ns * factor * (1 + noise / 10 * random.standard_normal((STEPS, ranks)))
    compute_ns += np.where(np.arange(ranks) == planted.slow_range, base_ns * 0.1, 0)
    arrival_ns = np.repeat(compute_ns[:, None] / COLLECTIVES, COLLECTIVES, 1)
    arrival_ns *= 1 + noise * random.standard_normal(arrival_ns.shape)
    if planted.late >= 0:
        arrival_ns[STEPS // 2, COLLECTIVES // 2, planted.late] += LATE_NS
    clock = np.random.default_rng(seed + 1)
    begin_ns = clock.integers(0, clocks.apart_ns, ranks, endpoint=True)
    rate = 1 + clocks.drift * clock.uniform(-1, 1, ranks)
    paths = []
    for rank in range(ranks):
        slower_ns = base_ns * 0.1 if rank == planted.slow_range else 0.0
        tables = {}
        for table, columns in sums.items():
            tables[table, head.of] = _sums(table, columns, factor[rank], slower_ns)
        steps, exchanges = _steps_and_exchanges(
            rank, ranks, compute_ns[:, rank], arrival_ns, begin_ns[rank], rate[rank]
        )
        tables |= {("steps", ALL): steps, ("exchanges", ALL): exchanges}
        run = {**head.provenance.run, "rank": rank, "world_size": ranks}
        reports = {of: {**about, "steps": STEPS} for of, about in head.reports.items()}
        provenance = replace(head.provenance, run=run)
        of_rank = Head(VERSION, rank, f"node{hosts[rank]:03}", provenance, reports)
        path = folder / f"rank{rank:05}.summary.sqlite"
        path.write_bytes(stored(of_rank, tables))
        paths.append(path)
    return paths


def _sums(table, columns, factor, slower_ns):
    """Return the sums of a rank over STEPS steps; a slow range and all around it take so much longer in each."""
    scaled = dict(columns)
    for name, values in columns.items():
        if name.endswith("_ns") and name != "step_ns":
            added_ns = STEPS * slower_ns * slow_rows(table).get(name, np.zeros(len(values)))
            scaled[name] = [
                None if value is None else round(value * factor * STEPS / 2 + more_ns)
                for value, more_ns in zip(values, added_ns.tolist(), strict=True)
            ]
    return scaled


def _steps_and_exchanges(rank, ranks, compute_ns, arrival_ns, begin_ns, rate):
    last_ns = arrival_ns.max(2)
    waiting_ns = np.round(last_ns - arrival_ns[:, :, rank]).astype(np.int64)
    took_ns = waiting_ns + TRANSFER_NS
    span_ns = (last_ns + TRANSFER_NS).sum(1).astype(np.int64)
    took_ns = np.round(took_ns * rate).astype(np.int64)
    start_ns = begin_ns + np.cumsum((last_ns + TRANSFER_NS).astype(np.int64).reshape(-1)) - took_ns.reshape(-1)
    spans = span_ns.tolist()
    steps = {
        "step": list(range(STEPS)),
        "phase": [""] * STEPS,
        "kernel_ns": (compute_ns.astype(np.int64) + took_ns.sum(1)).tolist(),
        "communication_ns": took_ns.sum(1).tolist(),
        "kernels": [100] * STEPS,
        "span_ns": spans,
        "cpu_ns": [None] * STEPS,
    }
    group = f"0 [{','.join(map(str, range(ranks)))}]" if ranks <= 64 else "default_pg"
    count = STEPS * COLLECTIVES
    same = {
        "gpu": "GPU 0", "path": GATHERED, "phase": "forward", "collective": "all_gather", "group": group,
        "ranks": ranks, "hidden_ns": 0, "message_bytes": 1 << 20, "bus_bytes": float(1 << 20),
    }  # fmt: skip
    exchanges = {name: [value] * count for name, value in same.items()}
    took = took_ns.reshape(-1)
    exchanges |= {"step": [number // COLLECTIVES for number in range(count)], "start_ns": start_ns.tolist()}
    exchanges |= {"end_ns": (start_ns + took).tolist(), "time_ns": took.tolist()}
    return steps, exchanges
