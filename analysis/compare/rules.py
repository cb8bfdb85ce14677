"""Rules such as `softmax > +5%`: changes between two reports that make a build fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from ..account.cells import COPIES
from ..account.cpu import CPU_CAUSES
from ..account.idle import CAUSES
from ..errors import ReportError, UsageError
from ..kernel_names.spelling import canonical_spelling
from ..report import TO_HAVE_STEPS, KernelRow, Path, Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, State
from ..summary.selection import naming_of, path_matcher
from ..support import limits, noise
from ..views.account import CALLED
from ..views.rows import label
from ..vocabulary import collapsed
from .change import Change
from .changes import TO_SEE_KERNELS, Comparison

ACCOUNT = "account"
KINDS = ("range", "phase", "category", ACCOUNT)  # what a bare name may name; the first that knows it is taken

PREFIXES = (*KINDS, "kernel")
#: States of a step that a rule may name although no report has them.
STATES: tuple[State, ...] = (
    (COMPUTE, ""),
    (COMMUNICATION, ""),
    *itertools.product((COPY,), COPIES),
    *itertools.product((IDLE,), (*CAUSES, *CPU_CAUSES)),
)
_FORM = (
    "write NAME > +5%, NAME > +0.3ms, NAME < -10% or NAME > +5% beyond spread, where NAME is a range, a phase, a "
    f"category, a row of the account such as `idle` or `data loading`, total, or {limits.STEP_TIME}"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it names, and how much that may change. `kind` is empty if not given."""

    text: str
    kind: str
    name: str
    limit: limits.Limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule was compared with, how long it took, and whether the rule is violated."""

    rule: Rule
    compared: str
    change: Change
    violated: bool
    only_in: str = ""  # "A" or "B" where the other has nothing of that name


def parse(text: str) -> Rule:
    """Read a rule.

    Raises UsageError for any other text.
    """
    try:
        named, limit = limits.read(text)
    except ValueError as error:
        raise UsageError(f"{error}: {_FORM}.") from error
    kind, colon, name = named.partition(":")
    is_kind = bool(colon and name.strip()) and kind in PREFIXES
    return Rule(text.strip(), kind if is_kind else "", name.strip() if is_kind else named, limit)


def judge(rule: Rule, comparison: Comparison, *, allow_missing: bool = False) -> Verdict:
    """Check a comparison against a rule; what B no longer has violates it, unless that is allowed.

    Raises UsageError if neither report has anything of the rule's name, and ReportError if the two reports
    have no common measure, or too few steps for `beyond spread`.
    """
    _require_common_measure(comparison)
    compared, change, only_in = _measured(rule, comparison)
    exceeded = rule.limit.exceeded(change.a_ns, change.delta_ns)
    if exceeded and rule.limit.beyond_spread:
        if change.verdict == "not known":
            raise _not_known(rule, comparison)
        exceeded = change.verdict == "differs"
    is_missing = only_in == "A" and not allow_missing
    return Verdict(rule, compared, change, is_missing or exceeded, only_in)


def _require_common_measure(comparison: Comparison) -> None:
    """Raise ReportError where totals or steps would be compared that nobody asked for."""
    if comparison.asked_per_step is not None:
        return
    if bool(comparison.a.steps) != bool(comparison.b.steps):
        raise ReportError(
            "Only one of the reports has measured step ranges, so --fail-on has no common measure. "
            f"{TO_HAVE_STEPS}, or compare the totals as they are with --totals."
        )
    if comparison.unlike:
        raise ReportError(f"{comparison.unlike} Ask for --per-step or --totals, so that --fail-on has a measure.")


def _measured(rule: Rule, comparison: Comparison) -> tuple[str, Change, str]:
    """Return the thing a rule names, its change, and the only side that has it; raises as `judge` does."""
    if rule.name == limits.STEP_TIME and not rule.kind:
        return limits.STEP_TIME, _of_step(rule, comparison), ""
    if rule.name == "total" and not rule.kind:
        _require_kernels(comparison)
        return comparison.whole, comparison.total, ""
    for kind in (rule.kind,) if rule.kind else KINDS:
        if kind == ACCOUNT:
            if states := _states(rule.name, comparison):
                return f"account {rule.name}", _of_account(rule, comparison, states), ""
        elif any(parts := _parts(kind, rule.name, comparison)):
            _require_kernels(comparison)
            only_in = "" if all(parts) else "A" if parts[0] else "B"
            return _described(kind, rule.name, comparison), comparison.change((), *parts), only_in
    raise _nothing_of(rule, comparison)


def _of_step(rule: Rule, comparison: Comparison) -> Change:
    """Return the step time; raises ReportError where it is not known."""
    if comparison.step_time:
        return comparison.step_time
    raise ReportError(
        f"The rule {rule.text!r} needs the step time of both reports, which two or more measured steps have "
        f"(a summary of version 1 lacks it: write it again). Use `total`, or: {TO_HAVE_STEPS}."
    )


def _states(name: str, comparison: Comparison) -> set[State]:
    """Return the states of a step that a name means, also of those that neither report has."""
    named = set()
    for kind, detail in (*STATES, *(change.key for change in comparison.account)):
        called = CALLED[kind]
        if name.lower() in (called.lower(), detail.lower(), f"{called} {detail}".lower()):
            named.add((kind, detail))
    return named


def _of_account(rule: Rule, comparison: Comparison, states: set[State]) -> Change:
    """Return the change of some states together; raises ReportError where accounts are not known."""
    if comparison.accounts:
        return comparison.of_states(states)
    raise ReportError(
        f"The rule {rule.text!r} needs the account of a step on both sides; a summary of version 1 lacks it "
        "(write it again), and --totals has none."
    )


def _require_kernels(comparison: Comparison) -> None:
    """Raise ReportError where kernels are compared that a report hides."""
    if comparison.hides_kernels:
        raise ReportError(
            f"A report hides kernels inside CUDA graphs, so --fail-on cannot judge kernel time. {TO_SEE_KERNELS}."
        )


def _not_known(rule: Rule, comparison: Comparison) -> ReportError:
    """Return the error for a limit that is exceeded, where it is not known whether by noise alone."""
    return ReportError(
        f"Whether {rule.name} differs beyond spread is not known: the rule {rule.text!r} needs {noise.SOME_STEPS} "
        f"or more measured steps of each report, better {noise.MANY_STEPS} or more, and a difference of over "
        f"{noise.LARGE:.0%} more than they may vary. A has {comparison.a.steps}, B {comparison.b.steps}. Record "
        "more, or compare several recordings a side."
    )


def _parts(kind: str, name: str, comparison: Comparison) -> list[list[KernelRow]]:
    """Return the rows of each report that a kind of name means."""

    def spelled(text: str) -> str:
        return (canonical_spelling(text) if kind == "kernel" else text).lower()

    parts = []
    for report in comparison.reports:
        rows = comparison.rows(report)
        if kind == "range":
            paths = _paths(name, report)
            parts.append([row for row in rows if row.path in paths])
        else:
            parts.append([row for row in rows if spelled(getattr(row, kind)) == spelled(name)])
    return parts


def _paths(name: str, report: Report) -> set[Path]:
    """Return the ranges of a report that match a name, and what is inside them."""
    matches = path_matcher(name, naming_of(report, every_index=True))
    return {row.path for row in report.ranges if matches(row.path)}


def _nothing_of(rule: Rule, comparison: Comparison) -> UsageError:
    """Return the error for a rule that names nothing, with what there is."""
    rows = [row for report in comparison.reports for row in comparison.rows(report)]
    kinds = (rule.kind,) if rule.kind else KINDS
    return UsageError(
        f"Neither report has a {' or '.join(kinds)} {rule.name!r}, so the rule {rule.text!r} cannot be checked. "
        f"Phases: {_listed(row.phase for row in rows)}. Categories: {_listed(row.category for row in rows)}. "
        f"Ranges: {_listed(collapsed(name) for row in rows for name in row.path)}."
    )


def _listed(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:12]) + (", …" if len(distinct) > 12 else "") if distinct else "none"


def _described(kind: str, name: str, comparison: Comparison) -> str:
    """Describe what was compared; for a pattern, the ranges that it matched."""
    if kind != "range":
        return f"{kind} {name}"
    paths = set.union(*(_paths(name, report) for report in comparison.reports))
    naming = comparison.naming()
    outermost = sorted(label(naming(path)[-1:]) for path in paths if path[:-1] not in paths)
    return f"range {_listed(outermost)}"
