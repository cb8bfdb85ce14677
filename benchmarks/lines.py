"""What the step costs that is traced by line, by the program's own clock, and how many calls get a line.

    python -m benchmarks.lines [--device cuda] [--steps 30] [--json FILE]

Each program is timed step by step with `time.perf_counter` (on a GPU after waiting for it): bare; bare with the
step traced by each tracer that Python has; and inside `nk.profile` with lines and without, as often as `--rounds`
says. A row has medians in ms, of a recording those of the step that is traced and of the measured ones, the size
of the mark, and the share of the measured steps' calls that have a line.

The programs: a plain model, one with many small modules, a loop over parameters, Python over lists, and reads.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.profiling.lines.by_monitoring import ByMonitoring
from nvtx_kernels.profiling.lines.by_settrace import BySettrace
from nvtx_kernels.profiling.lines.line_log import LineLog
from torch import nn

import nvtx_kernels as nk

MARK = "SELECT length(text) FROM marks WHERE text LIKE 'nvtx-kernels lines:%'"
#: In a recording with the usual three steps of warm-up, the last of these is traced.
TRACED, MEASURED = 2, range(3, 13)
Step = Callable[[], None]


class RMSNorm(nn.Module):
    """A norm of several lines."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of unit mean square, times the weights."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = RMSNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and what the block adds to it."""
        hidden = self.up(self.norm(x))
        hidden = torch.nn.functional.gelu(hidden)
        return x + self.down(hidden)


class Program:
    """A model and its optimizer; `extra` runs at the end of each step."""

    def __init__(self, device: str, blocks: int, width: int, extra: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(Block(width) for _ in range(blocks))).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=extra != "loop")
        self.average = [weight.detach().clone() for weight in self.model.parameters()]
        self.device, self.width, self.extra = device, width, extra

    def step(self) -> None:
        """Train one step."""
        x = torch.randn(32, self.width, device=self.device)
        loss = self.model(x).square().mean()
        loss.backward()
        if self.extra == "loop":
            for average, weight in zip(self.average, self.model.parameters(), strict=True):
                average.mul_(0.999).add_(weight.detach(), alpha=0.001)
        elif self.extra == "Python":
            words = [str(number % 7) for number in range(5000)]
            counts = {word: words.count(word) for word in set(words)}
            assert sum(counts.values()) == 5000
        elif self.extra == "reads":
            largest = [weight.grad.abs().max().item() for weight in self.model.parameters()]
            assert len(largest) > 1
        self.optimizer.step()
        self.optimizer.zero_grad()


PROGRAMS: dict[str, tuple[int, int, str]] = {
    "plain": (4, 256, ""),
    "modules": (32, 64, ""),
    "loop": (8, 64, "loop"),
    "Python": (4, 64, "Python"),
    "reads": (8, 64, "reads"),
}


def waited(program: Program) -> float:
    """Wait for the GPU, if there is one, and return the time, s."""
    if program.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(program: Program, step: Step) -> float:
    """Return how long a step takes, ms."""
    begin = waited(program)
    step()
    return (waited(program) - begin) * 1e3


def traced(program: Program, tracer: type[BySettrace] | type[ByMonitoring]) -> float:
    """Return how long a step takes that a tracer traces, ms."""
    log = LineLog()
    tracing = tracer(log, time.time_ns() + 10**12, sys.exit)

    def step() -> None:
        tracing.begin(sys._getframe())
        program.step()
        tracing.end()

    return timed(program, step)


def recorded(program: Program, folder: Path, *, lines: bool) -> tuple[list[float], Path]:
    """Return the times of the steps of a recording, ms, and its report."""
    path = folder / "report.sqlite"
    with nk.profile(program.model, program.optimizer, path, lines=lines):
        times = [timed(program, program.step) for _ in range(14)]
    return times, path


def share_with_lines(path: Path) -> tuple[float, int]:
    """Return the share of the calls of the steps that count which have a line, and the size of the mark."""
    attribution = opened(path).partition.of_counted_steps
    launch, lines = attribution.trace.work.launch, attribution.lines
    assert lines is not None
    with closing(sqlite3.connect(path)) as database:
        ((size,),) = database.execute(MARK).fetchall()
    return float((lines.of_launch[launch] >= 0).mean()), size


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one program."""
    program = Program(options.device, *PROGRAMS[name])
    for _ in range(6):
        program.step()
    tracers = [BySettrace, *([ByMonitoring] if hasattr(sys, "monitoring") else [])]
    bare, by = [], {tracer.__name__: [] for tracer in tracers}  # type: ignore[var-annotated]
    for _ in range(options.steps):
        bare.append(timed(program, program.step))
        for tracer in tracers:
            by[tracer.__name__].append(traced(program, tracer))
    figures: dict[str, Any] = {"program": name, "bare_ms": statistics.median(bare)}
    figures |= {f"{tracer}_ms": statistics.median(times) for tracer, times in by.items()}
    with tempfile.TemporaryDirectory() as folder:
        with_lines = [recorded(program, Path(folder), lines=True) for _ in range(options.rounds)]
        figures["with_line"], figures["mark_bytes"] = share_with_lines(with_lines[-1][1])
        without = [recorded(program, Path(folder), lines=False)[0] for _ in range(options.rounds)]
    figures["traced_in_recording_ms"] = statistics.median(times[TRACED] for times, _ in with_lines)
    figures["same_step_without_ms"] = statistics.median(times[TRACED] for times in without)
    figures["measured_ms"] = statistics.median(times[step] for times, _ in with_lines for step in MEASURED)
    figures["measured_without_ms"] = statistics.median(times[step] for times in without for step in MEASURED)
    return figures


def main() -> None:
    """Measure the programs, and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row(name, options) for name in PROGRAMS]
    for figures in rows:
        shown = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
        )
        print("  ".join(shown))
    if options.json:
        head = {"python": sys.version.split()[0], "torch": torch.__version__, "device": options.device}
        options.json.write_text(json.dumps({**head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
