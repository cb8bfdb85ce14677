"""Progress is counted by rows, and drawn only where somebody waits at a terminal."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import rich.progress  # noqa: F401  as a command has it loaded when it has something to draw
from nvtx_kernels.analysis.support import progress

from nvtx_kernels import analysis

ROOT = Path(__file__).parents[3]
REPORT = ROOT / "tests" / "data" / "h200_train_fp32.sqlite"
COMMANDS = [f"kernels {REPORT}", f"kernels {REPORT} --like-nsys", f"compare {REPORT} {REPORT}", f"doctor {REPORT}"]


def test_readers_read_as_many_rows_as_they_expected():
    changes = []
    with progress.listening(lambda expected, read: changes.append((expected, read))):
        trace = analysis.read(REPORT)
    expected, read = (sum(column) for column in zip(*changes, strict=True))
    assert read >= len(trace.ranges) + len(trace.launches) + len(trace.work)
    assert expected >= read


@contextlib.contextmanager
def terminal():
    """Yield the number of a terminal, and what it got.

    A terminal hands out a few kilobytes at once, which may end within a character: it is read all the while, and
    decoded as a whole.
    """
    ours, theirs = pty.openpty()
    pieces, drawn = [], []

    def read_all():
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while piece := os.read(ours, 4096):
                pieces.append(piece)

    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        yield theirs, drawn
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
        drawn.append(b"".join(pieces).decode())


@pytest.fixture
def drawn_by(monkeypatch):
    """Run something whose stderr is a terminal, and return what the terminal got."""

    def run(call, silent_s=0.05):
        monkeypatch.setattr(progress, "SILENT_S", silent_s)
        with (
            terminal() as (number, drawn),
            open(number, "w", closefd=False) as stderr,
            contextlib.redirect_stderr(stderr),
        ):
            call()
        return drawn[0]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield run
    sys.setswitchinterval(before)


def slow():
    with progress.on_screen():
        progress.expect(100)
        for _ in range(10):
            progress.advance(10)
            time.sleep(0.05)
    sys.stdout.write("done")


def test_a_terminal_that_waits_gets_a_bar_and_stdout_stays_clean(drawn_by, capsys):
    assert "reading rows" in drawn_by(slow)
    assert capsys.readouterr().out == "done"


@pytest.mark.parametrize("command", [*COMMANDS, f"page {REPORT} -o {{}}/o", f"timeline {REPORT} -o {{}}/o"])
def test_every_command_that_reads_says_so_to_a_terminal(command, tmp_path, drawn_by):
    module, *words = command.format(tmp_path).split()
    main = import_module(f"nvtx_kernels.analysis.{module}").main
    assert "reading rows" in drawn_by(partial(main, words), silent_s=0)


def staged():
    with progress.on_screen():
        with progress.stage("exporting with nsys"):
            progress.expect(100)
            progress.advance(30)
            time.sleep(0.4)
        progress.expect(5)
        time.sleep(0.4)


def test_a_stage_has_a_name_and_a_count_of_its_own(drawn_by):
    before, _, after = re.split(r"(exporting with nsys.*30/100)", drawn_by(staged), maxsplit=1, flags=re.DOTALL)
    assert "reading rows" not in before
    assert re.search(r"reading rows.*0/5", after, re.DOTALL)


def test_a_file_gets_no_bar(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SILENT_S", 0.05)
    with contextlib.redirect_stderr(io.StringIO()) as file:
        slow()
    assert (capsys.readouterr().out, file.getvalue()) == ("done", "")


MANY = f"""
from pathlib import Path
from nvtx_kernels.analysis.summary import parallel as many
from nvtx_kernels.analysis.support import progress
from tests.analysis.making.ranking_workers import summary
progress.SILENT_S = 0.05
paths = [Path({str(REPORT)!r})] + [Path("missing%d.sqlite" % n) for n in range(2)]
print([bool(one.report) for one in many.rank_all(paths, summary)])
"""


def test_a_terminal_that_waits_for_many_reports_gets_one_bar_over_them():
    command = [sys.executable, "-c", MANY]
    with terminal() as (number, told):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=number, text=True, check=True)
    (drawn,) = told
    assert done.stdout == "[True, False, False]\n"
    assert "ranking reports" in drawn
    assert re.search(r"[0-3]/3", drawn)
    assert "reading rows" not in drawn


def test_many_reports_ranked_into_a_file_leave_no_bar_in_it():
    done = subprocess.run([sys.executable, "-c", MANY], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[True, False, False]\n", "")


def test_each_item_is_a_piece_of_the_progress():
    changes = []
    with progress.listening(lambda expected, read: changes.append((expected, read))):
        assert list(progress.each(iter("abc"), 3)) == ["a", "b", "c"]
    assert changes == [(3, 0), (0, 1), (0, 1), (0, 1)]
