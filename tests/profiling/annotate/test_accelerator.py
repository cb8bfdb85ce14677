"""The part of annotation in C++: it is built, and its ranges are those of the part in Python."""

import gc
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import accelerator, trail
from nvtx_kernels.profiling.doctor import accelerate

from benchmarks.annotation import Silent
from tests.profiling.making.hearing import Heard
from tests.profiling.making.strangers import PROGRAMS
from tests.profiling.making.strangers.table import Model, x_of

HERE = Path(__file__).parent
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
# Where the order of ranges is one of threads, or the program counts on what ran before it.
UNSTEADY = {"optimizer_in_backward"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder with the library in it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVTX_KERNELS_CACHE", str(folder))
        patch.setenv(accelerator.SWITCH, "1")
        accelerate.build()
        yield folder


@pytest.fixture
def library(cache):
    return accelerator.load()


@contextmanager
def kept_by(library):
    before = trail.accelerate(library)
    try:
        yield
    finally:
        trail.accelerate(before)


class Paths(Heard):
    """What is heard, by thread, with categories, and without steps, which depend on what ran before."""

    def __init__(self):
        super().__init__()
        self.by_thread = {}

    def push(self, name, payload):
        super().push(name, payload)
        path = "/".join(one for one in self.open[threading.get_ident()] if one != "step")
        # The thread itself: the number of one that ended is given to another.
        self.by_thread.setdefault(threading.current_thread(), []).append((path, annotate.category()))

    def all(self):
        return sorted([one for one in paths if one[0]] for paths in self.by_thread.values())


def paths_of(program):
    torch.manual_seed(0)
    heard, annotations = Paths(), []

    def mark(model):
        annotations.append(annotate.annotate_modules(model))
        return model

    with annotate.listen(heard):
        try:
            program.run(mark)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            heard.marks.append(type(error))
        for one in annotations:
            one.remove()
    return heard.all(), heard.left_open()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@needs_compiler
def test_strangers_programs_have_the_same_ranges(library):
    for program in PROGRAMS:
        if program.slow or program.name in UNSTEADY or any(map(is_missing, program.needs)):
            continue
        for _ in range(1 + program.rehearsals):
            in_python = paths_of(program)
        with kept_by(library):
            assert paths_of(program) == in_python, program.name


def is_missing(package):
    return importlib.util.find_spec(package) is None


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "file",
    [f"test_annotate_{one}.py" for one in ("backward", "modules", "memory", "programs", "training", "nvtx")],
)
def test_the_other_tests_pass_with_it(cache, file):
    check = "from nvtx_kernels.profiling.annotate import trail; assert trail._library is not None"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=HERE.parents[2])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@needs_compiler
def test_it_keeps_no_more_after_ten_thousand_steps_than_after_a_hundred(library):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    x = torch.ones(1, 2)
    sizes = []
    with kept_by(library), annotate.annotate_modules(model), annotate.listen(Silent()):
        for step in range(10_001):
            model(x).sum().backward()
            if step in (100, 10_000):
                sizes.append(alive())
    assert sizes[1] <= sizes[0] + 5


def alive():
    gc.collect()
    return sum(type(one).__name__ in ("Places", "Trail", "Root", "Frame", "Part") for one in gc.get_objects())


@pytest.mark.slow
@needs_compiler
def test_a_graph_that_is_kept_keeps_its_ranges(library):
    model = Model()
    with kept_by(library), annotate.annotate_modules(model):
        with annotate.listen(first := Heard()):
            loss = model(x_of()).sum()
            forward = len(first.paths)
            loss.backward(retain_graph=True)
        for _ in range(300):
            model(x_of())
        with annotate.listen(again := Heard()):
            loss.backward()
    assert again.paths == first.paths[forward:] != []


@pytest.mark.slow
@needs_compiler
def test_the_command_builds_checks_and_measures(tmp_path):
    environment = {**os.environ, "NVTX_KERNELS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "nvtx_kernels", "accelerate"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=HERE.parents[2]
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "us per module in forward" in done.stdout
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_without_a_compiler_the_command_says_so_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert capsys.readouterr().err == (
        "accelerate: there is no C++ compiler no-such-compiler: install g++, or name one in CXX\n"
    )


def test_what_cannot_be_loaded_is_not_kept_and_the_command_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(accelerate, "_compile", lambda made: made.write_bytes(b"no library"))
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert capsys.readouterr().err.startswith("accelerate: what was built cannot be loaded: ")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
@needs_compiler
def test_what_has_other_ranges_is_not_kept_and_the_command_says_so(cache, monkeypatch, capsys):
    kept = accelerator.place().read_bytes()
    monkeypatch.setattr(accelerate, "_ranges", lambda model, library: library)
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert "its ranges are not those of the part in Python" in capsys.readouterr().err
    assert list(cache.iterdir()) == []
    accelerator.place().write_bytes(kept)


def test_nothing_is_loaded_where_nothing_was_built_or_it_is_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setenv(accelerator.SWITCH, "1")
    assert accelerator.load() is None
    tmp_path.chmod(0o700)
    accelerator.place().write_bytes(b"no library")
    monkeypatch.setenv(accelerator.SWITCH, "0")
    assert accelerator.load() is None


def test_a_library_that_cannot_be_loaded_is_logged_and_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setenv(accelerator.SWITCH, "1")
    tmp_path.chmod(0o700)
    accelerator.place().write_bytes(b"no library")
    assert accelerator.load() is None
    assert "cannot be loaded" in caplog.text


def test_what_other_users_can_write_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setenv(accelerator.SWITCH, "1")
    accelerator.place().write_bytes(b"no library")
    tmp_path.chmod(0o777)
    monkeypatch.setattr(accelerator, "loaded", lambda file: pytest.fail("loaded"))
    assert accelerator.load() is None
