"""What `python -m profiling.run` shows: what it runs, how far it is, and how long each phase took."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from profiling.measurement import Capture, Measurement, Spread, measure
from profiling.settings import WORK_OF_DEVICE, Settings, environment
from profiling.workload import Workload

MEMORY_OF_DEVICE = {"cuda": "GPU memory held by tensors while measuring", "cpu": "memory of the process"}
GIB = 1 << 30


def run(settings: Settings, capture: Capture) -> Measurement:
    """Run the workload, showing progress on stderr and the result on stdout."""
    console = Console(soft_wrap=False, highlight=False)
    with _progress(settings.warmup + settings.steps) as advance:
        workload = Workload(settings)
        for line in what_runs(workload):
            console.print(line)
        measurement = measure(workload, capture, advance)
    console.print(times_table(settings, measurement))
    for line in footnotes(settings, measurement, capture):
        console.print(line)
    return measurement


def what_runs(workload: Workload) -> Iterator[str]:
    """Yield what is run, on what, in sentences that name every setting that decides a number."""
    settings = workload.settings
    facts = environment(settings)
    how = "torch.compile" if settings.compile else "eager"
    yield (
        f"{settings.size}: {workload.parameters:,} parameters, batch {settings.batch_size}, "
        f"context {settings.context_length}, {settings.mode}"
    )
    yield (
        f"{settings.dtype} (FP32 products: {facts['float32_matmul_precision']}, autocast {facts['autocast']}), "
        f"{settings.attention} attention, {how}, {settings.optimizer} AdamW, seed {settings.seed}"
    )
    versions = facts["versions"]
    yield f"{facts['device']['name']}, PyTorch {versions['torch']}, Python {versions['python']}"
    if settings.device_type == "cpu":
        yield _smaller_work()


def _smaller_work() -> str:
    gpu, cpu = WORK_OF_DEVICE["cuda"], WORK_OF_DEVICE["cpu"]
    return (
        "On a CPU less is run unless asked for: "
        f"context {cpu['context_length']} instead of {gpu['context_length']}, "
        f"batch {cpu['batch_size']} instead of {gpu['batch_size']}, "
        f"{cpu['warmup']} + {cpu['steps']} steps instead of {gpu['warmup']} + {gpu['steps']}."
    )


def times_table(settings: Settings, measurement: Measurement) -> Table:
    """Return the table of the phases' times over the measured steps."""
    table = Table(title=f"ms per step, over {settings.steps} measured after {settings.warmup} warm-up steps")
    table.add_column("phase")
    for column in ("mean", "std", "min", "max"):
        table.add_column(column, justify="right")
    for phase in (*settings.phases, "step"):
        spread = Spread.of(measurement.of(phase))
        std = "-" if spread.std is None else f"{spread.std:.3f}"
        table.add_row(phase, f"{spread.mean:.3f}", std, f"{spread.low:.3f}", f"{spread.high:.3f}")
    return table


def footnotes(settings: Settings, measurement: Measurement, capture: Capture) -> Iterator[str]:
    """Yield what the numbers are of."""
    yield "CPU clock; every phase waits for the device before it ends. std is the sample's."
    memory = MEMORY_OF_DEVICE.get(settings.device_type, "memory")
    yield f"Peak: {measurement.peak_bytes / GIB:.2f} GiB of {memory}."
    if capture.record_to is not None:
        yield f"Recorded to {capture.record_to}; recording slows the steps down, so do not report these times."


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("steps", total=steps)
        yield lambda: progress.advance(task)
