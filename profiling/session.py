"""One session of torch.profiler on the calling thread, from start to the events it saw."""

import os
import time
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

CLOCK_CHECK = "nvtx-kernels clock check"
# Else PyTorch 2.12 and later print `profiler_start` on stderr; no lower level holds that back.
QUIET_KINETO = ("KINETO_LOG_LEVEL", "99")


class Seen(NamedTuple):
    """What a session saw.

    `clock_error_ns` is by how much the profiler's clock left two readings of `time.time_ns` that bracket
    one of its events. With `has_open_block`, an operator or record_function block was still running.
    """

    events: list[Any]
    clock_error_ns: int
    has_open_block: bool


class Session:
    """Profile from here to `stop`, on the calling thread and the autograd threads under it."""

    def __init__(self, *, on_gpu: bool) -> None:
        os.environ.setdefault(*QUIET_KINETO)
        self._on_gpu = on_gpu
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._profile = profile(activities=activities)
        self._profile.start()
        self.started_ns = time.time_ns()

    def stop(self) -> Seen:
        """End the session, after the GPU has done what it was given."""
        if self._on_gpu:
            torch.cuda.synchronize()
        before_ns = time.time_ns()
        with record_function(CLOCK_CHECK):
            pass
        after_ns = time.time_ns()
        self._profile.stop()
        events = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        checks = [event for event in events if event.name() == CLOCK_CHECK]
        check = next(event for event in checks if event.device_type() == DeviceType.CPU)
        return Seen(
            [event for event in events if event.name() != CLOCK_CHECK],
            max(before_ns - check.start_ns(), check.end_ns() - after_ns, 0),
            any(_outlasts(event, check) for event in events),
        )


def _outlasts(event: Any, check: Any) -> bool:
    # What is still running when a session stops is given the time of the stop as its end.
    return bool(event.device_type() == DeviceType.CPU and event.end_ns() > check.end_ns())
