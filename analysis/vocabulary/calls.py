"""What a CUDA or HIP call does, by its name: it launches, waits, allocates, copies or loads code.

The first rule that matches decides. Names are those of nsys (`cudaLaunchKernel_v7000`), Kineto and rocprofv3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Operators that only a GPU runs; on a CPU, others of PyTorch's take their place.
GPU_OPERATOR = re.compile(
    r"aten::(?:_?cudnn_(?:conv|batch_norm|rnn|attention|init|grid)|miopen_|_thnn_fused_|_fused_dropout|_cslt_"
    r"|_(?:flash|efficient|cudnn)_attention_(?:forward|backward)"
    r"|_scaled_dot_product_(?:flash|efficient|cudnn)_attention(?:_backward)?\Z)|nccl:"
)
#: What calls do; of those without a kind (cudaEventRecord, cudaGetDevice, …) nothing is said.
CALL_KINDS = ("", "kernel launch", "other launch", "synchronization", "query", "allocation", "copy", "loading")
NO_KIND, KERNEL_LAUNCH, OTHER_LAUNCH, SYNCHRONIZATION, QUERY, ALLOCATION, COPY, LOADING = range(len(CALL_KINDS))


class CallRule(NamedTuple):
    """The kind of the calls whose names contain a pattern, with examples and similar names of other kinds."""

    kind: int
    pattern: str
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]


CALL_RULES = (
    CallRule(
        LOADING,
        r"cuLibrary|LibraryLoad|LibraryUnload|LibraryGet|ModuleLoad|ModuleUnload|ModuleGetFunction|KernelGetFunction"
        r"|cuLink(Create|Add|Complete)|cuInit|hipInit|CtxCreate|DevicePrimaryCtx|Lazy Function Loading"
        r"|Triggered Module Loading",
        ("cuLibraryLoadData", "cuModuleLoadDataEx", "cuKernelGetFunction", "hipModuleLoad", "cuInit"),
        ("hipModuleLaunchKernel", "cuFuncGetAttribute", "cuCtxSynchronize"),
    ),
    CallRule(
        KERNEL_LAUNCH,
        r"LaunchKernel|LaunchCooperative",
        ("cudaLaunchKernel_v7000", "cuLaunchKernelEx", "hipExtModuleLaunchKernel", "cudaLaunchCooperativeKernel"),
        ("cudaGraphAddKernelNode", "cudaFuncSetAttribute"),
    ),
    CallRule(
        OTHER_LAUNCH,
        r"GraphLaunch|LaunchHostFunc|cuLaunch|cudaLaunch|LaunchDevice|hipLaunch",
        ("cudaGraphLaunch_v10000", "hipGraphLaunch", "cudaLaunchHostFunc"),
        ("cudaGraphInstantiate", "cudaStreamBeginCapture"),
    ),
    CallRule(
        SYNCHRONIZATION,
        r"Synchronize",
        ("cudaDeviceSynchronize_v3020", "cuEventSynchronize", "hipStreamSynchronize"),
        ("cudaStreamWaitEvent", "cudaEventRecord"),
    ),
    CallRule(QUERY, r"(Event|Stream)Query", ("cudaEventQuery", "hipStreamQuery"), ("cudaFuncGetAttributes",)),
    CallRule(
        ALLOCATION,
        r"Malloc|(cuda|hip)Free|cuMemFree|MemAlloc|HostAlloc|HostFree|FreeHost|FreeAsync|HostRegister|HostUnregister"
        r"|Mem(Create|Map|Unmap|SetAccess|Release|Address|Pool)|Ipc(Open|Get|Close)",
        ("cudaMalloc_v3020", "cudaFreeHost", "cuMemCreate", "hipHostMalloc", "cudaHostAlloc", "cuMemAlloc_v2"),
        ("cudaMemGetInfo", "cudaFuncGetAttributes"),
    ),
    CallRule(
        COPY,
        r"(?<!GraphAdd)(Memcpy|Memset)|cuMemsetD|MemPrefetch",
        ("cudaMemcpyAsync_v3020", "cudaMemsetAsync", "cuMemcpyHtoDAsync_v2", "hipMemcpyWithStream"),
        ("cudaGraphAddMemcpyNode", "cudaMemAdvise"),
    ),
)
_COMPILED = tuple((rule.kind, re.compile(rule.pattern)) for rule in CALL_RULES)


@cache
def kind_of_call(name: str) -> int:
    """Return the position in CALL_KINDS of what a call of this name does."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), NO_KIND)


def kinds_of_calls(names: Iterable[str]) -> NDArray[np.uint8]:
    """Return the kind of each of these calls, uint8 (n,)."""
    return np.array([kind_of_call(name) for name in names], np.uint8)


_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")


def plain_name(names: Sequence[str], position: int) -> str:
    """Return a call's name without the version that nsys appends; empty for the position -1."""
    return _VERSION.sub("", names[position]) if position >= 0 else ""
