"""Views of reports, as the command makes them, without reading a report twice."""

from dataclasses import fields, replace
from functools import cache

from nvtx_kernels.analysis import report as reports
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.document import Detail
from nvtx_kernels.analysis.opened import Opened
from nvtx_kernels.analysis.presenters import as_table
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import accounted
from nvtx_kernels.analysis.views.registry import subject_of, viewer

from tests.analysis.making.bundled import DATA, SHARED

REPORTS = sorted([*DATA.glob("*.sqlite"), *SHARED.glob("h200/*.sqlite"), *SHARED.glob("corpus/*.sqlite")])


@cache
def attributed(path):
    """Read and attribute a report, once."""
    return attribute(read(path))


@cache
def opened(path, *, include_warm_up=False):
    """Divide the time of a report's steps, and add it up, once."""
    return Opened(*accounted(attributed(path), include_warm_up=include_warm_up))


def summarized(path, *, per_step=False, include_warm_up=False):
    """Return the sums of a report."""
    whole = opened(path, include_warm_up=include_warm_up).whole
    return reports.per_step(whole) if per_step else whole


def subject(path, *, name="idle", per_step=False, include_warm_up=False, phase=None, within=None, **options):
    """Return what a view looks at; one that matches ranges itself is named."""
    of_path = replace(opened(path, include_warm_up=include_warm_up), asked_per_step=per_step)
    detail = Detail(**{field.name: options.pop(field.name) for field in fields(Detail) if field.name in options})
    phases = (phase,) if phase else ()
    return subject_of(name, of_path, within or "", phases, detail=detail, **options)


def viewed(name, path, **options):
    """Answer the question of a view."""
    return viewer(name).view(subject(path, name=name, **options))


def table(document, key):
    """Return a table's rows as dicts by column key; of equal keys the last."""
    (found,) = (table for table in document.tables if table.key == key)
    keys = [column.key for column in found.columns]
    return [dict(zip(keys, row.values, strict=True)) for row in found.rows]


def by(document, key, column):
    """Return a table's rows as dicts, by the value of one column."""
    return {row[column]: row for row in table(document, key)}


def screen(document):
    """Draw a document at 80 columns."""
    return as_table.present(document, width=80)


def with_run(subject, **run):
    """Return a subject whose report holds a run's mark."""
    report = replace(subject.report, provenance=replace(subject.report.provenance, run=run))
    return replace(subject, report=report)
