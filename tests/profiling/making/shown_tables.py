"""Tables of results, as people see them."""

from nvtx_kernels.analysis.document import seen_by
from nvtx_kernels.analysis.presenters import cell_text


def shown(table):
    """Return the lines of a table as texts by heading."""
    seen = seen_by("people", table)
    return [dict(zip(cell_text.headings(seen), line, strict=True)) for line in cell_text.texts(seen)]


def headings(table):
    return [column.heading for column in seen_by("people", table).columns]


def sentences(document):
    """Return all that stands with the tables of a document."""
    return [document.heading, *document.accounting, *document.notes]
