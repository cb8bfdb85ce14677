"""Programs that are tried: in forks of one process that has imported PyTorch and used nothing of it."""

import io
import json
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import pytest
from nvtx_kernels.profiling import try_
from nvtx_kernels.profiling.trying import overlay, run
from nvtx_kernels.profiling.trying.overlay import Place
from nvtx_kernels.profiling.trying.results import Job, read_lines

FORKING = get_context("forkserver")
FORKING.set_forkserver_preload(["torch._dynamo", "nvtx_kernels.profiling.trying.order", __name__])
LONGEST_S = 120


def forked(function, *arguments):
    """Call a function of a module in a fork, and return what it returns; of one that ends itself, its status."""
    receiving, sending = FORKING.Pipe(duplex=False)
    process = FORKING.Process(target=_call, args=(sending, function, arguments))
    process.start()
    sending.close()
    answer = None
    wait([receiving, process.sentinel], LONGEST_S)  # what the process started may hold the pipe open for longer
    with suppress(EOFError):
        answer = receiving.recv() if receiving.poll() else None
    process.join(LONGEST_S)
    return process.exitcode if answer is None else answer


def _call(sending, function, arguments):
    set_start_method("fork", force=True)  # as in a process that is not forked from a server
    sending.send(function(*arguments))


class Said(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def arms(self):
        return {arm["lever"]: arm for arm in json.loads(self.out)["arms"]}


def tried(folder, *words):
    """Run `nvtx-kernels try` in a folder, and return what it said."""
    return Said(*forked(_try, str(folder), [str(word) for word in words]))


def _try(folder, words):
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = try_.main(words)
        except SystemExit as ending:
            status = ending.code
    return status, out.getvalue(), err.getvalue()


def ran(folder, text, job=None, **facts):
    """Run a job of a program in a folder that it may write to, and return what it wrote."""
    program = Path(folder, "train.py")
    program.write_text(text)
    results = Path(tempfile.mkdtemp(dir=folder))
    job = replace(job or Job("run", [str(program)]), program=[str(program)], **facts)
    place = Place((str(folder), tempfile.gettempdir()), (), str(results), 1 << 20, is_in_place=True)
    forked(_run, str(folder), job, place, results / "out")
    try:
        return read_lines(results / "out")
    finally:
        shutil.rmtree(results)


def _run(folder, job, place, results):
    os.chdir(folder)
    with Path("log.txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = log
        run.go(job, place, results)


def _enters(folder):
    Path(folder, "scratch").mkdir()
    os.chdir(folder)
    try:
        overlay.enter(Place((folder,), (), folder, 1 << 20))
    except OSError:
        return False
    return True


def can_overlay():
    folder = tempfile.mkdtemp()
    try:
        return forked(_enters, folder)
    finally:
        shutil.rmtree(folder)


#: For tests of what needs an overlay.
overlaid = pytest.mark.skipif(
    "not __import__('tests.profiling.making.tried', fromlist=['x']).can_overlay()",
    reason="no overlay can be had here: user namespaces are off",
)
