"""The account of a step as a table: a bar that is divided, for people, or a row for each of several GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..document import Column, Row, Table, headed
from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, KINDS, OPERATORS, GpuAccount, State
from ..support.units import time_in_digits
from . import evidence, headings
from .rows import share

#: How wide the bar of one GPU is, and that in a row of several.
BAR, SHORT_BAR = 32, 20
#: What fills it, by kind of state, and what the kinds are called.
FILLS = {COMPUTE: "█", OPERATORS: "█", COMMUNICATION: "▓", COPY: "▒", IDLE: "░"}
CALLED = {COMPUTE: "compute", OPERATORS: "operators", COMMUNICATION: "communication", COPY: "copies", IDLE: "idle"}
OUTSIDE = "outside"
#: Details with less than this share of the time are one row of a kind, and so are those beyond the most.
SMALL, MOST = 0.03, 3
#: The column of the bar.
DRAWN = Column("bar", "", seen_by="people")
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
    rows, done_ns, last = [], 0.0, ""
    for kind, detail, ns in _shown(gpu):
        called = OUTSIDE if on_cpu and kind == IDLE else CALLED[kind]
        bar = _bar([(kind, done_ns, done_ns + ns)], gpu.total_own_ns, BAR)
        once = "" if called == last else called
        rows.append(Row((once, called, detail, bar, ns / gpu.steps, ns / gpu.total_own_ns)))
        done_ns, last = done_ns + ns, called
    kinds = Column("kind", "", seen_by="people"), Column("kind", "", seen_by="programs")
    columns = (*kinds, *headed(what=""), DRAWN, *headed(time_ns="", share=""))
    return Table("account", f"{of}: {{unit}} and %", columns, tuple(rows))


def _shown(gpu: GpuAccount) -> Iterator[tuple[str, str, int]]:
    """Yield the rows of a GPU: a kind, its detail, and the time of the counted steps."""
    for kind in (*KINDS[:1], OPERATORS, *KINDS[1:]):
        sums: dict[str, int] = {}
        for part in (part for part in gpu.parts if part.kind == kind):
            detail = detail_of(part.state)
            sums[detail] = sums.get(detail, 0) + part.total_ns
        ranked = sorted(sums.items(), key=lambda item: -item[1])
        large = [item for item in ranked if item[1] >= SMALL * gpu.total_own_ns][:MOST]
        small = [item for item in ranked if item not in large]
        for detail, ns in large:
            yield kind, detail, ns
        if small:
            rest_ns = sum(ns for _, ns in small)
            yield kind, _together([detail for detail, _ in small], are_all=not large), rest_ns


def _together(details: Sequence[str], *, are_all: bool) -> str:
    """Return what a row of several details is called; that of all details of a kind needs no name."""
    if len(details) == 1:
        return details[0]
    return "" if are_all else f"{len(details)} others"


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


def _bar(pieces: Sequence[tuple[str, float, float]], total_ns: float, width: int) -> str:
    """Return a bar with some pieces of the total filled, and what is before them empty."""
    bar = ""
    for kind, begin_ns, end_ns in pieces:
        begin, end = (round(edge / total_ns * width) for edge in (begin_ns, end_ns))
        bar = bar.ljust(begin) + FILLS[kind] * max(end - begin, 1 if end_ns > begin_ns and not bar else 0)
    return bar[:width]


def _of_several(gpus: Sequence[GpuAccount], of: str) -> Table:
    """Return a row for each of several GPUs, or of many the least, the middle and the most idle one."""
    ordered = sorted(gpus, key=lambda gpu: gpu.idle_ns / gpu.steps)
    chosen = [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if len(gpus) > MOST_GPUS else list(gpus)
    rows = []
    for gpu in chosen:
        sums = {kind: gpu.total_ns(kind=kind) for kind in (COMPUTE, OPERATORS, COMMUNICATION, COPY, IDLE)}
        pieces, done_ns = [], 0
        for kind, ns in sums.items():
            pieces.append((kind, done_ns, done_ns + ns))
            done_ns += ns
        computing = sums[COMPUTE] + sums[OPERATORS]
        times = (computing, sums[COMMUNICATION], sums[COPY], sums[IDLE])
        cause = gpu.causes[0].cause if gpu.causes else ""
        cells = (*(ns / gpu.steps for ns in times), share(sums[IDLE], gpu.total_own_ns), cause)
        rows.append(Row((gpu.gpu, _bar(pieces, gpu.total_own_ns, SHORT_BAR), *cells)))
    columns = (*headed(gpu="GPU"), DRAWN)
    columns += headed(compute_ns="compute", communication_ns="commun.", copy_ns="copies", idle_ns="idle")
    columns += headed(idle_share="%", cause="mostly")
    left_out = f" {len(gpus)} GPUs: the least, the middle and the most idle one." if len(gpus) > MOST_GPUS else ""
    caption = f"commun.: communication or waiting, with nothing to hide it.{left_out}"
    return Table("account", f"{of}, on each GPU", columns, tuple(rows), caption)
