"""The optional part in C++, `native/nodes.cpp`: where it is built, and loading it.

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
from pathlib import Path
from typing import Any

import torch
from nvtx_kernels.analysis.support import user_cache

SWITCH = "NVTX_KERNELS_ACCELERATOR"
NAME = "nvtx_kernels_nodes"
SOURCE = Path(__file__).parent / "native" / "nodes.cpp"
_DIGEST_BYTES = 32
log = logging.getLogger("profiling.annotate")


def place() -> Path:
    """Return where the built library of this source, PyTorch and Python is, or would be."""
    fits = (SOURCE.read_text(), torch.__version__, torch.version.git_version, sys.version, platform.machine())
    key = hashlib.sha256(repr(fits).encode()).hexdigest()[:16]
    return user_cache.folder() / f"{NAME}-{key}.so"


def seal(file: Path) -> None:
    """Append a digest to a library's file."""
    content = file.read_bytes()
    file.write_bytes(content + hashlib.sha256(content).digest())


def load() -> Any:
    """Return the built library; None if it was not built or is switched off."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        file = place()
        if not file.is_file() or not user_cache.is_ours_alone(file.parent):
            return None
        content = file.read_bytes()
        if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
            raise ImportError(f"{file} is damaged")  # the dynamic linker would crash on it
        return loaded(file)
    except ImportError as error:
        log.warning(
            "annotation goes on without its part in C++, which cannot be loaded (%s): run nvtx-kernels accelerate",
            error,
        )
    except Exception:  # annotation works without it
        log.exception("annotation goes on without its part in C++, which cannot be loaded")
    return None


def loaded(file: Path) -> Any:
    """Return the library in a file."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(file))
    spec = importlib.util.spec_from_file_location(NAME, file, loader=loader)
    assert spec is not None
    library = importlib.util.module_from_spec(spec)
    loader.exec_module(library)
    return library
