"""Programs as users write them, recorded as they are: what the answers say of each, at 80 columns.

Times differ from run to run, and with them the order of rows: a golden file has the sentences with # for times and
shares, and all ranges by their names. `python -m tests.profiling.test_programs` writes them anew, to be looked at.
"""

import csv
import io
import os
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from nvtx_kernels.__main__ import main
from tests.profiling.making import forked

HERE = Path(__file__).parent / "programs"
PROGRAMS = ("accumulation", "gan", "trainer", "compiled", "ppo")
FIGURE = re.compile(r"[<>≈]?\d[\d,.]*(?= ?(?:%|ns\b|µs\b|ms\b|s\b|[KM]iB\b))")
UNIT = re.compile(r"# (?:ns|µs|ms|s)\b")
VERSION = re.compile(r"(recorder|PyTorch) [\w.+]+")


def printed(*words):
    """Return what a command prints at 80 columns."""
    out = io.StringIO()
    with redirect_stdout(out), patch.dict(os.environ, {"COLUMNS": "80"}):
        assert main([*map(str, words)]) == 0
    return out.getvalue()


def recorded(program, folder):
    """Record a program by the command; return the report and the last line that the command prints."""
    report = folder / "report.sqlite"
    command = ("-W", "ignore", "-m", "nvtx_kernels", "record", "--modules", "-o", report)
    done = forked.run(*command, HERE / f"{program}.py")
    assert done.returncode == 0, done.stderr
    return report, done.stderr.strip().splitlines()[-1].replace(str(report), "report.sqlite")


def masked(text):
    """Return a text on one line, with # for what differs from run to run."""
    return VERSION.sub(r"\1 #", UNIT.sub("# T", FIGURE.sub("#", " ".join(text.split()))))


def answer(report, last_line):
    """Return what is compared: the sentences of the overview, and the ranges with their phases."""
    screen = printed("rank", report)
    assert max(map(len, screen.partition("\nMore:")[0].splitlines())) <= 80
    heading, verdict, *paragraphs = screen.split("\n\n")
    sentences = [part.partition("\nMore:")[0] for part in paragraphs if part.startswith("Note:")]
    ranges = csv.DictReader(io.StringIO(printed("rank", report, "--by", "range", "--format", "csv")))
    # What a compiler fuses differs between versions of PyTorch.
    names = sorted({f"{row['phase']:9} {re.sub(r'[^>]+ [+] .*', ' (shared)', row['path'])}" for row in ranges})
    heading = re.sub(r"\d+ of (?=\d+ steps)", "", heading)  # how many are counted depends on the machine too
    # How its sentences go on depends on what the machine did in so few steps.
    opening = re.sub(
        r"(?<=A step takes # T).*", "…", re.sub(r"^In no step, so left out[^.]*[.] ", "", masked(verdict))
    )
    return (
        "\n\n".join([masked(last_line), masked(heading), opening, *map(masked, sentences), "\n".join(names)])
        + "\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_answers_about_a_program_say_what_was_looked_at(program, tmp_path):
    if program == "compiled":
        torch = pytest.importorskip("torch")
        if not hasattr(torch.fx.traceback, "annotate"):
            pytest.skip("this PyTorch is older than 2.10: a compiled program is one piece")
    if program == "trainer":
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    golden = (HERE / "golden" / f"{program}.txt").read_text(encoding="utf-8")
    assert answer(*recorded(program, tmp_path)) == golden


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as place:
            text = answer(*recorded(name, Path(place)))
            (HERE / "golden" / f"{name}.txt").write_text(text, encoding="utf-8")
