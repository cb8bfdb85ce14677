"""Time the phases with CUDA events and no profiler, to hold against the kernel time that a report gives them."""

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from profiling.settings import Settings
from profiling.workload import Workload

WARM_UP, STEPS = 5, 10


def phases(workload: Workload) -> dict[str, float]:
    """Run one step and return the milliseconds between events around each phase."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    marks[0].record()
    loss = workload.forward()
    marks[1].record()
    workload.backward(loss)
    marks[2].record()
    workload.optimizer_step()
    marks[3].record()
    torch.cuda.synchronize()
    names = ("forward", "backward", "optimizer")
    return {name: marks[n].elapsed_time(marks[n + 1]) for n, name in enumerate(names)}


def main() -> None:
    """Print the mean of each phase, ms, as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    workload = Workload(Settings(size=parser.parse_args().size))
    times = [phases(workload) for _ in range(WARM_UP + STEPS)][WARM_UP:]
    print(json.dumps({name: sum(step[name] for step in times) / STEPS for name in times[0]}))


if __name__ == "__main__":
    main()
