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
    launches = [(c.start, c.end, threads[c.thread]) for c in rows.launches]
    calls = {id(call): number for number, call in enumerate(rows.launches)}
    work = [
        (
            *(w.start, w.end, KINDS.index(w.kind), names[w.name if w.kind == "kernel" else f"[CUDA {w.kind}]"]),
            *(w.device, w.stream, processes[w.process >> 24], calls.get(id(launch_of(rows, w)), -1), 0),
        )
        for w in in_order(rows)
    ]
    opened = [r.end is None for r in rows.ranges if r.event in (building.PUSH_POP, building.START_END)]
    ranges = [
        (
            *(r.start, r.end, threads[r.thread], names[r.name], domains[r.thread >> 24, r.domain]),
            *(-1 if r.seq is None else r.seq, PUSH_POP if r.nested else START_END, open_ended, PARTS[r.part]),
        )
        for r, open_ended in zip(ranges_of(rows), opened, strict=True)
    ]
    nodes = {id(node): number for number, node in enumerate(rows.nodes)}
    created = [nodes.get(id(creation_of(rows, w)), -1) for w in in_order(rows)]
    creations = _columns([(node.at, threads[node.thread]) for node in rows.nodes], "i8 i4")
    known = {(r.thread >> 24, r.domain): r.name for r in rows.ranges if r.event == building.DOMAIN_CREATE}
    return Trace(
        work=Work(*_columns(work, "i8 i8 u1 i4 i4 i8 i4 i4 i4")),
        launches=Launches(*_columns(launches, "i8 i8 i4")),
        ranges=sorted_ranges(Ranges(*_columns(ranges, "i8 i8 i4 i4 i4 i8 u1 ? i1"))),
        names=list(names),
        threads=[Thread(processes[t >> 24], t & 0xFFFFFF, rows.thread_names.get(t, "")) for t in threads],
        domains=[Domain(processes[p], d, known.get((p, d), "")) for p, d in domains],
        processes=[Process(p & 0xFFFFFF) for p in processes],
        provenance=Provenance("generated"),
        captures=Captures(np.array(created, np.int32), *creations) if rows.nodes else None,
    )


def _columns(rows, kinds):
    return [np.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds.split())]


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
