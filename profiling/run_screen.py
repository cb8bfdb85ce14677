"""What `python -m profiling.run` shows: what it runs, how far it is, and how long each phase took."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from model.config import YEARS_OF_SIZE, name_of
from profiling import memory, memory_screen
from profiling.environment import environment
from profiling.measurement import Capture, Measurement, measure
from profiling.recorder import Recording
from profiling.run_row import kept, measured
from profiling.settings import WORK_OF_DEVICE, Settings
from profiling.workload import Workload

MEMORY_OF_DEVICE = {"cuda": "held by tensors on the GPU while measuring", "cpu": "of the whole process"}
WORK_IN_REPORT = {"cuda": "kernels and copies", "cpu": "operators"}
GIB = 1 << 30


def run(
    settings: Settings,
    capture: Capture,
    reduced: list[str],
    *,
    memory_to: str | None = None,
    row_to: str | None = None,
) -> None:
    """Run the workload, showing progress on stderr and the result on stdout.

    `reduced` names the settings that a CPU's defaults made smaller than the assignment's; `memory_to` is the
    file for PyTorch's memory snapshot, `row_to` the one for times and state.
    """
    with kept(row_to, settings, capture) as row:
        workload, measurement = _measured(settings, capture, reduced, memory_to)
        facts = environment(settings)
        _show(workload, measurement, capture, facts)
        if memory_to:
            sys.stdout.write(memory_screen.text(workload))
        if row_to:
            # nsys would count more steps as the program's.
            row.update(measured(workload, measurement, more_steps="watched_by" not in facts))
    if row_to:
        sys.stdout.write(f"Times and state are in {row_to}.\n")


def _measured(
    settings: Settings, capture: Capture, reduced: list[str], memory_to: str | None
) -> tuple[Workload, Measurement]:
    console = Console(highlight=False)
    with _progress(settings.warmup + settings.steps) as advance:
        workload = Workload(settings)
        for line in (*what_runs(workload), *less_work(settings, reduced)):
            console.print(line)
        with memory.snapshot(memory_to):
            return workload, measure(workload, capture, advance)


def _show(workload: Workload, measurement: Measurement, capture: Capture, facts: Mapping[str, Any]) -> None:
    console, settings = Console(highlight=False), workload.settings
    console.print(title(settings, facts))
    console.print(times_table(settings, measurement))
    for line in footnotes(settings, measurement, capture):
        console.print(line)


def what_runs(workload: Workload) -> Iterator[str]:
    """Yield what is run and on what: every setting and version that decides a number."""
    settings, facts = workload.settings, environment(workload.settings)
    yield (
        f"{model_name(settings)}: {workload.parameters:,} parameters, batch {settings.batch_size}, "
        f"context {settings.context_length}, mode {settings.mode}, seed {settings.seed}"
    )
    yield (
        f"{settings.dtype}: TF32 {'allowed' if facts['tf32'] else 'off'}, autocast {facts['autocast']}, "
        f"{settings.attention} attention, {'torch.compile' if settings.compile else 'eager'}, "
        f"{settings.optimizer} AdamW"
    )
    names = ("device_name", "driver", "torch", "cuda", "python")
    yield ", ".join(f"{name.replace('_name', '')} {facts[name]}" for name in names if facts.get(name))


def model_name(settings: Settings) -> str:
    """Return the model's name, and of which year's handouts it is where those differ."""
    name = name_of(settings.told())
    return f"{name} ({YEARS_OF_SIZE[name]})" if name in YEARS_OF_SIZE else name


def less_work(settings: Settings, reduced: list[str]) -> Iterator[str]:
    """Say which of the assignment's defaults a CPU does not get."""
    if reduced:
        default = WORK_OF_DEVICE["cuda"]
        parts = (f"{name.replace('_', ' ')} {getattr(settings, name)} not {default[name]}" for name in reduced)
        yield f"Less work, since this is no GPU: {', '.join(parts)}."


def times_table(settings: Settings, measurement: Measurement) -> Table:
    """Return the table of the phases' times over the measured steps."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("ms")
    for column in ("mean", "std", "min", "max"):
        table.add_column(column, justify="right")
    for phase in (*settings.phases, "step"):
        spread = measurement.spread(phase)
        std = "-" if spread.std is None else f"{spread.std:.3f}"
        table.add_row(phase, f"{spread.mean:.3f}", std, f"{spread.low:.3f}", f"{spread.high:.3f}")
    return table


def title(settings: Settings, facts: Mapping[str, Any]) -> str:
    """Return what stands over the times, given the environment: what they are of, and whether nsys slowed them."""
    profiled = facts.get("watched_by")
    label = f" (profiled: times include {profiled}'s overhead)" if profiled else ""
    return f"\nCPU time over {settings.steps} measured steps, after {settings.warmup} of warm-up{label}:"


def footnotes(settings: Settings, measurement: Measurement, capture: Capture) -> Iterator[str]:
    """Yield what the numbers are of, and what became of the recording."""
    yield "Each phase ends when the device has finished it. std is the sample standard deviation."
    memory = MEMORY_OF_DEVICE.get(settings.device_type, "")
    yield f"Peak memory {memory}: {measurement.peak_bytes / GIB:.2f} GiB."
    if measurement.recording is not None:
        yield from recorded(measurement.recording, str(capture.record_to), settings.device_type)


def recorded(recording: Recording, path: str, device_type: str) -> Iterator[str]:
    """Yield what the report holds, and what it lacks."""
    work = WORK_IN_REPORT[device_type]
    yield f"Recorded {recording.works:,} {work} to {path}; recording slows the steps down."
    if recording.ended_early:
        dropped = f"{recording.dropped_ranges:,} later ranges and their work are missing"
        yield f"Recording ended early: {recording.ended_early}; {dropped}."


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("steps", total=steps)
        yield lambda: progress.advance(task)
