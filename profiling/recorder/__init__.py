"""Record a report without nsys: torch.profiler for the work, our own ranges for the names, one clock.

    with recorder.record("report.sqlite"):
        train()

On a GPU the report contains CUDA kernels, copies, memsets and the calls that launched them; without one, CPU
operators and their self time in place of kernels, and its metadata says so. Ranges are those of
`profiling.annotate`, `torch.profiler.record_function`, nvtx and torch.cuda.nvtx (`annotate.others`). What ran
before the program raised, was interrupted or terminated is recorded, and its open ranges are closed.

    begin ──► recording ──► waiting ──► writing ──► the program goes on without a profiler
                │    ▲         │ for a moment at which no operator or block is open
                │    └ saving ◄┘ at ends of steps, where all steps are recorded and memory is short
                └──► the block ends ──► writing

Nothing is converted while the program is measured: Kineto keeps the events in memory and saves them to a file of
its own at the end, which is then read and written as tables in one pause (`rows.py`). Operators are seen on all
threads if no other Python thread runs when recording begins, memory is not recorded and PyTorch can; else on the
recording thread and on autograd's below it. A process has one recording at a time; a forked child has none. The
recording pauses while the program runs a PyTorch profiler of its own. A block that is never left is written when
its thread or the interpreter ends.

This room may import `annotate` and `lines`. It promises a whole report or none, whatever ends the program.
"""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from .. import annotate
from ..annotate import model_facts, others
from ..annotate.interrupts import Held, Surely, entering
from ..annotate.replacing import replaced
from ..costly_settings import costly_settings, memory_facts
from ..harmless import forgiving, json_text, say
from ..lines import StepLines
from ..machine import MARK, pytorch_settings, versions
from .beside import let_cupti_detach
from .open_blocks import is_capturing, is_open
from .process import Termination, alone, collect_early, reminding
from .recording import LIMIT_VARIABLE, Recording, failure_of
from .session import detaching, making_way
from .steps import STEPS, Bounds, StepCount
from .trace_file import AbandonedError, Content, TraceFile, TraceFileError, of_rank
from .written import Written

__all__ = ["GOES_ON", "LIMIT_VARIABLE", "Recording", "record"]

REMIND_S, WAITING_S = 10.0, 0.25
#: How long the next call of a module is waited for, and then a moment at which nothing is open.
SOON_NS, LONGEST_WAIT_NS = 1_000_000_000, 30_000_000_000
GOES_ON = "The program goes on without a profiler."


class record(ContextDecorator):  # noqa: N801 - called like a function
    """Record what the block does into a report at `path`, which appears when the block ends, however it ends.

    `warmup` steps come first, then `steps` are measured (None: all that follow); then the report is written, and
    the program goes on without a profiler. A step is a range `step` of the program, else it ends with an update of
    an optimizer. Without either, the block is recorded until it ends.

    Where the environment has a RANK, as under torchrun, the path has it too: report.rank0.sqlite. Where another
    process is writing the same file, it is report.pid1234.sqlite.

    `device` is the kind that works, `cuda` or `cpu`; by default, CUDA where the program has used a GPU. With
    `operators`, every operator and `torch.profiler.record_function` block is a range too, with the sequence
    numbers that link backward to forward, as torch.autograd.profiler.emit_nvtx writes them. With `memory`,
    what PyTorch's allocator hands out and takes back on that kind of device is recorded (docs/memory.md), and
    operators of other Python threads are not. With `lines`, the last step of warm-up is traced by line
    (docs/recording.md). Unless `quiet`, what was written and the next command are printed
    on stderr. The block raises TraceFileError if the report cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        warmup: int | None = None,
        steps: int | None = STEPS,
        device: str | None = None,
        operators: bool = False,
        memory: bool = False,
        lines: bool = True,
        quiet: bool = False,
    ) -> None:
        self._wants_lines = lines
        self._lines = StepLines(is_wanted=False)
        self._bounds = Bounds.of(warmup, steps)
        self._path = Path(path)
        self._operators = operators
        self._memory = memory
        self._quiet = quiet
        self._device = device
        self._recording: Recording | None = None
        self._trace: TraceFile | None = None
        self._failure: TraceFileError | None = None
        self._count: StepCount | None = None
        self._written: Written | None = None
        self._versions: dict[str, str | int | None] = {}
        self._is_ending = False
        #: What SIGTERM does before it ends the process.
        self.terminate: Callable[[], None] = self._terminate
        #: How much was measured, given what interrupted the program.
        self.measured: Callable[[Recording, str], Content] = self._measured
        self._termination = Termination(lambda: self.terminate())
        # What a recording takes of its process, and what it listens to.
        self._process = ExitStack()
        self._listening = ExitStack()
        self._after = ExitStack()  # what holds from the report to the end of the block

    def __enter__(self) -> Recording:
        entering(self)
        try:
            with Held():
                return self._begin()
        except BaseException as error:
            with Held(), self._process, self._listening:
                self._end(type(error).__name__)  # one that had begun leaves its report
            raise

    @Surely
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held = Held(f"{self._path} is being written; Ctrl-C again abandons it", self._abandon)
        with held, self._after:
            self._end("" if kind is None else kind.__name__)
            if self._count is not None:
                self._count.close()
                if self._written is not None and kind is None:
                    self._written.add_times(self._count.timed())
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def end_when_safe(self, written: Callable[[], None] = lambda: None) -> None:
        """Write the report when the program calls its next module, so that the pause is in no measured step.

        If it calls none soon, that is at the first moment at which no operator or block is open. The report waits
        while the program runs a PyTorch profiler of its own: one with stacks keeps pointers into code that Python
        imports and drops meanwhile. Then `written` is called, unless the report was abandoned, and the program
        goes on without a profiler. Where writing fails, the block's end raises it.
        """
        recording = self._recording
        if recording is None or not recording.is_owner() or recording.ranges.is_over:
            return
        asked_ns, log = time.time_ns(), recording.ranges

        @forgiving("the report is not written yet")
        def try_to_end() -> None:
            is_due = self._recording is recording and recording.is_owner() and not self._is_ending
            may_wait = is_capturing() or recording.makes_way or time.time_ns() - asked_ns < LONGEST_WAIT_NS
            if not is_due or (may_wait and (recording.makes_way or is_open())):
                return
            self._is_ending = True
            with Held(f"{self._path} is being written; Ctrl-C again abandons it", self._abandon):
                try:
                    self._after.enter_context(detaching())
                    self._end("", goes_on=True)
                    let_cupti_detach()
                    if recording.is_written:
                        written()
                except Exception as error:
                    self._failure = failure_of(error, self._path)

        def is_late() -> None:
            if time.time_ns() - asked_ns > SOON_NS:
                try_to_end()

        log.is_full = log.is_over = True
        self._listening.enter_context(_before_each_call(try_to_end))
        self._listening.enter_context(reminding(is_late, WAITING_S))

    def _begin(self) -> Recording:
        self._is_ending, self._written = False, None
        self._path = of_rank(self._path)
        self._process.enter_context(alone(self._path))
        self._trace = trace = TraceFile(self._path)
        self._process.callback(trace.discard)
        if trace.other_writer:
            path = self._path.with_name(trace.path.name)
            say(f"process {trace.other_writer} records to {self._path}: this one, to {path}")
            self._path = path
        collect_early()
        try:
            recording = Recording(trace, device=self._device, operators=self._operators, memory=self._memory)
        except RuntimeError as error:
            raise TraceFileError(f"cannot record to {self._path}: {error}") from error
        self._recording, self._versions = recording, versions()
        self._process.callback(recording.give_up)
        self._listening.enter_context(annotate.listen(recording.ranges))
        self._listening.enter_context(others.hear(recording.ranges))
        self._listening.enter_context(making_way(recording.pause, recording.resume))
        self._listening.enter_context(reminding(recording.look_at_memory, REMIND_S))
        if self._bounds.are_counted:
            recording.lines = self._lines = StepLines(is_wanted=self._wants_lines)
            self._lines.step_begins(is_last_of_warm_up=False)
            self._count = StepCount(self._bounds, self._step_ended, lambda: self.end_when_safe(self._goes_on))
            self._listening.enter_context(self._count.counting(recording.ranges))
            self._count.hear()
        _running.append(self)
        _of_thread.last = _AtEnd(self)
        self._termination.begin()
        return recording

    def _end(self, interrupted_by: str, *, goes_on: bool = False) -> None:
        """Write the report; once, and by the process and thread that began, which alone can stop the profiler.

        If the block `goes_on`, steps are heard still.
        """
        recording, trace = self._recording, self._trace
        if recording is None or trace is None:
            return
        self._lines.step_ends()
        if self._count is not None and not goes_on:
            self._count.close()
        if not recording.is_owner():
            self._listening.close()
            if recording.is_inherited():
                self._recording = None
            return
        self._recording = None
        _running.remove(self)
        _of_thread.last = None
        self._termination.close()
        with self._process, self._listening:
            self._write(recording, trace, interrupted_by)

    def _write(self, recording: Recording, trace: TraceFile, interrupted_by: str) -> None:
        try:
            self._note(recording)
            recording.finish(interrupted_by, lambda: self.measured(recording, interrupted_by))
        except AbandonedError as error:
            recording.discard_saved()
            say(str(error))
            return
        except Exception as error:
            reason = failure_of(error, self._path)
            recording.leave(reason)
            text = str(reason)
            if trace.unfinished.exists():
                text += f"{'' if text[-1] in '.?' else '.'} What was written of it is in {trace.unfinished}."
            raise TraceFileError(text) from error
        if not self._quiet:
            say(recording.outcome(trace.path))

    def _measured(self, recording: Recording, interrupted_by: str) -> Content:
        """Return how many steps were measured: of the ends that were counted, else all ranges `step`."""
        steps = self._count.measured if self._count is not None else recording.ranges.steps
        return Content(steps, not interrupted_by or (self._bounds.steps is None and steps > 0))

    def _terminate(self) -> None:
        """Write what was recorded before SIGTERM ends the process, and leave everything else to that."""
        recording, trace, self._recording = self._recording, self._trace, None
        if recording is not None and trace is not None and recording.is_owner():
            with Held():
                try:
                    self._write(recording, trace, "Terminated")
                except TraceFileError as error:
                    say(str(error))

    def _step_ended(self) -> None:
        """Tell the recording that it may save what it has, and begin to trace the last step of warm-up by line."""
        self._lines.step_ends()
        if self._recording is not None:
            self._recording.step_ended()
        if len(self._lines.begun) == max(self._bounds.warmup - 1, 1):
            model_facts.begin()
        self._lines.step_begins(is_last_of_warm_up=len(self._lines.begun) == self._bounds.warmup - 1)

    def _note(self, recording: Recording) -> None:
        """Note how the program is set, unless it wrote that itself, and what is known of its steps."""
        count, log = self._count, recording.ranges
        if not log.says_run:
            settings = {**pytorch_settings(), **costly_settings(), **memory_facts()}
            facts = {**(count.facts if count else {}), **settings, **self._versions, **model_facts.model_facts()}
            log.note_mark(recording.began_ns, f"{MARK} {json_text(facts)}")
        if count is not None:
            count.note(log, recording.began_ns)

    def _goes_on(self) -> None:
        """Time the steps that follow the recording."""
        if not self._quiet:
            say(GOES_ON)
        if self._count is not None and self._trace is not None:
            self._written = Written(self._trace.path)
            self._count.time()

    def _abandon(self) -> None:
        if self._trace is not None:
            self._trace.is_abandoned = True


@contextmanager
def _before_each_call(act: Callable[[], None]) -> Iterator[None]:
    """Act before each call of a module: a global hook would be compiled with a model compiled in place."""
    call = torch.nn.Module.__call__
    is_over = threading.Event()

    @functools.wraps(call)
    def after_it(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and not is_over.is_set():
            act()
        return call(self, *args, **kwargs)

    with replaced((torch.nn.Module, "__call__", after_it)):
        try:
            yield
        finally:
            is_over.set()


class _AtEnd:
    """Ends a recording when its thread ends, for Python drops what threads hold for themselves then."""

    def __init__(self, block: record) -> None:
        self._block = block

    def __del__(self) -> None:
        self._block._end("end of its thread")


_of_thread = threading.local()
_running: list[record] = []


@atexit.register
def _end_running() -> None:
    for block in [*_running]:
        block._end("exit of the interpreter")
