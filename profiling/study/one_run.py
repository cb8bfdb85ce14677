"""One configuration in this process: measure it, show its times, and leave them as a row of results."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.document import Column, Document, Table
from nvtx_kernels.analysis.document import Row as Line
from nvtx_kernels.analysis.presenters.output import presented
from nvtx_kernels.analysis.support import progress
from nvtx_kernels.analysis.support.files import replace_file

from ..annotate import range_stack
from ..recorder import Recording
from ..recorder.trace_file import check_writable
from . import memory, probes, results
from .configurations import Cell
from .environment import environment, limit_memory
from .measurement import Capture, measure
from .processes import announce
from .results import Row
from .settings import WORK_OF_DEVICE, Settings, SettingsError, apply_precision, reduced_by_cpu, with_defaults
from .workload import NoMemoryError, Workload

PEAK_OF_DEVICE = {"cuda": "held by tensors on the GPU while measuring", "cpu": "of the whole process"}
WORK_IN_REPORT = {"cuda": "kernels and copies", "cpu": "operators"}
GIB = 1 << 30


def run(options: Mapping[str, Any]) -> None:
    """Check the options, then run the workload: progress on stderr, the times on stdout, a row in a file if asked.

    The row is written when memory was full too. It is one line, a file of results that `profiling.benchmark
    --results` shows. Raises OSError if a file cannot be written.
    """
    record_to, memory_to, row_to = (options[name] for name in ("record", "memory_snapshot", "json"))
    settings = with_defaults(options)
    operators, flops = options["emit_nvtx"], options["flops"]
    capture = Capture(record_to, operators=operators, flops=flops, memory=options["memory"])
    capture.check(settings)
    memory.check(memory_to, settings)
    paths = [path for path in (record_to, memory_to, row_to) if path is not None]
    if len(set(paths)) < len(paths):
        raise SettingsError("--record, --memory-snapshot and --json name the same file: give each its own")
    if row_to is not None:
        check_writable(row_to)
    apply_precision(settings)
    limit_memory(settings, options["memory_fraction"])

    row, began_s = first_facts(settings, capture, options["memory_fraction"]), time.monotonic()
    try:
        with progress.on_screen("steps"):
            announce(f"{Cell(settings).label}: {settings.warmup + settings.steps} steps")
            progress.expect(settings.warmup + settings.steps)
            workload = Workload(settings)
            with memory.snapshot(memory_to):
                measurement = measure(workload, capture, partial(progress.advance, 1))
        row |= {"status": "ok", "parameters": workload.parameters, "peak_bytes": measurement.peak_bytes}
        row |= {"warmup": measurement.warmup, "measured": measurement.measured}
        if not options["quiet"]:
            sentences = [*less_work(settings, reduced_by_cpu(options, settings))]
            peak = PEAK_OF_DEVICE[settings.device_type]
            sentences.append(f"Peak memory {peak}: {measurement.peak_bytes / GIB:.2f} GiB.")
            if measurement.recording is not None:
                sentences += recorded(measurement.recording, str(record_to), settings.device_type)
            sys.stdout.write("\n" + screen(row, sentences))
        if memory_to:
            sys.stdout.write("\n" + presented(memory_document(workload), "table", None))  # type: ignore[operator]
        # nsys would count more steps as the program's, unless the sweep that asks stopped it before.
        if row_to and (options["quiet"] or "watched_by" not in row["state"]):
            row |= more_facts(workload)
    except NoMemoryError as error:
        row |= out_of_memory(error)
        raise
    finally:
        if row_to and "status" in row:
            row["seconds"] = round(time.monotonic() - began_s, 3)
            publish(row, Path(row_to))
    if row_to and not options["quiet"]:
        sys.stdout.write(f"Times and state are in {row_to}.\n")


def first_facts(settings: Settings, capture: Capture, memory_fraction: float | None) -> Row:
    """Return the beginning of a run's row: what identifies it, and the state of the machine."""
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": results.VERSION,
        "kind": results.MODEL,
        "cell": Cell(settings, capture_name(capture), memory_fraction).key,
        "state": environment(settings),
        "phase_peak_bytes": None,
        "clocks": None,
        "warnings": [],
    }


def capture_name(capture: Capture) -> str:
    """Return how a run's steps are watched, in the words of CAPTURES."""
    watched = {
        "bare": range_stack.off,
        "recorder": capture.record_to is not None,
        "emit-nvtx": capture.operators,
    }
    return ", ".join(name for name, applies in watched.items() if applies) or "none"


def more_facts(workload: Workload) -> Row:
    """Run more steps for the peaks of phases and the clocks under load, and products for warnings.

    What fails is a warning: the measurement is kept.
    """
    looks: dict[str, Callable[[], Any]] = {
        "phase_peak_bytes": lambda: memory.phase_peaks(workload),
        "clocks": lambda: probes.clocks_under_load(workload),
        "warnings": lambda: probes.warnings(workload.settings),
    }
    facts: Row = {}
    failures = []
    for name, look in looks.items():
        try:
            facts[name] = look()
        except Exception as error:
            facts[name] = None
            failures.append(f"not everything could be measured: {type(error).__name__}: {error}")
    return {**facts, "warnings": [*(facts["warnings"] or ()), *failures]}


def out_of_memory(error: NoMemoryError) -> Row:
    """Return the result of a run out of memory: the phase, and the bytes it asked for if that is known."""
    size = None if error.requested_gib is None else round(error.requested_gib * GIB)
    return {"status": "oom", "phase": error.phase, "requested_bytes": size}


def publish(row: Row, path: Path) -> None:
    """Write a row as one line of JSON, complete or not at all."""
    replace_file(path, (json.dumps(row) + "\n").encode())


def screen(row: Row, sentences: list[str]) -> str:
    """Return the times of a row as a terminal shows them, with sentences of this run."""
    # Pandas takes a second to import; a sweep's processes need none.
    from .table import document

    table = document([row], "phase", ("times",))
    return str(presented(replace(table, accounting=(*sentences, *table.accounting)), "table", None))


def less_work(settings: Settings, reduced: list[str]) -> Iterator[str]:
    """Yield a sentence on the assignment's defaults that are reduced on a CPU."""
    if reduced:
        defaults = WORK_OF_DEVICE["cuda"]
        parts = (f"{name.replace('_', ' ')} {getattr(settings, name)} not {defaults[name]}" for name in reduced)
        yield f"Reduced because this is a CPU: {', '.join(parts)}."


def recorded(recording: Recording, path: str, device_type: str) -> Iterator[str]:
    """Yield what the report contains and lacks."""
    yield f"Recorded {recording.works:,} {WORK_IN_REPORT[device_type]}; recording slows the steps down."
    yield recording.outcome(Path(path).with_name(recording.path.name))


def memory_document(workload: Workload) -> Document:
    """Run two more steps, and return the peaks of their phases and what their layers hold.

    Layers next to each other that hold the same are one row.
    """
    columns = (Column("phase", "phase"), Column("peak_bytes", "peak MiB", "MiB"))
    title = "Most that tensors held in each phase of one step (n = 1)"
    tables = [Table("peaks", title, columns, tuple(map(Line, memory.phase_peaks(workload).items())))]
    if "backward" in workload.settings.phases:
        rows = []
        layers = memory.layer_memory(workload)
        for (kept_bytes, gradient_bytes), names in groupby(
            layers, key=lambda name: (layers[name].kept_bytes, layers[name].gradient_bytes)
        ):
            first, *others = names
            name = f"{first} to {others[-1].rpartition(' ')[2]}, each" if others else first
            rows.append(Line((name, kept_bytes, gradient_bytes)))
        of_layers = (
            Column("part", "part"),
            Column("kept_bytes", "kept for backward MiB", "MiB"),
            Column("gradient_bytes", "gradients MiB", "MiB"),
        )
        tables.append(Table("layers", "Memory of each layer in one step (n = 1)", of_layers, tuple(rows)))
    compiled = "Layers are those of the model when it runs eagerly; what it keeps compiled is in its peaks."
    return Document("Memory", tuple(tables), (compiled,) if workload.settings.compile else ())
