"""One recording: sessions of the profiler, the log of ranges, and the report that they are written into."""

import os
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from traceback import clear_frames

import torch
from nvtx_kernels.analysis.container import RECORDING
from nvtx_kernels.analysis.support import heap
from nvtx_kernels.analysis.support.units import bytes_text, time_text
from nvtx_kernels.analysis.trace import Spots, Thread

import nvtx_kernels

from ..annotate import places
from ..annotate.interrupts import Held
from ..lines import StepLines
from .backward import BackwardRanges, nodes_of
from .beside import let_cupti_detach
from .joining import Joining, spans_of
from .line_marks import mark_of, saw
from .open_blocks import is_open, may_be_open_elsewhere
from .process import allowed_bytes, resident_bytes
from .range_log import RangeLog
from .seen import Blocks, Seen
from .session import LAST, Session, of_all_threads
from .trace_file import NOTHING, AbandonedError, Content, TraceFile, TraceFileError, content_of, provenance

#: How much a process may grow before events are saved. Stopping takes six times as much as recording.
LIMIT_VARIABLE, LIMIT_BYTES, SHARE_OF_MEMORY = "NVTX_KERNELS_RECORDER_BYTES", 1 << 30, 6
#: What an event takes at least while it is recorded: growth that these do not explain is the program's own.
EVENT_BYTES = 250
OPEN_BLOCK = "an operator or record_function block was open while the recording was written"
NO_WORK, IN_BLOCK = "an empty recording: no work was seen", "run the training steps inside the block"
UNWRITTEN = "the program was killed, or the report could not be written"
TOO_LARGE = "no step had ended when the recording had grown by {}"
BUFFERS_FULL = "the GPU's events had filled PyTorch's buffers"


class Recording:
    """A report being recorded, by the thread that made it.

        ┌─► recording ──► saving: memory has grown, and a step ends ──────────────────────┐
        │    │   │   └──► paused: a profiler of the program's own runs ───────────────────┤
        └────┼───┼────────────────────────────────────────────────────────────────────────┘
             │   └──► ended early: no session any more, as the disk, memory or buffers are full
             ▼                │
            over ◄────────────┘ by `finish`, which writes; by `leave`, which says why not; by `give_up`

    `ended_early` is the reason why recording stopped before the program did, or empty; `is_over` says whether
    nothing more is written, `is_written` whether the report is in place, `began_ns` when recording began.
    """

    def __init__(
        self,
        trace: TraceFile,
        *,
        device: str | None,
        operators: bool = False,
        memory: bool = False,
    ) -> None:
        self.ended_early = ""
        self.is_over = self.is_written = False
        self._trace = trace
        self._read = nvtx_kernels.session_reader()
        self._device, self._memory = device, memory
        self._on_gpu = torch.cuda.is_available() if device is None else device == "cuda"
        self._limit_bytes = _limit_bytes()
        # PyTorch reports allocations to the profiler of the thread that allocates, and to none of all threads.
        wants_all = (operators or not self._on_gpu) and not memory and _is_alone()
        self._all_threads = wants_all and of_all_threads() is not None
        self._session: Session | None = self._new_session()
        self.began_ns = self._origin_ns = self._session.started_ns
        try:
            self._begin(operators)
        except BaseException:
            self.give_up()
            raise

    def _begin(self, operators: bool) -> None:
        self._joining = Joining(self._trace, self._origin_ns, operators=operators)
        self._provenance = provenance(on_gpu=self._on_gpu)
        self.makes_way = False  # for a profiler of the program's that runs
        self._unrecorded_ns = 0
        self._old: Path | None = None
        self._failure: TraceFileError | None = None
        self.lines: StepLines | None = None
        self._saved: list[Path] = []
        self._sessions = 0
        self._owner = (os.getpid(), threading.get_ident())
        self._pause: tuple[int, bool] | None = None  # since when, and whether work is lost
        self._began_bytes = resident_bytes()
        self.ranges = RangeLog(self._sees)
        places.keep(more=True)
        self._trace.commit(self._head("", UNWRITTEN))

    @property
    def path(self) -> Path:
        """Return where the report will be, or is: with the rank of a distributed program, or a process's number.

        Where the report that was there has more steps, it is another once this one is written.
        """
        return self._trace.path

    @property
    def works(self) -> int:
        """Return how many kernels, copies and memsets are written so far; on a CPU, how many operators."""
        return self._joining.works

    @property
    def shortfall(self) -> str:
        """Return a sentence on what is missing because recording ended early, empty for a complete one."""
        if not self.ended_early:
            return ""
        dropped = f"; {self.ranges.dropped:,} later ranges and their work are missing"
        return f"The recording ended early: {self.ended_early}{dropped if self.ranges.dropped else ''}."

    def about_old(self, path: Path) -> str:
        """Return a sentence on the report that was there and stays, given a path beside it; empty without one."""
        if self._old is None:
            return ""
        old = path.with_name(self._old.name)
        if not self.is_written:
            return f"{old} is as it was."
        return f"{old} has more, and is as it was: this recording is in {self.path.name}."

    def outcome(self, path: Path) -> str:
        """Return a sentence on what was written, what is missing, and the next command for this path."""
        old = self.about_old(path)
        if not self.works:
            outcome = f"No report was written: no work was seen. {old}" if old else f"{path} is {NO_WORK}."
            return f"{outcome} Next: {IN_BLOCK}"
        steps = self.ranges.steps
        counted = f"{steps} step{'' if steps == 1 else 's'}" if steps else "no range `step`"
        command = f"nvtx-kernels rank {shlex.quote(str(path))}"
        written = f"{path}, {bytes_text(path.stat().st_size)}, {counted}. Next: {command}"
        return "\n".join(filter(None, (old, written, self.shortfall)))

    def step_ended(self) -> None:
        """Save what was recorded so far and go on, if that is more than memory should hold."""
        if not self._is_large():
            return
        if is_open():  # as in an optimizer's own block
            self.ranges.after_block = self.step_ended
        else:
            elsewhere = self._all_threads and may_be_open_elsewhere()
            if elsewhere and not self._is_large(times=2):
                return  # the next step's end may be better
            self._all_threads &= not elsewhere
            with self._surviving():
                self._save()
                self._go_on()

    def look_at_memory(self) -> None:
        """End early where no step has ended for too long; called now and then, at any moment."""
        if self._is_large(times=2) and not is_open():
            if self._all_threads and may_be_open_elsewhere():
                if not self._is_large(times=4):
                    return
                self._all_threads = False
            with self._surviving():
                if self._save() * EVENT_BYTES > self._limit_bytes // 2:
                    self._end_early(TOO_LARGE.format(bytes_text(self._limit_bytes)))
                self._go_on()  # where the program has grown, not its recording

    def _is_large(self, times: int = 1) -> bool:
        """Return whether the process has grown by `times` the limit during a running session."""
        if self._session is None or not self.is_owner():
            return False
        return resident_bytes() - self._began_bytes > times * self._limit_bytes

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Let the program go on where writing or starting again fails; `finish` raises what it should know."""
        with Held():
            try:
                yield
            except TraceFileError as error:
                self._failure = error
                self._end_early(reason_of(error))
            except RuntimeError as error:
                self._end_early(f"torch.profiler did not start again: {error}")
            except Exception as error:
                self._failure = failure_of(error, self.path)
                self._end_early(reason_of(self._failure))

    def pause(self) -> None:
        """Save what was recorded so far and stop, for a profiler that begins on this thread."""
        self.makes_way = True
        if self._session is not None and self.is_owner():
            with self._surviving():
                if is_open():
                    # PyTorch ends what is open through a pointer into its session, if one of that kind runs.
                    self._change_kind()
                self._stop()

    def resume(self) -> None:
        """Go on after `pause`, unless all that is wanted was recorded before."""
        self.makes_way = False
        if self._pause is not None and self.is_owner() and not self.ranges.is_over:
            with self._surviving():
                self._go_on()

    def _save(self) -> int:
        """Write what was recorded so far, and return how many events that was."""
        self._stop()
        count = self._write(None)
        heap.trim()  # what is free in glibc's pools would hide the growth of the next session
        self._began_bytes = resident_bytes()
        return count

    def finish(self, interrupted_by: str, measured: Callable[[], Content]) -> None:
        """Write everything that is left, and put the report into place, unless the one that is there has more.

        `interrupted_by` names the exception that ended the program, `measured` counts steps once ranges are known.
        """
        if self._failure is not None:
            raise self._failure
        now_ns = time.time_ns()
        if self._session is not None:
            self._stop()
        self._write(now_ns)
        heap.trim()
        content, self.is_over = measured(), True
        self._trace.commit(self._head(interrupted_by, self.ended_early, content))
        wanted_path = self._trace.path
        if not self.works and content_of(wanted_path) is not None:
            self._old = wanted_path
            self._trace.discard()
            return
        self._trace.publish(content)
        self._old = wanted_path if self._trace.path != wanted_path else None
        self.is_written = True

    def leave(self, error: TraceFileError) -> None:
        """Leave what could be written, with the reason why it is no report, where the report was being written."""
        # What was being read can fill the memory that the reason needs.
        for raised in (error, error.__cause__):
            clear_frames(raised.__traceback__ if raised else None)
        with suppress(TraceFileError):
            self._trace.commit(self._head("", f"it could not be written: {reason_of(error)}"))
        self._trace.leave()

    def give_up(self) -> None:
        """Stop the profiler if it still runs, and write nothing."""
        session, self._session = self._session, None
        places.keep(more=False)
        if session is not None:
            session.stop(None)

    def discard_saved(self) -> None:
        """Remove what PyTorch saved."""
        while self._saved:
            self._saved.pop().unlink(missing_ok=True)

    def is_owner(self) -> bool:
        """Return whether the calling process and thread are those that record."""
        return self._owner == (os.getpid(), threading.get_ident())

    def is_inherited(self) -> bool:
        """Return whether the calling process was forked off that which records."""
        return self._owner[0] != os.getpid()

    def _sees(self) -> bool:
        """Return whether the profiler sees what the calling thread does, and autograd for it."""
        return self._session is not None and (self._all_threads or bool(torch._C._autograd._profiler_enabled()))

    def _new_session(self) -> Session:
        # Sessions of all threads cannot record memory; one of them may stand in for one that can.
        memory = self._memory and not self._all_threads
        return Session(on_gpu=self._on_gpu, all_threads=self._all_threads, memory=memory)

    def _change_kind(self) -> None:
        self._all_threads = not self._all_threads
        if self._all_threads and of_all_threads() is None:
            self._end_early(OPEN_BLOCK)

    def _stop(self) -> None:
        """End the session, and have Kineto save it."""
        began_ns = time.time_ns()
        session, self._session = self._session, None
        assert session is not None
        path: Path | None = None
        try:
            path = self._trace.session_path(self._sessions)
            failure = session.stop(path)
        except (OSError, MemoryError) as error:
            if path is None:
                session.stop(None)
            else:
                path.unlink(missing_ok=True)
            raise TraceFileError(f"cannot write {self.path}: {_why(error)}") from error
        self._sessions += 1
        self._saved.append(path)
        if failure:
            self._end_early(f"the GPU failed ({failure}) and its last work is missing")
        self._pause = (began_ns, False)

    def _go_on(self) -> None:
        """Start a session, and write how long there was none, unless recording has ended."""
        if self.ended_early and not self._saved:
            places.keep(more=False)  # for nothing more is written that needs it
        if self.ended_early or self._pause is None:
            return
        (began_ns, is_lost), self._pause = self._pause, None
        let_cupti_detach()
        self._session = self._new_session()
        ended_ns = time.time_ns()
        self._unrecorded_ns += ended_ns - began_ns if is_lost else 0
        self._joining.add_pause(began_ns, ended_ns, threading.get_native_id())

    def _write(self, close_ns: int | None) -> int:
        """Write the ranges until now and the saved sessions, and return how many events these had.

        Where a session has a block that nobody saw begin, the next one is of another kind. A program that has not
        used the GPU by then works on the CPU.
        """
        taken, count = self.ranges.take(close_ns), 0
        if self._on_gpu and self._device is None and not _has_used_gpu():
            self._on_gpu = False
            self._provenance = provenance(on_gpu=False)
        self._joining.add_events(taken, self.ranges)
        backward = BackwardRanges(
            self.ranges.take_passes(),
            [event for event in taken if event.interrupts],
            places.keep(more=close_ns is None and not self.ended_early),
        )

        def all_spans(texts: list[str], threads: list[Thread], blocks: Blocks) -> Spots:
            backward_ranges = backward.of(nodes_of(texts, threads, blocks)) if backward else []
            self._joining.add_events(backward_ranges, self.ranges)
            return spans_of([*taken, *backward_ranges])

        while self._saved:
            try:
                seen = self._read(self._saved[0], on_gpu=self._on_gpu, spans_of=all_spans)
                self._joining.add(seen, self.ranges)
                self._add_lines(seen)
            except AbandonedError:
                raise
            except Exception as error:
                cause = (error.__cause__ if isinstance(error, TraceFileError) else None) or error
                where = f"What PyTorch recorded is in {self._saved[0]}, which nvtx-kernels rank reads"
                raise TraceFileError(
                    f"cannot write {self.path}: {_why(cause).rstrip('.')}. {where}, without our ranges."
                ) from cause
            self._saved.pop(0).unlink(missing_ok=True)
            count += len(seen.blocks) + len(seen.trace.work) + len(seen.trace.launches)
            if seen.lost_gpu_ns is not None:
                lost = time_text(seen.lost_gpu_ns - self._origin_ns)
                self._end_early(f"{BUFFERS_FULL} after {lost}")
            if close_ns is None and _is_cut(seen):
                self._pause = (self._pause[0] if self._pause else time.time_ns(), True)
                self._change_kind()
        if close_ns is not None:
            self._add_lines(None)
        if close_ns is None:
            self._trace.commit(self._head("", self.ended_early or UNWRITTEN))
        return count

    def _add_lines(self, seen: Seen | None) -> None:
        """Write the lines of the traced step with the session that saw it, or without; once."""
        lines = self.lines
        if lines is None or (seen is not None and not (lines.is_done and saw(seen, lines))):
            return
        self.lines = None
        self._joining.add_events(mark_of(lines, seen), self.ranges)

    def _end_early(self, reason: str) -> None:
        self.ended_early, self.ranges.is_full = reason, True

    def _head(self, interrupted_by: str, ended_early: str, content: Content = NOTHING) -> dict[str, object]:
        """Return the head of the report: what is no table."""
        recording = {
            **content.head(),
            "interrupted_by": interrupted_by,
            "ended_early": ended_early,
            "ranges_dropped": self.ranges.dropped,
            "unrecorded_ns": self._unrecorded_ns,
            "began_ns": self._origin_ns,
            "torch": str(torch.__version__),
        }
        return {
            "provenance": asdict(self._provenance),
            "has_events": self._joining.has_events,
            RECORDING: recording,
        }


def _has_used_gpu() -> bool:
    """Return whether PyTorch has had memory of a GPU: else this process works on the CPU beside one."""
    return any(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))


def _why(error: BaseException) -> str:
    """Return an error's message, or a sentence on its type if it has none."""
    if isinstance(error, MemoryError):
        return "there was not enough memory"
    return str(getattr(error, "strerror", None) or error)


def failure_of(error: Exception, path: Path) -> TraceFileError:
    """Return the failure to write a report that an error is, or caused."""
    if isinstance(error, TraceFileError):
        return error
    failure = TraceFileError(f"cannot write {path}: {_why(error)}")
    failure.__cause__ = error
    return failure


def _limit_bytes() -> int:
    """Return how much the process may grow; raises TraceFileError for a value that is no number."""
    written = os.environ.get(LIMIT_VARIABLE)
    try:
        return int(written) if written else min(LIMIT_BYTES, allowed_bytes() // SHARE_OF_MEMORY)
    except ValueError as error:
        raise TraceFileError(f"{LIMIT_VARIABLE}={written} is no number of bytes") from error


def reason_of(error: TraceFileError) -> str:
    """Return the reason of a failed write, without the paths that the whole sentence names."""
    cause = error.__cause__
    if isinstance(cause, OSError | sqlite3.Error | MemoryError):
        return _why(cause)
    return "what PyTorch recorded could not be read" if cause is not None else str(error)


def _is_cut(seen: Seen) -> bool:
    """Return whether an operator or block was still running at the session's end: its last one is inside it."""
    blocks = seen.blocks
    for row, name in enumerate(blocks.name_id.tolist()):
        if seen.trace.names[name] != LAST:
            continue
        on_thread = blocks.thread == blocks.thread[row]
        began_before = blocks.start_ns < blocks.start_ns[row]
        ended_after = blocks.end_ns >= blocks.end_ns[row]
        if (on_thread & began_before & ended_after).any():
            return True
    return False


def _is_alone() -> bool:
    return len(threading._active) == 1  # type: ignore[attr-defined] # without the lock that this thread may hold
