"""Programs with one mistake each, at known lines, for `simulated`; an option leaves the mistake out.

line   10        20        30          40          50         60
       forward   mistake   backward    mistake     optimizer  mistake
"""

import json
from contextlib import nullcontext
from functools import partial

from tests.analysis.making.building import MARK, MODEL_BACKWARD, MODEL_FORWARD, NO_GRADIENT, Range
from tests.analysis.making.simulated import ELEMENTWISE, MS, TF32_GEMM, US

MIB = 1 << 20
#: The facts of a run whose memory has room.
ROOM = {"memory_peak_bytes": 4 << 30, "device_memory_bytes": 80 << 30}
#: The fact of a run whose teacher no optimizer trains.
UNTRAINED = {"untrained": ["Net/teacher"]}
#: The fact of a run whose teacher is frozen.
FROZEN = {"frozen": ["Net/teacher"]}
#: The facts of a run whose batches are padded to twice what their longest sample needs.
PADDED = {"positions": 512, "used_positions": 256}
ISNAN = "void at::native::vectorized_elementwise_kernel<4, at::native::isnan_kernel_impl>(int)"
BF16_ALIGNED = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_nn_align{}>(T1::Params)"
DOUBLE_GEMM = "void cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>(T1)"
REORDER = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(TensorIteratorBase&)>"
IN_ORDER = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(TensorIteratorBase&)>"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x16_cudnn"
DGRAD, WGRAD = (CONVOLUTION.replace("fprop", name) for name in ("dgrad", "wgrad"))
BF16_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
DOUBLE_ADD = "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctor_add<double>>(int)"
SETS = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
ADDS_ROWS = "void at::native::(anonymous namespace)::sum_and_scatter<float, long>(long const*, float*, long)"
WRITES_ONES = "void _scatter_gather_elementwise_kernel<128, 8, _cuda_scatter_fill_internal_kernel<long>>(int)"
SUBTRACTS = (
    "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float>>>(int)"
)
SQUARES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar_kernel_impl<float>>(int)"
)
SUMS = (
    "void at::native::reduce_kernel<512, 1, ReduceOp<float, func_wrapper_t<float, sum_functor<float>>>>(ReduceOp)"
)
LSTM_CELL = "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, int, 1>(TensorInfo)"
ALL_TRUE = "void reduce_kernel<512, 1, ReduceOp<bool, func_wrapper_t<bool, and_kernel_cuda(TensorIterator&)>>>"
ADDS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
#: The facts of a run whose parameters are nearly all in one table, which an H200 sets in 800 µs.
OF_TABLE = {"parameters": 1_000_000_000}
AVERAGES = [f"void at::native::vectorized_elementwise_kernel<4, at::native::average_{n}>(int)" for n in range(9)]
#: The blocks of a kernel for each of a layer's tensors, again and again.
OF_LAYERS = (256, 1, 1024, 4)
FORWARD_AT, BACKWARD_AT, UPDATE_AT = 10, 30, 50


def trained(machine, *, in_forward=None, in_backward=None, after=None, gemms=20, lasts=200 * US, gemm=TF32_GEMM):
    """Run a step of products, with something more in the middle of forward or backward, or after the update."""
    for name, line, extra, count in (
        ("forward", FORWARD_AT, in_forward, gemms),
        ("backward", BACKWARD_AT, in_backward, 2 * gemms),
    ):
        with machine.range(name):
            machine.at(line)
            machine.gemms(count // 2, lasts, gemm)
            if extra:
                extra(machine)
                machine.at(line + 1)
            machine.gemms(count - count // 2, lasts, gemm)
    with machine.range("optimizer"):
        machine.at(UPDATE_AT)
        machine.work(100 * US, "FusedAdamMathFunctor")
    if after:
        after(machine)


def reading(machine, *, host=3 * MS):
    """Read a loss at line 60, and compute on the host before the next work, at line 61."""
    machine.at(60)
    machine.read()
    machine.at(61)
    machine.host(host)


def computing_on_cpu(machine, *, size=32 * MIB, pause=6 * MS, every=1):
    """Copy a result to the CPU, at line 60, and compute on it, at line 61."""
    machine.passes = getattr(machine, "passes", 0) + 1
    if machine.passes % every == 0:
        machine.at(60)
        machine.read(size, pinned=False)
        machine.at(61)
        machine.host(pause)


def made_on_cpu(machine, *, size=4 * MIB, making=900 * US):
    """Make a tensor on the CPU, at line 20, and copy it to the GPU, at line 21."""
    machine.at(20)
    machine.host(making)
    machine.at(21)
    machine.upload(size)


def averaging(machine, *, tensors=80, kernels=2, lasts=2 * US, blocks=OF_LAYERS, names=AVERAGES, reads=False):
    """Average weights, one tensor after another, at line 60; perhaps read a number of each."""
    machine.at(60)
    for number in range(tensors):
        for kind in range(kernels):
            machine.work(lasts, names[kind], blocks=blocks[number % len(blocks)])
        if reads:
            machine.read()


def called_in_parts(machine, *, calls=32, kernels=12, lasts=2 * US, between=0, reads=False):
    """Run a model on parts of the batch, one after another, in place of all at once; perhaps with work between."""
    with machine.range("forward"):
        machine.at(FORWARD_AT)
        for _ in range(calls):
            with machine.model("Net"):
                for number in range(kernels):
                    machine.work(lasts, AVERAGES[number % 9])
            for _ in range(between):
                machine.work(US)
            if reads:
                machine.read()
    with machine.range("backward"), machine.model("Net", MODEL_BACKWARD):
        machine.at(BACKWARD_AT)
        for number in range(2 * calls * kernels):
            machine.work(lasts, AVERAGES[number % 9])
    with machine.range("optimizer"):
        machine.at(UPDATE_AT)
        machine.work(100 * US, "FusedAdamMathFunctor")


def allocating(machine, *, count=8, frees=True):
    """Allocate memory at line 62, and free it at line 63, which waits for the GPU."""
    for _ in range(count):
        machine.at(62)
        machine.call("cudaMalloc_v3020", own=300 * US)
        machine.at(63)
        if frees:
            machine.call("cudaFree_v3020", own=200 * US, until=machine.last_end)


def checked(machine, *, count=30):
    """Check gradients for NaN at line 40."""
    machine.at(40)
    for _ in range(count):
        machine.work(5 * US, ISNAN)
        machine.read(1)


def synchronizing(machine, *, count=1, host=900 * US, waits=True):
    """Wait for the whole GPU at line 40, then compute on the host, at line 41."""
    for _ in range(count):
        if waits:
            machine.at(40)
            machine.call("cudaDeviceSynchronize_v3020", until=machine.last_end)
        machine.at(41)
        machine.host(host)


def chained(machine, *, length=6, count=10, lasts=100 * US, name=ELEMENTWISE):
    """Launch runs of kernels that move memory between products, at line 20."""
    machine.at(20)
    for _ in range(count):
        for _ in range(length):
            machine.work(lasts, name)
        machine.work(200 * US, TF32_GEMM)


def converting(machine, *, count=20, lasts=100 * US):
    """Convert images to another layout, at line 20."""
    machine.at(20)
    for _ in range(count):
        machine.work(lasts, TO_NHWC)


def annotated(machine, classes):
    """Write the mark of a model `Net` in the first step."""
    if not machine.rows.waits:
        content = {"version": 3, "model": "Net", "classes": classes, "attributes": {}, "modules": len(classes)}
        text = f"nvtx-kernels annotation: {json.dumps(content)}"
        machine.rows.ranges.append(Range(text, machine.now, None, event=MARK))


def distilled(
    machine,
    *,
    layers=10,
    lasts=200 * US,
    in_vain=True,
    of_weights=True,
    of_input=False,
    of_images=True,
    comes_last=True,
    in_forward=True,
):
    """Run a teacher of convolutions or products at line 31, and a student; the teacher's backward is `in_vain`.

    It computes gradients `of_weights`, and those of the teacher's input if `of_input`, and `comes_last`. Its
    outputs are computed `in_forward`, or are stored.
    """
    annotated(machine, {"teacher": "Teacher", "teacher/conv *": "Conv2d", "student": "Linear"})
    forward, dgrad, wgrad = (CONVOLUTION, DGRAD, WGRAD) if of_images else [TF32_GEMM] * 3

    def backward_of_student():
        with machine.range("student"):
            machine.at(30)
            machine.gemms(2 * layers, lasts, TF32_GEMM)

    def backward_of_teacher():
        with machine.range("teacher"):
            machine.at(31)
            for number in reversed(range(layers if in_vain else 0)):
                with machine.range(f"conv {number}"):
                    machine.gemms(bool(number or of_input), lasts, dgrad)
                    machine.gemms(int(of_weights), lasts, wgrad)

    with machine.range("forward"):
        machine.at(29)
        machine.work(lasts)
        with machine.range("Net"):
            with machine.range("student"):
                machine.at(30)
                machine.gemms(layers, lasts, TF32_GEMM)
            with machine.range("teacher"):
                machine.at(31)
                machine.gemms(layers if in_forward else 0, lasts, forward)
    with machine.range("backward"):
        machine.at(29)
        machine.work(lasts)
        with machine.range("Net"):
            first, last = (backward_of_student, backward_of_teacher)[:: 1 if comes_last else -1]
            first()
            last()
    machine.read()


def reformatting(
    machine, *, count=10, lasts=100 * US, copy=REORDER, layer="Conv2d", phase="forward", undone=True, copies=True
):
    """Make the operand of a convolution contiguous, at line 20; the layer copies it back, at line 21."""
    annotated(machine, {"conv *": layer})
    with machine.range(phase):
        machine.at(19)
        machine.work(lasts)
        with machine.range("Net"):
            for number in range(count):
                if copies:
                    machine.at(20)
                    machine.work(2 * lasts, copy if undone else ELEMENTWISE)
                machine.at(21)
                with machine.range(f"conv {number}"):
                    if copies:
                        machine.work(lasts, copy)
                    machine.work(lasts, CONVOLUTION)
    machine.read()


def partly_in_tf32(machine, *, wide=10, narrow=20, lasts=400 * US, gemm=TF32_GEMM):
    """Run a block in TF32 at line 20, and others in bf16."""
    machine.at(20)
    with machine.range("forward"):
        machine.gemms(wide, lasts, gemm)
        machine.at(21)
        machine.gemms(narrow, 200 * US, BF16_GEMM)
    machine.read()


def looking_up(
    machine, *, sets=2, lasts=400 * US, adds=20 * US, lookups=1, shared=0, called="Adagrad", updates=12
):
    """Compute the gradient of a table of embeddings at line 20, and update all of its rows in several kernels.

    The gradients of `lookups` are added to one, and perhaps one that is `shared` with another layer.
    """
    with machine.range("forward"):
        machine.gemms(10, 200 * US, BF16_GEMM)
    with machine.range("backward"):
        machine.gemms(20, 200 * US, BF16_GEMM)
        machine.at(20)
        for lookup in range(lookups):
            with machine.range("table"):
                for _ in range(sets):
                    machine.work(lasts, SETS)
                machine.work(adds, ADDS_ROWS)
            if lookup and sets:
                machine.work(3 * sets * lasts, ADDS)
        if shared:
            machine.work(shared, ADDS)
    machine.at(50)
    with machine.range(f"Optimizer.step#{called}.step"):
        machine.gemms(updates, 500 * US, "multi_tensor_apply_kernel")


def of_lengths(
    machine,
    *,
    lengths=range(64, 128, 8),
    layers=6,
    chooses=6 * MS,
    pausing=(0,),
    kernel=ELEMENTWISE,
    makes_mask=0,
    range_of="layer {}",
):
    """Run layers on batches of several lengths; those `pausing` choose kernels for a new one, at line 20.

    Before all layers, the host makes a mask.
    """
    length = lengths[len(machine.begun) % len(lengths)]
    with machine.range("forward"):
        machine.at(FORWARD_AT)
        machine.work(2 * US, blocks=length)
        machine.host(makes_mask)
        for number in range(layers):
            with machine.range(range_of.format(number)) if range_of else nullcontext():
                machine.at(20)
                machine.host(chooses if number in pausing else 0)
                machine.work(50 * US, kernel, blocks=4 * length)
                machine.at(21)
                machine.work(200 * US, TF32_GEMM, blocks=16 * length)
    with machine.range("backward"):
        machine.at(BACKWARD_AT)
        machine.gemms(2 * layers, 200 * US, TF32_GEMM)
    machine.read()


def accumulating(machine, *, batches=4, kernels=60, lasts=2 * US, products=(4, 4, 4, 4), takes=8 * US, adds=8):
    """Run micro-batches of some products each; backward of those after the first adds to gradients."""
    for batch in range(batches):
        with machine.range("forward"):
            machine.at(FORWARD_AT)
            machine.gemms(products[batch], takes, TF32_GEMM)
            for _ in range(kernels):
                machine.work(lasts)
        with machine.range("backward"):
            machine.at(BACKWARD_AT)
            machine.gemms(2 * products[batch], takes, TF32_GEMM)
            for _ in range(kernels):
                machine.work(lasts)
            for _ in range(adds if batch else 0):
                machine.work(US, ADDS)
    with machine.range("optimizer"):
        machine.at(UPDATE_AT)
        machine.work(100 * US, "FusedAdamMathFunctor")


def computing_again(machine, *, products=10, lasts=200 * US):
    """Compute a part of forward again, at line 40."""
    machine.at(40)
    with machine.range("forward"):
        machine.gemms(products, lasts, TF32_GEMM)


def in_double(machine, *, gemm=DOUBLE_GEMM, add=DOUBLE_ADD, lasts=400 * US, adds=40 * US):
    """Run a step of products and additions in double precision."""
    for phase, count in (("forward", 10), ("backward", 20)):
        with machine.range(phase):
            for _ in range(count):
                machine.work(lasts, gemm)
                machine.work(adds, add)
    machine.read()


def deciding(machine, *, count=4, kernel=ELEMENTWISE):
    """Read numbers that the program decides by, at line 20."""
    for _ in range(count):
        machine.at(20)
        machine.work(2 * US, kernel)
        machine.read(1)


def made_at_one_line(machine):
    """Make two tensors of a batch on the CPU, both at line 5, and copy them by two calls."""
    for size in (8 * MIB, 1 * MIB):
        machine.at(5)
        machine.host(4 * MS)
        machine.at(6)
        machine.upload(size, pinned=size > MIB)
    trained(machine)
    machine.read()


def of_tokens(machine, *, lasts=200 * US):
    """Run a model on tokens, whose batches may be padded."""
    with machine.range("forward"):
        machine.at(FORWARD_AT)
        machine.gemms(10, lasts, TF32_GEMM)
    with machine.range("backward"):
        machine.at(BACKWARD_AT)
        machine.gemms(20, lasts, TF32_GEMM)
    with machine.range("optimizer"):
        machine.work(100 * US, "FusedAdamMathFunctor")


def by_one_hot(machine, *, tables=4, between=None):
    """Look up rows of tables by products with one-hot rows, at line 20; something may be between the two."""
    machine.at(20)
    for _ in range(tables):
        machine.work(200 * US, SETS)
        machine.work(5 * US, WRITES_ONES)
        machine.work(400 * US, IN_ORDER)
        if between:
            machine.work(100 * US, between)
        machine.work(200 * US, TF32_GEMM)


def of_pairs(machine, *, layers=4, name=SUBTRACTS, parts=2, before=64, squares=SQUARES):
    """Compute distances at line 20 by the differences of all pairs, in parts; `before` has so many blocks."""
    machine.at(20)
    for _ in range(layers):
        for _ in range(3):
            machine.work(5 * US, ELEMENTWISE, blocks=before)
        for kernel in (name, squares, SUMS):
            for _ in range(parts):
                machine.work(200 * US, kernel, blocks=4096)


def of_slices(machine, *, count=20, whole=True, part=64):
    """Compute gradients of slices at line 40, each of which sets and adds one of the whole tensor, if it does."""
    machine.at(40)
    for _ in range(count):
        if whole:
            machine.work(80 * US, SETS, blocks=1024)
        machine.work(5 * US, REORDER, blocks=part)
        if whole:
            machine.work(120 * US, ADDS, blocks=1024)


def evaluated(machine, *, again=True, blocks=64, names=("Net", "Net")):
    """Train a model at line 10, and call it again without gradient for a metric, at line 60."""
    for name, line, category in zip(names, (FORWARD_AT, 60), (MODEL_FORWARD, NO_GRADIENT), strict=True):
        if category == MODEL_FORWARD or again:
            machine.at(line)
            with machine.model(name, category):
                for _ in range(10):
                    machine.work(200 * US, TF32_GEMM, blocks=64 if category == MODEL_FORWARD else blocks)
        if category == MODEL_FORWARD:
            with machine.range("backward"):
                machine.gemms(20, 200 * US, TF32_GEMM)
            with machine.range("optimizer"):
                machine.work(100 * US, "FusedAdamMathFunctor")


def many_launches(machine, *, count=780):
    """Launch many kernels that take no time, at line 70."""
    machine.at(70)
    for _ in range(count):
        machine.work(US // 2)


def chained_beside(machine, *, inside=("Net", "block 0", "mlp"), convolutions="stem", lasts=100 * US):
    """Run a model of a convolution and, in some range, runs of kernels that move memory, at line 20."""
    annotated(machine, {"stem": "Stem"})

    def within(names, extra):
        if not names:
            extra()
            return
        with machine.range(names[0]):
            machine.host(US)
            within(names[1:], extra)
            machine.host(US)

    within(("forward", "Net", convolutions, "conv"), lambda: machine.work(200 * US, CONVOLUTION))
    within(("forward", *inside), partial(chained, machine, lasts=lasts))
    machine.read()


def synchronized_twice(machine):
    """Wait for the whole GPU, and then read a number, which waits as well."""
    synchronizing(machine, host=20 * US)
    machine.read()
