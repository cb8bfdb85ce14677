"""What a run tells of the models that it trains: modules that do not change or learn, and padding of batches.

warm-up nearly ends     `begin`: numbers of frozen modules are sampled, and batches held from here on
the steps have ended    `model_facts`: what is known then, for the mark of the run
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import frozen, padding, untrained


def begin() -> None:
    """Begin to find out, between two steps."""
    with _unseen():
        frozen.sample()
    padding.listen()


def model_facts() -> dict[str, Any]:
    """Return the facts of a run on its models, between two steps: `untrained`, `frozen`, `padding`, if any."""
    with _unseen():
        return {**(untrained.untrained() or {}), **(frozen.frozen() or {}), **(padding.padding() or {})}


@contextmanager
def _unseen() -> Iterator[None]:
    """Compute what neither modes of the program, which may be traced just now, nor autograd see."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield
