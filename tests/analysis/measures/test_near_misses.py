"""Programs that look like a symptom of `view fix` and lose nothing by it: nothing is suggested.

Each has a neighbour in which the same rule speaks, here or in test_fixes.py, so that silence means something.
"""

from dataclasses import replace
from functools import partial

import pytest
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.measures.fix_list import REPLAY
from nvtx_kernels.analysis.measures.fix_rules import RULES
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.readers import read

from tests.analysis.making import wasteful
from tests.analysis.making.building import Work
from tests.analysis.making.simulated import ELEMENTWISE, MS, TF32_GEMM, US, recorded, step_ns
from tests.analysis.making.wasteful import BF16_GEMM, FROZEN, ROOM, UNTRAINED, trained
from tests.analysis.measures.test_fixes import found, one_range, rule, training, updated

CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_{0}_{0}_f32_nhwckrsc_nhwc_tilesize128x128x16_cudnn"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"
ALIGNED = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align{}>(T1::Params)"
DOUBLE_GEMM = "void cutlass_80_wmma_dgemm_f64f64_nn"
CHOLESKY = "void potrf_alg2_cta_lower<double, double, 64>(int, int, double*, int)"
FOREACH = [f"void at::native::multi_tensor_apply_kernel<at::native::Functor_{n}<float>>(T1)" for n in range(2)]


def unnamed(machine):
    """Run the small layers of a model outside of all ranges."""
    for _ in range(80):
        machine.work(2 * US, TF32_GEMM)
        machine.work(2 * US, ELEMENTWISE)


def slow_call(machine, *, name="cuLibraryLoadData", every=1, **options):
    """Run a step that begins with a long call: a kernel's code is loaded."""
    machine.steps = getattr(machine, "steps", 0) + 1
    if machine.steps % every == 0:
        machine.call(name, own=9 * MS)
    training(machine, reads=True, **options)


def beside_work(machine, *, busy):
    """Run a step in whose middle the host computes for 3 ms, while the GPU still works."""
    with machine.range("forward"):
        machine.work(busy, TF32_GEMM)
        machine.host(3 * MS)
        machine.gemms(5, 200 * US, TF32_GEMM)
    machine.read()


def reading(machine, *, size=4, gemms=20, inside=False):
    """Run a step that pauses, computes and copies to the CPU what it waits for."""
    machine.host(3 * MS)
    with machine.range("forward"):
        machine.gemms(gemms, 200 * US, TF32_GEMM)
        if inside:
            machine.read(size)
            machine.host(900 * US)
            machine.gemms(gemms, 200 * US, TF32_GEMM)
    if not inside:
        machine.read(size)


def behind(machine, *, products=0, launches=150):
    """Run a step whose optimizer launches while the GPU is behind, or not."""
    with machine.range("forward"):
        machine.gemms(products, 300 * US, TF32_GEMM)
    with machine.range("Optimizer.step#AdamW.step"):
        for _ in range(launches):
            machine.work(2 * US)


def computed_again(machine, *, around="backward"):
    """Run a step that computes a forward inside another range."""
    with machine.range("forward"):
        machine.gemms(10, 200 * US, TF32_GEMM)
    with machine.range(around):
        with machine.range("forward"):
            machine.gemms(10, 200 * US, TF32_GEMM)
        machine.gemms(20, 200 * US, TF32_GEMM)
    machine.read()


def graphed(machine, *, whole=True):
    """Run a step of many small kernels: of a CUDA graph that one call launches, or each launched."""
    with machine.range("forward"):
        if whole:
            call = machine.call("cudaGraphLaunch_v10000")
            start = machine.rows.launches[-1].start + 10 * US
            for number in range(900):
                begin = start + number * 4 * US
                machine.rows.work.append(Work(call, begin, begin + 3 * US, ELEMENTWISE))
            machine.ends[7] = machine.last_end = start + 900 * 4 * US
        else:
            for _ in range(900):
                machine.work(3 * US)
    machine.read()


def in_forward(machine, *, first=None, launches=300, lasts=3 * US, host=0):
    """Run a step that launches kernels in forward, perhaps after something longer, or computes between two."""
    with machine.range("forward"):
        if first:
            first(machine)
        for _ in range(launches):
            machine.host(host)
            machine.work(lasts)
    machine.read()


def simulating(machine, *, times=48):
    """Compute a state from the one before, time after time, of tensors of several sizes."""
    for _ in range(times):
        for name, blocks in zip(wasteful.AVERAGES, (4, 16, 1, 64, 4, 2), strict=False):
            machine.work(2 * US, name, blocks=blocks)


def updating(machine, *, called="Lion"):
    """Run a step whose optimizer updates one tensor after another."""
    with machine.range("forward"):
        machine.gemms(2, 300 * US, TF32_GEMM)
    with machine.range(f"Optimizer.step#{called}.step"):
        wasteful.averaging(machine)


def orthogonalizing(machine, *, products=10):
    """Run a step whose optimizer multiplies matrices between many small kernels, as Muon does."""
    with machine.range("forward"):
        machine.gemms(2, 300 * US, TF32_GEMM)
    with machine.range("optimizer"):
        machine.gemms(products, 5 * US, BF16_GEMM)
        for _ in range(150):
            machine.work(2 * US)


def slow_batches(machine):
    """Run a step of a length of its own, whose batch the program makes for 6 ms."""
    machine.host(6 * MS)
    wasteful.of_lengths(machine, chooses=0)


def factorizing(machine, *, name=CHOLESKY):
    """Run a step of products in double precision, and a kernel that factorizes a matrix."""
    with machine.range("forward"):
        machine.work(100 * US, name)
    wasteful.in_double(machine)


def answering(machine):
    """Run a step without backward, of a model that is frozen."""
    wasteful.annotated(machine, {"teacher": "Teacher"})
    with machine.range("forward"):
        machine.work(US)
        with machine.range("Net"):
            machine.gemms(2, 200 * US, TF32_GEMM)
            with machine.range("teacher"):
                machine.gemms(10, 200 * US, TF32_GEMM)
    machine.read()


def updating_fused(machine, *, groups):
    """Run a step whose optimizer launches its fused kernel for each of some groups of parameters."""
    with machine.range("forward"):
        machine.gemms(2, 300 * US, TF32_GEMM)
    with machine.range("Optimizer.step#AdamW.step"):
        machine.gemms(groups, 15 * US, "FusedAdamMathFunctor")


OF_TABLE = {"run": wasteful.OF_TABLE}
FULL_MEMORY = {"run": ROOM | {"memory_peak_bytes": 40 << 30}}
MUCH_ELSE = {"run": {"parameters": 100_000_000_000}}
SMALL_MODEL = {"run": {"parameters": 13_000_000, "updated_tensors": 203}}
LARGE_MODEL = {"run": {"parameters": 7_000_000_000, "updated_tensors": 291}}


def pauses(machine):
    """Compute on the host."""
    machine.host(9 * MS)


def loads(machine):
    """Load the code of kernels."""
    for _ in range(10):
        machine.call("cuLibraryLoadData", own=900 * US)


#: What looks like a symptom: its rule, the program, and options of `found`.
SILENT = {
    "fp32: products hide behind the host": ("fp32", partial(training, lasts=3 * US, launches=600)),
    "fp32: TF32 is used": ("fp32", partial(training, gemm=TF32_GEMM)),
    "fp32: bf16 is used": ("fp32", partial(training, gemm=BF16_GEMM)),
    "fp32: products in fp64": ("fp32", partial(training, gemm=DOUBLE_GEMM)),
    "fp32: products with a vector": (
        "fp32", partial(training, gemm="void gemvNSP_kernel<float, float, float, float, 1>(T1)"),
    ),
    "fp32: convolutions in TF32": ("fp32", partial(training, gemm=CONVOLUTION.format("tf32f32"))),
    "fp32: convolutions in fp16": ("fp32", partial(training, gemm=CONVOLUTION.format("f16f16"))),
    "new_sizes: no pauses": ("new_sizes", partial(wasteful.of_lengths, chooses=0)),
    "new_sizes: of one size": ("new_sizes", partial(wasteful.of_lengths, lengths=[64])),
    "new_sizes: of two sizes": ("new_sizes", partial(wasteful.of_lengths, lengths=[64, 128])),
    "new_sizes: of sizes that come again": ("new_sizes", partial(wasteful.of_lengths, lengths=[64, 96, 128])),
    "new_sizes: in all layers": ("new_sizes", partial(wasteful.of_lengths, pausing=range(6))),
    "new_sizes: in the only layer": ("new_sizes", partial(wasteful.of_lengths, layers=1)),
    "new_sizes: in half of the layers": ("new_sizes", partial(wasteful.of_lengths, pausing=(0, 2, 4))),
    "new_sizes: a mask that is made before the layers": (
        "new_sizes", partial(wasteful.of_lengths, chooses=0, makes_mask=6 * MS),
    ),
    "new_sizes: in forward, whose layers have no ranges": (
        "new_sizes", partial(wasteful.of_lengths, range_of=""),
    ),
    "new_sizes: before forward": ("new_sizes", slow_batches),
    "host_pause: the GPU is busy": ("host_pause", partial(training, pause=3 * MS, gemms=80)),
    "host_pause: the GPU is busy for two thirds of it": ("host_pause", partial(beside_work, busy=2 * MS)),
    "host_pause: code is loaded": ("host_pause", slow_call),
    "host_pause: less than 1 ms": ("host_pause", partial(training, pause=900 * US, reads=True)),
    "scalar_read: autograd's checks": (
        "scalar_read", partial(trained, in_backward=partial(wasteful.checked, count=20), lasts=20 * US),
    ),
    "scalar_read: the next copy waits as well": ("scalar_read", partial(training, reads=True, copied=1 << 20)),
    "scalar_read: the GPU is behind": ("scalar_read", partial(training, reads=True, gemms=80)),
    "scalar_read: more than 64 bytes": ("scalar_read", partial(reading, size=68)),
    "scalar_read: in forward": ("scalar_read", partial(reading, inside=True)),
    "forward_read: after forward": ("forward_read", reading),
    "pageable_copy: pinned": ("pageable_copy", partial(training, copied=40 << 20, pinned=True)),
    "pageable_copy: small": ("pageable_copy", partial(training, copied=32 << 10, reads=True)),
    "pageable_copy: beside a long step": ("pageable_copy", partial(training, copied=1 << 20, gemms=100)),
    "optimizer: the GPU is behind": ("optimizer", partial(behind, products=80)),
    "optimizer: fused": ("optimizer", partial(updated, name="multi_tensor_apply_kernel<FusedAdamMathFunctor>")),
    "optimizer: few launches": ("optimizer", partial(behind, products=2, launches=90)),
    "optimizer: ninety groups": ("optimizer", partial(updating_fused, groups=90), SMALL_MODEL),
    "optimizer: so many parameters": ("optimizer", partial(updating_fused, groups=350), LARGE_MODEL),
    "optimizer: LBFGS": ("optimizer", partial(updated, update="Optimizer.step#LBFGS.step")),
    "optimizer: Muon, which multiplies matrices": ("optimizer", orthogonalizing),
    "optimizer: Adagrad, which has no fused kernel": (
        "optimizer", partial(updated, update="Optimizer.step#Adagrad.step")),
    "optimizer: SparseAdam": ("optimizer", partial(updated, update="Optimizer.step#SparseAdam.step")),
    "attention: fused already": ("attention", partial(one_range, between=FLASH)),
    "attention: a loss": (
        "attention", partial(one_range, softmax="void cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>"),
    ),
    "attention: a router": ("attention", partial(one_range, between="void at::native::sbtopk::gatherTopK<float>")),
    "attention: a sampler": ("attention", partial(one_range, last=ELEMENTWISE)),
    "launching: the GPU is busy": ("launching", partial(training, gemms=40, launches=60)),
    "launching: pauses": ("launching", partial(training, pause=9 * MS, reads=True)),
    "launching: code is loaded": ("launching", slow_call),
    "launching: a CUDA graph": ("launching", graphed),
    "launching: host code": ("launching", partial(in_forward, launches=20, host=900 * US)),
    "launching: the GPU is busy for 80%": ("launching", partial(in_forward, lasts=20 * US, host=18 * US)),
    "recompute: a forward of its own": ("recompute", partial(computed_again, around="validation")),
    "alignment: 8 elements at a time": ("alignment", partial(training, gemm=ALIGNED.format(8))),
    "alignment: without tensor cores": ("alignment", training),
    "fp64: fp32": ("fp64", training),
    "fp64: beside Cholesky factors": ("fp64", factorizing),
    "fp64: TF32": ("fp64", partial(training, gemm=TF32_GEMM, lasts=100 * US)),
    "layouts: convolutions in channels-last": ("layouts", partial(training, gemm=CONVOLUTION.format("f16f16"))),
    "layout_copies: in order": ("layout_copies", partial(wasteful.reformatting, copy=wasteful.IN_ORDER)),
    "layout_copies: for products": ("layout_copies", partial(wasteful.reformatting, layer="Linear")),
    "layout_copies: for sequences": ("layout_copies", partial(wasteful.reformatting, layer="Conv1d")),
    "layout_copies: at the ends": ("layout_copies", partial(wasteful.reformatting, count=3)),
    "layout_copies: of gradients alone": ("layout_copies", partial(wasteful.reformatting, phase="backward")),
    "left_in_tf32: all": ("left_in_tf32", partial(wasteful.partly_in_tf32, narrow=0)),
    "left_in_tf32: most": ("left_in_tf32", partial(wasteful.partly_in_tf32, narrow=9)),
    "left_in_tf32: none": ("left_in_tf32", partial(wasteful.partly_in_tf32, gemm=BF16_GEMM)),
    "left_in_tf32: a loss": (
        "left_in_tf32", partial(wasteful.partly_in_tf32, wide=1, lasts=100 * US, narrow=100),
    ),
    "dense_rows: most rows are used": ("dense_rows", partial(wasteful.looking_up, adds=300 * US), OF_TABLE),
    "dense_rows: the output layer's table": (
        "dense_rows", partial(wasteful.looking_up, shared=2400 * US), OF_TABLE,
    ),
    "dense_rows: the output layer's table, of two lookups": (
        "dense_rows", partial(wasteful.looking_up, lookups=2, shared=2400 * US), OF_TABLE,
    ),
    "dense_rows: another optimizer": ("dense_rows", partial(wasteful.looking_up, called="Lion"), OF_TABLE),
    "dense_rows: of a large model": (
        "dense_rows", partial(wasteful.looking_up, sets=1, lasts=100 * US), MUCH_ELSE,
    ),
    "untrained: a discriminator": ("untrained", wasteful.distilled),
    "untrained: a teacher under no_grad": (
        "untrained", partial(wasteful.distilled, in_vain=False), {"run": UNTRAINED},
    ),
    "untrained: other modules": (
        "untrained", wasteful.distilled, {"run": {"untrained": ["Net/teach", "teacher"]}},
    ),
    "frozen: a student alone": ("frozen", partial(wasteful.distilled, in_vain=False)),
    "frozen: other modules": (
        "frozen", partial(wasteful.distilled, in_vain=False), {"run": {"frozen": ["Net/teach", "teacher"]}},
    ),
    "frozen: a network of the loss, which gradients pass": (
        "frozen", partial(wasteful.distilled, of_weights=False, of_input=True), {"run": FROZEN},
    ),
    "frozen: a program that trains nothing": ("frozen", answering, {"run": FROZEN}),
    "padding: all positions are used": (
        "padding", wasteful.of_tokens, {"run": {"positions": 512, "used_positions": 512}},
    ),
    "padding: not known": ("padding", wasteful.of_tokens),
    "one_hot: of a condition, beside images": (
        "one_hot", partial(trained, in_forward=partial(wasteful.by_one_hot, between=ELEMENTWISE)),
    ),
    "one_hot: in a loss": (
        "one_hot", partial(trained, in_backward=wasteful.by_one_hot),
    ),
    "distances: of rows one by one": (
        "distances", partial(trained, in_forward=partial(wasteful.of_pairs, name=ELEMENTWISE)),
    ),
    "distances: from a mean, as in a norm": (
        "distances", partial(trained, in_forward=partial(wasteful.of_pairs, before=4096)),
    ),
    "distances: divided before they are added": (
        "distances", partial(trained, in_forward=partial(wasteful.of_pairs, squares=ELEMENTWISE)),
    ),
    "slices: few": ("slices", partial(trained, in_backward=partial(wasteful.of_slices, count=7))),
    "slices: sizes are not known": ("slices", partial(trained, in_backward=partial(wasteful.of_slices, part=0))),
    "slices: most of the tensor": (
        "slices", partial(trained, in_backward=partial(wasteful.of_slices, part=512)),
    ),
    "second_forward: a smaller batch": ("second_forward", partial(wasteful.evaluated, blocks=16)),
    "second_forward: another model": ("second_forward", partial(wasteful.evaluated, names=("Net", "Teacher"))),
    "second_forward: one call": ("second_forward", partial(wasteful.evaluated, again=False)),
    "micro_batches: one": ("micro_batches", partial(wasteful.accumulating, batches=1), {"run": ROOM}),
    "micro_batches: a GAN's two networks": (
        "micro_batches", partial(wasteful.accumulating, batches=2, products=(4, 6)), {"run": ROOM},
    ),
    "micro_batches: weights that are perturbed, as by SAM": (
        "micro_batches", partial(wasteful.accumulating, batches=2, adds=0), {"run": ROOM},
    ),
    "micro_batches: memory is half full": ("micro_batches", wasteful.accumulating, FULL_MEMORY),
    "micro_batches: the GPU is busy": (
        "micro_batches", partial(wasteful.accumulating, takes=2 * MS), {"run": ROOM},
    ),
    "to_cpu: 64 bytes": ("to_cpu", partial(trained, after=partial(wasteful.computing_on_cpu, size=64))),
    "to_cpu: every other step": ("to_cpu", partial(trained, after=partial(wasteful.computing_on_cpu, every=2))),
    "to_cpu: of a few microseconds": (
        "to_cpu", partial(trained, after=partial(wasteful.computing_on_cpu, size=4096, pause=10 * US)),
    ),
    "from_cpu: a batch": ("from_cpu", partial(training, copied=40 << 20, reads=True)),
    "from_cpu: a number": ("from_cpu", partial(trained, in_forward=partial(wasteful.made_on_cpu, size=1024))),
    "allocating: a cache that grows": (
        "allocating", partial(trained, after=partial(wasteful.allocating, frees=False)),
    ),
    "allocating: twice a step": ("allocating", partial(trained, after=partial(wasteful.allocating, count=1))),
    "anomaly: reads in forward": ("anomaly", partial(trained, in_forward=wasteful.checked, lasts=20 * US)),
    "anomaly: a few reads": (
        "anomaly", partial(trained, in_backward=partial(wasteful.checked, count=19), lasts=20 * US),
    ),
    "device_sync: the loss is read next": ("device_sync", partial(trained, after=wasteful.synchronized_twice)),
    "one_by_one: few tensors": (
        "one_by_one", partial(trained, after=partial(wasteful.averaging, tensors=39), lasts=20 * US),
    ),
    "one_by_one: in forward": ("one_by_one", partial(trained, in_forward=wasteful.averaging, lasts=20 * US)),
    "one_by_one: a model that no range names": ("one_by_one", partial(trained, after=unnamed, lasts=20 * US)),
    "one_by_one: large tensors": (
        "one_by_one", partial(trained, after=partial(wasteful.averaging, lasts=40 * US), lasts=20 * US),
    ),
    "one_by_one: over time, of one size": (
        "one_by_one", partial(trained, after=partial(wasteful.averaging, blocks=[16]), lasts=20 * US),
    ),
    "one_by_one: over time, of a size that grows": (
        "one_by_one", partial(trained, after=partial(wasteful.averaging, blocks=range(80)), lasts=20 * US),
    ),
    "one_by_one: over time, of several sizes": (
        "one_by_one", partial(trained, after=simulating, lasts=20 * US),
    ),
    "one_by_one: a number is read of each": (
        "one_by_one", partial(trained, after=partial(wasteful.averaging, reads=True), lasts=20 * US),
    ),
    "one_by_one: all tensors at once": (
        "one_by_one", partial(trained, after=partial(wasteful.averaging, names=FOREACH), lasts=20 * US),
    ),
    "one_by_one: an optimizer that can be fused": ("one_by_one", partial(updating, called="AdamW")),
    "in_parts: few calls": ("in_parts", partial(wasteful.called_in_parts, calls=7, kernels=50)),
    "in_parts: reads between the calls, as of an environment": (
        "in_parts", partial(wasteful.called_in_parts, between=2, reads=True),
    ),
    "in_parts: the GPU is busy": ("in_parts", partial(wasteful.called_in_parts, lasts=40 * US)),
    "compile: one kernel between products": (
        "compile", partial(trained, in_forward=partial(wasteful.chained, length=1)),
    ),
    "compile: fused already": (
        "compile", partial(trained, in_forward=partial(wasteful.chained, name="triton_poi_fused_add_0")),
    ),
    "compile: convolutions": (
        "compile", partial(trained, gemm=CONVOLUTION.format("tf32f32"), in_forward=wasteful.chained),
    ),
    "compile: beside a convolution's layer": ("compile", partial(wasteful.chained_beside, inside=("Net", "stem"))),
    "compile: a layer beside a convolution": (
        "compile", partial(wasteful.chained_beside, inside=("Net", "stem", "norm")),
    ),
    "compile: outside of the model": ("compile", partial(wasteful.chained_beside, inside=("loss",))),
    "compile: where launching limits": (
        "compile", partial(trained, gemms=0, in_forward=partial(wasteful.chained, lasts=US, length=600, count=1)),
    ),
    "recompute: memory is not known": ("recompute", computed_again),
}  # fmt: skip
#: The same programs but for what makes them harmless: the rule speaks.
SPEAKS = {
    "fp32: convolutions": ("fp32", partial(training, gemm=CONVOLUTION.format("f32f32"))),
    "host_pause: the GPU is busy for a third of it": ("host_pause", partial(beside_work, busy=MS)),
    "host_pause": ("host_pause", partial(training, pause=3 * MS, gemms=20, reads=True)),
    "new_sizes": ("new_sizes", wasteful.of_lengths),
    "new_sizes: in two of six layers": ("new_sizes", partial(wasteful.of_lengths, pausing=(0, 3))),
    "scalar_read: 64 bytes": ("scalar_read", partial(reading, size=64)),
    "forward_read": ("forward_read", partial(reading, inside=True)),
    "optimizer: the GPU waits": ("optimizer", partial(behind, products=2)),
    "attention": ("attention", one_range),
    "launching: each kernel": ("launching", partial(graphed, whole=False)),
    "launching: beside a pause": ("launching", partial(in_forward, first=pauses)),
    "launching: beside code that is loaded": ("launching", partial(in_forward, first=loads)),
    "recompute": ("recompute", computed_again, {"run": ROOM}),
    "alignment: one element at a time": ("alignment", partial(training, gemm=ALIGNED.format(1))),
    "alignment: two elements at a time": ("alignment", partial(training, gemm=ALIGNED.format(2))),
    "fp64": ("fp64", partial(training, gemm=DOUBLE_GEMM)),
    "fp64: nothing is factorized": ("fp64", partial(factorizing, name=ELEMENTWISE)),
    "fp64: no product": (
        "fp64",
        partial(wasteful.in_double, gemm=TF32_GEMM, lasts=40 * US),
    ),
    "layouts": ("layouts", partial(trained, in_forward=wasteful.converting)),
    "layout_copies": ("layout_copies", wasteful.reformatting),
    "layout_copies: the copies of layers": ("layout_copies", partial(wasteful.reformatting, undone=False)),
    "left_in_tf32": ("left_in_tf32", wasteful.partly_in_tf32),
    "left_in_tf32: as many": ("left_in_tf32", partial(wasteful.partly_in_tf32, narrow=10)),
    "dense_rows": ("dense_rows", wasteful.looking_up, OF_TABLE),
    "dense_rows: two lookups": ("dense_rows", partial(wasteful.looking_up, lookups=2), OF_TABLE),
    "optimizer: a group for each tensor": ("optimizer", partial(updating_fused, groups=203), SMALL_MODEL),
    "untrained": ("untrained", wasteful.distilled, {"run": UNTRAINED}),
    "frozen": ("frozen", partial(wasteful.distilled, in_vain=False), {"run": FROZEN}),
    "padding": ("padding", wasteful.of_tokens, {"run": wasteful.PADDED}),
    "one_hot": ("one_hot", partial(trained, in_forward=wasteful.by_one_hot)),
    "distances": ("distances", partial(trained, in_forward=wasteful.of_pairs)),
    "slices": ("slices", partial(trained, in_backward=wasteful.of_slices)),
    "slices: eight": ("slices", partial(trained, in_backward=partial(wasteful.of_slices, count=8))),
    "second_forward": ("second_forward", wasteful.evaluated),
    "micro_batches": ("micro_batches", wasteful.accumulating, {"run": ROOM}),
    "micro_batches: memory is not known": ("micro_batches", wasteful.accumulating),
    "one_by_one": ("one_by_one", partial(trained, after=wasteful.averaging, lasts=20 * US)),
    "one_by_one: in an optimizer of the program": ("one_by_one", updating),
    "in_parts": ("in_parts", wasteful.called_in_parts),
    "in_parts: a loss of each part": ("in_parts", partial(wasteful.called_in_parts, between=2)),
    "optimizer: without products": ("optimizer", partial(orthogonalizing, products=0)),
    "optimizer: one by one": ("optimizer", partial(updating, called="AdamW")),
    "to_cpu": ("to_cpu", partial(trained, after=wasteful.computing_on_cpu)),
    "from_cpu": ("from_cpu", partial(trained, in_forward=wasteful.made_on_cpu)),
    "allocating": ("allocating", partial(trained, after=wasteful.allocating)),
    "anomaly: twenty reads": (
        "anomaly",
        partial(trained, in_backward=partial(wasteful.checked, count=20), lasts=20 * US),
    ),
    "device_sync": ("device_sync", partial(trained, in_backward=wasteful.synchronizing)),
    "compile: in another block than a convolution": ("compile", wasteful.chained_beside),
    "compile: two kernels between products": (
        "compile",
        partial(trained, in_forward=partial(wasteful.chained, length=2)),
    ),
}


def told_of(folder, program, options):
    """Return what is said of a program; what measured as nothing is never suggested."""
    answer = found(folder, program, **dict(*options))
    text = " ".join(fix.sentence for fix in answer.fixes).lower()
    assert not any(word in text for word in ("foreach=", "clip"))
    assert "larger batches" not in text or "larger batches change training" in text
    return answer


@pytest.mark.parametrize("case", SILENT)
def test_a_near_miss_is_silent(tmp_path, case):
    name, program, *options = SILENT[case]
    answer = told_of(tmp_path, program, options)
    assert answer.kind == REPLAY
    assert rule(answer, name) is None


@pytest.mark.parametrize("case", SPEAKS)
def test_its_neighbour_is_told(tmp_path, case):
    name, program, *options = SPEAKS[case]
    assert rule(told_of(tmp_path, program, options), name) is not None


def test_every_rule_has_near_misses():
    assert {name for name, *_ in SILENT.values()} == {rule.name for rule in RULES}


@pytest.mark.parametrize("known", [True, False], ids=["its step is known", "it is not"])
def test_a_program_of_the_gpu_that_recording_slows_is_not_limited_by_launching(tmp_path, known):
    program = partial(training, gemms=600, lasts=10 * US, gemm=TF32_GEMM, launches=20)
    options = {} if known else {"unrecorded_step_ns": None}
    assert rule(found(tmp_path, program, slower=2.2, **options), "launching") is None
    by_hand = found(tmp_path, program, slower=2.2, unrecorded_step_ns=step_ns(program, slower=2.2))
    assert rule(by_hand, "launching") is not None  # were its step as long as recorded


def test_what_saves_little_of_a_step_or_less_than_steps_differ_is_silent(tmp_path):
    small = partial(training, pause=3 * MS, gemms=800, gemm=TF32_GEMM, reads=True)
    assert rule(found(tmp_path, small), "host_pause") is None  # 3 of 163 ms
    assert any(tried.rule == "host_pause" for tried in found(tmp_path, small).silent)
    steps = iter(range(10**6))

    def uneven(machine):
        training(machine, pause=(3 + 6 * (next(steps) % 3)) * MS, gemms=20, lasts=20 * US, reads=True)

    assert rule(found(tmp_path, uneven, unrecorded_step_ns=None), "fp32") is None


@pytest.mark.parametrize(
    ("classes", "is_told"),
    [({"conv": "Conv1d"}, False), ({"conv": "Conv3d"}, False), ({"conv": "Conv2d", "to": "Conv1d"}, True)],
)
def test_channels_last_is_for_images(tmp_path, classes, is_told):
    trace = read(recorded(tmp_path, partial(trained, in_forward=wasteful.converting)))
    trace = replace(trace, provenance=replace(trace.provenance, models={"Net": classes}))
    assert (rule(fixes_of(partition(attribute(trace, Rules()))), "layouts") is not None) == is_told


def test_full_fp32_that_was_asked_for_is_called_so(tmp_path):
    program = partial(training, reads=True)
    asked = rule(found(tmp_path, program, run={"dtype": "fp32", "tf32": False}), "fp32")
    assert asked.sentence.endswith("you asked for full fp32")
    assert "asked" not in rule(found(tmp_path, program), "fp32").sentence


def test_a_gpu_without_tf32_is_told_fp16(tmp_path):
    sentence = rule(found(tmp_path, partial(training, reads=True), gpu="Tesla V100-SXM2-32GB"), "fp32").sentence
    assert "fp16" in sentence
    assert "TF32" not in sentence


def test_a_read_that_decides_in_forward_needs_other_code(tmp_path):
    assert "needs other code" in rule(found(tmp_path, partial(reading, inside=True)), "forward_read").sentence
    assert "needs other code" not in rule(found(tmp_path, reading), "scalar_read").sentence


def test_reads_of_whether_all_is_true_may_be_checks_of_distributions(tmp_path):
    checks, others = (
        rule(
            found(tmp_path, partial(trained, in_forward=partial(wasteful.deciding, count=40, kernel=kernel))),
            "forward_read",
        )
        for kernel in (wasteful.ALL_TRUE, ELEMENTWISE)
    )
    assert "set_default_validate_args(False)" in checks.sentence
    assert "distributions" not in others.sentence


def test_a_loop_over_cells_is_told_their_layer(tmp_path):
    cells = partial(trained, gemms=200, lasts=2 * US, gemm=wasteful.LSTM_CELL)
    assert "nn.LSTM in place of a loop over nn.LSTMCell" in rule(found(tmp_path, cells), "launching").short
