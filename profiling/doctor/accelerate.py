"""Build the part in C++ that makes annotation cheaper, check it, and print what it gains.

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

from nvtx_kernels.analysis.support.arguments import CommandParser

from ..cli import CommandError, ended

if TYPE_CHECKING:
    from torch import nn

_ROUNDS, _STEPS = 20, 5
# Folders of builds that run, or were killed so long ago.
_BUILD, _KILLED_AFTER_S = "nvtx_kernels_nodes-build-", 600


class BuildError(CommandError):
    """It cannot be built here; the text is a sentence for the user."""


def parser(prog: str = "python -m profiling.doctor.accelerate") -> argparse.ArgumentParser:
    """Return the options of the command."""
    description = (
        "Build the optional part of annotation that is in C++, for the installed PyTorch and Python, into the "
        "user's cache folder; check that its ranges are those of the part in Python, and show what it gains. "
        "From then on annotation uses it; NVTX_KERNELS_ACCELERATOR=0 keeps it off."
    )
    return CommandParser(prog, description=description)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.doctor.accelerate") -> int:
    """Run the command and return its exit status."""
    command_parser = parser(prog)
    command_parser.parse_args(arguments)

    def work() -> int:
        # PyTorch takes seconds to import.
        from ..annotate import nodes, range_stack

        if range_stack.off:
            raise CommandError("annotation is switched off by NVTX_KERNELS_OFF")
        gain = build(_checked)
        sys.stdout.write(f"built {nodes.place()}\nits ranges are those of the part in Python\n{gain}")
        return 0

    return ended(command_parser, work)


def build(check: Callable[[Path], str] = str) -> str:
    """Compile the library, put it into the user's cache folder if a check lets it pass, and return its answer."""
    from nvtx_kernels.analysis.support import user_cache

    from ..annotate import nodes

    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("the accelerator is written for CPython with its GIL, on Linux")
    library_file = nodes.place()
    cache = library_file.parent
    try:
        is_ours = user_cache.is_ours_alone(cache)
    except OSError as error:
        raise BuildError(f"{cache} cannot be written: {error.strerror}") from error
    if not is_ours:
        raise BuildError(f"other users can look into {cache}: make it yours alone (chmod 700)")
    if library_file.is_dir():
        raise BuildError(f"a folder is where the library belongs: remove {library_file}")
    for leftover in cache.glob(f"{_BUILD}*"):  # of a build that was killed
        if time.time() - leftover.stat().st_mtime > _KILLED_AFTER_S:
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_BUILD, dir=cache) as folder:
        built_file = Path(folder) / library_file.name
        _compile(built_file)
        nodes.seal(built_file)  # before it is loaded: what is mapped must not change
        answer = check(built_file)
        built_file.replace(library_file)
    return answer


def command(built_file: Path) -> list[str]:
    """Return the command line of the compiler, with the headers and libraries of the installed PyTorch."""
    import torch

    from ..annotate.nodes import SOURCE

    try:
        compiler = shlex.split(os.environ.get("CXX", "c++"))
    except ValueError as error:
        raise BuildError(f"CXX is not a command ({error}): name a C++ compiler in it") from error
    if not compiler:
        raise BuildError("CXX is empty: name a C++ compiler in it, or unset it")
    if not shutil.which(compiler[0]):
        raise BuildError(f"there is no C++ compiler {compiler[0]}: install g++, or name one in CXX")
    torch_folder, python_headers = Path(torch.__file__).parent, sysconfig.get_paths()["include"]
    includes = [Path(python_headers), torch_folder / "include", torch_folder / "include/torch/csrc/api/include"]
    for header in (includes[0] / "Python.h", includes[1] / "torch/csrc/autograd/function.h"):
        if not header.exists():
            raise BuildError(
                f"the header {header} is missing: install the development files of Python and PyTorch"
            )
    # With what this PyTorch builds extensions.
    standard = re.search(r"-std=(c\+\+\d\d)", (torch_folder / "utils/cpp_extension.py").read_text())
    language = f"-std={standard[1] if standard else 'c++20'}"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = ["-O2", language, "-shared", "-fPIC", "-fvisibility=hidden", "-w", abi]
    libraries = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    headers = [f"-I{folder}" for folder in includes]
    return [*compiler, *flags, *headers, str(SOURCE), "-o", str(built_file), *libraries]


def _compile(built_file: Path) -> None:
    process = subprocess.run(command(built_file), capture_output=True, text=True, check=False)
    if process.returncode:
        errors = [line for line in process.stderr.splitlines() if "error" in line]
        raise BuildError(f"the compiler failed: {errors[0] if errors else f'exit {process.returncode}'}")


def _checked(built_file: Path) -> str:
    """Compare a library's ranges with those of the part in Python; return a line of what it gains."""
    import torch
    from torch import nn

    from ..annotate import nodes

    try:
        library = nodes.loaded(built_file)
    except ImportError as error:
        raise BuildError(f"what was built cannot be loaded: {error}") from error
    saved_us: tuple[list[float], list[float]] = ([], [])  # by round, in forward and in backward
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        in_library, in_python = (_annotated(model, part, 2)[0] for part in (library, None))
        if in_library != in_python:
            nodes.place().unlink(missing_ok=True)
            reason = "its ranges are not those of the part in Python, and it was removed: please report this"
            raise BuildError(reason)
        for _ in range(_ROUNDS):
            step_times = [_annotated(model, part, _STEPS)[1] for part in (None, library)]
            for phase, savings in enumerate(saved_us):
                fastest = [min(times[phase] for times in steps) for steps in step_times]
                savings.append(1e6 * (fastest[0] - fastest[1]))
    finally:
        torch.set_num_threads(threads_before)
    forward, backward = (statistics.median(savings) / len(list(model.modules())) for savings in saved_us)
    return (
        f"it saves {forward:.1f} us per module in forward and {backward:.1f} us in backward (TransformerEncoder)\n"
    )


class _Events:
    """Hears every range."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def push(self, name: str, payload: object) -> None:
        from ..annotate import category

        self.heard.append((name, payload, category()))

    def pop(self) -> None:
        self.heard.append(())

    def mark(self, message: str) -> None:
        pass


def _annotated(
    model: nn.Module, library: Any, steps: int
) -> tuple[list[tuple[object, ...]], list[tuple[float, float]]]:
    """Run steps of the annotated model; return its ranges, and the seconds of each forward and backward."""
    import torch

    from ..annotate import annotate_modules, listen, nodes

    events, x, times, library_before = _Events(), torch.ones(1, 16, 64), [], nodes.use(library)
    try:
        with annotate_modules(model), listen(events):
            for _ in range(steps):
                began = time.process_time()
                loss = model(x).sum()
                between = time.process_time()
                loss.backward()
                times.append((between - began, time.process_time() - between))
    finally:
        nodes.use(library_before)
    return events.heard, times


if __name__ == "__main__":
    sys.exit(main())
