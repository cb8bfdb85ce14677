"""The ranges as an icicle: a box is as wide as the time of the kernels inside, which are the innermost boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..kernel_names.short import distinct_short_names
from ..report import Number, Path, Report
from ..summary.selection import naming_of
from ..support.text import fit
from ..views import graphs, headings
from ..views.headings import worded
from ..views.rows import NOWHERE, common_length, kernels_of, label
from ..vocabulary.modules import ModuleName

MAX_BOXES, MAX_ROWS = 1_200, 2_500
LONGEST_KERNEL, LONGEST_RANGE = 1_000, 120
#: Begins a name that a page writes directly behind the one before it, as in `layers.3` and `.mlp`.
JOINED = "\u2060"
SMALLEST = 1 / 4_000  # of the whole: narrower boxes cannot be seen


@dataclass(slots=True)
class _Box:
    label: str
    phase: str
    kind: str  # "all", "range", "kernel", "rest"
    detail: str
    name: str = ""
    parent: _Box | None = None
    ns: Number = 0
    count: Number = 0
    number: int = -1
    inner: dict[object, _Box] = field(default_factory=dict)


def icicle(report: Report) -> dict[str, Any]:
    """Return the boxes as columns: label, detail (name or path in full), parent (position, -1), ns, count, phase.

    The boxes directly inside another sum to it exactly: what is too small to be seen, or beyond `MAX_BOXES`, is
    one box that says how many it stands for. `kind` says what a box is: all, range, kernel or rest. `name` is what
    a range is called with its indices collapsed. `above` are the ranges around everything, which get no box.
    """
    rows, naming = kernels_of(report), naming_of(report)
    above = common_path([row.path for row in rows])
    with_graphs = any(row.category == graphs.CATEGORY for row in rows)
    whole = worded(f"all {graphs.COUNTED if with_graphs else 'kernels'}", report.provenance)
    phase_of: dict[Path, str] = {}  # "" of a range in several phases, as a serving engine's modules are
    for range_ in report.ranges:
        same = phase_of.get(range_.path, range_.phase) == range_.phase
        phase_of[range_.path] = range_.phase if same else ""
    root, texts = _Box(whole, "", "all", ""), kernel_texts(row.kernel for row in rows)
    for row in rows:
        around = [root]
        for path in [row.path[:depth] for depth in range(len(above) + 1, len(row.path) + 1)] or [()]:
            outer = around[-1]
            if path not in outer.inner:
                own_text, text = fit(label(path[-1:]), LONGEST_RANGE), fit(label(path), LONGEST_KERNEL)
                phase = phase_of.get(path, row.phase)
                outer.inner[path] = _Box(own_text, phase, "range", text, path_texts(naming(path))[-1], outer)
            around.append(outer.inner[path])
        leaf = _Box(texts[row.kernel][0], row.phase, "kernel", texts[row.kernel][1], parent=around[-1])
        for box in (*around, around[-1].inner.setdefault((row.kernel, row.phase), leaf)):
            box.ns += row.total_ns
            box.count += row.count
    boxes = _chosen(root)
    return {
        "above": path_texts(naming(above)) if above else [],
        "label": [box.label for box in boxes],
        "name": [box.name for box in boxes],
        "detail": [box.detail for box in boxes],
        "parent": [box.parent.number if box.parent else -1 for box in boxes],
        "ns": [box.ns for box in boxes],
        "count": [box.count for box in boxes],
        "phase": [box.phase for box in boxes],
        "kind": [box.kind for box in boxes],
    }


def common_path(paths: Sequence[Path]) -> Path:
    """Return the ranges that all paths begin with; never a whole path."""
    return paths[0][: common_length(path[:-1] for path in paths)] if all(paths) and paths else ()


def _chosen(root: _Box) -> list[_Box]:
    """Keep the widest boxes, outer before inner; the others of a box are one more inside it."""
    every: list[_Box] = []
    unseen = [root]
    while unseen:
        inner = unseen.pop().inner.values()
        every += inner
        unseen += inner
    every.sort(key=lambda box: -box.ns)  # stable, so an outer box stays before its inner ones
    widest = [box for box in every[: MAX_BOXES - 1] if box.ns >= root.ns * SMALLEST]
    boxes = [root, *widest]
    for number, box in enumerate(boxes):
        box.number = number
    dropped: dict[int, list[_Box]] = defaultdict(list)
    for box in every[len(widest) :]:
        if box.parent and box.parent.number >= 0:
            dropped[box.parent.number].append(box)
    for number, inside in dropped.items():
        parent, phases = boxes[number], {box.phase for box in inside}
        phase = phases.pop() if len(phases) == 1 else parent.phase
        joined = _Box(f"{len(inside)} smaller", phase, "rest", "too narrow to be drawn", parent=parent)
        joined.ns, joined.count = sum(box.ns for box in inside), sum(box.count for box in inside)
        boxes.append(joined)
    return boxes


def kernel_rows(report: Report) -> dict[str, Any]:
    """Return the longest rows as columns, the names they refer to, and the sum of what is left out.

    Columns: kernel (position in `kernels`), path (position in `paths`), phase, category, ns, count, and the
    shortest and longest single launch.
    """
    rows = sorted(kernels_of(report), key=lambda row: -row.total_ns)
    longest, left_out = rows[:MAX_ROWS], rows[MAX_ROWS:]
    texts = kernel_texts(row.kernel for row in longest)
    kernel_numbers = {name: number for number, name in enumerate(texts)}
    path_numbers = {path: number for number, path in enumerate(dict.fromkeys(row.path for row in longest))}
    return {
        "kernel": [kernel_numbers[row.kernel] for row in longest],
        "path": [path_numbers[row.path] for row in longest],
        "phase": [row.phase for row in longest],
        "category": [headings.category(row.category) for row in longest],
        "ns": [row.total_ns for row in longest],
        "count": [row.count for row in longest],
        "min_ns": [row.min_ns for row in longest],
        "max_ns": [row.max_ns for row in longest],
        "kernels": list(texts.values()),
        "paths": [path_texts(path) for path in path_numbers],
        "left_out": {"rows": len(left_out), "ns": sum(row.total_ns for row in left_out)},
        "total_ns": sum(row.total_ns for row in rows),
    }


def path_texts(path: Path) -> list[str]:
    """Return a path's names for a page; work outside all ranges has a word of its own."""
    return [
        JOINED + fit(name.joined, LONGEST_RANGE)
        if isinstance(name, ModuleName) and name.joined
        else fit(label((name,)), LONGEST_RANGE)
        for name in path
    ] or [NOWHERE]


def kernel_texts(kernels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return per kernel name its short form, distinct among these, and its full one."""
    names = list(dict.fromkeys(kernels))
    short = distinct_short_names(names)
    return {
        name: (text or fit(name, LONGEST_RANGE), fit(name, LONGEST_KERNEL))
        for name, text in zip(names, short, strict=True)
    }
