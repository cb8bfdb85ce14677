"""What is installed: one package, complete in wheel and sdist, whatever else is called analysis or model."""

import cProfile
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from nvtx_kernels.profiling.study.nsight import profile_command
from nvtx_kernels.profiling.tool import how_to_get_nvtx

from nvtx_kernels.commands import COMMANDS
from tests.packaged import REPORT, TRAINING, USES, copy_of_checkout, prepare, trouble_of

ROOT = Path(__file__).parents[2]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
OURS = ("__editable__", "nvtx_kernels")
PACKAGED = (
    "analysis/", "model/", "profiling/", "nvtx_kernels/", "pyproject.toml", "setup.py", "README", "LICENSE",
)  # fmt: skip
DATA = ("analysis/scrub/words.txt", "analysis/page/assets/page.css")
BUILD = "from setuptools import build_meta as b; import sys; b.build_{}(sys.argv[1])"
INSTALL = "pip install 'nvtx-kernels[profiling]'"
STANDARD_LIBRARY = "import importlib\ntracing = importlib.import_module('.tracing', __name__)\n"


def run(python, *words, cwd, **environment):
    return subprocess.run(
        [python, *map(str, words)], cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of this checkout's packages, so that nothing is built in it."""
    folder = tmp_path_factory.mktemp("source")
    copy_of_checkout(folder, PACKAGED)
    return folder


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    """Return what builds a wheel or an sdist, once."""

    @cache
    def build(kind):
        folder = tmp_path_factory.mktemp(kind)
        done = run(sys.executable, "-c", BUILD.format(kind), folder, cwd=source)
        assert done.returncode == 0, done.stderr
        return next(folder.glob("*.whl" if kind == "wheel" else "*.tar.gz"))

    return build


def environment_with(package, folder, without=()):
    """Make an environment that has a package and all others of this one, without some; return its Python."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for site in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for entry in site.iterdir():
            is_kept = not entry.name.startswith((*OURS, *without)) and entry.suffix != ".pth"
            if is_kept and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    done = run(sys.executable, "-m", "pip", "--python", python, "install", *options, *package, cwd=folder)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module")
def python_of(built, source, tmp_path_factory):
    """Return what makes an environment in which we are installed, once, and returns its Python."""

    @cache
    def make(name):
        package = ["-e", source] if name == "editable" else [built("sdist" if name == "from_sdist" else "wheel")]
        without = {"without_torch": ("torch", "nvtx"), "without_nvtx": ("nvtx",)}.get(name, ())
        return environment_with(package, tmp_path_factory.mktemp(name) / "env", without)

    return make


# Two more environments are built where time is not short.
FROM_SDIST, EDITABLE = (pytest.param(name, marks=pytest.mark.slow) for name in ("from_sdist", "editable"))


@pytest.fixture
def crowded(tmp_path):
    """A folder with somebody's own `analysis.py`, `model.py` and `profiling.py`, none of which may run."""
    for name in ("analysis.py", "model.py", "profiling.py"):
        (tmp_path / name).write_text("raise SystemExit('somebody else')\n")
    return tmp_path


def test_a_wheel_holds_one_package_and_its_description(built):
    names = zipfile.ZipFile(built("wheel")).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nvtx_kernels"}
    assert [name for name in DATA if f"nvtx_kernels/{name}" not in names] == []


ADDRESS = "https://example.org/somebody/nvtx-kernels"


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_the_description_has_no_link_into_a_checkout(address, source):
    done = run(
        sys.executable, "setup.py", "--quiet", "--long-description", cwd=source, NVTX_KERNELS_REPOSITORY=address
    )
    parsed = MarkdownIt("commonmark").parse(done.stdout)
    tokens = [token for block in parsed for token in block.children or () if token.type in ("link_open", "image")]
    targets = [str(token.attrs.get("href") or token.attrs.get("src")) for token in tokens]
    assert [target for target in targets if not target.startswith("https://")] == []
    ours = {target.removeprefix(ADDRESS) for target in targets if target.startswith(ADDRESS)}
    assert bool(ours) == bool(address)
    files = {target.partition("#")[0].split("/", 3)[3] for target in ours}
    assert {name for name in files if not (ROOT / name).exists()} == set()
    assert "```python\nimport nvtx_kernels as nk" in done.stdout
    installs = [line for line in done.stdout.splitlines() if line.startswith(("pip install ", "uvx "))]
    assert len(installs) == 4
    assert [line for line in installs if "nvtx-kernels" not in line or " ." in line or "'." in line] == []


def test_the_conda_recipe_has_the_version_and_the_dependencies_of_the_package():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert recipe["context"]["version"] == project["version"]
    bounds = [name.replace(">=", " >=") for name in project["dependencies"]]
    wanted = {f"python {project['requires-python']}", *bounds}
    assert set(recipe["requirements"]["run"]) == wanted
    commands = [f"{name} = {where}" for name, where in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands


def test_an_sdist_holds_all_that_the_wheel_is_made_of(source, built):
    with tarfile.open(built("sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert {name for name in files if "egg-info" not in name and not name.startswith("build/")} - names == set()


@pytest.mark.parametrize("python", ["installed", FROM_SDIST, EDITABLE])
def test_installed_there_is_one_package(python, tmp_path, python_of):
    code = "import importlib.util as u; print([n for n in ('analysis', 'model', 'profiling') if u.find_spec(n)])"
    done = run(python_of(python), "-I", "-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr


HELP = """
import contextlib, io
from nvtx_kernels.__main__ import main
from nvtx_kernels.commands import COMMANDS
from nvtx_kernels.profiling.study.nsight import profile_command
for name in COMMANDS:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as text:
        main([name, "--help"])
    assert "nvtx-kernels " + name in text.getvalue(), name
"""


@pytest.mark.parametrize("python", ["installed", FROM_SDIST])
def test_every_command_has_its_help_where_it_is_installed(python, crowded, python_of):
    done = run(python_of(python), "-c", HELP, cwd=crowded)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_is_used_here():
    assert USES.keys() == COMMANDS.keys()


def files_of(python):
    """Return the content of all that is installed of us, by its path."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages/nvtx_kernels")
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_an_sdist_installs_what_the_wheel_does(python_of):
    of_wheel, of_sdist = (files_of(python_of(name)) for name in ("installed", "from_sdist"))
    assert len(of_wheel) > 100
    assert of_sdist == of_wheel


@pytest.mark.slow
@pytest.mark.parametrize("command", USES)
def test_every_command_works_where_it_is_installed(command, crowded, python_of):
    prepare(crowded)
    assert trouble_of(python_of("installed").with_name("nvtx-kernels"), command, crowded) == ""


PROGRAM = """
import nvtx_kernels as nk
from nvtx_kernels.analysis.errors import NotAReport
try: nk.read("nothing.sqlite")
except NotAReport: print(nk.rank(nk.read(%r)).kernels.shape[0] > 10)
"""


@pytest.mark.parametrize("words", [["-m", "nvtx_kernels", "rank"], ["-m", "nvtx_kernels.analysis.kernels"]])
@pytest.mark.parametrize("python", ["installed", "without_torch", EDITABLE])
def test_ranking_works_among_files_of_the_same_names(python, words, crowded, python_of):
    done = run(python_of(python), *words, REPORT, "--by", "category", "--format", "csv", cwd=crowded)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gemm" in done.stdout


@pytest.mark.parametrize("python", ["installed", "without_torch"])
def test_a_program_can_import_us_among_files_of_the_same_names(python, crowded, python_of):
    (crowded / "program.py").write_text(PROGRAM % str(REPORT))
    done = run(python_of(python), "program.py", cwd=crowded)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.slow
def test_recording_works_among_files_of_the_same_names(python_of, crowded):
    ours = python_of("installed"), "-m", "nvtx_kernels"
    done = run(
        *ours, "run", "--size", "tiny", "--steps", "1", "--device", "cpu", "--record", "r.sqlite", cwd=crowded
    )
    assert done.returncode == 0, done.stderr
    ranked = run(*ours, "rank", "r.sqlite", "--by", "range", "--format", "csv", cwd=crowded)
    assert "backward > layer 0" in ranked.stdout


@needs_torch
def test_a_standard_library_of_our_folders_name_is_left_alone(python_of, tmp_path):
    """From Python 3.15 on there is one called profiling, which cProfile imports."""
    (tmp_path / "ahead" / "profiling").mkdir(parents=True)
    (tmp_path / "ahead" / "profiling" / "__init__.py").write_text(STANDARD_LIBRARY)
    (tmp_path / "ahead" / "profiling" / "tracing.py").write_text("")
    code = "import profiling, nvtx_kernels as nk; print(profiling.tracing.__name__, nk.annotate.__name__)"
    done = run(python_of("installed"), "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "ahead"))
    assert done.stdout.split() == ["profiling.tracing", "nvtx_kernels.profiling.annotate"], done.stderr


#: Runs profiling.run as `python -m` does, with Python 3.15's `profiling` and cProfile, its alias, in front.
FROM_3_15 = """if True:
    import runpy, sys, sysconfig
    standard, where = sys.argv.pop(1), sysconfig.get_path
    sysconfig.get_path = lambda name, *other, **more: standard if name == "stdlib" else where(name, *other, **more)
    sys.path[:0] = ["", standard]
    try:
        runpy.run_module("profiling.run", run_name="__main__", alter_sys=True)
    finally:
        import cProfile
        assert sys.modules["profiling.tracing"].__file__.startswith(standard)
"""


@needs_torch
def test_a_checkout_runs_where_the_standard_library_has_profiling(tmp_path):
    (tmp_path / "profiling" / "tracing").mkdir(parents=True)
    (tmp_path / "profiling" / "__init__.py").touch()
    shutil.copy(cProfile.__file__, tmp_path / "profiling" / "tracing" / "__init__.py")
    (tmp_path / "cProfile.py").write_text("from profiling.tracing import Profile, run, runctx\n")
    words = ("-c", FROM_3_15, tmp_path, "--size", "tiny", "--device", "cpu", "--steps", "1")
    done = run(sys.executable, *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["benchmark", "run", "nsys", "attention", "precision"])
def test_without_torch_a_command_says_what_to_install(command, python_of, tmp_path):
    done = run(python_of("without_torch"), "-m", f"nvtx_kernels.profiling.{command}", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "pip install 'nvtx-kernels[profiling]'" in done.stderr


def test_without_torch_annotation_says_what_to_install(python_of, tmp_path):
    done = run(python_of("without_torch"), "-c", "from nvtx_kernels.profiling import annotate", cwd=tmp_path)
    assert done.stderr.splitlines()[-1].endswith("annotation needs PyTorch: pip install 'nvtx-kernels[profiling]'")


@needs_torch
def test_without_nvtx_our_recorder_records(python_of, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    ours = python_of("without_nvtx"), "-m", "nvtx_kernels"
    recorded = run(*ours, "record", "train.py", cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    ranked = run(*ours, "rank", "report.sqlite", "--by", "range", "--format", "csv", cwd=tmp_path)
    assert "forward" in ranked.stdout, ranked.stderr
    assert "backward" in ranked.stdout


@needs_torch
def test_without_nvtx_annotation_refuses_under_nsys(python_of, tmp_path):
    words = ("-m", "nvtx_kernels", "run", "--size", "tiny", "--device", "cpu", "--steps", "1")
    done = run(python_of("without_nvtx"), *words, cwd=tmp_path, NSYS_PROFILING_SESSION_ID="1")
    assert (done.returncode, done.stderr) == (1, f"run: annotation under nsys needs the package nvtx: {INSTALL}\n")


def test_where_nvtx_has_no_wheel_the_remedy_names_a_python_that_has_one():
    assert "use Python 3.14, or record without nsys" in how_to_get_nvtx((3, 15))
    assert how_to_get_nvtx((3, 14)) == INSTALL


STACK = "from profiling.annotate.range_stack import stack; import nvtx_kernels as nk; "
ORDERS = {
    "import analysis.errors as a; import nvtx_kernels.analysis.errors as b; ": "a is b",
    "import nvtx_kernels.analysis.errors as b; import analysis.errors as a; ": "a is b",
    "from analysis import errors as a; from nvtx_kernels.analysis import errors as b; ": "a is b",
    "import analysis.errors as a; ": "a.__spec__.name == 'nvtx_kernels.analysis.errors'",
    STACK: "stack() is nk.annotate.range_stack.stack()",
}


ORDERS_HERE = [pytest.param(order, marks=[needs_torch] * (order == STACK)) for order in ORDERS]


@pytest.mark.parametrize("order", ORDERS_HERE)
def test_both_spellings_are_one_module(order):
    done = run(sys.executable, "-c", f"{order}print({ORDERS[order]})", cwd=ROOT)
    assert done.stdout == "True\n", done.stderr


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


@pytest.mark.parametrize("command", ["profiling.run", "analysis.kernels"])
def test_short_names_run_in_a_checkout_that_is_not_installed(source, command, python_of):
    done = run(python_of("installed"), "-m", command, "--help", cwd=source)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


def test_nsys_is_given_the_command_of_a_checkout():
    words = profile_command("nsys", ["python", "-m", "profiling.run", "--size", "tiny"], Path("out/report"))
    assert words[:2] == ["nsys", "profile"]
    assert words[-5:] == ["python", "-m", "profiling.run", "--size", "tiny"]
