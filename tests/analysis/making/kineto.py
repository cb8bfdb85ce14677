"""A recorded program, written as PyTorch's profiler writes it (kineto's output_json.cpp) and as nsys exports it.

Times are nanoseconds since `BASE_NS`. Every thread's operators and calls carry the ids that kineto gives them.
"""

import json
from dataclasses import dataclass, field, replace
from functools import partial

from tests.analysis.making import building

BASE_NS = 1_775_078_550_000_000_000
PROCESS = MAIN = 3914
AUTOGRAD = 24922
THREAD_NAMES = {MAIN: "python3", AUTOGRAD: "pt_autograd_0"}
ENGINE = "autograd::engine::evaluate_function: "
COPY_KINDS = {"Memcpy HtoD (Pageable -> Device)": 1, "Memcpy DtoD (Device -> Device)": 8}
# What PyTorch 1.8 called the categories of today.
OLD_CATEGORIES = {
    "user_annotation": "Operator", "cpu_op": "Operator", "cuda_runtime": "Runtime", "cuda_driver": "Runtime",
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset",
}  # fmt: skip
GPU = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_120_000_000, "computeMajor": 9, "numSms": 132}
KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


@dataclass(frozen=True)
class Block:
    """A record_function block, or an operator where `category` is cpu_op."""

    name: str
    start: int
    end: int
    thread: int = MAIN
    category: str = "user_annotation"
    seq: int | None = None
    external: int | None = None


@dataclass(frozen=True)
class Call:
    """A call of CUDA's runtime or driver, and the operator that made it."""

    correlation: int
    start: int
    end: int
    thread: int = MAIN
    category: str = "cuda_runtime"
    name: str = "cudaLaunchKernel"
    external: int | None = None


@dataclass(frozen=True)
class Work:
    """A kernel, copy or memset."""

    correlation: int
    start: int
    end: int
    name: str = "ampere_sgemm_128x64_nn"
    category: str = "kernel"
    device: int = 0
    stream: int = 7
    said: tuple = ()  # further arguments, as pairs: what a collective's kernel carries


@dataclass(frozen=True)
class Memory:
    """What PyTorch's allocator gave, or took back where `bytes` is negative, and its total afterwards."""

    at: int
    bytes: int
    address: int
    total: int
    thread: int = MAIN


def operator(name, start, end, thread=MAIN, seq=None, external=None):
    return Block(name, start, end, thread, "cpu_op", seq, external)


@dataclass(frozen=True)
class Program:
    """Everything that one process did."""

    blocks: list[Block] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    process: int = PROCESS
    memory: list[Memory] = field(default_factory=list)

    def scaled(self, factor):
        """Return the program `factor` times slower."""
        return replace(self, **{name: [_scaled(r, factor) for r in getattr(self, name)] for name in _PARTS})


_PARTS = ("blocks", "calls", "work")


def _scaled(row, factor):
    return replace(row, start=row.start * factor, end=row.end * factor)


def microseconds(time_ns):
    """Write a time as kineto does, with three digits after the point."""
    return f"{time_ns // 1000}.{time_ns % 1000:03}"


def event(category, name, pid, tid, start, end, /, **args):
    """Return one complete event as text, laid out as kineto does."""
    values = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in args.items() if value is not None)
    return f"""
  {{
    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {pid}, "tid": {json.dumps(tid)},
    "ts": {microseconds(start)}, "dur": {microseconds(end - start)},
    "args": {{
      {values}
    }}
  }}"""


def _named(what, pid, tid, name):
    place = f'"ph": "M", "ts": 0.000, "pid": {json.dumps(pid)}, "tid": {json.dumps(tid)}'
    return f'\n  {{\n    "name": "{what}", {place},\n    "args": {{\n      "name": "{name}"\n    }}\n  }}'


def events_of(program):
    """Return a program's events as texts."""
    pid = program.process
    blocks = [
        event(b.category, b.name, pid, b.thread, b.start, b.end, **{
            "External id": b.external, "Sequence number": b.seq, "Fwd thread id": None if b.seq is None else 0,
        }) for b in program.blocks
    ]  # fmt: skip
    calls = [
        event(c.category, c.name, pid, c.thread, c.start, c.end,
              **{"External id": c.external, "cbid": 211, "correlation": c.correlation})
        for c in program.calls
    ]  # fmt: skip
    work = [
        event(w.category, w.name, w.device, w.stream, w.start, w.end, queued=0, device=w.device, context=1,
              stream=w.stream, correlation=w.correlation, grid=[4, 2, 1] if w.category == "kernel" else None,
              **dict(w.said))
        for w in program.work
    ]  # fmt: skip
    threads = [_named("thread_name", pid, t, f"thread {t} ({name})") for t, name in THREAD_NAMES.items()]
    memory = [
        json.dumps({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": pid,
                    "tid": m.thread, "ts": m.at / 1000, "args": {
                        "Total Allocated": m.total, "Total Reserved": m.total, "Bytes": m.bytes,
                        "Addr": m.address, "Device Id": 0, "Device Type": 1}})
        for m in program.memory
    ]  # fmt: skip
    return [_named("process_name", pid, 0, "python3"), *threads, *blocks, *calls, *work, *memory]


def trace_text(events, gpus=(GPU,), **around):
    """Return a whole trace around its events."""
    head = {"schemaVersion": 1, "deviceProperties": list(gpus), **around}
    fields = "".join(f'\n    "{key}": {json.dumps(value)},' for key, value in head.items())
    last = (
        '\n  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", "ts": 0.000\n  }'
    )
    return (
        f'\n  {{{fields}\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": ['
        + ",".join([*events, last])
        + '\n  ],\n  "traceName": "rank0.pt.trace.json"\n}'
    )


def write_kineto(path, *programs, **around):
    """Write programs as one trace."""
    path.write_text(trace_text([text for program in programs for text in events_of(program)], **around))
    return path


def write_old_kineto(path, program):
    """Write a program as PyTorch 1.8 did: whole microseconds, threads as texts, categories with other names."""
    events = [json.loads(text) for text in events_of(program)]
    for old in events:
        old.update({key: int(old[key]) for key in ("ts", "dur") if key in old})
        on_gpu = old.get("cat") in KINDS
        old["tid"] = f"stream {old['tid']}" if on_gpu else str(old["tid"])
        old["cat"] = OLD_CATEGORIES.get(old.get("cat"), "")
        if old["cat"] == "Runtime" and "External id" in old["args"]:
            old["args"]["external id"] = old["args"].pop("External id")
    path.write_text(json.dumps({"schemaVersion": 1, "computeProperties": [GPU], "traceEvents": events}, indent=1))
    return path


def rows_of(program):
    """Return the rows that nsys has of a program, its operators under emit_nvtx."""
    on = partial(building.thread, program.process)
    return building.Rows(
        ranges=[building.Range(_name_in_nsys(b), b.start, b.end, on(b.thread)) for b in program.blocks],
        launches=[
            building.Launch(
                c.correlation, c.start, c.end, on(c.thread), int(c.category == "cuda_driver"), f"{c.name}_v7000",
            ) for c in program.calls
        ],
        work=[
            building.Work(
                w.correlation, w.start, w.end, COPY_KINDS.get(w.name, w.name), KINDS[w.category],
                building.process_of(on()), w.device, w.stream,
            ) for w in program.work
        ],
        thread_names={on(thread): name for thread, name in THREAD_NAMES.items()},
    )  # fmt: skip


def write_nsys(path, program):
    """Write a program as nsys exports it, its operators under emit_nvtx."""
    return building.write(path, rows_of(program))


def _name_in_nsys(block):
    numbered = block.seq is not None and not block.name.startswith(ENGINE)
    return f"{block.name}, seq = {block.seq}, op_id = 5" if numbered else block.name


MM_BACKWARD, ACCUMULATE = "MmBackward0", "torch::autograd::AccumulateGrad"

# One training step: two layers, a Triton kernel, backward on autograd's thread, a CUDA graph, a copy before it all
# and a kernel without a launch.
STEP = Program(
    blocks=[
        Block("ProfilerStep#3", 60_000, 1_000_000),
        Block("forward", 70_000, 400_000), Block("layer 0", 80_000, 200_000), Block("layer 1", 210_000, 390_000),
        operator("aten::mm", 90_123, 120_456, seq=7, external=1),
        operator("aten::mm", 220_001, 260_002, seq=8, external=2),
        Block("backward", 410_000, 800_000),
        operator(ENGINE + MM_BACKWARD, 420_000, 500_000, AUTOGRAD, seq=8, external=3),
        operator(MM_BACKWARD, 430_000, 490_000, AUTOGRAD, seq=8, external=4),
        operator(ENGINE + MM_BACKWARD, 510_000, 600_000, AUTOGRAD, seq=7, external=5),
        operator(MM_BACKWARD, 520_000, 590_000, AUTOGRAD, seq=7, external=6),
        operator(ENGINE + ACCUMULATE, 610_000, 650_000, AUTOGRAD, external=7),
        Block("Optimizer.step#AdamW.step", 810_000, 900_000),
    ],
    calls=[
        Call(41, 10_000, 20_000, name="cudaMemcpyAsync"), Call(42, 82_000, 84_000, name="cudaMemsetAsync"),
        Call(11, 100_001, 110_002, external=1), Call(12, 230_000, 240_000, external=2),
        Call(13, 300_000, 310_000, category="cuda_driver", name="cuLaunchKernel"),
        Call(21, 440_000, 450_000, AUTOGRAD, external=4), Call(22, 530_000, 540_000, AUTOGRAD, external=6),
        Call(23, 620_000, 630_000, AUTOGRAD, external=7), Call(31, 820_000, 830_000, name="cudaGraphLaunch"),
    ],
    work=[
        Work(41, 30_000, 31_000, "Memcpy HtoD (Pageable -> Device)", "gpu_memcpy"),
        Work(42, 86_000, 87_001, "Memset (Device)", "gpu_memset"),
        Work(11, 130_007, 180_019), Work(12, 250_000, 300_000), Work(13, 320_000, 325_003, "triton_poi_fused_0"),
        Work(21, 460_000, 520_011), Work(22, 550_000, 620_000), Work(23, 640_000, 641_001, "add_kernel"),
        Work(31, 840_000, 850_000, "adam_0"), Work(31, 850_000, 860_000, "adam_1"),
        Work(99, 990_000, 999_000, "lost"),
    ],
)  # fmt: skip
