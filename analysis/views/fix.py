"""What to change first, and how much of a step is at stake: the list, its evidence, and what stayed silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from ..document import SHORT, Column, Detail, Document, Kind, Row, Table, headed, seen_if
from ..errors import ReportError
from ..measures import late_batches
from ..measures.cpu_fixes import LEAST_SHARE_OF_CPU
from ..measures.cpu_rules import CPU_RULES
from ..measures.fix_list import ADDS, CPU, GPU_TIME, LEAST_SHARE, RANKS, REPLAY, Fix, Fixes, Silent
from ..measures.fix_rules import RULES
from ..measures.fixes import fixes_beside
from ..measures.job_rules import JOB_RULES
from ..measures.rank_evidence import RankEvidence, rank_evidence
from ..report import Report
from ..report.evidence import RECORDING
from ..summary.parallel import Ranked
from ..support.text import ending, fit
from ..support.units import UNITS_NS, digits_text, share_text
from ..support.units import time_in_digits as time
from ..vocabulary import PATH_SEPARATOR, is_step
from ..vocabulary.loading import iterates
from ..vocabulary.modules import Naming
from . import headings
from .account import called
from .job import answer_of
from .job import table as job_table
from .registry import Subject
from .rows import label, require_measured

#: A range is shown where its ends differ by more than this share of the larger.
RANGE_FROM = 0.1
#: Rows whose step after all changes above is shown; and rows in the overview.
WITH_STEP, FIRST = 3, 3
#: So many rows of the overview stay, however few lines a screen has.
LEAST_ROWS = 2
#: What takes less than this share of the step is not even called silent.
LEAST_SILENT = 0.005
#: The lower end of a range is left out where it is less than this share of the upper one.
LEAST_SHOWN = 0.005
NOTHING = "Nothing to fix first: no known change {verb} {least} or more of {whole}."
UNSURE = "No known change is sure to save {least} or more of {whole}."
#: Why nothing is suggested for much idle time.
NO_CHANGE_FITS = "No known change fits the causes of the idle time."
UNKNOWN_COST = "It is unknown how much idle time comes from recording."
GIVE_STEP = "{}. Give its time to narrow these ranges, such as --unrecorded-step 68ms."
RECORDED, AT_MOST = "Unrecorded, a step is shorter", "Alone, a step may be shorter"
ONE_RANK = "Of {} ranks, the steps of one are replayed; what its collectives wait for stays as recorded."
ONE_GPU = "Of {} GPUs, the work of the one that works the longest is counted."
NO_JOB = (
    "The reports are not of one job's ranks, each of one GPU and with equally many steps: `view fix` takes one of "
    "other reports."
)
NOT_USED = (
    "The host's times by phase are not used: with them, the replay of the unchanged step is {} {} "
    "than a step without recording."
)
NOT_REPLAYED, FOR_REPLAY = "What depends on the CPU is not judged: {}.", "For a replay: {}."
TRIED, NEEDS_HOST = "Tried: {}.", "Only a replay can judge: {}."
EVIDENCE = "time: of the kernels and copies concerned. least: what bytes or FLOPs need."


class Words(NamedTuple):
    """The words for the figures of a kind: by what they are computed, above them, before each, and below them."""

    by: str
    heading: str
    verb: str
    before: str
    caption: str


WORDS = {
    REPLAY: Words(
        "", "saves alone", "saves", "", "Estimates per step, by replay of the recorded calls; they do not add up."
    ),
    GPU_TIME: Words(
        ", by the GPU's time alone",
        "of the GPU's work",
        "shortens",
        "at most ",
        "Upper limits of what the GPU's work would shrink by; they do not add up.",
    ),
    CPU: Words(
        "",
        "affects",
        "affects",
        "about ",
        "About what the operators and ranges concerned take, by counting; they do not add up.",
    ),
    RANKS: Words(
        "",
        "saves",
        "saves",
        "",
        "Estimates per step, by what ranks compute, wait and transfer; they do not add up.",
    ),
}
#: The kinds whose figures are of a step's time, so that they have a range, and an upper limit.
SAVING = (REPLAY, RANKS)


#: How screens call the change of each rule.
CALLED = {rule.name: rule.called for rule in RULES} | {late_batches.RULE: late_batches.CALLED}
#: The place of a change that concerns no range or line in particular, beside others that do.
WHOLE = "whole program"
#: So many cells the first screen has for the place of a change, and for a file that has a long name.
LONGEST_PLACE, LONGEST_FILE = 18, 24


def view(subject: Subject) -> Document:
    """Show all changes that matter, with their evidence."""
    require_measured(subject.report)
    advice = fixes_beside(subject.partition, subject.report.recording, subject.unrecorded_step_ns)
    return shown(subject.report, advice)


def held_by(subject: Subject) -> RankEvidence | None:
    """Return a report's evidence on its rank, if it has steps, which can be sent to another process."""
    return rank_evidence(subject.partition)


def of_ranks(ranked: Sequence[Ranked[tuple[Report, RankEvidence | None]]], _: Detail = SHORT) -> Document:
    """Show what to change in the job that several reports are of; raises ReportError if they are of none."""
    answer = answer_of(ranked)
    if answer is None:
        raise ReportError(NO_JOB)
    reports = [entry.report[0] for entry in ranked if entry.report]
    tables = [fix_table(answer.advice, answer.advice.fixes)] if answer.advice.fixes else []
    tables += [job_table(answer.job)]
    heading = " · ".join(filter(None, (f"{len(reports)} reports", headings.gpus(reports))))
    first = replace(reports[0].provenance, file="all reports")
    document = headings.document(
        first, heading, tables, (), (TRIED.format(", ".join(rule.called for rule in JOB_RULES)),)
    )
    return replace(document, verdict="" if answer.advice.fixes else nothing(answer.advice))


def shown(report: Report, advice: Fixes) -> Document:
    """Show what to change in a report."""
    tables = [fix_table(advice, advice.fixes), *([_evidence(advice)] if advice.fixes else [])]
    accounting = headings.accounting_per_step(report) if advice.per != RECORDING else None
    filled = [table for table in tables if table.rows]
    notes = (*_notes(report, advice), *report.notes)
    document = headings.answer(report, filled, notes, accounting=accounting)
    return replace(document, verdict=nothing(advice) if not advice.fixes else "")


def _notes(report: Report, advice: Fixes) -> list[str]:
    """Return notes on the figures."""
    notes = [f"Not judged: {reason}." for reason in advice.unjudged]
    if advice.kind == REPLAY:
        is_shorter = "" if advice.is_unrecorded else RECORDED
        is_shorter = AT_MOST if advice.is_upper_limit else is_shorter
        notes = [*([GIVE_STEP.format(is_shorter)] if is_shorter else []), *notes, *not_used(advice)]
        notes += [ONE_RANK.format(report.ranks)] if report.ranks > 1 else []
    if advice.kind == GPU_TIME:
        notes += [
            TRIED.format(", ".join(rule.called for rule in RULES if not rule.needs_host)),
            NEEDS_HOST.format(", ".join(rule.called for rule in RULES if rule.needs_host)),
            *([FOR_REPLAY.format(advice.remedy)] if advice.remedy else []),
        ]
        gpus = len(report.account.gpus) if report.account else 0
        notes += [ONE_GPU.format(gpus)] if gpus > 1 else []
    if advice.kind == CPU:
        notes.append(TRIED.format(", ".join(rule.called for rule in CPU_RULES)))
    return notes


def denominator(advice: Fixes) -> str:
    """Return the whole that figures are a share of: `a step of 68.9 ms`, `the recording's 136 ms of GPU work`."""
    is_step, lasts = advice.per != RECORDING, time(advice.step_ns)
    if advice.kind == GPU_TIME:
        return f"{'a step' if is_step else 'the recording'}'s {lasts} of GPU work"
    return f"a step of {lasts}" if is_step else f"a recording of {lasts}"


def nothing(advice: Fixes) -> str:
    """Return the sentence for a report in which nothing matters for sure, and what saves less."""
    return _nothing(advice) + why_not_replayed(advice) + silent(advice)


def _nothing(advice: Fixes) -> str:
    words = WORDS[advice.kind]
    sentence = UNSURE if is_unsure(advice) else NOTHING
    least = share_text(least_share(advice), 0)
    return sentence.format(verb=words.verb, least=least, whole=denominator(advice))


def why_not_replayed(advice: Fixes) -> str:
    """Return a sentence on why nothing was replayed, to follow another; nothing of a CPU, or of a replay."""
    return f" {NOT_REPLAYED.format(advice.reason)}" if advice.kind == GPU_TIME else ""


def least_share(advice: Fixes) -> float:
    """Return from which share on changes are listed."""
    return LEAST_SHARE_OF_CPU if advice.kind == CPU else LEAST_SHARE


def is_unsure(advice: Fixes) -> bool:
    """Return whether nothing is shown, though a change may save enough to be."""
    least_ns = least_share(advice) * advice.step_ns
    return not advice.fixes and any(tried.alone_ns >= least_ns for tried in advice.silent)


def not_used(advice: Fixes) -> list[str]:
    """Return a sentence on host times that do not give the step, or none."""
    error = advice.host_times_error
    if error is None or advice.host_times_used:
        return []
    return [NOT_USED.format(share_text(abs(error)), "longer" if error > 0 else "shorter")]


def first(advice: Fixes | None, named: Naming = tuple) -> list[Table]:
    """Return the first changes in short: what to do, what it saves, and at which line or else in which range.

    `named` names ranges as the rest of the screen does. Nothing where no change is known.
    """
    listed = wanted(advice) if advice else None
    if not (advice and listed and listed.fixes):
        return []
    rows = []
    shown_fixes = listed.fixes[:FIRST]
    places = [place(fix, named) for fix in shown_fixes]
    for number, (fix, where) in enumerate(zip(shown_fixes, places, strict=True), 1):
        is_same = "(" in then(listed, number)
        saves = then(listed, number).strip("()") if is_same else in_short(listed, fix)
        where = f"{where or WHOLE}:" if any(places) else ""
        rows.append(Row((f"{number}.", saves, where, fix.short)))
    kinds: dict[str, Kind] = {"number": "text", "saves": "text", "where": "name", "change": "prose"}
    columns = tuple(Column(key, "", kind) for key, kind in kinds.items())
    several = ": do not add them" if len(rows) > 1 else ""
    by = ", by counting operators" if advice.kind == CPU else ""
    title = f"Fix first ({_figures_of(advice)}{by}{several})"
    return [Table("first", title, columns, tuple(rows), not_wanted(advice), least=LEAST_ROWS)]


def wanted(advice: Fixes) -> Fixes:
    """Return the changes that undo nothing that the run asked for."""
    return replace(advice, fixes=tuple(fix for fix in advice.fixes if not fix.undoes))


def not_wanted(advice: Fixes) -> str:
    """Return a sentence on the changes that undo what the run asked for, or ""."""
    others = [(fix, CALLED[fix.rule]) for fix in advice.fixes if fix.undoes]
    return " ".join(
        f"Left out: {called} ({in_short(advice, fix)}), as the run asked for {fix.undoes}."
        for fix, called in others
    )


def _figures_of(advice: Fixes) -> str:
    """Name the first screen's figures, with the whole that they are of, where this is not its step."""
    lasts = time(advice.step_ns)
    if advice.kind == GPU_TIME:
        return f"savings at most, out of {lasts} of GPU work"
    if advice.kind == CPU:
        return "estimates"
    at_most = "at most " if advice.is_upper_limit else ""
    out_of = f" out of {at_most}{lasts} without recording" if advice.is_unrecorded else ""
    return f"estimated savings{out_of}"


def place(fix: Fix, named: Naming = tuple) -> str:
    """Return where most of what a change concerns is: `train.py:65` of the program, else a range or a library."""
    own = fix.lines[0].own if fix.lines else None
    inside = [name for name in named(fix.most) if not is_step(name.replace("*", "0"))]
    if own is None and inside:
        places = [label(tuple(inside[-depth:])) for depth in (2, 1)]
        short = next((called for called in places if len(called) <= LONGEST_PLACE), places[-1])
        return called("data loading") if iterates(inside[-1]) else ending(short, LONGEST_FILE)
    line = own or (fix.lines[0].line if fix.lines else None)
    if line is None:
        return fix.near
    return line.at if len(line.at) <= LONGEST_PLACE else fit(line.at.rpartition("/")[2], LONGEST_FILE)


def located(fix: Fix) -> str:
    """Return a rule's sentence behind the line that it is of, as compilers write: `train.py:65: Each step …`."""
    return f"{(fix.lines[0].own or fix.lines[0].line).at}: {fix.sentence}" if fix.lines else fix.sentence


def in_short(advice: Fixes, fix: Fix) -> str:
    """Return the figure of a change without its share: `12–31 ms`, `up to 27 ms`; the heading says `at most`.

    Of an upper bound, how low it may be shows only how sure the bound is.
    """
    is_range = advice.kind in SAVING and not fix.up_to
    if is_range and (between := _between(fix.alone_low_ns, fix.alone_ns)):
        return between.replace(" to ", "–")
    bound = _bound(advice, fix) if advice.kind in SAVING else ""
    return f"{bound}{time(fix.alone_ns)}"


def without_changes(advice: Fixes | None, *, is_idle: bool = False) -> str:
    """Return that there is nothing to fix first, to end the first answer, with what may help; "" if there is.

    If much of a step is idle, it says why nothing is suggested for that.
    """
    if advice is None or not advice.step_ns or wanted(advice).fixes:
        return ""
    if advice.fixes:
        return f" Nothing to fix first. {not_wanted(advice)}"
    possible = silent(advice) if is_unsure(advice) else ""
    why_idle = _why_nothing(advice) if is_idle else ""
    return f" {_nothing(advice)}{why_not_replayed(advice)}{possible}{why_idle}"


def _why_nothing(advice: Fixes) -> str:
    """Return why nothing is suggested for idle time, to follow another sentence."""
    if advice.kind not in SAVING or (advice.is_unrecorded and is_unsure(advice)):
        return ""
    return f" {UNKNOWN_COST if is_unsure(advice) else NO_CHANGE_FITS}"


def in_a_sentence(advice: Fixes, fix: Fix) -> str:
    """Return a change and its figure in one sentence."""
    return f"{located(fix)}: {alone(advice, fix)} of {denominator(advice)}."


def as_object(advice: Fixes) -> dict[str, Any]:
    """Return all changes, and what their figures are based on, for programs; docs/json.md describes it."""
    basis: dict[str, Any] = {
        "kind": advice.kind,
        "reason": advice.reason or None,
        "remedy": advice.remedy or None,
        "per": advice.per,
        "replay_error": advice.replay_error,
        "refused": advice.reason or None,
        "step_ns": advice.step_ns,
    }
    basis |= {"is_unrecorded": advice.is_unrecorded, "is_upper_limit": advice.is_upper_limit}
    basis |= {"factors": advice.factors, "steps": advice.steps}
    basis |= {"host_times_used": advice.host_times_used, "host_times_error": advice.host_times_error}
    basis |= {"silent": [asdict(tried) for tried in advice.silent], "unjudged": list(advice.unjudged)}
    fixes = []
    for fix in advice.fixes:
        fields = asdict(replace(fix, lines=(), work=fix.work[:0]))
        for key in ("work", "short", "undoes", "near", "most"):
            del fields[key]
        fixes.append(fields | {"lines": [line.as_json(advice.steps) for line in fix.lines]})
    return {"fixes": fixes, "fix_basis": basis}


def fix_table(advice: Fixes, fixes: Sequence[Fix]) -> Table:
    """Return some of the changes as a table, for people in words and for programs in numbers."""
    has_then = advice.kind == REPLAY
    columns = (
        Column("change", "change", "prose", seen_by="people"),
        Column("alone", WORDS[advice.kind].heading, seen_by="people"),
        *([Column("then", "then a step takes", seen_by="people")] if has_then else []),
        *(replace(column, seen_by="programs") for column in _FIGURES),
    )
    rows = []
    for number, fix in enumerate(fixes, 1):
        where = "\n".join(PATH_SEPARATOR.join(path) for path in fix.where)
        share = fix.alone_ns / fix.step_ns if fix.step_ns else None
        figures = (fix.alone_ns, fix.alone_low_ns, share, fix.then_ns, fix.step_ns, fix.count, fix.up_to)
        words = [f"{number}. {located(fix)}{_cited(fix)}", alone(advice, fix)]
        words += [then(advice, number)] if has_then else []
        rows.append(Row((*words, fix.rule, fix.sentence, *figures, ", ".join(fix.same_as), where)))
    return Table("fixes", title(advice), columns, tuple(rows), caption(advice))


def title(advice: Fixes) -> str:
    """Return the heading of the list: the whole that its figures are of."""
    lasts, is_step = time(advice.step_ns), advice.per != RECORDING
    if advice.kind == GPU_TIME:
        return f"Fix first{WORDS[GPU_TIME].by} (of {lasts} of GPU work{' in a step' * is_step})"
    recorded = " without recording" if advice.is_unrecorded else " while recorded" * is_step
    at_most = "at most " if advice.is_upper_limit else ""
    return f"Fix first (of {at_most}{lasts}{recorded})"


_FIGURES = (
    *headed("rule", "sentence", alone_ns="alone", alone_low_ns="at least", share="%", then_ns="then"),
    *headed("step_ns", "count", "up_to", "same_as", "where"),
)


def caption(advice: Fixes) -> str:
    """Return how the figures were computed, and what was tried and saves too little to be listed."""
    not_sure = " ?: it may save too little to matter." * any(fix.uncertain for fix in advice.fixes)
    return WORDS[advice.kind].caption + not_sure + why_not_replayed(advice) + silent(advice)


def silent(advice: Fixes) -> str:
    """Return a sentence on the changes that save too little to be shown, those of a kind together, or ""."""
    kinds: dict[str, list[Silent]] = {}
    for each in advice.silent:
        if each.alone_ns >= LEAST_SILENT * advice.step_ns:
            kinds.setdefault(each.called, []).append(each)
    tried = []
    for change, similar in kinds.items():
        low_ns, high_ns = min(each.alone_low_ns for each in similar), max(each.alone_ns for each in similar)
        places = f" ({len(similar)} places)" if len(similar) > 1 else ""
        figure = (_between(low_ns, high_ns) if advice.kind in SAVING else "") or time(high_ns)
        figure = f"up to {time(high_ns)}" if low_ns < LEAST_SHOWN * high_ns else figure
        tried.append(f"{change} {figure}{places}")
    stake = "Possible" if is_unsure(advice) else "Less at stake"
    return f" {stake}: {', '.join(tried)}." if tried else ""


def alone(advice: Fixes, fix: Fix) -> str:
    """Return the time that a change saves by itself: `20.8 ms, 30%`, `13 to 21 ms`, `at most 27 ms, 40%`."""
    if advice.kind in SAVING and (between := _between(fix.alone_low_ns, fix.alone_ns)):
        return f"{_bound(advice, fix)}{between}{'?' * fix.uncertain}"
    return f"{_bound(advice, fix)}{time(fix.alone_ns)}, {share_text(fix.alone_ns / fix.step_ns, 0)}"


def _bound(advice: Fixes, fix: Fix) -> str:
    """Return the word before a figure that can be less, or less and more."""
    if advice.kind not in SAVING:
        return WORDS[advice.kind].before
    return "about " * fix.about + "up to " * fix.up_to


def _cited(fix: Fix) -> str:
    """Return how much of such figures measured changes saved; nothing where none was measured."""
    if fix.measured is None:
        return ""
    count, least, most = fix.measured
    share = f"{least} to {most}%" if least != most else f"{most}%"
    return f" ({count} measured: {share} of it)"


def _between(low_ns: float, high_ns: float) -> str:
    """Return a range whose ends differ much, `11 to 32 ms`; else nothing."""
    if high_ns - low_ns <= RANGE_FROM * high_ns:
        return ""
    unit = time(high_ns).split()[1]
    low, high = (digits_text(ns / UNITS_NS[unit], 2) for ns in (low_ns, high_ns))
    return f"{low} to {high} {unit}"


def then(advice: Fixes, number: int) -> str:
    """Return the step after a change and those above, or which ones above save the same time."""
    fix, above = advice.fixes[number - 1], advice.fixes[: number - 1]
    before_ns = above[-1].then_ns if above else fix.step_ns
    if fix.then_ns is None or before_ns is None:
        return ""
    same = [str(place) for place, other in enumerate(above, 1) if other.rule in fix.same_as]
    if same and before_ns - fix.then_ns < ADDS * fix.alone_low_ns:
        return f"(part of {', '.join(same)})"
    return time(fix.then_ns) if number <= WITH_STEP else ""


def _evidence(advice: Fixes) -> Table:
    """Show which work each change concerns, how much of it a step has, and the least that it could take."""
    has_lines = any(fix.lines for fix in advice.fixes)
    columns = headed("rule", range="mostly in", ranges="ranges")
    columns += (seen_if(has_lines, Column("line", "line")),)
    columns += (Column("calls", "pieces", "count"), *headed(kernels_ns="time", floor_ns="least"))
    rows = [
        Row(
            (
                fix.rule,
                label(fix.most[-2:]) if fix.most else "",
                len(fix.where),
                fix.lines[0].called if fix.lines else "",
                fix.evidence["calls"],
                fix.evidence["kernels_ns"],
                fix.evidence["floor_ns"] or None,
            )
        )
        for fix in advice.fixes
        if fix.evidence  # late batches concern steps that do not count
    ]
    heading = f"What they concern, {{unit}} {'per step' if advice.per != RECORDING else 'in the recording'}"
    return Table("evidence", heading, columns, tuple(rows), EVIDENCE)
