"""The account of a step as a table: a bar that is divided, for people, or a row for each of several GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ..document import Column, Row, Table, headed
from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, OPERATORS, GpuAccount, State
from ..support.units import time_in_digits
from . import evidence, headings
from .rows import share

#: The time of each kind of state and its detail, ns.
Sums: TypeAlias = Counter[tuple[str, str]]
#: In which order a bar is drawn.
KINDS_DRAWN = (COMPUTE, OPERATORS, COMMUNICATION, COPY, IDLE)
#: What fills it, by kind of state, and what sentences call the kinds.
FILLS = {COMPUTE: "█", OPERATORS: "█", COMMUNICATION: "▓", COPY: "▒", IDLE: "░"}
CALLED = {COMPUTE: "compute", OPERATORS: "operators", COMMUNICATION: "communication", COPY: "copies", IDLE: "idle"}
OUTSIDE = "outside"
#: What rows call each cause of idle time, and what happens meanwhile: sentences say it behind "while".
CAUSES = {
    "launching": ("launching kernels", "the CPU launches kernels one by one"),
    "host code": ("Python, other host code", "the CPU runs Python and other host code"),
    "data loading": ("loading a batch", "the program loads its next batch"),
    "synchronization": ("synchronization", "the CPU waits for the GPU"),
    "allocation": ("allocating memory", "the GPU's driver allocates or frees memory"),
    "copy": ("calls that copy", "the CPU is in a call that copies"),
    "module loading": ("loading kernels", "the GPU's driver loads kernels"),
    "between kernels": ("between kernels", "the next kernel is launched but has not started"),
    "latency": ("launch on its way", "a launch is on its way from the CPU to the GPU"),
    "queue": ("queued work waiting", "launched work waits for a stream, copy, process or batch"),
    "profiler": ("profiler", "the profiler writes its data, or annotation sets hooks"),
    "no more work": ("no more work", "the GPU has no later work"),
    "unknown": ("unknown cause", "the GPU waits for work whose launch was not recorded"),
    "Python": ("Python", "the program runs its own Python"),
    "waiting": ("waiting", "the program waits"),
}
#: What the two groups of rows are called, on a GPU and on a CPU.
GROUPS = {False: ("GPU busy", "GPU idle"), True: ("operators", OUTSIDE)}
#: Details with less than this share of the time are one row of a group, and so are those beyond the most.
SMALL, MOST = 0.03, 3
#: Details with less than the first share, together, are in the row of another one with less than the second.
TINY, LARGE = 0.01, 0.1
#: A row that is of several details names them in at most this many cells.
LONGEST_DETAIL = 23
#: The column of the bar.
DRAWN = Column("bar", "", "bar", seen_by="people")
#: Up to this number of GPUs each has a row; of more, those with the least, the middle and the most idle time have.
MOST_GPUS = 8


def tables(report: Report) -> Iterator[Table]:
    """Yield the account as a table; none where no time is known, or of a part of a report."""
    account = report.account
    if account is None or account.phases or headings.is_of_ranges(report) or not account.recorded_ns:
        return
    gpus = [gpu for gpu in account.gpus if gpu.steps and gpu.total_own_ns]
    subject = evidence.subject_of(account) if account.has_steps else "All that was recorded"
    subject += f", {time_in_digits(account.recorded_ns)}"
    if len(gpus) == 1:
        yield _of_one(gpus[0], subject, on_cpu=account.on_cpu)
    elif gpus:
        yield _of_several(gpus, subject)


def _of_one(gpu: GpuAccount, subject: str, *, on_cpu: bool) -> Table:
    """Return the parts of a step on one GPU; they add up to the step."""
    rows: list[Row] = []
    before = 0.0
    last = ""
    for called, kind, detail, ns in _shown(gpu, GROUPS[on_cpu]):
        share_of_all = ns / gpu.total_own_ns
        bar = ((" ", before), (FILLS[kind], share_of_all))
        group = called if called != last else ""
        rows.append(Row((called, group, detail, bar, ns / gpu.steps, share_of_all)))
        before += share_of_all
        last = called
    named = Column("kind", "", seen_by="programs"), Column("group", "", seen_by="people")
    columns = (*named, *headed(what=""), DRAWN, *headed(time_ns="", share=""))
    return Table("account", f"{subject}: {{unit}} and %", columns, tuple(rows))


def _shown(gpu: GpuAccount, groups: tuple[str, str]) -> Iterator[tuple[str, str, str, int]]:
    """Yield the rows of a GPU: the group, what fills its bar, a detail, and the time of the counted steps."""
    busy: Sums = Counter()
    idle: Sums = Counter()
    for part in gpu.parts:
        sums = idle if part.kind == IDLE else busy
        sums[part.kind, _in_group(part.state)] += part.total_ns
    for called, sums in zip(groups, (busy, idle), strict=True):
        for kind, detail, ns in _of_group(sums, gpu.total_own_ns):
            yield called, kind, detail, ns


def _of_group(sums: Sums, all_ns: int) -> Iterator[tuple[str, str, int]]:
    """Yield the rows of a group: its large details, and the small ones together."""
    largest = [key for key, _ in sums.most_common(MOST)]
    large = [key for key in largest if sums[key] >= SMALL * all_ns]
    rest_ns = sums.total() - sum(sums[key] for key in large)
    if len(large) > 1 and rest_ns < TINY * all_ns and sums[large[-1]] < LARGE * all_ns:
        large.pop()  # with which the rest, if any, is a row
    for kind, detail in sorted(large, key=lambda key: (KINDS_DRAWN.index(key[0]), -sums[key])):
        yield kind, detail, sums[kind, detail]
    small = [key for key in sorted(sums, key=lambda key: KINDS_DRAWN.index(key[0])) if key not in large]
    if small:
        small.sort(key=lambda key: -sums[key])
        details = [detail for _, detail in small]
        small_ns = sum(sums[key] for key in small)
        others = "other causes" if small[0][0] == IDLE else "other work"
        yield small[0][0], _together(details, others, are_all=not large), small_ns


def _in_group(state: State) -> str:
    """Name a row of busy or idle time: `backward`, `communication`, `copies to GPU`, `launching`."""
    kind, detail = state
    if kind == COMMUNICATION:
        return CALLED[COMMUNICATION]
    is_copy = kind == COPY and detail != "memset"
    return f"copies {detail}" if is_copy else detail_of(state)


def _together(details: Sequence[str], others: str, *, are_all: bool) -> str:
    """Name a row of several details; one of all details of a group needs no name."""
    if are_all and len(details) > 1:
        return ""
    texts = [", ".join(details), f"{details[0]}, {others}"]
    return next((text for text in texts if len(text) <= LONGEST_DETAIL), others)


def detail_of(state: State) -> str:
    """Return how screens call what a row of a kind is of."""
    kind, detail = state
    if kind == IDLE:
        return called(detail)
    return detail if kind == COPY else headings.phase(detail)


def called(cause: str) -> str:
    """Return how screens call a cause of idle time."""
    return CAUSES[cause][0] if cause in CAUSES else cause


def state_name(state: State, *, on_cpu: bool) -> str:
    """Return how a sentence calls a state, such as `compute backward` or `idle (launching)`."""
    kind, detail = state[0], detail_of(state)
    if kind == IDLE:
        return f"outside of operators ({detail})" if on_cpu else f"idle ({detail})"
    return f"{CALLED[kind]} {detail}"


def _of_several(gpus: Sequence[GpuAccount], subject: str) -> Table:
    """Return a row for each of several GPUs, or of many the least, the middle and the most idle one."""
    caption = "commun.: communication, or waiting for it, while nothing computes."
    if len(gpus) > MOST_GPUS:
        caption += f" {len(gpus)} GPUs: the least, the middle and the most idle one."
    rows = []
    for gpu in least_middle_most(gpus):
        sums = {kind: gpu.total_ns(kind=kind) for kind in KINDS_DRAWN}
        bar = tuple((FILLS[kind], ns / gpu.total_own_ns) for kind, ns in sums.items())
        computing_ns = sums[COMPUTE] + sums[OPERATORS]
        times_ns = computing_ns, sums[COMMUNICATION], sums[COPY], sums[IDLE]
        cells = [ns / gpu.steps for ns in times_ns]
        cause = called(gpu.causes[0].cause) if gpu.causes else ""
        rows.append(Row((gpu.gpu, bar, *cells, share(sums[IDLE], gpu.total_own_ns), cause)))
    columns = (*headed(gpu="GPU"), DRAWN)
    columns += headed(compute_ns="compute", communication_ns="commun.", copy_ns="copies", idle_ns="idle")
    columns += headed(idle_share="%", cause="idle mostly")
    return Table("account", f"{subject}, on each GPU: {{unit}}", columns, tuple(rows), caption)


def least_middle_most(gpus: Sequence[GpuAccount]) -> list[GpuAccount]:
    """Return some GPUs, or of many the least, the middle and the most idle one."""
    if len(gpus) <= MOST_GPUS:
        return list(gpus)
    by_idle = sorted(gpus, key=lambda gpu: gpu.idle_ns / gpu.steps)
    return [by_idle[0], by_idle[len(by_idle) // 2], by_idle[-1]]
