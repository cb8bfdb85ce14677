"""What PyTorch's operators compute and move, by the shapes of their arguments: one table, without PyTorch.

    a trace with record_shapes=True ─┐
                                     ├─► OperatorCall ─► RULES ─► Cost: FLOPs, least bytes
    annotation, as a step runs ──────┘

Profiles that were recorded elsewhere and annotation's own counting (`profiling.annotate.counting`) ask the same
table, so both give the same FLOPs for the same call.

This room imports nothing of the project. It promises that what shapes do not tell is None, and never a guess.
"""

from __future__ import annotations

from .calls import DTYPES, OperatorCall, Tensor, TensorType, call_of_text
from .table import Cost, cost_of, is_known, rule_of

__all__ = [
    "DTYPES",
    "Cost",
    "OperatorCall",
    "Tensor",
    "TensorType",
    "call_of_text",
    "cost_of",
    "is_known",
    "rule_of",
]
