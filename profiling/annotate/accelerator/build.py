"""How the part in C++ is built: one run of a compiler, with the headers and libraries of the installed PyTorch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from nvtx_kernels.analysis.support import user_cache

from . import SOURCES, place


class BuildError(Exception):
    """It cannot be built here; the text is a sentence for the user."""


def build() -> Path:
    """Compile the library into the user's cache folder, and return its path."""
    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("the accelerator is written for CPython with its GIL, on Linux")
    file = place()
    try:
        is_ours = user_cache.is_ours_alone(file.parent)
    except OSError as error:
        raise BuildError(f"{file.parent} cannot be written: {error.strerror}") from error
    if not is_ours:
        raise BuildError(f"other users can look into {file.parent}: make it yours alone (chmod 700)")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        _compile(made)
        made.replace(file)
    return file


def command(made: Path) -> list[str]:
    """Return the command line of the compiler."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not shutil.which(compiler[0]):
        raise BuildError(f"there is no C++ compiler {compiler[0]}: install g++, or name one in CXX")
    root, python = Path(torch.__file__).parent, sysconfig.get_paths()["include"]
    for header in (Path(python) / "Python.h", root / "include/torch/csrc/autograd/function.h"):
        if not header.exists():
            raise BuildError(
                f"the header {header} is missing: install the development files of Python and PyTorch"
            )
    includes = (python, root / "include", root / "include/torch/csrc/api/include")
    return [
        *compiler, "-O2", f"-std={_standard(root)}", "-shared", "-fPIC", "-fvisibility=hidden", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{one}" for one in includes), str(SOURCES[0]), "-o", str(made),
        f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python",
    ]  # fmt: skip


def _standard(root: Path) -> str:
    """Return the C++ standard with which this PyTorch builds extensions."""
    found = re.search(r"-std=(c\+\+\d\d)", (root / "utils/cpp_extension.py").read_text())
    return found[1] if found else "c++20"


def _compile(made: Path) -> None:
    done = subprocess.run(command(made), capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
        raise BuildError(f"the compiler failed: {errors[0]}")
