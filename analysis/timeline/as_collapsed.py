"""Collapsed stacks, which speedscope, inferno and flamegraph.pl open: a line per path and its own GPU time, ns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..support.text import fit

LONGEST_NAME = 200
OUTSIDE = "(outside all ranges)"


def collapsed_stacks(attribution: Attribution) -> Iterator[str]:
    """Yield `outer;inner;innermost ns`, a line per path whose ranges launched work; their sum is all GPU work."""
    paths = Paths(attribution)
    path_of_work = paths.of_node[attribution.node]
    own_ns = np.zeros(len(paths.paths), np.int64)  # the last is of work outside, whose path is -1
    np.add.at(own_ns, path_of_work, attribution.trace.work.duration_ns)
    stacks: dict[str, int] = {}
    for path, ns in zip([*paths.paths[:-1], (OUTSIDE,)], own_ns.tolist(), strict=True):
        if ns:
            stack = ";".join(fit(name, LONGEST_NAME).replace(";", ",") or "(no name)" for name in path)
            stacks[stack] = stacks.get(stack, 0) + ns
    yield from (f"{stack} {ns}\n" for stack, ns in sorted(stacks.items()))
