"""Rows as a sweep writes them, for tests that need no measurement."""

import json

from nvtx_kernels.profiling.study import results

H200 = {"device_name": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "driver": "580.65", "python": "3.12.3"}
PRECISION = {"tf32": False, "autocast": "off"}
CELL = {
    "size": "small",
    "context_length": 512,
    "batch_size": 4,
    "mode": "train",
    "dtype": "fp32",
    "attention": "reference",
    "compile": False,
    "optimizer": "foreach",
    "warmup": 1,
    "steps": 2,
    "seed": 0,
    "device": "cuda",
    "capture": "none",
    "memory_fraction": None,
    "repeat": 0,
}
PHASES = {"forward": ("forward",), "forward-backward": ("forward", "backward")}


def row(*, warmup=(40,), measured=(20, 22), state=H200, clocks=None, warnings=(), **cell):
    """One row; a step's forward takes the time given, its backward twice that, the optimizer 3 ms."""
    whole = {**CELL, "warmup": len(warmup), "steps": len(measured), **cell}
    if whole["mode"] in PHASES:
        whole["optimizer"] = None
    return {
        "version": results.VERSION,
        "kind": results.MODEL,
        "cell": whole,
        "state": {**state, **PRECISION},
        "status": "ok",
        "parameters": 128_625_408,
        "warmup": [step(ms, whole["mode"]) for ms in warmup],
        "measured": [step(ms, whole["mode"]) for ms in measured],
        "phase_peak_bytes": {"forward": 3 << 30, "backward": 4 << 30},
        "clocks": clocks,
        "warnings": list(warnings),
        "started": "2026-01-02T03:04:05Z",
    }


def step(forward_ms, mode="train"):
    times = {"forward": forward_ms, "backward": 2 * forward_ms, "optimizer": 3}
    run = {phase: times[phase] for phase in PHASES.get(mode, times)}
    return {**run, "step": sum(run.values()) + 1}


def attention_row(*, held_bytes=None, **cell):
    """One row of attention alone: a forward of 20 ms, a backward of 40."""
    case = {"d": 64, "length": 1024, "kind": "reference", "dtype": "fp32", "batch_size": 8}
    return {
        "version": results.VERSION,
        "kind": results.ATTENTION,
        "cell": {**case, "warmup": 0, "steps": 2, "device": "cuda", **cell},
        "state": {**H200, **PRECISION},
        "status": "ok",
        "warmup": [],
        "measured": [{"forward": 20, "backward": 40}] * 2,
        "held_bytes": held_bytes,
    }


def no_memory(**cell):
    """A row of a configuration that did not fit: its backward asked for one and a half GiB."""
    known = {name: value for name, value in row(**cell).items() if name in ("version", "kind", "cell", "state")}
    return {**known, "status": "oom", "phase": "backward", "requested_bytes": 3 << 29}


def failed(**cell):
    """A row of a configuration whose process ended without one."""
    known = {name: value for name, value in row(**cell).items() if name in ("version", "kind", "cell")}
    return {**known, "state": {}, "status": "failed", "message": "the process was ended by SIGKILL"}


def file_of(folder, *rows):
    """A file of results with these rows."""
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
