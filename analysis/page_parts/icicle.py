"""The ranges as an icicle: a box is as wide as the time of the kernels inside, which are the innermost boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from analysis.page_parts.names import kernel_texts, path_texts
from analysis.report import KernelRow, Number, Path, Report
from analysis.selection import collapsed_path
from analysis.tables import PATH_SEPARATOR
from analysis.views import graphs
from analysis.views.wording import worded

MAX_BOXES = 1_200
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
    rows = [row for row in report.kernels if row.kind == "kernel"]
    above = common_path([row.path for row in rows])
    root = _tree(rows, len(above), {row.path: row.phase for row in report.ranges})
    with_graphs = any(row.category == graphs.CATEGORY for row in rows)
    root.label = worded(f"all {graphs.COUNTED if with_graphs else 'kernels'}", report.provenance)
    boxes = _chosen(root)
    return {
        "above": path_texts(collapsed_path(above)) if above else [],
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
    together = zip(*(path[:-1] for path in paths), strict=False)
    return tuple(names[0] for names in takewhile(lambda names: len(set(names)) == 1, together))


def _tree(rows: Sequence[KernelRow], skipped: int, phases: dict[Path, str]) -> _Box:
    root = _Box("", "", "all", "")
    texts = kernel_texts(row.kernel for row in rows)
    for row in rows:
        box = root
        _add(box, row)
        for depth in range(skipped + 1, len(row.path) + 1):
            box = _inner(box, row.path[:depth], phases.get(row.path[:depth], row.phase))
            _add(box, row)
        if not row.path:
            box = _inner(box, (), row.phase)
            _add(box, row)
        short, full = texts[row.kernel]
        leaf = box.inner.setdefault((row.kernel, row.phase), _Box(short, row.phase, "kernel", full, parent=box))
        _add(leaf, row)
    return root


def _inner(box: _Box, path: Path, phase: str) -> _Box:
    if path not in box.inner:
        names, name = path_texts(path), path_texts(collapsed_path(path[-1:]))[-1]
        box.inner[path] = _Box(names[-1], phase, "range", PATH_SEPARATOR.join(names), name, box)
    return box.inner[path]


def _add(box: _Box, row: KernelRow) -> None:
    box.ns += row.total_ns
    box.count += row.count


def _chosen(root: _Box) -> list[_Box]:
    """Keep the widest boxes, outer before inner; the others of a box are one more inside it."""
    every = sorted(
        _all_inside(root), key=lambda box: -box.ns
    )  # stable, so an outer box stays before its inner ones
    kept = [box for box in every[: MAX_BOXES - 1] if box.ns >= root.ns * SMALLEST]
    boxes = [root, *kept]
    for number, box in enumerate(boxes):
        box.number = number
    dropped: dict[int, list[_Box]] = defaultdict(list)
    for box in every[len(kept) :]:
        if box.parent and box.parent.number >= 0:
            dropped[box.parent.number].append(box)
    return [*boxes, *(_rest(boxes[number], inside) for number, inside in dropped.items())]


def _all_inside(root: _Box) -> Iterable[_Box]:
    todo = [root]
    while todo:
        box = todo.pop()
        yield from box.inner.values()
        todo.extend(box.inner.values())


def _rest(parent: _Box, inside: Sequence[_Box]) -> _Box:
    phases = {box.phase for box in inside}
    return _Box(
        f"{len(inside)} smaller",
        phases.pop() if len(phases) == 1 else parent.phase,
        "rest",
        "too narrow to be drawn",
        parent=parent,
        ns=sum(box.ns for box in inside),
        count=sum(box.count for box in inside),
    )
