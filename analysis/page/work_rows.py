"""A report's work as rows, the data of a page: each kernel of a range and phase, the longest first.

The page selects rows. Its tree, boxes, table, timeline and details all show the same ones.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account.cells import copy_called
from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import step_numbers, step_of_nodes
from ..kernel_names.categories import categorize
from ..kernel_names.short import distinct_short_names
from ..measures.fix_list import Fix
from ..report.account import COMMUNICATION, COMPUTE, COPY, OPERATORS
from ..summary.selection import naming_of
from ..support.small_numbers import bounds, grouped_rows, looked_up, summed
from ..support.text import fit
from ..trace import GRAPH, KERNEL, Int32s, Int64s, Path
from ..views import graphs, headings
from ..views.rows import NOWHERE, label
from ..vocabulary import PHASES
from ..vocabulary.modules import ModuleName

MAX_ROWS, MAX_VALUES = 6_000, 100_000
LONGEST_KERNEL, LONGEST_RANGE = 1_000, 120
#: Begins a name that a page writes directly behind the one before it, as in `layers.3` and `.mlp`.
JOINED = "\u2060"
#: The path of rows that are added up, as there are too many.
SHORTER = "(many short ones)"


def packed(values: NDArray[Any]) -> str:
    """Return numbers from 0 on as text: the bytes of each, a colon, and all of them in base64."""
    highest = int(values.max(initial=0))
    dtype = np.min_scalar_type(highest) if highest < 2**32 else np.dtype(np.float64)
    data = values.astype(dtype.newbyteorder("<")).tobytes()
    return f"{dtype.itemsize}:{base64.b64encode(data).decode()}"


class PathTree:
    """The ranges of a page, each with the one around it, and what it is with all indices together."""

    def __init__(self, attribution: Attribution) -> None:
        self.apart = naming_of(attribution.trace, every_index=True)
        self.together = naming_of(attribution.trace)
        self.parent: list[int] = []
        self.name: list[str] = []
        self.joined: list[int] = []
        self._number: dict[tuple[int, str], int] = {}
        self._of_path: dict[Path, int] = {}

    def number(self, path: Path) -> int:
        """Return the number of a path of recorded names."""
        if path not in self._of_path:
            node = joined = -1
            texts = path_texts(self.apart(path)), path_texts(self.together(path))
            for name, joined_name in zip(*texts, strict=True):
                joined = self._inside(joined, joined_name)
                node = self._inside(node, name, joined)
            self._of_path[path] = node
        return self._of_path[path]

    def of_names(self, path: Path) -> int:
        """Return the number of a path that is named as screens do, with all indices together."""
        node = -1
        for name in path_texts(path):
            node = self._inside(node, name)
        return node

    def _inside(self, parent: int, name: str, joined: int | None = None) -> int:
        number = self._number.setdefault((parent, name), len(self.name))
        if number == len(self.name):
            self.parent.append(parent)
            self.name.append(name)
            self.joined.append(number if joined is None else joined)
        return number

    def as_json(self) -> dict[str, Any]:
        """Return the columns of the tree; a parent of 0 means no parent, and others are one higher."""
        columns = {"parent": np.array(self.parent, np.int64) + 1, "together": np.array(self.joined, np.int64)}
        return {"name": self.name} | {name: packed(values) for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class WorkRows:
    """The rows: `of_work` has the row of each piece of all work, -1 for what does not count."""

    of_work: Int64s
    paths: list[Path]
    total_ns: int
    columns: dict[str, Any]

    def of_fix(self, fix: Fix) -> list[int]:
        """Return the rows of the work that a change concerns; of a CPU, of the ranges that it concerns."""
        if len(fix.work):
            rows = np.unique(self.of_work[fix.work])
            return [row for row in rows.tolist() if row >= 0]
        places = set(fix.where)
        return [row for row, path in enumerate(self.paths) if path in places]


@dataclass(frozen=True, slots=True)
class _Groups:
    """The counted work by path, phase, kind and name, the longest first; `group` has the group of each piece."""

    pieces: Int64s  # positions in the attribution's work
    group: Int64s
    duration_ns: Int64s  # of each piece
    path: list[Path]
    phase: list[int]
    kind: list[int]
    name: list[str]

    def __len__(self) -> int:
        return len(self.path)

    @classmethod
    def of(cls, attribution: Attribution, pieces: Int64s) -> _Groups:
        trace = attribution.trace
        paths = Paths(attribution)
        work = trace.work
        duration_ns = work.duration_ns[pieces]
        place = paths.names_of_node[attribution.node[pieces]].astype(np.int64) + 1
        columns = place, attribution.phase[pieces], work.kind[pieces], work.name_id[pieces]
        keys, group = grouped_rows(*columns)
        order = np.argsort(-summed(group, duration_ns, len(keys[0])), kind="stable")
        place, phase, kind, name = (key[order].tolist() for key in keys)
        return cls(
            pieces,
            np.argsort(order)[group],
            duration_ns,
            [paths.names[number - 1] for number in place],
            phase,
            kind,
            [trace.names[number] for number in name],
        )


def work_rows(attribution: Attribution, tree: PathTree, *, include_warm_up: bool) -> WorkRows:
    """Return the rows of some work, and as plain data: names, and columns of positions, times in ns and launches.

    Beyond `MAX_ROWS`, those of a phase and category are added up, so that sums hold.
    """
    warm_up = looked_up(attribution.warm_up, attribution.node, False)
    groups = _Groups.of(attribution, np.flatnonzero(~warm_up | include_warm_up))
    kinds = _Kinds(groups, attribution)
    row_of_group, merged = _merged(len(groups), kinds)
    row = row_of_group[groups.group]
    count = min(len(groups), MAX_ROWS) + len(merged)
    texts = _kernel_texts(groups.name[:MAX_ROWS])
    texts += ((f"{many:,} more", "") for many in merged)
    kernels = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    nodes = [tree.number(path) for path in groups.path[:MAX_ROWS]]
    nodes += (tree.number((SHORTER,)) for _ in merged)
    shortest_ns, longest_ns = bounds(row, groups.duration_ns, groups.duration_ns, count)
    columns = {
        "kernel": np.array([kernels[text] for text in texts], np.int64),
        "path": np.array(nodes, np.int64),
        "ns": summed(row, groups.duration_ns, count),
        "count": np.bincount(row, minlength=count),
        "min": shortest_ns,
        "max": longest_ns,
    }
    of_work = np.full(len(attribution.of_all_work.trace.work), -1, np.int64)
    of_work[attribution.rows_of_all[groups.pieces]] = row
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node[groups.pieces]]
    steps = step_numbers(attribution, include_warm_up=include_warm_up)
    data: dict[str, Any] = {name: packed(values) for name, values in columns.items()}
    _, first_groups = np.unique(row_of_group, return_index=True)
    data |= kinds.as_json(first_groups)
    data["kernels"] = list(kernels)
    data["steps"] = _in_steps(steps, row, step, groups.duration_ns)
    return WorkRows(of_work, groups.path[:MAX_ROWS], int(groups.duration_ns.sum()), data)


def _in_steps(steps: Int64s, row: Int64s, step: Int32s, duration_ns: Int64s) -> dict[str, Any] | None:
    """Return the time of the first rows in each step, as far as there is room; None with fewer than two steps."""
    if len(steps) < 2:
        return None
    rows = min(MAX_VALUES // len(steps), int(row.max(initial=-1)) + 1)
    inside = (row < rows) & (step >= 0)
    cell = row[inside] * len(steps) + step[inside]
    ns = summed(cell, duration_ns[inside], rows * len(steps))
    return {"numbers": steps.tolist(), "rows": rows, "ns": packed(ns)}


def _merged(count: int, kinds: _Kinds) -> tuple[Int64s, list[int]]:
    """Return the row of each group, and how many groups are in each row behind the others."""
    row = np.arange(count)
    beyond = slice(MAX_ROWS, None)
    columns = [np.array(column[beyond], np.int64) for column in (kinds.phase, kinds.category, kinds.part)]
    _, position = grouped_rows(*columns)
    row[beyond] = MAX_ROWS + position
    return row, np.bincount(position).tolist() if count > MAX_ROWS else []


class _Kinds:
    """What kind of work each of some kernels, copies and graphs is: its phase, category, and part of a step."""

    def __init__(self, groups: _Groups, attribution: Attribution) -> None:
        names = list(dict.fromkeys(groups.name))
        category = dict(zip(names, categorize(names, attribution.trace.categories), strict=True))
        on_cpu = attribution.trace.provenance.unit_of_work == "CPU"
        self.categories: dict[str, int] = {}
        self.parts: dict[str, int] = {}
        self.phase = groups.phase
        self.category: list[int] = []
        self.part: list[int] = []
        for name, kind, phase in zip(groups.name, groups.kind, groups.phase, strict=True):
            if kind in (KERNEL, GRAPH):
                text = headings.category(category[name]) if kind == KERNEL else graphs.CATEGORY
                working = OPERATORS if on_cpu else COMPUTE
                part = part_key(COMMUNICATION if text == COMMUNICATION else working, PHASES[phase])
            else:
                copied = copy_called(name)
                text = copied if copied == "memset" else f"copies {copied}"
                part = part_key(COPY, copied)
            self.category.append(self.categories.setdefault(text, len(self.categories)))
            self.part.append(self.parts.setdefault(part, len(self.parts)))

    def as_json(self, first: Int64s) -> dict[str, Any]:
        """Return the names, and the columns at the first group of each row."""
        columns = {"phase": self.phase, "category": self.category, "part": self.part}
        return {
            "phases": [headings.phase(phase) for phase in PHASES],
            "categories": list(self.categories),
            "parts": list(self.parts),
            **{name: packed(np.array(column, np.int64)[first]) for name, column in columns.items()},
        }


def part_key(kind: str, detail: str) -> str:
    """Return a page's name for a part of a step in its address: `compute backward`, `idle launching`."""
    return f"{kind} {headings.phase(detail)}"


def path_texts(path: Path) -> list[str]:
    """Return a path's names for a page; work outside all ranges has a word of its own."""
    texts = []
    for name in path:
        if isinstance(name, ModuleName) and name.joined:
            texts.append(JOINED + fit(name.joined, LONGEST_RANGE))
        else:
            texts.append(fit(label((name,)), LONGEST_RANGE))
    return texts or [NOWHERE]


def _kernel_texts(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each kernel's short name, distinct among these, and its full one."""
    names = list(names)
    texts = []
    for name, short_name in zip(names, distinct_short_names(names), strict=True):
        texts.append((short_name or fit(name, LONGEST_RANGE), fit(name, LONGEST_KERNEL)))
    return texts
