"""The answer as data: what presenters show and what `--format json` promises.

Every `_ns` is nanoseconds over all measured steps, or per step (then perhaps a fraction) in a report that
`per_step` made. *Kernel* figures count kernels only; *work* figures also copies, memsets and whole CUDA graphs.

This room may import `errors`, `trace`, `vocabulary`, `kernel_names` and `support`. It promises that its sums add
up exactly: over phases, over ranges and over reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from operator import add, attrgetter, sub
from typing import Any, TypeVar

from ..errors import ReportError
from ..kernel_names.spelling import spelled_like
from ..trace import Path as Path
from ..trace import Provenance
from ..vocabulary.modules import agreed
from .account import Account, idle_as_json, merged_accounts
from .account import as_json as account_as_json
from .evidence import STEP
from .evidence import TO_HAVE_STEPS as TO_HAVE_STEPS
from .limits import BusyRow, busy_rows
from .recording import Recording, as_json

Number = int | float


@dataclass(frozen=True, slots=True)
class Totals:
    """All GPU work of the report: `work_ns` is the sum of the seven parts below it, to the nanosecond."""

    work_ns: Number
    kernel_ns: Number
    own_ns: Number  # launched inside ranges of the launching thread
    adopted_ns: Number  # launched on autograd's thread while another waited in the ranges it is given to
    linked_ns: Number  # led to its forward operator by autograd's sequence number
    captured_ns: Number  # replayed by a CUDA graph, and led to the ranges of its capture
    outside_ns: Number  # inside no range, or without a launch row
    ambiguous_ns: Number  # two threads could have waited for it
    excluded_ns: Number  # in warm-up


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase: forward, backward, optimizer or other."""

    phase: str
    kernel_ns: Number
    kernels: Number
    gemm_ns: Number  # with the split-K helpers' time
    gemm_kernels: Number  # without the helpers' launches
    work_ns: Number


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One path of ranges, over all its instances; None is what does not exist, as a linked path's CPU range."""

    path: Path
    phase: str
    instances: Number | None
    kernels: Number  # launched inside, at any depth
    self_kernels: Number  # launched inside, but in no range below
    self_ns: Number
    inclusive_ns: Number
    self_work_ns: Number
    inclusive_work_ns: Number
    span_ns: Number | None  # per instance first start to last end of its work, summed over instances
    cpu_ns: Number | None  # the ranges' own durations on the CPU


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel (or kind of copy) directly in one path; the path is empty for work outside all ranges."""

    path: Path
    phase: str
    kind: str
    kernel: str
    category: str
    count: Number
    total_ns: Number
    min_ns: int
    max_ns: int
    gemm_launch: bool = False


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """Work that could not be assigned to a range: its kind, its amount, and the reason."""

    reason: str
    kind: str
    count: Number
    total_ns: Number


@dataclass(frozen=True, slots=True)
class Report:
    """A whole answer."""

    provenance: Provenance
    totals: Totals
    phases: tuple[PhaseRow, ...]
    ranges: tuple[RangeRow, ...]
    kernels: tuple[KernelRow, ...]
    outside: tuple[OutsideRow, ...] = ()
    steps: int = 0  # measured steps with work, of all processes together
    counted_steps: int = 0  # those of them that count for figures per step
    ranks: int = 0  # processes that have measured steps
    step: str = ""  # what the ranges counted as steps are called, if not by the usual names
    phase_names: tuple[tuple[str, str], ...] = ()  # and what the phases'
    per_step: bool = False
    warm_up_included: bool = False
    unmeasured_ns: int = 0  # work in no measured step, and not in warm-up, whatever the other figures are over
    # Of all work, and of each phase's, what lies in no measured step, in no warm-up and in no evaluation, and the
    # whole, ns: ("", 3, 10), ("forward", 3, 4). Empty without measured steps.
    unaccounted: tuple[tuple[str, int, int], ...] = ()
    no_steps: str = ""  # why the report has no steps, although some ranges could be steps
    warm_up_ns: int = 0  # of a report per step, the work in warm-up that its totals leave out
    no_launch_ns: int = 0  # and the work without a launch, whose step is not known
    notes: tuple[str, ...] = ()
    account: Account | None = None  # of a step, or of all that was recorded; None without work
    recording: Recording | None = None  # what it cost; None without steps, and of several reports added up
    # The same of the work in the steps that count, where some work lies in none; it follows from the rest.
    counted: Report | None = field(default=None, compare=False, repr=False)

    @property
    def has_work_in_steps(self) -> bool:
        """Whether there is work in steps that count, so that figures per step say something."""
        return bool(self.counted_steps and (self.counted or self).kernels)

    @property
    def step_ns(self) -> Number | None:
        """How long a step takes, from the end of one step's work to the end of the next's; None if unknown."""
        return self.account.step_ns if self.account else None

    @property
    def unit(self) -> str:
        """What figures per step are per: a step, or the range of another name that begins one."""
        return self.account.evidence.unit if self.account else STEP

    @property
    def busy(self) -> tuple[BusyRow, ...]:
        """How long the GPUs are busy in each phase, and what limits it."""
        launches = {row.phase: row.kernels for row in self.phases}
        return busy_rows(self.account, launches, self.recording, per_step=self.per_step)

    @property
    def all_warm_up(self) -> str:
        """Why nothing is left, if all work is in warm-up; else empty."""
        if not self.totals.work_ns or self.totals.excluded_ns != self.totals.work_ns:
            return ""
        return f"All {self.provenance.unit_of_work} work is in warm-up and left out; --include-warmup counts it."


Row = TypeVar("Row", bound=Any)  # a dataclass: a row above, or one of a measure's

# Why work is in no range.
NO_LAUNCH, LAUNCHED_OUTSIDE = "because the report has no launch of it", "launched outside all ranges"
COULD_BE_OF_TWO = "because two threads could have waited for it"

# Not multiplied by the number of steps, so not divided by it either.
_PER_LAUNCH = frozenset({"min_ns", "max_ns", "largest_ns"})


def per_step(report: Report) -> Report:
    """Divide the figures of the work in the steps that count by their number; other work is in no mean.

    Raises ReportError if the report has no steps.
    """
    if report.per_step:
        return report
    if not report.counted_steps and report.no_steps:
        raise ReportError(report.no_steps)
    if not report.counted_steps:
        raise ReportError(
            "The report has no measured step ranges, so figures per step are not available. "
            f"{TO_HAVE_STEPS}, or leave out --per-step."
        )
    counted = report.counted or report

    steps = report.counted_steps
    return replace(
        report,
        totals=_divided([counted.totals], steps)[0],
        phases=_divided(counted.phases, steps),
        ranges=_divided(counted.ranges, steps),
        kernels=_divided(counted.kernels, steps),
        outside=_divided(counted.outside, steps),
        per_step=True,
        warm_up_ns=int(report.totals.excluded_ns),
        no_launch_ns=int(sum(row.total_ns for row in report.outside if row.reason == NO_LAUNCH)),
        counted=None,
    )


def _divided(rows: Sequence[Row], steps: int) -> tuple[Row, ...]:
    columns = _columns(rows)
    for name, values in columns.items():
        if name not in _PER_LAUNCH:
            columns[name] = [quotient(value, steps) if _is_number(value) else value for value in values]
    return _rows_like(rows, columns)


def under_paths(rows: Sequence[Row], named: Callable[[Path], Path]) -> tuple[Row, ...]:
    """Return rows under the paths that `named` gives for theirs."""
    columns = _columns(rows)
    columns["path"] = [named(path) for path in columns.get("path", ())]
    return _rows_like(rows, columns)


def _columns(rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """Return the values of each field of some rows of one type; of many rows, it is made faster than they are."""
    if not rows:
        return {}
    names = rows[0].__dataclass_fields__
    return dict(zip(names, zip(*map(attrgetter(*names), rows), strict=True), strict=True))


def _rows_like(rows: Sequence[Row], columns: Mapping[str, Sequence[Any]]) -> tuple[Row, ...]:
    return tuple(map(type(rows[0]), *columns.values())) if rows else ()


def merged(reports: Sequence[Report], name: str) -> Report:
    """Add up the reports of several ranks: of one program, or with ranges of the same names.

    Ranges and kernels are added by path, phase and name; steps are counted over all ranks, so that `per_step` of
    the result is the mean of a rank's step.
    """
    reports = in_one_spelling(reports)
    first = reports[0]
    models = agreed(report.provenance.models for report in reports)
    attributes = agreed(report.provenance.attributes for report in reports)
    unaccounted: dict[str, tuple[int, int]] = {}
    for phase, beyond_ns, whole_ns in (row for report in reports for row in report.unaccounted):
        before = unaccounted.get(phase, (0, 0))
        unaccounted[phase] = before[0] + beyond_ns, before[1] + whole_ns
    counted = [report.counted or report for report in reports] if any(r.counted for r in reports) else []
    kernels = added((row for report in reports for row in report.kernels), ("path", "phase", "kind", "kernel"))
    return replace(
        first,
        provenance=replace(first.provenance, file=name, models=models, attributes=attributes),
        totals=added((report.totals for report in reports), ())[0],
        phases=added((row for report in reports for row in report.phases), ("phase",)),
        ranges=in_tree_order(added((row for report in reports for row in report.ranges), ("path", "phase"))),
        kernels=tuple(sorted(kernels, key=lambda row: (-row.total_ns, row.path, row.kernel, row.phase))),
        outside=added((row for report in reports for row in report.outside), ("reason", "kind")),
        steps=sum(report.steps for report in reports),
        counted_steps=sum(report.counted_steps for report in reports),
        ranks=sum(report.ranks for report in reports),
        unmeasured_ns=sum(report.unmeasured_ns for report in reports),
        unaccounted=tuple((phase, *both) for phase, both in unaccounted.items()),
        warm_up_ns=sum(report.warm_up_ns for report in reports),
        account=merged_accounts(report.account for report in reports),
        recording=first.recording if len(reports) == 1 else None,
        counted=merged(counted, name) if counted else None,
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def in_one_spelling(reports: Sequence[Report]) -> list[Report]:
    """Return the reports with every kernel spelled as in the first report that has it."""
    seen: set[str] = set()
    respelled: list[Report] = []
    for report in reports:
        names = {row.kernel for row in report.kernels if row.kind == "kernel"}
        called = spelled_like(names, seen)
        rows = (
            replace(row, kernel=called.get(row.kernel, row.kernel)) if row.kind == "kernel" else row
            for row in report.kernels
        )
        respelled.append(replace(report, kernels=tuple(rows)) if called else report)
        seen |= names.difference(called)
    return respelled


def added(rows: Iterable[Row], keys: Sequence[str]) -> tuple[Row, ...]:
    """Add up the rows that have the same keys; of times per launch, keep the shortest and the longest."""
    groups: dict[Any, list[Row]] = {}
    key_of = attrgetter(*keys) if keys else lambda _: ()
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    return tuple(group[0] if len(group) == 1 else _sum_of(group) for group in groups.values())


def _sum_of(rows: Sequence[Row]) -> Row:
    combined: Row = type(rows[0])(*(_combined(name, values, rows) for name, values in _columns(rows).items()))
    return combined


def _combined(name: str, values: Sequence[Any], rows: Sequence[Row]) -> Any:
    """Return the value of a field, given its values of some rows; a text, or a path, is that of the first."""
    if None in values:
        # A span that linked work does not have, the whole has not either; one of no work at all adds nothing.
        if any(value is None and row.inclusive_work_ns for value, row in zip(values, rows, strict=True)):
            return None
        values = [value for value in values if value is not None]
    if name in _PER_LAUNCH:
        return min(values) if name == "min_ns" else max(values)
    if values and _is_number(values[0]):
        return reduce(add, values)  # `sum` of fractions depends on Python's version
    return values[0] if values else None


def _is_number(value: Any) -> bool:
    return type(value) is int or isinstance(value, float)  # a truth value does not count


def in_tree_order(rows: Iterable[RangeRow]) -> tuple[RangeRow, ...]:
    """Sort so that a row's inner ranges follow it; siblings by inclusive kernel time, then work, longest first."""
    rows = list(rows)
    order = tree_order([(row.path, (row.inclusive_ns, row.inclusive_work_ns)) for row in rows])
    return tuple(sorted(rows, key=lambda row: (order(row.path), row.phase)))


def tree_order(sizes: Iterable[tuple[Path, tuple[Number, ...]]]) -> Callable[[Path], tuple[Any, ...]]:
    """Return the sort key of a path that puts inner ranges below their outer one, and the largest sibling first.

    `sizes` are the paths with what their siblings are sorted by; the sizes of one path, in several phases, add up.
    """
    weight: dict[Path, tuple[Number, ...]] = {}
    for path, size in sizes:
        weight[path] = tuple(map(sub, weight.get(path, (0,) * len(size)), size))

    keys: dict[Path, tuple[Any, ...]] = {(): ()}

    def key(path: Path) -> tuple[Any, ...]:
        length = len(path)
        while path[:length] not in keys:
            length -= 1
        for end in range(length + 1, len(path) + 1):
            keys[path[:end]] = (*keys[path[: end - 1]], (weight.get(path[:end], ()), path[end - 1]))
        return keys[path]

    return key


def quotient(value: Number, steps: int) -> Number:
    """Divide a figure; whole quotients stay integers."""
    return value // steps if isinstance(value, int) and value % steps == 0 else value / steps


def as_dict(row: Any) -> dict[str, Any]:
    """Return a row's columns by name; paths become lists."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


#: The parts of a report that say what it is of, and its tables, in the order in which JSON has them.
ABOUT = ("steps", "ranks", "step", "phase_names", "per_step", "warm_up_included", "unmeasured_ns", "warm_up_ns")
TABLES = {"phases": PhaseRow, "ranges": RangeRow, "kernels": KernelRow, "busy": BusyRow}

#: Of a step that generates.
OF_GENERATION = ("prefill_ns", "decode_ns", "decode_calls", "tokens")


def about_steps(account: Account | None) -> dict[str, Any]:
    """Return JSON's values on the time of a step; null if it is unknown."""
    of_steps = account if account and account.has_steps else None
    return {
        "step_ns": of_steps and of_steps.step_ns,
        "step_busy_ns": of_steps and of_steps.busy_ns,
        "step_between_ns": of_steps and of_steps.between_ns,
        "step_spread": of_steps and of_steps.spread,
        "step_is_median": of_steps and False,
        **{name: of_steps and of_steps.generation(name) for name in OF_GENERATION},
        "token_ns": of_steps and of_steps.token_ns,
        "taken_out_ns": of_steps and sum(of_steps.taken_out_ns.values()),
    }


def as_object(report: Report) -> dict[str, Any]:
    """Return the whole report as JSON can hold it; docs/json.md describes it."""
    provenance = asdict(report.provenance)
    account = report.account
    idle = idle_as_json(account) if account and not account.phases else None
    return {
        "report": {
            **{name: value for name, value in provenance.items() if name not in ("gpus", "attributes")},
            "writes": {},  # as is `split_fused`, of an earlier version
            "gpus": list(report.provenance.gpus),
            **{name: getattr(report, name) for name in ABOUT},
            **about_steps(account),
            "recording": as_json(report.recording),
            "split_fused": False,
            "phase_names": [list(pair) for pair in report.phase_names],
            "outside": [as_dict(row) for row in report.outside],
            "notes": list(report.notes),
        },
        "account": account_as_json(account),
        "idle": None if account is None or account.on_cpu else idle,
        "idle_on_cpu": idle if account and account.on_cpu else None,
        "totals": as_dict(report.totals),
        **{name: [as_dict(row) for row in getattr(report, name)] for name in TABLES},
        "steps": [as_dict(row) for row in account.rows] if account and account.has_steps else [],
    }
