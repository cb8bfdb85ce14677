"""Twelve programs on a CPU that time their own steps, and the step times that their recordings give.

    python -m benchmarks.step_times      # a table, last the largest difference; exit 1 if it is over 2%

Each program prints nothing of its own: it takes `time.perf_counter()` at the end of each iteration, as people do,
and keeps what evaluation took apart. Its recording gives the same steps by their marks and ranges.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from statistics import median

import torch
from torch import Tensor, nn

import nvtx_kernels as nk

ITERATIONS, WARM_UP, MOST = 10, 3, 0.02
PAUSE_S = 0.02

Program = Callable[["Clock", Path], None]


class Clock:
    """A program's own times: of each iteration, without what it took apart, s."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._last, self._apart = time.perf_counter(), 0.0

    def tick(self) -> None:
        """Keep the time of an iteration that has ended."""
        now = time.perf_counter()
        self.times.append(now - self._last - self._apart)
        self._last, self._apart = now, 0.0

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave what is done inside out of the iteration's time."""
        began = time.perf_counter()
        yield
        self._apart += time.perf_counter() - began


def mlp(width: int = 256, depth: int = 4) -> nn.Sequential:
    """Return a model of some milliseconds a step."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of the model's parameters."""
    return torch.optim.SGD(model.parameters(), lr=1e-4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """Train one step."""
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def plain(clock: Clock, path: Path) -> None:
    """Train in the usual loop."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(256, 256)
    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        for _ in range(ITERATIONS):
            train(model, optimizer, batch)
            clock.tick()


def loading(clock: Clock, path: Path) -> None:
    """Wait for a batch before each step."""
    model = mlp()
    optimizer = sgd(model)
    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        for _ in range(ITERATIONS):
            time.sleep(PAUSE_S)
            train(model, optimizer, torch.randn(256, 256))
            clock.tick()


def prefetching(clock: Clock, path: Path) -> None:
    """Take batches that a thread makes meanwhile."""
    model = mlp()
    optimizer, batches = sgd(model), Queue[Tensor](maxsize=2)
    loader = threading.Thread(target=lambda: [batches.put(torch.randn(256, 256)) for _ in range(ITERATIONS)])
    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        loader.start()
        for _ in range(ITERATIONS):
            train(model, optimizer, batches.get())
            clock.tick()
        loader.join()


def accumulating(clock: Clock, path: Path) -> None:
    """Update after four small batches."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(64, 256)
    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        for _ in range(ITERATIONS):
            for _ in range(4):
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()


def evaluating(clock: Clock, path: Path) -> None:
    """Evaluate after every third step."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(256, 256)
    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        for number in range(ITERATIONS):
            train(model, optimizer, batch)
            clock.tick()
            if number % 3 == 2:
                with clock.apart(), torch.no_grad():
                    model.eval()
                    for _ in range(3):
                        model(batch)
                    model.train()


def adversarial(clock: Clock, path: Path) -> None:
    """Train two models in turn, with an optimizer each."""
    one, other = mlp(depth=4), mlp(depth=4)
    updates, batch = [sgd(one), sgd(other)], torch.randn(256, 256)
    with nk.profile({"D": one, "G": other}, updates, path, warmup=WARM_UP):
        for _ in range(ITERATIONS):
            train(one, updates[0], batch)
            train(other, updates[1], batch)
            clock.tick()


def ended_by_call(clock: Clock, path: Path) -> None:
    """Say itself when a step ends."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(256, 256)
    with nk.profile(model, optimizer, path, warmup=WARM_UP) as profiled:
        for _ in range(ITERATIONS):
            train(model, optimizer, batch)
            time.sleep(PAUSE_S / 4)
            clock.tick()
            profiled.step()


def uneven(clock: Clock, path: Path) -> None:
    """Train steps of two lengths in turn."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(512, 256)
    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        for number in range(ITERATIONS):
            train(model, optimizer, batch[: 256 * (1 + number % 2)])
            clock.tick()


def recurrent(clock: Clock, path: Path) -> None:
    """Train a cell in a Python loop."""
    model, head = nn.GRUCell(128, 256), nn.Linear(256, 8)
    whole = nn.ModuleList([model, head])
    optimizer, batch = sgd(whole), torch.randn(24, 64, 128)
    with nk.profile([model, head], optimizer, path, warmup=WARM_UP):
        for _ in range(ITERATIONS):
            hidden = torch.zeros(64, 256)
            for token in batch:
                hidden = model(token, hidden)
            head(hidden).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()


def searching(clock: Clock, path: Path) -> None:
    """Update by an optimizer that calls forward and backward itself."""
    model, batch = mlp(depth=3), torch.randn(256, 256)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        for _ in range(ITERATIONS):
            optimizer.step(closure)
            clock.tick()


def in_a_thread(clock: Clock, path: Path) -> None:
    """Train in a thread beside the main one."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(256, 256)

    def loop() -> None:
        for _ in range(ITERATIONS):
            train(model, optimizer, batch)
            clock.tick()

    with nk.profile(model, optimizer, path, warmup=WARM_UP):
        trainer = threading.Thread(target=loop)
        trainer.start()
        trainer.join()


def once(clock: Clock, path: Path) -> None:
    """Record one step only, and take apart what the recorder does before and after it."""
    model = mlp()
    optimizer, batch = sgd(model), torch.randn(256, 256)
    with nk.profile(model, optimizer, path, warmup=WARM_UP, steps=1) as profiled:
        for _ in range(WARM_UP + 1):
            train(model, optimizer, batch)
            clock.tick()
            with clock.apart():
                profiled.step()


PROGRAMS: tuple[Program, ...] = (
    *(plain, loading, prefetching, accumulating, evaluating),
    *(adversarial, ended_by_call, uneven, recurrent, searching, in_a_thread, once),
)


def measured(program: Program, folder: Path) -> float:
    """Print a step's time by a program's own clock and by its recording; return the relative difference.

    The same steps are compared one by one, of several without the first measured one, whose beginning is unknown.
    The median of their differences counts. The program's clock goes on while the recorder writes, at the end of a
    step or at the beginning of the next.
    """
    clock, path = Clock(), folder / f"{program.__name__}.sqlite"
    program(clock, path)
    all_rows = nk.rank(path, per_step=True).report.step_time.rows
    rows = [row for row in all_rows if not row.first] or all_rows
    times_ns = [1e9 * seconds for seconds in clock.times[-len(rows) :]]
    steps_ns = [row.own_ns + row.recorder_ns for row in rows]
    spread = (max(steps_ns) - min(steps_ns)) / median(steps_ns)
    off = median(step_ns / time_ns - 1 for step_ns, time_ns in zip(steps_ns, times_ns, strict=True))
    figures = f"{median(times_ns) / 1e6:10.2f} {median(steps_ns) / 1e6:9.2f} {100 * off:+7.2f}%"
    print(f"{program.__name__:15} {figures} {len(rows):5} {100 * spread:6.0f}%", flush=True)
    return abs(off)


def main() -> int:
    """Run all programs; return 1 if a step time is off by more than 2%."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{'program':15} {'clock, ms':>9} {'step, ms':>9} {'off':>8} {'steps':>5} {'spread':>7}")
    with tempfile.TemporaryDirectory() as folder:
        off = [measured(program, Path(folder)) for program in PROGRAMS]
    print(f"largest difference: {max(off):.2%} of {len(off)} programs")
    return int(max(off) > MOST)


if __name__ == "__main__":
    sys.exit(main())
