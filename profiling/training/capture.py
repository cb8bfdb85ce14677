"""What records the measured steps of a block: our recorder, or nsys, with the FLOPs and allocations asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from .. import annotate
from ..annotate import model_facts, range_stack
from ..annotate.counting import Counting
from ..annotate.range_stack import OpenRange, label
from ..costly_settings import Loaders, memory_facts
from ..harmless import json_text
from ..lines import StepLines
from ..machine import MARK, versions
from ..recorder import Recording, record
from ..recorder.allocation_marks import AllocationMarks
from ..recorder.beside import wait_for_gpu
from ..recorder.process import collect_early
from ..recorder.trace_file import Content
from ..recorder.written import Written
from ..tool import captures_a_range, watcher


class Capture:
    """Records a block; `facts` describe the run in the report, and `counting` counts FLOPs if asked for."""

    def __init__(
        self,
        *,
        flops: bool,
        memory: bool,
        facts: Callable[[], dict[str, Any]],
        lines: bool = False,
    ) -> None:
        self.is_watched = bool(watcher(os.environ))  # nsys records, and we do not
        self.is_later = self.is_watched and captures_a_range()  # but not yet in warm-up
        self.recording: Recording | None = None
        self._recorder: record | None = None
        self._written: Written | None = None
        self._write_at_once: Callable[[], None] = lambda: None
        self.counting = Counting() if flops else None
        self.loaders = Loaders()
        self.packages: set[str] = set()  # whose modules the models are made of
        self.lines = StepLines(is_wanted=lines and not self.is_watched, packages=lambda: self.packages)
        self._memory, self._facts = memory, facts
        self.allocations = AllocationMarks()
        self.block = ExitStack()

    def start(
        self,
        path: Path,
        terminate: Callable[[], None],
        measured: Callable[[], Content],
    ) -> Path:
        """Start to record unless nsys does; return the path, with the rank or process in its name.

        SIGTERM then calls `terminate` before it ends the process, unless the program handles it. When the report
        is written, `measured` says how much was measured.
        """
        versions()  # while the program has not changed its paths yet
        if self.is_watched:
            collect_early()
            return path
        # Steps are counted here: the recorder need not.
        self._recorder = record(path, warmup=0, steps=None, memory=self._memory, quiet=True)
        self._write_at_once, self._recorder.terminate = self._recorder.terminate, terminate
        self._recorder.measured = lambda *_: measured()
        self.recording = self.block.enter_context(self._recorder)
        self.recording.lines = self.lines
        return path.with_name(self.recording.path.name)

    def stop(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the report if that is not done; raises TraceFileError if it could not be written."""
        self.block.__exit__(kind, error, trace)

    def terminate(self) -> None:
        """Write the report, before SIGTERM ends the process."""
        self._write_at_once()

    def count(self) -> None:
        """Count FLOPs from here on; start again where another optimizer turns out to end the steps."""
        if self.counting is not None:
            self.counting = Counting()
            self.counting.listen()
            self.counting.begin()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Let nsys capture the measured steps, which are this block, with what a report should know of them."""
        model_facts.begin()
        wait_for_gpu()
        is_captured = self.is_watched and torch.cuda.is_available()
        if self.is_watched and self._memory:
            self.allocations.begin()
        if is_captured:
            torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]
        with self.drawn("measure"):
            annotate.mark(f"{MARK} {json_text(self._facts())}")
            if self.counting is not None:
                self.counting.send()
            self.allocations.tell_clock()
            yield
            if facts := {**memory_facts(), **self.loaders.facts, **model_facts.model_facts()}:
                annotate.mark(f"{MARK} {json_text(facts)}")
            self.allocations.send()
        if is_captured:
            torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]

    @contextmanager
    def drawn(self, name: str) -> Iterator[None]:
        """Have a range on nsys's timeline around the block, which ends after the block's work on the GPU."""
        opened = range_stack.push(OpenRange(label(name, None, "timeline"))) if self.is_watched else None
        yield
        wait_for_gpu()
        if opened is not None and not opened.ended:
            range_stack.close(opened)

    def hear_of_own_steps(self, begins: Callable[[], None]) -> None:
        """Have the recorder call this before a range of the program's begins that is called a step."""
        if self.recording is not None:
            self.recording.ranges.on_step = begins

    def step_ended(self) -> None:
        """Tell the recorder that it may save what it has."""
        if self.recording is not None:
            self.recording.step_ended()

    def write_when_safe(self, written: Callable[[], None]) -> None:
        """Write the report as soon as no operator is open, and call `written`; `stop` raises what goes wrong."""

        def is_written() -> None:
            if self.recording is not None:
                self._written = Written(self.recording.path)
            written()

        if self._recorder is not None:
            self._recorder.end_when_safe(is_written)

    def add(self, mark: str) -> None:
        """Add a mark to the report that was written while the program went on; the report can do without it."""
        if self._written is not None:
            self._written.add_times(mark)
