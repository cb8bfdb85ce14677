"""Build the part in C++ that makes annotation cheaper, check it, and say what it gains.

python -m profiling.doctor.accelerate
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import CommandError, ended

if TYPE_CHECKING:
    from torch import nn

_ROUNDS, _STEPS = 20, 5


class BuildError(Exception):
    """It cannot be built here; the text is a sentence for the user."""


def parser(prog: str = "python -m profiling.doctor.accelerate") -> argparse.ArgumentParser:
    """Return the options of the command."""
    description = (
        "Build the optional part of annotation that is in C++, for the installed PyTorch and Python, into the "
        "user's cache folder; check that its ranges are those of the part in Python, and show what it gains. "
        "From then on annotation uses it; NVTX_KERNELS_ACCELERATOR=0 keeps it off."
    )
    return argparse.ArgumentParser(prog, description=description)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.doctor.accelerate") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    this.parse_args(arguments)
    return ended(this, _accelerate)


def _accelerate() -> int:
    # PyTorch takes seconds to import.
    from ..annotate import accelerator, range_stack

    if range_stack.off:
        raise CommandError("annotation is switched off by NVTX_KERNELS_OFF")
    try:
        gain = build(_checked)
    except BuildError as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(f"built {accelerator.place()}\nits ranges are those of the part in Python\n{gain}")
    return 0


def _checked(made: Path) -> str:
    """Compare a library's ranges with those of the part in Python; return a line of what it gains."""
    from ..annotate import accelerator

    try:
        library = accelerator.loaded(made)
    except ImportError as error:
        raise BuildError(f"what was built cannot be loaded: {error}") from error
    model = _model()
    if _ranges(model, library) != _ranges(model, None):
        accelerator.place().unlink(missing_ok=True)
        raise BuildError("its ranges are not those of the part in Python, and it was removed: please report this")
    return _gain(model, library)


def build(check: Callable[[Path], str] = str) -> str:
    """Compile the library, put it into the user's cache folder if a check lets it pass, and return its answer."""
    from nvtx_kernels.analysis.support import user_cache

    from ..annotate import accelerator

    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("the accelerator is written for CPython with its GIL, on Linux")
    file = accelerator.place()
    try:
        is_ours = user_cache.is_ours_alone(file.parent)
    except OSError as error:
        raise BuildError(f"{file.parent} cannot be written: {error.strerror}") from error
    if not is_ours:
        raise BuildError(f"other users can look into {file.parent}: make it yours alone (chmod 700)")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        _compile(made)
        said = check(made)
        made.replace(file)
    return said


def command(made: Path) -> list[str]:
    """Return the command line of the compiler, with the headers and libraries of the installed PyTorch."""
    import torch

    from ..annotate.accelerator import SOURCES

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


def _model() -> nn.Module:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


class _Events:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def push(self, name: str, payload: object) -> None:
        from ..annotate import category

        self.seen.append((name, payload, category()))

    def pop(self) -> None:
        self.seen.append(())

    def mark(self, message: str) -> None:
        pass


def _annotated(model: nn.Module, library: Any, steps: int) -> tuple[_Events, list[tuple[float, float]]]:
    """Run steps of the annotated model; return its ranges, and the seconds of each forward and backward."""
    import torch

    from ..annotate import annotate_modules, listen, trail

    events, x, times, before = _Events(), torch.ones(1, 16, 64), [], trail.accelerate(library)
    try:
        with annotate_modules(model), listen(events):
            for _ in range(steps):
                began = time.process_time()
                loss = model(x).sum()
                between = time.process_time()
                loss.backward()
                times.append((between - began, time.process_time() - between))
    finally:
        trail.accelerate(before)
    return events, times


def _ranges(model: nn.Module, library: Any) -> list[tuple[object, ...]]:
    return _annotated(model, library, 2)[0].seen


def _gain(model: nn.Module, library: Any) -> str:
    """Compare the two in turns; return a line."""
    turns = [[_annotated(model, one, _STEPS)[1] for one in (None, library)] for _ in range(_ROUNDS)]
    forward, backward = (_saved(turns, phase) / len(list(model.modules())) for phase in (0, 1))
    return (
        f"it saves {forward:.1f} us per module in forward and {backward:.1f} us in backward (TransformerEncoder)\n"
    )


def _saved(turns: list[list[list[tuple[float, float]]]], phase: int) -> float:
    """Return by how many microseconds the second of each pair is faster, in its fastest step of a phase."""
    fastest = [[min(step[phase] for step in turn) for turn in both] for both in turns]
    return 1e6 * statistics.median(first - second for first, second in fastest)


if __name__ == "__main__":
    sys.exit(main())
