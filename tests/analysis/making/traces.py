"""`Trace` objects straight from `building.Rows`, for tests that need thousands; and answers to compare."""

from dataclasses import replace

import numpy as np
from nvtx_kernels.analysis.attribution.causes import HOW, Rules, attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.trace import (
    KINDS,
    MODEL_BACKWARD,
    MODEL_FORWARD,
    NO_CATEGORY,
    PUSH_POP,
    START_END,
    Captures,
    Domain,
    Launches,
    Process,
    Provenance,
    Ranges,
    Thread,
    Trace,
    Work,
    sorted_ranges,
)
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making import building
from tests.analysis.making.reference import creation_of, in_order, launch_of, ranges_of

PARTS = {"": NO_CATEGORY, "model/forward": MODEL_FORWARD, "model/backward": MODEL_BACKWARD}


class _Numbered(dict):
    def __missing__(self, value):
        self[value] = len(self)
        return self[value]


def trace_of(rows):
    """Return the trace that reading a report of these rows gives."""
    names, threads, processes, domains = _Numbered(), _Numbered(), _Numbered(), _Numbered()
    launches = _launches(rows, threads)
    work = _work(rows, names, processes)
    ranges = _ranges(rows, names, threads, domains)
    captures = _captures(rows, threads)
    known = {(r.thread >> 24, r.domain): r.name for r in rows.ranges if r.event == building.DOMAIN_CREATE}
    return Trace(
        work=work,
        launches=launches,
        ranges=ranges,
        names=list(names),
        threads=[Thread(processes[t >> 24], t & 0xFFFFFF, rows.thread_names.get(t, "")) for t in threads],
        domains=[Domain(processes[p], d, known.get((p, d), "")) for p, d in domains],
        processes=[Process(p & 0xFFFFFF) for p in processes],
        provenance=Provenance("generated"),
        captures=captures,
    )


def _captures(rows, threads):
    """Return where the nodes of the work were created, with each node's creation once."""
    if not rows.nodes:
        return None
    at = {id(node): number for number, node in enumerate(rows.nodes)}
    of_work = [at.get(id(creation_of(rows, w)), -1) for w in in_order(rows)]
    columns = [(node.at, threads[node.thread]) for node in rows.nodes]
    return Captures(np.array(of_work, np.int32), *_columns(columns, (np.int64, np.int32)))


def _launches(rows, threads):
    columns = [(c.start, c.end, threads[c.thread]) for c in rows.launches]
    return Launches(*_columns(columns, (np.int64, np.int64, np.int32)))


def _work(rows, names, processes):
    at = {id(call): number for number, call in enumerate(rows.launches)}
    columns = [
        (
            w.start, w.end, KINDS.index(w.kind), names[w.name if w.kind == "kernel" else f"[CUDA {w.kind}]"],
            w.device, w.stream, processes[w.process >> 24], at.get(id(launch_of(rows, w)), -1), 0,
        )
        for w in in_order(rows)
    ]  # fmt: skip
    kinds = (np.int64, np.int64, np.uint8, np.int32, np.int32, np.int64, np.int32, np.int32, np.int32)
    return Work(*_columns(columns, kinds))


def _ranges(rows, names, threads, domains):
    opened = [r.end is None for r in rows.ranges if r.event in (building.PUSH_POP, building.START_END)]
    columns = [
        (
            r.start, r.end, threads[r.thread], names[r.name], domains[r.thread >> 24, r.domain],
            -1 if r.seq is None else r.seq, PUSH_POP if r.nested else START_END, open_ended, PARTS[r.part],
        )
        for r, open_ended in zip(ranges_of(rows), opened, strict=True)
    ]  # fmt: skip
    kinds = (np.int64, np.int64, np.int32, np.int32, np.int32, np.int64, np.uint8, np.bool_, np.int8)
    return sorted_ranges(Ranges(*_columns(columns, kinds)))


def _columns(rows, kinds):
    return [np.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]


def path_of(attribution, node):
    """Return the names of a node's path, outermost first."""
    path = []
    while node >= 0:
        path.append(attribution.trace.names[attribution.ranges.name_id[attribution.forest.range[node]]])
        node = attribution.forest.parent[node]
    return tuple(reversed(path))


def answers(attribution):
    """Return (how, path, phase) of every piece of work, in the order of the tables that hold it."""
    return [
        (HOW[how], path_of(attribution, node), PHASES[phase])
        for how, node, phase in zip(attribution.how, attribution.node, attribution.phase, strict=True)
    ]


def attributed(report, **rules):
    """Read a report and return "how: outer > inner" for every piece of work, in the order of its tables."""
    found = answers(attribute(read(report), Rules(**rules)))
    return [f"{how}: {' > '.join(path)}" if path else how for how, path, _ in found]


def summary(report, **about):
    """Read, attribute and add up a report, of whose provenance this is to be said instead."""
    found = summarize(attribute(read(report)))
    return replace(found, provenance=replace(found.provenance, **about))
