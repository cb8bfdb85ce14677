"""Steps under ranges for a profiler, or the same steps between CUDA events, for programs that are run as both."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.profiling import annotate

# Opens a range, or records events, by the phase's name.
Phase = Callable[[str], AbstractContextManager[Any]]


def warm_up_and_measure(step: Callable[[Phase], None], *, warm_up: int, steps: int, events: bool) -> None:
    """Run warm-up steps, then measured ones: in ranges for a profiler, or between events."""
    _in_ranges("warmup", warm_up, step)
    if events:
        between_events(steps, step)
        return
    torch.cuda.profiler.start()
    _in_ranges("measure", steps, step)
    torch.cuda.profiler.stop()


def _in_ranges(name: str, count: int, step: Callable[[Phase], None]) -> None:
    """Run steps whose phases are ranges, each in a range `step`, and all in one of this name."""
    with annotate.range(name):
        for _ in range(count):
            with annotate.range("step"):
                step(annotate.range)


def between_events(count: int, step: Callable[[Phase], None]) -> None:
    """Run steps without ranges, and print the mean of each phase's time, ms, as one line of JSON."""
    events = PhaseEvents()
    for _ in range(count):
        step(events.phase)
    print(json.dumps(events.means()), flush=True)


class PhaseEvents:
    """Pairs of events on the current stream, by phase; nothing waits before `means`."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record an event before and one after what runs inside."""
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._pairs.setdefault(name, []).append((first, last))

    def means(self) -> dict[str, float]:
        """Wait for the GPU and return each phase's mean time, ms."""
        torch.cuda.synchronize()
        return {
            name: sum(first.elapsed_time(last) for first, last in pairs) / len(pairs)
            for name, pairs in self._pairs.items()
        }
