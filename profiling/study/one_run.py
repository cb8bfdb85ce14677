"""One configuration in this process: measure it, show its times, and leave them as a row of results."""

import json
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from nvtx_kernels.analysis.document import Column, Document, Table
from nvtx_kernels.analysis.document import Row as Line
from nvtx_kernels.analysis.presenters.output import presented, print_text
from nvtx_kernels.analysis.support import progress
from nvtx_kernels.analysis.support.files import replace_file
from nvtx_kernels.model.config import name_of
from nvtx_kernels.model.cost import cost_by_range

from .. import annotate
from ..annotate import range_stack
from ..annotate.counting import Counting
from ..machine import MARK, optimizer_flags, parameter_facts, pytorch_settings
from ..recorder import Recording, record
from ..recorder.beside import COLD, FIRST_TIMED, Follower, Settling, recorded
from ..recorder.session import Session, detaching
from ..recorder.trace_file import check_recordable, check_writable
from ..recorder.written import Written
from ..tool import captures_a_range, watcher
from . import memory, probes, results
from .environment import environment, limit_memory
from .processes import Cell, announce
from .results import Row
from .settings import AUTOCAST_DTYPE, LESS_ON_CPU, Settings, SettingsError, apply_precision, with_defaults
from .workload import NoMemoryError, Workload, timed_steps

FLOPS_CONVENTION = "2 per multiply-add; softmax 5 per score forward, 4 backward; scale 1; one step"
PEAK_OF_DEVICE = {"cuda": "held by tensors on the GPU while measuring", "cpu": "of the whole process"}
WORK_IN_REPORT = {"cuda": "kernels and copies", "cpu": "operators"}
GIB = 1 << 30


@dataclass(frozen=True)
class Capture:
    """How the measured steps are captured: recorded to a file or not, with a range per operator or not.

    With `flops`, the last step of warm-up is counted, and the counts go into what is captured.
    With `memory`, the recording has every allocation.
    """

    record_to: str | None = None
    operators: bool = False
    flops: bool = False
    memory: bool = False

    def check(self, settings: Settings) -> None:
        """Raise, before any work is done, for what would make the capture fail later."""
        if self.flops and not settings.warmup:
            raise SettingsError("--flops counts the last step of warm-up: with it, --warmup must be ≥ 1")
        if self.memory and self.record_to is None:
            raise SettingsError("--memory writes allocations into a recording: add --record FILE")
        if self.record_to is not None:
            check_recordable(self.record_to)
        elif self.operators and settings.device_type != "cuda":
            raise SettingsError("without a GPU, ranges for operators need a recording: add --record FILE")

    @property
    def name(self) -> str:
        """Return how a run's steps are watched, in the words of CAPTURES."""
        watched = {"bare": range_stack.off, "recorder": self.record_to is not None, "emit-nvtx": self.operators}
        return ", ".join(name for name, applies in watched.items() if applies) or "none"


def measure(workload: Workload, capture: Capture) -> tuple[Row, Recording | None]:
    """Run the warm-up steps and the measured steps; capture the measured ones.

    Return the row, and the recording, or None without one. The row has the times of every step in ms, by phase and
    of the whole `step`, and the peak of memory in bytes: that of tensors while measuring on a GPU, of the whole
    process on a CPU.
    """
    settings = workload.settings
    counting = Counting()
    follower = Follower()
    on_gpu = settings.device_type == "cuda"
    with ExitStack() as warming:
        if capture.record_to is not None:
            # Profile warm-up and discard the events, so that the profiler is warm too.
            warming.callback(Session(on_gpu=on_gpu).stop, None)
        warming.enter_context(annotate.range("warmup"))
        warmup, alone = warmed_up(workload, settings.warmup - capture.flops, follower)
        if capture.flops:
            with counting.step():
                warmup += timed_steps(workload, 1)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(settings.device)
    recording = None
    with ExitStack() as capturing:
        if capture.record_to is not None:
            options = {"operators": capture.operators, "memory": capture.memory}
            recorder = record(
                capture.record_to,
                warmup=0,
                steps=None,  # the workload is as long as was asked for
                device=settings.device_type,
                quiet=True,
                **options,
            )
            recording = capturing.enter_context(recorder)
        elif capture.operators:
            capturing.enter_context(torch.autograd.profiler.emit_nvtx())  # type: ignore[no-untyped-call]
        if on_gpu:  # what `nsys profile -c cudaProfilerApi` captures
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cudart.cudaProfilerStart()
            capturing.callback(cudart.cudaProfilerStop)
            capturing.callback(torch.cuda.synchronize, settings.device)
        capturing.enter_context(annotate.range("measure"))
        annotate.mark(mark_text(workload))
        if alone:
            annotate.mark(alone)
        counting.send()
        follower.keep()
        measured = list(timed_steps(workload, settings.steps, follower))
        annotate.mark(recorded(follower.steps))
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_bytes = torch.cuda.max_memory_allocated(settings.device) if on_gpu else most_kib * 1024
    return {"warmup": warmup, "measured": measured, "peak_bytes": int(peak_bytes)}, recording


def warmed_up(workload: Workload, steps: int, follower: Follower) -> tuple[list[dict[str, float]], str]:
    """Run steps of warm-up, and return their times, and the mark of those that were timed without recording.

    Before a capture of nsys, steps are timed from the third on, while nsys hears nothing of them; of three or
    more, the last one is emptied. Elsewhere none are: the mark is empty.
    """
    is_later = watcher(os.environ) and captures_a_range()
    cold = min(FIRST_TIMED, steps) if is_later else steps
    times = list(timed_steps(workload, cold))
    left = steps - cold
    if not left:
        return times, ""
    emptied = int(left > 2)
    with range_stack.silence():
        follower.keep(timing=True)
        times += timed_steps(workload, left - emptied, follower)
        if emptied:
            follower.empty()
            times += timed_steps(workload, emptied, follower)
    return times, follower.mark("before", {COLD: cold})


def add_steps_alone(workload: Workload, report: Path) -> int:
    """Run more steps, which nothing records, and add the mark of their times to a report that was just written.

    Return how many.
    """
    written, follower = Written(report), Follower()
    with detaching():
        Session(on_gpu=workload.settings.device_type == "cuda").stop(None)
        settling = Settling(follower)
        while not settling.is_over:
            for _ in timed_steps(workload, 1, follower):
                settling.step_ended()
        mark = settling.mark()
    written.add_times(mark)
    return len(follower.steps)


def mark_text(workload: Workload) -> str:
    """Return the message of the mark: what affects the run's numbers, as JSON."""
    settings = workload.settings
    state = environment(settings)
    state.pop("host_cpu", None)
    flops, least_bytes = costs(settings)
    description = {
        **settings.by_name(),
        "size": name_of(settings.by_name()),
        **parameter_facts(workload.model.parameters()),
        **(optimizer_flags(workload.optimizer) if "optimizer" in settings.phases else {}),
        **state,
        **pytorch_settings(),
        "flops_convention": FLOPS_CONVENTION,
        "flops": flops,
        "bytes": least_bytes,
    }
    return f"{MARK} {json.dumps(description, separators=(',', ':'))}"


def costs(settings: Settings) -> tuple[dict[str, int], dict[str, int]]:
    """Return the FLOPs and the least bytes moved of one step by range, of the phases that the mode runs."""
    flops: Counter[str] = Counter()
    least_bytes: Counter[str] = Counter()
    for path, cost in cost_by_range(
        settings.config,
        settings.batch_size,
        settings.context_length,
        attention=settings.attention,
        element_bytes=2 if settings.dtype in AUTOCAST_DTYPE else 4,
    ).items():
        if path[0] in settings.phases and not (settings.mode == "forward" and "loss" in path):
            name = re.sub(r"\blayer \d+", "layer *", " > ".join(path))
            flops[name] += cost.flops
            least_bytes[name] += cost.bytes
    return {name: count for name, count in flops.items() if count}, dict(least_bytes)


def run(options: Mapping[str, Any]) -> None:
    """Check the options, then run the workload: progress on stderr, the times on stdout, a row in a file if asked.

    The row is written when memory was full too. It is one line, a file of results that `profiling.benchmark
    --results` shows. Raises OSError if a file cannot be written.
    """
    record_to, memory_to, row_to = (options[name] for name in ("record", "memory_snapshot", "json"))
    settings = with_defaults(options)
    capture = Capture(record_to, options["emit_nvtx"], options["flops"], options["memory"])
    capture.check(settings)
    memory.check(memory_to, settings)
    paths = [path for path in (record_to, memory_to, row_to) if path is not None]
    if len(set(paths)) < len(paths):
        raise SettingsError("--record, --memory-snapshot and --json name the same file: give each its own")
    if row_to is not None:
        check_writable(row_to)
    apply_precision(settings)
    limit_memory(settings, options["memory_fraction"])

    began_s = time.monotonic()
    row: Row = {
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": results.VERSION,
        "kind": results.MODEL,
        "cell": Cell(settings, capture.name, options["memory_fraction"]).key,
        "state": environment(settings),
        "phase_peak_bytes": None,
        "clocks": None,
        "warnings": [],
    }
    try:
        with progress.on_screen("steps"):
            announce(f"{Cell(settings).label}: {settings.warmup + settings.steps} steps")
            progress.expect(settings.warmup + settings.steps)
            workload = Workload(settings)
            with memory.snapshot(memory_to):
                measured, recording = measure(workload, capture)
        row |= {"status": "ok", "parameters": workload.parameters, **measured}
        if not options["quiet"]:
            peak = PEAK_OF_DEVICE[settings.device_type]
            sentences = [*less_work(options, settings), f"Peak memory {peak}: {row['peak_bytes'] / GIB:.2f} GiB."]
            if recording is not None:
                work = f"{recording.works:,} {WORK_IN_REPORT[settings.device_type]}"
                sentences.append(f"Recorded {work}.")
                sentences.append(recording.outcome(Path(record_to).with_name(recording.path.name)))
            # Pandas takes a second to import; a sweep's processes need none.
            from .table import document

            print_text("\n" + str(presented(document([row], sentences=sentences), "table", None)))
        if memory_to:
            print_text("\n" + str(presented(memory_document(workload), "table", None)))
        is_kept = not options["quiet"]  # a sweep drops its recordings
        if recording is not None and is_kept and "watched_by" not in row["state"]:
            more = add_steps_alone(workload, Path(record_to).with_name(recording.path.name))
            print_text(f"{more} more steps were run, to time a step without recording.\n")
        # nsys would count more steps as the program's, unless the sweep that asks stopped it before.
        if row_to and (options["quiet"] or "watched_by" not in row["state"]):
            row |= more_facts(workload)
    except NoMemoryError as error:
        row |= error.row
        raise
    finally:
        if row_to and "status" in row:
            row["seconds"] = round(time.monotonic() - began_s, 3)
            replace_file(Path(row_to), (json.dumps(row) + "\n").encode())
    if row_to and not options["quiet"]:
        print_text(f"Times and state are in {row_to}.\n")


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


def less_work(options: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield a sentence on the assignment's defaults that are reduced on a CPU, where the options name none."""
    reduced = [name for name in LESS_ON_CPU if options.get(name) is None]
    if reduced and settings.device_type == "cpu":
        values = [(name.replace("_", " "), getattr(settings, name), getattr(Settings, name)) for name in reduced]
        parts = (f"{name} {less} not {usual}" for name, less, usual in values)
        yield f"Reduced because this is a CPU: {', '.join(parts)}."


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
        for sizes, names in groupby(layers, key=layers.__getitem__):
            first, *others = names
            name = f"{first} to {others[-1].rpartition(' ')[2]}, each" if others else first
            rows.append(Line((name, *sizes)))
        of_layers = (
            Column("part", "part"),
            Column("kept_bytes", "kept for backward MiB", "MiB"),
            Column("gradient_bytes", "gradients MiB", "MiB"),
        )
        tables.append(Table("layers", "Memory of each layer in one step (n = 1)", of_layers, tuple(rows)))
    compiled = "Layers are those of the model when it runs eagerly; what it keeps compiled is in its peaks."
    return Document("Memory", tuple(tables), (compiled,) if workload.settings.compile else ())
