"""From a program to the lines of its operators, kernels and idle time in a report."""

import json

import pytest
from nvtx_kernels.analysis import kernels, view
from nvtx_kernels.analysis.opened import opened

from nvtx_kernels import analysis
from tests.profiling.making.recordings import run_here

PROGRAM = """
import sys, time, torch
from torch import nn
import nvtx_kernels as nk

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x):
        y = torch.sin(x @ self.weight)
        y = torch.cos(y)
        for scale in (1.0, 2.0):
            y = torch.tanh(y * scale)
        return outside(y)

def outside(y):
    return torch.sigmoid(y)

def batches(count):
    for number in range(count):
        yield torch.rand(4, 8)

torch.manual_seed(0)
model = Part()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = torch.ones(8, 8)

def train(x):
    loss = torch.log1p(model(x)).mean()
    loss.backward()
    largest = [p.grad.abs().max().item() for p in model.parameters()]
    time.sleep(0.02)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        average.lerp_(model.weight, 0.5)

with nk.profile(model, optimizer, sys.argv[1]):
    for x in batches(16):
        train(x)
"""
#: What a line contains, by an operator that only this line calls.
LINES = {
    "aten::sin": "torch.sin(",
    "aten::cos": "torch.cos(",
    "aten::tanh": "torch.tanh(",
    "aten::sigmoid": "torch.sigmoid(",
    "aten::log1p": "torch.log1p(",
    "aten::uniform_": "torch.rand(",
    "aten::max": "p.grad.abs()",
    "aten::lerp_": "average.lerp_(",
    "SinBackward0": "torch.sin(",
    "CosBackward0": "torch.cos(",
    "TanhBackward0": "torch.tanh(",
    "SigmoidBackward0": "torch.sigmoid(",
    "Log1PBackward0": "torch.log1p(",
    "aten::sigmoid_backward": "torch.sigmoid(",
    "aten::tanh_backward": "torch.tanh(",
}
NUMBER = {text: number for number, text in enumerate(PROGRAM.splitlines(), 1)}


def number_of(part):
    (number,) = [number for text, number in NUMBER.items() if part in text]
    return number


def recorded(folder, program=PROGRAM):
    """Record a program."""
    return run_here(folder, program)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("lines"))


def calls_in_steps(report):
    """Return the names and sources of the operators in the steps that count."""
    attribution = opened(report).partition.of_counted_steps
    work, trace = attribution.trace.work, attribution.trace
    sources = [*attribution.lines.sources, None]
    of_launch = attribution.lines.of_launch[work.launch]
    return [(trace.names[name], sources[line]) for name, line in zip(work.name_id, of_launch, strict=True)]


def test_nearly_all_operators_have_a_line(report):
    sources = [source for _, source in calls_in_steps(report)]
    assert len(sources) > 300
    assert sum(source is not None for source in sources) >= 0.99 * len(sources)


def test_operators_have_the_right_line_and_those_of_backward_that_of_their_forward(report):
    # In the backward of a sine is a cosine, and the other way round.
    operators = [(name, source) for name, source in calls_in_steps(report) if name in LINES]
    known = [
        (n, source.lines[0])
        for n, source in operators
        if not (source.backward and n in ("aten::sin", "aten::cos"))
    ]
    assert {name for name, _ in known} == LINES.keys()
    wrong = {(name, line) for name, line in known if line.line != number_of(LINES[name])}
    assert wrong == set()


def test_what_runs_in_backward_also_names_the_call_of_backward(report):
    backward = {source.backward.line for name, source in calls_in_steps(report) if name == "SinBackward0"}
    forward = {source.backward for name, source in calls_in_steps(report) if name == "aten::log1p"}
    assert backward == {number_of("loss.backward()")}
    assert forward == {None}


def test_only_one_step_is_traced_and_the_mark_is_small(report):
    lines = analysis.read(report).lines
    assert (lines.span_ns[0] >= lines.begun_ns).sum() == 3
    assert len(lines.sources) < 60
    assert {source.lines[0].file for source in lines.sources} == {"train.py"}


def test_a_pause_has_the_line_at_which_the_program_was(report, capsys):
    assert view.main(["idle", str(report)]) == 0
    shown = capsys.readouterr().out
    assert f"train.py:{number_of('time.sleep')} (train)" in shown


def test_kernels_are_ranked_by_line(report, capsys):
    assert kernels.main([str(report), "--by", "line", "--phase", "forward"]) == 0
    shown = capsys.readouterr().out
    assert "Lines by the time of the operators that they call" in shown
    assert f"train.py:{number_of('torch.sin(')} (forward)" in shown


def test_json_has_the_lines_of_kernels_and_of_idle_time(report, capsys):
    assert kernels.main([str(report), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {(row["file"], row["line"]) for row in answer["lines"]} >= {("train.py", number_of("torch.sin("))}
    assert sum(row["total_ns"] for row in answer["lines"]) == sum(row["total_ns"] for row in answer["kernels"])
    (idle,) = [row for row in answer["idle_on_cpu"]["rows"] if row["cause"] == "Python"]
    assert idle["lines"][0]["line"] == number_of("time.sleep")


def test_a_report_without_lines_says_how_to_get_some(tmp_path, capsys):
    path = recorded(tmp_path, PROGRAM.replace("sys.argv[1])", "sys.argv[1], lines=False)"))
    capsys.readouterr()
    assert kernels.main([str(path), "--by", "line"]) == 1
    assert "No kernel's line is known: lines were switched off." in capsys.readouterr().err


def traced_step(path):
    """Return the number of the step that was traced."""
    lines = analysis.read(path).lines
    return int((lines.span_ns[0] >= lines.begun_ns).sum()) - 1


def test_a_step_whose_flops_are_counted_is_not_the_one_that_is_traced(tmp_path):
    assert traced_step(recorded(tmp_path, PROGRAM.replace("sys.argv[1])", "sys.argv[1], flops=True)"))) == 1


def test_record_traces_a_step_by_line_too(tmp_path):
    block = "nk.profile(model, optimizer, sys.argv[1])"
    path = recorded(tmp_path, PROGRAM.replace(block, 'nk.record(sys.argv[1], device="cpu")'))
    assert traced_step(path) == 2
    known = {source.lines[0].line for name, source in calls_in_steps(path) if name == "aten::log1p"}
    assert known == {number_of("torch.log1p(")}


def test_ranges_of_the_program_are_steps_where_nothing_trains(tmp_path):
    text = PROGRAM.replace("    loss = ", "    with nk.annotate.range('step'), torch.no_grad():\n        loss = ")
    text = text.split("    loss.backward()")[0] + text[text.index("with nk.profile") :]
    path = recorded(tmp_path, text.replace("nk.profile(model, optimizer,", "nk.profile(model, None,"))
    lines = analysis.read(path).lines
    assert lines.reason == ""
    assert len(lines.begun_ns) >= 10
    assert (lines.of_launch >= 0).sum() > 5


def test_lines_of_an_installed_model_are_the_users(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "made_up_models"
    package.mkdir(parents=True)
    head, model, rest = PROGRAM.partition("class Part")[0], "class Part", PROGRAM.partition("class Part")[2]
    body, _, program = rest.partition("def batches")
    (package / "__init__.py").write_text(f"import torch\nfrom torch import nn\n{model}{body}")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    path = recorded(tmp_path, f"{head}from made_up_models import Part\ndef batches{program}")
    files = {source.lines[0].file for name, source in calls_in_steps(path) if name == "aten::tanh"}
    assert files == {"made_up_models/__init__.py"}
