"""How many ranges annotation opened in each phase, and their cost: one fact, for several views.

The price of a range is what was measured with `python -m benchmarks.annotation_cost` on the host of an H200 under
nsys (reports/h200/annotation_cost.md): the difference of an annotated and a plain step, divided by the modules. It
is of the CPU: it makes a phase longer only where the GPU waits for launches. Ranges in compiled code cost less, so
that this is rather too much than too little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..trace import MODEL_BACKWARD, MODEL_FORWARD
from ..vocabulary import PHASES

#: CPU time of one range of a module, ns; measured were 26 to 31 us forward and 13 to 18 us backward.
PRICE_NS: Mapping[int, int] = {MODEL_FORWARD: 30_000, MODEL_BACKWARD: 15_000}


@dataclass(frozen=True, slots=True)
class Price:
    """The ranges that annotation opened in one phase, and about what they cost together, ns of CPU time."""

    ranges: int
    ns: int


def prices(attribution: Attribution, *, include_warm_up: bool) -> dict[str, Price]:
    """Return the price of annotation by phase, for the phases that have ranges of it.

    Of an attribution of the measured steps these are the ranges in steps.
    """
    ranges, home = attribution.ranges, attribution.home
    counted = (home >= 0) & (include_warm_up | ~np.append(attribution.warm_up, False)[home])
    by_phase: dict[str, Price] = {}
    for number, phase in enumerate(PHASES):
        of_phase = counted & (np.append(attribution.node_phase, -1)[home] == number)
        counts = {category: int((of_phase & (ranges.category == category)).sum()) for category in PRICE_NS}
        if any(counts.values()):
            cost = sum(PRICE_NS[category] * count for category, count in counts.items())
            by_phase[phase] = Price(sum(counts.values()), cost)
    return by_phase
