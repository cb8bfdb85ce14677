"""Answers to the assignment's questions as the command gives them, and reports to ask, for tests."""

import json
import re
import shutil
import sqlite3
from functools import cache

import pytest
from nvtx_kernels.analysis import questions
from nvtx_kernels.analysis.document import Detail
from nvtx_kernels.analysis.presenters import as_table
from nvtx_kernels.analysis.questions.answers import document
from nvtx_kernels.analysis.questions.sweep import answered

from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.bundled import DATA
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import REPORTS, by, opened, table

RECORDED, COMPILED = DATA / "h200_recorder.sqlite", DATA / "h200_compiled.sqlite"
WORKING = [path for path in REPORTS if not path.name.startswith(("IhorAtlanov", "YoonKyonghwan"))]
FIGURE = re.compile(r"(?<!\S)[\d,]*\.\d\d+(?!\S)")
every_report = pytest.mark.parametrize("path", WORKING, ids=lambda path: path.stem[:24])


@cache
def figures(path, include_warm_up=False):
    """Answer questions of a report, once."""
    return answered(opened(path, include_warm_up=include_warm_up))


@cache
def asked(*paths, letters="abcde", include_warm_up=False, whole=False):
    """Show the answers of reports together."""
    found = [(path.name, figures(path, include_warm_up)) for path in paths]
    return document(found, letters, Detail(whole=whole))


def row(key, path=OURS, among=()):
    """Return the row of a report, alone or among others, by column."""
    if among:
        return by(asked(*among), key, "report")[path.name]
    answer = asked(path)
    if key.startswith("b_"):  # of one report, people get one table with a row for each of these
        named = {"both": "forward + backward"}
        return by(answer, "b", "of")[named.get(key[2:], key[2:])]
    [alone] = table(answer, key)
    return alone


def keys(answer):
    return [table.key for table in answer.tables]


def said(answer, width=80):
    return as_table.present(answer, width=width)


def made(tmp_path, *kernels, ranges=(), name="report.sqlite", steps=0, lasts=10):
    """Build a report of kernels (name, start of the launch), each of `lasts` ns, in a forward of 1000 ns."""
    ranges = [Range("forward", 0, 1000), *ranges, *(Range("step", 0, 1000) for _ in range(steps))]
    parts = [launched((at, at + 5), name=kernel, first=at, lasts=lasts) for kernel, at in kernels]
    rows = {key: [row for part in parts for row in part[key]] for key in parts[0]}
    return build(tmp_path, ranges=ranges, **rows).rename(tmp_path / name)


def marked(folder, name, **settings):
    """Copy our report, with other settings in its mark."""
    path = folder / f"{name}.sqlite"
    shutil.copy(OURS, path)
    database = sqlite3.connect(path)
    place, text = database.execute(
        "SELECT id, value FROM StringIds WHERE value LIKE 'nvtx-kernels.run %'"
    ).fetchone()
    word, mark = text.split(" ", 1)
    changed = f"{word} {json.dumps(json.loads(mark) | settings)}"
    database.execute("UPDATE StringIds SET value = ? WHERE id = ?", (changed, place))
    database.commit()
    database.close()
    return path


def called(capsys, *words):
    """Run the command here; return its status, output and complaints."""
    status = questions.main([str(word) for word in words])
    return (status, *capsys.readouterr())
