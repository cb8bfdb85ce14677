"""What levers do to loaders of data: workers, and pinned memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import data

from .patch import Call, OfCalls, replace

#: The most and the fewest workers that a loader gets.
MOST_WORKERS, FEWEST_WORKERS = 8, 2
#: Where in DataLoader's arguments these are, after `self`.
DATASET, NUM_WORKERS, PIN_MEMORY = 1, 6, 8


class Workers(OfCalls):
    """Loaders without workers get some; `prefetched` batches are ready when the first step begins."""

    def __init__(self) -> None:
        super().__init__((data.DataLoader, "__init__"))
        self.spent_s = 0.0
        self.prefetched = 0

    def install(self) -> None:
        """Also time how long loaders without workers take for a batch."""
        super().install()
        replace(data.dataloader._SingleProcessDataLoaderIter, "_next_data", self._timed)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_data(iterator: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return original(iterator)
            finally:
                self.spent_s = (self.spent_s or 0.0) + time.perf_counter() - began_s

        return next_data

    def called(self, call: Call) -> Any:
        """Give a loader workers."""
        options = call.options
        positional = len(call.arguments)
        dataset = call.arguments[DATASET] if positional > DATASET else options.get("dataset")
        has_workers = positional > NUM_WORKERS or options.get("num_workers", 0)
        if isinstance(dataset, data.IterableDataset):
            self.trouble = "each worker would repeat an IterableDataset"
        elif _holds_gpu_tensors(dataset):
            self.trouble = "the data is on the GPU"
        elif not has_workers and self.changes(call.frame):
            cores = len(os.sched_getaffinity(0))
            count = max(FEWEST_WORKERS, min(MOST_WORKERS, cores))
            batches = count * (options.get("prefetch_factor") or 2)
            options |= {"num_workers": count, "persistent_workers": True}
            self.prefetched = max(self.prefetched, batches)
        return call.make()


def _holds_gpu_tensors(dataset: Any) -> bool:
    tensors = getattr(dataset, "tensors", ())
    return any(getattr(tensor, "is_cuda", False) for tensor in tensors)


class Pinned(OfCalls):
    """Loaders pin their batches, and copies of pinned memory do not wait."""

    def __init__(self) -> None:
        super().__init__((data.DataLoader, "__init__"))

    def install(self) -> None:
        """Also replace the copies."""
        super().install()
        for name in ("to", "cuda"):
            replace(torch.Tensor, name, self._unblocked)

    def called(self, call: Call) -> Any:
        """Have a loader pin its batches."""
        is_pinned = len(call.arguments) > PIN_MEMORY or call.options.get("pin_memory")
        if not is_pinned and torch.cuda.is_available() and self.changes(call.frame):
            call.options["pin_memory"] = True
        return call.make()

    def _unblocked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def move(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            waits = self.is_active and not tensor.is_cuda and not options.get("non_blocking")
            if waits and tensor.is_pinned():
                options["non_blocking"] = True
                self.did += 1
            return original(tensor, *arguments, **options)

        return move
