"""Which of PyTorch's operators launched a piece of work, of those that call one another.

```
thread   ├ aten::conv2d ─────────────────────────────┤   composite: it only calls others
           ├ aten::convolution ────────────────────┤     counts: what autograd and a dispatcher see
             ├ aten::cudnn_convolution ──────────┤
                   L        L        L                   transposes and the convolution itself
```

The operator that counts is the outermost one around a launch that the table of operators has, and that is not
composite; else the innermost composite one that it has, if it called none that counts. It is what annotation
counts while a program runs. Without any, the operator is the innermost around the launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..operators import rule_of
from ..support.small_numbers import distinct
from ..trace import PUSH_POP, Bools, Int32s, Ranges, Trace, marked
from .forest import Forest
from .nesting import Nesting
from .user_ranges import NameFacts, operator_ranges

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Launchers:
    """The operators around calls: positions in `ranges`, -1 for none; int32 (launches,).

    `counted` is the operator that counts, `innermost` the one that launched.
    """

    ranges: Ranges
    counted: Int32s
    innermost: Int32s

    @property
    def operator(self) -> Int32s:
        """The operator that counts, else the innermost."""
        return np.where(self.counted >= 0, self.counted, self.innermost)


def launchers(trace: Trace, facts: NameFacts, wanted: Bools | None = None) -> Launchers:
    """Return the operators around the calls that caused work; `wanted` marks the launches to look at."""
    used = marked(trace.work.launch, len(trace.launches))
    rows = np.flatnonzero(used if wanted is None else used & wanted)
    calls = trace.launches.take(rows)
    operators = operator_ranges(facts, trace.ranges) & (trace.ranges.style == PUSH_POP)
    operators &= marked(calls.thread, len(trace.threads))[trace.ranges.thread]
    ranges = trace.ranges.take(np.flatnonzero(operators))
    counted, innermost = np.full((2, len(trace.launches)), NOBODY, np.int32)
    if not len(ranges) or not len(rows):
        return Launchers(ranges, counted, innermost)
    nesting = Nesting(ranges)
    node = nesting.containing(calls)
    forest = nesting.forest
    innermost[rows] = np.where(node >= 0, forest.range[node], np.int32(NOBODY))
    known, composite = _kinds_of_names(trace, ranges)
    chosen = _counting(forest, known, composite)[node]
    is_settled = (chosen >= 0) & ~composite[chosen]
    around = forest.range[_around(forest, node[is_settled])]
    is_caller = composite & marked(around, len(ranges))
    counted[rows] = np.where((chosen >= 0) & is_caller[chosen], np.int32(NOBODY), chosen)
    return Launchers(ranges, counted, innermost)


def _around(forest: Forest, nodes: Int32s) -> Bools:
    """Mark these nodes, and those around them: bool (nodes,)."""
    is_around = marked(nodes, len(forest) + 1)
    for level in reversed(forest.by_depth()):
        is_around[forest.parent[level[is_around[level]]]] = True
    return is_around[:-1]


def _kinds_of_names(trace: Trace, ranges: Ranges) -> tuple[Bools, Bools]:
    """Return, per range, whether the table has the operator, and whether it is composite."""
    known, composite = np.zeros((2, len(trace.names)), np.bool_)
    for name_id in distinct(ranges.name_id).tolist():
        rule = rule_of(trace.names[name_id])
        known[name_id] = rule is not None
        composite[name_id] = rule is not None and rule.is_composite
    return known[ranges.name_id], composite[ranges.name_id]


def _counting(forest: Forest, known: Bools, composite: Bools) -> Int32s:
    """Return the range that counts for what is launched in each node, -1 for none: int32 (nodes + 1,)."""
    counting = np.full(len(forest) + 1, NOBODY, np.int32)
    for nodes in forest.by_depth():
        above, own = counting[forest.parent[nodes]], forest.range[nodes]
        is_settled = (above >= 0) & ~composite[above]
        counting[nodes] = np.where(is_settled | ~known[own], above, own)
    return counting


def outermost_of(forest: Forest, values: Int32s) -> Int32s:
    """Return each node's outermost value of its path that is not -1, or -1: int32 (nodes + 1,)."""
    outermost = np.append(values, np.int32(NOBODY))
    for nodes in forest.by_depth()[1:]:
        above = outermost[forest.parent[nodes]]
        outermost[nodes] = np.where(above >= 0, above, outermost[nodes])
    return outermost
