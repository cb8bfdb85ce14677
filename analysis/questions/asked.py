"""The questions of the profiling problem: a table for `--help`, which loads only this."""

from __future__ import annotations

QUESTIONS = {
    "a": "How long do forward and backward take, and does it match a timer around them?",
    "b": "Which kernel takes the most time in the forward, how often does it run, and is it the same elsewhere?",
    "c": "What besides matrix products (GEMMs) takes time in the forward?",
    "d": "What share of the time is matrix products, in the forward alone and in the whole step?",
    "e": "How does softmax compare with attention's matrix products, in time and in FLOPs?",
}
