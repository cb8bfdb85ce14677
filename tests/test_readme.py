"""The README under test: its links, its commands, its table and its examples."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
H200 = ROOT / "reports" / "h200"
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(str(p.relative_to(ROOT)) for p in H200.glob("*.md")))
REPORT = "tests/data/h200_train_fp32.sqlite"
COMMANDS = sorted(set(re.findall(r"python -m ((?:analysis|profiling)\.[^`\n)]+)", README)))
MODULES = sorted({command.split()[0] for command in COMMANDS})
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

# What a word of the README stands for where it is run.
STANDS_FOR = {
    "report.sqlite": REPORT,
    "before.sqlite": REPORT,
    "after.sqlite": REPORT,
    "run/*.sqlite": "tests/data/*.sqlite",
}


def python(*arguments, cwd=ROOT):
    """Run Python on the repository's packages, wherever it runs."""
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = sys.argv[1:]; "
    code += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)


def analysis_arguments(command, folder):
    """Split a command of the README, and put a real report and a folder for results into it."""
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)]
    before = ["", *words[:-1]]
    return [str(folder / word) if flag == "-o" else word for flag, word in zip(before, words, strict=True)]


@functools.cache
def explanation(module):
    """Return what a command prints about itself."""
    return python(module, "--help").stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("analysis.")])
def test_every_command_of_analysis_answers(command, tmp_path):
    ran = python(*analysis_arguments(command, tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout or list(tmp_path.iterdir())


@pytest.mark.parametrize("module", MODULES)
def test_every_option_named_exists(module):
    named = {word for command in COMMANDS for word in command.split() if command.split()[0] == module}
    assert f"python -m {module}" in explanation(module)
    assert {word for word in named if word.startswith("--")} - set(explanation(module).split()) == set()


def test_table_is_what_the_command_prints():
    command = re.search(r"python -m (analysis\.kernels tests/data/\S+ [^`]+)`", README)[1]
    assert f"```\n{python(*command.split()).stdout.rstrip()}\n```" in README


def test_nsys_credits_backward_with_what_the_readme_says():
    rows = python("analysis.kernels", REPORT, "--like-nsys", "--format", "csv").stdout.splitlines()
    credited = next(int(row.split(",")[5]) for row in rows if row.startswith("nvtx-kernels:backward,"))
    ours = python("analysis.kernels", REPORT, "--format", "json").stdout
    backward_ns = int(re.search(r'"phase": ?"backward",\s*"kernel_ns": ?(\d+)', ours)[1])
    assert f"{credited / 1e3:.1f} µs of the {backward_ns / 1e6:.0f} ms" in README


def test_library_example_prints_what_it_says():
    example = next(text for text in EXAMPLES if "analysis.rank" in text)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.strip() == example.strip().splitlines()[-1].removeprefix("# ")


def test_annotated_model_gets_backward_ranges(tmp_path):
    pytest.importorskip("torch")
    example = next(text for text in EXAMPLES if "annotate_modules" in text)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    shown = python("analysis.kernels", "report.sqlite", "--by", "range", "--format", "csv", cwd=tmp_path).stdout
    assert "loss" in shown.split("backward", 1)[1]
