"""Rules such as `softmax > +5%`: changes between two reports that make a build fail."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..errors import ReportError, UsageError
from ..kernel_names.spelling import canonical_spelling
from ..report import TO_HAVE_STEPS, KernelRow, Report
from ..summary.selection import of_ranges
from ..support.units import UNITS_NS
from ..views.rows import label
from ..vocabulary import collapsed
from .changes import Change, Comparison

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
KINDS = ("range", "phase", "category")  # what a bare name may name; the first that knows it is taken

_RULE = re.compile(
    r"(?:(?P<kind>range|phase|category|kernel):)?(?P<name>.+?)\s*(?P<operator>[<>]=?)\s*"
    r"(?P<sign>[-+])\s*(?P<amount>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|ns|us|µs|ms|s)(?P<spread>\s+beyond\s+spread)?"
)
_FORM = (
    "write NAME > +5%, NAME > +0.3ms, NAME < -10% or NAME > +5% beyond spread, where NAME is a range, a phase, a "
    "category, or total"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `amount` is a fraction of A's time where `relative`, else ns. `kind` is empty if not given.

    With `beyond_spread`, what differs no more than the steps do among themselves does not violate it.
    """

    text: str
    kind: str
    name: str
    operator: str
    amount: float
    relative: bool
    beyond_spread: bool = False


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
    match = _RULE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a rule for --fail-on: {_FORM}.")
    amount = float(match["sign"] + match["amount"])
    relative = match["unit"] == "%"
    return Rule(
        text=text.strip(),
        kind=match["kind"] or "",
        name=match["name"].strip(),
        operator=match["operator"],
        amount=amount / 100 if relative else amount * UNITS_NS[match["unit"]],
        relative=relative,
        beyond_spread=bool(match["spread"]),
    )


def judge(rule: Rule, comparison: Comparison, *, allow_missing: bool = False) -> Verdict:
    """Check a comparison against a rule; what B no longer has violates it, unless that is allowed.

    Raises UsageError if neither report has anything of the rule's name, and ReportError if the two reports
    have no common measure.
    """
    if comparison.basis == "auto" and bool(comparison.a.steps) != bool(comparison.b.steps):
        raise ReportError(
            "Only one of the reports has measured step ranges, so --fail-on has no common measure. "
            f"{TO_HAVE_STEPS}, or compare the totals as they are with --totals."
        )
    if comparison.hides_kernels:
        raise ReportError(
            "A report hides kernels inside CUDA graphs, so --fail-on cannot judge kernel time. Compare "
            "--all-work, or record with `nsys profile --cuda-graph-trace=node`."
        )
    kind, parts = _named(rule, comparison)
    change = comparison.change((), *parts)
    if rule.beyond_spread and None in (change.a_spread_ns, change.b_spread_ns):
        raise ReportError(
            f"The rule {rule.text!r} needs two or more measured steps in each report: A has {comparison.a.steps}, "
            f"B {comparison.b.steps}. {TO_HAVE_STEPS}."
        )
    allowed = rule.amount * change.a_ns if rule.relative else rule.amount
    only_in = "" if all(parts) or kind == "total" else "A" if parts[0] else "B"
    gone = only_in == "A" and not allow_missing
    exceeds = OPERATORS[rule.operator](change.delta_ns, allowed)
    violated = gone or (exceeds and not (rule.beyond_spread and change.within_spread))
    return Verdict(rule, _described(kind, rule.name, comparison), change, violated, only_in)


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
