"""What annotation costs: per call, and as a share of a step of the tiny model.

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
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack

CALLS = 1000


class Silent:
    """A listener that does nothing but count what begins."""

    def __init__(self) -> None:
        self.count = 0

    def push(self, name: str, payload: object) -> None:  # noqa: ARG002
        """Count a range."""
        self.count += 1

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


class Step:
    """Forward alone, without and with gradients, and a whole step of the tiny model."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = CONFIGS["tiny"]
        self.model = TransformerLM(config, 16)
        self.ids_BT = torch.randint(config.vocabulary, (1, 16))

    def no_grad(self) -> None:
        """Run forward without gradients."""
        with torch.no_grad():
            self.forward()

    def forward(self) -> torch.Tensor:
        """Run forward."""
        return cross_entropy(self.model(self.ids_BT), self.ids_BT)

    def step(self) -> None:
        """Run forward and backward."""
        self.forward().backward()  # type: ignore[no-untyped-call]


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


def print_per_step(repeats: int) -> None:
    """Print what annotation adds to the tiny model's step, as a share of the step without a listener."""
    step, listener = Step(), Silent()
    region_ns = per_call_ns(with_region, repeats) - per_call_ns(bare, repeats)
    print(f"\n{'tiny model, us':28} {'nothing listens':>16} {'of it ranges':>14} {'a listener':>12} {'more':>6}")
    for name, run in (("forward, no gradients", step.no_grad), ("forward", step.forward), ("step", step.step)):
        quiet = best_ns(run, repeats)
        listener.count = 0
        with annotate.listen(listener):
            heard = best_ns(run, repeats)
        forward_ranges = listener.count / (repeats + 1) / (2 if name == "step" else 1)
        ranges_us = forward_ranges * region_ns / 1e3
        share = f"{ranges_us:6.1f} ({100e3 * ranges_us / quiet:.1f}%)"
        print(f"{name:28} {quiet / 1e3:16.0f} {share:>14} {heard / 1e3:12.0f} {heard / quiet - 1:6.0%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="runs of which the shortest counts")
    repeats = parser.parse_args().repeats
    state = "off" if range_stack.off else "a tool is attached" if range_stack.active else "no tool is attached"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, annotation: {state}\n")
    print_per_call(repeats)
    print_per_step(repeats)


if __name__ == "__main__":
    main()
