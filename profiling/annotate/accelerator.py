"""The optional part in C++: what `trail.py`, `calls.py` and `engine.py` do, mostly without a call of Python's.

It is built only by `nvtx-kernels accelerate`, into the user's cache folder, for one version of PyTorch and of
Python. Where it is there and fits, it is used; NVTX_KERNELS_ACCELERATOR=0 keeps it off.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from nvtx_kernels.analysis.support import user_cache

from . import range_stack
from .engine import BackwardRange, Part, Root, reach
from .graph import WITHOUT, items_of
from .open_ranges import DependentRange, Label, Thread

SWITCH = "NVTX_KERNELS_ACCELERATOR"
NAME = "nvtx_kernels_nodes"
FILES = ("nodes.cpp", "prepare.h", "calls.h", "trail.h", "reach.h", "ranges.h", "walk.h", "table.h", "places.h")
SOURCES = [Path(__file__).parent / "native" / name for name in FILES]
# What of `range_stack` the library does instead while it is used: the functions of the same names.
IN_PYTHON = {name: getattr(range_stack, name) for name in ("open_in", "pop", "close")}
log = logging.getLogger("profiling.annotate")


def place() -> Path:
    """Return where the built library of this source, PyTorch and Python is, or would be."""
    texts = [one.read_text() for one in SOURCES]
    fits = (texts, torch.__version__, torch.version.git_version, sys.version, platform.machine())
    key = hashlib.sha256(repr(fits).encode()).hexdigest()[:16]
    return user_cache.folder() / f"{NAME}-{key}.so"


def load() -> Any:
    """Return the built library; None where there is none, or where it is switched off."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        file = place()
        if not file.is_file() or not user_cache.is_ours_alone(file.parent):
            return None
        return loaded(file)
    except Exception:  # annotation works without it
        log.exception("the accelerator cannot be loaded, and annotation goes on without it")
        return None


def loaded(file: Path) -> Any:
    """Return the library in a file, ready for use."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(file))
    spec = importlib.util.spec_from_file_location(NAME, file, loader=loader)
    assert spec is not None
    library = importlib.util.module_from_spec(spec)
    loader.exec_module(library)
    library.prepare(_needed())
    return library


def _needed() -> dict[str, object]:
    """Return what the library calls, and the classes whose objects it makes or knows."""
    return {
        "reach": reach,
        "items": items_of,
        "kinds": tuple(WITHOUT),
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "stack": vars(range_stack),
        "local": range_stack.local,
        "has_tool": range_stack._tool,
        "push": range_stack._push_to_tool,
        "pop": range_stack._pop_from_tool,
        "described": range_stack._described,
        "tell": range_stack._tell,
        "tell_end": range_stack._tell_end,
        "close": IN_PYTHON["close"],
        "DependentRange": DependentRange,
        "BackwardRange": BackwardRange,
        "Part": Part,
        "Label": Label,
        "Thread": Thread,
    }


def maker(library: Any) -> Callable[[Thread, Part], tuple[Any, int]]:
    """Return what makes the trail of a new root, and its first number."""

    class Trail(library.Trail):  # type: ignore[misc]
        __slots__ = ("enter", "root", "start", "thread")

        def release(self) -> None:
            self.release_to(self.root)

    places_of, trail_of = library.Places, Trail

    def new_trail(thread: Thread, part: Part) -> tuple[Any, int]:
        places = places_of()
        start = places.enter(part)
        trail = trail_of(places, start)
        trail.enter, trail.root = places.enter, Root(places)
        trail.thread, trail.start = thread, start
        return trail, start

    return new_trail
