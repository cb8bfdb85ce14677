"""A process that has imported PyTorch, and forks a child for each program: plain, or under `nvtx-kernels record`.

    python -m tests.profiling.making.zygote
    {"folder": "/tmp/…", "words": ["train.py"], "recorded": true}      a line of JSON for each program

The child becomes the program, writes what the process is like at its end to `state.json`, and ends as Python does,
or `soon`: without freeing PyTorch, which takes most of a small program's time.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import NamedTuple

import torch
import torch._inductor  # PyTorch's profiler imports it
from nvtx_kernels.profiling import program, training  # noqa: F401 - what recording imports
from nvtx_kernels.profiling.record import main as record

from nvtx_kernels import sessions  # noqa: F401 - what recording imports
from tests.analysis.making.forking import end_now
from tests.profiling.making.strangers import PROGRAMS  # noqa: F401 - what most programs import

#: Where patches would be; all of PyTorch, and what of Python a recording touches.
WATCHED = ("torch", "nvtx", "multiprocessing", "signal", "os", "sys", "warnings", "threading", "json", "builtins")
OURS = ("nvtx_kernels", "profiling", "analysis", "model", "tests")
OPTIONS = ("-o", "report.sqlite")
#: A program that goes on for so long hangs.
LIMIT_S = 120


class Zygote:
    """Runs programs in children of the process, each in a folder of its own."""

    def __init__(self, repository: Path) -> None:
        words = [sys.executable, "-m", "tests.profiling.making.zygote"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(words, cwd=repository, **pipes)

    def run(self, folder: Path, words: list[str], *, recorded: bool, soon: bool = False) -> int:
        """Run a program in a folder and return its status, negative for a signal."""
        request = {"folder": str(folder), "words": words, "recorded": recorded, "soon": soon}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return os.waitstatus_to_exitcode(int(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def state(frozen: int) -> dict[str, object]:
    """Return what a program could leave of its process, as plain data; so many objects were frozen before it."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "umask": mask,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "timers": [signal.getitimer(signal.ITIMER_REAL)[1]],
        "limits": [resource.getrlimit(resource.RLIMIT_NOFILE), sys.getrecursionlimit()],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > frozen],
        "finders": [str(type(finder)) + str(finder)[:40] for finder in (*sys.meta_path, *sys.path_hooks)],
        "arguments": [sys.argv, sys.path],
        "main": sorted(vars(sys.modules["__main__"])),
        "hooks": hooks(),
        "threads": threads(),
        "files": sorted(open_files()),
        "warnings": [str(row) for row in warnings.filters],
        "random": [
            torch.initial_seed(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            str(torch.get_default_dtype()),
        ],
    }


def hooks() -> dict[str, object]:
    """Return how many functions wait for something of the process or of PyTorch."""
    module, optimizer = torch.nn.modules.module, importlib.import_module("torch.optim.optimizer")
    found = {
        name: len(values)
        for of in (module, optimizer)
        for name, values in vars(of).items()
        if name.startswith("_global") and hasattr(values, "__len__")
    }
    named = (
        sys.excepthook,
        sys.unraisablehook,
        sys.displayhook,
        threading.excepthook,
        sys.gettrace(),
        sys.getprofile(),
    )
    return found | {
        "atexit": atexit._ncallbacks(),
        "of sys": [getattr(one, "__qualname__", str(one)) for one in named],
    }


def threads() -> int:
    """Return how many threads run Python; those that wait for a recording end just after it."""
    for _ in range(40):
        if len(sys._current_frames()) == 1:
            break
        time.sleep(0.05)
    return len(sys._current_frames())


def open_files() -> Iterator[str]:
    """Yield what the process has open; of a pipe, its number."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            if link.exists():
                yield str(link.readlink())


class Place(NamedTuple):
    """Where a patch would be: an attribute of a module or class, and the id of what is there unpatched."""

    name: str
    names: Mapping[str, object]
    attribute: str
    unpatched: int

    def is_patched(self) -> bool:
        """Return whether something else is there now."""
        return id(self.names.get(self.attribute)) != self.unpatched


def places() -> Iterator[Place]:
    """Yield the functions and classes of the modules in which patches would be, and those of their classes."""
    for name, module in [*sys.modules.items()]:
        if not isinstance(module, ModuleType) or name.partition(".")[0] not in WATCHED:
            continue
        for attribute, value in [*vars(module).items()]:
            kind = type(value)  # some of PyTorch's warn when they are asked for their class
            if kind in (FunctionType, BuiltinFunctionType) or issubclass(kind, type):
                yield Place(f"{name}.{attribute}", vars(module), attribute, id(value))
            if issubclass(kind, type) and value.__module__ == name:
                for member, method in [*vars(value).items()]:
                    if callable(method):
                        yield Place(f"{name}.{attribute}.{member}", vars(value), member, id(method))


def run(folder: str, words: list[str], watched: Sequence[Place], *, recorded: bool, soon: bool) -> None:
    """Become the program, and note what it leaves, and which of the places it leaves patched."""
    os.chdir(folder)
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    process, frozen = os.getpid(), gc.get_freeze_count()
    raised: BaseException | None = None
    try:
        if recorded:
            record([*OPTIONS, *words], prog="nvtx-kernels record")
        else:
            program.run(words, is_module=words[:1] == ["-m"])
    except BaseException as error:
        raised = error
    if os.getpid() == process:
        patched = sorted(place.name for place in watched if place.is_patched())
        left = state(frozen) | {"patched": patched}
        if raised is not None and not isinstance(raised, SystemExit):  # which is reported by a hook
            left["hooks"]["of sys"], left["patched"] = [], [name for name in patched if name != "sys.excepthook"]
        Path(folder, "state.json").write_text(json.dumps(left, default=str))
    if soon and (raised is None or isinstance(raised, SystemExit)):
        end_now(program.status(raised) if raised else 0)
    if raised is not None:
        if not recorded:
            program.end_with(raised)
        raise raised


def status_of(child: int) -> int:
    """Wait for a child's end and return its status; one that does not end within `LIMIT_S` is killed."""
    ended = os.pidfd_open(child)
    if not select.select([ended], [], [], LIMIT_S)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(ended)
    return os.waitpid(child, 0)[1]


def serve() -> None:
    """Fork a child for each line, and print its status."""
    watched = list(places())
    gc.collect()
    gc.freeze()  # a child's collections, and its end, look only at what is its own
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
            run(**json.loads(line), watched=watched)
            return
        sys.stdout.write(f"{status_of(child)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
