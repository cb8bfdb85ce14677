"""A recording keeps which calls and streams wait for what, as far as the PyTorch at hand tells."""

import pytest
import torch
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling import recorder
from nvtx_kernels.profiling.recorder import session
from nvtx_kernels.profiling.recorder.joining import Joining
from nvtx_kernels.profiling.recorder.range_log import RangeLog

import nvtx_kernels as nk
from tests.analysis.making import simulated
from tests.analysis.making.kineto import Block, Call, Program, Work, write_kineto
from tests.analysis.making.simulated_kineto import kineto_recorded
from tests.analysis.measures.test_replay import two_streams
from tests.analysis.views.test_views_communication import kineto
from tests.profiling.making.recordings import train, writing


def waits_of(trace):
    """Return the waits of a trace: the call's start, and the stream and event that it has to do with."""
    starts = trace.launches.start_ns[trace.waits.call] - trace.launches.start_ns.min()
    return sorted(zip(starts.tolist(), trace.waits.stream.tolist(), trace.waits.event.tolist(), strict=True))


def test_a_recording_has_the_waits_of_its_sessions_file(path, tmp_path):
    saved = kineto_recorded(tmp_path / "s.pt.trace.json", simulated.simulated(two_streams), lists_events=True)
    with writing(path, on_gpu=True) as trace:
        joining = Joining(trace, 0)
        joining.add(nk.session_reader()(saved, on_gpu=True), RangeLog())
        assert joining.has_events
    recorded, expected = read(path), read(saved)
    assert waits_of(recorded) == waits_of(expected)


def test_a_recording_has_the_messages_of_its_sessions_files(path, tmp_path):
    saved = kineto(tmp_path, 0, (2000, 4000), (5000, 6000))
    with writing(path, on_gpu=True) as trace:
        joining = Joining(trace, 0)
        for _ in range(2):
            joining.add(nk.session_reader()(saved, on_gpu=True), RangeLog())
    recorded, expected = read(path), read(saved)
    assert len(expected.messages) == 2
    assert recorded.messages.launch.tolist() == [0, 1, 2, 3]
    assert recorded.messages.sent_bytes.tolist() == expected.messages.sent_bytes.tolist() * 2
    named = [recorded.names[name] for name in recorded.messages.collective.tolist()]
    assert named == ["_allgather_base"] * 4


def test_a_recording_has_the_graph_nodes_of_its_sessions_files(path, tmp_path):
    blocks = [Block("step", 0, 90)]
    calls = [Call(1, 5, 9, name="cudaGraphLaunch")]
    node = (("graph node id", 12),)
    bare, replayed = (
        write_kineto(tmp_path / f"{name}.pt.trace.json", Program(blocks, calls, [Work(1, 30, 35, said=said)]))
        for name, said in (("bare", ()), ("replayed", node))
    )
    with writing(path, on_gpu=True) as trace:
        joining = Joining(trace, 0)
        for saved in (bare, replayed, bare):
            joining.add(nk.session_reader()(saved, on_gpu=True), RangeLog())
    assert read(replayed).graph_node.tolist() == [12]
    assert read(path).graph_node.tolist() == [-1, 12, -1]


def test_a_session_of_a_gpu_asks_for_waits(monkeypatch):
    asked = []
    monkeypatch.setattr(session, "profile", lambda **options: asked.append(options) or torch.profiler.profile())
    session.Session(on_gpu=True).stop(None)
    session.Session(on_gpu=True, kernels=False).stop(None)  # for nsys, which traces them itself
    given = [options["experimental_config"] is not None for options in asked]
    assert given == [True, False]


@pytest.mark.parametrize("error", [TypeError, AttributeError])
def test_a_pytorch_without_this_setting_records_as_before(path, monkeypatch, error):
    settings = torch._C._profiler._ExperimentalConfig

    def without(**switches):
        if "enable_cuda_sync_events" in switches:
            raise error("no such setting")
        return settings(**switches)

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", without)
    assert session._setting(**session.WAITS) is None
    with recorder.record(path, device="cpu"):
        train(steps=1)
    assert len(read(path).work)


@pytest.mark.gpu
def test_two_streams_are_recorded_with_what_they_wait_for(path):
    """Kineto tells the events since CUDA 12.9 only if it lists them (pytorch/pytorch#195068)."""
    other, weight = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    with recorder.record(path):
        for _ in range(4):
            with nk.annotate.range("step"):
                other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    copied = weight @ weight
                torch.cuda.current_stream().wait_stream(other)
                (copied @ weight).sum().item()
    trace = read(path)
    assert trace.waits is not None
    assert len(set(trace.work.stream_id.tolist())) == 2
    assert trace.has_events or tuple(map(int, torch.version.cuda.split("."))) >= (12, 9)
