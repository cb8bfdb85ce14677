"""A process that does the jobs of `try`, each in a fork of itself, and cleans up after each, whatever happens.

    try ──── a line a job ────► keeper ──── fork ────► run: overlay, guard, program ──► workers, commands, ranks
        ◄─── a line when done ──

The keeper has imported PyTorch and used nothing of it, so that a run begins at once. It takes in what runs leave
behind (PR_SET_CHILD_SUBREAPER) and kills it. When `try` ends, be it by SIGKILL, the pipe ends, and the keeper
kills the run, removes our folder and ends; when the keeper dies, so does the run.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from ..cli import last_lines
from . import overlay, run
from .overlay import Place
from .patch import PACKAGES
from .results import Job, Written, read_lines

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How often a run is looked after, s, and how long what is killed may take to end.
LOOK_S, DYING_S = 0.02, 10.0
LAST_LINES = 12
RANK = "from nvtx_kernels.profiling.trying.run import main; main()"
#: Folders of ours that runs share, so that each need not compile again, by the variable that says where they are;
#: and that of temporary files, where these are no overlay. PyTorch itself sets the first one when it is imported.
TEMPORARY = "TMPDIR"
OUR_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", TEMPORARY: "tmp"}
#: Shared memory of PyTorch, by the number of the process that made it.
SHARED = re.compile(r"torch_(\d+)_")
NO_END, NO_RESULT = "no end after {:.0f} s", "ended with status {}{}"


@dataclass
class Outcome:
    """What came of a job: what it wrote, how long it took, why it failed ("" if it did not), its last lines.

    A job `is_cut` that took longer than it may, or was stopped.
    """

    written: Written
    seconds: float
    error: str = ""
    tail: list[str] = field(default_factory=list)
    is_cut: bool = False


class Keeper:
    """Does jobs in a place, one after another. Use it in a with statement."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = Path(place.results)
        self._jobs = 0
        self.is_stopped = False
        (self.folder / "scratch").mkdir(exist_ok=True)
        _import_compiler()
        from_us, self._to_keeper = os.pipe()
        self._from_keeper, to_us = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._to_keeper)
            os.close(self._from_keeper)
            _ending(lambda: _Keeping(place, from_us, to_us).go())
        os.close(from_us)
        os.close(to_us)
        self._answers = os.fdopen(self._from_keeper)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        """Have all processes ended, and the folder removed."""
        os.close(self._to_keeper)
        self._answers.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def check(self) -> str:
        """Return the reason that the place cannot be had, "" if it can."""
        return str(self._asked({"check": True})["error"])

    def run(self, job: Job, longest_s: float) -> Outcome:
        """Do a job, which is killed after `longest_s`, and return what came of it."""
        if self.is_stopped:
            return Outcome(Written(), 0.0, NO_END.format(0), is_cut=True)
        self._jobs += 1
        path = self.folder / f"{self._jobs}.json"
        log = self.folder / f"{self._jobs}.log"
        run.save_job(job, self.place, path)
        answer = self._asked({"job": str(path), "log": str(log), "seconds": longest_s})
        written = read_lines(path.with_suffix(".out"))
        tail = last_lines(log, LAST_LINES)
        error = ""
        if answer["is_late"]:
            error = NO_END.format(longest_s)
        elif written.ending is not None:
            error = written.ending.error
        elif job.kind != "record":
            error = NO_RESULT.format(answer["status"], f": {tail[-1][: run.MOST_TEXT]}" if tail else "")
        return Outcome(written, float(answer["seconds"]), error, tail, answer["is_late"])

    def stop(self) -> None:
        """End the job that is being done, as one that is late, and do no other; for a handler of signals."""
        if not self.is_stopped:
            self.is_stopped = True
            os.write(self._to_keeper, b"{}\n")

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        os.write(self._to_keeper, json.dumps(request).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            raise OSError("the process that runs the program was killed")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _import_compiler() -> None:
    """Import what the first step of any optimizer imports, which takes a second, once for all runs.

    Should it ask whether there is a GPU, NVML answers: a process in which CUDA has begun cannot be forked.
    """
    before = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    import torch._dynamo  # noqa: F401

    if before is None:
        del os.environ[NVML_CHECK]
    else:
        os.environ[NVML_CHECK] = before


class _Keeping:
    """The keeper's side."""

    def __init__(self, place: Place, requests: int, answers: int) -> None:
        self.place = place
        self.requests = requests
        self.answers = answers

    def go(self) -> None:
        os.setsid()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        for name in ENDING:
            signal.signal(name, signal.SIG_IGN)
        try:
            with os.fdopen(os.dup(self.requests)) as lines:
                while line := lines.readline():
                    self._answer(json.loads(line))
        finally:
            _kill_descendants()
            shutil.rmtree(self.place.results, ignore_errors=True)

    def _answer(self, request: dict[str, Any]) -> None:
        if not request:  # the stop of a job that has ended
            return
        if "check" in request:
            answer: dict[str, object] = {"error": self._why_no_place()}
        else:
            answer = self._done(Path(request["job"]), Path(request["log"]), request["seconds"])
        with suppress(BrokenPipeError):
            os.write(self.answers, json.dumps(answer).encode() + b"\n")

    def _why_no_place(self) -> str:
        """Try to enter the place in a process of its own."""
        path = Path(self.place.results, "why")
        pid = os.fork()
        if pid == 0:
            _ending(lambda: path.write_text(_why_not_entered(self.place)))
        os.waitpid(pid, 0)
        return path.read_text()

    def _done(self, path: Path, log: Path, longest_s: float) -> dict[str, object]:
        began_s = time.monotonic()
        with log.open("wb") as words:
            pid = os.fork()
            if pid == 0:
                os.close(self.requests)
                os.close(self.answers)
                _ending(lambda: _begin(path, self.place, words))
        status, is_late = None, False
        while status is None and not is_late:
            is_left = bool(select.select([self.requests], [], [], LOOK_S)[0])  # our side has ended, or stops it
            ended_pid, wait_status = os.waitpid(pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(wait_status) if ended_pid else None
            is_late = is_left or time.monotonic() - began_s > longest_s
        _kill_descendants()
        if self.place.is_in_place:
            _remove_shared_memory()
        return {"status": status, "seconds": time.monotonic() - began_s, "is_late": status is None}


def _begin(path: Path, place: Place, log: IO[bytes]) -> None:
    """Do a job in this fork of the keeper."""
    os.setsid()
    for ending in ENDING:
        signal.signal(ending, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, log.fileno(), log.fileno())):
        os.dup2(file, number)
    if not place.is_in_place:
        overlay.enter(place)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a new user namespace forgets both
    _prctl(PR_SET_DUMPABLE, 1)
    for variable, name in OUR_FOLDERS.items():
        if variable != TEMPORARY or place.is_in_place:
            folder = Path(place.results, name)
            folder.mkdir(exist_ok=True)
            os.environ[variable] = str(folder)
    tempfile.tempdir = None  # what this process has found out is of its parent
    job = Job(**json.loads(path.read_text())["job"])
    results = path.with_suffix(".out")
    if not job.launcher:
        run.go(job, place, results)
    words = [*job.launcher, "--no-python", sys.executable, "-c", RANK, str(path), str(results), *job.program]
    paths = (str(PACKAGES[0].parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *words])  # noqa: S606


def _why_not_entered(place: Place) -> str:
    try:
        overlay.enter(place)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _ending(work: Callable[[], object]) -> NoReturn:
    """Do the work of a fork, and end it without what its parent would do at its end."""
    try:
        work()
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
    finally:
        os._exit(3)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_descendants() -> None:
    """Kill all processes that come from this one, and those that appear meanwhile."""
    until_s = time.monotonic() + DYING_S
    while time.monotonic() < until_s:
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(LOOK_S / 4)


def _descendants(pid: int) -> list[int]:
    """Return the processes below one, as far as the system shows them."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = [pid]
    for parent in below:
        below += [child for child, of_child in parents.items() if of_child == parent]
    return below[1:]


def _remove_shared_memory() -> None:
    """Remove PyTorch's shared memory of this user whose process has ended."""
    for path in Path(overlay.SHARED_MEMORY).glob("torch_*"):
        match = SHARED.match(path.name)
        with suppress(OSError):
            if match and path.stat().st_uid == os.getuid() and not Path("/proc", match[1]).exists():
                path.unlink()
