"""Compare a timer around each phase with the GPU: CPU range, GPU span and kernel time.

A timer around a phase that ends with a synchronization measures the phase's CPU range. Without one, the range
closes while its work still runs, and its length says nothing about the GPU.

Annotation takes time of the CPU, too: the price of a range is what was measured with `python -m
benchmarks.annotation_cost` on the host of an H200 under nsys (reports/h200/annotation_cost.md), as the difference
of an annotated and a plain step, divided by the modules. It makes a phase longer only where the GPU waits for
launches. Ranges in compiled code cost less, so that this is rather too much than too little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..attribution.causes import Attribution
from ..support.small_numbers import looked_up
from ..trace import MODEL_BACKWARD, MODEL_FORWARD
from ..vocabulary import PHASES
from .spans import NAMES, Extents, kinds_of

# Two times agree if they differ by no more than this share of the first.
AGREES_WITHIN = 0.03
#: CPU time of one range of a module, ns; measured were 26 to 31 us forward and 13 to 18 us backward.
PRICE_NS: Mapping[int, int] = {MODEL_FORWARD: 30_000, MODEL_BACKWARD: 15_000}


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """One phase or the measured steps, over all its ranges that have GPU work; times are sums, ns.

    `ranges` counts no parts of a phase where ranges of the whole are; `with_parts` counts these, too. `late`
    counts those of `with_parts` whose work ran on after they had closed, and `late_ns` is for how long. A phase
    known only by its threads has no `ranges`, and None as `cpu_ns`.
    """

    name: str
    ranges: int
    with_parts: int
    late: int
    late_ns: int
    cpu_ns: int | None
    span_ns: int
    kernel_ns: int

    @property
    def span_share(self) -> float | None:
        """The GPU span as a share of the CPU range."""
        return self.span_ns / self.cpu_ns if self.cpu_ns else None

    @property
    def kernel_share(self) -> float | None:
        """The kernel time as a share of the CPU range."""
        return self.kernel_ns / self.cpu_ns if self.cpu_ns else None

    @property
    def of_one_ns(self) -> dict[str, float]:
        """The CPU range, GPU span and kernel time of one of the ranges, means."""
        sums_ns = {"cpu_ns": self.cpu_ns or 0, "span_ns": self.span_ns, "kernel_ns": self.kernel_ns}
        return {key: sum_ns / self.ranges for key, sum_ns in sums_ns.items()}

    @property
    def verdict(self) -> str:
        """Whether the CPU range measures what the GPU did."""
        if self.cpu_ns is None:
            return "no range"
        if self.late:
            return "not synchronized"
        return "agree" if agrees(self.cpu_ns, self.span_ns) else "CPU longer"


def agrees(a: float, b: float) -> bool:
    """Return whether a second time is close enough to the first."""
    return abs(b - a) <= AGREES_WITHIN * a


def phase_times(
    attribution: Attribution, phases: Collection[str] = PHASES, *, include_warm_up: bool = False
) -> tuple[PhaseTimes, ...]:
    """Time the requested phases, and for a whole report also its steps."""
    all_spans = Extents(attribution, include_warm_up=include_warm_up).spans(apart=False)
    times = []
    for kind in kinds_of(phases):
        spans = all_spans.take(all_spans.kind == kind)
        over = spans.end_ns - spans.cpu_end_ns
        if len(spans):
            times.append(
                PhaseTimes(
                    name=NAMES[kind],
                    ranges=int((spans.ranged & ~spans.part).sum()) or int(spans.ranged.sum()),
                    with_parts=int(spans.ranged.sum()),
                    late=int((over > 0).sum()),
                    late_ns=int(over[over > 0].sum()),
                    cpu_ns=int((spans.cpu_end_ns - spans.cpu_start_ns).sum()) if spans.ranged.any() else None,
                    span_ns=int((spans.end_ns - spans.start_ns).sum()),
                    kernel_ns=int(spans.kernel_ns.sum()),
                )
            )
    return tuple(times)


@dataclass(frozen=True, slots=True)
class Price:
    """The ranges that annotation opened in one phase, and about what they cost together, ns of CPU time."""

    ranges: int
    ns: int


def prices(attribution: Attribution, *, include_warm_up: bool) -> dict[str, Price]:
    """Return the price of annotation by phase, for the phases that have ranges of it.

    Of an attribution of the measured steps these are the ranges in steps.
    """
    ranges = attribution.ranges
    home = attribution.home
    counted = (home >= 0) & ~attribution.left_out(include_warm_up=include_warm_up)[home]
    by_phase: dict[str, Price] = {}
    for number, phase in enumerate(PHASES):
        of_phase = counted & (looked_up(attribution.node_phase, home, -1) == number)
        counts = {category: int((of_phase & (ranges.category == category)).sum()) for category in PRICE_NS}
        if any(counts.values()):
            cost = sum(PRICE_NS[category] * count for category, count in counts.items())
            by_phase[phase] = Price(sum(counts.values()), cost)
    return by_phase
