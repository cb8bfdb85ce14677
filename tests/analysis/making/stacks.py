"""Traces with stacks: recorded here on a CPU, or written frame by frame."""

import json
from dataclasses import dataclass
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

MAIN = 7
ENGINE = "autograd::engine::evaluate_function: "


class Attention(torch.nn.Module):
    """Layers that forward calls in another order than they are defined in."""

    def __init__(self):
        super().__init__()
        self.o_proj, self.q_proj = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.k_proj = torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.o_proj(self.q_proj(x) * self.k_proj(x).repeat(1, 2))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = Attention(), torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 16))

    def forward(self, x):
        return x + self.mlp(self.attn(x))


class Net(torch.nn.Module):
    def __init__(self, *, checkpoints=False):
        super().__init__()
        self.call = partial(checkpoint, use_reentrant=False) if checkpoints else lambda layer, x: layer(x)
        self.layers, self.head = torch.nn.ModuleList(Block() for _ in range(2)), torch.nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = self.call(layer, x)
        return self.head(x)


def record(path, model, *, stacks=True, steps=2):
    """Record steps of training on a CPU, whose backward runs on the thread that calls it."""
    optimizer, x, y = torch.optim.SGD(model.parameters()), torch.randn(8, 16), torch.randint(4, (8,))
    run = schedule(wait=0, warmup=1, active=steps, repeat=1)
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, with_stack=stacks, record_shapes=stacks, schedule=run) as profiler:
        for _ in range(steps + 1):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


@dataclass(frozen=True)
class Event:
    """An interval of a thread: a frame, an operator, a block, or with a correlation id a call with its kernel."""

    name: str
    start: int
    end: int
    category: str = "python_function"
    thread: int = MAIN
    seq: int | None = None
    correlation: int | None = None


def launch(number, at, thread=MAIN):
    """Return a call that launches a kernel."""
    return Event("cudaLaunchKernel", at, at + 1, "cuda_runtime", thread, correlation=number)


def write(path, *events):
    """Write events as PyTorch does, with a kernel of 10 ns for each call."""
    written = []
    for event in events:
        args = {
            key: value
            for key, value in (("Sequence number", event.seq), ("correlation", event.correlation))
            if value is not None
        }
        times = {"ts": event.start / 1000, "dur": (event.end - event.start) / 1000}
        written.append(
            {
                "ph": "X",
                "cat": event.category,
                "name": event.name,
                "pid": 1,
                "tid": event.thread,
                **times,
                "args": args,
            }
        )
        if event.correlation is not None:
            on_gpu = {"pid": 0, "tid": 3, "ts": (event.end + 5) / 1000, "dur": 0.01}
            args = {"correlation": event.correlation, "device": 0, "stream": 3}
            written.append(
                {"ph": "X", "cat": "kernel", "name": f"kernel {event.correlation}", **on_gpu, "args": args}
            )
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": written}))
    return path
