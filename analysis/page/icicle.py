"""The ranges as an icicle: a box is as wide as the time of the kernels inside, which are the innermost boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..kernel_names.short import distinct_short_names
from ..report import KernelRow, Number, Path, Report
from ..summary.selection import naming_of
from ..support.text import fit
from ..views import graphs, headings
from ..views.headings import worded
from ..views.rows import NOWHERE, common_length, label
from ..vocabulary.modules import ModuleName, Naming

T = TypeVar("T")

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
    root = _tree(rows, len(above), _phases(report), naming_of(report))
    with_graphs = any(row.category == graphs.CATEGORY for row in rows)
    root.label = worded(f"all {graphs.COUNTED if with_graphs else 'kernels'}", report.provenance)
    boxes = _chosen(root)
    return {
        "above": path_texts(naming_of(report)(above)) if above else [],
        "label": [box.label for box in boxes],
        "name": [box.name for box in boxes],
        "detail": [box.detail for box in boxes],
        "parent": [box.parent.number if box.parent else -1 for box in boxes],
        "ns": [box.ns for box in boxes],
        "count": [box.count for box in boxes],
        "phase": [box.phase for box in boxes],
        "kind": [box.kind for box in boxes],
    }


def _phases(report: Report) -> dict[Path, str]:
    """Return each range's phase; "" where it is in several, as a serving engine's modules are."""
    phase_of: dict[Path, str] = {}
    for row in report.ranges:
        phase_of[row.path] = row.phase if phase_of.get(row.path, row.phase) == row.phase else ""
    return phase_of


def common_path(paths: Sequence[Path]) -> Path:
    """Return the ranges that all paths begin with; never a whole path."""
    return paths[0][: common_length(path[:-1] for path in paths)] if all(paths) and paths else ()


def _tree(rows: Sequence[KernelRow], skipped: int, phases: dict[Path, str], naming: Naming) -> _Box:
    root = _Box("", "", "all", "")
    texts = kernel_texts(row.kernel for row in rows)
    for row in rows:
        box = root
        _add(box, row)
        for depth in range(skipped + 1, len(row.path) + 1):
            box = _inner(box, row.path[:depth], phases.get(row.path[:depth], row.phase), naming)
            _add(box, row)
        if not row.path:
            box = _inner(box, (), row.phase, naming)
            _add(box, row)
        short, full = texts[row.kernel]
        leaf = box.inner.setdefault((row.kernel, row.phase), _Box(short, row.phase, "kernel", full, parent=box))
        _add(leaf, row)
    return root


def _inner(box: _Box, path: Path, phase: str, naming: Naming) -> _Box:
    if path not in box.inner:
        own_text, text = fit(label(path[-1:]), LONGEST_RANGE), fit(label(path), LONGEST_KERNEL)
        box.inner[path] = _Box(own_text, phase, "range", text, path_texts(naming(path))[-1], box)
    return box.inner[path]


def _add(box: _Box, row: KernelRow) -> None:
    box.ns += row.total_ns
    box.count += row.count


def _chosen(root: _Box) -> list[_Box]:
    """Keep the widest boxes, outer before inner; the others of a box are one more inside it."""
    every = sorted(
        _all_inside(root), key=lambda box: -box.ns
    )  # stable, so an outer box stays before its inner ones
    widest = [box for box in every[: MAX_BOXES - 1] if box.ns >= root.ns * SMALLEST]
    boxes = [root, *widest]
    for number, box in enumerate(boxes):
        box.number = number
    dropped: dict[int, list[_Box]] = defaultdict(list)
    for box in every[len(widest) :]:
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


MAX_ROWS = 2_500


def kernel_rows(report: Report) -> dict[str, Any]:
    """Return the longest rows as columns, the names they refer to, and the sum of what is left out.

    Columns: kernel (position in `kernels`), path (position in `paths`), phase, category, ns, count, and the
    shortest and longest single launch.
    """
    rows = sorted((row for row in report.kernels if row.kind == "kernel"), key=lambda row: -row.total_ns)
    longest, left_out = rows[:MAX_ROWS], rows[MAX_ROWS:]
    texts = kernel_texts(row.kernel for row in longest)
    kernel, path = _Numbers[str](), _Numbers[Path]()
    columns = {
        "kernel": [kernel(row.kernel) for row in longest],
        "path": [path(row.path) for row in longest],
        "phase": [row.phase for row in longest],
        "category": [headings.category(row.category) for row in longest],
        "ns": [row.total_ns for row in longest],
        "count": [row.count for row in longest],
        "min_ns": [row.min_ns for row in longest],
        "max_ns": [row.max_ns for row in longest],
    }
    return {
        **columns,
        "kernels": [texts[name] for name in kernel.numbered],
        "paths": [path_texts(path) for path in path.numbered],
        "left_out": {"rows": len(left_out), "ns": sum(row.total_ns for row in left_out)},
        "total_ns": sum(row.total_ns for row in rows),
    }


class _Numbers(Generic[T]):
    """Numbers values in the order in which they are first asked for: the order of `numbered`."""

    def __init__(self) -> None:
        self.numbered: dict[T, int] = {}

    def __call__(self, value: T) -> int:
        """Return the number of a value."""
        return self.numbered.setdefault(value, len(self.numbered))


LONGEST_KERNEL, LONGEST_RANGE = 1_000, 120


#: Begins a name that a page writes directly behind the one before it, as in `layers.3` and `.mlp`.
JOINED = "\u2060"


def path_texts(path: Path) -> list[str]:
    """Return a path's names for a page; work outside all ranges has a word of its own."""
    return [_page_text(name) for name in path] or [NOWHERE]


def _page_text(name: str) -> str:
    if isinstance(name, ModuleName) and name.joined:
        return JOINED + fit(name.joined, LONGEST_RANGE)
    return fit(label((name,)), LONGEST_RANGE)


def kernel_texts(kernels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return per kernel name its short form, distinct among these, and its full one."""
    names = list(dict.fromkeys(kernels))
    short = distinct_short_names(names)
    return {
        name: (text or fit(name, LONGEST_RANGE), fit(name, LONGEST_KERNEL))
        for name, text in zip(names, short, strict=True)
    }
