"""The part of annotation in C++: it is built, and its ranges are those of the part in Python."""

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import nodes
from nvtx_kernels.profiling.doctor import accelerate

from tests.profiling.making.hearing import Heard
from tests.profiling.making.strangers import PROGRAMS
from tests.profiling.making.strangers.harness import outcome

HERE = Path(__file__).parent
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
# Where the program counts on what ran before it, and where only the library knows that a node whose gradient is
# asked for does not run itself.
UNSTEADY = {"optimizer_in_backward", "gradients_of_some"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder with the library in it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVTX_KERNELS_CACHE", str(folder))
        patch.setenv(nodes.SWITCH, "1")
        accelerate.build()
        yield folder


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache folder of this user's alone, without the library."""
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setenv(nodes.SWITCH, "1")
    tmp_path.chmod(0o700)
    return tmp_path


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


def paths_of(program):
    heard = Paths()
    outcome(program, annotated=True, heard=heard)
    paths = sorted([path for path in of_thread if path[0]] for of_thread in heard.by_thread.values())
    return paths, heard.left_open()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@needs_compiler
@pytest.mark.usefixtures("cache")
def test_strangers_programs_have_the_same_ranges():
    library = nodes.load()
    for program in PROGRAMS:
        is_complete = all(map(importlib.util.find_spec, program.needs))
        if program.slow or program.name in UNSTEADY or not is_complete:
            continue
        for _ in range(1 + program.rehearsals):
            in_python = paths_of(program)
        before = nodes.use(library)
        try:
            assert paths_of(program) == in_python, program.name
        finally:
            nodes.use(before)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "file",
    [
        f"test_annotate_{one}.py"
        for one in ("backward", "modules", "memory", "programs", "training", "nvtx", "threads")
    ],
)
def test_the_other_tests_pass_with_it(cache, file):
    check = "from nvtx_kernels.profiling.annotate import nodes; assert nodes._library is not None"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=HERE.parents[2])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[2])
    assert process.returncode == 0, process.stdout


@pytest.mark.slow
@needs_compiler
def test_the_command_builds_checks_and_measures(tmp_path):
    environment = {**os.environ, "NVTX_KERNELS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "nvtx_kernels", "accelerate"]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=HERE.parents[2]
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert "us per module in forward" in process.stdout
    assert len(list((tmp_path / "cache").iterdir())) == 1


NO_COMPILER = {
    "no-such-compiler": "there is no C++ compiler no-such-compiler: install g++, or name one in CXX",
    " ": "CXX is empty: name a C++ compiler in it, or unset it",
    "g++ 'x": "CXX is not a command (No closing quotation): name a C++ compiler in it",
}


@pytest.mark.parametrize("compiler", NO_COMPILER)
def test_without_a_compiler_the_command_says_so_in_a_sentence(compiler, empty_cache, monkeypatch, capsys):
    monkeypatch.setenv("CXX", compiler)
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert capsys.readouterr().err == f"accelerate: {NO_COMPILER[compiler]}\n"


def test_folder_in_the_librarys_place_is_named_and_leftovers_of_a_killed_build_go(
    empty_cache, monkeypatch, capsys
):
    monkeypatch.setattr(accelerate, "_compile", lambda made: made.write_bytes(b"no library"))
    nodes.place().mkdir()
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert f"a folder is where the library belongs: remove {nodes.place()}" in capsys.readouterr().err
    nodes.place().rmdir()
    old, running = (empty_cache / f"nvtx_kernels_nodes-build-{name}" for name in ("old", "running"))
    for folder in (old, running):
        folder.mkdir()
    os.utime(old, (0, 0))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        accelerate.build()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert sorted(empty_cache.iterdir()) == sorted([running, nodes.place()])


def test_what_cannot_be_loaded_is_not_kept_and_the_command_says_so(empty_cache, monkeypatch, capsys):
    monkeypatch.setattr(accelerate, "_compile", lambda made: made.write_bytes(b"no library"))
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert capsys.readouterr().err.startswith("accelerate: what was built cannot be loaded: ")
    assert list(empty_cache.iterdir()) == []


@pytest.mark.slow
@needs_compiler
def test_what_has_other_ranges_is_not_kept_and_the_command_says_so(cache, monkeypatch, capsys):
    content = nodes.place().read_bytes()
    monkeypatch.setattr(accelerate, "_annotated", lambda model, library, steps: (library, []))
    assert accelerate.main([], prog="nvtx-kernels accelerate") == 1
    assert "its ranges are not those of the part in Python" in capsys.readouterr().err
    assert list(cache.iterdir()) == []
    nodes.place().write_bytes(content)


def test_nothing_is_loaded_where_nothing_was_built_or_it_is_switched_off(empty_cache, monkeypatch, caplog):
    assert nodes.load() is None
    nodes.place().write_bytes(b"no library")
    monkeypatch.setenv(nodes.SWITCH, "0")
    assert nodes.load() is None
    assert caplog.records == []


@pytest.mark.parametrize(
    ("kept", "reason"), [(42, "cannot be loaded"), (41, "damaged"), (9, "damaged"), (0, "damaged")]
)
def test_what_is_no_library_or_damaged_is_logged_and_not_used(kept, reason, empty_cache, caplog):
    file = nodes.place()
    file.write_bytes(b"no library")
    nodes.seal(file)
    file.write_bytes(file.read_bytes()[:kept])
    assert nodes.load() is None
    assert reason in caplog.records[0].getMessage()


def test_what_other_users_can_write_is_not_loaded(empty_cache, monkeypatch):
    nodes.place().write_bytes(b"no library")
    empty_cache.chmod(0o777)
    monkeypatch.setattr(nodes, "loaded", lambda file: pytest.fail("loaded"))
    assert nodes.load() is None
