"""The account of a step on a page: a bar of parts for each GPU, the steps as bars, and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..measures.fix_list import REPLAY, Fix, Fixes
from ..measures.job import Job, RankStep
from ..report import Report
from ..report.account import COMMUNICATION, COPY, IDLE, Cause, GpuAccount, State
from ..support.text import fit
from ..support.units import share_text, time_in_digits
from ..views import evidence, fix, headings
from ..views.account import CALLED, KINDS_DRAWN, OUTSIDE, detail_of, least_middle_most
from ..views.rows import label
from ..views.verdict import place
from .work_rows import LONGEST_KERNEL, PathTree, WorkRows, part_key

#: What takes less than this share of a step is one part with the others of its kind.
SMALL = 0.002
MAX_STEPS = 150
#: The rule of a late rank, and those of what ranks wait for in collectives.
STRAGGLER, OF_COLLECTIVES = "straggler", ("early_reduction", "read_values")


def bars(report: Report) -> dict[str, Any] | None:
    """Return a bar for each GPU, of many the least, the middle and the most idle one; None without any.

    A part has its `key`, by which it is selected, its share of the longest bar, and texts.
    """
    account = report.account
    gpus = [gpu for gpu in account.gpus if gpu.steps and gpu.total_own_ns] if account else []
    if account is None or not gpus:
        return None
    gpus.sort(key=lambda gpu: gpu.idle_ns / gpu.steps)
    gpus = least_middle_most(gpus)
    subject = evidence.subject_of(account) if account.has_steps else "All that was recorded"
    drawn = []
    causes = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.gpu):
        kinds = list(_kinds(gpu, on_cpu=account.on_cpu))
        drawn.append({"name": gpu.gpu, "ns": gpu.total_own_ns / gpu.steps, "kinds": kinds})
    for gpu in gpus:
        for cause in gpu.causes:
            causes[part_key(IDLE, cause.cause)] = _cause_texts(cause, gpu.steps, report)
    return {
        "title": f"{subject}, {time_in_digits(account.recorded_ns)}",
        "ns": account.recorded_ns,
        "gpus": drawn,
        "causes": causes,
    }


def _kinds(gpu: GpuAccount, *, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """Yield a GPU's time in a step, by kind, with its parts; all parts add up to the step."""
    small_ns = SMALL * gpu.total_own_ns
    for kind in KINDS_DRAWN:
        sums: Counter[str] = Counter()
        for part in gpu.parts:
            if part.kind == kind:
                _, detail = part.state
                sums[detail] += part.total_ns
        if not sums:
            continue
        large = sorted(((ns, detail) for detail, ns in sums.items() if ns >= small_ns), reverse=True)
        parts = [_part(gpu, kind, detail, ns) for ns, detail in large]
        if rest_ns := sum(ns for ns in sums.values() if ns < small_ns):
            parts.append(_part(gpu, kind, "", rest_ns))
        yield {"name": OUTSIDE if on_cpu and kind == IDLE else CALLED[kind], "parts": parts}


def _part(gpu: GpuAccount, kind: str, detail: str, ns: int) -> dict[str, Any]:
    """Return a part with its key, colour and texts; the small ones of a kind have no detail."""
    called = detail_of((kind, detail)) if detail else ""
    tone = CALLED[kind] if kind in (COMMUNICATION, COPY) else headings.phase(detail) or "no phase"
    return {
        "kind": kind,
        "key": part_key(kind, detail) if detail else "",
        "name": called or "other",
        "label": {COMMUNICATION: "communication", COPY: f"copies {called}"}.get(kind, called),
        "tone": tone.replace(" ", "-"),
        "ns": ns / gpu.steps,
        "time": time_in_digits(ns / gpu.steps),
        "share": share_text(ns / gpu.total_own_ns),
    }


def _cause_texts(cause: Cause, steps: int, report: Report) -> list[str]:
    """Return how long a cause takes, where most of it is, and its lines with their times."""
    idle = f"{time_in_digits(cause.total_ns / steps)}{' per step' * (steps > 1)}"
    texts = [", ".join([idle, *place(cause, report)])]
    texts += (f"{line.called}: {time_in_digits(line.total_ns / steps)}" for line in cause.lines)
    return [fit(text, LONGEST_KERNEL) for text in texts]


def fix_first(advice: Fixes, rows: WorkRows, tree: PathTree) -> dict[str, Any] | None:
    """Return the changes to make first as texts, each with the rows of its work; None without any."""
    if not advice.fixes:
        return None
    changes = []
    for number, each in enumerate(advice.fixes, 1):
        range_names = [label(tree.apart(path)[-2:]) for path in each.where[:1]]
        where = [line.called for line in each.lines[:2]] or range_names
        changes.append(_change(advice, number, each, where) | {"rows": rows.of_fix(each), "part": ""})
    return {"title": fix.title(advice), "caption": fix.caption(advice), "changes": changes}


def fix_job(job: Job, advice: Fixes) -> dict[str, Any] | None:
    """Return the changes to make first in a job, each with the part of a rank's step that it is of, if known.

    `report` is the place of that rank's report. None without changes.
    """
    if not advice.fixes:
        return None
    changes = []
    for number, each in enumerate(advice.fixes, 1):
        where = [line.called for line in each.lines[:2]]
        rank, state = _late_part(job) if each.rule == STRAGGLER else _waiting_part(job, each.rule)
        selects = {"report": job.ranks.index(rank), "part": part_key(*state) if state else "", "rows": []}
        changes.append(_change(advice, number, each, where) | selects)
    return {"title": fix.title(advice), "caption": fix.caption(advice), "changes": changes}


def _late_part(job: Job) -> tuple[RankStep, State | None]:
    """Return what the late rank does longer than the others."""
    return (job.late.rank, job.late.state) if job.late else (job.ranks[0], None)


def _waiting_part(job: Job, rule: str) -> tuple[RankStep, State | None]:
    """Return the communication of the rank that has the most of it, for a rule of collectives."""
    rank = max(job.ranks, key=lambda rank: rank.kind_ns(COMMUNICATION))
    states = [state for state in rank.states_ns if state[0] == COMMUNICATION]
    longest = max(states, key=lambda state: rank.states_ns[state], default=None)
    return rank, longest if rule in OF_COLLECTIVES else None


def _change(advice: Fixes, number: int, each: Fix, where: Sequence[str]) -> dict[str, Any]:
    then = fix.then(advice, number) if advice.kind == REPLAY else ""
    if "(" in then:
        then = f"{then.strip('()').capitalize()}."
    elif then:
        then = f"Then a step takes {then}."
    is_first = each.rule not in [other.rule for other in advice.fixes[: number - 1]]
    return {
        "key": each.rule if is_first else f"{each.rule} {number}",
        "sentence": f"{each.sentence}.",
        "saves": fix.alone(advice, each),
        "then": then,
        "where": [fit(text, LONGEST_KERNEL) for text in where],
    }


def step_bars(report: Report) -> list[dict[str, Any]]:
    """Return the time of each step, as a share of the longest; of the first ones if there are many."""
    rows = report.account.rows[:MAX_STEPS] if report.account and report.account.has_steps else ()
    longest_ns = max((row.own_ns for row in rows), default=0) or 1
    drawn = []
    for row in rows:
        text = f"step {row.step}: {time_in_digits(row.own_ns)}"
        if not row.counted:
            text += ", not counted"
        drawn.append({"share": row.own_ns / longest_ns, "text": text, "counted": row.counted})
    return drawn


def provenance(report: Report) -> list[tuple[str, str]]:
    """Return how a report was recorded, as names and values."""
    source = report.provenance
    facts: list[tuple[str, object]] = [
        ("File", source.file),
        ("GPU", ", ".join(source.gpus)),
        ("Recorded by", source.tool),
        ("Export schema", source.schema),
        ("Measured steps", report.steps or "none"),
        ("Steps that count", report.counted_steps or "none"),
        ("Warm-up", "counted" if report.warm_up_included else "left out"),
    ]
    for key, fact in source.run.items():
        if not isinstance(fact, dict):  # facts on each range are too many for a list
            facts.append((f"Run: {key.replace('_', ' ')}", fact))
    return [(name, fit(str(fact), 200)) for name, fact in facts if fact not in ("", None, "unknown")]


def heading(report: Report) -> list[str]:
    """Return the parts of a report's heading, its file first."""
    return [fit(part, 200) for part in headings.facts(report)]
