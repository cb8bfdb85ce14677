"""The account of a step as data: which steps count, what each takes, and what every GPU does in them.

The parts of a GPU add up to the time of its counted steps, to the nanosecond; means are these sums divided by the
steps. docs/json.md describes it as `account`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from ..trace import Line, Path
from ..vocabulary.libraries import is_of_library
from .evidence import BY_NAMES, RECORDING, StepEvidence

#: What a GPU does at each moment of a step, or a CPU. The time of a CPU outside of operators is IDLE.
COMPUTE, COMMUNICATION, COPY, IDLE, OPERATORS = "compute", "communication", "copy", "idle", "operators"
KINDS = (COMPUTE, COMMUNICATION, COPY, IDLE)
#: What the last column of a part is called in JSON, by its kind.
DETAILS = {COMPUTE: "category", COMMUNICATION: "category", COPY: "copy", IDLE: "cause", OPERATORS: "category"}
#: What a row of a bar is of: a kind, and the phase of kernels, the direction of copies or the cause of idle time.
State: TypeAlias = tuple[str, str]


#: The call with which PyTorch waits for a number that it copies to the CPU.
OF_ITEM = "cudaStreamSynchronize"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured step with work, ns.

    `own_ns` is from the end of the step before to its own end, without what was taken out: `window_ns`, from the
    first start of its work, and `between_ns` before it. On a CPU the step's range takes the place of its work, and
    nothing is busy.
    """

    step: int  # its place among the measured steps, as in `view steps`
    process_id: int
    first: bool  # of its loop
    own_ns: int
    window_ns: int
    between_ns: int
    evaluation_ns: int  # taken out, like the two below
    warm_up_ns: int
    recorder_ns: int  # in which the recorder kept the program waiting
    busy_ns: int | None  # of its own time, when any work ran; added over its GPUs
    between_busy_ns: int | None  # of the time between
    gpus: int
    # Of a step that generates, whose model's calls show their positions: its own time, divided.
    prefill_ns: int | None = None
    decode_ns: int | None = None
    decode_calls: int | None = None
    tokens: int | None = None  # None if a call decodes several, which may be refused
    counted: bool = True  # whether it counts for the figures of a step
    loop: int = 0  # steps of one loop follow one another
    #: What its GPUs do in its own time, ns, added over them.
    states_ns: tuple[tuple[State, int], ...] = ()

    def kind_ns(self, kind: str) -> int:
        """Return how long its GPUs are in the states of a kind, ns, added over them."""
        return sum(ns for (of_kind, _), ns in self.states_ns if of_kind == kind)


@dataclass(frozen=True, slots=True)
class Part:
    """The time that a GPU spends in one state, over its counted steps, ns.

    `what` is the category of the kernels, the direction of copies, or the cause of idle time.
    """

    kind: str
    phase: str
    what: str
    total_ns: int

    @property
    def state(self) -> State:
        """The row of a bar that it belongs to."""
        return self.kind, self.what if self.kind in (COPY, IDLE) else self.phase


@dataclass(frozen=True, slots=True)
class LineTime:
    """Some time at one line of the program, ns.

    In the backward of what is called there, `backward` is the line that calls backward. `caller` is the program's
    own line that calls a library's; None if it is not known.
    """

    line: Line
    backward: Line | None
    total_ns: int
    caller: Line | None = None

    @property
    def own(self) -> Line | None:
        """The line that people can change: itself, or its caller; None if that is not known."""
        return self.caller if is_of_library(self.line.file) else self.line

    @property
    def called(self) -> str:
        """What people read: `train.py:65 (train)`, or `backward of train.py:65 (train)`."""
        line = f"{self.line.called}, called from {self.caller.at}" if self.caller else self.line.called
        return f"backward of {line}" if self.backward else line

    def as_json(self, steps: int = 1) -> dict[str, Any]:
        """Return an entry of `lines` in JSON, its time divided by the steps."""
        backward = self.backward._asdict() if self.backward else None
        return self.line._asdict() | {"backward": backward, "ns": self.total_ns / steps}


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of a GPU's idle time over its counted steps, ns, and where most of it is.

    `path` is the range with most of it, `after` the call that waited for the GPU before most of it, `function` the
    Python function with half of it or more; all may be empty. One step, `alone_step`, has `alone_ns` more of it
    than any other. `lines` are those with the most of it, none unless they are known for 90% of it.
    """

    cause: str
    total_ns: int
    path: Path
    after: str
    function: str
    alone_ns: int
    alone_step: int | None
    lines: tuple[LineTime, ...] = ()

    @property
    def line(self) -> str:
        """What people read of the line with half of it or more; empty if none has."""
        is_most = bool(self.lines) and 2 * self.lines[0].total_ns >= self.total_ns
        return self.lines[0].called if is_most else ""

    @property
    def after_wait(self) -> str:
        """What people read of `after`: `after cudaStreamSynchronize, as in .item()`; empty without it."""
        as_in = ", as in .item()" * (self.after == OF_ITEM)
        return f"after {self.after}{as_in}" if self.after else ""


@dataclass(frozen=True, slots=True)
class GpuAccount:
    """What one GPU does in the counted steps of its loop; the parts add up to `total_own_ns`."""

    gpu: str
    rank: int | None
    process_id: int
    loop: int
    steps: int  # that count
    total_own_ns: int
    parts: tuple[Part, ...]  # the largest first
    causes: tuple[Cause, ...]  # of idle time, the largest first

    def total_ns(self, *, kind: str = "", phase: str = "", what: str = "") -> int:
        """Add up the parts of a kind, phase and category, copy or cause; of what is empty, any."""
        return sum(
            part.total_ns
            for part in self.parts
            if kind in ("", part.kind) and phase in ("", part.phase) and what in ("", part.what)
        )

    @property
    def idle_ns(self) -> int:
        """The idle time, over the counted steps."""
        return self.total_ns(kind=IDLE)

    def by(self, key: Callable[[Part], str]) -> dict[str, int]:
        """Add up the parts by a key, the largest first."""
        sums: dict[str, int] = {}
        for part in self.parts:
            sums[key(part)] = sums.get(key(part), 0) + part.total_ns
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Difference:
    """What some step has more of than the others, or less if negative: the kind, its detail, and how much, ns."""

    kind: str
    what: str
    ns: float


@dataclass(frozen=True, slots=True)
class Outlying:
    """A step that differs from the others and does not count, and what it has more (or less) of than these."""

    step: int
    process_id: int
    own_ns: int
    more: Difference


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Every n-th step differs: the means of these and of the others, and what these have more of, ns."""

    every: int
    apart_ns: float
    others_ns: float
    more: Difference


@dataclass(frozen=True, slots=True)
class Varying:
    """Steps of which none is usual: how many are longer than the middle, and what these have more of."""

    longer: int
    more: Difference


@dataclass(frozen=True, slots=True)
class Pause:
    """One gap that holds most of the idle time of a report without steps, and what remains without it, ns."""

    duration_ns: int
    start_ns: int  # from the begin of the GPU's first work
    before: Path  # the range of the work before it
    after: Path  # and of the work after it
    rest_ns: int
    rest_idle_ns: int
    rest_cause: str
    rest_cause_ns: int


@dataclass(frozen=True, slots=True)
class Account:
    """All steps, and what every GPU does in those that count; without steps, in all that was recorded.

    `per` is what figures are per, and `steps_by` how steps are known; `evidence` says how well. `dropped` measured
    steps have no work. `phases` are those that it was narrowed to, empty for all.
    """

    per: str
    steps_by: str
    rows: tuple[StepRow, ...]
    gpus: tuple[GpuAccount, ...]
    outlying: tuple[Outlying, ...] = ()
    rhythm: Rhythm | None = None
    dropped: int = 0
    pause: Pause | None = None
    varying: Varying | None = None
    on_cpu: bool = False
    phases: tuple[str, ...] = ()
    evidence: StepEvidence = BY_NAMES

    @property
    def has_steps(self) -> bool:
        """Whether steps are known."""
        return self.per != RECORDING

    @property
    def counted(self) -> Sequence[StepRow]:
        """The steps that count."""
        return [row for row in self.rows if row.counted]

    @property
    def step_ns(self) -> float | None:
        """How long a step takes: the mean of those that count; None without steps."""
        return self._mean("own_ns")

    @property
    def recorded_ns(self) -> float:
        """How long what figures are per takes: a step, or all that was recorded."""
        return mean([row.own_ns for row in self.counted])

    @property
    def steps_counted(self) -> int:
        """How many steps count, of one loop."""
        return max(Counter(row.loop for row in self.counted).values(), default=0)

    @property
    def loops(self) -> list[int]:
        """The loops' numbers."""
        return list(dict.fromkeys(row.loop for row in self.rows))

    @property
    def all_step_ns(self) -> float | None:
        """The mean of the steps whose time is known, with the outlying ones."""
        if not self.has_steps:
            return None
        outlying = {(row.process_id, row.step) for row in self.outlying}
        return mean([row.own_ns for row in self.rows if row.counted or (row.process_id, row.step) in outlying])

    @property
    def busy_ns(self) -> float | None:
        """How long a GPU works in a step, a mean over GPUs; None on a CPU and without steps."""
        busy_ns = [row.busy_ns / row.gpus for row in self.counted if row.busy_ns is not None and row.gpus]
        return mean(busy_ns) if busy_ns and self.has_steps else None

    @property
    def between_ns(self) -> float | None:
        """How long it is from one step's work to the next's."""
        return self._mean("between_ns")

    @property
    def between_busy_ns(self) -> float | None:
        """How long a GPU works in that time; None on a CPU."""
        values = [
            row.between_busy_ns / row.gpus for row in self.counted if row.between_busy_ns is not None and row.gpus
        ]
        return mean(values) if values and self.has_steps else None

    @property
    def spread(self) -> float | None:
        """By how much the counted steps differ, longest from shortest, as a share of their mean; None of one."""
        own_ns = [row.own_ns for row in self.counted]
        return (
            (max(own_ns) - min(own_ns)) / mean(own_ns)
            if len(own_ns) > 1 and self.has_steps and mean(own_ns)
            else None
        )

    @property
    def taken_out_ns(self) -> dict[str, int]:
        """The times that were taken out of all steps, ns, by kind; kinds without any are missing."""
        sums = {
            "evaluation": sum(row.evaluation_ns for row in self.rows),
            "warm-up": sum(row.warm_up_ns for row in self.rows),
            "profiler overhead": sum(row.recorder_ns for row in self.rows),
        }
        return {name: ns for name, ns in sums.items() if ns}

    @property
    def gpus_of_a_loop(self) -> int:
        """How many GPUs the steps of a loop work on, at most; 0 on a CPU."""
        return max((row.gpus for row in self.rows), default=0)

    def generation(self, name: str) -> float | None:
        """Return the mean of a figure of steps that generate; None if not all of the counted steps have it."""
        values = [getattr(row, name) for row in self.counted if row.decode_calls]
        return mean(values) if values and len(values) == len(self.counted) and None not in values else None

    @property
    def token_ns(self) -> float | None:
        """How long a token takes in a step that generates; None for other steps."""
        decode_ns = self.generation("decode_ns")
        tokens = self.generation("tokens")
        return decode_ns / tokens if decode_ns is not None and tokens else None

    def of_phases(self, phases: Collection[str]) -> Account:
        """Return the account with the parts of some phases only."""
        gpus = []
        for gpu in self.gpus:
            parts = tuple(part for part in gpu.parts if part.phase in phases)
            gpus.append(replace(gpu, parts=parts, causes=()))
        return replace(self, gpus=tuple(gpus), phases=tuple(phases))

    def _mean(self, name: str) -> float | None:
        return mean([getattr(row, name) for row in self.counted]) if self.has_steps else None


def mean(values: Sequence[float]) -> float:
    """Return the mean of some values; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def merged_accounts(accounts: Iterable[Account | None]) -> Account | None:
    """Return the steps and GPUs of several reports together; None if none of them has any."""
    present = [account for account in accounts if account is not None]
    if not present:
        return None
    rows: list[StepRow] = []
    gpus: list[GpuAccount] = []
    for account in present:
        first = max((row.loop for row in rows), default=-1) + 1
        rows += [replace(row, loop=row.loop + first) for row in account.rows]
        gpus += [replace(gpu, loop=gpu.loop + first) for gpu in account.gpus]
    return replace(
        present[0],
        rows=tuple(rows),
        gpus=tuple(gpus),
        outlying=tuple(row for account in present for row in account.outlying),
        dropped=sum(account.dropped for account in present),
        varying=next((account.varying for account in present if account.varying), None),
        rhythm=present[0].rhythm if len(present) == 1 else None,
        pause=present[0].pause if len(present) == 1 else None,
    )


def as_json(account: Account | None) -> dict[str, Any] | None:
    """Return `account` of JSON; docs/json.md describes it."""
    if account is None:
        return None
    return {
        "step_ns": account.step_ns,
        "steps_counted": account.steps_counted if account.has_steps else 0,
        "all_step_ns": account.all_step_ns,
        "outlying": [
            asdict(row) | {"more": _of_kind(row.more.kind, row.more.what, row.more.ns)} for row in account.outlying
        ],
        "dropped": account.dropped,
        "per": account.per,
        "steps_by": account.steps_by,
        "steps_of": account.evidence.name,
        "steps_explained": account.evidence.explained,
        "steps_same": account.evidence.same,
        "micro_batches": account.evidence.micro_batches,
        "updates_every": account.evidence.updates_every,
        "gpus": [_gpu_as_object(gpu, account) for gpu in account.gpus],
    }


def _gpu_as_object(gpu: GpuAccount, account: Account) -> Mapping[str, Any]:
    return {
        "gpu": gpu.gpu,
        "rank": gpu.rank,
        "process_id": gpu.process_id,
        "steps_counted": gpu.steps if account.has_steps else 0,
        "total_own_ns": gpu.total_own_ns,
        "parts": [_part_as_object(part) for part in gpu.parts],
    }


def _part_as_object(part: Part) -> Mapping[str, Any]:
    return {
        "kind": part.kind,
        "phase": part.phase,
        DETAILS[part.kind]: part.what,
        "total_ns": part.total_ns,
    }


def _of_kind(kind: str, what: str, ns: float) -> Mapping[str, Any]:
    return {"kind": kind, DETAILS[kind]: what, "ns": ns}


def idle_as_json(account: Account) -> dict[str, Any] | None:
    """Return `idle` of JSON: the causes of all GPUs together, means per step or sums; None without idle time."""
    sums: dict[str, list[Cause]] = {}
    for gpu in account.gpus:
        for cause in gpu.causes:
            sums.setdefault(cause.cause, []).append(cause)
    if not sums:
        return None
    steps = len(account.counted) if account.has_steps else 1
    rows = [_idle_row(causes, steps) for causes in sums.values()]
    between_ns = sum(row.between_ns * row.gpus - (row.between_busy_ns or 0) for row in account.counted)
    return {
        "per_step": account.has_steps,
        "idle_ns": sum(gpu.idle_ns for gpu in account.gpus) / steps,
        "span_ns": sum(gpu.total_own_ns for gpu in account.gpus) / steps,
        "between_ns": between_ns / steps if account.has_steps else 0,
        "rows": sorted(rows, key=lambda row: -row["median_ns"]),
        "pause": asdict(account.pause) if account.pause else None,
    }


def _idle_row(causes: Sequence[Cause], steps: int) -> dict[str, Any]:
    """Return one cause of all GPUs: `median_ns` is a mean since version 1.0."""
    most = max(causes, key=lambda cause: cause.total_ns)
    return {
        "cause": most.cause,
        "median_ns": sum(cause.total_ns for cause in causes) / steps,
        "path": list(most.path),
        "after": most.after,
        "alone_ns": most.alone_ns,
        "alone_step": most.alone_step,
        "function": most.function,
        "lines": [line.as_json(steps) for line in most.lines],
    }
