"""Programs in processes of their own, forked from one that has imported what they would import.

    forking = Forking("torch", "nvtx_kernels.profiling.record")
    done = forking.run("-c", "import torch; print(torch.ones(3))")
    with forking.start("train.py", cwd=folder) as program:
        program.stdout.readline()

To import PyTorch takes seconds of processor time, a fork takes milliseconds. The process that forks is started by
the first program and goes with the tests. What must not be imported before needs a Python of its own.
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
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NoReturn

REPOSITORY = Path(__file__).parents[3]
#: A program that goes on for so long hangs.
LIMIT_S = 120
#: Bytes of a request: a program's words, its text with `-c`, and its environment.
LARGEST = 1 << 18


@dataclass(frozen=True)
class Done:
    """How a program ended: its status, negative for a signal, what it printed, and what it took."""

    returncode: int
    stdout: str
    stderr: str
    cpu_s: float
    peak_bytes: int


class Program:
    """A program that runs; `stdout` and `stderr` are there where `start` has started it."""

    stdout: BinaryIO
    stderr: BinaryIO
    returncode: int | None = None
    cpu_s: float
    peak_bytes: int

    def __init__(self, forking: socket.socket, request: Mapping[str, object], files: Sequence[int]) -> None:
        self._words = request["words"]
        heard, its_end = os.pipe()
        socket.send_fds(forking, [json.dumps(request).encode()], [*files, its_end])
        os.close(its_end)
        self._heard = os.fdopen(heard)
        self.pid = int(self._heard.readline())

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Return the program's status, negative for a signal; kill it after so many seconds, and raise."""
        if not select.select([self._heard], [], [], timeout)[0]:
            self.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(str(self._words), timeout)
        with self._heard:
            status, self.cpu_s, self.peak_bytes = json.loads(self._heard.readline())
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the program a signal."""
        os.kill(self.pid, number)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        if self.returncode is None:
            self.wait()


class Forking:
    """A process that has imported some modules and forks programs."""

    def __init__(self, *modules: str, within: int = resource.RLIM_INFINITY) -> None:
        """Import modules within so many bytes of address space: of more, allocators set some aside."""
        self._words = [str(within), *modules]

    def run(self, *words: object, timeout: float = LIMIT_S, check: bool = False, **how: object) -> Done:
        """Run Python on these words and return how it ended; with `check`, it must end well.

        How: `cwd`, `env`, and `limits`, by the names of `resource` as RLIMIT_AS.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            program = self._started(words, (out.fileno(), err.fileno()), **how)
            status = program.wait(timeout)
            out.seek(0)
            err.seek(0)
            done = Done(status, out.read().decode(), err.read().decode(), program.cpu_s, program.peak_bytes)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def start(self, *words: object, **how: object) -> Program:
        """Start Python on these words, with pipes for what it prints; the end of its block waits for it."""
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        program = self._started(words, (its_out, its_err), **how)
        os.close(its_out)
        os.close(its_err)
        program.stdout, program.stderr = os.fdopen(out, "rb"), os.fdopen(err, "rb")
        return program

    def _started(
        self, words: Sequence[object], files: Sequence[int], *, cwd: Path = REPOSITORY,
        env: Mapping[str, str] | None = None, limits: Mapping[str, int] | None = None,
    ) -> Program:  # fmt: skip
        request = {
            "words": [*map(str, words)],
            "folder": str(cwd),
            "environment": dict(os.environ if env is None else env),
            "limits": limits or {},
        }
        return Program(self._process, request, files)

    @cached_property
    def _process(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        words = [sys.executable, "-m", __name__, str(theirs.fileno()), *self._words]
        process = subprocess.Popen(words, cwd=REPOSITORY, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(_end, ours, process)
        return ours


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait()


def _serve(connection: socket.socket) -> None:
    """Fork a process for each request until the last; return in those that become its program."""
    while True:
        request, files, *_ = socket.recv_fds(connection, LARGEST, 3)
        if not request:
            sys.exit()
        if not os.fork():
            break
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    *output, heard = files
    if child := os.fork():
        for file in output:
            os.close(file)
        _tell_end(child, heard)
    connection.close()
    os.close(heard)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *output)):
        os.dup2(file, number)
        os.close(file)
    _become(**json.loads(request))


def _tell_end(child: int, heard: int) -> None:
    """Write a program's number, and how it ends, to whom started it."""
    os.write(heard, f"{child}\n".encode())
    _, status, used = os.wait4(child, 0)
    with suppress(BrokenPipeError):  # nobody waits any more
        os.write(heard, json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss << 10]).encode())
    os._exit(0)


def _become(words: list[str], folder: str, environment: Mapping[str, str], limits: Mapping[str, int]) -> None:
    """Run a program as `python WORDS` does in a folder: a script, `-m MODULE` or `-c TEXT`."""
    from nvtx_kernels.profiling import program

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    if words[0] == "-W":
        warnings.simplefilter(words[1])
        words = words[2:]
    try:
        if words[0] == "-c":
            _run_text(words[1], words[2:])
        else:
            is_module = words[0] == "-m"
            program.run(words[is_module:], is_module=is_module)
    except SystemExit as ending:
        end_now(program.status(ending))
    except BaseException as error:
        program.end_with(error)
    end_now(0)


def end_now(status: int) -> NoReturn:
    """End as Python does, but leave all objects to the system: to free those of PyTorch takes half a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run_text(text: str, words: list[str]) -> None:
    main = ModuleType("__main__")
    sys.modules["__main__"], sys.argv, sys.path[0] = main, ["-c", *words], ""
    exec(compile(text, "<string>", "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    number, within, *names = sys.argv[1:]
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (int(within), most))
    for name in names:
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    gc.collect()
    gc.freeze()  # no program's collections look through it
    _serve(socket.socket(fileno=int(number)))
