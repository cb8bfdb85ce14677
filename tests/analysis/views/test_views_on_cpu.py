"""Answers about a CPU's recording speak of operators and calls, and of nothing that only a GPU has."""

import re
from dataclasses import replace

import pytest
from nvtx_kernels.analysis import compare, doctor, kernels
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.summary.parallel import Ranked
from nvtx_kernels.analysis.views.headings import on_cpu
from nvtx_kernels.analysis.views.ranks import ranks
from nvtx_kernels.analysis.views.registry import VIEWS

from nvtx_kernels.__main__ import main
from tests.analysis.making.building import MAIN, Range, build, launched
from tests.analysis.making.subjects import screen, subject

RANGES = [
    Range(name, start + step, end + step)
    for step in (0, 1000)
    for name, start, end in (
        ("step", 0, 900), ("forward", 10, 500), ("attention", 20, 400), ("computing attention scores", 30, 100),
        ("computing softmax", 110, 200), ("final matmul", 210, 300),
    )
]  # fmt: skip
ELSEWHERE = re.compile(r"\b(?<!--)(?<!-)(kernels?|launch\w*|GPU|CUDA|grid)\b", re.IGNORECASE)
# They need a GPU, or what this recording lacks.
NOT_OF_A_CPU = ("communication", "fix", "efficiency", "memory")
OPTIONS = [
    *(["rank", name] for name in ("--by=kernel", "--by=category", "--by=range", "--every-index", "--kernels")),
    *(["view", name] for name in VIEWS if name not in NOT_OF_A_CPU),
]


@pytest.fixture
def recording(tmp_path):
    """A recording of a CPU, of two steps of attention."""
    calls = [(at + step, at + step + 20, MAIN) for step in (0, 1000) for at in (40, 120, 220)]
    facts = {"NVTX_KERNELS_WORK": "CPU"}
    path = build(tmp_path, ranges=RANGES, metadata=facts, **launched(*calls, name="aten::bmm"))
    return path.rename(tmp_path / "recording.sqlite")


def said(capsys):
    """Return what was printed, without its heading and the commands to copy."""
    return capsys.readouterr().out.split("\n\n", 1)[1].partition("\nMore:")[0]


@pytest.mark.parametrize("per_step", [[], ["--per-step"]], ids=["", "per step"])
@pytest.mark.parametrize("words", OPTIONS, ids=lambda words: words[1])
def test_no_view_of_a_cpu_speaks_of_kernels(recording, words, per_step, capsys):
    assert main([*words, str(recording), *per_step]) == 0
    shown = said(capsys)
    assert re.search(r"operator|self cpu time|call", shown.lower())
    assert ELSEWHERE.findall(shown) == []


RANGE, KERNEL = "Kernel launches in step", "launched kernel"
#: The texts that hold a name of the program's, and which.
NAMED = {
    "the answer": (["rank"], RANGE),
    "a title": (["view", "kernels"], KERNEL),
    "a sentence before a table": (["ask"], KERNEL),
}


@pytest.mark.parametrize(("words", "name"), NAMED.values(), ids=NAMED)
def test_names_of_the_program_are_not_rewritten_on_a_cpu(tmp_path, capsys, words, name):
    ranges = [
        Range(range_name, start + step, end + step)
        for step in (0, 1000)
        for range_name, start, end in (("step", 0, 900), ("forward", 10, 300), (RANGE, 310, 890))
    ]
    calls = [(at + step, at + step + 20, MAIN) for step in (0, 1000) for at in (40, 120)]
    facts = {"NVTX_KERNELS_WORK": "CPU"}
    path = build(tmp_path, ranges=ranges, metadata=facts, **launched(*calls, name=KERNEL))
    assert main([*words, str(path)]) == 0
    shown = " ".join(said(capsys).split())
    assert name in shown
    assert on_cpu(name) not in shown


def test_what_nsys_would_count_of_a_cpu_is_said_of_operators(recording, capsys):
    assert kernels.main([str(recording), "--like-nsys"]) == 0
    shown = capsys.readouterr().out
    assert "the calling thread's own ranges" in " ".join(shown.split())
    assert "CPU span of each range" in shown
    assert ELSEWHERE.findall(shown.replace("_kernel", "")) == []


def test_no_comparison_or_diagnosis_of_a_cpu_speaks_of_kernels(recording, tmp_path, capsys):
    assert compare.main([str(recording), str(recording), "--fail-on", "total > +5%"]) == 0
    shown = said(capsys)
    assert "all operators" in shown
    assert ELSEWHERE.findall(shown.replace("no GPU", "")) == []
    assert doctor.main([str(recording)]) == 0
    assert "6 operators, 6 calls" in capsys.readouterr().out


def test_ranks_on_cpus_are_of_operators_and_are_not_mixed_with_gpus(recording):
    report = subject(recording).report
    shown = screen(ranks([Ranked("a", report), Ranked("b", report)]))
    assert shown.startswith("2 of 2 reports · CPU time of operators, no GPU\n")
    assert ELSEWHERE.findall(shown.split("\n\n", 1)[1]) == []
    on_gpu = replace(report, provenance=replace(report.provenance, unit_of_work="GPU"))
    with pytest.raises(ReportError, match="a counts CPU work and b counts GPU work"):
        ranks([Ranked("a", report), Ranked("b", on_gpu)])
