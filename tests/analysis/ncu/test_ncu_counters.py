"""ncu's CSV in both forms, and its launches held against a report's."""

import json
import os
import sys
from pathlib import Path

import pytest
from nvtx_kernels.analysis import ncu
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.kernel_names.spelling import abridged
from nvtx_kernels.analysis.ncu.counters import read
from nvtx_kernels.analysis.ncu.joining import Twin, _problem
from nvtx_kernels.analysis.ncu.tool import USUAL_PLACES

from tests.analysis.making import ncu_csv
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.bundled import DATA
from tests.analysis.making.ncu_csv import DRAM, OCCUPANCY, SM, TIME, Profiled, long, usual, wide
from tests.analysis.making.real_kernels import kernels_of

A, B = "void ns::first_kernel<float>(float *)", "void second_kernel(int)"
FORMS = {"wide": wide, "without units": lambda rows: wide(rows, units=False, nvtx=False), "long": long}


def written(folder, text):
    path = folder / "counters.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_launches_and_their_metrics_are_read_in_both_forms(tmp_path, form):
    launches = [usual(A, 4, time_ns=1_234_567), usual(B, 6, sm=12.5)]
    found = read(written(tmp_path, FORMS[form](launches)))
    assert [(one.number, one.kernel, one.blocks) for one in found] == [(0, A, 4), (1, B, 6)]
    assert found[0].metrics == {TIME: 1_234_567, OCCUPANCY: 50, SM: 20, DRAM: 80}
    assert found[1].metrics[SM] == 12.5


@pytest.mark.parametrize(
    ("value", "unit", "base"),
    [
        (2, "us", (2_000, "ns")),
        (1.5, "msecond", (1_500_000, "ns")),
        (3, "Kbyte", (3_000, "byte")),
        (2.5, "Tbyte/s", (2.5e12, "byte/s")),
        (1, "Gbyte/second", (1e9, "byte/s")),
        (7, "inst", (7, "inst")),
        (40, "%", (40, "%")),
        (1, "Ghz", (1, "Ghz")),
    ],
)
@pytest.mark.parametrize("form", [wide, long])
def test_units_are_unscaled(tmp_path, form, value, unit, base):
    found = read(written(tmp_path, form([Profiled(A, 1, {"metric": (value, unit)})])))
    assert (found[0].metrics["metric"], found[0].units["metric"]) == base


def test_what_is_no_number_is_left_out(tmp_path):
    metrics = {"a": ("n/a", ""), "b": ("240; 240; 240", "Kbyte"), "c": ("(!) nan", "%"), "d": ("nan", "%")}
    metrics["e"] = (1, "%")
    assert read(written(tmp_path, wide([Profiled(A, 1, metrics)])))[0].metrics == {"e": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no CSV of ncu's"),
        ("loss 2.31\n", "holds no CSV of ncu's"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "run it as root"),
        ("==WARNING== No kernels were profiled.\n", "opened no range that the filter names"),
        (long([]), "holds no launch"),
        (wide([Profiled(A, 1, {"a": ("9,00", "%")})]), "decimal comma"),
        (wide([usual(A)]).replace('"0","4242"', '"x","4242"'), "which is not a number"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, text, says):
    with pytest.raises(NotAReport) as raised:
        read(written(tmp_path, text))
    assert says in str(raised.value)


STEPS = [Range("step", 0, 400), Range("forward", 10, 100), Range("softmax", 20, 90)]
AGAIN = [Range("step", 500, 900), Range("forward", 510, 600), Range("softmax", 520, 590)]


def report(folder):
    """Write two steps; softmax launches A, B, A in each, and the forward B before it."""
    first, second = ((12, 14), (22, 24), (32, 34), (42, 44)), ((512, 514), (522, 524), (532, 534), (542, 544))
    calls = launched(*first, *second)
    names = [B, A, B, A] * 2
    work = [type(one)(**{**vars(one), "name": name}) for one, name in zip(calls["work"], names, strict=True)]
    return build(folder, ranges=STEPS + AGAIN, launches=calls["launches"], work=work)


def shown(folder, capsys, text):
    """Return the rows and the notes of `--read` as JSON has them."""
    file = str(written(folder, text))
    assert ncu.main([str(report(folder)), "--read", file, "--range", "softmax", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    return {row["kernel"]: row for row in answer["tables"][0]["rows"]}, " ".join(answer["notes"])


@pytest.mark.parametrize("form", [wide, long])
def test_counters_are_columns_of_the_ranking_and_launches_agree(tmp_path, capsys, form):
    text = form([usual(A, time_ns=1_000, sm=10.0), usual(B), usual(A, time_ns=3_000, sm=50.0)] * 2)
    rows, notes = shown(tmp_path, capsys, text)
    assert (rows[A]["launches"], rows[A]["profiled"], rows[A]["mean_ns"]) == (4, 4, 10)
    assert rows[A][TIME] == 2_000
    assert rows[A][SM] == pytest.approx((10 * 1_000 + 50 * 3_000) / 4_000)
    assert (rows[B]["launches"], rows[B]["profiled"]) == (2, 2)
    assert notes == "The file has the report's 6 launches, all joined."


def test_whole_steps_of_another_number_are_joined_and_said(tmp_path, capsys):
    rows, notes = shown(tmp_path, capsys, wide([usual(A), usual(B), usual(A)] * 3))
    assert (rows[A]["launches"], rows[A]["profiled"]) == (4, 6)
    assert "ncu's file has 3 steps of these kernels, the report 2." in notes
    assert "6 launches in the report, 9 of these kernels in ncu's file." in notes


def test_a_mismatch_is_said_and_its_counters_left_out(tmp_path, capsys):
    rows, notes = shown(tmp_path, capsys, wide([usual(A)] * 3 + [usual(B)] * 2 + [usual("void other()")]))
    assert (rows[A]["launches"], rows[A]["profiled"], rows[A][TIME]) == (4, 0, None)
    assert rows[B][TIME] == 2_000
    assert "4 launches in the report, 3 in ncu's file; its counters are left out." in notes
    assert "1 launch in ncu's file is of no kernel in these ranges (other)." in notes


def test_a_name_that_ncu_spells_otherwise_is_taken_by_its_function(tmp_path, capsys):
    rows, _ = shown(tmp_path, capsys, wide([usual("first_kernel"), usual(B), usual("first_kernel")] * 2))
    assert rows[A]["profiled"] == 4


def test_people_see_the_usual_metrics_and_the_main_stall_at_80_columns(tmp_path, capsys):
    stalls = (("long_scoreboard", 6.0), ("barrier", 1.0), ("selected", 3.0))
    file = written(tmp_path, wide([usual(A, stalls=stalls), usual(B), usual(A, stalls=stalls)] * 2))
    assert ncu.main([str(report(tmp_path)), "--range", "softmax", "--read", str(file)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for word in ("long scoreboard 60%", "occupancy", "DRAM", "50.0", "80.0"):
        assert word in " ".join(out.split()), out


STAND_IN = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
pathlib.Path({heard!r}).write_text("\\n".join(words))
subprocess.run(words[words.index("--") + 1 :], check=True)
pathlib.Path(words[words.index("--log-file") + 1]).write_text({text!r})
sys.exit({status})
"""


def stand_in(folder, monkeypatch, text, status=0):
    """Put a program called ncu on the PATH, which runs the program and writes a text."""
    path, heard = folder / "bin" / "ncu", folder / "heard"
    path.parent.mkdir()
    path.write_text(STAND_IN.format(python=sys.executable, heard=str(heard), text=text, status=status))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return heard


def test_run_profiles_the_program_and_reads_what_ncu_wrote(tmp_path, monkeypatch, capfd):
    heard = stand_in(tmp_path, monkeypatch, wide([usual(A), usual(B), usual(A)] * 2))
    program = [sys.executable, "-c", "print('trained')"]
    options = ["--range", "softmax", "--run", "--counters", str(tmp_path / "c.csv")]
    assert ncu.main([str(report(tmp_path)), *options, "--", *program]) == 0
    said = capfd.readouterr()
    assert "trained" in said.out
    assert "all joined" in " ".join(said.out.split())
    assert "exactly these 6 kernels" in said.err
    words = heard.read_text().splitlines()
    assert words[words.index("--nvtx-include") + 1] == "softmax/"
    assert words[words.index("--metrics") + 1].startswith(f"{TIME},{OCCUPANCY}")
    assert words[words.index("--") + 1 :] == program


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access …\n", 1, "run it as root"),
        ("==ERROR== Failed to find metric sm__nothing\n", 1, "does not know the metric sm__nothing"),
        ("==ERROR== The application returned an error code (1).\n", 1, "ncu ended with status 1. The application"),
        ("==WARNING== No kernels were profiled.\n", 0, "ncu profiled no kernel"),
    ],
)
def test_a_refusal_of_ncus_is_one_sentence(tmp_path, monkeypatch, capfd, text, status, says):
    stand_in(tmp_path, monkeypatch, text, status)
    options = ["--range", "softmax", "--run", "--counters", str(tmp_path / "c.csv")]
    assert ncu.main([str(report(tmp_path)), *options, "--", "true"]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert says in error


def test_without_ncu_the_places_where_it_was_sought_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(path.is_file() for place in USUAL_PLACES for path in Path("/").glob(place)):
        pytest.skip("ncu is installed here")
    assert ncu.main([str(report(tmp_path)), "--range", "softmax", "--run", "--", "true"]) == 1
    assert "ncu was not found on PATH" in capsys.readouterr().err


def test_the_command_is_printed_as_a_shell_takes_it(tmp_path, capsys):
    program = ["python", "train.py", "--size", "a b"]
    options = ["--range", "softmax", "--metrics", "x, y"]
    assert ncu.main([str(report(tmp_path)), *options, "--", *program]) == 0
    out = capsys.readouterr().out
    assert "--nvtx-include softmax/" in out
    assert "--metrics x,y" in out
    assert "WarpStateStats" not in out
    assert "-- python train.py --size 'a b'" in out
    assert "# By the report, it profiles exactly these 6 kernels." in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "Name the kernels to profile"),
        (["--range", "softmax", "--run"], "--run needs the program"),
        (["--range", "softmax", "--read", "x.csv", "--", "python"], "is for --run"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, capsys, options, says):
    assert ncu.main([str(report(tmp_path)), *options]) == 2
    assert says in capsys.readouterr().err


def test_ranges_that_are_not_there_are_named(tmp_path, capsys):
    assert ncu.main([str(report(tmp_path)), "--range", "sotfmax"]) == 1
    assert "no kernel in ranges that match 'sotfmax'. Ranges: step, forward, softmax." in capsys.readouterr().err


def test_other_grids_are_another_program(tmp_path, capsys):
    mine = [Twin(0, ("a",), 8), Twin(1, ("a",), 8)]
    there = read(written(tmp_path, wide([usual(A, 8), usual(A, 9)])))
    assert _problem(mine, there, 2) == "1 launch has other grids in ncu's file; its counters are left out."
    assert ncu_csv.usual(A).blocks == 0


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_kernels_in_a_file_of_a_real_ncu_are_found_among_those_of_nsys(phase):
    names = {one.kernel for one in read(DATA / f"ncu_softmax_{phase}.csv")}
    known = kernels_of(DATA / "h200_train_fp32.sqlite")
    found = {name: [other for other in known if abridged(other) == abridged(name)] for name in names}
    assert len(names) >= 5
    assert {name: others for name, others in found.items() if len(others) != 1} == {}


def test_an_abridged_name_is_joined(tmp_path, capsys):
    name, short = "void at::native::f<(int)4, at::native::Op<float>>(int)", "void f<4, Op<float>>(int)"
    path = build(tmp_path, ranges=[Range("forward", 0, 500)], **launched((10, 20), (110, 120), name=name))
    counters = written(tmp_path, wide([usual(short, 1), usual(short, 1)]))
    ncu.main([str(path), "--range", "forward", "--read", str(counters), "--format", "json"])
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert [row[TIME] for row in rows if row.get(TIME)] != []
