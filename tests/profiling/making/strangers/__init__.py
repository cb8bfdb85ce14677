"""Programs as strangers write them: PROGRAMS is the table, in which each module of this package has its part."""

from . import compilers, concurrent, failing, gradients, hooks, layers, libraries, objects, training  # noqa: F401
from .table import PROGRAMS

__all__ = ["PROGRAMS"]
