"""Collapsed stacks, which speedscope, inferno and flamegraph.pl open: a line per path and its own GPU time, ns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..errors import ReportError
from ..readers import STACKS
from ..support.small_numbers import grouped_rows
from ..support.text import fit
from ..trace import Int32s, Int64s, Path
from ..vocabulary import PHASES, is_function

LONGEST_NAME = 200
OUTSIDE = "(outside all ranges)"


def collapsed_stacks(attribution: Attribution) -> Iterator[str]:
    """Yield `outer;inner;innermost ns`, a line per path whose ranges launched work; their sum is all GPU work."""
    paths = Paths(attribution)
    yield from _lines([*paths.paths[:-1], (OUTSIDE,)], _own_ns(attribution, paths.of_node, len(paths.paths)))


def function_stacks(attribution: Attribution) -> Iterator[str]:
    """Yield `phase;outer;inner ns`, a line per phase and path of Python functions; their sum is all GPU work.

    Raises ReportError for a report without Python functions.
    """
    paths = Paths(attribution)
    phase = attribution.phase.astype(np.int64)
    count = len(paths.names)
    path = np.where(attribution.node >= 0, paths.names_of_node[attribution.node], count - 1)
    (phase_of, path_of), back = grouped_rows(phase, path)
    own_ns = np.zeros(len(phase_of), np.int64)
    np.add.at(own_ns, back, attribution.trace.work.duration_ns)
    functions = [tuple(filter(is_function, paths.names[number])) for number in path_of.tolist()]
    if not any(functions):
        raise ReportError(f"No work was launched in a Python function. {STACKS}")
    yield from _lines([(PHASES[p], *names) for p, names in zip(phase_of.tolist(), functions, strict=True)], own_ns)


def _own_ns(attribution: Attribution, path_of_node: Int32s, count: int) -> Int64s:
    """Return the time of the work directly in each path; the last is of work outside, whose path is -1."""
    own_ns = np.zeros(count, np.int64)
    np.add.at(own_ns, path_of_node[attribution.node], attribution.trace.work.duration_ns)
    return own_ns


def _lines(paths: Sequence[Path], own_ns: Int64s) -> Iterator[str]:
    stacks: dict[str, int] = {}
    for path, ns in zip(paths, own_ns.tolist(), strict=True):
        if ns:
            stack = ";".join(fit(name, LONGEST_NAME).replace(";", ",") or "(no name)" for name in path)
            stacks[stack] = stacks.get(stack, 0) + ns
    yield from (f"{stack} {ns}\n" for stack, ns in sorted(stacks.items()))
