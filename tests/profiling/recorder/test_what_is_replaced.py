"""No recording replaces a report by one with less, or any other file, and none writes through a link."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.profiling.recorder.trace_file import TraceFileError

import nvtx_kernels as nk
from tests.profiling.making import forked
from tests.profiling.making.recordings import train_on

TRAINS = """
import sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
COMPLETE = f"{TRAINS}train(20)"
LESS = {
    "a wrong option": f"import argparse; argparse.ArgumentParser().parse_args()\n{COMPLETE}",
    "an error of syntax": "def train(:",
    "no work": "print('hello')",
    "no steps": "import torch; torch.ones(3) + 1",
    "a failure in the first step": f"{TRAINS}model(torch.ones(2, 5))",
    "a failure in the third step": f"{TRAINS}train(2); model(torch.ones(2, 5))",
    "only warm-up": f"{TRAINS}train(1)",
}


def record(folder, program, *words, arguments=()):
    """Record a program by the command, and return what it said."""
    (folder / "train.py").write_text(program)
    return forked.run("-m", "nvtx_kernels", "record", *words, "train.py", *arguments, cwd=folder).stderr


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    folder = tmp_path_factory.mktemp("complete")
    record(folder, COMPLETE)
    return (folder / "report.sqlite").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("program", LESS.values(), ids=LESS)
def test_a_recording_with_less_leaves_the_report_and_says_where_it_is(tmp_path, complete, program):
    (tmp_path / "report.sqlite").write_bytes(complete)
    said = record(tmp_path, program, arguments=("--bogus",))
    assert (tmp_path / "report.sqlite").read_bytes() == complete
    others = sorted(file.name for file in tmp_path.iterdir() if file.name not in ("report.sqlite", "train.py"))
    if others:
        assert others == ["report-2.sqlite"]
        assert "report.sqlite has more, and is as it was: this recording is in report-2.sqlite." in said
    else:
        assert "No report was written: no work was seen" in said
        assert "report.sqlite is as it was." in said


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--steps", "3"), ("--steps", "all")])
def test_a_complete_recording_replaces_the_report(tmp_path, complete, words):
    (tmp_path / "report.sqlite").write_bytes(complete)
    said = record(tmp_path, COMPLETE, *words)
    assert (tmp_path / "report.sqlite").read_bytes() != complete
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.sqlite", "train.py"]
    assert "as it was" not in said


@pytest.mark.slow
def test_an_output_given_to_the_program_replaces_nothing(tmp_path, complete):
    (tmp_path / "report.sqlite").write_bytes(complete)
    said = record(tmp_path, COMPLETE, arguments=("-o", "x.sqlite"))
    right = "nvtx-kernels record -o x.sqlite train.py"
    assert said.count(f"-o x.sqlite is given to train.py. If it is for record, write: {right}\n") == 1
    assert (tmp_path / "report.sqlite").read_bytes() == complete
    assert "Next: nvtx-kernels rank report-2.sqlite" in said


def trained(path, steps=2):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, path, warmup=0) as p:
        train_on(torch.ones(2, 4), model, optimizer, steps=steps)
    return p


def fail(path):
    model = torch.nn.Linear(4, 4)
    with nk.profile(model, path=path, warmup=0) as p:
        p.step()
        model(torch.ones(2, 5))


def test_recordings_that_fail_alike_replace_each_other(path):
    for _ in range(3):
        with pytest.raises(RuntimeError):
            fail(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_profile_knows_where_its_report_is(path):
    trained(path)
    old = path.read_bytes()
    with pytest.raises(RuntimeError), nk.profile(path=path) as p:
        torch.ones(2, 4) @ torch.ones(2, 5)
    with nk.profile(path=path) as empty:
        pass
    assert (p.path.name, empty.path.name, path.read_bytes()) == ("report-2.sqlite", path.name, old)
    assert empty.outcome.next == "run the training steps inside the block"


@pytest.mark.parametrize("content", [b"import torch\n", b"SQLite format 3\0 of somebody", b"\0" * 5000])
@pytest.mark.parametrize("way", [nk.record, lambda path: nk.profile(path=path)], ids=["record", "profile"])
def test_a_file_that_is_no_recording_is_refused_at_once_and_stays(tmp_path, content, way):
    (tmp_path / "train.py").write_bytes(content)
    with pytest.raises(TraceFileError, match=r"train.py: that file is no recording, and stays. Name another one"):
        way(tmp_path / "train.py").__enter__()
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("train.py", content)]


def test_a_database_of_somebody_else_is_refused(path):
    import sqlite3

    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
    with pytest.raises(TraceFileError, match="no recording"):
        nk.record(path).__enter__()


def test_an_empty_file_is_replaced(path):
    path.touch()
    assert trained(path).rank(per_step=True).report.steps == 2


@pytest.mark.parametrize("ending", ["-my-notes.txt", "-my notes", "-²", "", "-12-notes", "-99999999-abcd.bak"])
def test_files_of_similar_names_stay_and_rename_nothing(path, ending):
    theirs = path.with_name(f"{path.name}.unfinished{ending}")
    theirs.write_text("mine")
    trained(path)
    assert theirs.read_text() == "mine"
    assert {file.name for file in path.parent.iterdir()} == {path.name, theirs.name}


@pytest.mark.parametrize("number", [1, os.getppid(), 4_000_000])
def test_what_a_killed_process_left_renames_nothing_whatever_its_number_and_goes(path, number):
    left = path.with_name(f"{path.name}.unfinished-{number}")
    left.touch()
    folder = left.with_name(f"{left.name}-sessions")
    folder.mkdir()
    (folder / "session0.pt.trace.json").touch()
    os.utime(left, (1, 1))
    assert trained(path).path == path
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("planted", ["session0.pt.trace.json.tmp", "session0.pt.trace.json", ""])
def test_nothing_is_written_through_a_planted_link(path, planted):
    victim = path.parent / "victim"
    victim.write_text("mine")
    names = [f"{path.name}.unfinished-{os.getpid()}{joint}{planted}" for joint in ("-", "-sessions", "")]
    for name in names:
        path.with_name(name).symlink_to(victim)
    trained(path)
    assert victim.read_text() == "mine"
    assert all(path.with_name(name).is_symlink() for name in names)


def test_a_planted_journal_keeps_the_times_out_and_the_victim_whole(path):
    victim = path.parent / "victim"
    journal = path.with_name(f"{path.name}-journal")
    journal.symlink_to(victim)
    trained(path, steps=40)
    assert not victim.exists()
    with pytest.raises(
        NotAReport, match=r"report\.sqlite-journal next to the report is not a regular file\. Move it"
    ):
        nk.rank(path)
    journal.unlink()
    assert nk.rank(path, per_step=True).report.steps == 10


STOPS = f"""{TRAINS}
import time
train(2)
print("training", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_recording_that_is_terminated_in_warm_up_leaves_the_report(tmp_path, complete):
    (tmp_path / "report.sqlite").write_bytes(complete)
    (tmp_path / "train.py").write_text(STOPS)
    with forked.start("-m", "nvtx_kernels", "record", "train.py", cwd=tmp_path) as run:
        assert run.stdout.readline() == b"training\n"
        time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
        said = run.stderr.read().decode()
    assert run.returncode == -signal.SIGTERM
    assert "this recording is in report-2.sqlite" in said
    assert (tmp_path / "report.sqlite").read_bytes() == complete
    assert nk.rank(Path(tmp_path, "report-2.sqlite"), include_warm_up=True).totals["work_ns"] > 0
