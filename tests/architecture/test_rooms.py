"""A room imports only rooms below it, and no command's `--help` loads anything heavy."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nvtx_kernels.commands import COMMANDS

ROOT = Path(__file__).parents[2]

#: From the lowest floor to the highest; rooms on one line do not import each other.
FLOORS = [
    ["analysis.support"],
    ["analysis.document", "analysis.operators", "analysis.trace", "analysis.vocabulary"],
    ["analysis.container", "analysis.errors", "analysis.kernel_names"],
    ["analysis.moments", "analysis.report"],
    ["analysis.readers"],
    ["analysis.attribution", "analysis.presenters"],
    ["analysis.account"],
    ["analysis.measures"],
    ["analysis.summary"],
    ["analysis.opened"],
    ["analysis.cli"],
    ["analysis.views", "analysis.scrub", "analysis.timeline"],
    ["analysis.ranks"],
    ["analysis.compare", "analysis.doctor", "analysis.kernels", "analysis.questions"],
    ["analysis.page", "analysis.frames", "analysis.agent", "analysis.view", "analysis.join"],
    ["analysis"],
    ["profiling.tool", "profiling.harmless", "profiling.program", "profiling.tf32"],
    ["profiling", "profiling.annotate", "profiling.lines"],
    ["profiling.cli"],
    ["profiling.costly_settings", "profiling.machine", "profiling.nsys_program"],
    ["profiling.recorder"],
    ["profiling.training"],
    ["profiling.record", "profiling.doctor"],
    ["profiling.trying"],
    ["profiling.try_"],
    ["model"],
    ["profiling.study"],
    ["profiling.attention"],
    [f"profiling.{one}" for one in ("benchmark", "nsys", "precision", "run")],
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: What profiling may take from analysis: what a report is and its file, how tables are made and drawn, what names
#: of ranges mean, and what operators compute.
SHARED = {
    f"analysis.{room}"
    for room in ("container", "document", "presenters", "support", "errors", "operators", "trace", "vocabulary")
}
#: And the table of GPUs, which imports nothing.
SHARED_MODULES = {"analysis.measures.gpu_peaks"}
OUTSIDE = {"analysis": {"torch", "nvtx"}, "model": {"nvtx"}, "profiling": set()}

FILES = [path for package in OUTSIDE for path in sorted((ROOT / package).rglob("*.py"))]


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path) for path in FILES}


def room_of(module):
    """The folder below a package's root, or the root file; the model is one room."""
    top, *below = module.split(".")
    return top if top == "model" or not below else f"{top}.{below[0]}"


def imported(path):
    """List every module that a file imports, also inside functions and under TYPE_CHECKING."""
    here = [*path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level + 1], node.module] if node.level else [node.module]
            whole = ".".join(filter(None, base)).removeprefix("nvtx_kernels.")
            yield from (f"{whole}.{a.name}" if f"{whole}.{a.name}" in MODULES else whole for a in node.names)


ARROWS = {(module_of(path), name) for path in FILES for name in imported(path) if path.stem != "__main__"}


def test_every_room_has_its_floor():
    assert {room_of(module) for module in MODULES if not module.endswith("__main__")} == set(FLOOR)


def test_a_room_imports_only_rooms_below_it():
    upward = {
        f"{module} imports {name}"
        for module, name in ARROWS
        if name in MODULES and room_of(name) != room_of(module) and FLOOR[room_of(name)] >= FLOOR[room_of(module)]
    }
    assert upward == set()


#: What answers a course's assignment; everything else is of use without it.
COURSE = {"model", "profiling.study", "analysis.questions"}
COURSE |= {f"profiling.{command}" for command in ("attention", "benchmark", "nsys", "precision", "run")}


def test_nothing_but_the_course_imports_the_course():
    users = {(module, name) for module, name in ARROWS if name in MODULES and room_of(name) in COURSE}
    assert {(module, name) for module, name in users if room_of(module) not in COURSE} == set()


def test_files_of_a_room_import_each_other_in_one_direction():
    below = {module: {name for one, name in ARROWS if one == module and name in MODULES} for module in MODULES}
    left = dict(below)
    while free := [module for module, names in left.items() if not names & left.keys() - {module}]:
        for module in free:
            del left[module]
    assert left == {}


def test_recording_takes_a_reports_form_and_tables_from_analysis_and_nothing_else():
    taken = {
        (module, name)
        for module, name in ARROWS
        if module.startswith("profiling")
        and name.startswith("analysis")
        and room_of(name) not in SHARED
        and name not in SHARED_MODULES
    }
    assert taken == set()


@pytest.mark.parametrize("package", OUTSIDE)
def test_packages_keep_to_their_libraries(package):
    used = {name.split(".")[0] for module, name in ARROWS if module.split(".")[0] == package}
    assert used & OUTSIDE[package] == set()


def test_the_nvtx_package_has_one_user():
    users = {module for module, name in ARROWS if re.match(r"nvtx(\.|$)", name)}
    assert {room_of(module) for module in users} == {"profiling.annotate"}


def test_readers_know_no_presenter_and_presenters_no_reader():
    rooms = {(room_of(module), room_of(name)) for module, name in ARROWS}
    assert ("analysis.readers", "analysis.presenters") not in rooms
    assert ("analysis.presenters", "analysis.readers") not in rooms


HEAVY = ("torch", "numpy", "pandas", "pyarrow", "rich", "matplotlib")
# Asked one after another, each in what those before loaded: nothing heavy.
ASKED = ["analysis", "profiling", *(command.module for command in COMMANDS.values())]
HELP = f"""
import contextlib, importlib, io, sys
for module in {ASKED}:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        getattr(importlib.import_module(module), "main", len)(["--help"])
    print(module, *(heavy for heavy in {HEAVY} if heavy in sys.modules))
"""


def test_help_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ASKED


def test_recording_loads_no_pandas():
    """That would take time and 36 MB of memory of the program that is recorded."""
    code = "import sys, nvtx_kernels as nk; nk.profile, nk.session_reader(); print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False"]


def test_profiling_is_ours_and_cprofile_still_works():
    code = "import profiling, cProfile, sys; print(profiling.__file__); cProfile.run('1 + 1')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == str(ROOT / "profiling" / "__init__.py")
