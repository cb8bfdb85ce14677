"""What the first answer says, as a record: all figures are of a step, or of all that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..report import Report
from ..report.account import (
    COMMUNICATION,
    COPY,
    IDLE,
    OPERATORS,
    Account,
    Cause,
    GpuAccount,
    Outlying,
    Part,
    Pause,
    Rhythm,
    Varying,
)
from ..report.recording import Recording
from . import evidence

#: From this share of the time on, the answer says why GPUs are idle.
SAID_FROM = 0.1
#: The least share of a step by which GPUs differ, if the answer tells each of them apart.
ALIKE = 0.05
COMPUTING = "computing"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What one GPU does in a step, ns, the longest first: `times` add up to the step."""

    name: str
    times: Mapping[str, float]
    causes: tuple[Cause, ...]
    steps: int

    @property
    def step_ns(self) -> float:
        """How long its own step takes, which differs from that of another rank's GPU."""
        return sum(self.times.values())

    def time_ns(self, doing: str) -> float:
        """Return how long it does something in a step."""
        return self.times.get(doing, 0.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an answer.

    `time_ns` is the recorded step, or all that was recorded. `steps` have work, `counted` of them count. Of a CPU
    there is one "GPU".
    """

    has_steps: bool
    on_cpu: bool
    subject: str  # "A step", "A rank's step", "A call"
    evidence: tuple[str, ...]  # sentences on by what steps are known, or why they are not
    time_ns: float
    gpus: tuple[GpuFacts, ...]
    recording: Recording | None
    steps: int
    counted: int
    low_ns: int
    high_ns: int
    all_step_ns: float
    varying: Varying | None
    outlying: tuple[Outlying, ...]
    rhythm: Rhythm | None
    dropped: int
    pause: Pause | None

    @property
    def most_idle(self) -> GpuFacts:
        """The GPU with the most idle time."""
        return max(self.gpus, key=lambda gpu: gpu.time_ns(IDLE))

    def range_of(self, doing: str) -> tuple[GpuFacts, GpuFacts]:
        """Return the GPUs that do something for the shortest and for the longest time."""
        ordered = sorted(self.gpus, key=lambda gpu: gpu.time_ns(doing))
        return ordered[0], ordered[-1]


def facts_of(report: Report) -> Facts | None:
    """Return the facts of a report; None where no time is known, or only that of some phases is shown."""
    account = report.account
    if account is None or account.phases or not account.gpus or not account.recorded_ns:
        return None
    own_ns = [row.own_ns for row in account.counted]
    return Facts(
        has_steps=account.has_steps,
        on_cpu=account.on_cpu,
        subject=subject_of(report, account),
        evidence=tuple(evidence.sentences(report, account)),
        time_ns=account.recorded_ns,
        gpus=tuple(_of_gpu(gpu) for gpu in account.gpus if gpu.steps),
        recording=report.recording if account.has_steps else None,
        steps=sum(row.loop == account.rows[0].loop for row in account.rows),
        counted=account.steps_counted,
        low_ns=min(own_ns),
        high_ns=max(own_ns),
        all_step_ns=account.all_step_ns or 0.0,
        varying=account.varying,
        outlying=_outlying(account),
        rhythm=account.rhythm,
        dropped=account.dropped,
        pause=account.pause,
    )


def _outlying(account: Account) -> tuple[Outlying, ...]:
    """Return the steps apart of the first process that has some, numbered among its own steps."""
    if not account.outlying:
        return ()
    process_id = account.outlying[0].process_id
    own = [row.step for row in account.rows if row.process_id == process_id]
    outlying = [row for row in account.outlying if row.process_id == process_id]
    if len(own) < len(account.rows):
        outlying = [replace(row, step=own.index(row.step)) for row in outlying]
    return tuple(outlying)


def subject_of(report: Report, account: Account) -> str:
    """Return the subject of a sentence on the time of a step."""
    subject = evidence.subject_of(account)
    return f"A rank's {subject.removeprefix('A ')}" if report.ranks > 1 and subject.startswith("A ") else subject


def _of_gpu(gpu: GpuAccount) -> GpuFacts:
    times = {doing: ns / gpu.steps for doing, ns in gpu.by(doing_of).items()}
    return GpuFacts(gpu.gpu, times, gpu.causes, gpu.steps)


def doing_of(part: Part) -> str:
    """Name the activity of a GPU, or a CPU, in a part: a key of `GpuFacts.times`."""
    if part.kind == COPY:
        return "memset" if part.what == "memset" else f"copies {part.what}"
    return {COMMUNICATION: COMMUNICATION, IDLE: IDLE, OPERATORS: OPERATORS}.get(part.kind, COMPUTING)
