"""Traces whose steps lack work, or wait for data: ../shared/failing/README.md says what is right."""

import numpy as np
import pytest
from nvtx_kernels.analysis import doctor, kernels, view
from nvtx_kernels.analysis.account.cells import IDLE
from nvtx_kernels.analysis.account.idle import DATA_LOADING
from nvtx_kernels.analysis.views.verdict import verdict

from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.subjects import opened, subject

TRACES = SHARED / "failing" / "traces"
LOST = "30 of 32 steps have no recorded work, so how long a step takes is not known. Record with a longer warm-up."

pytestmark = needs_shared


def path_to(name):
    return next(TRACES.glob(f"{name}.*"))


#: How many steps have work, how many are dropped, ms of a step, and ms of the main cause of its idle time.
TOLD = {
    "one_step_data_wait": (1, 0, 90.0, "data loading", 80.0),
    "cpu_one_step_data": (1, 0, 128.3, "data loading", 50.3),
    "cpu_trailing_step": (3, 1, 68.8, "Python", 8.8),
    "amd_trailing_step": (1, 1, 9.18, "module loading", 6.54),
    "dataloader_t4": (3, 0, 54.2, "data loading", 43.7),
    "kernels_lost_at_start": (2, 2, 9.39, "synchronization", 0.23),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_step_and_its_main_cause_are_told_rightly(name):
    account = opened(path_to(name)).whole.account
    (gpu,) = account.gpus
    cause = gpu.causes[0]
    times = account.step_ns / 1e6, cause.cause, cause.total_ns / gpu.steps / 1e6
    steps, dropped, *expected = TOLD[name]
    assert (len(account.rows), account.dropped) == (steps, dropped)
    assert times == (pytest.approx(expected[0], abs=0.06), expected[1], pytest.approx(expected[2], abs=0.06))


def test_an_empty_last_step_is_left_out_and_said():
    report = subject(path_to("amd_trailing_step"), per_step=True).report
    assert "1 of 2 steps has no recorded work, and is left out." in verdict(report)
    assert sum(row.total_ns for row in report.kernels) == pytest.approx(149_000, abs=500)


def test_each_step_waits_for_its_loader_as_long_as_the_loader_s_range_is_open():
    cells = opened(path_to("dataloader_t4")).partition.cells
    is_loading = (cells.kind == IDLE) & (cells.what == DATA_LOADING)
    waited_ns = np.bincount(cells.row[is_loading], cells.ns[is_loading])
    assert (waited_ns / 1e6).round().tolist() == [47, 22, 62]


def test_a_report_that_lost_most_steps_has_no_step_time_and_says_why(capsys):
    path = path_to("steps_without_gpu_events")
    whole = opened(path).whole
    assert (whole.no_steps, whole.step_ns, whole.counted_steps) == (LOST, None, 0)
    assert LOST in verdict(whole)
    assert doctor.main([str(path)]) == 1
    capsys.readouterr()
    for command, words in ((kernels, ["--per-step"]), (view, ["steps"])):
        assert command.main([*words, str(path)]) == 1
        assert capsys.readouterr().err == f"error: {LOST}\n"


def test_times_that_cannot_be_are_told_by_each_answer(capsys):
    path = str(path_to("kernel_over_the_next"))
    for command, words in ((kernels, []), (view, ["steps"]), (doctor, [])):
        assert command.main([*words, path]) == int(command is doctor)
        assert "4 kernels end after the next one of their stream" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["amd_module_loading", "amd_graphs_without_kernels"])
def test_nothing_of_nvidia_is_said_of_an_amd_gpu(name, capsys):
    for command, words in ((kernels, []), (view, ["idle"]), (view, ["fix"]), (doctor, [])):
        command.main([*words, str(path_to(name))])
        said = "".join(capsys.readouterr()).lower()
        assert not [word for word in ("cuda", "nvidia", "nsys", "nvgpu") if word in said]
