"""Record a report without nsys: torch.profiler for the work, our own ranges for the names, one clock.

    with recorder.record("report.sqlite"):
        train()

On a GPU the report contains CUDA kernels, copies, memsets and the calls that launched them; without one, CPU
operators and their self time in place of kernels (`cpu_operators`), and its metadata says so. Ranges are those
of `profiling.annotate`, `torch.profiler.record_function`, nvtx and torch.cuda.nvtx (`annotate.others`). What ran
before the program raised, was interrupted or terminated is recorded, and its open ranges are closed.

Events wait in memory (2 kB each) and are written every half second, when an outer range ends, or at the end.
Operators are seen on all threads if no other Python thread runs when recording begins, memory is not recorded
and PyTorch can; else on the recording thread and on autograd's below it. Writing waits up to a minute for other
threads to end, so that it cuts nothing off. A process has one recording at a time; a forked child has none. The
recording pauses while the program runs a PyTorch profiler of its own. A block that is never left is written
when its thread or the interpreter ends.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .. import annotate
from ..annotate import others
from ..annotate.compiled.ranges import in_generated_code
from .alone import Termination, alone
from .kineto import Rows, thread_name
from .metadata import export_metadata, gpu_rows, start_row
from .range_log import RangeLog, category_rows, domain_row, range_row
from .session import Session, can_profile_all_threads, making_way
from .trace_file import TraceFile, TraceFileError, global_tid, written

# Writing pauses the program, so it waits for an outer range to end; long inner ones cannot delay it forever.
OUTER_DEPTH = 1
FLUSH_AFTER_NS = 500_000_000
FLUSH_ANYWHERE_AFTER_NS = 10_000_000_000
# So long other threads are waited for, before they are no longer recorded.
FLUSH_WITHOUT_OTHERS_AFTER_NS = 60_000_000_000
OVERHEAD = "nvtx-kernels recorder writes"
OTHER_PROFILER = "another profiler of PyTorch runs"
OPEN_BLOCK = "an operator or record_function block was open while the recording was written"


class Recording:
    """A report being recorded, by the thread that made it.

    `ended_early` is the reason why recording stopped before the program did, or empty.
    """

    def __init__(self, trace: TraceFile, *, on_gpu: bool, operators: bool = False, memory: bool = False) -> None:
        self.ended_early = ""
        self._trace = trace
        self._on_gpu, self._memory = on_gpu, memory
        # PyTorch reports allocations to the profiler of the thread that allocates, and to none of all threads.
        wants_all = (operators or not on_gpu) and not memory and _is_alone()
        self._all_threads = wants_all and can_profile_all_threads()
        self._session: Session | None = self._new_session()
        self._origin_ns = self._session.started_ns
        self._rows = Rows(trace, self._origin_ns, on_gpu=self._on_gpu, operators=operators)
        self._clock_error_ns = 0
        self._failure: TraceFileError | None = None
        self._thread = threading.get_ident()
        self._paused_ns = 0
        self.ranges = RangeLog(self._after_pop)

    @property
    def works(self) -> int:
        """Return how many kernels, copies and memsets are written so far; on a CPU, how many operators."""
        return self._rows.works

    @property
    def dropped_ranges(self) -> int:
        """Return how many ranges and marks came after recording had ended early."""
        return self.ranges.dropped

    def flush(self) -> None:
        """Write what was recorded so far and go on; for where no operator or record_function block is open."""
        began_ns = time.time_ns()
        if self._session is None:
            return
        self._stop()
        self._go_on(OVERHEAD, began_ns)

    def pause(self) -> None:
        """Write what was recorded so far and stop, for a profiler that begins on this thread."""
        if self._session is None or threading.get_ident() != self._thread:
            return
        self._paused_ns = time.time_ns()
        self._stop()

    def resume(self) -> None:
        """Go on after `pause`."""
        if not self._paused_ns or threading.get_ident() != self._thread:
            return
        began_ns, self._paused_ns = self._paused_ns, 0
        self._go_on(OTHER_PROFILER, began_ns)

    def finish(self, interrupted_by: str = "") -> None:
        """Write everything that is left; `interrupted_by` names the exception that ended the program."""
        if self._failure is not None:
            raise self._failure
        self._write_session()
        self.ranges.close_all(time.time_ns())
        self._write_ranges()
        self._write_context(interrupted_by)

    def _after_pop(self, depth: int) -> None:
        if self._session is None or _in_backward() or others.in_block() or in_generated_code():
            return
        limit_ns = FLUSH_AFTER_NS if depth <= OUTER_DEPTH else FLUSH_ANYWHERE_AFTER_NS
        waited_ns = time.time_ns() - self._session.started_ns
        if waited_ns < limit_ns or not self._may_cut(waited_ns):
            return
        try:
            self.flush()
        except TraceFileError as error:
            # The program continues; `finish` raises it where the user can see it.
            self._failure = error
            self._end_early(str(error))
        except RuntimeError as error:
            self._end_early(f"torch.profiler did not start again: {error}")

    def _may_cut(self, waited_ns: int) -> bool:
        """Return whether a session can end here: no other recorded thread is in the middle of something.

        PyTorch ends an operator through a pointer into its session, unless the next one records one thread only.
        """
        if self._all_threads and not _is_alone():
            self._all_threads = waited_ns < FLUSH_WITHOUT_OTHERS_AFTER_NS
        return not self._all_threads or _is_alone()

    def _new_session(self) -> Session:
        return Session(on_gpu=self._on_gpu, all_threads=self._all_threads, memory=self._memory)

    def _stop(self) -> None:
        if self._write_session():
            # PyTorch would end the block through a pointer into the session that is gone: start no other.
            self._end_early(OPEN_BLOCK)

    def _go_on(self, after: str, began_ns: int) -> None:
        """Start a session, and write how long there was none and why, unless recording has ended."""
        if self.ended_early:
            return
        self._session = self._new_session()
        pause = {
            "start": began_ns - self._origin_ns,
            "end": time.time_ns() - self._origin_ns,
            "globalTid": global_tid(os.getpid(), threading.get_native_id()),
            "nameId": self._trace.text_id(after),
            "returnValue": 0,
        }
        self._trace.add("PROFILER_OVERHEAD", [pause])

    def _write_session(self) -> bool:
        """Stop the profiler, write what it saw, and return whether an operator or block was still running."""
        if self._session is None:
            return False
        session, self._session = self._session, None
        seen = session.stop()
        self._clock_error_ns = max(self._clock_error_ns, seen.clock_error_ns)
        self._rows.add(seen.events, seen.details, self.ranges.tells_optimizer)
        self._rows.add_allocations(seen.allocations)
        self._write_ranges()
        if seen.failure:
            self._end_early(f"the GPU failed ({seen.failure}) and its last work is missing")
        return seen.has_open_block

    def _end_early(self, reason: str) -> None:
        self.ranges.close_all(time.time_ns())
        self.ended_early, self.ranges.is_full = reason, True

    def _write_ranges(self) -> None:
        log, events = self.ranges, list(self.ranges.take())
        self._rows.threads.update(event.thread for event in events)
        self._trace.add("NVTX_EVENTS", (range_row(self._trace, event, self._origin_ns, log) for event in events))

    def _write_context(self, interrupted_by: str) -> None:
        trace = self._trace
        trace.text_id(OVERHEAD)  # so that an empty recording has the table that identifies a report
        thread = threading.get_native_id()
        names = [domain_row(*one, thread) for one in self.ranges.domains.items() if one[0]]
        trace.add("NVTX_EVENTS", [*names, *category_rows(self.ranges.categories, thread)])
        names_of = {thread: trace.text_id(thread_name(thread)) for thread in sorted(self._rows.threads)}
        rows = ({"nameId": name, "globalTid": global_tid(os.getpid(), one)} for one, name in names_of.items())
        trace.add("ThreadNames", rows)
        trace.add("TARGET_INFO_GPU", gpu_rows() if self._on_gpu else ())
        trace.add("TARGET_INFO_SESSION_START_TIME", [start_row(self._origin_ns)])
        trace.add_metadata(export_metadata(on_gpu=self._on_gpu))
        trace.add_metadata({name: str(value) for name, value in self._outcome(interrupted_by).items() if value})

    def _outcome(self, interrupted_by: str) -> dict[str, str | int]:
        return {
            "NVTX_KERNELS_INTERRUPTED_BY": interrupted_by,
            "NVTX_KERNELS_ENDED_EARLY": self.ended_early,
            "NVTX_KERNELS_RANGES_DROPPED": self.dropped_ranges,
            "NVTX_KERNELS_CLOCK_ERROR_NS": self._clock_error_ns,
        }


@contextmanager
def record(
    path: str | Path,
    *,
    device: str | None = None,
    operators: bool = False,
    memory: bool = False,
    quiet: bool = False,
) -> Iterator[Recording]:
    """Record what the block does into a report at `path`, which appears when the block ends, however it ends.

    `device` is the kind that works, `cuda` or `cpu`; by default, CUDA where there is a GPU. With
    `operators`, every operator and `torch.profiler.record_function` block is a range too, with the sequence
    numbers that link backward to forward, as torch.autograd.profiler.emit_nvtx writes them. With `memory`,
    what PyTorch's allocator hands out and takes back on that kind of device is recorded (docs/memory.md), and
    operators of other Python threads are not. Unless `quiet`, what was written and the next command are printed
    on stderr. Raises TraceFileError if the report cannot be written.
    """
    with alone(path), _discarding(TraceFile(path)) as trace, Termination() as termination:
        on_gpu = torch.cuda.is_available() if device is None else device == "cuda"
        try:
            recording = Recording(trace, on_gpu=on_gpu, operators=operators, memory=memory)
        except RuntimeError as error:
            raise TraceFileError(f"cannot record to {path}: {error}") from error
        ending, interrupted_by = _Ending(recording, trace), ""
        try:
            with (
                annotate.listen(recording.ranges),
                others.hear(recording.ranges),
                making_way(recording.pause, recording.resume),
            ):
                yield recording
        except BaseException as error:
            interrupted_by = type(error).__name__
            raise
        finally:
            with termination.held():
                is_written = ending(interrupted_by)
            if is_written and not quiet:
                sys.stderr.write(f"{written(trace.path, recording.ranges.steps, recording.works)}\n")


class _Ending:
    """End a recording once: with its block, its thread or the interpreter; never in a forked child.

    PyTorch's profiler can be stopped by the thread that began it alone.
    """

    def __init__(self, recording: Recording, trace: TraceFile) -> None:
        self._recording, self._trace = recording, trace
        self._owner, self._is_done = (os.getpid(), threading.get_ident()), False
        atexit.register(self, "exit of the interpreter")
        _of_thread.last = _AtEnd(self)

    def __call__(self, interrupted_by: str) -> bool:
        """Write the report, if this process and thread may and it was not done before; return whether it did."""
        if self._is_done or self._owner != (os.getpid(), threading.get_ident()):
            return False
        self._is_done = True
        atexit.unregister(self)
        self._recording.finish(interrupted_by)
        self._trace.publish()
        _of_thread.last = None
        return True


class _AtEnd:
    """Ends a recording when its thread ends, for Python drops what threads hold for themselves then."""

    def __init__(self, ending: _Ending) -> None:
        self._ending = ending

    def __del__(self) -> None:
        self._ending("end of its thread")


_of_thread = threading.local()


@contextmanager
def _discarding(trace: TraceFile) -> Iterator[TraceFile]:
    try:
        yield trace
    finally:
        trace.discard()


def _is_alone() -> bool:
    return threading.active_count() == 1  # of Python's threads


def _in_backward() -> bool:
    return int(torch._C._current_graph_task_id()) != -1
