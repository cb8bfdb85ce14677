"""A Trace's tables."""

import numpy as np
import pytest
from numpy.typing import NDArray
from nvtx_kernels.analysis.trace import Launches, Work, element_of


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.ndarray[tuple[int, ...], np.dtype[np.int32]], id="up to NumPy 2.4"),
        pytest.param(list[np.int32], id="since NumPy 2.5, where NDArray is an alias with an argument of its own"),
        pytest.param(NDArray[np.int32], id="the NumPy that is here"),
    ],
)
def test_the_elements_of_an_array_are_known_in_every_numpy(array):
    assert element_of(array) is np.int32


@pytest.mark.parametrize("kind", [Work, Launches])
def test_a_table_without_rows_has_the_types_of_one_with_rows(kind):
    dtypes = {name: column.dtype for name, column in kind.empty().columns().items()}
    assert dtypes["start_ns"] == np.int64
    assert dtypes["launch" if kind is Work else "thread"] == np.int32
    assert len(kind.empty()) == 0
