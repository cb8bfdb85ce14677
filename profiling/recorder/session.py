"""One session of torch.profiler on the calling thread, from start to the file that Kineto saves of it."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.torch_version import TorchVersion

from ..annotate import others
from ..annotate.replacing import replaced
from ..harmless import forgiving

LAST = "nvtx-kernels end of a session"
# Else PyTorch 2.12 and later print `profiler_start` on stderr. Kineto sets this variable of C++ when it begins:
# by one of the environment, where that is set.
LOG_LEVEL, VARIABLE, QUIET = "_ZN9libkineto6Logger14severityLevel_E", "KINETO_LOG_LEVEL", 99
ENDED = "another profiler of PyTorch has ended the recording's session"
NOT_SAVED = "PyTorch's profiler could not save its events next to it: is the disk full?"
# Else Kineto leaves CUPTI attached when a session ends, and launches of the GPU stay slower.
DETACHING = ("TEARDOWN_CUPTI", "1")
#: CUDA 12.6 is the first with which that is safe in programs with CUDA graphs (pytorch/kineto#1264).
SAFE_TO_DETACH = "12.6"


def detaches() -> bool:
    """Return whether a session of PyTorch's profiler that ends detaches CUPTI from the process."""
    name, value = DETACHING
    return os.environ.get(name) == value


@contextmanager
def detaching() -> Iterator[None]:
    """Have sessions that end inside the block detach CUPTI, where that is safe and the user has not decided.

    torch.compile may decide against it meanwhile, with CUDA graphs. Kineto does so at the next call of CUDA after
    the end, and asks the environment until then.
    """
    is_safe = TorchVersion(torch.version.cuda or "0") >= SAFE_TO_DETACH
    with _set_for_now(*DETACHING) if is_safe else nullcontext():
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    """Have Kineto print nothing on what it does for us, once it has begun; for the program it prints as before."""
    level = _log_level()
    if level is None:
        yield
        return
    before, level.value = level.value, QUIET
    try:
        yield
    finally:
        level.value = before


def _log_level() -> ctypes.c_int | None:
    try:
        return ctypes.c_int.in_dll(ctypes.PyDLL(torch._C.__file__), LOG_LEVEL)
    except (OSError, ValueError):  # it is hidden
        return None


#: By what releases of PyTorch warn that a second session drops the events of the first, which are saved by then.
WARN_OF_SECOND_SESSION = ((torch.autograd.profiler, "warn"), (torch.profiler.profiler, "_warn_once"))


@contextmanager
def _beginning_quietly() -> Iterator[None]:
    """Have Kineto print nothing when it starts a session, and also when it begins itself before that."""
    kind: Any = torch.autograd.profiler.profile
    start = kind._start_trace

    def started(self: Any) -> Any:
        with _quietly():
            return start(self)

    is_hidden = _log_level() is None
    unheard = [
        (owner, name, lambda *_, **__: None) for owner, name in WARN_OF_SECOND_SESSION if hasattr(owner, name)
    ]
    with (
        replaced((kind, "_start_trace", started), *unheard),
        _set_for_now(VARIABLE, str(QUIET)) if is_hidden else nullcontext(),
    ):
        yield


@contextmanager
def _set_for_now(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment while the block runs, unless it is set."""
    is_ours = name not in os.environ
    if is_ours:
        os.environ[name] = value
    try:
        yield
    finally:
        if is_ours and os.environ.get(name) == value:  # nobody has decided otherwise meanwhile
            del os.environ[name]


def of_all_threads() -> Any:
    """Return the setting with which a profiler sees all threads; None before PyTorch 2.6, which lacks it."""
    return _setting(profile_all_threads=True)


def _setting(**switches: Any) -> Any:
    """Return the profiler's setting with these switches on; None for none, or if PyTorch lacks one of them."""
    try:
        return torch._C._profiler._ExperimentalConfig(**switches) if switches else None
    except (AttributeError, TypeError):
        return None


#: With it Kineto records which calls and streams wait for which stream or event (PyTorch 2.1 and newer).
WAITS = {"enable_cuda_sync_events": True}


def _leave_kineto_alone() -> None:
    """Have a forked child that ends not wait for Kineto's thread, which it has not: its C++ hangs or aborts there.

    What the system calls at the end, it calls in reverse order: our functions come first, and write what C has
    buffered. A child of `multiprocessing` ends without them.
    """
    system = ctypes.CDLL(None)
    if _has_begun and hasattr(system, "on_exit"):  # not so musl's
        system.on_exit(system._exit, None)
        system["__cxa_atexit"](system.fflush, None, None)


#: Whether a session of ours has made Kineto start its thread.
_has_begun = False
os.register_at_fork(after_in_child=_leave_kineto_alone)


class Session:
    """Profile from here to `stop`, on the calling thread and the autograd threads under it, or on all threads.

    With `memory`, allocations are recorded too; without `kernels`, nothing of the GPU but these, so that nsys can
    trace it. Raises RuntimeError if PyTorch's profiler cannot start.
    """

    def __init__(
        self,
        *,
        on_gpu: bool,
        all_threads: bool = False,
        memory: bool = False,
        kernels: bool = True,
    ) -> None:
        if torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled:
            raise RuntimeError("another profiler of PyTorch is already running")
        global _has_begun
        _has_begun = True
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu and kernels else [])]
        threads = {"profile_all_threads": True} if all_threads else {}
        config = _setting(**threads, **(WAITS if on_gpu and kernels else {})) or _setting(**threads)
        self._profile = profile(activities=activities, experimental_config=config, profile_memory=memory)
        with _ours(), _beginning_quietly():
            self._profile.start()
        others.spell(as_tokens=True)
        self.started_ns = time.time_ns()

    def stop(self, path: Path | None) -> str:
        """End the session, after the GPU has finished its work, and save what it saw, if a path is given.

        Return the GPU's error if waiting for it failed; its work is then missing. The file names the host and has
        addresses, so its folder should be this user's alone. Raises OSError if there is no whole file.
        """
        others.spell(as_tokens=False)
        failure = ""
        with torch._C.DisableTorchFunction(), record_function(LAST):  # no mode of the program's sees it
            pass
        try:
            with _ours(), _quietly():
                self._profile.stop()
            results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        except RuntimeError as error:
            # PyTorch waits for the GPU before it ends its profiler, which must not outlive this session.
            results = torch._C._autograd._disable_profiler()
            failure = str(error).partition("\n")[0]
        # torch.profiler's object is in a cycle of references, and would keep 2 kB an event until it is collected.
        self._profile.profiler = None
        if path is not None:
            _save(results, path)
        return failure


def _save(results: Any, path: Path) -> None:
    """Save once, as Kineto can; it raises nothing, so that what is there is looked at."""
    if results is None:
        raise OSError(ENDED)
    try:
        with _quietly():
            results.save(str(path))
    except Exception as error:  # as for a path that is no text
        raise OSError(NOT_SAVED) from error
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 2))
            is_whole = file.read().rstrip().endswith(b"}")
    except OSError:
        is_whole = False
    if not is_whole:
        Path(f"{path}.tmp").unlink(missing_ok=True)  # as Kineto calls it until it is whole
        raise OSError(NOT_SAVED)


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
    pause, resume = map(forgiving("the recording does not make way for a profiler"), (pause, resume))

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
