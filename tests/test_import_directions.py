"""Imports point one way; docs/architecture.md says which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# package -> what none of its modules may import
FORBIDDEN = {
    "analysis": {"torch", "nvtx", "model", "profiling"},
    "model": {"analysis", "nvtx"},
    "profiling": {"analysis"},
}


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


def imported(path):
    """List every module that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_downwards(package):
    offending = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imported(path)
        if name.split(".")[0] in FORBIDDEN[package]
    }
    assert not offending


def test_readers_know_no_presenter_and_presenters_no_reader():
    sides = {
        "readers": ("presenters", "views", "report", "summary"),
        "presenters": ("readers", "attribution"),
    }
    offending = {
        f"{path.name} imports {name}"
        for side, others in sides.items()
        for path in modules(f"analysis/{side}")
        for name in imported(path)
        if f"{name}.".startswith(tuple(f"analysis.{other}." for other in others))
    }
    assert not offending


def test_the_nvtx_package_has_one_user():
    users = {
        str(p.relative_to(ROOT)) for p in modules("profiling") for name in imported(p) if name.startswith("nvtx")
    }
    assert len(users) == 1, users


@pytest.mark.parametrize("module", ["profiling", "analysis", "analysis.kernels"])
def test_importing_a_front_door_loads_nothing_heavy(module):
    heavy = ("torch", "pandas", "pyarrow", "numpy", "rich")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_profiling_is_ours_and_cprofile_still_works():
    code = "import profiling, cProfile, sys; print(profiling.__file__); cProfile.run('1 + 1')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == str(ROOT / "profiling" / "__init__.py")
