"""Folders as overlays: the program sees its files, and nothing that it writes stays."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from nvtx_kernels.profiling.trying import overlay
from nvtx_kernels.profiling.trying.overlay import Place

from tests.profiling.making.tried import can_overlay, forked

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _needs_an_overlay():
    if not can_overlay():
        pytest.skip("no overlay can be had here: user namespaces are off")


def place_in(folder):
    for name in ("project", "elsewhere", "allowed", "results", "results/scratch"):
        (folder / name).mkdir()
    for name in ("project/data", "elsewhere/data", "allowed/data"):
        (folder / name).write_text("before")
    project, allowed, results = (str(folder / name) for name in ("project", "allowed", "results"))
    return Place((project,), (allowed,), results, 8 * MIB)


@pytest.fixture
def place(tmp_path):
    return place_in(tmp_path)


def entered(place, function, *arguments):
    """Enter a place in a fork, in its first folder, and return what a function returns there."""
    return forked(_entered, place, function, arguments)


def _entered(place, function, arguments):
    os.chdir(place.folders[0])
    overlay.enter(place)
    return function(*arguments)


def write(path):
    try:
        Path(path).write_text("after")
    except OSError as error:
        return error.strerror
    return Path(path).read_text()


@pytest.mark.parametrize(
    ("name", "said", "stays"),
    [
        ("project/data", "after", "before"),
        ("project/new", "after", None),
        ("elsewhere/data", "Read-only file system", "before"),
        ("elsewhere/new", "Read-only file system", None),
        ("allowed/data", "after", "after"),
        ("results/new", "after", "after"),
    ],
)
def test_what_is_written_stays_only_where_that_is_allowed(place, tmp_path, name, said, stays):
    path = tmp_path / name
    assert entered(place, write, str(path)) == said
    assert (path.read_text() if path.exists() else None) == stays


def written_by_others(folder):
    """Write by C code and by a command, which no hook hears."""
    libc = ctypes.CDLL(None)
    number = libc.open(os.fsencode(f"{folder}/new"), os.O_CREAT | os.O_WRONLY, 0o600)
    command = f"open({f'{folder}/newer'!r}, 'w')"
    return number, subprocess.run([sys.executable, "-c", command], capture_output=True, check=False).returncode


def test_what_code_in_c_and_commands_write_elsewhere_is_refused(place, tmp_path):
    assert entered(place, written_by_others, str(tmp_path / "elsewhere")) == (-1, 1)
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["data"]


def changed(folder):
    project = Path(folder)
    (project / "data").unlink()
    (project / "below").mkdir()
    (project / "below").rename(project / "moved")
    names = [sorted(path.name for path in folder.iterdir()) for folder in (project, Path())]
    return (*names, (project / "data").exists())


def test_files_can_be_removed_and_folders_renamed(place):
    assert entered(place, changed, place.folders[0]) == (["moved"], ["moved"], False)
    assert [path.name for path in Path(place.folders[0]).iterdir()] == ["data"]


def filled(folder):
    try:
        with Path(folder, "new").open("wb") as file:
            for _ in range(10):
                file.write(bytes(MIB))
    except OSError as error:
        return error.strerror
    return ""


def test_the_overlay_is_bounded(place):
    assert entered(place, filled, place.folders[0]) == "No space left on device"


def shared():
    names = [*Path(overlay.SHARED_MEMORY).iterdir()]
    Path(overlay.SHARED_MEMORY, "nvtx-kernels-test").write_text("1")
    return names


def test_shared_memory_is_empty_and_goes(place):
    assert entered(place, shared) == []
    assert not Path(overlay.SHARED_MEMORY, "nvtx-kernels-test").exists()


def mounts():
    return Path("/proc/self/mountinfo").read_text()


def test_nobody_else_sees_it(place):
    before = mounts()
    assert entered(place, mounts) != before
    assert mounts() == before


def of_a_user(place):
    """Become an ordinary user, and enter."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # a process that changes its user is else not its own
    os.chdir(place.folders[0])
    overlay.enter(place)
    return write(f"{place.folders[0]}/new"), os.getuid(), write(f"{place.folders[0]}/../elsewhere/data")


NOBODY, PR_SET_DUMPABLE = 65534, 4


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_has_it_by_a_user_namespace():
    with tempfile.TemporaryDirectory() as name:
        place = place_in(Path(name))
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o777)
        assert forked(of_a_user, place) == ("after", NOBODY, "Read-only file system")
        assert not Path(place.folders[0], "new").exists()
