import resource
import signal
from collections import Counter
from contextlib import ExitStack

import nvtx
import pytest
import torch
from nvtx_kernels.analysis.trace import MODEL_BACKWARD, MODEL_FORWARD, NO_CATEGORY
from nvtx_kernels.profiling import annotate, recorder
from nvtx_kernels.profiling.recorder.joining import Joining
from nvtx_kernels.profiling.recorder.trace_file import TraceFile, TraceFileError
from torch.profiler import record_function

from tests.profiling.making import forked
from tests.profiling.making.hearing import in_threads
from tests.profiling.making.recordings import (
    RANGES,
    block_names,
    kernels,
    launched_in,
    range_names,
    recorded_before,
    rows,
    said_of,
    train,
)

# One line says that recording has begun; then it waits to be interrupted, terminated or killed.
WAITING = """
import signal, sys, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
from profiling import annotate, recorder
with recorder.record(sys.argv[1], device="cpu"), annotate.range("measure"), annotate.range("step"):
    torch.ones(3, 3) @ torch.ones(3, 3)
    print("recording", flush=True)
    for _ in range(600):  # a signal just before a long sleep would wait for its end
        time.sleep(0.1)
"""


def test_a_program_that_raises_leaves_what_ran_with_balanced_ranges(path):
    with (
        pytest.raises(ZeroDivisionError),
        recorder.record(path, device="cpu"),
        annotate.range("measure"),
        annotate.range("step"),
    ):
        torch.ones(3) + 1 // 0
    assert range_names(path) == ["measure", "step"]
    assert said_of(path)["interrupted_by"] == "ZeroDivisionError"


def test_ranges_left_open_are_closed_at_the_end(path):
    with ExitStack() as later:
        with recorder.record(path, device="cpu"):
            later.enter_context(annotate.range("never closed"))
            later.enter_context(annotate.range("nor this"))
            torch.ones(3) + 1
        assert range_names(path) == ["never closed", "nor this"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "statuses", "interrupted_by"),
    # The interpreter ends on an unhandled KeyboardInterrupt by raising SIGINT, or with 1 where it cannot.
    [
        (signal.SIGINT, (-signal.SIGINT, 1), "KeyboardInterrupt"),
        (signal.SIGTERM, (-signal.SIGTERM,), "Terminated"),
    ],
)
def test_a_signal_leaves_a_readable_report_of_what_ran(path, number, statuses, interrupted_by):
    with forked.start("-c", WAITING, path) as program:
        assert program.stdout.readline() == b"recording\n"
        program.send_signal(number)
        assert program.wait(timeout=30) in statuses
    assert range_names(path) == ["measure", "step"]
    assert len(launched_in(path, "step")) > 0
    assert said_of(path)["interrupted_by"] == interrupted_by


@pytest.fixture
def saving(monkeypatch):
    """Let what is recorded be written at the end of every step."""
    monkeypatch.setenv(recorder.LIMIT_VARIABLE, str(-(1 << 40)))


def test_writing_between_steps_changes_nothing_but_the_overhead(path, saving):
    with recorder.record(path, device="cpu", steps=None) as recording:
        train(steps=4)
    pauses = rows(path, "SELECT start_ns, end_ns FROM pauses")
    steps = [(start, end) for name, start, end in rows(path, RANGES) if name == "step"]
    assert len(pauses) == 4
    assert not any(a < end and start < b for a, b in pauses for start, end in steps)
    per_step = Counter(name for name, _ in kernels(path))
    assert all(count % 4 == 0 for name, count in per_step.items() if name in ("aten::addmm", "aten::mm"))
    assert recording.works == len(kernels(path))


@pytest.mark.parametrize("ends_inside", [True, False])
@pytest.mark.parametrize("memory", [False, True])
def test_recording_goes_on_after_a_block_that_nobody_could_see(path, saving, ends_inside, memory):
    with recorder.record(path, device="cpu", memory=memory, steps=None) as recording:
        block = torch.ops.profiler._record_function_enter_new("an epoch")  # as C++ opens one: nobody counts it
        train(steps=5)
        if ends_inside:
            torch.ops.profiler._record_function_exit._RecordFunction(block)
            train(steps=2)
    assert (recording.ended_early, recording.ranges.dropped) == ("", 0)
    assert range_names(path).count("step") == (7 if ends_inside else 5)
    assert said_of(path)["unrecorded_ns"] > 0
    assert len(launched_in(path, "step")) > 5 * (6 if ends_inside else 4)


def test_recording_goes_on_after_another_profiler_that_began_inside_a_block(path):
    with recorder.record(path, device="cpu") as recording:
        with record_function("an epoch"), torch.profiler.profile():
            train(steps=2)
        torch.ones(3).prod()
    assert (recording.ended_early, recording.ranges.dropped) == ("", 0)
    assert [name for name, _ in kernels(path)].count("aten::prod") == 1


def test_recording_goes_on_under_an_open_block_of_python(path, saving):
    with recorder.record(path, device="cpu") as recording:
        for _ in range(2):
            with record_function("an epoch"):
                train(steps=2)
    assert (recording.ended_early, recording.ranges.dropped) == ("", 0)
    assert range_names(path) == ["measure", *["step", "forward", "backward"] * 2] * 2
    assert len(rows(path, "SELECT 1 FROM pauses")) == 2
    assert block_names(path) == ["an epoch"] * 2


def test_recording_goes_on_under_an_open_range_of_another_domain(path, saving):
    with recorder.record(path, device="cpu"), nvtx.annotate("an epoch", domain="of the program"):
        train(steps=2)
    assert range_names(path) == ["an epoch", "measure", *["step", "forward", "backward"] * 2]
    assert sorted(rows(path, "SELECT name FROM domains")) == [(annotate.DOMAIN,), ("of the program",)]


def test_a_disk_that_fills_is_said_when_the_program_is_done_and_leaves_the_old_report(path):
    old, steps_run = recorded_before(path), []

    def program():
        with recorder.record(path, device="cpu"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
            steps_run.extend(train(steps=1) for _ in range(50))

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(TraceFileError, match=f"cannot write {path}: "):
            program()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert len(steps_run) == 50
    assert path.read_bytes() == old
    (left,) = (file for file in path.parent.iterdir() if file != path and file.is_file())
    assert not [*path.parent.rglob("*.tmp")]
    assert said_of(left)["ended_early"].startswith("it could not be written: ")


def run_program(code, *arguments):
    """Run a program in a process of its own; return its status, and the last line of a traceback."""
    prelude = "import os, sys, threading, torch\nfrom nvtx_kernels.profiling import annotate, recorder\n"
    done = forked.run("-c", prelude + code, *arguments)
    return done.returncode, done.stderr.splitlines()[-1] if "Traceback" in done.stderr else ""


@pytest.mark.parametrize("call", [lambda run: run(), in_threads], ids=["inside the first", "another thread"])
def test_a_second_recording_is_refused_in_a_sentence(path, tmp_path, call):
    refused = []

    def second():
        with pytest.raises(TraceFileError) as error:
            recorder.record(tmp_path / "second.sqlite", device="cpu").__enter__()
        refused.append(str(error.value))

    with recorder.record(path, device="cpu"), annotate.range("step"):
        call(second)
        torch.ones(3) + 1
    assert len(refused) == 1
    assert f"a recording to {path} is already running in this process" in refused[0]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert "aten::add" in launched_in(path, "step")


NEVER_LEFT = """
def enter():
    global block
    block = recorder.record(sys.argv[1], device="cpu")
    block.__enter__()
    annotate.range("step").__enter__()
    torch.ones(3) + 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("enter()", "exit of the interpreter"),
        ("thread = threading.Thread(target=enter)\nthread.start()\nthread.join()", "end of its thread"),
    ],
    ids=["main thread", "another thread"],
)
def test_a_block_that_is_never_left_is_written_at_the_end(path, where, why):
    assert run_program(NEVER_LEFT + where, path) == (0, "")
    assert range_names(path) == ["step"]
    assert "aten::add" in {name for name, _ in kernels(path)}
    assert said_of(path)["interrupted_by"] == why


def test_a_program_may_go_to_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with recorder.record("report.sqlite", device="cpu"), annotate.range("step"):
        monkeypatch.chdir(tmp_path / "elsewhere")
        torch.ones(3) + 1
    assert range_names(tmp_path / "report.sqlite") == ["step"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_profiler_of_the_program_gets_its_work_and_the_recording_the_rest(path):
    with recorder.record(path, device="cpu"), annotate.range("step"):
        torch.ones(3) + 1
        with torch.profiler.profile(acc_events=True) as inner:
            torch.ones(3) * 2
        torch.ones(3) - 1
    ours = Counter(name for name, _ in kernels(path))
    theirs = Counter(event.name for event in inner.events())
    assert (ours["aten::add"], ours["aten::mul"], ours["aten::sub"]) == (1, 0, 1)
    assert (theirs["aten::add"], theirs["aten::mul"], theirs["aten::sub"]) == (0, 1, 0)
    assert range_names(path) == ["step"]


FORKING = """
import warnings
warnings.simplefilter("ignore")
with recorder.record(sys.argv[1], device="cpu"), annotate.range("step"):
    torch.ones(3) + 1
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        torch.ones(3) - 1
if child == 0:
    os._exit(os.path.exists(sys.argv[1]))
sys.exit(status)
"""


@pytest.mark.slow
def test_a_forked_child_that_leaves_the_block_leaves_the_recording_to_its_parent(path):
    assert run_program(FORKING, path) == (0, "")
    assert {"aten::add", "aten::sub"} <= {name for name, _ in kernels(path)}


def test_ranges_have_the_category_that_annotation_gives_them(path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    with annotate.annotate_modules(model), recorder.record(path, device="cpu"), annotate.range("step"):
        model(torch.ones(3)).sum().backward()
    found = rows(path, "SELECT value, category FROM ranges JOIN names ON names.row = name_id")
    assert Counter(found) == {
        ("step", NO_CATEGORY): 1,
        **dict.fromkeys(((one, category) for one in NAMES for category in (MODEL_FORWARD, MODEL_BACKWARD)), 1),
    }


NAMES = ("Sequential", "Sequential 0")


OUT_OF_MEMORY = """
import resource, sys, torch
from profiling import annotate, recorder
with recorder.record(sys.argv[1], device="cpu", operators=True, steps=None), annotate.range("step"):
    for _ in range(4000):
        torch.ones(3) + 1
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (int(sys.argv[2]) << 20),) * 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mebibytes", [0, 4, 32, 48, 64])
def test_a_recording_that_runs_out_of_memory_while_it_is_written_leaves_the_reason(path, mebibytes):
    done = forked.run("-c", OUT_OF_MEMORY, path, mebibytes)
    if done.returncode == 0:  # there was enough
        assert range_names(path) == ["step"]
        return
    assert "there was not enough memory" in done.stderr.splitlines()[-1]
    (unfinished,) = path.parent.glob("*.unfinished-*[0-9]")
    assert said_of(unfinished)["ended_early"].endswith("there was not enough memory")


def test_waiting_for_the_end_of_a_block_adds_nothing_with_each_step(path):
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    optimizer, depths = torch.optim.SGD(model.parameters()), []
    with recorder.record(path, device="cpu", warmup=1, steps=2), record_function("train"):
        for _ in range(20):
            model(x).sum().backward()
            optimizer.step()
            depth, call = 0, torch.nn.Module.__call__
            while (call := getattr(call, "__wrapped__", None)) is not None:
                depth += 1
            depths.append(depth)
    assert max(depths) == depths[-1] == 1
    assert path.exists()


SIGNALLED = """
import glob, os, signal, sys, threading, time, torch
from profiling import recorder
signal.signal(signal.SIGINT, signal.default_int_handler)
path, number = sys.argv[1], int(sys.argv[2])
model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
optimizer = torch.optim.SGD(model.parameters())

def send():
    while not glob.glob(f"{path}.unfinished-{os.getpid()}-session*"):
        time.sleep(0.0005)
    os.kill(os.getpid(), number)

try:
    with recorder.record(path, device="cpu", warmup=0, steps=2):
        for _ in range(2):
            for _ in range(4000):
                y = model(x)
            y.sum().backward()
            optimizer.step()
        threading.Thread(target=send, daemon=True).start()
        for _ in range(600):
            time.sleep(0.01)
except BaseException as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("number", "status", "raised"),
    [(signal.SIGINT, 0, ["KeyboardInterrupt"]), (signal.SIGTERM, -signal.SIGTERM, [])],
)
def test_a_signal_while_the_report_is_written_in_a_pause_reaches_the_program(path, number, status, raised):
    done = forked.run("-c", SIGNALLED, path, int(number))
    assert (done.returncode, done.stdout.split()) == (status, raised)
    assert path.exists()


def test_a_second_interrupt_while_rows_are_written_abandons_the_report(path, monkeypatch, capsys):
    add = Joining.add

    def interrupted(self, *args):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return add(self, *args)

    monkeypatch.setattr(Joining, "add", interrupted)
    with pytest.raises(KeyboardInterrupt), recorder.record(path, device="cpu"):
        torch.ones(3) + 1
    assert "abandoned" in capsys.readouterr().err
    assert [*path.parent.iterdir()] == []


def test_a_recording_that_cannot_begin_leaves_no_profiler(path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(TraceFile, "commit", lambda *_: full_disk())
        with pytest.raises(TraceFileError, match="No space left"):
            recorder.record(path, device="cpu").__enter__()
    with monkeypatch.context() as broken:
        broken.setenv(recorder.LIMIT_VARIABLE, "1GB")
        with pytest.raises(TraceFileError, match="RECORDER_BYTES=1GB is no number"):
            recorder.record(path, device="cpu").__enter__()
    with recorder.record(path, device="cpu"), annotate.range("again"):
        torch.ones(3) + 1
    assert range_names(path) == ["again"]


def full_disk():
    raise TraceFileError("cannot write: No space left on device")


def test_a_name_that_utf_8_cannot_hold_is_written_with_a_question_mark(path):
    with recorder.record(path, device="cpu"), annotate.range("file \udcff"), record_function("block \udcff"):
        torch.ones(3) + 1
    assert range_names(path) == ["file ?"]
    assert block_names(path) == ["block ?"]


def test_a_block_that_is_left_on_another_thread_is_written_when_its_own_ends(path):
    def begin_and_leave_elsewhere():
        block = recorder.record(path, device="cpu")
        block.__enter__()
        torch.ones(3) + 1
        in_threads(lambda: block.__exit__(None, None, None))
        assert not path.exists()

    in_threads(begin_and_leave_elsewhere)
    assert path.exists()
    with recorder.record(path, device="cpu"):  # nothing is left that would refuse it
        torch.ones(3) + 1
