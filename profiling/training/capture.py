"""What records the measured steps of a block: our recorder, or nsys, with the FLOPs and allocations asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from .. import annotate
from ..annotate.counting import Counting
from ..recorder import Recording, record
from ..recorder.allocation_marks import AllocationMarks
from ..recorder.trace_file import TraceFileError
from ..study.environment import watcher
from ..study.measurement import MARK


class Capture:
    """Records a block, as its phases tell (`loop.Measuring`); `facts` describe the run in the report."""

    def __init__(self, *, flops: bool, memory: bool, facts: Callable[[], dict[str, Any]]) -> None:
        self.is_watched = bool(watcher(os.environ))  # nsys records, and we do not
        self.recording: Recording | None = None
        self._counting = Counting() if flops else None
        self._memory, self._facts = memory, facts
        self._allocations, self.block = AllocationMarks(), ExitStack()
        self._failure: TraceFileError | None = None

    @property
    def memory_trouble(self) -> str:
        """Return why nsys's report has no allocations although they were asked for; empty if it has."""
        return self._allocations.trouble

    def start(self, path: Path) -> Path:
        """Start to record unless nsys does; return the path, with the rank or process in its name."""
        if self.is_watched:
            return path
        self.recording = self.block.enter_context(record(path, memory=self._memory, quiet=True))
        return path.with_name(self.recording.path.name)

    def stop(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the report if that is not done; raises TraceFileError if it could not be written."""
        self.block.__exit__(kind, error, trace)
        if self._failure is not None:
            raise self._failure

    def begin(self) -> None:
        """Let nsys capture."""
        if self.is_watched and self._memory:
            self._allocations.begin()
        if self.is_watched and torch.cuda.is_available():
            torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]

    def begun(self) -> None:
        """Describe the run in the report, inside the capture range."""
        annotate.mark(f"{MARK} {json.dumps(self._facts())}")
        if self._counting is not None:
            self._counting.send()
        self._allocations.tell_clock()

    def ending(self) -> None:
        """Put the allocations into nsys's report, inside the capture range."""
        self._allocations.send()

    def step_begins(self, *, is_last_warm_up: bool) -> None:
        """Count the last step of warm-up."""
        if self._counting is not None and is_last_warm_up:
            self._counting.listen()
            self._counting.begin()

    def step_ended(self) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.end()

    def drain(self) -> None:
        """Wait until the GPU has finished its work."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()

    def end(self, *, warmed: int, measured: int) -> None:
        """Write the report."""
        if self.recording is not None:
            self.recording.ranges.steps = warmed + measured
        if self.is_watched and torch.cuda.is_available():
            torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]
        if not measured or sys.exc_info()[0] is not None:
            return  # the block raises what went wrong, and with it the report's error
        try:
            self.block.close()
        except TraceFileError as failure:  # the program goes on; the end of the block raises it
            self._failure = failure
