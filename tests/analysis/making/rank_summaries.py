"""Summaries of many ranks, made of one real report's: equal but for noise, and for what is planted.

Each step has COLLECTIVES collectives. A rank computes, comes to a collective, and waits until the last has come;
so a slow rank makes the others wait, and all steps are equally long. Every rank has a clock of its own, which may
be another time's, and run faster or slower.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.file import KEY, SCHEMA, as_parquet
from nvtx_kernels.analysis.summary.totals import summarize

OURS = Path(__file__).parents[2] / "data" / "h200_train_fp32.sqlite"
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
    attribution = attribute(read(OURS))
    table = pq.read_table(pa.BufferReader(as_parquet(attribution, summarize(attribution), rank=0, host="")))
    head = msgspec.json.decode(table.schema.metadata[KEY])
    bare = table.replace_schema_metadata(None)
    return {kind: bare.filter(pc.equal(bare["table"], kind)).combine_chunks() for kind in COMPARED}, head


@cache
def slow_rows(kind):
    """Return by column which rows of a kind a slow range makes longer: those around it, and its own."""
    paths = [tuple(path or ()) for path in template()[0][kind]["path"].to_pylist()]
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
    base_ns = pc.sum(sums["ranges"]["self_ns"]).as_py() / 2
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
        rows = [_sums(kind, table, factor[rank], slower_ns) for kind, table in sums.items()]
        rows += _steps_and_exchanges(rank, ranks, compute_ns[:, rank], arrival_ns, begin_ns[rank], rate[rank])
        run = {**head["provenance"]["run"], "rank": rank, "world_size": ranks}
        reports = {of: {**about, "steps": STEPS} for of, about in head["reports"].items()}
        of_rank = {**head, "rank": rank, "host": f"node{hosts[rank]:03}", "reports": reports,
                   "provenance": {**head["provenance"], "run": run}}  # fmt: skip
        path = folder / f"rank{rank:05}.parquet"
        schema = SCHEMA.with_metadata({KEY: msgspec.json.encode(of_rank)})
        with pq.ParquetWriter(path, schema, compression="zstd") as file:
            for table in rows:
                file.write_table(table)
        paths.append(path)
    return paths


def _sums(kind, table, factor, slower_ns):
    """Return the sums of a rank over STEPS steps; a slow range and all around it take so much longer in each."""
    for number, field in enumerate(SCHEMA):
        if field.name.endswith("_ns") and field.name != "step_ns" and table[field.name].null_count < len(table):
            values = table[field.name]
            scaled = np.round(pc.fill_null(values, 0).to_numpy() * factor * STEPS / 2)
            if slower_ns:
                scaled += STEPS * slower_ns * slow_rows(kind).get(field.name, 0)
            made_ns = pa.array(scaled.astype(np.int64), mask=values.is_null().to_numpy())
            table = table.set_column(number, field, made_ns)
    return table


def _steps_and_exchanges(rank, ranks, compute_ns, arrival_ns, begin_ns, rate):
    last_ns = arrival_ns.max(2)
    waiting_ns = np.round(last_ns - arrival_ns[:, :, rank]).astype(np.int64)
    took_ns = waiting_ns + TRANSFER_NS
    span_ns = (last_ns + TRANSFER_NS).sum(1).astype(np.int64)
    took_ns = np.round(took_ns * rate).astype(np.int64)
    start_ns = begin_ns + np.cumsum((last_ns + TRANSFER_NS).astype(np.int64).reshape(-1)) - took_ns.reshape(-1)
    steps = [
        {"table": "steps", "of": "all", "step": step, "phase": "", "kernels": 100, "span_ns": int(span_ns[step]),
         "kernel_ns": int(compute_ns[step] + took_ns[step].sum()), "communication_ns": int(took_ns[step].sum())}
        for step in range(STEPS)
    ]  # fmt: skip
    group = f"0 [{','.join(map(str, range(ranks)))}]" if ranks <= 64 else "default_pg"
    exchanges = [
        {"table": "exchanges", "of": "all", "gpu": "GPU 0", "path": list(GATHERED), "phase": "forward",
         "collective": "all_gather", "group": group, "ranks": ranks, "step": number // COLLECTIVES,
         "start_ns": start, "end_ns": start + took, "time_ns": took, "hidden_ns": 0, "message_bytes": 1 << 20,
         "bus_bytes": float(1 << 20)}
        for number, (start, took) in enumerate(zip(start_ns.tolist(), took_ns.reshape(-1).tolist(), strict=True))
    ]  # fmt: skip
    return [pa.Table.from_pylist(rows, schema=SCHEMA) for rows in (steps, exchanges)]
