"""Rules such as `softmax > +5%`: changes between two reports that make a build fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import ReportError, UsageError
from ..kernel_names.spelling import canonical_spelling
from ..report import TO_HAVE_STEPS, KernelRow, Report
from ..summary.selection import of_ranges
from ..support import limits, noise
from ..views.rows import label
from ..vocabulary import collapsed
from .changes import Change, Comparison

KINDS = ("range", "phase", "category")  # what a bare name may name; the first that knows it is taken

PREFIXES = (*KINDS, "kernel")
_FORM = (
    "write NAME > +5%, NAME > +0.3ms, NAME < -10% or NAME > +5% beyond spread, where NAME is a range, a phase, a "
    f"category, total, or {limits.STEP_TIME}"
)
#: What has steps enough to judge noise by.
ENOUGH_STEPS = (
    f"needs {noise.SOME_STEPS} or more measured steps of each report, better {noise.MANY_STEPS} or more, and a "
    f"difference of over {noise.LARGE:.0%} more than they may vary"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it names, and how much that may change. `kind` is empty if not given."""

    text: str
    kind: str
    name: str
    limit: limits.Limit

    @property
    def beyond_spread(self) -> bool:
        """Whether noise does not violate it."""
        return self.limit.beyond_spread


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
    if comparison.basis == "auto" and bool(comparison.a.steps) != bool(comparison.b.steps):
        raise ReportError(
            "Only one of the reports has measured step ranges, so --fail-on has no common measure. "
            f"{TO_HAVE_STEPS}, or compare the totals as they are with --totals."
        )
    if rule.name == limits.STEP_TIME and not rule.kind:
        return _judged_step(rule, comparison)
    if comparison.hides_kernels:
        raise ReportError(
            "A report hides kernels inside CUDA graphs, so --fail-on cannot judge kernel time. Compare "
            "--all-work, or record with `nsys profile --cuda-graph-trace=node`."
        )
    kind, parts = _named(rule, comparison)
    change = comparison.change((), *parts)
    only_in = "" if all(parts) or kind == "total" else "A" if parts[0] else "B"
    _require_known(rule, comparison, change)
    violated = (only_in == "A" and not allow_missing) or _exceeds(rule, change)
    return Verdict(rule, _described(kind, rule.name, comparison), change, violated, only_in)


def _judged_step(rule: Rule, comparison: Comparison) -> Verdict:
    """Hold the step time against a rule; raises ReportError where it is not known."""
    change = comparison.step_time()
    if change is None:
        raise ReportError(
            f"The rule {rule.text!r} needs the step time of both reports, which two or more measured steps have "
            f"(a summary of version 1 lacks it: write it again). Use `total`, or: {TO_HAVE_STEPS}."
        )
    _require_known(rule, comparison, change)
    return Verdict(rule, limits.STEP_TIME, change, _exceeds(rule, change))


def _exceeds(rule: Rule, change: Change) -> bool:
    is_noise = rule.beyond_spread and change.verdict == "same"
    return rule.limit.exceeded(change.a_ns, change.delta_ns) and not is_noise


def _require_known(rule: Rule, comparison: Comparison, change: Change) -> None:
    """Raise ReportError where a limit is exceeded, and it is not known whether by noise alone."""
    is_exceeded = rule.limit.exceeded(change.a_ns, change.delta_ns)
    if rule.beyond_spread and is_exceeded and change.verdict == "not known":
        raise ReportError(
            f"Whether {rule.name} differs beyond spread is not known: the rule {rule.text!r} {ENOUGH_STEPS}. A "
            f"has {comparison.a.steps}, B {comparison.b.steps}. Record more, or compare several recordings a side."
        )


def _named(rule: Rule, comparison: Comparison) -> tuple[str, list[list[KernelRow]]]:
    """Return the kind of what is named, the first that has it if none is given, and its rows of each report."""
    whole = [comparison.rows(report) for report in (comparison.a, comparison.b)]
    if rule.name == "total" and not rule.kind:
        return "total", whole
    kinds = (rule.kind,) if rule.kind else KINDS
    for kind in kinds:
        if kind == "range":
            parts = [comparison.rows(_matching(report, rule.name)) for report in (comparison.a, comparison.b)]
        elif kind == "kernel":
            spelling = canonical_spelling(rule.name).lower()
            parts = [[row for row in rows if canonical_spelling(row.kernel).lower() == spelling] for rows in whole]
        else:
            parts = [[row for row in rows if getattr(row, kind).lower() == rule.name.lower()] for rows in whole]
        if any(parts):
            return kind, parts
    rows = [row for of_report in whole for row in of_report]
    raise UsageError(
        f"Neither report has a {' or '.join(kinds)} {rule.name!r}, so the rule {rule.text!r} cannot be checked. "
        f"Phases: {_listed(row.phase for row in rows)}. Categories: {_listed(row.category for row in rows)}. "
        f"Ranges: {_listed(collapsed(name) for row in rows for name in row.path)}."
    )


def _listed(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:12]) + (", …" if len(distinct) > 12 else "") if distinct else "none"


def _matching(report: Report, name: str) -> Report:
    """Return a report's rows of a range; empty if it has no such range."""
    try:
        return of_ranges(report, name)
    except ReportError:
        return replace(report, ranges=(), kernels=())


def _described(kind: str, name: str, comparison: Comparison) -> str:
    """Describe what was compared; for a pattern, the ranges that it matched."""
    if kind == "total":
        return comparison.whole
    if kind != "range":
        return f"{kind} {name}"
    paths = {row.path for report in (comparison.a, comparison.b) for row in _matching(report, name).ranges}
    naming = comparison.naming()
    outermost = sorted(label(naming(path)[-1:]) for path in paths if path[:-1] not in paths)
    return f"range {_listed(outermost)}"
