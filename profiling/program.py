"""Run a program in this process as `python train.py` and `python -m package.train` do.

The process becomes the program: its module `__main__`, its arguments and its paths stay, for functions of atexit
and threads that go on. What it raises goes on to Python, which reports it by the program's `sys.excepthook`, and
ends the process: Ctrl-C by SIGINT, for one.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from importlib.abc import FileLoader
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import NoReturn

import nvtx_kernels

_PACKAGE = f"{Path(nvtx_kernels.__file__).parent}{os.sep}"
_PROFILING = f"{Path(__file__).parent}{os.sep}"


def run(words: list[str], *, is_module: bool) -> None:
    """Run a script, a folder with a `__main__.py`, or a module, with its arguments; raise what it raises."""
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if "__annotations__" in vars(sys.modules["__main__"]):  # until Python 3.14
        main.__annotations__ = {}
    sys.modules["__main__"], sys.argv = main, list(words)
    if is_module:
        sys.argv[0] = "-m"
        _put_first(str(Path.cwd()))
        runpy._run_module_as_main(words[0])  # type: ignore[attr-defined] # as the interpreter does
    elif pkgutil.get_importer(words[0]) is not None:  # a folder, or a zip file
        _put_first(str(Path(words[0]).absolute()))
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _run_script(main, os.path.join(Path.cwd(), words[0]))  # noqa: PTH118 - Python leaves `./` in it


def _run_script(main: ModuleType, path: str) -> None:
    _put_first(str(Path(path).resolve().parent))
    loader: type[FileLoader] = SourcelessFileLoader
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)  # of a .pyc
        if code is None:
            loader = SourceFileLoader
            file.seek(0)
            code = compile(file.read(), path, "exec", dont_inherit=True)
    main.__file__, main.__loader__ = path, loader("__main__", path)
    vars(main)["__cached__"] = None
    try:
        exec(code, vars(main))  # noqa: S102
    finally:  # as Python does: what runs later does not find them
        for name in ("__file__", "__cached__"):
            vars(main).pop(name, None)


def _put_first(folder: str) -> None:
    """Put a program's folder in the place of that of the command that runs it."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def status_of(words: list[str], *, is_module: bool = False) -> int:
    """Run a program and return its exit status; raise what it raises but SystemExit."""
    try:
        run(words, is_module=is_module)
    except SystemExit as ending:
        return status(ending)
    return 0


def status(ending: SystemExit) -> int:
    """Return the exit status of a program that ended so, and print its message, as Python does."""
    if ending.code is None or isinstance(ending.code, int):
        return ending.code or 0
    sys.stderr.write(f"{ending.code}\n")
    return 1


def report(error: BaseException) -> int:
    """Report what a program raised as Python would without us, and return the exit status."""
    show_without_ours(error)
    sys.excepthook(type(error), error, error.__traceback__)
    return 1


def end_with(error: BaseException) -> NoReturn:
    """End this process with what a program raised, as Python would without us."""
    hook = sys.excepthook

    def report_once(_: type[BaseException], raised: BaseException, __: TracebackType | None) -> None:
        sys.excepthook = hook
        report(raised)

    sys.excepthook = report_once
    raise error


def show_without_ours(error: BaseException) -> None:
    """Leave only frames of the program and its libraries in the tracebacks of an error and of what led to it."""
    chain: list[BaseException | None] = [error]
    for link in chain:
        if link is not None:
            link.__traceback__ = _without_ours(link.__traceback__)
            led_to_it = (link.__cause__, link.__context__)
            seen = {id(other) for other in chain}
            chain += [other for other in led_to_it if id(other) not in seen]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        if trace.tb_frame.f_code in (run.__code__, _run_script.__code__):
            frames.clear()  # what called the program
        elif not _is_ours(trace.tb_frame):
            frames.append(trace)
        trace = trace.tb_next
    inner: TracebackType | None = None
    for place in reversed(frames):
        inner = TracebackType(inner, place.tb_frame, place.tb_lasti, place.tb_lineno)
    return inner


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_PACKAGE, _PROFILING))
