"""Build the part in C++ that makes annotation cheaper, check it, and say what it gains.

python -m profiling.accelerate
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .cli import CommandError, ended

if TYPE_CHECKING:
    from torch import nn

_ROUNDS, _STEPS = 20, 5


def parser(prog: str = "python -m profiling.accelerate") -> argparse.ArgumentParser:
    """Return the options of the command."""
    description = (
        "Build the optional part of annotation that is in C++, for the installed PyTorch and Python, into the "
        "user's cache folder; check that its ranges are those of the part in Python, and show what it gains. "
        "From then on annotation uses it; NVTX_KERNELS_ACCELERATOR=0 keeps it off."
    )
    return argparse.ArgumentParser(prog, description=description)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.accelerate") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    this.parse_args(arguments)
    return ended(this, _accelerate)


def _accelerate() -> int:
    # PyTorch takes seconds to import.
    from .annotate import accelerator, range_stack
    from .annotate.accelerator.build import BuildError, build

    if range_stack.off:
        raise CommandError("annotation is switched off by NVTX_KERNELS_OFF")
    try:
        file = build()
    except BuildError as error:
        raise CommandError(str(error)) from error
    library = accelerator.loaded(file)
    model = _model()
    if _ranges(model, library) != _ranges(model, None):
        file.unlink()
        raise CommandError(
            "its ranges are not those of the part in Python, and it was removed: please report this"
        )
    sys.stdout.write(f"built {file}\nits ranges are those of the part in Python\n{_gain(model, library)}")
    return 0


def _model() -> nn.Module:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


class _Events:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def push(self, name: str, payload: object) -> None:
        from .annotate import category

        self.seen.append((name, payload, category()))

    def pop(self) -> None:
        self.seen.append(())

    def mark(self, message: str) -> None:
        pass


def _annotated(model: nn.Module, library: Any, steps: int) -> tuple[_Events, list[tuple[float, float]]]:
    """Run steps of the annotated model; return its ranges, and the seconds of each forward and backward."""
    import torch

    from .annotate import annotate_modules, listen, trail

    events, x, times, before = _Events(), torch.ones(1, 16, 64), [], trail.accelerate(library)
    try:
        with annotate_modules(model), listen(events):
            for _ in range(steps):
                began = time.process_time()
                loss = model(x).sum()
                between = time.process_time()
                loss.backward()
                times.append((between - began, time.process_time() - between))
    finally:
        trail.accelerate(before)
    return events, times


def _ranges(model: nn.Module, library: Any) -> list[tuple[object, ...]]:
    return _annotated(model, library, 2)[0].seen


def _gain(model: nn.Module, library: Any) -> str:
    """Compare the two in turns; return a line."""
    turns = [[_annotated(model, one, _STEPS)[1] for one in (None, library)] for _ in range(_ROUNDS)]
    forward, backward = (_saved(turns, phase) / len(list(model.modules())) for phase in (0, 1))
    return (
        f"it saves {forward:.1f} us per module in forward and {backward:.1f} us in backward (TransformerEncoder)\n"
    )


def _saved(turns: list[list[list[tuple[float, float]]]], phase: int) -> float:
    """Return by how many microseconds the second of each pair is faster, in its fastest step of a phase."""
    fastest = [[min(step[phase] for step in turn) for turn in both] for both in turns]
    return 1e6 * statistics.median(first - second for first, second in fastest)
