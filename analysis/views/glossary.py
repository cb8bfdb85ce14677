"""What the columns of each view mean: `nvtx-kernels view NAME --help` prints it, so that captions stay short."""

from __future__ import annotations

import textwrap

_SPAN = "first start to last end of a range's work, of all instances"
_CPU_RANGE = "the range's own duration, as a timer around it sees"

GLOSSARY: dict[str, dict[str, str]] = {
    "agreement": {
        "ranges": "the phase's outermost ranges",
        "CPU range": _CPU_RANGE,
        "GPU span": _SPAN,
        "kernel time": "sum of the kernels' durations",
        "%": "share of the CPU range",
        "agree": "the GPU span is within 3% of the CPU range",
        "CPU longer": "the GPU started late or finished early",
        "not synchronized": "the GPU worked on after the range had closed",
        "timed": "measured elsewhere, as given with --timed",
        "longer here, shorter here": "the CPU range is longer or shorter than timed",
    },
    "attention": {
        "time": "all kernels inside the part's ranges; scores include scale and mask where these are inside",
        "GEMMs": "the matrix products among them; in the ratios, of scores and final matmul together",
        "ranges": "all kernels of scores and final matmul, with scale and mask where these are inside",
        "FLOP/s, B/s": "over the time shown: a matmul's GEMMs, and all kernels of other parts",
        "FLOPs": "per layer and step, where the run states them: the two matmuls 4·B·H·T²·d_head forward and "
        "8·B·H·T²·d_head backward; softmax 5·B·H·T² forward and 4·B·H·T² backward. Where they are counted: 2 per "
        "multiply-add; softmax 5 per score and 4 in its backward, or, written out, 1 per element of each operator",
    },
    "steps": {
        "step time": "from the end of the last step's GPU work to the end of its own; the first step's begins at "
        "the end of warm-up, or with its range",
        "compute": "any kernel that does not communicate, or a CUDA graph, ran",
        "communication": "communication, or waiting for ranks, without compute",
        "copies": "a copy or memset ran without either",
        "idle": "no work ran",
        "operators": "of a CPU: an operator ran; idle: none did",
        "counts": "no: it differs from the others, or its start is unknown",
        "prefill, decode": "calls of a generating model, of many and of few positions",
        "tokens": "decoding calls of one position; of a batch, per sequence",
        "spread": "(max − min) / median",
        "slowest": "the step with the most time in the range",
        "tokens/s": "all tokens of a step, or of all steps, over their GPU span",
    },
    "kernels": {
        "blocks": "the grid's size",
        "launches": "launches of the kernel in the range, but in no inner range",
        "ranges": "ranges of that name that launch it",
        "each": "launches per range",
        "5·12 + 1": "five in each of 12 layers, and one more",
        "operator": "the outermost operator of PyTorch around the launch that does not only call others: a "
        "convolution with the transposes that it launches is one row (--by operator)",
    },
    "idle": {
        "idle": "no work ran on the GPU; by the phase of the range then open on the CPU",
        "busy": "any kernel, copy, memset or CUDA graph ran",
        "waiting for CPU": "idle because the next work was not launched yet",
        "GPU-bound": "busy for at least 90% of the time",
        "copy-bound": "the same, with only copies for half of that time; communication-bound likewise",
        "limited by a cause": "busy for less than 75%, and the cause has at least half of the idle time",
        "mixed": "no single cause",
        "range": "the innermost range open on the CPU",
        "line": "of the program, with most of the idle time, and its share if that is below 90%",
        "lag": "from the start of a launch call to the start of its work on the GPU (--launches)",
    },
    "communication": {
        "time": "any of them ran on that GPU; of several at once, the first to start counts",
        "exposed": "no compute ran meanwhile",
        "waiting": "until the last rank had started; without a common clock, what a rank needed longer than the "
        "fastest",
        "bus B/s": "as NCCL's tests define it, over the time without waiting where that is known",
        "last": "collectives in which the rank was the last to start",
        "others waited": "how long the first of the other ranks waited for it",
    },
    "fix": {
        "alone": "what the change saves by itself, by replay of the recorded calls: an upper limit. Without a "
        "known time of the unrecorded step, it is a range, for several costs of recording. Savings do not add up",
        "then a step takes": "after this change and those above it",
        "line": "of the program, that launches most of the work concerned",
        "time": "of the kernels and copies concerned",
        "least": "the time that their bytes or FLOPs need, where these were counted",
        "measured": "how much of the replayed saving such changes had when they were tried",
    },
    "efficiency": {
        "operator and sizes": "products: rows × columns × inner; convolutions: input → channels, window; "
        "attention: all heads, queries × keys × width; others: the largest tensor",
        "% peak": "the least time, the longer of FLOPs and bytes at the GPU's peaks, over the kernels' time",
        "above": "the kernels' time beyond the least",
        "bytes": "the least: inputs and outputs of each operator, once",
        "FLOP/s, B/s": "over the kernel time of the range with all inside it",
        "% FLOP, % mem": "of the GPU's peaks of dense arithmetic and of memory",
        "bound": "the nearer of the two peaks; neither: both below 25%",
        "MFU": "FLOPs of forward and backward over step time and peak",
        "HFU": "the same with recomputation and the optimizer",
        "time of a step": "mean of the steps that count in view steps",
    },
    "ask": {
        "ranges": "the phase's outermost ranges",
        "CPU range": _CPU_RANGE,
        "GPU span": _SPAN,
        "made of": "5·12 + 1: five in each of 12 layers, and one more",
        "same": "whether it is also the kernel with the most time in forward",
        "operations": "the kernels in ranges named after them; –: no such range",
        "residual": "element-wise kernels directly in the range around a norm",
        "casts, copies": "by the kernel's name, in no range of an operation",
        "FLOPs": "as in `nvtx-kernels view attention --help`",
    },
    "memory": {
        "allocated, freed": "in the range or inside it, whoever freed or had allocated it",
        "kept": "allocated in forward, and in use when the backward of its step began",
        "at peak": "allocated by the range, and in use when the device held most; not per step",
        "held": "the most in use at a moment of the phase, with what was there when it began",
        "unseen": "changes of the allocator's total that no recorded allocation or free explains",
    },
}


def help_text(view: str) -> str:
    """Return the meanings of a view's columns, for its help; raises KeyError for an unknown view."""
    entries = GLOSSARY[view]
    width = min(18, max(map(len, entries)))
    lines = [
        textwrap.fill(f"{word:<{width}}  {meaning}", 78, initial_indent="  ", subsequent_indent=" " * (width + 4))
        for word, meaning in entries.items()
    ]
    return "\n".join(["what the columns mean:", *lines])
