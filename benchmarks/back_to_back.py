"""One kernel after another with all launches queued: what the GPU takes between kernels, in a stream or a graph.

python benchmarks/phase_events.py --script "back_to_back.py" --script "back_to_back.py --graph" \
  --flags=--cuda-graph-trace=node
"""

import argparse
from collections.abc import Callable

import torch
from phase_timing import Phase, warm_up_and_measure

# The queue of launches holds about a thousand; the GPU sleeps until they are all in it.
KERNELS, WARM_UP, SLEEP_CYCLES = 900, 2, 200_000_000


def kernels(elements: int) -> Callable[[], None]:
    """Return a call that launches the kernels, each needing the one before."""
    values = torch.ones(elements, device="cuda")

    def launch() -> None:
        for _ in range(KERNELS):
            values.mul_(1.0)

    return launch


def replay_of(launch: Callable[[], None]) -> Callable[[], None]:
    """Return a call that replays what the other launches, as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def main() -> None:
    """Warm up, then launch and wait, step by step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=4_000_000, help="float32 values that a kernel multiplies")
    parser.add_argument("--graph", action="store_true", help="replay the launches as a CUDA graph")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--events", action="store_true", help="print the phase's time instead of opening ranges")
    options = parser.parse_args()
    launch = kernels(options.elements)
    if options.graph:
        launch = replay_of(launch)

    def step(phase: Phase) -> None:
        torch.cuda._sleep(SLEEP_CYCLES)
        with phase("forward"):
            launch()
        torch.cuda.synchronize()

    warm_up_and_measure(step, warm_up=WARM_UP, steps=options.steps, events=options.events)


if __name__ == "__main__":
    main()
