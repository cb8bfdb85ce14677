"""Traces with the shapes of operators, written call by call, or recorded here on a CPU."""

import json

from torch.profiler import profile, record_function

MAIN, AUTOGRAD = 7, 8
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}


class Shaped:
    """Writes a trace: operators that nest, and the kernels that they launch, on one thread and stream.

    Times are microseconds; each operator takes as long as what is in it, and each kernel as long as it says.
    """

    def __init__(self, *, gpus=(H100,)):
        self.events, self.gpus, self.now, self.free_at, self.number = [], gpus, 100, 0, 0

    def block(self, name, inside, category="user_annotation"):
        return self._around(category, name, {}, inside)

    def operator(self, name, dims=None, types="float", values=(), inside=(), strides=(), seq=None):
        texts = types if isinstance(types, list) else [types if size else "" for size in dims or ()]
        args = {}
        if dims is not None:
            args = {"Input Dims": dims, "Input type": texts, "Concrete Inputs": [*values]}
            args |= {"Input Strides": strides} if strides else {}
        if seq is not None:
            args |= {"Sequence number": seq, "Fwd thread id": 0}
        return self._around("cpu_op", name, args, inside)

    def frame(self, name, inside):
        return self._around("python_function", name, {}, inside)

    def kernel(self, name, us, stream=7):
        def launch():
            self.number += 1
            at, start = self.now, max(self.now + 2, self.free_at)
            place = {"correlation": self.number}
            self._add("cuda_runtime", "cudaLaunchKernel", at, 1, args=place)
            args = place | {"device": 0, "stream": stream}
            self._add("kernel", name, start, us, pid=0, tid=stream, args=args)
            self.now, self.free_at = at + 2, start + us

        return launch

    def _around(self, category, name, args, inside):
        def run():
            begin = self.now
            self.now += 1
            for part in inside:
                part()
            self.now += 1
            self._add(category, name, begin, self.now - begin, args=args)

        return run

    def _add(self, category, name, ts, dur, *, args, pid=1, tid=MAIN):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def write(self, path, *parts):
        for part in parts:
            part()
        path.write_text(
            json.dumps({"schemaVersion": 1, "deviceProperties": [*self.gpus], "traceEvents": self.events})
        )
        return path


def recorded(path, step, *, steps=2):
    """Record a step of a program with shapes, as people do."""
    step()
    with profile(record_shapes=True) as profiler:
        for number in range(steps):
            with record_function(f"step {number}"):
                step()
    profiler.export_chrome_trace(str(path))
    return path
