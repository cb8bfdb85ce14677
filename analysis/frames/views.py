"""Every view as frames: what the screens show, with raw values, every row and full names.

`source` is a report's path or a trace. With `per_step`, figures are divided by the steps that count; rules and
warm-up are those of `rank`. Raises ReportError if a report cannot answer.

Examples:
    >>> import nvtx_kernels as nk
    >>> answer = nk.idle("report.sqlite")
    >>> answer["places"]  # a pandas frame, shown in ms: its columns are in ns; answer.keys() names all frames
    >>> answer  # in a notebook, the screen
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..account import Partition
from ..account.idle import CAUSES
from ..compare.changes import compare as compared
from ..compare.changes import named_apart
from ..compare.sides import recorded
from ..compare.tables import compared as shown
from ..document import SHORT, WHOLE, Detail, Document, seen_by, without_commands
from ..errors import ReportError
from ..opened import Source
from ..presenters import as_html, as_table
from ..trace import Trace
from ..views.registry import subject_of, viewer
from ..vocabulary import PATH_SEPARATOR
from ..vocabulary.calls import plain_name
from .milliseconds import Frame, shown_in_ms
from .ranking import Options, opened_by


class StepOptions(Options, total=False):
    """What `fixes` takes too."""

    unrecorded_step_ns: float | None


class Answer(dict[str, Frame]):
    """The tables of a view by their keys, the main one first: raw values, times in ns. `screen` makes the text.

    A notebook shows the text, and each frame, in milliseconds.
    """

    def __init__(self, document: Document, screen: Callable[[], Document]) -> None:
        super().__init__()
        self.screen = screen
        for table in (seen_by("programs", table) for table in document.tables):
            columns = [column.key for column in table.columns]
            self[table.key] = Frame([row.known for row in table.rows], columns=columns)

    def show(self, width: int = 100) -> None:
        """Print the view."""
        print(as_table.present(self.screen(), width=width), end="")  # noqa: T201

    def __repr__(self) -> str:
        """Name the frames, a line each."""
        lines = (f"  [{key!r}]  {len(frame)} rows: {', '.join(frame.columns)}" for key, frame in self.items())
        return "\n".join(("Frames; .show() prints the view", *lines))

    def _repr_html_(self) -> str:
        return as_html.fragment(shown_in_ms(without_commands(self.screen())))


def idle(source: Source, *, pieces: bool = False, **options: Unpack[Options]) -> Answer | Frame:
    """Return the GPU's idle time by cause and phase, and by range.

    With `pieces`, return a row for each stretch of one cause in the steps that count, or without steps in all that
    was recorded: `gpu`, `cause`, `range` (open on the CPU then; None for none), `function` (the innermost Python
    function then running, of a trace with stacks; None where unknown), `line` (where the program then was, as
    `train.py:65 (train)`; None where unknown), `start_ns`, `end_ns`, and `exposed_by`, the call that waited for
    the GPU before host code, else None.
    """
    if not pieces:
        return _view("idle", source, options)
    return _pieces(opened_by(source, options).partition)


def communication(source: Source, **options: Unpack[Options]) -> Answer:
    """Return the time of each module's collectives, what of it is exposed, and waiting for other ranks."""
    return _view("communication", source, options)


def steps(source: Source, **options: Unpack[Options]) -> Answer:
    """Return the times of every measured step, and of every range in it."""
    return _view("steps", source, options)


def attention(source: Source, **options: Unpack[Options]) -> Answer:
    """Return the costs of scores, mask, softmax and the final product."""
    return _view("attention", source, options)


def efficiency(source: Source, **options: Unpack[Options]) -> Answer:
    """Return each range's FLOP/s and B/s, their shares of the GPU's peaks, and MFU of the step."""
    return _view("efficiency", source, options)


def fixes(source: Source, **options: Unpack[StepOptions]) -> Answer:
    """Return the changes that save the most time of a step, and how much: docs/fix_first.md.

    `unrecorded_step_ns` is how long a step takes without recording; it narrows the figures.
    """
    unrecorded_step_ns = options.pop("unrecorded_step_ns", None)
    return _view("fix", source, options, unrecorded_step_ns=unrecorded_step_ns)


def memory(source: Source, **options: Unpack[Options]) -> Answer:
    """Return the bytes that each range allocated, kept for backward, freed, and held at the peak."""
    return _view("memory", source, options)


def agreement(source: Source, **options: Unpack[Options]) -> Answer:
    """Return each phase's CPU range, GPU span and kernel time, and whether they agree."""
    return _view("agreement", source, options)


def kernels(source: Source, kernel: str = "", **options: Unpack[Options]) -> Answer:
    """Return where the launches of the kernels come from whose name contains `kernel`, or of the longest."""
    return _view("kernels", source, options, kernel=kernel)


def compare(a: Source, b: Source, **options: Unpack[Options]) -> Answer:
    """Return the changes from report `a` to report `b`, by phase, category, range and kernel.

    Figures are per step where both reports have steps; `per_step=False` compares whole reports.
    """
    first, second = (opened_by(source, options) for source in (a, b))
    paths = [Path(side.provenance.file) if isinstance(side, Trace) else Path(str(side)) for side in (a, b)]
    named = named_apart([first.whole, second.whole], paths)
    sides = recorded(first), recorded(second)
    comparison = compared(*named, per_step=options.get("per_step"), sides=sides)
    return Answer(shown(comparison, detail=WHOLE), lambda: shown(comparison))


def _view(name: str, source: Source, options: Options, **of_view: Any) -> Answer:
    opened = opened_by(source, options)

    def seen(detail: Detail = SHORT) -> Document:
        document: Document = viewer(name).view(subject_of(name, opened, detail=detail, **of_view))
        return document

    return Answer(seen(WHOLE), seen)


def _pieces(partition: Partition) -> Frame:
    """Return the stretches of idle time of GPUs, those of one after those of another."""
    if partition.on_cpu:
        raise ReportError(
            "The report is of a CPU: no GPU is idle in it. `nvtx-kernels view idle` shows its own time."
        )
    trace, paths, calls = partition.attribution.trace, partition.paths, partition.attribution.trace.calls
    pieces = partition.idle_pieces()
    names = [PATH_SEPARATOR.join(path) or None for path in paths.names]
    called = [plain_name(calls.names, place) or None for place in range(len(calls.names))] if calls else []
    of_launch = np.append(calls.of_launch.astype(np.int64), -1) if calls else np.full(1, -1)
    exposed_by = of_launch[np.minimum(pieces.exposed_by, len(of_launch) - 1)]
    known = partition.attribution.lines
    lines = [source.lines[0].called for source in known.sources] if known else []
    return Frame(
        {
            "gpu": np.array(partition.gpus.names, object)[pieces.gpu],
            "cause": np.array(CAUSES, object)[pieces.cause],
            "range": np.array(names, object)[paths.names_of_node[pieces.node]],
            "function": np.array([*trace.frame_names, None], object)[pieces.function],
            "line": np.array([*lines, None], object)[pieces.line],
            "start_ns": pieces.start_ns,
            "end_ns": pieces.end_ns,
            "exposed_by": np.array([*called, None], object)[exposed_by],
        }
    )
