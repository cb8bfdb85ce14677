"""Calls on several threads: their results, errors, calls within calls, and a process that forks."""

import os
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from nvtx_kernels.analysis.support import threads
from nvtx_kernels.analysis.support.threads import LARGE, at_once, in_pieces, kept

MANY = 4 * LARGE


@pytest.fixture(autouse=True, params=[kept, nullcontext])
def _three_threads(request, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 3)
    before = threading.active_count()
    with request.param():
        yield
    assert threading.active_count() == before


def test_results_come_in_the_order_of_their_calls():
    assert at_once([lambda n=n: n * n for n in range(20)], MANY) == [n * n for n in range(20)]


def test_calls_run_at_the_same_time_and_on_few_rows_one_after_the_other():
    def numbers(rows):
        return set(at_once([threading.get_ident] * 9, rows))

    together = threading.Barrier(3, timeout=20)
    assert sorted(at_once([together.wait] * 3, MANY)) == [0, 1, 2]
    assert numbers(LARGE - 1) == {threading.get_ident()}


def test_calls_within_calls_end_however_few_threads_there_are():
    def deeper(level):
        return sum(at_once([lambda: deeper(level - 1)] * 4, MANY)) if level else 1

    assert deeper(5) == 4**5


def test_the_first_of_several_errors_is_raised_after_all_calls_ended():
    ended = []

    def failing(n):
        ended.append(n)
        raise ValueError(n)

    with pytest.raises(ValueError, match=r"^0$"):
        at_once([lambda n=n: failing(n) for n in range(3)], MANY)
    before = list(ended)
    assert at_once([lambda: 1, lambda: 2], MANY) == [1, 2]
    assert ended == before


@pytest.mark.parametrize("rows", [0, 1, LARGE - 1, 2 * LARGE, 3 * LARGE + 1])
def test_pieces_make_the_whole(rows):
    values = np.arange(rows)
    assert np.array_equal(in_pieces(lambda a, b: a * b + 1, values, values[::-1]), values * values[::-1] + 1)


def test_a_process_that_forks_has_threads_of_its_own():
    assert at_once([lambda: 1, lambda: 2], MANY) == [1, 2]
    child = os.fork()
    if not child:
        os._exit(at_once([lambda: 3, lambda: 4, lambda: 5], MANY) != [3, 4, 5])
    assert os.waitpid(child, 0)[1] == 0
