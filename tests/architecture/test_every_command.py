"""Every command on every report: of tests/data, one that `record` makes here, and a trace with stacks."""

import json
import re

import pytest
from nvtx_kernels.analysis.agent.answers import QUESTIONS, Reports
from nvtx_kernels.analysis.views.registry import VIEWS

import nvtx_kernels.__main__
from nvtx_kernels.commands import COMMANDS
from tests.analysis.making import checks
from tests.analysis.making.bundled import OURS, unpacked
from tests.profiling.making import forked

#: The words of each command that reads a report: REPORT is the report, and OUT a file to write.
READING = {
    "rank": "REPORT",
    "page": "REPORT -o OUT.html",
    "timeline": "REPORT -o OUT.json",
    "summarize": "REPORT -o OUT.summary.sqlite",
    "compare": "REPORT REPORT",
    "doctor": "REPORT",
    "join": "REPORT -o OUT.sqlite",
    "scrub": "REPORT -o OUT",
    "ask": "REPORT",
}
#: Those that may say in a sentence why a report has no answer.
REFUSING = [f"view {view} REPORT" for view in VIEWS]
#: Those, and those that read no report by themselves.
OTHERS = {"view", "record", "try", "mcp", "skill", "run", "benchmark", "nsys", "precision"}
SENTENCE = re.compile(r"error: [^\n]+\n")
# Most of its time is its own between operators, in the modules of a list.
PROGRAM = """
import torch
class Block(torch.nn.Linear):
    def forward(self, x):
        for _ in range(20_000): pass
        return super().forward(x).relu()
class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(8, 8) for _ in range(3))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x
model = GPT()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""
RECORDED, STACKS = "recorded", "stacks"
PACKED = pytest.param(OURS[-1], marks=pytest.mark.slow)
REPORTS = [*OURS[:-1], PACKED, RECORDED, STACKS]


@pytest.fixture(scope="module")
def report_of(tmp_path_factory):
    """Return a function that gives each report's path; those that PyTorch records are made once."""
    made = {}

    def path_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("report")
            made[name] = {RECORDED: recorded, STACKS: with_stacks}.get(name, lambda at: unpacked(name, at))(folder)
        return made[name]

    return path_of


def recorded(folder):
    pytest.importorskip("torch")
    (folder / "train.py").write_text(PROGRAM)
    command = ("-m", "nvtx_kernels", "record", "--modules", "-o", "report.sqlite", "train.py")
    forked.run(*command, cwd=folder, check=True)
    return folder / "report.sqlite"


def with_stacks(folder):
    pytest.importorskip("torch")
    from tests.analysis.making.stacks import Net, record

    return record(folder / "report.pt.trace.json", Net())


def said(report, folder, words):
    files = {"REPORT": str(report), "OUT": str(folder / "report")}
    return checks.said(nvtx_kernels.__main__, *(re.sub("REPORT|OUT", lambda m: files[m[0]], w) for w in words))


def test_every_command_is_run_here_or_reads_no_report():
    assert {*COMMANDS} <= {*READING} | OTHERS


@pytest.mark.parametrize("command", [command for command in READING if command in COMMANDS])
@pytest.mark.parametrize("name", REPORTS)
def test_every_command_answers_of_every_report(tmp_path, report_of, name, command):
    status, out, err = said(report_of(name), tmp_path, [command, *READING[command].split()])
    assert (status, err) == (0, "")
    assert out


# views/test_views_everywhere.py has the others.
@pytest.mark.parametrize("words", [words for words in REFUSING if words.split()[0] in COMMANDS])
@pytest.mark.parametrize("name", [PACKED, RECORDED, STACKS])
def test_every_view_of_a_report_answers_or_says_why_not(tmp_path, report_of, name, words):
    status, out, err = said(report_of(name), tmp_path, words.split())
    assert out if status == 0 else SENTENCE.fullmatch(err)


@pytest.mark.parametrize("name", REPORTS)
def test_an_agent_gets_an_answer_about_every_report(report_of, name):
    path = report_of(name)
    words = {"reports": (), "compare": (path.name, path.name), "view": (path.name, "steps")}
    for question in QUESTIONS:
        answer = getattr(Reports(path.parent), question)(*words.get(question, (path.name,)))
        assert json.loads(json.dumps(answer)).keys() & {"tables", "reports", "findings", "refused"}


@pytest.mark.parametrize("name", REPORTS)
def test_a_summary_begins_with_the_answer_of_its_report(tmp_path, report_of, name):
    said(report_of(name), tmp_path, ["summarize", "REPORT", "-o", "OUT.summary.sqlite"])
    whole, summary = (
        said(path, tmp_path, ["rank", "REPORT"])[1].split("\n\n")[1].split()
        for path in (report_of(name), tmp_path / "report.summary.sqlite")
    )
    assert whole[: len(summary)] == summary  # what to fix first, a summary does not know
