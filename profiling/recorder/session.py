"""One session of torch.profiler on the calling thread, from start to the file that Kineto saves of it."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.torch_version import TorchVersion

from ..annotate import others
from ..annotate.replacing import replaced

LAST = "nvtx-kernels end of a session"
# Else PyTorch 2.12 and later print `profiler_start` on stderr; no lower level holds that back.
QUIET_KINETO = ("KINETO_LOG_LEVEL", "99")
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

    Kineto does so at the next call of CUDA after the end, and asks the environment until then.
    """
    name, value = DETACHING
    is_safe = TorchVersion(torch.version.cuda or "0") >= SAFE_TO_DETACH
    is_ours = is_safe and name not in os.environ
    if is_ours:
        os.environ[name] = value
    try:
        yield
    finally:
        if is_ours and detaches():  # torch.compile may have decided against it meanwhile, with CUDA graphs
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
        threads = {"profile_all_threads": True} if all_threads else {}
        config = _setting(**threads, **(WAITS if on_gpu and kernels else {})) or _setting(**threads)
        self._profile = profile(activities=activities, experimental_config=config, profile_memory=memory)
        with warnings.catch_warnings(), _ours():
            # Some releases warn that a second session drops the events of the first, which are saved by then.
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profile.start()
        others.spell(as_tokens=True)
        self.started_ns = time.time_ns()

    def stop(self, path: Path | None) -> str:
        """End the session, after the GPU has finished its work, and save what it saw, if a path is given.

        Return the GPU's error if waiting for it failed; its work is then missing. The file is for this user alone,
        as it names the host and has addresses. Raises OSError if there is no whole file.
        """
        others.spell(as_tokens=False)
        failure = ""
        with record_function(LAST):
            pass
        try:
            with _ours():
                self._profile.stop()
            results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        except RuntimeError as error:
            # PyTorch waits for the GPU before it ends its profiler, which must not outlive this session.
            results, failure = torch._C._autograd._disable_profiler(), str(error).partition("\n")[0]
        # torch.profiler's object is in a cycle of references, and would keep 2 kB an event until it is collected.
        self._profile.profiler = None
        if path is not None:
            _save(results, path)
        return failure


def _save(results: Any, path: Path) -> None:
    """Save once, as Kineto can; it raises nothing, so that what is there is looked at."""
    if results is None:
        raise OSError(ENDED)
    mask = os.umask(0o077)
    try:
        results.save(str(path))
    except Exception as error:  # as for a path that is no text
        raise OSError(NOT_SAVED) from error
    finally:
        os.umask(mask)
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
