"""One thing that two reports have: how much of it each has, and whether they differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..report import Number
from ..report.account import Cause
from ..support import noise

#: What a change is of: a phase, a kernel and its category, a path, a state of a GPU; () of all.
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in both reports, ns and launches; in a range, what was launched directly in it.

    `inside` is what was launched in a range at any depth, and `cause` where most of some idle time is, on the side
    that has more of it; None elsewhere. The spreads are by how much the slowest step of a report exceeds its
    fastest, None where it has fewer than two. `judged` says whether the steps of B differ from those of A
    (docs/compare.md, "When B differs").
    """

    key: Key
    a_ns: Number = 0
    b_ns: Number = 0
    a_count: Number = 0
    b_count: Number = 0
    a_spread_ns: int | None = None
    b_spread_ns: int | None = None
    judged: noise.Verdict = "not known"
    inside: Change | None = None
    cause: Cause | None = None

    def figures(self, names: Iterable[str]) -> dict[str, Any]:
        """Return some figures by their names."""
        return {name: getattr(self, name) for name in names}

    @property
    def delta_ns(self) -> Number:
        """How much longer it took in B, ns."""
        return self.b_ns - self.a_ns

    @property
    def change(self) -> float | None:
        """The difference as a fraction of A's time; None where A has none."""
        return self.delta_ns / self.a_ns if self.a_ns else None

    @property
    def spread_share(self) -> float:
        """The slowest step less the fastest as a share of the time, of the side that varies more."""
        a = (self.a_spread_ns or 0) / (self.a_ns or 1)
        b = (self.b_spread_ns or 0) / (self.b_ns or 1)
        return max(a, b)

    @property
    def verdict(self) -> noise.Verdict:
        """Whether B differs; what only one of the reports has does."""
        return "differs" if self.state else self.judged

    @property
    def within_spread(self) -> bool | None:
        """Whether the steps cannot tell B from A; None where that is not known, or only one of them has it."""
        within = {"same": True, "differs": False, "not known": None}
        return within[self.judged] if self.a_count and self.b_count else None

    @property
    def state(self) -> str:
        """`new` for what only B has, `gone` for what only A has, otherwise empty."""
        if not self.whole.b_count:
            return "gone"
        return "" if self.whole.a_count else "new"

    @property
    def whole(self) -> Change:
        """What was launched in a range at any depth; anywhere else, itself."""
        return self.inside or self


def by_size(rows: Iterable[Change]) -> list[Change]:
    """Sort changes by the size of their difference, the largest first."""

    def size(change: Change) -> tuple[Number, Number, Key]:
        return -abs(change.delta_ns), -max(change.a_ns, change.b_ns), change.key

    return sorted(rows, key=size)
