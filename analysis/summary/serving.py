"""What a serving engine's steps held, by their names: a sentence with the time of a token and of a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..report import RangeRow
from ..support.units import count_text, time_text
from ..vocabulary import DECODE, PREFILL
from ..vocabulary.served import held


@dataclass(slots=True)
class _Served:
    """Steps of one phase: how many, for how many requests and tokens (None: not said), and their time, ns."""

    steps: int = 0
    requests: int = 0
    tokens: int | None = 0
    kernel_ns: float = 0
    span_ns: float | None = 0

    def add(self, row: RangeRow, requests: int, tokens: int | None) -> None:
        """Add the instances of a row, each of which held so much."""
        steps = int(row.instances or 0)
        self.steps += steps
        self.requests += steps * requests
        self.tokens = None if tokens is None or self.tokens is None else self.tokens + steps * tokens
        self.kernel_ns += row.inclusive_ns
        self.span_ns = None if row.span_ns is None or self.span_ns is None else self.span_ns + row.span_ns


def of_steps(ranges: Iterable[RangeRow]) -> Iterator[str]:
    """Yield sentences for prefill, for decode, and for steps of both, where names of steps say what these held."""
    served = {PREFILL: _Served(), DECODE: _Served()}
    both = {PREFILL: _Served(), DECODE: _Served()}
    for row in ranges:
        step = held(row.path[-1]) if row.path and row.instances else None
        if step is None:
            continue
        prefills, decodes = step.prefill_requests or 0, step.decode_requests or 0
        of_step = both if prefills and decodes else served
        if prefills:
            of_step[PREFILL].add(row, prefills, step.prefill_tokens)
        if decodes:
            of_step[DECODE].add(row, decodes, step.decode_tokens)
    for phase, of_phase in served.items():
        if of_phase.steps and of_phase.kernel_ns:
            yield _sentence(phase, of_phase)
    if both[PREFILL].steps and both[PREFILL].kernel_ns:
        yield _of_both(both[PREFILL], both[DECODE])


def _sentence(phase: str, served: _Served) -> str:
    per_request = f"{time_text(served.kernel_ns / served.requests)} of kernel time a request"
    steps = f"{phase.capitalize()}: {_counted(served.steps, 'step')}"
    requests = _counted(served.requests, "request")
    if not served.tokens:
        return f"{steps} for {requests} (a request counts in each), {per_request}."
    return (
        f"{steps} for {_counted(served.tokens, 'token')} of {requests} (a request counts in each step), "
        f"{time_text(served.kernel_ns / served.tokens)} of kernel time a token{_rate(served.tokens, served)}, "
        "by the names of the steps."
    )


def _of_both(prompts: _Served, generating: _Served) -> str:
    """Describe the steps that held both, whose time cannot be divided between them."""
    parts = []
    for part, kind in ((prompts, "prompt"), (generating, "generating request")):
        tokens = f"{_counted(part.tokens, 'token')} of " if part.tokens else ""
        parts.append(f"{tokens}{_counted(part.requests, kind)}")
    both_known = prompts.tokens is not None and generating.tokens is not None
    all_tokens = (prompts.tokens or 0) + (generating.tokens or 0) if both_known else None
    time = f"{time_text(prompts.kernel_ns)} of kernel time together"
    return (
        f"Prefill and decode in one: {_counted(prompts.steps, 'step')} for {' and '.join(parts)}, {time}"
        f"{_rate(all_tokens, prompts)}, by the names of the steps."
    )


def _rate(tokens: int | None, served: _Served) -> str:
    """Return how many tokens a second of the steps' GPU spans; empty where either is not known."""
    return (
        f", {tokens / served.span_ns * 1e9:,.0f} tokens a second of GPU span" if tokens and served.span_ns else ""
    )


def _counted(count: float, thing: str) -> str:
    return f"{count_text(count)} {thing}{'' if count == 1 else 's'}"
