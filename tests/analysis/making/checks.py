"""What must hold of every command on any file: `check(folder, whole, content, CHECKS[number])`."""

import contextlib
import csv
import io
import json
import os
import re
import sqlite3
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
from nvtx_kernels.analysis import compare, doctor, kernels, page, questions, scrub, timeline, view
from nvtx_kernels.analysis.presenters.as_csv import FORMULA_STARTS

from tests.analysis.making.parquet_folders import as_parquet

BY_PATH = {"flops", "bytes"}  # of a run: a number per path
PARTS = ("own_ns", "adopted_ns", "linked_ns", "captured_ns", "outside_ns", "ambiguous_ns", "excluded_ns")
HARMLESS = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*")
SENTENCE = re.compile(r"error: [^\n]+\n")
OUT_OF_MEMORY = re.compile(r"(?:not enough|out of) memory")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
STATUSES = {scrub: (0, 1, 2, scrub.WOULD_LEAK), compare: (0, 1, 2, compare.RULE_VIOLATED)}
VIOLATED = compare, compare.RULE_VIOLATED
ADDED_UP = "REPORT --format json --operators keep"


def is_harmless(out, folder):
    """What is for people holds no control characters."""
    assert HARMLESS.fullmatch(out)


def is_csv(out, folder):
    """No spreadsheet takes a cell for a formula."""
    cells = [cell for row in csv.reader(io.StringIO(out, newline="")) for cell in row]
    assert all(NUMBER.fullmatch(cell) for cell in cells if cell.startswith(FORMULA_STARTS))


def is_json(out, folder):
    """Numbers are finite, as other programs need them."""
    assert parsed(out)


def is_timeline(out, folder):
    """The timeline parses."""
    assert parsed((folder / "out" / "report.sqlite").read_text())["traceEvents"]


def is_page(out, folder):
    """No name of a range or a kernel is a script of the page."""
    assert "<script>alert(1)" not in (folder / "out" / "report.sqlite").read_text()


def adds_up(out, folder):
    """No nanosecond is lost or counted twice."""
    found = parsed(out)
    totals = found["totals"]
    assert sum(totals[part] for part in PARTS) == totals["work_ns"]
    assert min(totals[part] for part in PARTS) >= 0
    own = sum(entry["self_work_ns"] for entry in found["ranges"])
    assert own + totals["outside_ns"] + totals["ambiguous_ns"] + totals["excluded_ns"] == totals["work_ns"]


def answers_alike(out, folder):
    """A copy to share answers as its report does, or is refused.

    Of a damaged tree, SQLite finds other rows in another order: then no two readings need agree.
    """
    report = folder / "report.sqlite"
    if sound(report):
        expected, found = (answer(kernels, place, ADDED_UP) for place in (folder, folder / "out"))
        if expected is not None:
            assert without_names(parsed(found)) == without_names(parsed(expected))


def without_names(value):
    """Return an answer's numbers, rows that differ in names alone in any order."""
    if isinstance(value, dict):
        return [(key, without_names(by_rows(part) if key in BY_PATH else part)) for key, part in value.items()]
    if isinstance(value, list):
        return sorted(map(without_names, value), key=repr)
    return "" if isinstance(value, str) else value


def by_rows(value):
    """Return a table whose keys are names as rows; `flops` of a row is a number."""
    return [list(row) for row in value.items()] if isinstance(value, dict) else value


def answers_as_parquet(out, folder):
    """The same tables as a Parquet folder give the same answer, or are refused for what no column can hold."""
    report = folder / "report.sqlite"
    if not sound(report):
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        tables = Path(beside, "tables")
        try:
            as_parquet(report, tables)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # values of several kinds in one column
            return
        status, found, err = said(kernels, str(tables), *ADDED_UP.split()[1:])
        assert SENTENCE.fullmatch(err) if status else not err, err
        if not status:
            assert without_file(found) == without_file(out)


def survives_damaged_parquet(out, folder):
    """A Parquet folder with changed bytes is refused, or its work adds up."""
    if not sound(folder / "whole.sqlite"):  # it is a trace
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        tables = as_parquet(folder / "whole.sqlite", Path(beside, "tables"))
        random = Random(zlib.crc32((folder / "report.sqlite").read_bytes()))
        for file in random.sample(sorted(tables.iterdir()), 3):
            content = bytearray(file.read_bytes())
            for _ in range(random.choice((1, 1, 4, 40))):
                content[random.randrange(len(content))] = random.randrange(256)
            file.write_bytes(content)
        _adds_up_or_is_refused(tables)


def _adds_up_or_is_refused(tables):
    status, found, err = said(kernels, str(tables), *ADDED_UP.split()[1:])
    assert SENTENCE.fullmatch(err) if status else not err, err
    assert HARMLESS.fullmatch(err), err
    if not status:
        adds_up(found, tables)


# What is done to a file of a Parquet folder, given another one.
PARQUET_PARTS = {
    "gone": lambda file, other: file.unlink(),
    "empty": lambda file, other: file.write_bytes(b""),
    "another table": lambda file, other: file.write_bytes(other.read_bytes()),
    "rows again": lambda file, other: _rewritten(file, lambda table: pa.concat_tables([table, table])),
    "in parts": lambda file, other: _rewritten(file, lambda table: table, row_group_size=2),
    "no rows": lambda file, other: _rewritten(file, lambda table: table.slice(0, 0)),
    "a column twice": lambda file, other: _rewritten(file, lambda table: table.append_column("again", table[0])),
    "a column gone": lambda file, other: _rewritten(file, lambda table: table.drop_columns(table.column_names[1])),
    "a column renamed": lambda file, other: _rewritten(
        file, lambda table: table.rename_columns([*table.column_names[:-1], table.column_names[0]])
    ),
    "columns of lists": lambda file, other: _rewritten(file, _in_lists),
    "a folder": lambda file, other: (file.unlink(), file.mkdir()),
    "a link to nothing": lambda file, other: (file.unlink(), file.symlink_to("nothing")),
    "a link to itself": lambda file, other: (file.unlink(), file.symlink_to(file.name)),
    "a pipe": lambda file, other: (file.unlink(), os.mkfifo(file)),
}  # fmt: skip


def _in_lists(table):
    return pa.table(
        {name: pa.array([[value] for value in table[name].to_pylist()]) for name in table.column_names}
    )


def _rewritten(file, change, **how):
    pq.write_table(change(pq.read_table(file)), file, **how)


def survives_other_parquet_parts(out, folder):
    """A Parquet folder of which files are others is refused, or its work adds up."""
    if not sound(folder / "whole.sqlite"):
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        tables = as_parquet(folder / "whole.sqlite", Path(beside, "tables"))
        random = Random(zlib.crc32((folder / "report.sqlite").read_bytes()))
        files = sorted(tables.iterdir())
        for file, other in zip(random.sample(files, 2), random.sample(files, 2), strict=True):
            with contextlib.suppress(
                pa.ArrowException, OSError, IndexError, ValueError
            ):  # is no such table any more
                PARQUET_PARTS[random.choice([*PARQUET_PARTS])](file, other)
        _adds_up_or_is_refused(tables)


def without_file(out):
    """Return an answer in JSON without the name of the report."""
    found = parsed(out)
    del found["report"]["file"]
    return found


# Command; its words, with REPORT for the changed report, OTHER for the whole one, OUT for a file to write; what
# must hold where it answers.
CHECKS = (
    (kernels, "REPORT --full-names", is_harmless),
    (kernels, "REPORT --format csv --operators keep --include-warmup", is_csv),
    (kernels, "REPORT --format markdown --every-index --per-step", is_harmless),
    (kernels, "REPORT --format latex --domain default", is_harmless),
    (kernels, "REPORT --format parquet -o OUT", is_harmless),
    (kernels, "REPORT --like-nsys", is_harmless),
    (kernels, "REPORT --by category --phase backward --format latex", is_harmless),
    (kernels, "REPORT --by range --range layer", is_harmless),
    (view, "agreement REPORT --timed forward=3ms", is_harmless),
    (view, "attention REPORT", is_harmless),
    (view, "steps REPORT", is_harmless),
    (view, "idle REPORT --launches", is_harmless),
    (view, "communication REPORT", is_harmless),
    (view, "kernels REPORT --kernel gemm", is_harmless),
    (questions, "REPORT", is_harmless),
    (questions, "REPORT --format csv", is_csv),
    (compare, "OTHER REPORT --fail-on total>+5%", is_harmless),
    (compare, "REPORT OTHER --format json", is_json),
    (timeline, "REPORT -o OUT", is_timeline),
    (page, "REPORT OTHER -o OUT", is_page),
    (doctor, "REPORT", is_harmless),
    (doctor, "REPORT --json", is_json),
    (scrub, "REPORT --check", is_harmless),
    (scrub, "REPORT -o OUT --keep layer*", is_harmless),
    *[(kernels, ADDED_UP, adds_up)] * 4,
    *[(kernels, ADDED_UP, answers_as_parquet)] * 2,
    *[(kernels, ADDED_UP, survives_damaged_parquet)] * 2,
    *[(kernels, ADDED_UP, survives_other_parquet_parts)] * 2,
    *[(scrub, "REPORT -o OUT", answers_alike)] * 4,
)


def check(folder, whole, content, command_and_rule):
    """Write a changed report beside the whole one, run one check, and assert that neither file was touched.

    Returns whether the command answered.
    """
    files = {"report.sqlite": content, "whole.sqlite": whole}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "out").mkdir()
    command, words, holds = command_and_rule
    out = answer(command, folder, words)
    if out is not None:
        holds(out, folder)
    assert [(folder / name).read_bytes() for name in files] == [*files.values()]
    assert sorted(path.name for path in folder.iterdir()) == ["out", *files]
    assert [path.name for path in (folder / "out").iterdir()] in ([], ["report.sqlite"])
    return out is not None


def answer(command, folder, words):
    """Run a command; assert that it answers or says one sentence; return the answer, None where it refuses."""
    files = {"REPORT": "report.sqlite", "OTHER": "whole.sqlite", "OUT": "out/report.sqlite"}
    status, out, err = said(command, *(str(folder / files[w]) if w in files else w for w in words.split()))
    assert status in STATUSES.get(command, (0, 1, 2))
    refused = status in (1, 2) and not out
    assert SENTENCE.fullmatch(err) if refused else not err or (command, status) == VIOLATED, err
    assert not OUT_OF_MEMORY.search(err), err
    assert HARMLESS.fullmatch(err), err
    return None if refused else out


def said(command, *words):
    """Run a command in this process; return its exit status and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = command.main([*map(str, words)])
        except SystemExit as error:  # argparse's way to refuse, or to end with help
            status = error.code
    return status, out.getvalue(), err.getvalue()


def parsed(text):
    """Parse JSON as strict programs do, which know neither NaN nor Infinity."""
    return json.loads(text, parse_constant=lambda constant: 1 / 0)


def sound(report):
    """Return whether SQLite finds nothing wrong with a file."""
    with closing(sqlite3.connect(report)) as database:
        try:
            return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        except (sqlite3.Error, UnicodeError):
            return False
