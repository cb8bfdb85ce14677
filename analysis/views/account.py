"""The account of a step as a table: a bar that is divided, for people, or a row for each of several GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..document import Column, Row, Table, headed
from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, OPERATORS, GpuAccount, State
from ..support.units import time_in_digits
from . import evidence, headings
from .rows import share

#: In which order a bar is drawn.
KINDS_DRAWN = (COMPUTE, OPERATORS, COMMUNICATION, COPY, IDLE)
#: What fills it, by kind of state, and what sentences call the kinds.
FILLS = {COMPUTE: "█", OPERATORS: "█", COMMUNICATION: "▓", COPY: "▒", IDLE: "░"}
CALLED = {COMPUTE: "compute", OPERATORS: "operators", COMMUNICATION: "communication", COPY: "copies", IDLE: "idle"}
OUTSIDE = "outside"
#: What the two groups of rows are called, on a GPU and on a CPU.
GROUPS = {False: ("GPU busy", "GPU idle"), True: ("operators", OUTSIDE)}
#: Details with less than this share of the time are one row of a group, and so are those beyond the most.
SMALL, MOST = 0.03, 3
#: Details with less than the first share, together, are in the row of another one with less than the second.
TINY, LARGE = 0.01, 0.1
#: A row that is of several details names them in at most this many cells.
LONGEST_DETAIL = 20
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
    of = f"{subject}, {time_in_digits(account.recorded_ns)}"
    if len(gpus) == 1:
        yield _of_one(gpus[0], of, on_cpu=account.on_cpu)
    elif gpus:
        yield _of_several(gpus, of)


def _of_one(gpu: GpuAccount, of: str, *, on_cpu: bool) -> Table:
    """Return the parts of a step on one GPU; they add up to the step."""
    rows: list[Row] = []
    before, last = 0.0, ""
    for called, kind, detail, ns in _shown(gpu, GROUPS[on_cpu]):
        share_of_all = ns / gpu.total_own_ns
        bar = ((" ", before), (FILLS[kind], share_of_all))
        group = called if called != last else ""
        rows.append(Row((called, group, detail, bar, ns / gpu.steps, share_of_all)))
        before, last = before + share_of_all, called
    named = Column("kind", "", seen_by="programs"), Column("group", "", seen_by="people")
    columns = (*named, *headed(what=""), DRAWN, *headed(time_ns="", share=""))
    return Table("account", f"{of}: {{unit}} and %", columns, tuple(rows))


def _shown(gpu: GpuAccount, groups: tuple[str, str]) -> Iterator[tuple[str, str, str, int]]:
    """Yield the rows of a GPU: the group, what fills its bar, a detail, and the time of the counted steps."""
    busy: dict[tuple[str, str], int] = {}
    idle: dict[tuple[str, str], int] = {}
    for part in gpu.parts:
        sums, key = (idle if part.kind == IDLE else busy), (part.kind, _in_group(part.state))
        sums[key] = sums.get(key, 0) + part.total_ns
    for called, sums in zip(groups, (busy, idle), strict=True):
        ranked = sorted(sums.items(), key=lambda item: (KINDS_DRAWN.index(item[0][0]), -item[1]))
        largest = sorted(sums, key=lambda key: -sums[key])[:MOST]
        large = [key for key in largest if sums[key] >= SMALL * gpu.total_own_ns]
        rest_ns = sum(sums.values()) - sum(map(sums.__getitem__, large))
        if len(large) > 1 and rest_ns < TINY * gpu.total_own_ns and sums[large[-1]] < LARGE * gpu.total_own_ns:
            large.pop()  # with which the rest, if any, is a row
        small = [key for key, _ in ranked if key not in large]
        for key in (key for key, _ in ranked if key in large):
            yield called, *key, sums[key]
        if small:
            small.sort(key=lambda key: -sums[key])
            details = [detail for _, detail in small]
            yield called, small[0][0], _together(details, are_all=not large), sum(map(sums.__getitem__, small))


def _in_group(state: State) -> str:
    """Name a row of busy or idle time: `backward`, `communication`, `copies to GPU`, `launching`."""
    if state[0] == COMMUNICATION:
        return CALLED[COMMUNICATION]
    is_copy = state[0] == COPY and state[1] != "memset"
    return f"copies {state[1]}" if is_copy else detail_of(state)


def _together(details: Sequence[str], *, are_all: bool) -> str:
    """Name a row of several details; one of all details of a group needs no name."""
    if are_all and len(details) > 1:
        return ""
    texts = [", ".join(details), *[f"{details[0]}, {len(details) - 1} others"] * (len(details) > 2)]
    return next((text for text in texts if len(text) <= LONGEST_DETAIL), f"{len(details)} others")


def detail_of(state: State) -> str:
    """Return how screens call what a row of a kind is of."""
    kind, detail = state
    return detail if kind in (COPY, IDLE) else headings.phase(detail)


def state_name(state: State, *, on_cpu: bool) -> str:
    """Return how a sentence calls a state, such as `compute backward` or `idle (launching)`."""
    kind, detail = state[0], detail_of(state)
    if kind == IDLE:
        return f"outside of operators ({detail})" if on_cpu else f"idle ({detail})"
    return f"{CALLED[kind]} {detail}"


def _of_several(gpus: Sequence[GpuAccount], of: str) -> Table:
    """Return a row for each of several GPUs, or of many the least, the middle and the most idle one."""
    ordered = sorted(gpus, key=lambda gpu: gpu.idle_ns / gpu.steps)
    chosen = [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if len(gpus) > MOST_GPUS else list(gpus)
    rows = []
    for gpu in chosen:
        sums = {kind: gpu.total_ns(kind=kind) for kind in KINDS_DRAWN}
        bar = tuple((FILLS[kind], ns / gpu.total_own_ns) for kind, ns in sums.items())
        computing = sums[COMPUTE] + sums[OPERATORS]
        times = (computing, sums[COMMUNICATION], sums[COPY], sums[IDLE])
        cause = gpu.causes[0].cause if gpu.causes else ""
        cells = (*(ns / gpu.steps for ns in times), share(sums[IDLE], gpu.total_own_ns), cause)
        rows.append(Row((gpu.gpu, bar, *cells)))
    columns = (*headed(gpu="GPU"), DRAWN)
    columns += headed(compute_ns="compute", communication_ns="commun.", copy_ns="copies", idle_ns="idle")
    columns += headed(idle_share="%", cause="mostly")
    left_out = f" {len(gpus)} GPUs: the least, the middle and the most idle one." if len(gpus) > MOST_GPUS else ""
    caption = f"commun.: communication or waiting, with nothing to hide it.{left_out}"
    return Table("account", f"{of}, on each GPU", columns, tuple(rows), caption)
