"""One session of torch.profiler on the calling thread, from start to the events it saw."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ..annotate.replacing import replaced
from .allocations import MEMORY_EVENT, Allocation, allocations_of
from .gpu_details import Details, details_of

LAST = "nvtx-kernels end of a session"
# Around all that a session sees of its thread where memory is recorded: the profiler's trees lack the allocations
# of a GPU that are in no other event (torch/csrc/autograd/profiler_kineto.cpp takes only the CPU's as roots).
AROUND_ALL = "nvtx-kernels recording"
# Else PyTorch 2.12 and later print `profiler_start` on stderr; no lower level holds that back.
QUIET_KINETO = ("KINETO_LOG_LEVEL", "99")


def of_all_threads() -> Any:
    """Return what has a profiler see all threads, None before PyTorch 2.6, whose profiler sees one."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


class Seen(NamedTuple):
    """What a session saw.

    With `has_open_block`, an operator or record_function block was still running: our last one was inside it.
    `failure` is the GPU's error if waiting for it failed; its work is then missing. `allocations` are empty unless
    the session was asked for them.
    """

    events: list[Any]
    details: Callable[[str, Any], Details]
    has_open_block: bool
    failure: str
    allocations: list[Allocation]


class Session:
    """Profile from here to `stop`, on the calling thread and the autograd threads under it, or on all threads.

    With `memory`, allocations are recorded too; without `kernels`, nothing of the GPU but these, so that nsys can
    trace it. Raises RuntimeError if PyTorch's profiler cannot start.
    """

    def __init__(
        self, *, on_gpu: bool, all_threads: bool = False, memory: bool = False, kernels: bool = True
    ) -> None:
        if torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled:
            raise RuntimeError("another profiler of PyTorch is already running")
        os.environ.setdefault(*QUIET_KINETO)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu and kernels else [])]
        config = of_all_threads() if all_threads else None
        self._on_gpu, self._memory = on_gpu, memory
        self._profile = profile(activities=activities, experimental_config=config, profile_memory=memory)
        with warnings.catch_warnings(), _ours():
            # Some releases warn that a second session drops the events of the first, which are read by then.
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profile.start()
        self._around_all: AbstractContextManager[Any] = record_function(AROUND_ALL) if memory else nullcontext()
        self._around_all.__enter__()
        self.started_ns = time.time_ns()

    def stop(self) -> Seen:
        """End the session, after the GPU has finished its work."""
        with record_function(LAST):
            pass
        self._around_all.__exit__(None, None, None)
        failure = ""
        try:
            with _ours():
                self._profile.stop()
            results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        except RuntimeError as error:
            # PyTorch waits for the GPU before it ends its profiler, which must not outlive this session.
            results, failure = torch._C._autograd._disable_profiler(), str(error).partition("\n")[0]
        events = results.events()
        roots = results.experimental_event_tree()
        ours = (LAST, AROUND_ALL, MEMORY_EVENT)
        of_program = [event for event in events if event.name() not in ours]
        # What is not below another event, or below the one that is around all, is in no block of the program.
        outermost = [event for root in roots for event in (root.children if root.name == AROUND_ALL else (root,))]
        return Seen(
            of_program,
            details_of(results, of_program),
            all(event.name != LAST for event in outermost),
            failure,
            allocations_of(roots, events, on_gpu=self._on_gpu) if self._memory else [],
        )


_own = threading.local()


@contextmanager
def _ours() -> Iterator[None]:
    _own.depth = getattr(_own, "depth", 0) + 1
    try:
        yield
    finally:
        _own.depth -= 1


@contextmanager
def making_way(pause: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
    """Call `pause` before another profiler of PyTorch begins, and `resume` after it has ended.

    PyTorch runs one at a time: a second one silently takes the events of the first.
    """
    kind: Any = torch.autograd.profiler.profile
    prepare, leave = kind._prepare_trace, kind.__exit__

    def prepared(self: Any) -> Any:
        if not getattr(_own, "depth", 0):
            pause()
        return prepare(self)

    def left(self: Any, *exception: Any) -> Any:
        try:
            return leave(self, *exception)
        finally:
            if not getattr(_own, "depth", 0):
                resume()

    with replaced((kind, "_prepare_trace", prepared), (kind, "__exit__", left)):
        yield
