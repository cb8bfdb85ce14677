"""The questions: a table that `--help` reads, so that it loads nothing else."""

from __future__ import annotations

#: Letter -> the module whose `answer` draws its tables, and what is asked.
QUESTIONS = {
    "a": ("a_times", "how long do forward and backward take, on the CPU's clock and on the GPU?"),
    "b": (
        "b_longest_kernel",
        "which kernel takes the most time in the forward, how often does it run, is it the same elsewhere?",
    ),
    "c": ("c_besides_gemm", "what besides GEMMs takes time in the forward?"),
    "d": ("d_gemm_share", "what share is GEMM, in the forward alone and in the whole step?"),
    "e": ("e_softmax", "how does softmax compare with attention's GEMMs, in time and in FLOPs?"),
}
