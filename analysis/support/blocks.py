"""Long columns in blocks of rows: what a block needs stays in a core's cache, and blocks run at once.

A column of millions of rows is taken from the system anew for each step of a computation, and each of its pages
costs more than the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .cores import cores

BLOCK = 1 << 16

Column = TypeVar("Column", bound=NDArray[Any])


def in_blocks(function: Callable[..., Column], *columns: NDArray[Any]) -> Column:
    """Return what a function of columns (n,) returns, a column (n,), whose rows depend on nothing but their own.

    The function is called with blocks of rows, on as many threads as there are cores.
    """
    rows = len(columns[0])
    if rows <= BLOCK:
        return function(*columns)

    def of_block(first: int) -> Column:
        return function(*(column[first : first + BLOCK] for column in columns))

    with ThreadPoolExecutor(min(cores(), -(-rows // BLOCK))) as pool:
        found: Any = np.concatenate(list(pool.map(of_block, range(0, rows, BLOCK))))
    return found
