"""Copies to share, and what can be asked of them and of their reports."""

import json
import sqlite3
from contextlib import closing

from nvtx_kernels.analysis import kernels, scrub

from tests.analysis.making.checks import said, without_names


def scrubbed(report, *options):
    """Return the copy of a report, in a folder of its own."""
    copy = report.parent / f"shared{len(options)}" / f"{report.name.partition('.')[0]}.sqlite"
    copy.parent.mkdir(exist_ok=True)
    status, _, err = said(scrub, str(report), "-o", str(copy), *options)
    assert (status, err) == (0, "")
    return copy


def answers(report, capsys, options):
    """Return all that the command says, and its exit status."""
    capsys.readouterr()
    status = kernels.main([str(report), *options])
    return status, *(text.replace(str(report), "REPORT") for text in capsys.readouterr())


def figures(report, *options):
    """Return what the report answers, without any names."""
    status, answer, _ = said(kernels, str(report), "--format", "json", *options)
    return status, without_names(json.loads(answer or "0"))


def rows(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def inside(path, sql, *parameters):
    """Change a report."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql, parameters)
        connection.commit()
