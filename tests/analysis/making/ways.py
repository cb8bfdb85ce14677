"""How else a command can be given something hostile: other formats, options, output targets.

A `Way` is added to a changed report of `mutations`: the report may come gzipped or as a folder of Parquet files
with bytes and columns changed, with options that nobody meant, and the answer may go where no regular file is.
"""

import gzip
import os
import shutil
import sqlite3
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from nvtx_kernels.analysis import compare, doctor, kernels, page, questions, scrub, timeline

from tests.analysis.making import checks, nodes
from tests.analysis.making.mutations import INTEGERS, NAMES
from tests.analysis.making.parquet_folders import as_parquet

COMMANDS = {
    "kernels": (kernels, "REPORT"), "questions": (questions, "REPORT"), "compare": (compare, "OTHER REPORT"),
    "timeline": (timeline, "REPORT"), "page": (page, "REPORT"), "doctor": (doctor, "REPORT"),
    "scrub": (scrub, "REPORT"), "check": (scrub, "REPORT --check"),
}  # fmt: skip
#: Needed by some, impossible with others.
ALWAYS_WRITES = ("timeline", "page", "scrub")
NEVER_WRITES = ("doctor", "check")
# What is not tried: they answer with help, leave for the network, or are chosen by the way itself.
NOT_TRIED = {"help", "scheduler", "output", "check"}
NODES = ("pipe", "characters", "disk", "bound_socket", "a_folder")
TARGETS = (
    "none", "a file", "an old file", "a link", "a link to nowhere", "a long name", "the report", "no folder",
    *NODES,
)  # fmt: skip
FORMS = ("as it is", "as it is", "gzip", "gzip, damaged", "parquet", "parquet", "parquet, other columns")
IN_COLUMNS = ("twice", "in capitals", "gone", "as text", "as decimals", "empty")


@dataclass(frozen=True)
class Way:
    """What is asked of which command, in which form the report comes, and where the answer goes."""

    command: str
    form: str
    target: str
    options: tuple[tuple[int, int, object], ...]
    numbers: tuple[int, ...]


WORDS = st.one_of(st.sampled_from(NAMES), st.sampled_from(INTEGERS), st.text(max_size=8), st.just("forward=3ms"))
WAYS = st.builds(
    Way, st.sampled_from([*COMMANDS, "kernels", "kernels", "kernels"]), st.sampled_from(FORMS),
    st.sampled_from([*TARGETS, *["none"] * len(TARGETS)]),
    st.just(()) | st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), WORDS), max_size=3).map(tuple),
    st.lists(st.integers(0, 1 << 20), min_size=8, max_size=8).map(tuple),
)  # fmt: skip


def go(folder, whole, content, way):
    """Ask what a way asks; return whether it is answered, and assert that nothing else was touched."""
    report = put(folder, whole, content, way)
    before = bytes_of(report)
    (folder / "whole.sqlite").write_bytes(whole)
    (folder / "out").mkdir()
    target = target_of(folder / "out", report, way)
    mode = target.lstat().st_mode if target is not None and os.path.lexists(target) else None
    status, out, err = asked(way, report, folder / "whole.sqlite", target)
    assert_said(way, status, out, err)
    assert bytes_of(report) == before
    assert mode is None or stat.S_IFMT(target.lstat().st_mode) == stat.S_IFMT(mode), way.target
    assert {path.name for path in folder.iterdir()} == {report.name, "whole.sqlite", "out"}
    assert not list((folder / "out").rglob(".*"))
    return status == 0


def put(folder, whole, content, way):
    """Write the report in its form; what cannot be had in a form comes as it is."""
    if way.form.startswith("parquet") and not whole.lstrip().startswith(b"{"):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError, sqlite3.Error):
            (folder / "whole.sqlite").write_bytes(whole)
            return _as_parquet(folder, way)
        shutil.rmtree(folder / "report", ignore_errors=True)
    if way.form.startswith("gzip") and content.lstrip().startswith(b"{"):
        content = bytearray(gzip.compress(content, compresslevel=1, mtime=0))
        if way.form.endswith("damaged"):
            _scatter(content, way.numbers)
    report = folder / ("report.json.gz" if content[:2] == b"\x1f\x8b" else "report.sqlite")
    report.write_bytes(content)
    return report


def _as_parquet(folder, way):
    tables = as_parquet(folder / "whole.sqlite", folder / "report")
    files = sorted(tables.iterdir())
    file = files[way.numbers[0] % len(files)]
    if way.form == "parquet":
        content = bytearray(file.read_bytes())
        _scatter(content, way.numbers[1:])
        file.write_bytes(content)
    else:
        change = IN_COLUMNS[way.numbers[1] % len(IN_COLUMNS)]
        pq.write_table(_with_other_columns(pq.read_table(file), change, way.numbers[2]), file)
    return tables


def _with_other_columns(table, change, number):
    at = number % max(1, len(table.column_names))
    if change == "empty" or not table.column_names:
        return table.slice(0, 0)
    name = table.column_names[at]
    column = table.column(at)
    if change == "twice":
        return table.append_column(name, column)
    if change == "in capitals":
        return table.rename_columns([name.upper() if name == other else other for other in table.column_names])
    if change == "gone":
        return table.remove_column(at)
    return table.set_column(at, name, column.cast(pa.string() if change == "as text" else pa.float64()))


def _scatter(content, numbers):
    for place, value in zip(numbers[::2], numbers[1::2], strict=False):
        if content:
            content[place % len(content)] = value % 256


def target_of(folder, report, way):
    """Make what the answer is to be written to; None for the screen."""
    name = "none" if way.command in NEVER_WRITES else way.target
    if name == "none" and way.command in ALWAYS_WRITES:
        name = "a file"
    made = {
        "none": lambda: None,
        "a file": lambda: folder / "answer",
        "an old file": lambda: _file(folder / "old"),
        "a link": lambda: _link(folder / "link", _file(folder / "behind")),
        "a link to nowhere": lambda: _link(folder / "link", folder / "nowhere" / "x"),
        "a long name": lambda: folder / ("x" * 300),
        "the report": lambda: report,
        "no folder": lambda: folder / "no" / "folder",
    }
    return made[name]() if name in made else getattr(nodes, name)(folder)


def _file(path):
    path.write_bytes(b"old")
    return path


def _link(path, to):
    path.symlink_to(to)
    return path


def asked(way, report, other, target):
    """Run the command; return its exit status, what it printed and its errors."""
    command, words = COMMANDS[way.command]
    files = {"REPORT": str(report), "OTHER": str(other)}
    known = [
        action for action in command.parser()._actions if action.option_strings and action.dest not in NOT_TRIED
    ]
    chosen = [
        word
        for at, value, text in way.options
        if known
        for word in _option(known[at % len(known)], value, text, other)
    ]
    words = [files.get(word, word) for word in words.split()]
    output = [] if target is None else ["-o", str(target)]
    return checks.said(command, *words, *chosen, *output)


def _option(action, value, text, other):
    name = action.option_strings[-1]
    if action.nargs == 0:
        return [name]
    if action.choices and value < 8:
        choices = list(action.choices)
        return [f"{name}={choices[value % len(choices)]}"]
    if action.type is Path:
        return [f"{name}={other if value % 2 else other.parent}"]
    return [f"{name}={text}".replace("\0", "")]


def assert_said(way, status, out, err):
    command = COMMANDS[way.command][0]
    assert status in checks.STATUSES.get(command, (0, 1, 2)), err
    refused = status in (1, 2) and not out
    assert checks.SENTENCE.fullmatch(err) if refused else not err or status == compare.RULE_VIOLATED, err
    assert checks.HARMLESS.fullmatch(err), err
    assert not checks.OUT_OF_MEMORY.search(err), err


def bytes_of(report):
    if report.is_dir():
        return {path.name: path.read_bytes() for path in report.iterdir()}
    return report.read_bytes()
