"""Small for a reason: whether programs compute the same bits, for `compiled_cost.py`, by results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256

import torch
from torch import Tensor

#: The results of a step by their names.
Results = Mapping[str, Tensor]


def compared(steps: Mapping[str, Callable[[], Results]], repeats: int = 5) -> Iterator[str]:
    """Yield sentences: what varies where each of two programs repeats its step, then between the two.

    Where results vary between repeated steps, a difference between the programs says nothing of them.
    """
    first = {kind: step() for kind, step in steps.items()}
    varying: dict[str, None] = {}
    for kind, step in steps.items():
        found = [name for _ in range(repeats) for name in differing(first[kind], step())]
        varying.update(dict.fromkeys(found))
        yield f"a step repeated {repeats} times, {kind}: {_said(found, first[kind])}"
    one, other = first.values()
    between = differing(one, other)
    yield f"{' and '.join(steps)}: {_said(between, one)}"
    if varying:
        rest = [name for name in between if name not in varying]
        yield f"without what varies in a repeated step: {_said(rest, one)}"


def differing(one: Results, other: Results) -> list[str]:
    """Return the names of the results that are not equal bit by bit."""
    return [name for name in one if not torch.equal(one[name], other[name])]


def digest(results: Results) -> str:
    """Return a few digits that tell results apart bit by bit, also those of two processes."""
    found = sha256()
    for one in results.values():
        found.update(one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _said(names: list[str], of: Results) -> str:
    distinct = list(dict.fromkeys(names))
    listed = ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")
    return (
        f"{len(distinct)} of {len(of)} tensors differ: {listed}"
        if distinct
        else f"all {len(of)} tensors are equal"
    )
