"""What must hold of every command on any file: `check(folder, whole, content, number)` runs one of `CHECKS`."""

import contextlib
import io
import json
import re
import sqlite3
from contextlib import closing

from analysis import compare, doctor, kernels, page, scrub, timeline

PARTS = ("own_ns", "adopted_ns", "linked_ns", "outside_ns", "ambiguous_ns", "excluded_ns")
HARMLESS = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*")
SENTENCE = re.compile(r"error: [^\n]+\n")
WHOLE = ("--no-cache", "--format", "json", "--operators", "keep")

# Commands, with REPORT for the changed report, OTHER for the whole one, and OUT for a file to write.
COMMANDS = (
    (kernels, "REPORT", "--no-cache", "--full-names"),
    (kernels, "REPORT", "--no-cache", "--format", "csv", "--operators", "keep", "--include-warmup"),
    (kernels, "REPORT", "--no-cache", "--format", "markdown", "--every-index", "--per-step"),
    (kernels, "REPORT", "--no-cache", "--format", "latex", "--domain", "nvtx-kernels"),
    (kernels, "REPORT", "--like-nsys"),
    (kernels, "REPORT", "--no-cache", "--by", "category", "--phase", "backward", "--format", "typst"),
    (kernels, "REPORT", "--view", "phases"),
    (kernels, "REPORT", "--view", "attention"),
    (kernels, "REPORT", "--view", "steps"),
    (kernels, "REPORT", "--view", "balance"),
    (kernels, "REPORT", "--view", "overlap"),
    (kernels, "REPORT", "--view", "explain", "--kernel", "gemm"),
    (compare, "OTHER", "REPORT", "--fail-on", "total > +5%"),
    (timeline, "REPORT", "-o", "OUT"),
    (page, "REPORT", "-o", "OUT"),
    (doctor, "REPORT"),
    (scrub, "REPORT", "--check"),
)
VIOLATED = compare, compare.RULE_VIOLATED
STATUSES = {scrub: (0, 1, 2, scrub.WOULD_LEAK), compare: (0, 1, 2, compare.RULE_VIOLATED)}


def said(command, *words):
    """Run a command in this process; return its exit status and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command.main([str(word) for word in words])
    return status, out.getvalue(), err.getvalue()


def answer(command, *words):
    """Run a command; assert that it answers or says one sentence; return the answer, None where it refuses."""
    status, out, err = said(command, *words)
    assert status in STATUSES.get(command, (0, 1, 2))
    refused = status in (1, 2) and not out
    assert not err or (SENTENCE.fullmatch(err) if refused else (command, status) == VIOLATED), err
    return None if refused else out


def command_is_proper(folder, number):
    """Run a command of the table; what is for people holds no control characters."""
    command, *words = COMMANDS[number]
    files = {"REPORT": folder / "report.sqlite", "OTHER": folder / "whole.sqlite", "OUT": folder / "out"}
    out = answer(command, *(files.get(word, word) for word in words))
    assert out is None or "csv" in words or HARMLESS.fullmatch(out)
    files["OUT"].unlink(missing_ok=True)


def figures_add_up(folder):
    """Assert that no nanosecond is lost or counted twice."""
    out = answer(kernels, folder / "report.sqlite", *WHOLE)
    if out is None:
        return
    found = json.loads(out)
    totals = found["totals"]
    assert sum(totals[part] for part in PARTS) == totals["work_ns"]
    assert min(totals[part] for part in PARTS) >= 0
    own = sum(entry["self_work_ns"] for entry in found["ranges"])
    assert own + totals["outside_ns"] + totals["ambiguous_ns"] + totals["excluded_ns"] == totals["work_ns"]


def copy_answers_alike(folder):
    """Assert that a copy to share answers as its report does, or is refused.

    Of a damaged tree, SQLite finds other rows in another order: then no two readings need agree.
    """
    report, copy = folder / "report.sqlite", folder / "copy" / "report.sqlite"
    copy.parent.mkdir()
    made = answer(scrub, report, "-o", copy)
    if made is not None and "cut out of names" not in made and sound(report):
        expected = answer(kernels, report, *WHOLE)
        assert expected is None or answer(kernels, copy, *WHOLE) == expected
    copy.unlink(missing_ok=True)
    copy.parent.rmdir()


def sound(report):
    """Tell whether SQLite finds nothing wrong with a file."""
    with closing(sqlite3.connect(report)) as database:
        try:
            return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        except (sqlite3.Error, UnicodeError):
            return False


CHECKS = (
    *([command_is_proper, number] for number in range(len(COMMANDS))),
    *([figures_add_up] for _ in range(4)),
    *([copy_answers_alike] for _ in range(4)),
)


def check(folder, whole, content, number):
    """Write a changed report beside the whole one, run one check, and assert that neither file was touched."""
    (folder / "report.sqlite").write_bytes(content)
    (folder / "whole.sqlite").write_bytes(whole)
    check_, *arguments = CHECKS[number]
    check_(folder, *arguments)
    assert (folder / "report.sqlite").read_bytes() == content
    assert sorted(path.name for path in folder.iterdir()) == ["report.sqlite", "whole.sqlite"]
