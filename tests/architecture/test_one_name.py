"""One library under one name, whatever else is called analysis, model or profiling, and however it is imported."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "tests" / "data" / "h200_train_fp32.sqlite"
OURS = ("__editable__", "nvtx_kernels")
STANDARD_LIBRARY = "import importlib\ntracing = importlib.import_module('.tracing', __name__)\n"


def run(python, *words, cwd, **environment):
    return subprocess.run(
        [python, *map(str, words)], cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy of it so that nothing is left here."""
    folder = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if name.startswith(("analysis", "model", "profiling", "nvtx_kernels", "pyproject", "README", "LICENSE")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([*command, folder / "source"], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def environment_with(wheel, folder, without=()):
    """Make an environment that has the wheel and all packages of this one, without some; return its Python."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for entry in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for one in entry.iterdir():
            kept = not one.name.startswith((*OURS, *without)) and one.suffix != ".pth"
            if kept and not (packages / one.name).exists():
                (packages / one.name).symlink_to(one)
    zipfile.ZipFile(wheel).extractall(packages)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return environment_with(wheel, tmp_path_factory.mktemp("installed") / "env")


@pytest.fixture(scope="module")
def without_torch(wheel, tmp_path_factory):
    return environment_with(wheel, tmp_path_factory.mktemp("plain") / "env", without=("torch", "nvtx"))


@pytest.fixture
def crowded(tmp_path):
    """A folder with somebody's own `analysis/`, `model.py` and `profiling.py`, none of which may run."""
    (tmp_path / "analysis").mkdir()
    for name in ("analysis/__init__.py", "model.py", "profiling.py"):
        (tmp_path / name).write_text("raise SystemExit('somebody else')\n")
    return tmp_path


def test_a_wheel_holds_four_packages_and_its_description(wheel):
    tops = {name.split("/")[0].split("-")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"analysis", "model", "nvtx_kernels", "profiling"}


PROGRAM = """
import nvtx_kernels as nk
from nvtx_kernels.analysis.errors import NotAReport
try: nk.read("nothing.sqlite")
except NotAReport: print(nk.rank(nk.read(%r)).kernels.shape[0] > 10)
"""


@pytest.mark.parametrize("words", [["-m", "nvtx_kernels", "rank"], ["-m", "nvtx_kernels.analysis.kernels"]])
@pytest.mark.parametrize("python", ["installed", "without_torch"])
def test_ranking_works_among_files_of_the_same_names(python, words, crowded, request):
    done = run(request.getfixturevalue(python), *words, REPORT, "--by", "category", "--format", "csv", cwd=crowded)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gemm" in done.stdout


@pytest.mark.parametrize("python", ["installed", "without_torch"])
def test_a_program_can_import_us_among_files_of_the_same_names(python, crowded, request):
    (crowded / "program.py").write_text(PROGRAM % str(REPORT))
    done = run(request.getfixturevalue(python), "program.py", cwd=crowded)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.slow
def test_recording_works_among_files_of_the_same_names(installed, crowded):
    words = ("run", "--size", "tiny", "--steps", "1", "--device", "cpu", "--record", "r.sqlite")
    done = run(installed, "-m", "nvtx_kernels", *words, cwd=crowded)
    assert done.returncode == 0, done.stderr
    ranked = run(
        installed, "-m", "nvtx_kernels", "rank", "r.sqlite", "--by", "range", "--format", "csv", cwd=crowded
    )
    assert "backward > layer 0" in ranked.stdout


def test_a_standard_library_of_our_folders_name_is_left_alone(installed, tmp_path):
    """From Python 3.15 on there is one called profiling, which cProfile imports."""
    (tmp_path / "ahead" / "profiling").mkdir(parents=True)
    (tmp_path / "ahead" / "profiling" / "__init__.py").write_text(STANDARD_LIBRARY)
    (tmp_path / "ahead" / "profiling" / "tracing.py").write_text("")
    code = "import profiling, nvtx_kernels as nk; print(profiling.tracing.__name__, nk.annotate.__name__)"
    done = run(installed, "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "ahead"))
    assert done.stdout.split() == ["profiling.tracing", "nvtx_kernels.profiling.annotate"], done.stderr


@pytest.mark.parametrize("command", ["benchmark", "run", "nsys", "attention", "precision"])
def test_without_torch_a_command_says_what_to_install(command, without_torch, tmp_path):
    done = run(without_torch, "-m", f"profiling.{command}", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "pip install 'nvtx-kernels[profiling]'" in done.stderr


def test_without_torch_annotation_says_what_to_install(without_torch, tmp_path):
    done = run(without_torch, "-c", "from profiling import annotate", cwd=tmp_path)
    assert done.stderr.splitlines()[-1].endswith(
        "annotation needs PyTorch and nvtx: pip install 'nvtx-kernels[profiling]'"
    )


ORDERS = ("import analysis.errors as a; import nvtx_kernels.analysis.errors as b",
          "import nvtx_kernels.analysis.errors as b; import analysis.errors as a",
          "from analysis import errors as a; from nvtx_kernels.analysis import errors as b")  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_both_spellings_are_one_module(order):
    done = run(sys.executable, "-c", f"{order}; print(a is b, a.__spec__.name)", cwd=ROOT)
    assert done.stdout == "True nvtx_kernels.analysis.errors\n", done.stderr


def test_there_is_one_stack_of_ranges():
    code = "from profiling.annotate import range_stack as a; import nvtx_kernels as nk; print(a.stack() is nk.annotate.range_stack.stack())"  # noqa: E501
    assert run(sys.executable, "-c", code, cwd=ROOT).stdout == "True\n"


def test_what_another_process_raises_is_caught_under_either_name():
    code = """if True:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        from analysis.errors import NotAReport
        from nvtx_kernels.analysis.readers import read
        if __name__ == "__main__":
            with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
                try: pool.submit(read, "nothing.sqlite").result()
                except NotAReport as error: print(type(error).__module__)
    """
    assert run(sys.executable, "-c", code, cwd=ROOT).stdout == "nvtx_kernels.analysis.errors\n"


@pytest.mark.parametrize(("package", "command"), [("analysis", "kernels"), ("profiling", "run")])
def test_a_package_lists_its_commands(package, command):
    assert f"python -m {package}.{command} " in run(sys.executable, "-m", package, cwd=ROOT).stdout
