"""What changed from one report to another, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from ..document import SHORT, Column, Detail, Document, Row, Table, headed, with_columns
from ..kernel_names.short import names_by_kernel
from ..report import tree_order
from ..report.account import IDLE
from ..support import noise
from ..support.text import fit
from ..support.units import count_text
from ..views import headings
from ..views.account import CALLED, OUTSIDE, detail_of
from ..views.rows import NOWHERE, common_length, count_of, label
from . import for_programs
from .answer import answer
from .change import Change
from .changes import Axis, Comparison, changes, notes
from .rules import Verdict

By = Literal["account", "phase", "category", "range", "kernel"]
NUMBERS = headed(a_ns="A", b_ns="B", delta_ns="B−A", change="%", a_count="launches A", b_count="B")
MARK = Column("within_spread", "~")
MARKS: dict[noise.Verdict, str] = {"differs": "", "same": "~", "not known": "?"}
#: What the signs mean that cells end with.
SIGNS = {
    "~": f" ~: equal within {noise.SAME_WITHIN:.0%}.",
    "?": " ?: may be noise.",
    "×": " n×: B is n times A.",
}
#: States that changed by less than this share of all changes are one row, and so are those beyond the most.
SMALL, MOST_STATES, LONGEST_PLACE = 0.03, 8, 30
#: What a table of kernel time is of.
OF_AXIS = {"phase": "by phase", "category": "by category", "range": "by innermost range", "kernel": "by kernel"}
OF_TREE = "inside each range"
#: From this change on, a multiple is shown in place of a percentage.
TIMES_FROM = 10
STATES = {"new": "only in B", "gone": "only in A"}


def compared(
    comparison: Comparison, verdicts: Sequence[Verdict] = (), detail: Detail = SHORT, *, by: By | None = None
) -> Document:
    """Show where two reports differ most; `by` shows only one axis, ranges as a tree.

    Programs get every row, with full names, nothing merged and nothing cut.
    """
    if detail.whole:
        document = _document(comparison, for_programs.tables(comparison, verdicts, by))
        return replace(document, promised=partial(for_programs.as_object, comparison, verdicts))
    drawing = _Drawing(comparison, detail)
    if by is None:
        tables = [*(drawing.account() or [drawing.ranked("phase")]), drawing.ranked("range")]
    elif by == "account":
        tables = drawing.account()
    else:
        tables = [drawing.tree() if by == "range" else drawing.ranked(by)]
    return _document(comparison, [*tables, *rules(verdicts, comparison)])


def rules(verdicts: Sequence[Verdict], comparison: Comparison) -> list[Table]:
    """Return a table of the rules' verdicts, each with what it was compared with; none without rules."""
    rows: list[Row] = []
    for verdict in verdicts:
        word = "VIOLATED" if verdict.violated else "holds"
        change = verdict.change
        times = change.a_ns, change.b_ns, change.delta_ns, _change_text(change.change)
        rows.append(Row((verdict.rule.text, *times, word), strong=verdict.violated))
        compared = verdict.compared
        if verdict.only_in:
            compared += f", only in {verdict.only_in}"
        if verdict.rule.limit.beyond_spread and change.verdict == "same":
            compared += ", may be noise"
        rows.append(Row((compared, *[""] * 5), indent=1))
    if not rows:
        return []
    violated = sum(verdict.violated for verdict in verdicts)
    title = f"Rules: {violated} of {len(verdicts)} violated, {{unit}} {_scope(comparison)}"
    columns = (*headed("rule"), *NUMBERS[:4], *headed("verdict"))
    return [_explained(Table("rules", title, columns, tuple(rows)))]


def _document(comparison: Comparison, tables: Sequence[Table]) -> Document:
    """Describe each report, and once what both have in common, above the tables."""
    facts = [headings.facts(report) for report in comparison.reports]
    common = headings.common([names for _file, *names in facts])
    sides = []
    for name, (file, *others) in zip("AB", facts, strict=True):
        differing = [fact for fact in others if fact not in common]
        sides.append(f"{name}: {' · '.join([file, *differing])}")
    heading = " → ".join(sides)
    if common:
        heading += f" — both: {' · '.join(common)}"
    accounting: list[str] = []
    for name, report in zip("AB", comparison.reports, strict=True):
        if report.totals.outside_ns or report.totals.ambiguous_ns:
            accounting += (f"{name}: {line}" for line in headings.accounting_of(report))
    document = headings.document(comparison.a.provenance, heading, tables, accounting, notes(comparison))
    return replace(document, heading=answer(comparison).sentence, verdict=f"{heading}{_launched(comparison)}")


def _launched(comparison: Comparison) -> str:
    """Return how much of each kind of work a step launches on both sides, which no noise changes."""
    launched = []
    for kind, names in headings.KINDS_OF_WORK.items():
        counts = [count_of(row for row in report.kernels if row.kind == kind) for report in comparison.reports]
        texts = dict.fromkeys(count_text(round(count, 1)) for count in counts)
        if any(counts):
            launched.append(f"{' → '.join(texts)} {names[counts != [1, 1]]}")
    if not launched:
        return ""
    sentence = f". Launched {_scope(comparison)}: {', '.join(launched)}."
    return headings.worded(sentence, comparison.a.provenance)


def _scope(comparison: Comparison) -> str:
    """Return what figures are of on both sides, such as `per step`."""
    scopes = dict(zip("AB", map(headings.scope, comparison.reports), strict=True))
    return scopes["A"] if scopes["A"] == scopes["B"] else ", ".join(map(" ".join, scopes.items()))


class _Drawing:
    """Draws the axes of one comparison as text."""

    def __init__(self, comparison: Comparison, detail: Detail) -> None:
        self.comparison = comparison
        self.detail = detail
        self.naming = comparison.naming(every_index=detail.every_index)

    def account(self) -> list[Table]:
        """Show what a step spends more or less time on, the largest changes first, which add up; [] if unknown."""
        changes = self.comparison.account
        if not changes:
            return []
        least_ns = SMALL * sum(abs(row.delta_ns) for row in changes)
        top = sum(abs(row.delta_ns) >= least_ns for row in changes[:MOST_STATES])
        top += len(changes) == top + 1
        on_cpu = self.comparison.on_cpu
        rows = []
        for row in changes[:top]:
            kind, _ = row.key
            called = OUTSIDE if on_cpu and kind == IDLE else CALLED[kind]
            place = row.cause.function or label(row.cause.path, 1) if row.cause else ""
            rows.append((called, detail_of(row.key), row, fit(place, LONGEST_PLACE)))
        if cut := changes[top:]:
            rows.append(("", "other changes", _added(cut), ""))
        step, recorded = ("a step", "step") if self.comparison.per_step else ("all", "time")
        rows.append((step, "", _added(changes), ""))
        cells = []
        for kind, what, row, place in rows:
            cells.append(Row((kind, what, *_numbers(row)[:4], MARKS[row.verdict], place)))
        columns = (*headed(kind="", what=""), *NUMBERS[:4], MARK, *headed(place="most in"))
        return [self.table("account", f"Where the recorded {recorded} changed, {{unit}}", columns, cells)]

    def ranked(self, axis: Axis) -> Table:
        """Rank one axis by the size of the difference; what is cut and the total are rows too."""
        changed = [row for row in changes(self.comparison, axis, self.naming) if row.a_count or row.b_count]
        top = self.detail.top if axis in ("range", "kernel") else len(changed)
        lines = list(zip(self.names(axis, changed, top), changed, strict=False))
        if cut := changed[top:]:
            lines.append((f"… {len(cut)} more: --top {len(changed)}", _added(cut)))
        lines.append((self.comparison.whole, self.comparison.total))
        rows = [Row((name, *_numbers(row), MARKS[row.verdict])) for name, row in lines]
        columns = (Column(axis, axis, "name"), *NUMBERS, MARK)
        states = [row.state for row in changed]
        only = ", ".join(f"{states.count(state)} {words}" for state, words in STATES.items() if state in states)
        return self.table(f"by_{axis}", self.title(OF_AXIS[axis]), columns, rows, f" {only}." if only else "")

    def names(self, axis: Axis, changed: Sequence[Change], top: int) -> list[str]:
        """Return the displayed names of an axis's first items."""
        keys = [row.key for row in changed[:top]]
        if axis == "kernel":
            short = names_by_kernel((kernel for kernel, _ in keys), self.detail.full_names)
            return [short[kernel] for kernel, _ in keys]
        if axis == "range":
            common = common_length(row.key for row in changed)
            return [label(key, common) for key in keys]
        called = headings.phase if axis == "phase" else headings.category
        return [called(name) for (name,) in keys]

    def tree(self) -> Table:
        """Show all ranges as a tree, with what was launched at any depth and the part launched directly."""
        changed = changes(self.comparison, "range", self.naming)
        order = tree_order([(row.key, (max(row.whole.a_ns, row.whole.b_ns),)) for row in changed])
        in_ranges = sorted((row for row in changed if row.key), key=lambda row: order(row.key))
        lines = [(row.key[-1], row, len(row.key) - 1) for row in in_ranges]
        lines += [(NOWHERE, row, 0) for row in changed if not row.key]
        lines.append((self.comparison.whole, self.comparison.total, 0))
        rows = []
        for name, row, indent in lines:
            numbers = _numbers(row.whole)
            rows.append(Row((name, *numbers, row.delta_ns, MARKS[row.whole.verdict]), indent))
        columns = (*headed("range"), *NUMBERS, *headed(own_delta_ns="own B−A"), MARK)
        own = " own: in no inner range, which sums to the total."
        return self.table("by_range", self.title(OF_TREE), columns, rows, own)

    def title(self, of_what: str) -> str:
        """Return the title of a table of kernel time, or of all work."""
        a = self.comparison.a
        time = f"All {headings.work(a)}" if self.comparison.all_work else headings.kernel_time(a)
        return f"{time} {of_what}, {{unit}} {_scope(self.comparison)}"

    def table(self, key: str, title: str, columns: tuple[Column, ...], rows: list[Row], more: str = "") -> Table:
        """Put a table together whose last row is the sum; it has marks where steps can tell."""
        rows[-1] = replace(rows[-1], strong=True)
        table = Table(key, title, columns, tuple(rows), f"% is of A's time.{more}")
        if not self.comparison.steps.are_known:
            table = with_columns(table, [place for place, column in enumerate(columns) if column != MARK])
        return _explained(table)


def _numbers(row: Change) -> tuple[object, ...]:
    """Return the values of NUMBERS."""
    return row.a_ns, row.b_ns, row.delta_ns, row.state or _change_text(row.change), row.a_count, row.b_count


def _change_text(change: float | None) -> float | str | None:
    """Write a large increase as a multiple of A instead of a long percentage."""
    return change if change is None or change < TIMES_FROM else f"{round(change + 1):,}×"


def _explained(table: Table) -> Table:
    """Add to the caption what the signs in a table's cells mean."""
    places = [place for place, column in enumerate(table.columns) if column.kind == "share" or column == MARK]
    ends = {str(row.values[place])[-1:] for row in table.rows for place in places}
    caption = table.caption + "".join(text for sign, text in SIGNS.items() if sign in ends)
    return replace(table, caption=caption.strip())


def _added(rows: Iterable[Change]) -> Change:
    """Add up changes; whether a sum is noise is not asked."""
    rows = list(rows)
    sums = {name: sum(getattr(row, name) for row in rows) for name in ("a_ns", "b_ns", "a_count", "b_count")}
    return Change((), **sums, judged="differs")
