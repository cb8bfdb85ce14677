"""Numbers as text."""

import pytest
from nvtx_kernels.analysis.support.units import time_and_noise, time_range

MS = 1e6


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "text"),
    [(281, 513, "281 to 513 ms"), (0.679, 1.16, "679 µs to 1.16 ms"), (28.11, 28.12, "28.1 ms")],
)
def test_a_range_of_times_names_its_unit_once(low_ms, high_ms, text):
    assert time_range(low_ms * MS, high_ms * MS) == text


@pytest.mark.parametrize(
    ("time_ms", "noise_ms", "text"),
    [
        (20.34, 6.7, "20.3 ± 6.7 ms"),
        (11.83, 0.9, "11.8 ± 0.9 ms"),
        (-0.083, 22, "−0.1 ± 22 ms"),
        (-0.001, 22, "0.0 ± 22 ms"),
        (23.4, 22, "23 ± 22 ms"),
        (0.083, 0.022, "83 ± 22 µs"),
        (1234, 3, "1.234 ± 0.003 s"),
        (12.3, float("inf"), "12 ± ? ms"),
    ],
)
def test_a_time_and_its_noise_have_the_unit_of_the_larger_one(time_ms, noise_ms, text):
    assert time_and_noise(time_ms * MS, noise_ms * MS) == text


def test_a_time_without_known_noise_has_no_smaller_unit_than_asked_for():
    assert time_and_noise(0.05 * MS, float("inf"), MS) == "0.05 ± ? ms"
