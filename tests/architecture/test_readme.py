"""The README under test: its links, its commands, its table and its examples."""

import csv
import io
import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from nvtx_kernels.analysis.scrub import WOULD_LEAK

from nvtx_kernels.__main__ import main
from nvtx_kernels.commands import COMMANDS as MODULES
from tests.analysis.making.allocated import with_memory
from tests.analysis.making.communicating import communicating

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
README = (ROOT / "README.md").read_text()
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(p.relative_to(ROOT)) for p in (*sorted(REPORTS.rglob("*.md")), *DOCS)),
)
REPORT = "tests/data/h200_train_fp32.sqlite"
FOUND = re.findall(r"nvtx-kernels (\S[^`\n)#]+)", README)
COMMANDS = sorted({line.strip() for line in FOUND if line.split()[0] in MODULES})
#: The words that choose a command: a view is chosen by two.
NAMES = sorted({" ".join(command.split()[: 1 + command.startswith("view ")]) for command in COMMANDS})
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

PROGRAM = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
data = torch.ones(3, 2, 4)

def train_step(batch):
    model(batch).sum().backward()
    optimizer.step()
"""

# What a word of the README stands for where it is run.
STANDS_FOR = {
    "report.sqlite": REPORT,
    "before.sqlite": REPORT,
    "after.sqlite": REPORT,
    "run/*.sqlite": "tests/data/*.sqlite",
}


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return what a command prints where it runs: here, unless a folder is given."""

    def run(*arguments, folder=ROOT):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "80")
        with suppress(SystemExit):  # which --help ends with
            main(arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def printed_by(monkeypatch, capsys):
    """Return what a program prints on stdout and stderr where it runs."""

    def run(program, folder):
        monkeypatch.chdir(folder)
        exec(compile(program, "example", "exec"), {"__name__": "__main__"})
        return capsys.readouterr()

    return run


def of_reports(command):
    """Whether a command reads reports, so that it can run anywhere."""
    name = command.split()[0]
    return MODULES[name].module.startswith("analysis")


def analysis_arguments(command, folder):
    """Split a command of the README, and put a real report and a folder for results into it."""
    stands_for = STANDS_FOR | {"two_ranks.sqlite": str(communicating(ranks=2))}
    if command.startswith("view memory "):
        stands_for["report.sqlite"] = str(with_memory())
    words = [stands_for.get(word, word) for word in shlex.split(command)]
    if "--open" in words:  # writes next to the report, and opens a browser
        words[words.index("--open") :] = ["-o", "page.html"]
    before = ["", *words[:-1]]
    return [str(folder / word) if flag == "-o" else word for flag, word in zip(before, words, strict=True)]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("command", [command for command in COMMANDS if of_reports(command)])
def test_every_command_on_reports_answers(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status = main(analysis_arguments(command, tmp_path))
    printed = capsys.readouterr()
    expected = WOULD_LEAK if command.startswith("scrub") and "--check" in command else 0  # it is nsys's own export
    assert (status, printed.err) == (expected, "")
    assert printed.out


@pytest.mark.parametrize("name", NAMES)
def test_every_option_named_exists(name, printed):
    explanation = printed(*name.split(), "--help")
    named = {word for command in COMMANDS for word in command.split() if command.startswith(f"{name} ")}
    assert explanation.startswith(f"usage: nvtx-kernels {name}")
    assert {word for word in named if word.startswith("--")} - set(explanation.split()) == set()


def test_table_is_what_the_command_prints(printed):
    command = re.search(r"`nvtx-kernels (rank tests/data/[^`]+)`", README)[1]
    assert f"```\n{printed(*command.split()).rstrip()}\n```" in README


def test_nsys_credits_backward_with_what_the_readme_says(printed):
    rows = printed("rank", REPORT, "--like-nsys", "--format", "csv")
    found = next(row for row in csv.DictReader(io.StringIO(rows)) if row["range"] == "nvtx-kernels:backward")
    credited = int(found["total_ns"])
    ours = printed("rank", REPORT, "--format", "json")
    backward_ns = int(re.search(r'"phase": ?"backward",\s*"kernel_ns": ?(\d+)', ours)[1])
    assert f"{credited / 1e3:.1f} µs of the {backward_ns / 1e6:.0f} ms" in README


def test_library_example_prints_what_it_says(printed_by):
    example = next(text for text in EXAMPLES if "nk.rank" in text)
    assert printed_by(example, ROOT).out.strip() == example.strip().splitlines()[-1].removeprefix("# ")


def test_annotated_model_gets_backward_ranges(tmp_path, printed, printed_by):
    pytest.importorskip("torch")
    example = next(text for text in EXAMPLES if "annotate.region" in text)
    printed_by(example, tmp_path)
    shown = printed("rank", "report.sqlite", "--by", "range", "--format", "csv", folder=tmp_path)
    assert {f"step > {part}" for part in ("loss > forward > Sequential", "backward > loss > Sequential")} <= {
        line.split(",")[1] for line in shown.splitlines()
    }


def test_one_line_leaves_the_report_and_the_overview(tmp_path, printed_by):
    pytest.importorskip("torch")
    example = next(text for text in EXAMPLES if "with nk.profile(model, optimizer" in text)
    said = printed_by(f"{PROGRAM}\n{example}", tmp_path)
    assert said.out.startswith("report.sqlite")
    assert "2 steps after 1 of warm-up (steps of SGD). Next: nvtx-kernels rank report.sqlite" in said.err


def test_the_navigation_of_the_documentation_has_each_page_once():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].partition("\nplugins:")[0]
    pages = [str(page.relative_to(ROOT / "docs")) for page in DOCS]
    assert sorted(re.findall(r"\S+\.md", nav)) == sorted(pages)
