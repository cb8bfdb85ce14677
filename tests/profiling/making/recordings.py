"""Programs to record, and questions to ask of recordings."""

import json
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder.trace_file import NOTHING, Content, TraceFile, provenance

REPOSITORY = Path(__file__).parents[3]
KERNELS = "SELECT kernel, duration_ns FROM kernels ORDER BY row"
IN_DOMAINS = """SELECT names.value, start_ns, end_ns FROM ranges JOIN names ON names.row = name_id
                JOIN domains ON domains.row = domain WHERE domains.name {} ''
                ORDER BY start_ns, end_ns DESC, ranges.row"""
# Those of annotation and of other domains; and blocks of record_function, operators, and others without a domain.
RANGES, BLOCKS = IN_DOMAINS.format("!="), IN_DOMAINS.format("=")
LAUNCHED_IN = "SELECT kernel FROM kernels_by_range WHERE name = ?"
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


def block_names(path: Path) -> list[str]:
    return [name for name, *_ in rows(path, BLOCKS)]


def said_of(path: Path) -> dict[str, object]:
    """What the head of a recording says of it."""
    ((text,),) = rows(path, "SELECT value FROM trace WHERE what = 'recording'")
    return json.loads(text)


def marks(path: Path, begin: str = "") -> list[str]:
    """The texts of marks that begin so, in the order of their file."""
    return [text for (text,) in rows(path, "SELECT text FROM marks ORDER BY row") if text.startswith(begin)]


def marks_of_times(path: Path) -> dict[str, dict]:
    """What the marks `recorded` and `unrecorded` hold."""
    return told_of_times(marks(path))


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
    trace.commit(head(content))
    trace.publish()
    return path.read_bytes()


def head(content: Content = NOTHING, *, on_gpu: bool = False) -> dict[str, object]:
    """The head of a recording."""
    return {"provenance": asdict(provenance(on_gpu=on_gpu)), "recording": content.head()}


@contextmanager
def writing(path, *, on_gpu=False):
    """A report that is published when the block ends, and discarded when it raises."""
    trace = TraceFile(path)
    trace.commit(head(on_gpu=on_gpu))
    try:
        yield trace
        trace.publish()
    finally:
        trace.discard()
