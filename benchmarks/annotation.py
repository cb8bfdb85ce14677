"""What an annotation costs per call; `annotation_cost.py` times whole models.

    python -m benchmarks.annotation [--repeats 200]

`nothing listens` is the state of a program that runs without a profiler; `a listener` is the recorder's
state, with a listener that does nothing of its own. A tool such as nsys adds its own time per range.
Times are the smallest of all repeats. Run it with NVTX_KERNELS_OFF=1 to see the off-switch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack

CALLS = 1000


class Silent:
    """A listener that does nothing."""

    def push(self, name: str, payload: object) -> None:
        """Do nothing."""

    def pop(self) -> None:
        """Do nothing."""

    def mark(self, message: str) -> None:
        """Do nothing."""


def with_range() -> None:
    """Open and close a range."""
    with annotate.range("range"):
        pass


def with_region() -> None:
    """Open and close a region."""
    with annotate.region("region") as part:
        part.output(None)


@annotate.region("decorated")
def decorated() -> None:
    """Be called in a region."""


def bare() -> None:
    """Be called in nothing."""


PER_CALL = {
    "with annotate.range": with_range,
    "with annotate.region": with_region,
    "@annotate.region": decorated,
    "a bare call": bare,
}


def best_ns(run: Callable[[], object], repeats: int) -> int:
    """Return the shortest of several runs, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - began)
    return min(times)


def per_call_ns(run: Callable[[], object], repeats: int) -> float:
    """Return the time of one call, the loop around it included."""

    def many() -> None:
        for _ in range(CALLS):
            run()

    return best_ns(many, max(5, repeats // 10)) / CALLS


def print_per_call(repeats: int) -> None:
    """Print what one annotation costs in each state."""
    print(f"{'per call, ns':28} {'nothing listens':>16} {'a listener':>12}")
    for name, run in PER_CALL.items():
        quiet = per_call_ns(run, repeats)
        with annotate.listen(Silent()):
            heard = per_call_ns(run, repeats)
        print(f"{name:28} {quiet:16.0f} {heard:12.0f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="runs; the shortest counts")
    repeats = parser.parse_args().repeats
    state = "off" if range_stack.off else "a tool is attached" if range_stack.active else "no tool is attached"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, annotation: {state}\n")
    print_per_call(repeats)


if __name__ == "__main__":
    main()
