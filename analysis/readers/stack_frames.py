"""Which Python frames of a trace become ranges: calls of modules, updates of an optimizer, and functions.

A trace recorded with `with_stack=True` has an event for each call of a Python function (`train.py(12): main`), of
a built-in (`<built-in method relu …>`) and of a module (`nn.Module: Linear_0`). Functions become ranges only on
request (`--by function`). The profiler strips the folders of `sys.path` from file names, so a folder
`transformers/` can be the library's or the program's own.
"""

from __future__ import annotations

import re
from typing import Literal

from ..vocabulary.libraries import INSTALLED, STANDARD_LIBRARY, is_of_library

#: Kineto's category of frames.
FRAME = "python_function"
MODULE = "nn.Module: "
NO_FRAME, MODULE_CALL, FUNCTION_CALL, UPDATE = range(4)

#: Which functions become ranges: none, those of the program and of libraries, or the program's own.
Functions = Literal["", "all", "own"]

#: Frames that are no functions of the program's or of a library's, by the beginning of their names.
SKIPPED = (
    r"<(?!ipython-input)",  # <built-in …>, <frozen …>, <string>, <eval_with_key>; but not a notebook's cell
    MODULE,
    rf"(?:.*/{INSTALLED})?torch/",
    r".*/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)",
    rf"(?:{'|'.join(STANDARD_LIBRARY)})(?:\.py\(|/)",
)

_SKIPPED = re.compile("|".join(SKIPPED))
_UPDATE = re.compile(r"(?:.*/)?torch/optim/(?!lr_scheduler|swa_utils|optimizer)(\w+)\.py\(\d+\): step")


def kind_of(frame: str, functions: Functions = "") -> int:
    """Return the kind of a frame: a module's call, an update, a function's call, or NO_FRAME.

    >>> [kind_of(name, "all") for name in ("nn.Module: Linear_0", "train.py(7): main", "torch/jit.py(1): f")]
    [1, 2, 0]
    """
    if frame.startswith(MODULE):
        return MODULE_CALL
    if _UPDATE.fullmatch(frame):
        return UPDATE
    if not functions or _SKIPPED.match(frame) or (functions == "own" and is_of_library(frame)):
        return NO_FRAME
    return FUNCTION_CALL


def range_name(frame: str) -> str:
    """Return the name of a frame's range.

    >>> range_name("nn.Module: Linear_0"), range_name("torch/optim/adamw.py(220): step")
    ('Linear_0', 'Optimizer.step#adamw.step')
    """
    update = _UPDATE.fullmatch(frame)
    if update:
        return f"Optimizer.step#{update[1]}.step"
    return frame.removeprefix(MODULE)
