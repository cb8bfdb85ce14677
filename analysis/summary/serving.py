"""What a serving engine's steps held, by their names: a sentence with the kernel time of a token and of a request.

One module of its own because it alone reads numbers out of names; which names carry them is SERVED_NAMES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..report import RangeRow
from ..support.units import count_text, time_text
from ..vocabulary import DECODE, PREFILL
from ..vocabulary.range_names import SERVED_NAMES

_PATTERNS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in SERVED_NAMES)


@dataclass(slots=True)
class _Served:
    """Steps of one phase: how many, for how many requests and tokens (-1: not said), and their kernels' time."""

    steps: int = 0
    requests: int = 0
    tokens: int = 0
    kernel_ns: float = 0


def of_steps(ranges: Iterable[RangeRow]) -> Iterator[str]:
    """Yield a sentence for prefill and one for decode, where the names of steps say what these held."""
    served = {PREFILL: _Served(), DECODE: _Served()}
    for row in ranges:
        held = _held(row.path[-1], row.phase) if row.phase in served and row.path and row.instances else None
        if held is None:
            continue
        (requests, tokens), steps, phase = held, int(row.instances or 0), served[row.phase]
        phase.steps += steps
        phase.requests += steps * requests
        phase.tokens = -1 if tokens < 0 or phase.tokens < 0 else phase.tokens + steps * tokens
        phase.kernel_ns += row.inclusive_ns
    for phase_name, phase in served.items():
        if phase.steps and phase.kernel_ns:
            yield _sentence(phase_name, phase)


def _held(name: str, phase: str) -> tuple[int, int] | None:
    """Return the requests and tokens that a step's name says it computes in a phase; tokens are -1 if unsaid."""
    for pattern in _PATTERNS:
        if match := pattern.fullmatch(name.strip()):
            numbers = match.groupdict()
            requests, tokens = numbers.get(f"{phase}_requests"), numbers.get(f"{phase}_tokens")
            return (int(requests), int(tokens) if tokens else -1) if requests else None
    return None


def _sentence(phase: str, served: _Served) -> str:
    held = f"{count_text(served.requests)} request{'s' if served.requests > 1 else ''}"
    per_request = f"{time_text(served.kernel_ns / served.requests)} of kernel time a request"
    if served.tokens <= 0:
        return f"{phase.capitalize()}: {_steps(served)} for {held} (a request counts in each), {per_request}."
    per_token = f"{time_text(served.kernel_ns / served.tokens)} of kernel time a token"
    tokens = f"{count_text(served.tokens)} token{'s' if served.tokens > 1 else ''}"
    return (
        f"{phase.capitalize()}: {_steps(served)} for {tokens} of {held} (a request counts in each step), "
        f"{per_token}, by the names of the steps."
    )


def _steps(served: _Served) -> str:
    return f"{count_text(served.steps)} step{'s' if served.steps > 1 else ''}"
