import getpass
import os
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import annotate, recorder
from nvtx_kernels.profiling.recorder.joining import Joining
from nvtx_kernels.profiling.recorder.range_log import RangeLog
from torch.profiler import profile

import nvtx_kernels as nk
from tests.profiling.making.recordings import (
    RANGES,
    REPOSITORY,
    kernels,
    launched_in,
    range_names,
    rows,
    said_of,
    train,
    writing,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a recording of two steps."""
    path = tmp_path_factory.mktemp("recorded") / "report.sqlite"
    with recorder.record(path, device="cpu"):
        train(steps=2)
    return path


def test_ranges_are_written_with_name_domain_and_nesting(recorded):
    assert range_names(recorded) == ["measure", *["step", "forward", "backward"] * 2]
    (measure, *inner) = rows(recorded, RANGES)
    assert all(measure[1] < start < end < measure[2] for _, start, end in inner)
    assert rows(recorded, "SELECT name, domain_id FROM domains") == [(annotate.DOMAIN, 1)]


def test_operators_are_launched_in_the_ranges_they_ran_in(recorded):
    count = {name: len(launched_in(recorded, name)) for name in ("step", "forward", "backward")}
    assert count["forward"] > 0 < count["backward"]
    assert count["step"] == count["forward"] + count["backward"] == len(kernels(recorded))


def test_operator_counts_are_torchs_own(recorded):
    with profile(acc_events=True) as profiler:
        train()
    seen = Counter(event.name() for event in profiler.profiler.kineto_results.events())
    ours = Counter(name for name, _ in kernels(recorded))
    for name in ("aten::addmm", "aten::_softmax", "aten::_softmax_backward_data", "aten::mm", "aten::copy_"):
        assert ours[name] == seen[name] > 0


def test_kernel_times_are_torchs_own_self_times(path, tmp_path):
    with profile(acc_events=True) as profiler:
        train()
    profiler.profiler.kineto_results.save(str(saved := tmp_path / "saved.json"))
    with writing(path) as trace:
        Joining(trace, 0).add(nk.session_reader()(saved, on_gpu=False), RangeLog())
    ours = Counter()
    for name, time_ns in kernels(path):
        ours[name] += time_ns
    of_torch = {event.key: event.self_cpu_time_total * 1e3 for event in profiler.key_averages()}
    for name in ("aten::addmm", "aten::_softmax", "aten::mm", "aten::copy_", "aten::add_", "aten::pow"):
        assert ours[name] == pytest.approx(of_torch[name], abs=1)


def test_every_kernel_has_one_launch_and_starts_no_earlier(recorded):
    ((launches,),) = rows(recorded, "SELECT count(*) FROM launches")
    assert rows(recorded, "SELECT count(*), count(DISTINCT launch) FROM work") == [(launches, launches)]
    early = """SELECT count(*) FROM work JOIN launches ON launches.row = launch
               WHERE work.start_ns < launches.start_ns"""
    assert rows(recorded, early) == [(0,)]


def test_a_report_says_that_work_is_of_a_cpu(recorded):
    provenance = nk.read(recorded).provenance
    assert provenance.tool.startswith("nvtx-kernels recorder")
    assert provenance.schema == "1"
    assert provenance.unit_of_work == "CPU"
    assert said_of(recorded)["interrupted_by"] == ""


def test_ranges_opened_before_recording_are_not_in_it(path):
    with annotate.range("before"):
        with recorder.record(path, device="cpu"), annotate.range("inside"):
            torch.ones(3) + 1
        train()
    assert range_names(path) == ["inside"]


@pytest.mark.parametrize("domain", [annotate.DOMAIN, "mine"])
def test_a_range_that_is_open_when_the_log_is_full_ends_with_its_own_end(domain):
    log = RangeLog()

    def opened(name):
        if domain == annotate.DOMAIN:
            return annotate.range(name)
        return heard(log, name, domain)

    with annotate.listen(log) if domain == annotate.DOMAIN else nullcontext(), opened("epoch"):
        with opened("step"):
            log.is_full = True
            for _ in range(3):
                with opened("dropped"), opened("dropped too"):
                    pass
            inner_ns = time.time_ns()
        outer_ns = time.time_ns()
    ended = {event.name: event.end_ns for event in log.take(time.time_ns())}
    assert inner_ns <= ended["step"] <= outer_ns <= ended["epoch"]
    assert (sorted(ended), log.dropped) == (["epoch", "step"], 6)


@contextmanager
def heard(log, name, domain):
    log.push(name, None, domain)
    yield
    log.pop(domain)


def test_a_range_of_another_thread_is_written_with_that_thread(path):
    def work():
        with annotate.range("elsewhere"):
            torch.ones(3) + 1

    with recorder.record(path, device="cpu"), annotate.range("here"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    on_threads = "SELECT named_ranges.name, thread_id FROM named_ranges JOIN threads ON threads.row = thread"
    assert rows(path, "SELECT process_id FROM processes") == [(os.getpid(),)]
    assert dict(rows(path, on_threads)) == {"elsewhere": thread.native_id, "here": threading.get_native_id()}


def test_operator_ranges_link_backward_to_forward_by_sequence_number(path):
    with recorder.record(path, device="cpu", operators=True):
        train(steps=1)
    numbered = dict(rows(path, "SELECT names.value, seq FROM ranges JOIN names ON names.row = name_id"))
    assert numbered["aten::softmax"] >= 0
    assert numbered["SoftmaxBackward0"] == numbered["aten::softmax"]
    assert numbered["AddmmBackward0"] == numbered["aten::addmm"]
    assert numbered["autograd::engine::evaluate_function: AddmmBackward0"] == -1


def test_a_report_holds_nothing_of_the_machine_or_its_user(path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "sk-planted-in-the-environment")
    with recorder.record(path, device="cpu"):
        train()
    content = path.read_bytes()
    folders = [str(folder) for folder in (Path.home(), REPOSITORY, path.parent)]
    private = [os.environ["SECRET_TOKEN"], socket.gethostname(), *folders]
    # A host's name of two letters is in every file.
    assert [text for text in private if len(text) > 4 and text.encode() in content] == []
    assert f"/{getpass.getuser()}".encode() not in content


def test_every_name_in_a_report_is_referred_to(path):
    with recorder.record(path, device="cpu", operators=True):
        train()
    referred = "SELECT name_id FROM ranges UNION SELECT name_id FROM work"
    assert rows(path, f"SELECT value FROM names WHERE row NOT IN ({referred})") == []
