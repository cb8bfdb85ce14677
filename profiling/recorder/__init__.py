"""Record a report without nsys: torch.profiler for the work, our own ranges for the names, one clock.

    with recorder.record("report.sqlite"):
        train()

On a GPU the report contains CUDA kernels, copies, memsets and the calls that launched them; without one, CPU
operators and their self time in place of kernels (`kineto.kernels`), and its metadata says so. Ranges are those
of `profiling.annotate`, `torch.profiler.record_function`, nvtx and torch.cuda.nvtx (`annotate.others`). What ran
before the program raised, was interrupted or terminated is recorded, and its open ranges are closed.

Events wait in memory (2 kB each) until they are written: after half a second at the end of an update or of an
outer range, after ten seconds at the end of any, after thirty anywhere; never where an operator or block of
PyTorch's is open on the thread (`open_blocks`). A process that is killed leaves what was written. Operators are
seen on all threads if no other Python thread runs when recording begins, memory is not recorded and PyTorch can;
else on the recording thread and on autograd's below it. Writing waits up to a minute for other threads to end,
so that it cuts nothing off. A process has one recording at a time; a forked child has none. The recording pauses
while the program runs a PyTorch profiler of its own. A block that is never left is written when its thread or
the interpreter ends.
"""

import atexit
import os
import shlex
import sys
import threading
import time
from contextlib import ContextDecorator, ExitStack
from pathlib import Path
from types import TracebackType

import torch
from nvtx_kernels.analysis.support.units import bytes_text

from .. import annotate
from ..annotate import others
from ..annotate.interrupts import Held
from .kineto import CATEGORY_NAMED, DOMAIN_CREATED, Rows, thread_name
from .open_blocks import is_open
from .process import alone, reminding, terminated_by_signal
from .range_log import OUR_DOMAIN_ID, RangeLog
from .session import Session, making_way, of_all_threads
from .trace_file import (
    AbandonedError,
    Row,
    TraceFile,
    TraceFileError,
    export_metadata,
    global_tid,
    gpu_rows,
    of_rank,
    start_row,
)

# Writing pauses the program, so it waits for an outer range to end; long inner ones cannot delay it forever.
OUTER_DEPTH = 1
FLUSH_AFTER_NS = 500_000_000
FLUSH_ANYWHERE_AFTER_NS = 10_000_000_000
FLUSH_UNASKED_AFTER_NS = 30_000_000_000
REMIND_S = 10.0
# So long other threads are waited for, before they are no longer recorded.
FLUSH_WITHOUT_OTHERS_AFTER_NS = 60_000_000_000
OVERHEAD = "nvtx-kernels recorder writes"
OTHER_PROFILER = "another profiler of PyTorch runs"
OPEN_BLOCK = "an operator or record_function block was open while the recording was written"
KILLED = "the program was killed"


class Recording:
    """A report being recorded, by the thread that made it.

    `ended_early` is the reason why recording stopped before the program did, or empty;
    `is_written` says whether the report is in place.
    """

    def __init__(self, trace: TraceFile, *, on_gpu: bool, operators: bool = False, memory: bool = False) -> None:
        self.ended_early = ""
        self.is_written = False
        self._trace = trace
        self._on_gpu, self._memory = on_gpu, memory
        # PyTorch reports allocations to the profiler of the thread that allocates, and to none of all threads.
        wants_all = (operators or not on_gpu) and not memory and _is_alone()
        self._all_threads = wants_all and of_all_threads() is not None
        self._session: Session | None = self._new_session()
        self._origin_ns = self._session.started_ns
        self._rows = Rows(trace, self._origin_ns, on_gpu=self._on_gpu, operators=operators)
        self._unrecorded_ns = 0
        self._failure: TraceFileError | None = None
        self._owner = (os.getpid(), threading.get_ident())
        self._pause: tuple[int, str] | None = None
        self._named: set[tuple[str, str | int]] = set()
        self.ranges = RangeLog(self._after_end)

    @property
    def path(self) -> Path:
        """Return where the report will be: with the rank of a distributed program, or another process's number."""
        return self._trace.path

    @property
    def works(self) -> int:
        """Return how many kernels, copies and memsets are written so far; on a CPU, how many operators."""
        return self._rows.works

    @property
    def shortfall(self) -> str:
        """Return a sentence on what is missing because recording ended early, empty for a complete one."""
        if not self.ended_early:
            return ""
        dropped = f"; {self.ranges.dropped:,} later ranges and their work are missing"
        return f"The recording ended early: {self.ended_early}{dropped if self.ranges.dropped else ''}."

    def outcome(self, path: Path) -> str:
        """Return what was written, what is missing, and the next command, for a report that is called so."""
        if not self.works:
            return f"{path} is an empty recording: no work was seen. Next: run the training steps inside the block"
        steps = self.ranges.steps
        counted = f"{steps} step{'' if steps == 1 else 's'}" if steps else "no range `step`"
        command = f"nvtx-kernels rank {shlex.quote(str(path))}{' --per-step' if steps else ''}"
        written = f"{path}, {bytes_text(path.stat().st_size)}, {counted}. Next: {command}"
        return "\n".join(filter(None, (written, self.shortfall)))

    def flush(self) -> None:
        """Write what was recorded so far and go on; for where no operator or record_function block is open."""
        if self._session is not None:
            self._stop(OVERHEAD)
            self._go_on()

    def pause(self) -> None:
        """Write what was recorded so far and stop, for a profiler that begins on this thread."""
        if self._session is not None and self.is_owner():
            with Held():
                self._stop(OTHER_PROFILER)

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._pause is not None and self.is_owner():
            with Held():
                self._go_on()

    def finish(self, interrupted_by: str = "") -> None:
        """Write everything that is left; `interrupted_by` names the exception that ended the program."""
        if self._failure is not None:
            raise self._failure
        self._write_session()
        self.ranges.close_all(time.time_ns())
        self._write_ranges()
        self._write_names()
        self._trace.commit({})
        self._trace.add("META_DATA_EXPORT", self._metadata(interrupted_by, self.ended_early))

    def give_up(self) -> None:
        """Stop the profiler if it still runs, and write nothing."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    def _after_end(self, depth: int, is_update: bool) -> None:
        is_outer = depth <= OUTER_DEPTH or is_update
        self.cut_after(FLUSH_AFTER_NS if is_outer else FLUSH_ANYWHERE_AFTER_NS)

    def cut_after(self, limit_ns: int) -> None:
        """Write and go on if the session is so old, and no operator or block is open on a recorded thread.

        PyTorch ends an operator through a pointer into its session, unless the next one records one thread only.
        """
        if self._session is None or not self.is_owner():
            return
        waited_ns = time.time_ns() - self._session.started_ns
        if waited_ns < limit_ns or is_open():
            return
        if self._all_threads and not _is_alone():
            self._all_threads = waited_ns < FLUSH_WITHOUT_OTHERS_AFTER_NS
            if self._all_threads:
                return
        with Held():
            try:
                self.flush()
            except TraceFileError as error:
                # The program continues, and `finish` raises it where the user can see it.
                self._failure = error
                self._end_early(str(error))
            except RuntimeError as error:
                self._end_early(f"torch.profiler did not start again: {error}")

    def is_owner(self) -> bool:
        """Return whether the calling process and thread are those that record."""
        return self._owner == (os.getpid(), threading.get_ident())

    def _new_session(self) -> Session:
        # Sessions of all threads cannot record memory; one of them may stand in for one that can.
        memory = self._memory and not self._all_threads
        return Session(on_gpu=self._on_gpu, all_threads=self._all_threads, memory=memory)

    def _stop(self, reason: str) -> None:
        """Stop and write; where a block was open after all, the next session is of another kind."""
        began_ns = time.time_ns()
        if self._write_session():
            # PyTorch ends the block through a pointer into the session that is gone, if one of the same kind runs.
            reason = OPEN_BLOCK
            self._all_threads = not self._all_threads
            if self._all_threads and of_all_threads() is None:
                self._end_early(OPEN_BLOCK)
        self._pause = (began_ns, reason)
        self._write_names()
        log, metadata = self.ranges, self._metadata("", self.ended_early or KILLED)
        still_open = list(self._rows.ranges(log.still_open(), log))
        self._trace.commit({"NVTX_EVENTS": still_open, "META_DATA_EXPORT": metadata})

    def _go_on(self) -> None:
        """Start a session, and write how long there was none and why, unless recording has ended."""
        if self.ended_early or self._pause is None:
            return
        (began_ns, reason), self._pause = self._pause, None
        self._session = self._new_session()
        ended_ns = time.time_ns()
        self._unrecorded_ns += ended_ns - began_ns if reason == OPEN_BLOCK else 0
        pause = {
            "start": began_ns - self._origin_ns,
            "end": ended_ns - self._origin_ns,
            "globalTid": global_tid(os.getpid(), threading.get_native_id()),
            "nameId": self._trace.text_id(reason),
            "returnValue": 0,
        }
        self._trace.add("PROFILER_OVERHEAD", [pause])

    def _write_session(self) -> bool:
        """Stop the profiler, write what it saw, and return whether an operator or block was still running."""
        if self._session is None:
            return False
        session, self._session = self._session, None
        seen = session.stop()
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
        events = list(self.ranges.take())
        self._rows.threads.update(event.thread for event in events)
        self._trace.add("NVTX_EVENTS", self._rows.ranges(events, self.ranges))

    def _write_names(self) -> None:
        """Write the names of domains, categories and threads that are new; GPUs and the time of the start once."""
        thread = global_tid(os.getpid(), threading.get_native_id())
        if not self._named:
            self._trace.text_id(OVERHEAD)  # so that an empty recording has the table that identifies a report
            self._trace.add("TARGET_INFO_GPU", gpu_rows() if self._on_gpu else ())
            self._trace.add("TARGET_INFO_SESSION_START_TIME", [start_row(self._origin_ns)])
            self._named.add(("session", 0))
        of_ranges = (
            (DOMAIN_CREATED, "domainId", self.ranges.domains),
            (CATEGORY_NAMED, "category", self.ranges.categories),
        )
        for event_type, column, numbers in of_ranges:
            for name, number in numbers.items():
                if name and self._is_new(column, name):
                    about: Row = {"start": 0, "eventType": event_type, "text": name, "globalTid": thread}
                    self._trace.add("NVTX_EVENTS", [{**about, "domainId": OUR_DOMAIN_ID, column: number}])
        for number in sorted(self._rows.threads):
            if self._is_new("thread", number):
                name_id = self._trace.text_id(thread_name(number))
                self._trace.add("ThreadNames", [{"nameId": name_id, "globalTid": global_tid(os.getpid(), number)}])

    def _is_new(self, kind: str, name: str | int) -> bool:
        is_new = (kind, name) not in self._named
        self._named.add((kind, name))
        return is_new

    def _metadata(self, interrupted_by: str, ended_early: str) -> list[Row]:
        outcome = {
            "NVTX_KERNELS_INTERRUPTED_BY": interrupted_by,
            "NVTX_KERNELS_ENDED_EARLY": ended_early,
            "NVTX_KERNELS_RANGES_DROPPED": self.ranges.dropped,
            "NVTX_KERNELS_UNRECORDED_NS": self._unrecorded_ns,
        }
        about = {**export_metadata(on_gpu=self._on_gpu), **{name: n for name, n in outcome.items() if n}}
        return [{"name": name, "value": str(value)} for name, value in about.items()]


class record(ContextDecorator):  # noqa: N801 - called like a function
    """Record what the block does into a report at `path`, which appears when the block ends, however it ends.

    Where the environment has a RANK, as under torchrun, the path has it too: report.rank0.sqlite. Where another
    process is writing the same file, it is report.pid1234.sqlite.

    `device` is the kind that works, `cuda` or `cpu`; by default, CUDA where there is a GPU. With
    `operators`, every operator and `torch.profiler.record_function` block is a range too, with the sequence
    numbers that link backward to forward, as torch.autograd.profiler.emit_nvtx writes them. With `memory`,
    what PyTorch's allocator hands out and takes back on that kind of device is recorded (docs/memory.md), and
    operators of other Python threads are not. Unless `quiet`, what was written and the next command are printed
    on stderr. The block raises TraceFileError if the report cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str | None = None,
        operators: bool = False,
        memory: bool = False,
        quiet: bool = False,
    ) -> None:
        self._path, self._operators, self._memory, self._quiet = Path(path), operators, memory, quiet
        self._on_gpu = torch.cuda.is_available() if device is None else device == "cuda"
        self._recording: Recording | None = None
        self._trace: TraceFile | None = None
        # What signals do, what a recording takes of its process, and what it listens to.
        self._signals, self._process, self._listening = ExitStack(), ExitStack(), ExitStack()

    def __enter__(self) -> Recording:
        try:
            self._signals.enter_context(terminated_by_signal())
            with Held():
                return self._begin()
        except BaseException:
            with self._signals, Held(), self._process, self._listening:
                self._recording = None
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signals, Held(f"{self._path} is being written; Ctrl-C again abandons it", self._abandon):
            self._end("" if kind is None else kind.__name__)

    def _begin(self) -> Recording:
        self._path = of_rank(self._path)
        self._process.enter_context(alone(self._path))
        self._trace = trace = TraceFile(self._path)
        self._process.callback(trace.discard)
        if trace.other_writer:
            path = self._path.with_name(trace.path.name)
            sys.stderr.write(f"process {trace.other_writer} records to {self._path}: this one, to {path}\n")
            self._path = path
        try:
            recording = Recording(trace, on_gpu=self._on_gpu, operators=self._operators, memory=self._memory)
        except RuntimeError as error:
            raise TraceFileError(f"cannot record to {self._path}: {error}") from error
        self._recording = recording
        self._process.callback(recording.give_up)
        self._listening.enter_context(annotate.listen(recording.ranges))
        self._listening.enter_context(others.hear(recording.ranges))
        self._listening.enter_context(making_way(recording.pause, recording.resume))
        self._listening.enter_context(reminding(lambda: recording.cut_after(FLUSH_UNASKED_AFTER_NS), REMIND_S))
        atexit.register(self._end, "exit of the interpreter")
        _of_thread.last = _AtEnd(self)
        return recording

    def _end(self, interrupted_by: str) -> None:
        """Write the report; once, and by the process and thread that began, which alone can stop the profiler."""
        recording, trace = self._recording, self._trace
        if recording is None or trace is None:
            return
        self._recording = None
        if not recording.is_owner():
            self._listening.close()
            return
        atexit.unregister(self._end)
        _of_thread.last = None
        with self._process, self._listening:
            try:
                recording.finish(interrupted_by)
                trace.publish()
            except AbandonedError as error:
                sys.stderr.write(f"{error}\n")
                return
            recording.is_written = True
        if not self._quiet:
            sys.stderr.write(f"{recording.outcome(trace.path)}\n")

    def _abandon(self) -> None:
        if self._trace is not None:
            self._trace.is_abandoned = True


class _AtEnd:
    """Ends a recording when its thread ends, for Python drops what threads hold for themselves then."""

    def __init__(self, block: record) -> None:
        self._block = block

    def __del__(self) -> None:
        self._block._end("end of its thread")


_of_thread = threading.local()


def _is_alone() -> bool:
    return len(threading._active) == 1  # type: ignore[attr-defined] # without the lock that this thread may hold
