"""The screens of `nvtx-kernels run`: what it runs, its progress, and how long each phase took."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.document import Column, Document, Row, Table
from nvtx_kernels.analysis.presenters import as_table
from nvtx_kernels.analysis.support import progress
from nvtx_kernels.model.config import YEARS_OF_SIZE, name_of
from rich.console import Console

from ..recorder import Recording
from ..recorder.trace_file import written
from ..sweep.row import kept, measured
from ..workload import peaks
from ..workload.environment import environment
from ..workload.measurement import Capture, Measurement, measure
from ..workload.model_steps import Workload
from ..workload.settings import WORK_OF_DEVICE, Settings

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
            sys.stdout.write(memory_text(workload))
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
        with peaks.snapshot(memory_to):
            return workload, measure(workload, capture, advance)


def _show(workload: Workload, measurement: Measurement, capture: Capture, facts: Mapping[str, Any]) -> None:
    settings = workload.settings
    about = " ".join(footnotes(settings, measurement, capture))
    document = Document(title(settings, facts), (times_table(settings, measurement),), (about,))
    sys.stdout.write("\n" + _drawn(document))


def what_runs(workload: Workload) -> Iterator[str]:
    """Yield what is run and on what: every setting and version that affects a number."""
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
    """Return the model's name, and the year of its handout if those differ."""
    name = name_of(settings.by_name())
    return f"{name} ({YEARS_OF_SIZE[name]})" if name in YEARS_OF_SIZE else name


def less_work(settings: Settings, reduced: list[str]) -> Iterator[str]:
    """Return a sentence on the assignment's defaults that are reduced on a CPU."""
    if reduced:
        default = WORK_OF_DEVICE["cuda"]
        parts = (f"{name.replace('_', ' ')} {getattr(settings, name)} not {default[name]}" for name in reduced)
        yield f"Reduced because this is a CPU: {', '.join(parts)}."


def times_table(settings: Settings, measurement: Measurement) -> Table:
    """Return the table of the phases' times over the measured steps."""
    columns = (Column("phase", "ms"), *(Column(name, name, "ms") for name in ("mean", "std", "min", "max")))
    spreads = {phase: measurement.spread(phase) for phase in (*settings.phases, "step")}
    rows = (Row((phase, one.mean, one.std, one.low, one.high)) for phase, one in spreads.items())
    return Table("times", "", columns, tuple(rows))


def title(settings: Settings, facts: Mapping[str, Any]) -> str:
    """Return the heading of the times, given the environment: what they are of, and whether nsys slowed them."""
    profiled = facts.get("watched_by")
    label = f" (profiled: times include {profiled}'s overhead)" if profiled else ""
    return f"CPU time over {settings.steps} measured steps, after {settings.warmup} of warm-up{label}:"


def footnotes(settings: Settings, measurement: Measurement, capture: Capture) -> Iterator[str]:
    """Yield what the numbers are of, and the result of the recording."""
    yield "Each phase ends when the device has finished it. std is the sample standard deviation."
    memory = MEMORY_OF_DEVICE.get(settings.device_type, "")
    yield f"Peak memory {memory}: {measurement.peak_bytes / GIB:.2f} GiB."
    if measurement.recording is not None:
        yield from recorded(measurement.recording, str(capture.record_to), settings.device_type)


def recorded(recording: Recording, path: str, device_type: str) -> Iterator[str]:
    """Yield what the report contains, and what it lacks."""
    work = WORK_IN_REPORT[device_type]
    yield f"Recorded {recording.works:,} {work}; recording slows the steps down."
    yield written(Path(path), recording.ranges.steps, recording.works)
    if recording.ended_early:
        dropped = f"{recording.dropped_ranges:,} later ranges and their work are missing"
        yield f"Recording ended early: {recording.ended_early}; {dropped}."


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[], None]]:
    with progress.on_screen("steps"):
        progress.expect(steps)
        yield partial(progress.advance, 1)


def memory_text(workload: Workload) -> str:
    """Run two more steps, and return the peaks of their phases and what their layers hold, for the screen."""
    found = [_of_phases(peaks.phase_peaks(workload))]
    if "backward" in workload.settings.phases:
        found.append(_of_layers(peaks.layer_memory(workload)))
    compiled = "Layers are those of the model when it runs eagerly; what it keeps compiled is in its peaks."
    return "\n" + _drawn(Document("Memory", tuple(found), (compiled,) if workload.settings.compile else ()))


def _drawn(document: Document) -> str:
    width, color = as_table.screen(sys.stdout.isatty())
    return as_table.present(document, width=width, color=color)


def _of_phases(peaks: Mapping[str, int]) -> Table:
    columns = (Column("phase", "phase"), Column("peak_bytes", "peak MiB", "MiB"))
    title = "Most that tensors held in each phase of one step (n = 1)"
    return Table("peaks", title, columns, tuple(map(Row, peaks.items())))


def _of_layers(layers: Mapping[str, peaks.LayerMemory]) -> Table:
    """Return a row for each run of layers that hold the same."""
    rows = []
    for held, run_ in groupby(layers.items(), key=lambda item: (item[1].kept_bytes, item[1].gradient_bytes)):
        names = [name for name, _ in run_]
        last = names[-1].rpartition(" ")[2]
        rows.append(Row((names[0] if len(names) == 1 else f"{names[0]} to {last}, each", *held)))
    columns = (
        Column("part", "part"), Column("kept_bytes", "kept for backward MiB", "MiB"),
        Column("gradient_bytes", "gradients MiB", "MiB"),
    )  # fmt: skip
    return Table("layers", "Memory of each layer in one step (n = 1)", columns, tuple(rows))
