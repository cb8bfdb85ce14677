"""The process that does jobs: how they end, and that nothing of them is left, whatever is killed."""

import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from random import Random

import pytest
from nvtx_kernels.profiling.trying.keeper import Keeper
from nvtx_kernels.profiling.trying.overlay import SHARED_MEMORY, Place
from nvtx_kernels.profiling.trying.results import Job

from tests.profiling.making.tried import FORKING, can_overlay, forked

TRAINS = """
import os, sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def steps(count):
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
WAYS = {
    "ends": ("steps(9)", ""),
    "is stopped": ("steps(1000)", ""),
    "raises": ("steps(9)\nraise ValueError('no data')", "ValueError: no data"),
    "exits": ("steps(9)\nsys.exit(4)", "exit status 4"),
    "says why it exits": ("sys.exit('no data')", "exit status 1"),
    "crashes": ("steps(9)\nos.kill(os.getpid(), 11)", "ended with status -11"),
    "leaves by itself": ("print('no data')\nos._exit(5)", "ended with status 5: no data"),
    "hangs": ("steps(9)\ntime.sleep(1000)", "no end after 4 s"),
    "starts its ranks": (
        "torch.multiprocessing.spawn(print, nprocs=1)",
        "it starts its training processes itself (torch.multiprocessing.spawn)",
    ),
    "starts torchrun": (
        "import subprocess\nsubprocess.run(['torchrun', 'train.py'])",
        "it starts its training processes itself (torchrun)",
    ),
    "starts a process a rank": (
        "import subprocess\nsubprocess.Popen([sys.executable, *sys.argv], env={**os.environ, 'LOCAL_RANK': '1'})",
        "it starts its training processes itself (a process a rank)",
    ),
    "writes elsewhere": (
        "open('/var/nvtx-kernels-test', 'w')",
        "PermissionError: [Errno 13] try refuses to write",
    ),
}


def place_of(folder, results, *, is_in_place=False):
    return Place((folder, tempfile.gettempdir()), (), results, 1 << 24, is_in_place=is_in_place)


def done(folder, text, is_in_place, longest_s=60.0):
    """Do one job, and return its error, its steps and its last lines; and whether our folder is gone."""
    os.chdir(folder)
    Path("train.py").write_text(TRAINS + text)
    results = tempfile.mkdtemp(prefix="nvtx-kernels-test-")
    with Keeper(place_of(folder, results, is_in_place=is_in_place)) as keeper:
        outcome = keeper.run(Job("run", ["train.py"], steps=10, warm_up=3), longest_s)
    ending = outcome.written.ending
    return outcome.error, ending.steps if ending else None, outcome.tail, Path(results).exists()


@pytest.mark.parametrize("way", WAYS)
def test_how_a_run_ends_is_told(way, tmp_path):
    text, said = WAYS[way]
    error, _, tail, is_left = forked(done, str(tmp_path), text, not can_overlay(), 4.0 if way == "hangs" else 60.0)
    assert error.startswith(said) if said else error == "", (error, tail)
    assert not is_left


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_runs_share_what_they_compile(variable, tmp_path):
    text = f"raise ValueError(os.environ[{variable!r}])"
    error, *_ = forked(done, str(tmp_path), text, True)
    assert error.startswith(f"ValueError: {tempfile.gettempdir()}/nvtx-kernels-test-")


CLEANS_UP = """
import atexit
atexit.register(lambda: open('by atexit', 'w'))
try:
    steps(1000)
except BaseException:
    open('by except', 'w')
finally:
    open('by finally', 'w')
"""


def test_nothing_of_the_program_runs_after_its_last_step(tmp_path):
    error, steps, *_ = forked(done, str(tmp_path), CLEANS_UP, True)
    assert (error, steps) == ("", 13)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


LEAVES = """
import subprocess
from torch.utils.data import DataLoader
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp({sleep!r}, [{sleep!r}, "-c", "import time; time.sleep(1000) #{mark}"])
    os._exit(0)
subprocess.Popen([{sleep!r}, "-c", "import time; time.sleep(1000) #{mark}"], start_new_session=True)
open({shared!r}.format(os.getpid()), "w")
for x in DataLoader(torch.ones(4000, 4), num_workers=2):
    model(x).sum().backward()
    optimizer.step()
"""


def processes(mark):
    """The processes whose command has a mark."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [command for command in commands if mark in command]


@pytest.mark.parametrize("is_in_place", [True, False])
def test_no_process_and_no_shared_memory_of_a_run_is_left(is_in_place, tmp_path):
    if not is_in_place and not can_overlay():
        pytest.skip("no overlay can be had here: user namespaces are off")
    mark, shared = f"nvtx-kernels-{uuid.uuid4()}", f"{SHARED_MEMORY}/torch_{{}}_{uuid.uuid4()}"
    text = LEAVES.format(sleep=sys.executable, mark=mark, shared=shared)
    error, steps, *_ = forked(done, str(tmp_path), text, is_in_place)
    assert (error, steps, processes(mark)) == ("", 13, [])
    assert not [path for path in Path(SHARED_MEMORY).iterdir() if path.name.endswith(shared.rpartition("_")[2])]


def stopped(folder, seconds):
    """Do two jobs, the first stopped after a while; return for each whether it was cut off, and ended soon."""
    os.chdir(folder)
    Path("train.py").write_text(f"{TRAINS}steps(3)\ntime.sleep(1000)")
    results = tempfile.mkdtemp(prefix="nvtx-kernels-test-")
    with Keeper(place_of(folder, results, is_in_place=True)) as keeper:
        signal.signal(signal.SIGALRM, lambda *_: keeper.stop())
        signal.alarm(seconds)
        job = Job("run", ["train.py"], steps=10, warm_up=3)
        outcomes = [keeper.run(job, 60.0) for _ in range(2)]
    return [(outcome.is_cut, outcome.seconds < 30) for outcome in outcomes]


def test_a_job_that_is_stopped_ends_at_once_and_no_other_begins(tmp_path):
    assert forked(stopped, str(tmp_path), 2) == [(True, True)] * 2


WRITES = """
open("model.pt", "w").write("after")
os.remove("log.txt")
import subprocess
subprocess.Popen([{sleep!r}, "-c", "import time; time.sleep(1000) #{mark}"], start_new_session=True)
for step in range(100_000):
    open(f"step {{step}}", "w")
    steps(1)
    time.sleep(0.002)
"""


def doing(folder, results):
    """Do jobs until this process is killed."""
    os.chdir(folder)
    with Keeper(place_of(folder, results)) as keeper:
        while True:
            keeper.run(Job("run", ["train.py"], steps=100, warm_up=3), 60.0)


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def killed_at(seconds, number, folder):
    """Kill what does jobs after a time, by a signal, and wait until all is gone or ten seconds have passed."""
    mark, results = f"nvtx-kernels-{uuid.uuid4()}", tempfile.mkdtemp(prefix="nvtx-kernels-test-")
    for name in ("model.pt", "log.txt"):
        (folder / name).write_text("before")
    (folder / "train.py").write_text(TRAINS + WRITES.format(sleep=sys.executable, mark=mark))
    before, shared = content(folder), set(Path(SHARED_MEMORY).iterdir())
    process = FORKING.Process(target=doing, args=(str(folder), results))
    process.start()
    time.sleep(seconds)
    os.kill(process.pid, number)
    process.join()
    until = time.monotonic() + 20
    while time.monotonic() < until and (processes(mark) or Path(results).exists()):
        time.sleep(0.05)
    assert (processes(mark), Path(results).exists(), content(folder) == before) == ([], False, True)
    assert {
        path for path in set(Path(SHARED_MEMORY).iterdir()) - shared if path.name.startswith("torch_")
    } == set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_leaves_folder_and_processes_as_before(number, tmp_path):
    if not can_overlay():
        pytest.skip("no overlay can be had here: user namespaces are off")
    killed_at(2.0, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_so_does_one_at_any_moment(seed, tmp_path):
    if not can_overlay():
        pytest.skip("no overlay can be had here: user namespaces are off")
    random = Random(seed)
    killed_at(random.uniform(0, 4), random.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]), tmp_path)
