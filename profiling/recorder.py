"""Record a report without nsys: torch.profiler for the work, our own ranges for the names, one clock.

    with recorder.record("report.sqlite"):
        train()

On a GPU the report holds CUDA kernels, copies, memsets and the calls that launched them. Without one it
holds CPU operators, their self time standing in for kernels (`profiling.operators`), and its metadata
says so. Ranges are those of `profiling.annotate`. What ran before the program raises, or is interrupted
or terminated, is recorded all the same, and its open ranges are closed.

Events wait in memory (2 kB each) and are written every half second, when an outer range ends; a program that
opens no range keeps all of them until the end. Operators are seen on the thread that records and, below it,
on autograd's.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from profiling import annotate
from profiling.kineto import Rows, thread_name
from profiling.provenance import export_metadata, gpu_rows, start_row
from profiling.range_log import RangeLog, domain_row, range_row
from profiling.session import Session
from profiling.trace_file import Row, TraceFile, TraceFileError, global_tid

# Writing pauses the program, so it waits for an outer range to end; long inner ones cannot delay it forever.
OUTER_DEPTH = 1
FLUSH_AFTER_NS = 500_000_000
FLUSH_ANYWHERE_AFTER_NS = 10_000_000_000
OVERHEAD = "nvtx-kernels recorder writes"
OPEN_BLOCK = "an operator or record_function block was open while the recording was written"


class Recording:
    """A report being recorded, by the thread that made it.

    `ended_early` says why recording stopped before the program did, and is empty otherwise.
    """

    def __init__(self, trace: TraceFile, *, on_gpu: bool, operators: bool = False) -> None:
        self.ended_early = ""
        self._trace = trace
        self._on_gpu = on_gpu
        self._session: Session | None = Session(on_gpu=self._on_gpu)
        self._origin_ns = self._session.started_ns
        self._rows = Rows(trace, self._origin_ns, on_gpu=self._on_gpu, operators=operators)
        self._clock_error_ns = 0
        self._failure: TraceFileError | None = None
        self.ranges = RangeLog(self._after_pop)

    @property
    def works(self) -> int:
        """Return how many kernels, copies and memsets are written so far; of a CPU, how many operators."""
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
        if self._write_session():
            # PyTorch would end the block through a pointer into the session that is gone: start no other.
            self._end_early(OPEN_BLOCK)
        if not self.ended_early:
            self._session = Session(on_gpu=self._on_gpu)
            self._trace.add("PROFILER_OVERHEAD", [self._overhead(began_ns)])

    def finish(self, interrupted_by: str = "") -> None:
        """Write everything that is left; `interrupted_by` names the exception that ended the program."""
        if self._failure is not None:
            raise self._failure
        self._write_session()
        self.ranges.close_all(time.time_ns())
        self._write_ranges()
        self._write_context(interrupted_by)

    def _after_pop(self, depth: int) -> None:
        if self._session is None or _in_backward():
            return
        limit_ns = FLUSH_AFTER_NS if depth <= OUTER_DEPTH else FLUSH_ANYWHERE_AFTER_NS
        if time.time_ns() - self._session.started_ns < limit_ns:
            return
        try:
            self.flush()
        except TraceFileError as error:
            # The program goes on; `finish` raises it where the user can see it.
            self._failure = error
            self._end_early(str(error))
        except RuntimeError as error:
            self._end_early(f"torch.profiler did not start again: {error}")

    def _write_session(self) -> bool:
        """Stop the profiler, write what it saw, and return whether an operator or block was still running."""
        if self._session is None:
            return False
        session, self._session = self._session, None
        seen = session.stop()
        self._clock_error_ns = max(self._clock_error_ns, seen.clock_error_ns)
        self._rows.add(seen.events, seen.details)
        self._write_ranges()
        if seen.failure:
            self._end_early(f"the GPU failed ({seen.failure}) and its last work is missing")
        return seen.has_open_block

    def _end_early(self, reason: str) -> None:
        self.ranges.close_all(time.time_ns())
        self.ended_early, self.ranges.is_full = reason, True

    def _write_ranges(self) -> None:
        events = list(self.ranges.take())
        self._rows.threads.update(event.thread for event in events)
        self._trace.add("NVTX_EVENTS", (range_row(self._trace, event, self._origin_ns) for event in events))

    def _overhead(self, began_ns: int) -> Row:
        return {
            "start": began_ns - self._origin_ns,
            "end": time.time_ns() - self._origin_ns,
            "globalTid": global_tid(os.getpid(), threading.get_native_id()),
            "nameId": self._trace.text_id(OVERHEAD),
            "returnValue": 0,
        }

    def _write_context(self, interrupted_by: str) -> None:
        trace = self._trace
        trace.add("NVTX_EVENTS", [domain_row(annotate.DOMAIN, threading.get_native_id())])
        trace.add("ThreadNames", map(self._thread_row, sorted(self._rows.threads)))
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

    def _thread_row(self, thread: int) -> Row:
        name = self._trace.text_id(thread_name(thread))
        return {"nameId": name, "globalTid": global_tid(os.getpid(), thread)}


@contextmanager
def record(path: str | Path, *, device: str | None = None, operators: bool = False) -> Iterator[Recording]:
    """Record what the block does into a report at `path`, which appears when the block ends, however it ends.

    `device` is the kind that works, `cuda` or `cpu`; by default, CUDA where there is a GPU. With
    `operators`, every operator and `torch.profiler.record_function` block is a range too, with the sequence
    numbers that link backward to forward, as torch.autograd.profiler.emit_nvtx writes them. TraceFileError
    says why the report cannot be written.
    """
    trace = TraceFile(path)
    interrupted_by = ""
    with _discarding(trace), _Termination() as termination:
        on_gpu = torch.cuda.is_available() if device is None else device == "cuda"
        try:
            recording = Recording(trace, on_gpu=on_gpu, operators=operators)
        except RuntimeError as error:
            raise TraceFileError(f"cannot record to {path}: {error}") from error
        try:
            with annotate.listen(recording.ranges):
                yield recording
        except BaseException as error:
            interrupted_by = type(error).__name__
            raise
        finally:
            with termination.held():
                recording.finish(interrupted_by)
                trace.publish()


@contextmanager
def _discarding(trace: TraceFile) -> Iterator[None]:
    try:
        yield
    finally:
        trace.discard()


class _Termination:
    """Let SIGTERM unwind the program, as Ctrl-C does, where nothing else handles it."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_due = False

    def __enter__(self) -> "_Termination":
        in_main = threading.current_thread() is threading.main_thread()
        self._is_ours = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._is_ours:
            signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a SIGTERM wait until the block has ended."""
        self._is_held = True
        yield
        self._is_held = False
        if self._is_due:
            raise SystemExit(128 + signal.SIGTERM)

    def _terminate(self, number: int, _frame: FrameType | None) -> None:
        self._is_due = True
        if not self._is_held:
            raise SystemExit(128 + number)


def _in_backward() -> bool:
    return int(torch._C._current_graph_task_id()) != -1
