"""Programs to record, and questions to ask of recordings."""

import json
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder.trace_file import NOTHING, Content, TraceFile, export_metadata

REPOSITORY = Path(__file__).parents[3]
KERNELS = "SELECT value, end - start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
RANGES = """SELECT value, start, end FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE eventType = 59
            ORDER BY start, end DESC"""
# A kernel belongs to the ranges of its launch's thread that hold the whole launch.
LAUNCHED_IN = """SELECT k.value FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId
                 JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                   ON r.globalTid = n.globalTid AND r.start >= n.start AND r.end <= n.end
                 JOIN (SELECT correlationId, value FROM CUPTI_ACTIVITY_KIND_KERNEL
                       JOIN StringIds ON id = demangledName) k USING (correlationId)
                 WHERE s.value = ?"""
TIMES = """SELECT COALESCE(text, value) AS message FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id
WHERE message LIKE 'nvtx-kernels %recorded: %'"""
MODEL = torch.nn.Linear(8, 8)


def python(*words: object, **how: object) -> subprocess.CompletedProcess:
    """Run Python on these words in a process of its own, and return how it ended and what it printed."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, **how)


def run_here(folder: Path, program: str) -> Path:
    """Run a program's text as `train.py` in this process and a folder; return the report that it records there."""
    (folder / "train.py").write_text(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["train.py", "r.sqlite"])
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    return folder / "r.sqlite"


def rows(path: Path, query: str, *values: object) -> list[tuple]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        return connection.execute(query, values).fetchall()


def kernels(path: Path) -> list[tuple[str, int]]:
    """Name and time, ns, of every kernel."""
    return rows(path, KERNELS)


def range_names(path: Path) -> list[str]:
    return [name for name, *_ in rows(path, RANGES)]


def launched_in(path: Path, name: str) -> list[str]:
    """Names of the kernels launched in the ranges of a name."""
    return [kernel for (kernel,) in rows(path, LAUNCHED_IN, name)]


def metadata(path: Path) -> dict[str, str]:
    return dict(rows(path, "SELECT name, value FROM META_DATA_EXPORT"))


def marks_of_times(path: Path) -> dict[str, dict]:
    """What the marks `recorded` and `unrecorded` hold."""
    return told_of_times(text for (text,) in rows(path, TIMES))


def told_of_times(marks: Iterable[str]) -> dict[str, dict]:
    """The same of the texts of marks, among others."""
    parts = (text.partition(": ") for text in marks if "recorded: " in text)
    return {name.split()[1]: json.loads(told) for name, _, told in parts}


def train(steps: int = 2) -> None:
    """Run steps of a small model in the ranges of a real one."""
    with annotate.range("measure"):
        for step in range(steps):
            with annotate.range("step", payload=step):
                with annotate.range("forward"):
                    loss = MODEL(torch.ones(4, 8)).softmax(-1).square().mean()
                with annotate.range("backward"):
                    loss.backward()


def train_on(x: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    """Run steps of a program that opens no range."""
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded_before(path: Path, content: Content = NOTHING) -> bytes:
    """Put a recording at a path, as one before has left it, and return what is in the file."""
    trace = TraceFile(path)
    trace.commit(
        [
            {"name": name, "value": str(value)}
            for name, value in (export_metadata(on_gpu=False) | content.metadata()).items()
        ]
    )
    trace.publish()
    return path.read_bytes()


@contextmanager
def writing(path):
    """A report that is published when the block ends, and discarded when it raises."""
    trace = TraceFile(path)
    try:
        yield trace
        trace.publish()
    finally:
        trace.discard()
