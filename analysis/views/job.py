"""The first answer for a job on several GPUs: a row a rank, and for whom the others wait."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..document import Column, Detail, Row, Table, headed
from ..measures.fix_list import Fixes
from ..measures.job import MUCH_WAITING, Job, Late, RankStep, at_start, job_of
from ..measures.job_rules import job_fixes
from ..measures.rank_evidence import RankEvidence
from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, Cause
from ..summary.parallel import Ranked
from ..support.text import fit
from ..support.units import share_text, time_in_digits, time_range
from ..vocabulary import is_step
from .account import detail_of
from .rows import label

#: How names of files have a rank: `r.rank1.sqlite`, `rank0_trace.json.gz`, `rank-0.json.gz`.
RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: How many reports are named at most.
SOME = 6
#: Up to this number of ranks each has a row; of more, those that wait least, in the middle and longest have.
MOST_RANKS = 8
#: The share of the waiting from which the late rank's longer work is named.
EXPLAINS = 0.1
#: What a rank does longer than others, by its kind.
DOES = {COMPUTE: "computes", COPY: "copies"}
#: So many cells a place has in the answer.
LONGEST_PLACE = 60
#: Ranks' steps that differ by more than this share are shown with both bounds.
ALIKE = 0.05
CAPTION = "waits: for other ranks; transfer: communication that is not overlapped."
UNKNOWN = (
    "Waiting and transfer cannot be separated: ranks have different numbers of collectives, or some are missing."
)
SENT = "Waiting and transfer cannot be separated: a send or receive does both at once."


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The step of a job, and what to change in it."""

    job: Job
    advice: Fixes


def answer_of(entries: Sequence[Ranked[tuple[Report, RankEvidence | None]]]) -> JobAnswer | None:
    """Return the answer for the job that some reports are of; None if they are of none, or some cannot be read."""
    names: list[str] = []
    read: list[tuple[Report, RankEvidence]] = []
    for entry in entries:
        report, evidence = entry.report or (None, None)
        if report is None or evidence is None:
            return None
        names.append(entry.name)
        read.append((report, evidence))
    shown_names = rank_names(list(zip(names, (report for report, _ in read), strict=True)))
    reports = [(name, *of_rank) for name, of_rank in zip(shown_names, read, strict=True)]
    job = job_of(reports)
    return JobAnswer(job, job_fixes(job, reports)) if job else None


def rank_names(reports: Sequence[tuple[str, Report]]) -> list[str]:
    """Return how screens name some reports: `rank 0` if each has a rank of its own, else as their files are."""
    numbers = [_rank_of(name, report) for name, report in reports]
    if len({*numbers} - {""}) == len(reports):
        return [f"rank {number}" for number in numbers]
    return [name for name, _ in reports]


def named_by_rank(ranked: Sequence[Ranked[Report]], detail: Detail) -> dict[str, Report]:
    """Return the reports that could be read by their names: for programs those of their files."""
    read = [(entry.name, entry.report) for entry in ranked if entry.report is not None]
    names = [name for name, _ in read] if detail.whole else rank_names(read)
    return {name: report for name, (_, report) in zip(names, read, strict=True)}


def notes_of(reports: dict[str, Report]) -> Iterator[str]:
    """Yield the notes of all reports, each once, with the names of those that have it if not all do."""
    by_note: dict[str, list[str]] = {}
    for name, report in reports.items():
        for note in report.notes:
            by_note.setdefault(note, []).append(name)
    for note, names in by_note.items():
        if len(names) == len(reports):
            yield note
            continue
        some = names[:SOME]
        if len(names) > SOME:
            some.append("…")
        yield f"{', '.join(some)}: {note}"


def _rank_of(name: str, report: Report) -> str:
    """Return a report's rank, as its run says or else its file's name; empty where neither does."""
    rank = report.provenance.run.get("rank")
    if rank is not None:
        return str(rank)
    in_name: list[str] = RANK_IN_NAME.findall(name)
    return in_name[-1] if in_name else ""


def sentences(job: Job) -> str:
    """Return how long a step takes, and which rank the others wait for and why: two lines where one is late."""
    without = f" ({time_in_digits(job.alone_ns)} without)" if job.alone_ns else ""
    least_ns = min(rank.step_ns for rank in job.ranks)
    low_ns = least_ns if job.step_ns - least_ns > ALIKE * job.step_ns else job.step_ns
    takes = f"A step takes {time_range(low_ns, job.step_ns)} while recorded{without}"
    longest_wait = time_in_digits(job.waiting_ns)
    uneven = job.uneven
    if uneven and (job.late is None or job.late.may_vanish):
        longest, shortest = (time_in_digits(rank.kind_ns(COMPUTE)) for rank in uneven)
        return f"{takes}: {uneven[0].name} computes for {longest}, {uneven[1].name} for {shortest}."
    if job.late:
        return _of_late(takes, job, job.late)
    if any(rank.waiting_ns is None for rank in job.ranks):
        return _of_unknown(takes, job)
    if job.waiting_ns >= MUCH_WAITING * job.step_ns:
        share = share_text(job.waiting_ns / job.step_ns, 0)
        longest_waiter = max(job.ranks, key=lambda rank: rank.waiting_ns or 0.0)
        return f"{takes}: ranks wait for each other, {longest_waiter.name} the longest: {longest_wait} ({share})."
    return f"{takes}: no rank waits long for another, {longest_wait} at most.{_of_transfer(job)}"


def _of_transfer(job: Job) -> str:
    """Return how long communication takes that nothing hides, where that is much of the step, or ""."""
    transfer_ns = max(rank.kind_ns(COMMUNICATION) - (rank.waiting_ns or 0.0) for rank in job.ranks)
    if transfer_ns < MUCH_WAITING * job.step_ns:
        return ""
    part = f"{time_in_digits(transfer_ns)} ({share_text(transfer_ns / job.step_ns, 0)})"
    return f" Transfer that nothing hides takes {part}."


def _of_unknown(takes: str, job: Job) -> str:
    """Return what can be said of a step in which waiting and transfer cannot be separated."""
    if job.in_turn:
        longest_ns = max(rank.kind_ns(COMPUTE) for rank in job.ranks)
        return f"{takes}: ranks compute one after another, each for at most {time_in_digits(longest_ns)}."
    if not any(rank.kind_ns(COMMUNICATION) for rank in job.ranks):
        return f"{takes}."
    return f"{takes}. {SENT if job.waits.sent else UNKNOWN}"


def _of_late(takes: str, job: Job, late: Late) -> str:
    """Return for which rank the others wait, and what it does longer than they do, with its place if it fits."""
    others = [rank.name for rank in job.ranks if rank is not late.rank]
    wait = f"{others[0]} waits" if len(others) == 1 else f"the other {len(others)} ranks wait"
    share = share_text(late.waiting_ns / job.step_ns, 0)
    answer = f"{takes}: {wait} {time_in_digits(late.waiting_ns)} ({share}) for {late.rank.name}"
    of_recording = _of_recording(job, late)
    if late.state is None or late.more_ns < EXPLAINS * late.waiting_ns:
        return f"{answer}, whose report does not show why.{of_recording}"
    kind = late.state[0]
    others_ns = statistics.median(rank.kind_ns(kind) for rank in job.ranks if rank is not late.rank)
    longer_ns = max(late.rank.kind_ns(kind) - others_ns, late.more_ns)
    longer = f"{time_in_digits(longer_ns)} longer"
    if kind != IDLE:
        return f"{answer}, which {DOES.get(kind, kind)} {longer} (mostly {detail_of(late.state)}).{of_recording}"
    cause = next((cause for cause in late.rank.causes if (IDLE, cause.cause) == late.state), None)
    place = _place(cause) if cause else ""
    answer += f", whose GPU is idle {longer}, mostly due to {detail_of(late.state)}{place}"
    return f"{answer}.{of_recording}"


def _place(cause: Cause) -> str:
    """Return where most of a cause is, behind its preposition: its function, line, call before or range, or ""."""
    if cause.function:
        return f" in {fit(cause.function, LONGEST_PLACE)}"
    if cause.line:
        return f" at {fit(cause.line, LONGEST_PLACE)}"
    if cause.after:
        return f" {cause.after_wait}"
    if cause.path and not is_step(cause.path[-1].replace("*", "0")) and cause.cause != "data loading":
        return f" in {label(cause.path[-1:])}"
    return ""


def _of_recording(job: Job, late: Late) -> str:
    """Return how much of the waiting may come from recording, which slows one rank more than another, or ""."""
    if late.may_vanish:
        others = [at_start(rank.name) for rank in job.ranks if rank is not late.rank]
        waits = others[0] if len(others) == 1 else "The other ranks"
        return f" {waits} may wait only because recording slows {late.rank.name}."
    if late.of_recording_ns > MUCH_WAITING * late.rank.step_ns:
        return f" Up to {time_in_digits(late.of_recording_ns)} of the waiting may come from recording."
    return ""


def table(job: Job) -> Table:
    """Return a row for each rank: what it does in a step."""
    knows_waiting = all(rank.waiting_ns is not None for rank in job.ranks)
    rows = []
    for rank in _chosen(job):
        exposed_ns = rank.kind_ns(COMMUNICATION)
        waiting_ns = rank.waiting_ns or 0.0
        divided = (exposed_ns - waiting_ns, waiting_ns) if knows_waiting else (exposed_ns,)
        idle = {state: ns for state, ns in rank.states_ns.items() if state[0] == IDLE}
        mostly = detail_of(max(idle, key=lambda state: idle[state])) if idle else ""
        times = (rank.kind_ns(COMPUTE), *divided, rank.kind_ns(COPY), rank.kind_ns(IDLE))
        is_late = job.late is not None and rank is job.late.rank
        rows.append(Row((rank.name, *times, rank.step_ns, mostly), strong=is_late))
    divided_columns = headed(communication_ns="communication")
    caption = "communication: or waiting for it, while nothing computes."
    if knows_waiting:
        divided_columns = headed(transfer_ns="transfer", waiting_ns="waits")
        caption = CAPTION
    columns = (
        Column("rank", "rank", "name"),
        *headed(compute_ns="compute"),
        *divided_columns,
        *headed(copy_ns="copies", idle_ns="idle", step_ns="step", cause="idle mostly"),
    )
    if left_out := len(job.ranks) - len(rows):
        caption += f" {left_out} ranks between these."
    return Table("job", "A step of each rank, {unit}", columns, tuple(rows), caption)


def _chosen(job: Job) -> list[RankStep]:
    """Return the ranks that are shown: all of a few; of many the late one, and those that wait least and most."""
    if len(job.ranks) <= MOST_RANKS:
        return list(job.ranks)
    ordered = sorted(job.ranks, key=lambda rank: rank.waiting_ns or 0.0)
    some = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    return some if job.late is None or job.late.rank in some else [job.late.rank, *some]


def as_object(job: Job) -> dict[str, Any]:
    """Return `account` of JSON of several reports; times in ns per step."""
    return {
        "step_ns": job.step_ns,
        "steps_counted": job.steps,
        "late": _late_as_object(job.late) if job.late else None,
        "gpus": [_rank_as_object(rank, job.steps) for rank in job.ranks],
    }


def _late_as_object(late: Late) -> dict[str, Any]:
    kind, detail = late.state or (None, None)
    return {
        "rank": late.rank.name,
        "waiting_ns": late.waiting_ns,
        "kind": kind,
        "what": detail,
        "more_ns": late.more_ns,
        "of_recording_ns": late.of_recording_ns,
    }


def _rank_as_object(rank: RankStep, steps: int) -> dict[str, Any]:
    parts = [{"kind": kind, "what": detail, "ns": ns} for (kind, detail), ns in sorted(rank.states_ns.items())]
    return {
        "rank": rank.name,
        "gpu": rank.gpu,
        "step_ns": rank.step_ns,
        "total_own_ns": rank.step_ns * steps,
        "waiting_ns": rank.waiting_ns,
        "parts": parts,
    }
