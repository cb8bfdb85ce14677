"""Facts of a program that cost time or memory without showing: settings, its allocator, its loaders, odd sizes.

They go into the report's mark of the run. Each is looked up by itself, and one that cannot be known is left out: a
report can do without, and the program must not notice. Nothing is imported for them, and no peak is reset.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from .annotate.replacing import replaced
from .harmless import Ignoring

#: Environment variables that slow a program down, by the fact that is set if they are not 0.
FLAGS = {
    "CUDA_LAUNCH_BLOCKING": "launch_blocking",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "no_memory_caching",
    "NCCL_P2P_DISABLE": "no_peer_to_peer",
}
DISTRIBUTED_DEBUG = "TORCH_DISTRIBUTED_DEBUG"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: Matrix products with sizes that this divides use their fast kernels (8 numbers of 16 bits are 16 bytes).
MULTIPLE = 8
MOST_LOADERS, MOST_SIZES = 8, 20


def costly_settings() -> dict[str, Any]:
    """Return the settings of PyTorch and its environment that cost time, as they are now."""
    return _known(
        {
            "anomaly_mode": lambda: torch.is_anomaly_enabled(),
            "deterministic": lambda: torch.are_deterministic_algorithms_enabled(),
            "cudnn_enabled": lambda: bool(torch.backends.cudnn.enabled),
            "cudnn_deterministic": lambda: bool(torch.backends.cudnn.deterministic),
            "emit_nvtx": lambda: torch._C._autograd._profiler_type().name == "NVTX",
            "memory_history": lambda: bool(torch._C._cuda_isHistoryEnabled()),
            "expandable_segments": _has_expandable_segments,
            "distributed_debug": _distributed_debug,
            **{fact: functools.partial(_is_set, name) for name, fact in FLAGS.items()},
        }
    )


def memory_facts() -> dict[str, int]:
    """Return the program's peak GPU memory, bytes, and how often it tried an allocation again.

    Empty where no GPU is used.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    return _known(
        {
            "memory_peak_bytes": torch.cuda.max_memory_allocated,
            "memory_reserved_bytes": torch.cuda.max_memory_reserved,
            "memory_retries": lambda: int(torch.cuda.memory_stats()["num_alloc_retries"]),
            "device_memory_bytes": lambda: int(torch.cuda.get_device_properties().total_memory),
        }
    )


def odd_sizes(models: Iterable[nn.Module]) -> dict[str, list[int]]:
    """Return the first two sizes of the weights by name, if one of them is above 8 and 8 does not divide it."""
    odd: dict[str, list[int]] = {}
    with Ignoring():
        for model in models:
            for name, weight in model.named_parameters():
                sizes = [int(size) for size in weight.shape[:2]]
                if len(sizes) == 2 and any(size > MULTIPLE and size % MULTIPLE for size in sizes):
                    odd[name] = sizes
    return dict(sorted(odd.items(), key=lambda item: -item[1][0] * item[1][1])[:MOST_SIZES])


class Loaders:
    """Notes the settings of the data loaders that are iterated over while `noting`, and hooks on saved tensors."""

    def __init__(self) -> None:
        self.saved_tensor_hooks = False
        self._seen: list[dict[str, Any]] = []

    @property
    def facts(self) -> dict[str, Any]:
        """What was seen."""
        return ({"loaders": self._seen} if self._seen else {}) | (
            {"saved_tensor_hooks": True} if self.saved_tensor_hooks else {}
        )

    def note_forward(self) -> None:
        """Look for hooks on saved tensors, where a model is called."""
        with Ignoring():
            hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
            self.saved_tensor_hooks |= hooks is not None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note the loaders that the block iterates over."""
        iterate = DataLoader.__iter__

        @functools.wraps(iterate)
        def noted(loader: Any) -> Any:
            self._note(loader)
            return iterate(loader)

        with replaced((DataLoader, "__iter__", noted)):
            yield

    def _note(self, loader: Any) -> None:
        with Ignoring():
            facts = {
                "num_workers": int(loader.num_workers),
                "pin_memory": bool(loader.pin_memory),
                "persistent_workers": bool(loader.persistent_workers),
            }
            if facts not in self._seen and len(self._seen) < MOST_LOADERS:
                self._seen.append(facts)


def _known(facts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the facts that can be known, without those that are unset."""
    answers = {}
    for name, look_up in facts.items():
        with Ignoring():
            fact = look_up()
            if fact is not None:
                answers[name] = fact
    return answers


def _is_set(name: str) -> bool | None:
    """Return whether a variable switches something on; None where it is not set."""
    return os.environ[name] not in ("", "0") if name in os.environ else None


def _distributed_debug() -> str | None:
    level = os.environ.get(DISTRIBUTED_DEBUG, "").upper()
    return level if level in ("INFO", "DETAIL") else None


def _has_expandable_segments() -> bool | None:
    text = ",".join(os.environ.get(name, "") for name in ALLOCATOR).replace(" ", "")
    return "expandable_segments:True" in text if text.strip(",") else None
