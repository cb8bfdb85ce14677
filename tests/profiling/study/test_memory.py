import pickle

import pytest
import torch
from nvtx_kernels.analysis.presenters import as_table
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.profiling.study import memory
from nvtx_kernels.profiling.study.one_run import memory_document
from nvtx_kernels.profiling.study.settings import Settings, SettingsError
from nvtx_kernels.profiling.study.workload import Workload, timed_steps

CONFIG = CONFIGS["tiny"]
BATCH, CONTEXT = 2, 32
SETTINGS = {"size": "tiny", "context_length": CONTEXT, "batch_size": BATCH, "device": "cpu"}
FLOAT = 4


def workload(**settings):
    made = Workload(Settings(**{**SETTINGS, **settings}))
    list(timed_steps(made, 1))
    return made


@pytest.fixture(scope="module")
def trained():
    return workload()


def test_gradients_of_a_layer_have_the_size_of_its_weights(trained):
    layers = memory.layer_memory(trained)
    d, d_ff = CONFIG.d_model, CONFIG.d_ff
    assert layers["layer 0"][1] == FLOAT * (4 * d * d + 3 * d * d_ff + 2 * d)
    assert sum(gradient_bytes for _, gradient_bytes in layers.values()) == FLOAT * CONFIG.parameters
    assert all(weight.grad is None for weight in trained.model.parameters())


def test_layer_keeps_what_its_backward_needs(trained):
    layers = memory.layer_memory(trained)
    stream = FLOAT * BATCH * CONTEXT * CONFIG.d_model
    scores = FLOAT * BATCH * CONFIG.heads * CONTEXT**2
    hidden = FLOAT * BATCH * CONTEXT * CONFIG.d_ff
    # At least: what goes into the projections, the weights of attention twice, gate, up and their product.
    assert layers["layer 0"][0] > 2 * scores + 3 * hidden + 3 * stream
    assert layers["layer 0"][0] == layers["layer 1"][0]
    assert list(layers) == ["layer 0", "layer 1", memory.OUTSIDE]


def test_fused_attention_keeps_no_scores():
    scores = FLOAT * BATCH * CONFIG.heads * CONTEXT**2
    kept = {how: memory.layer_memory(workload(attention=how))["layer 0"][0] for how in ("reference", "sdpa")}
    assert kept["reference"] - kept["sdpa"] > scores


def test_peaks_hold_weights_states_and_what_layers_keep(trained):
    of_phases = memory.phase_peaks(trained)
    kept = sum(kept_bytes for kept_bytes, _ in memory.layer_memory(trained).values())
    weights = FLOAT * CONFIG.parameters
    assert list(of_phases) == ["forward", "backward", "optimizer"]
    assert of_phases["forward"] >= 3 * weights + kept
    # Gradients come, and what was kept goes.
    assert 4 * weights < of_phases["backward"] < 4 * weights + 1.1 * kept
    assert 4 * weights < of_phases["optimizer"] < 8 * weights


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["reference", "foreach", "fused"])
def test_peaks_are_the_same_step_after_step(optimizer):
    made = workload(optimizer=optimizer)
    first, second = memory.phase_peaks(made), memory.phase_peaks(made)
    assert first == pytest.approx(second, rel=0.001)


def test_forward_alone_peaks_lower_than_a_forward_that_keeps():
    without = memory.phase_peaks(workload(mode="forward"))
    training = memory.phase_peaks(workload(mode="forward-backward"))
    assert list(without) == ["forward"]
    assert without["forward"] < training["forward"]


def test_what_is_held_after_a_call_counts_while_its_result_lives():
    before = [torch.ones(1000)]
    assert memory.held_after(lambda: torch.ones(500), "cpu", before) == FLOAT * 1500
    assert memory.held_after(lambda: None, "cpu", [*before, before[0].view(10, 100)]) == FLOAT * 1000


def test_screen_says_what_phases_and_layers_hold(trained):
    text = as_table.present(memory_document(trained), width=80)
    rows = [line.split() for line in text.splitlines()]
    assert [words[0] for words in rows if words and words[0] in ("forward", "backward", "optimizer")]
    [layers] = [words for words in rows if words[:2] == ["layer", "0"]]
    assert layers[:5] == ["layer", "0", "to", "1,", "each"]
    assert layers[-1] == f"{FLOAT * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) / (1 << 20):.4g}"
    assert [words[:3] for words in rows if words[:1] == ["outside"]] == [["outside", "the", "layers"]]


def test_nothing_is_recorded_where_no_snapshot_is_asked_for(tmp_path):
    memory.check(None, Settings(**SETTINGS))
    with memory.snapshot(None):
        pass
    assert list(tmp_path.iterdir()) == []


def test_snapshot_is_refused_without_a_gpu_and_where_it_cannot_be_written(tmp_path):
    with pytest.raises(SettingsError, match="needs a CUDA GPU"):
        memory.check(tmp_path / "snapshot.pickle", Settings(**SETTINGS))


@pytest.mark.gpu
def test_snapshot_holds_the_block_s_allocations(tmp_path):
    path = tmp_path / "snapshot.pickle"
    with memory.snapshot(path):
        kept = torch.ones(1 << 20, device="cuda")
    history = pickle.loads(path.read_bytes())
    sizes = [
        event["size"] for events in history["device_traces"] for event in events if event["action"] == "alloc"
    ]
    assert kept.nbytes in sizes
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot.pickle"]
