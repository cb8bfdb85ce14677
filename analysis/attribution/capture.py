"""The modules of a CUDA graph's kernels: the ranges that were open where the graph's nodes were created.

A replay is one launch, in a range of its own time; what its kernels are for was known when the graph was
captured. The path of such a kernel is the launch's, then the capture's ranges below phases and steps: phases
by launch, modules by capture. docs/attribution.md has the definition.
"""

from __future__ import annotations

import numpy as np

from ..support.small_numbers import each_row, grouped_rows, looked_up
from ..trace import Bools, Captures, Int32s, Ranges, Spots, marked
from .forest import Forest
from .nesting import Nesting
from .user_ranges import NameFacts, of_titles


def below_launches(
    captures: Captures, ranges: Ranges, nesting: Nesting, facts: NameFacts, node: Int32s, eligible: Bools
) -> tuple[Int32s, Int32s, Int32s]:
    """Put the ranges around the creation of graph nodes below the launches of their work, by piece of work.

    Return the nodes around the creation, -1 for none; the nodes of the work, -1 where no capture's range is below
    its launch's; and the nodes that were made for them. `node` are the launches', and only `eligible` work counts.
    """
    forest = nesting.forest
    title = ranges.name_id
    created = nesting.containing(Spots(captures.at_ns, captures.at_ns, captures.thread))
    created = np.where(eligible, looked_up(created, captures.of_work, -1), np.int32(-1))
    rows = np.flatnonzero(created >= 0)
    before = len(forest)
    ends = of_titles(facts.turns, ranges)
    # How many of the outermost ranges of a capture's path do not go below a launch of some names.
    names, path_of_node, _ = forest.folded(title[forest.range])
    (path, capture), back = grouped_rows(path_of_node[node[rows]], created[rows])
    cut = []
    for launch_path, capture_node in each_row(path, capture):
        launched = names.range[_path(names, launch_path)].tolist()
        captured = forest.range[_path(forest, capture_node)]
        first = int(np.flatnonzero(np.append(True, ends[captured]))[-1])
        inner = title[captured[first:]].tolist()
        lengths = range(min(len(inner), len(launched)), 0, -1)
        cut.append(first + next((length for length in lengths if launched[-length:] == inner[:length]), 0))
    (capture, first_depth), back = grouped_rows(capture[back], np.array(cut, np.int32)[back])
    depth = forest.depth()
    below = forest.copied(capture, lambda level: depth[level] >= first_depth)[back]
    placed = np.full(len(node), -1, np.int32)
    rows = rows[below >= 0]
    below = below[below >= 0]
    placed[rows] = forest.graft(node[rows], below)
    on_paths = forest.around(marked(placed, len(forest)))
    return created, placed, before + np.flatnonzero(on_paths[before:]).astype(np.int32)


def _path(forest: Forest, node: int) -> list[int]:
    """Return a node and those above it, outermost first."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = int(forest.parent[node])
    return path[::-1]
