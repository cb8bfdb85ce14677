"""Find what a backward computes again, in profiles whose programs do not say so: activation checkpointing.

```
autograd thread   ├ ReluBackward0, 12 ──────────────────────────────┤
                    ├ aten::conv2d, 41 ┤├ aten::relu, 42 ┤             computed again: numbered
                                                          ├ aten::threshold_backward ┤   the node's own gradient
```

An operator has a number of autograd's if gradients are recorded while it runs. In a node of a backward that is so
in two cases: a forward is computed again (`torch.utils.checkpoint` enables gradients for it), or the backward is
itself to be differentiated (`create_graph`), and then all operators of the node are numbered. So numbered
operators are a recomputation if the node also calls operators without a number, or runs the backward of what it
computed.

They get a range `recompute`, as annotation opens one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..support.small_numbers import bounds, distinct
from ..trace import MODEL_FORWARD, PUSH_POP, TIMELINE, Bools, Int64s, Ranges, Trace, marked, sorted_ranges
from ..vocabulary import ENGINE_OPERATOR, RECOMPUTE
from .nesting import Nesting
from .places import Rules
from .user_ranges import NameFacts, operator_ranges, with_names


def with_recomputation(trace: Trace, facts: NameFacts, rules: Rules) -> tuple[Trace, NameFacts]:
    """Return the trace with a range around each recomputation, and its names' facts.

    A trace in which annotation says what is computed again stays as it is, and so does one whose rules do not
    adopt.
    """
    if not rules.adopt or RECOMPUTE in trace.names:
        return trace, facts
    spans = _recomputations(trace.ranges, facts, trace.names)
    if not len(spans):
        return trace, facts
    trace, facts = with_names(trace, facts, [RECOMPUTE])
    number = len(spans)
    spans = replace(
        spans,
        name_id=np.full(number, trace.names.index(RECOMPUTE), np.int32),
        seq=np.full(number, -1, np.int64),
        category=np.full(number, MODEL_FORWARD, np.int8),
    )
    return replace(trace, ranges=sorted_ranges(Ranges.joined([spans, trace.ranges]))), facts


def _recomputations(ranges: Ranges, facts: NameFacts, names: list[str]) -> Ranges:
    """Return a range for each node that computes something again, around all that does so.

    A node that calls modules has none: these are known to run again.
    """
    nested = ranges.style == PUSH_POP
    operators = operator_ranges(facts, ranges) & nested
    is_node = operators & facts.backward_operator[ranges.name_id]
    suspects = np.flatnonzero(operators & ~is_node & (ranges.seq >= 0))
    nodes = np.flatnonzero(is_node)
    on_nodes_threads = marked(ranges.thread[nodes], int(ranges.thread.max(initial=0)) + 1)
    suspects = suspects[on_nodes_threads[ranges.thread[suspects]]]
    none = ranges.take(nodes[:0])
    if not len(nodes) or not len(suspects):
        return none
    holder = Nesting(ranges.take(nodes)).containing(ranges.take(suspects))
    if not (holder >= 0).any():
        return none
    threads = distinct(ranges.thread[suspects[holder >= 0]])
    rows = np.flatnonzero(nested & (ranges.category != TIMELINE) & np.isin(ranges.thread, threads))
    inner = ranges.take(rows)
    is_operator = operators[rows]
    is_node = is_node[rows]
    caller = _callers(inner)
    node, child = _nodes_around(caller, is_node | (inner.category == MODEL_FORWARD))
    in_node = (node >= 0) & is_node[np.maximum(node, 0)]
    is_direct = in_node & (node == caller) & is_operator
    again = in_node & is_operator & ~is_node & (inner.seq >= 0)
    is_name_of_engine = np.array([name.startswith(ENGINE_OPERATOR) for name in names], np.bool_)
    is_engine = is_name_of_engine[inner.name_id]
    is_engine_in_node = is_engine & ~is_engine[np.maximum(node, 0)]
    is_unnumbered = ~is_node & (inner.seq < 0)
    is_hint = is_direct & (is_unnumbered | is_engine_in_node)
    calls_modules = in_node & (inner.category == MODEL_FORWARD)
    has_hint = marked(node[is_hint].astype(np.int32), len(inner))
    has_modules = marked(node[calls_modules].astype(np.int32), len(inner))
    recomputes = has_hint & ~has_modules
    recomputed = np.flatnonzero(again & recomputes[np.maximum(node, 0)])
    return _around(inner, node[recomputed], child[recomputed])


def _callers(ranges: Ranges) -> Int64s:
    """Return the position of the range directly around each, -1 for none: int64 (ranges,)."""
    nesting = Nesting(ranges)
    above = nesting.forest.above(nesting.home)
    return np.where(above >= 0, nesting.forest.range[above], -1).astype(np.int64)


def _nodes_around(caller: Int64s, is_wanted: Bools) -> tuple[Int64s, Int64s]:
    """Return the innermost wanted range around each, -1 for none, and what is directly below it."""
    around = caller.copy()
    child = np.arange(len(caller))
    while (climbs := (around >= 0) & ~is_wanted[np.maximum(around, 0)]).any():
        child[climbs] = around[climbs]
        around[climbs] = caller[around[climbs]]
    return around, child


def _around(ranges: Ranges, node: Int64s, parts: Int64s) -> Ranges:
    """Return a range for each node, from the first start to the last end of its parts."""
    nodes, number = np.unique(node, return_inverse=True)
    start_ns, end_ns = bounds(number, ranges.start_ns[parts], ranges.end_ns[parts], len(nodes))
    return replace(ranges.take(nodes), start_ns=start_ns, end_ns=end_ns)
