"""A copy of a PyTorch trace answers as the trace does, and holds what the analysis reads and nothing else."""

import gzip
import json

import numpy as np
import pytest
from nvtx_kernels.analysis import scrub
from nvtx_kernels.analysis.readers import read

from tests.analysis.making import simulated
from tests.analysis.making.checks import said
from tests.analysis.making.copies import figures, scrubbed
from tests.analysis.making.fragments import REPORTS, of_report
from tests.analysis.making.simulated_kineto import kineto_recorded
from tests.analysis.making.stacks import Event, launch
from tests.analysis.making.stacks import write as write_stacks
from tests.analysis.measures.test_replay import two_streams

EPOCH_US = 1_795_173_292_279_457
PRIVATE = "gpu-node-0417"


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name[:24])
def test_copy_of_a_trace_answers_as_the_trace(tmp_path, report):
    trace = tmp_path / "trace.json"
    trace.write_bytes(of_report(report)[-1])
    copy = scrubbed(trace)
    for options in ((), ("--operators", "keep")):
        assert figures(copy, *options) == figures(trace, *options)
    assert said(scrub, str(copy), "--check")[0] == 0


def test_copy_of_a_trace_keeps_waits_and_the_profilers_own_time(tmp_path):
    machine = simulated.simulated(two_streams)
    trace = kineto_recorded(tmp_path / "trace.json", machine, lists_events=True)
    profilers = {"ph": "X", "cat": "overhead", "name": "Triggered Module Loading", "pid": -1, "tid": 0}
    whole = json.loads(trace.read_text())
    whole["traceEvents"].append({**profilers, "ts": 1, "dur": 2, "args": {}})
    trace.write_text(json.dumps(whole))
    copied, expected = read(scrubbed(trace)), read(trace)
    assert copied.has_events
    assert np.array_equal(copied.waits.event, expected.waits.event)
    assert copied.overhead.loads.tolist() == [True]


@pytest.fixture
def private(tmp_path):
    """A gzipped trace with private values wherever the profiler writes any."""
    trace = json.loads(of_report(REPORTS[0])[-1])
    events = trace["traceEvents"]
    for event in events:
        event["ts"] = event.get("ts", 0) + EPOCH_US
        event.setdefault("args", {})["Call stack"] = f"/home/{PRIVATE}/x.py(3): main"
    events.append({"ph": "M", "name": "process_name", "pid": 7, "args": {"name": f"python {PRIVATE}"}})
    events.append(
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": f"thread 8 ({PRIVATE})"}}
    )
    events.append({"ph": "X", "cat": "python_function", "name": PRIVATE, "pid": 7, "tid": 8, "ts": 1, "dur": 2})
    trace |= {"traceName": f"/tmp/{PRIVATE}.json", "hostname": PRIVATE, "baseTimeNanoseconds": EPOCH_US * 1000}
    path = tmp_path / f"{PRIVATE}_1234.1795173292.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return path


def test_dates_and_everything_that_is_not_read_stay_behind(private):
    copy = json.loads(gzip.decompress(scrubbed(private).read_bytes()))
    assert PRIVATE not in json.dumps(copy)
    around = {"schemaVersion", "deviceProperties", "computeProperties", "distributedInfo"}
    assert copy.keys() <= {"traceEvents", *around}
    assert max(event.get("ts", 0) for event in copy["traceEvents"]) < EPOCH_US / 1000
    assert {event["ph"] for event in copy["traceEvents"]} <= {"X", "M"}


def test_check_of_a_trace_says_what_it_would_leak(private):
    status, out, _ = said(scrub, str(private), "--check")
    assert status == scrub.WOULD_LEAK
    places = ("names of threads", "the trace", "args", "events that are not read", "times")
    assert [place for place in places if f" {place} " not in out] == []


def test_a_trace_that_breaks_off_gives_no_copy(tmp_path):
    (tmp_path / "trace.json").write_bytes(of_report(REPORTS[0])[-1][:-400])
    status, _, err = said(scrub, str(tmp_path / "trace.json"), "-o", str(tmp_path / "copy.json"))
    assert (status, err.count("\n")) == (1, 1)
    assert not (tmp_path / "copy.json").exists()


EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "ts": TIME, "dur": 2}'


@pytest.mark.parametrize(
    ("time", "status"), [("1e999999999", 1), ("-1E99999", 1), ("1e-999999999", 0), ("0.0015", 0)]
)
def test_a_time_of_few_letters_takes_no_gigabytes(tmp_path, time, status):
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [EVENT]}'.replace("EVENT", EVENT.replace("TIME", time)))
    assert said(scrub, str(trace), "-o", str(tmp_path / "copy.json"))[0] == status
    assert status or (tmp_path / "copy.json").stat().st_size < 300


def test_frames_keep_modules_and_lose_paths_and_people(tmp_path):
    secret = "annaschmidt"
    frames = [
        Event(f"/home/{secret}/{secret}_net.py(3): {secret}", 1, 200),
        Event(f"nn.Module: {secret.title()}Net_0", 5, 100), Event("nn.Module: Linear_3", 10, 90), launch(1, 20),
        Event(f"/home/{secret}/lib/torch/optim/adamw.py(220): step", 110, 150), launch(2, 120),
    ]  # fmt: skip
    trace = write_stacks(tmp_path / "trace.json", *frames)
    copy = scrubbed(trace)
    assert secret not in copy.read_text().lower()
    assert "/home" not in copy.read_text()
    answers = [[part for part in figures(path)[1] if part[0] != "report"] for path in (copy, trace)]
    assert answers[0] == answers[1]
    names = {
        event["name"] for event in json.loads(copy.read_text())["traceEvents"] if event["cat"] == "python_function"
    }
    assert {"nn.Module: Linear_3", "torch/optim/adamw.py(0): step"} < names
    assert len(names) == 3
    assert said(scrub, str(copy), "--check")[0] == 0
