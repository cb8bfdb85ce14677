"""A report for each view: one that has what the view is about."""

from tests.analysis.making.allocated import with_memory
from tests.analysis.making.communicating import communicating
from tests.analysis.making.plain_sql import OURS


def answering(view, ranks=1):
    """Return a report that can answer a view's question."""
    if view == "memory":
        return with_memory()
    return communicating(ranks) if view == "communication" else OURS
