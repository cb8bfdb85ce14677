"""How much may change, as rules for a build write it: `> +5%`, `< -0.3ms`, `> +2% beyond spread`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from .units import UNITS_NS

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
#: The name of a step's time in rules.
STEP_TIME = "step time"
_RULE = re.compile(
    r"(?P<name>.+?)(?P<operator>[<>]=?)\s*"
    r"(?P<sign>[-+])\s*(?P<amount>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|ns|us|µs|ms|s)(?P<spread>\s+beyond\s+spread)?"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a difference is held against; `amount` is a fraction of A's time where `relative`, else ns.

    With `beyond_spread`, what the steps cannot tell from noise exceeds nothing.
    """

    operator: str
    amount: float
    relative: bool
    beyond_spread: bool = False

    def exceeded(self, a_ns: float, delta_ns: float) -> bool:
        """Return whether a difference from A's time is more than allowed."""
        allowed = self.amount * a_ns if self.relative else self.amount
        return OPERATORS[self.operator](delta_ns, allowed)


def read(text: str) -> tuple[str, Limit]:
    """Return the name in a rule, and its limit; raises ValueError for any other text."""
    match = _RULE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a rule for --fail-on")
    amount = float(match["sign"] + match["amount"])
    relative = match["unit"] == "%"
    scaled = amount / 100 if relative else amount * UNITS_NS[match["unit"]]
    return match["name"].strip(), Limit(match["operator"], scaled, relative, bool(match["spread"]))
