"""`nvtx-kernels` itself: its commands by purpose, what a wrong word is answered, and the completion of a shell."""

import os
import subprocess
from importlib.util import find_spec

import pytest

import nvtx_kernels.__main__
from nvtx_kernels.commands import COMMANDS, GROUPS
from tests.analysis.making import checks
from tests.analysis.making.subjects import DATA
from tests.profiling.making import forked

REPORT = str(DATA / "h200_train_fp32.sqlite")


def test_alone_it_lists_the_commands_by_purpose_and_the_one_to_start_with():
    status, shown, _ = checks.said(nvtx_kernels.__main__)
    assert status == 0
    assert "nvtx-kernels report.sqlite  where the time goes, what to change: start here" in shown
    places = [shown.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert all(f"\n{purpose}:\n" in shown for purpose in GROUPS)
    assert "python -m" not in shown


def test_a_report_alone_is_ranked():
    alone, named = (
        checks.said(nvtx_kernels.__main__, *words, "--by", "category") for words in ([REPORT], ["rank", REPORT])
    )
    assert alone == named
    assert alone[0] == 0


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["rnak", REPORT], 2, "there is no command or report 'rnak' (did you mean rank?)"),
        (["zzz"], 2, "there is no command or report 'zzz'"),
        (["--verison"], 2, "there is no --verison (did you mean --version?)"),
        (["gone.sqlite"], 1, "gone.sqlite does not exist"),
        (["--print-completion", "cmd"], 2, "--print-completion is for bash, zsh,"),
        (["compare", REPORT, REPORT, "-o", "x.html"], 2, f"use: nvtx-kernels page {REPORT} {REPORT} -o x.html"),
        (["attention", "--dims", "16"], 2, "use: nvtx-kernels benchmark --attention"),
        (["run", "--preset", "2026"], 2, "--preset was removed; use: --year 2026"),
        (["run", "--record-memory"], 2, "--record-memory was removed; use: --record FILE --memory"),
        (["run", "--memory", "x.pickle"], 2, "--memory takes no file; use: --memory-snapshot x.pickle"),
        (["benchmark", "--model-preset", "2026"], 2, "use: --year 2026"),
        (["nsys", "--model-preset", "2026"], 2, "use: --year 2026"),
        (["benchmark", "--attention", "--dim", "x"], 2, "x is not a valid list"),
        (["view", REPORT, "steps"], 2, f"the view comes before the report: nvtx-kernels view steps {REPORT}"),
        (["view", "gone.sqlite"], 2, "the view comes before the report: nvtx-kernels view NAME gone.sqlite"),
        (["page", REPORT, "--otput", "x.html"], 2, "there is no --otput (did you mean --output?)"),
        (["scrub", REPORT, "--chek"], 2, "there is no --chek (did you mean --check?)"),
        (["record", "--warmup=x", "train.py"], 2, "invalid int value: 'x'"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(words, status, says):
    got, out, err = checks.said(nvtx_kernels.__main__, *words)
    assert (got, out, err.count("\n")) == (status, "", 1)
    assert says in err


def test_every_command_runs_by_its_module_too():
    modules = {f"nvtx_kernels.{command.module}" for command in COMMANDS.values()}
    packages = [name for name in modules if find_spec(name).submodule_search_locations]
    assert [name for name in packages if not find_spec(f"{name}.__main__")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_an_installed_command_names_no_module_of_the_checkout(command):
    status, shown, _ = checks.said(nvtx_kernels.__main__, command, "--help")
    assert status == 0
    assert shown.startswith(f"usage: nvtx-kernels {command}")
    assert "python -m analysis" not in shown
    assert "profiling." not in shown


COMPLETED = """
source /dev/stdin
COMP_WORDS=($WORDS); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_nvtx_kernels nvtx-kernels "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; echo "${COMPREPLY[@]}"
"""


def test_a_shell_completes_commands_views_and_options():
    _, script, _ = checks.said(nvtx_kernels.__main__, "--print-completion", "bash")
    expected = {
        "nvtx-kernels com": "compare",
        "nvtx-kernels view idl": "idle",
        "nvtx-kernels view idle --tota": "--totals",
        "nvtx-kernels rank --by ca": "category",
    }
    for words, completed in expected.items():
        there = {"WORDS": words, "PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-c", COMPLETED], input=script, env=there, capture_output=True, text=True)
        assert done.stdout.split() == [completed], words


def test_an_option_of_record_after_the_program_is_the_programs_and_said_so(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text("import sys; print(sys.argv[1:])\n")
    done = forked.run("-m", "nvtx_kernels", "record", program, "-o", "mine.txt", cwd=tmp_path)
    assert "['-o', 'mine.txt']" in done.stdout
    assert f"record: -o mine.txt is given to {program}" in done.stderr


def test_a_program_is_recorded_and_short_forms_stand_for_commands(monkeypatch):
    called = []
    for module in ("profiling.record", "analysis.view", "analysis.page", "profiling.doctor", "analysis.doctor"):
        name = f"nvtx_kernels.{module}"
        monkeypatch.setattr(f"{name}.main", lambda words, prog, name=module: called.append((name, words)) or 0)
    for words in ("train.py --lr 1", "fix r.sqlite", "open r.sqlite", "doctor --quick", "doctor r.sqlite"):
        nvtx_kernels.__main__.main(words.split())
    assert called == [
        ("profiling.record", ["train.py", "--lr", "1"]),
        ("analysis.view", ["fix", "r.sqlite"]),
        ("analysis.page", ["--open", "r.sqlite"]),
        ("profiling.doctor", ["--quick"]),
        ("analysis.doctor", ["r.sqlite"]),
    ]
