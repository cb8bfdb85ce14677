"""How good the time of each operator is: its kernels' time against the FLOPs and bytes that its shapes tell.

```
kernel ──► launch ──► operator that counts ──► its recorded call ──► cost (analysis.operators)
   │                                                                      │
   └─ time, arithmetic, place in the program                              └─ FLOPs, least bytes, sizes
```

A row is all calls of one operator with the same sizes and types in one place. Its bound is the least time in which
the GPU could compute and move that much: FLOPs at the arithmetic's peak or bytes at the memory's, whichever takes
longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.operators import Launchers, launchers
from ..attribution.places import Paths
from ..kernel_names.arithmetic import arithmetic_of
from ..kernel_names.categories import classify
from ..kernel_names.short import number_type
from ..operators import Cost, OperatorCall, call_of_text, cost_of
from ..readers.columns import Interner
from ..report import Number, Path, quotient
from ..support.small_numbers import distinct, each_row, grouped_rows, looked_up, summed
from ..trace import BETWEEN_TEXTS, KERNEL, Bools, Int32s, Int64s, Trace
from ..vocabulary import PHASES
from ..vocabulary.modules import Naming
from .gpu_peaks import Peak

NOBODY = -1
COMPUTE, MEMORY = "compute", "memory"
COMMUNICATION = "communication"
#: How an answer calls what no operator launched, such as replays of CUDA graphs.
NO_OPERATOR = "(no operator)"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All calls of an operator with the same sizes and types in one place, and their kernels.

    `flops` and `bytes` are None where shapes do not tell them; `least_flops` leaves out what a causal mask lets a
    kernel skip. `arithmetic` is the operands' type, or `tf32` where kernels say so.
    """

    operator: str
    shape: str
    dtype: str
    arithmetic: str
    path: Path
    phase: str
    recompute: bool
    category: str
    calls: Number
    kernels: Number
    kernel_ns: Number
    flops: float | None
    least_flops: float | None
    bytes: float | None
    is_fp32: bool = False  # whether names of kernels show that tensor cores were not used

    def per_second(self, amount: float | None) -> float | None:
        """Divide an amount by the kernel time."""
        return amount / (self.kernel_ns / 1e9) if amount and self.kernel_ns else None

    @property
    def is_known(self) -> bool:
        """Whether shapes tell what it computes and moves."""
        return self.flops is not None and (self.bytes is not None or self.flops > 0)

    def bound_ns(self, peak: Peak) -> float | None:
        """Return the least time of its FLOPs and bytes; None where these or the arithmetic's peak are unknown."""
        if not self.is_known:
            return None
        rate = self._rate(peak)
        if self.least_flops and rate is None:
            return None
        compute_s = (self.least_flops or 0) / rate if rate else 0.0
        return 1e9 * max(compute_s, (self.bytes or 0) / peak.bytes)

    def _rate(self, peak: Peak) -> float | None:
        """Return the peak of its arithmetic, FLOP/s: of TF32 where names tell nothing and fp32 is not so fast."""
        rate = peak.flops(self.arithmetic)
        if (
            self.arithmetic == "fp32"
            and not self.is_fp32
            and (self.per_second(self.least_flops) or 0) > (rate or 0)
        ):
            return peak.flops("tf32")
        return rate

    def bound(self, peak: Peak) -> str | None:
        """Return whether FLOPs or bytes set its least time."""
        bound_ns = self.bound_ns(peak)
        if not bound_ns:
            return None
        return MEMORY if (self.bytes or 0) / peak.bytes * 1e9 == bound_ns else COMPUTE

    def divided(self, steps: int) -> OperatorRow:
        """Return the row with its sums divided by a number of steps."""
        sums: dict[str, Any] = {}
        for name in ("calls", "kernels", "kernel_ns", "flops", "least_flops", "bytes"):
            value = getattr(self, name)
            sums[name] = value if value is None else quotient(value, steps)
        return replace(self, **sums)


class WorkShapes:
    """The operators of a part of the work, their calls and what these cost; arrays are per piece of work.

    `call` is a position in `costs` and `calls`, -1 where no operator that counts, with known shapes, launched it.
    `instance` tells the calls of operators apart, -1 without an operator.
    """

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        trace = attribution.trace
        self.trace = trace
        around = launchers(trace, attribution.facts)
        launch = trace.work.launch
        self.instance: Int32s = looked_up(around.operator, launch, NOBODY).astype(np.int32)
        self.operators = around.ranges
        counted = looked_up(around.counted, launch, NOBODY)
        self.call: Int32s = looked_up(_recorded_calls(trace, around), counted, NOBODY).astype(np.int32)

    @cached_property
    def calls(self) -> list[OperatorCall | None]:
        """The distinct calls that were recorded; None for one whose sizes are damaged."""
        return [call_of_text(name, *texts.split(BETWEEN_TEXTS)) for name, texts in self.trace.operator_calls]

    @cached_property
    def costs(self) -> list[Cost | None]:
        """What each call computes and moves, as far as that does not depend on the types of lists."""
        return [cost_of(call) if call else None for call in self.calls]

    def marked(self, fits: Callable[[OperatorCall, Cost], bool]) -> Bools:
        """Mark the work of operators whose call fits, such as products that are not aligned."""
        pairs = zip(self.calls, self.costs, strict=True)
        fit = [bool(call and cost and fits(call, cost)) for call, cost in pairs]
        return np.array([*fit, False], np.bool_)[self.call]

    def least_ns(self, peak: Peak, arithmetic: str = "") -> NDArray[np.float64]:
        """Return the least time of each piece's operator, divided among its pieces by their time; NaN if unknown.

        `arithmetic` asks for another than the operands' type, such as `tf32`.
        """
        bounds = [_row_of(cost, arithmetic).bound_ns(peak) if cost else None for cost in self.costs]
        least = np.array([np.nan if bound is None else bound for bound in [*bounds, None]])[self.call]
        duration = self.trace.work.duration_ns.astype(np.float64)
        total = np.bincount(self.instance + 1, duration, len(self.operators) + 1)[self.instance + 1]
        return least * duration / np.maximum(total, 1)


def _row_of(cost: Cost, arithmetic: str) -> OperatorRow:
    figures = (cost.flops, cost.least_flops, cost.bytes)
    return OperatorRow("", "", cost.dtype, arithmetic or cost.dtype, (), "", False, "", 1, 1, 0, *figures)


def _recorded_calls(trace: Trace, around: Launchers) -> Int32s:
    """Return the recorded call of each operator range, -1 without: int32 (ranges,)."""
    recorded = trace.operators
    ranges = around.ranges
    calls = np.full(len(ranges), NOBODY, np.int32)
    if recorded is None or not len(ranges):
        return calls
    number = {name: name_id for name_id, name in enumerate(trace.names)}
    name_of_call = np.array([number.get(name, NOBODY) for name, _ in trace.operator_calls], np.int64)
    columns = [
        np.concatenate([recorded.thread, ranges.thread]),
        np.concatenate([recorded.start_ns, ranges.start_ns]),
        np.concatenate([name_of_call[recorded.call], ranges.name_id]),
    ]
    groups, group = grouped_rows(*columns)
    of_group = np.full(len(groups[0]), NOBODY, np.int32)
    of_group[group[: len(recorded)]] = recorded.call
    return of_group[group[len(recorded) :]]


#: Decides by the path and phase of an operator's call whether it counts.
Wanted = Callable[[Path, str], bool]


def operator_rows(
    shapes: WorkShapes, naming: Naming = tuple, *, steps: int = 1, wanted: Wanted | None = None
) -> list[OperatorRow]:
    """Return the rows of kernels, longest first, divided by `steps`; paths are named by `naming`."""
    attribution = shapes.attribution
    trace = shapes.trace
    work = shapes.trace.work
    kernels = np.flatnonzero(work.kind == KERNEL)
    paths = Paths(attribution)
    if wanted is not None:
        kernels = kernels[_are_wanted(shapes, paths, kernels, wanted)]
    if not len(kernels):
        return []
    number = Interner[Path]()
    names = [number(naming(path)) for path in paths.names]
    node = attribution.node[_first_of_instances(shapes, kernels)]
    instance = shapes.instance[kernels]
    operator = looked_up(shapes.operators.name_id, instance, NOBODY)
    columns = (
        operator,
        shapes.call[kernels],
        np.array(names)[paths.names_of_node[node]],
        attribution.phase[kernels],
        looked_up(attribution.recompute, node, False).astype(np.int8),
    )
    groups, group = grouped_rows(*columns)
    count = len(groups[0])
    kernel_ns = summed(group, work.duration_ns[kernels], count)
    launches = np.bincount(group, minlength=count)
    (owner, _), _ = grouped_rows(group, instance.astype(np.int64))
    calls = np.bincount(owner, minlength=count)
    kernel_names = _names_of_groups(group, work.name_id[kernels], work.duration_ns[kernels])
    named = list(number)
    describe = _Describing(shapes)
    rows = []
    for place, (name_id, call, path, phase, again) in enumerate(each_row(*groups)):
        row = OperatorRow(
            operator=trace.names[name_id] if name_id >= 0 else NO_OPERATOR,
            shape="",
            dtype="",
            arithmetic="",
            path=named[path],
            phase=PHASES[phase],
            recompute=bool(again),
            category=describe.category(kernel_names[place]),
            calls=int(calls[place]) if name_id >= 0 else int(launches[place]),
            kernels=int(launches[place]),
            kernel_ns=int(kernel_ns[place]),
            flops=None,
            least_flops=None,
            bytes=None,
        )
        rows.append(describe.with_cost(row, call, kernel_names[place]).divided(steps))
    return sorted(rows, key=lambda row: (-row.kernel_ns, row.operator, row.shape, row.path, row.phase))


@dataclass(frozen=True, slots=True)
class OperatorKernel:
    """One kernel under the operator that launched it, in one phase; `count` are its launches."""

    operator: str
    kernel: str
    category: str
    phase: str
    count: Number
    total_ns: Number


def kernels_by_operator(
    shapes: WorkShapes, *, steps: int = 1, wanted: Wanted | None = None
) -> list[OperatorKernel]:
    """Return each operator's kernels, longest first, divided by `steps`."""
    attribution = shapes.attribution
    trace = shapes.trace
    work = shapes.trace.work
    kernels = np.flatnonzero(work.kind == KERNEL)
    if wanted is not None:
        kernels = kernels[_are_wanted(shapes, Paths(attribution), kernels, wanted)]
    operator = looked_up(shapes.operators.name_id, shapes.instance[kernels], NOBODY)
    groups, group = grouped_rows(operator, work.name_id[kernels], attribution.phase[kernels])
    total_ns = summed(group, work.duration_ns[kernels], len(groups[0])).tolist()
    count = np.bincount(group, minlength=len(groups[0])).tolist()
    categories = classes_of(trace)
    rows = [
        OperatorKernel(
            trace.names[name_id] if name_id >= 0 else NO_OPERATOR,
            trace.names[kernel],
            categories[kernel],
            PHASES[phase],
            quotient(launches, steps),
            quotient(time_ns, steps),
        )
        for name_id, kernel, phase, launches, time_ns in zip(
            *(key.tolist() for key in groups), count, total_ns, strict=True
        )
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.operator, row.kernel, row.phase))


def classes_of(trace: Trace) -> dict[int, str]:
    """Return the category of each kernel's name, by its id."""
    ids = distinct(trace.work.name_id[trace.work.kind == KERNEL]).tolist()
    classes = classify([trace.names[number] for number in ids], trace.categories)
    return {number: category for number, (category, _) in zip(ids, classes, strict=True)}


def _are_wanted(shapes: WorkShapes, paths: Paths, kernels: Int64s, wanted: Wanted) -> Bools:
    """Mark the kernels of operators that are called in a wanted place."""
    attribution = shapes.attribution
    node = attribution.node[_first_of_instances(shapes, kernels)]
    pairs, pair = grouped_rows(paths.names_of_node[node], attribution.phase[kernels])
    are_wanted = [wanted(paths.names[path], PHASES[phase]) for path, phase in each_row(*pairs)]
    return np.array(are_wanted, np.bool_)[pair]


def _first_of_instances(shapes: WorkShapes, kernels: Int64s) -> Int64s:
    """Return for each kernel the first of its operator's call, which is where all of them are counted."""
    instance = shapes.instance[kernels]
    first = np.full(len(shapes.operators) + 1, len(shapes.trace.work), np.int64)
    np.minimum.at(first, instance, kernels)
    return np.where(instance >= 0, first[instance], kernels)


def _names_of_groups(group: Int64s, name_id: Int32s, duration_ns: Int64s) -> list[list[int]]:
    """Return the ids of the names of each group's kernels, the one with the most time first."""
    (of_group, name), pair = grouped_rows(group, name_id)
    total_ns = summed(pair, duration_ns, len(name))
    order = np.lexsort((-total_ns, of_group))
    parts = np.split(name[order], np.cumsum(np.bincount(of_group))[:-1])
    return [part.tolist() for part in parts]


class _Describing:
    """Puts into rows what their calls cost; types of lists, and TF32, are known by the names of kernels."""

    def __init__(self, shapes: WorkShapes) -> None:
        self._shapes = shapes
        self._names = shapes.trace.names
        self._category = classes_of(shapes.trace)
        self._cost: dict[tuple[int, str], Cost] = {}

    def category(self, kernels: Sequence[int]) -> str:
        """Return the category of the kernel with the most time."""
        return self._category[kernels[0]]

    def with_cost(self, row: OperatorRow, call: int, kernels: Sequence[int]) -> OperatorRow:
        """Return the row with sizes, type, FLOPs and bytes of all its calls."""
        if call < 0 or self._shapes.calls[call] is None:
            return row
        cost = self._cost_of(call, kernels)
        flops, least_flops, moved = (
            value and value * row.calls for value in (cost.flops, cost.least_flops, cost.bytes)
        )
        kinds = {arithmetic_of(self._names[kernel]) for kernel in kernels} if cost.flops else set()
        is_tf32 = cost.dtype == "fp32" and "tf32" in kinds
        return replace(
            row,
            shape=cost.shape,
            dtype=cost.dtype,
            arithmetic="tf32" if is_tf32 else cost.dtype,
            is_fp32="fp32" in kinds,
            flops=flops,
            least_flops=least_flops,
            bytes=moved,
        )

    def _cost_of(self, call: int, kernels: Iterable[int]) -> Cost:
        cost = self._shapes.costs[call]
        described = self._shapes.calls[call]
        assert cost is not None
        assert described is not None
        if cost.bytes is not None or not described.has_lists:
            return cost
        dtype = next(filter(None, (number_type(self._names[kernel]) for kernel in kernels)), "")
        key = call, dtype
        if key not in self._cost:
            self._cost[key] = cost_of(described, of_lists=dtype)
        return self._cost[key]


def unknown_rows(rows: Iterable[OperatorRow]) -> list[OperatorRow]:
    """Return the rows that compute, but whose shapes do not give how much."""
    return [row for row in rows if not row.is_known and row.category != COMMUNICATION]
