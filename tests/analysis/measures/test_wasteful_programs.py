"""Programs with one mistake each: `view fix` says what the program without it saves, which is simulated, too."""

from functools import partial

import pytest
from nvtx_kernels.analysis.measures.gpu_rules import FULL

from tests.analysis.making import wasteful
from tests.analysis.making.simulated import ELEMENTWISE, FP32_GEMM, MS, TF32_GEMM, US, step_ns
from tests.analysis.making.wasteful import FROZEN, ROOM, UNTRAINED, trained
from tests.analysis.measures.test_fixes import found, rule

GIB = 1 << 30
TF32_SHARE = 67 / 494.7
CUDNN_ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1"
small = partial(trained, gemms=100, lasts=3 * US)
#: By rule: the program, and the same after the change.
CHANGES = {
    "to_cpu": (partial(trained, after=wasteful.computing_on_cpu), trained),
    "from_cpu": (partial(trained, in_forward=wasteful.made_on_cpu), trained),
    "allocating": (partial(trained, after=wasteful.allocating), trained),
    "anomaly": (partial(small, in_backward=wasteful.checked), small),
    "device_sync": (
        partial(trained, in_backward=wasteful.synchronizing),
        partial(trained, in_backward=partial(wasteful.synchronizing, waits=False)),
    ),
    "one_by_one": (
        partial(small, after=wasteful.averaging),
        partial(small, after=partial(wasteful.averaging, tensors=1, kernels=1, lasts=320 * US)),
    ),
    "in_parts": (
        wasteful.called_in_parts,
        partial(wasteful.called_in_parts, calls=1, lasts=64 * US),
    ),
    "compile": (
        partial(trained, in_forward=wasteful.chained),
        partial(trained, in_forward=partial(wasteful.chained, length=1)),
    ),
    "alignment": (
        partial(trained, gemm=wasteful.BF16_ALIGNED.format(1)),
        partial(trained, gemm=wasteful.BF16_ALIGNED.format(8), lasts=25 * US),
    ),
    "layouts": (partial(trained, in_forward=wasteful.converting), trained),
    "layout_copies": (wasteful.reformatting, partial(wasteful.reformatting, copies=False)),
    "left_in_tf32": (
        wasteful.partly_in_tf32,
        partial(wasteful.partly_in_tf32, gemm=wasteful.BF16_GEMM, lasts=200 * US),
    ),
    "dense_rows": (
        partial(wasteful.looking_up, updates=100),
        partial(wasteful.looking_up, sets=0, updates=4),
    ),
    "untrained": (wasteful.distilled, partial(wasteful.distilled, in_vain=False)),
    "frozen": (
        partial(wasteful.distilled, in_vain=False),
        partial(wasteful.distilled, in_vain=False, in_forward=False),
    ),
    "padding": (wasteful.of_tokens, partial(wasteful.of_tokens, lasts=100 * US)),
    "one_hot": (partial(trained, in_forward=wasteful.by_one_hot), trained),
    "distances": (
        partial(trained, in_forward=wasteful.of_pairs),
        partial(trained, in_forward=partial(wasteful.of_pairs, parts=0)),
    ),
    "slices": (
        partial(trained, in_backward=wasteful.of_slices),
        partial(trained, in_backward=partial(wasteful.of_slices, whole=False)),
    ),
    "second_forward": (wasteful.evaluated, partial(wasteful.evaluated, again=False)),
    "new_sizes": (wasteful.of_lengths, partial(wasteful.of_lengths, chooses=20 * US)),
    "micro_batches": (
        wasteful.accumulating,
        partial(wasteful.accumulating, batches=1, lasts=8 * US, takes=32 * US),
    ),
    "recompute": (partial(trained, in_backward=wasteful.computing_again), trained),
    "fp64": (
        wasteful.in_double,
        partial(
            wasteful.in_double, gemm=TF32_GEMM, lasts=round(400 * US * TF32_SHARE), add=ELEMENTWISE, adds=20 * US
        ),
    ),
}


#: What the run of a program wrote that no other one has.
FACTS = {"padding": wasteful.PADDED}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_saves_what_was_said(tmp_path, name):
    mistake, changed = CHANGES[name]
    answer = found(tmp_path, mistake, run=ROOM | wasteful.OF_TABLE | UNTRAINED | FROZEN | FACTS.get(name, {}))
    saved_ns = step_ns(mistake) - step_ns(changed)
    fix = rule(answer, name)
    assert fix is answer.fixes[0]
    assert 0.97 * fix.alone_low_ns <= saved_ns <= 1.03 * fix.alone_ns
    assert fix.alone_ns <= 1.1 * saved_ns


def test_what_graphs_and_reads_save_is_at_least_what_the_reads_do(tmp_path):
    program = partial(trained, in_forward=partial(wasteful.deciding, count=40), gemms=200, lasts=2 * US)
    fix = rule(found(tmp_path, program), "launching")
    assert "(the first alone up to" in fix.sentence
    without_reads = step_ns(program) - step_ns(partial(trained, gemms=200, lasts=2 * US))
    assert fix.alone_low_ns > without_reads


def test_pauses_at_one_line_are_one_row(tmp_path):
    fixes = found(tmp_path, wasteful.made_at_one_line).fixes
    assert [fix.rule for fix in fixes].count("host_pause") == 1
    assert fixes[0].alone_ns == pytest.approx(8 * MS, rel=0.05)


def test_recording_slows_no_allocation(tmp_path):
    program = partial(trained, after=wasteful.allocating)
    fix = rule(found(tmp_path, program, slower=2.0, unrecorded_step_ns=None), "allocating")
    assert fix.alone_low_ns >= 8 * (300 + 200) * US


def test_the_same_program_without_its_mistake_has_nothing_to_fix(tmp_path):
    for program in (trained, partial(trained, gemm=wasteful.BF16_ALIGNED.format(8))):
        assert found(tmp_path, program, run=ROOM).fixes == ()


def test_the_time_that_the_cpu_computes_is_that_of_one_step(tmp_path):
    fix = rule(found(tmp_path, CHANGES["to_cpu"][0]), "to_cpu")
    assert "brings 32 MiB to the CPU (3.36 ms), which computes on it for 6.02 ms" in fix.sentence


#: What backward of a network that no optimizer trains computes, and what its loss needs of it.
OF_NETWORKS = {
    "convolutions": {"of_input": True},
    "products": {"of_input": True, "of_images": False},
    "convolutions before other modules": {"comes_last": False},
}


@pytest.mark.parametrize("case", OF_NETWORKS)
def test_a_network_of_a_loss_saves_the_gradients_of_its_weights_at_least(tmp_path, case):
    network = partial(wasteful.distilled, **OF_NETWORKS[case])
    fix = rule(found(tmp_path, network, run=UNTRAINED), "untrained")
    of_inputs_alone, none = (
        step_ns(network) - step_ns(partial(network, **change))
        for change in ({"of_weights": False}, {"in_vain": False})
    )
    assert fix.alone_low_ns == pytest.approx(of_inputs_alone, rel=0.05)
    assert fix.alone_ns == pytest.approx(none, rel=0.05)
    assert "Net.teacher" in fix.sentence
    assert "where its input needs none" in fix.sentence


def test_several_networks_are_named_by_that_with_the_most_work(tmp_path):
    run = {"untrained": ["Net/teacher", "Net/student", "Other"]}
    fix = rule(found(tmp_path, wasteful.distilled, run=run), "untrained")
    assert "gradients of Net.student and 1 more (39 kernels)" in fix.sentence
    assert [time.line.line for time in fix.lines] == [30, 31]


#: What a run says of its memory, and whether fewer checkpoints fit: computing again takes 2 ms, in which an H200
#: can write 4.8 GB.
MEMORY = {
    "much is free": (ROOM, True),
    "it would be nearly full": (ROOM | {"memory_peak_bytes": int(FULL * 80 * GIB) - 4 * GIB}, False),
    "the peak is not known": ({"device_memory_bytes": 80 * GIB}, False),
    "nothing is known": ({}, False),
}


@pytest.mark.parametrize("case", MEMORY)
def test_fewer_checkpoints_are_told_where_memory_has_room(tmp_path, case):
    run, is_told = MEMORY[case]
    answer = found(tmp_path, CHANGES["recompute"][0], run=run)
    fix = rule(answer, "recompute")
    assert (fix is not None) == is_told
    assert any("does not say whether memory has room" in reason for reason in answer.unjudged) == (len(run) < 2)
    if fix:
        assert "14% of the GPU's work" in fix.sentence
        assert "4.0 of 80.0 GiB are used" in fix.sentence


def test_micro_batches_are_made_as_large_as_memory_has_room_for(tmp_path):
    half_full = ROOM | {"memory_peak_bytes": 30 * GIB}
    fix = rule(found(tmp_path, wasteful.accumulating, run=half_full), "micro_batches")
    twice = partial(wasteful.accumulating, batches=2, lasts=4 * US, takes=16 * US)
    assert fix.alone_ns == pytest.approx(step_ns(wasteful.accumulating) - step_ns(twice), rel=0.02)
    assert "4 micro-batches" in fix.sentence
    assert "run them as 2," in fix.sentence
    assert "30.0 of 80.0 GiB are used" in fix.sentence


@pytest.mark.parametrize("is_cudnn", [True, False])
def test_what_chooses_kernels_for_attention_can_be_switched_off(tmp_path, is_cudnn):
    kernel = {"kernel": CUDNN_ATTENTION} if is_cudnn else {}
    fix = rule(found(tmp_path, partial(wasteful.of_lengths, **kernel)), "new_sizes")
    assert ("enable_cudnn_sdp(False)" in fix.sentence) == is_cudnn
    assert "6 of 6 steps have a new size" in fix.sentence
    assert "takes 6.00 ms in forward > layer 0" in fix.sentence


def test_what_helps_on_a_condition_comes_after_what_helps_as_much(tmp_path):
    program = partial(wasteful.distilled, in_vain=False, lasts=150 * US)

    def slow(machine):
        program(machine)
        machine.host(MS + 200 * US)

    rules = [fix.rule for fix in found(tmp_path, slow, run=FROZEN).fixes]
    assert rules.index("host_pause") < rules.index("frozen")


def test_what_may_save_too_little_is_marked_and_the_largest_likely_saving_comes_first(tmp_path):
    program = partial(trained, gemm=FP32_GEMM, lasts=60 * US, gemms=100, after=wasteful.many_launches)
    answer = found(tmp_path, program, slower=2.5, unrecorded_step_ns=None)
    fix = answer.fixes[0]
    assert (fix.rule, fix.uncertain) == ("fp32", True)
    assert fix.alone_low_ns < 0.02 * fix.step_ns
    middles_ns = [(each.alone_low_ns + each.alone_ns) / 2 for each in answer.fixes]
    assert middles_ns == sorted(middles_ns, reverse=True)


def test_a_figure_that_is_about_right_is_called_so(tmp_path):
    fixes = found(tmp_path, CHANGES["compile"][0]).fixes
    assert [(fix.rule, fix.about, fix.up_to) for fix in fixes] == [("compile", True, False)]
    assert not rule(found(tmp_path, CHANGES["to_cpu"][0]), "to_cpu").about
