"""Whose code a file is: the program's own, a library's, or a compiler's.

Nothing is looked up on disk: what a code object calls its file decides.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection, Iterable
from pathlib import Path

LIBRARY, USER, COMPILER = range(3)
#: Where packages are installed, whatever the environment.
_INSTALLED = ("/site-packages/", "/dist-packages/")
#: Folders of code that PyTorch generates.
_GENERATED = ("/torchinductor_", "/.triton/")
#: Modules that run only while something is compiled.
_COMPILERS = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/_inductor/compile_fx.py",
    "/triton/compiler/compiler.py",
)
#: What notebooks call the file of a cell (IPython, and ipykernel in a temporary folder).
_CELLS = ("<ipython-input", "ipykernel_")
_HERE = Path(__file__).resolve()


def _folders() -> tuple[str, ...]:
    """Return the folders of the standard library, and our own; the model of a checkout is the user's."""
    standard = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")] + [str(Path(os.__file__).parent)]
    folders = {str(spelled) for path in standard if path for spelled in (path, os.path.realpath(path))}
    root = _HERE.parents[2]
    ours = {str(root / name) for name in ("profiling", "analysis", "nvtx_kernels")}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders | ours))


_OTHERS = _folders()


def kind_of(filename: str, packages: Collection[str] = ()) -> int:
    """Return USER, LIBRARY or COMPILER for what a code object calls its file.

    Installed `packages`, by their top-level names, are the user's too.
    """
    if filename.startswith("<"):
        return USER if filename.startswith(_CELLS) else LIBRARY
    path = filename.replace("\\", "/")
    if path.endswith(_COMPILERS):
        return COMPILER
    if any(cell in path for cell in _CELLS):
        return USER
    for folder in _INSTALLED:
        _, is_installed, inside = path.rpartition(folder)
        if is_installed:
            return USER if inside.partition("/")[0].removesuffix(".py") in packages else LIBRARY
    if any(folder in path for folder in _GENERATED) or filename.startswith(_OTHERS):
        return LIBRARY
    return USER


def packages_of(modules: Iterable[object]) -> set[str]:
    """Return the packages whose classes some modules are, PyTorch's apart: whose lines tell what a model does."""
    return {type(module).__module__.partition(".")[0] for module in modules} - {"torch"}


def working_folder() -> str:
    """Return the folder that the program works in, "" if it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""
