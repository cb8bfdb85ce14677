"""The work of `benchmark train.py`: time the phases of a program, and show them as those of the course's model."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from nvtx_kernels.analysis.presenters.output import format_of, presented, write

from ..cli import CommandError
from ..study.environment import cpu_facts, gpu_facts, versions, watcher
from ..study.frame import frame
from ..study.results import PROGRAM, VERSION, Row
from ..study.table import document
from .timing import Timed, timed

WARM_UP, STEPS = 5, 10
ONE_RUN = "Lines of another warm-up are of the same run: they leave out its first steps."
NEXT = "What the phases spend this time in: nvtx-kernels record {}, and nvtx-kernels ask report.sqlite."
BETWEEN = (
    "step is from the begin of its first phase to the end of its last: what comes between two steps is in none."
)


def show_times(options: Mapping[str, Any], run: Callable[[], int]) -> int:
    """Time the program that options name and `run` runs, write its table, and return its exit status.

    Raises CommandError where nothing was measured.
    """
    program, began = options["program"], datetime.now(UTC)
    format_of(options["format"], options["output"])
    warm_ups = sorted(set(options["warmup"] or [WARM_UP]))
    count = (options["steps"] or [STEPS])[0]
    if warm_ups[0] < 0 or count < 1:
        raise CommandError(f"--warmup must be ≥ 0 and --steps ≥ 1, not {warm_ups[0]} and {count}")
    found = timed(run, warm_ups[-1] + count)
    rows = [_row(found, warm_up, count, began) for warm_up in warm_ups if len(found.steps) > warm_up]
    if not rows:
        raise CommandError(_nothing(program[0], found, warm_ups[0]))
    by = options["by"] or ("phase" if len(rows) == 1 else "warmup")
    table = document(rows, by, options["columns"] or ("times", "first"), options["phases"] or ())
    sentences = _sentences(program, found, warm_ups, rows)
    table = replace(table, accounting=(*sentences, *table.accounting))
    write(presented(table, format_of(options["format"], options["output"]), options["output"]), options["output"])
    if options["plot"] is not None:
        from ..study.plots import draw

        draw(frame(rows), options["plot"])
    return found.status or 0


def _row(found: Timed, warm_up: int, count: int, began: datetime) -> Row:
    """Return the steps after some of warm-up as a row of results."""
    facts = gpu_facts("cuda") if torch.cuda.is_initialized() else cpu_facts()  # type: ignore[no-untyped-call]
    return {
        "started": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": VERSION,
        "kind": PROGRAM,
        "cell": {"warmup": warm_up, "capture": "none"},
        "state": {**versions(), **facts, **watcher(os.environ)},
        "status": "ok",
        "warmup": found.steps[:warm_up],
        "measured": found.steps[warm_up : warm_up + count],
    }


def _sentences(words: list[str], found: Timed, warm_ups: list[int], rows: list[Row]) -> Iterator[str]:
    program = words[0]
    stopped = ", and was then stopped" if found.status is None else ""
    yield f"{Path(program).name} ran {len(found.steps)} steps{stopped}; what ends a step: {found.by}. {BETWEEN}"
    yield NEXT.format(shlex.join(words))
    if len(rows) > 1:
        yield ONE_RUN
    if missing := warm_ups[len(rows) :]:
        yield f"Too few steps for --warmup {', '.join(map(str, missing))}."


def _nothing(program: str, found: Timed, warm_up: int) -> str:
    if not found.steps:
        return f"{program} called no model and updated no optimizer in this process: there is nothing to time"
    steps = f"{len(found.steps)} step{'' if len(found.steps) == 1 else 's'}"
    return f"{program} ran {steps}, and --warmup {warm_up} leaves none of them: run more, or --warmup 0"
