"""The optional part in C++: it does what `trail.py` does without a Python object for each node.

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

from .engine import Part, Root, reach
from .graph import WITHOUT, items_of
from .open_ranges import Thread

SWITCH = "NVTX_KERNELS_ACCELERATOR"
NAME = "nvtx_kernels_nodes"
SOURCES = [Path(__file__).parent / "native" / name for name in ("nodes.cpp", "places.h", "walk.h")]
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
    library.prepare(reach, items_of, Part, tuple(WITHOUT), torch.Tensor, torch.nn.Parameter)
    return library


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
