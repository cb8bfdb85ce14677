"""The self time of operators as PyTorch's own events give it, one after another: a slow reference for readers."""

import re
from dataclasses import dataclass, field

from torch.autograd import DeviceType

# Older releases of PyTorch keep an event's activity type to themselves; it follows from its device and name.
ACTIVITY_OF_NAME = {
    DeviceType.CPU: ((r"cuda[A-Z]", "cuda_runtime"), (r"cu[A-Z]", "cuda_driver"), (r"", "cpu_op")),
    DeviceType.CUDA: ((r"Memcpy ", "gpu_memcpy"), (r"Memset ", "gpu_memset"), (r"", "kernel")),
}


def activity(event):
    """Return Kineto's activity type of an event, such as `kernel`, `cuda_runtime` or `cpu_op`."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if event.is_user_annotation():
        return "gpu_user_annotation" if event.device_type() == DeviceType.CUDA else "user_annotation"
    if event.device_index() < 0:
        return "overhead"
    rules = ACTIVITY_OF_NAME.get(event.device_type(), ())
    return next((kind for pattern, kind in rules if re.match(pattern, event.name())), "")


@dataclass
class Operator:
    """One call of an operator on one thread, times in ns."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    children_ns: int = field(default=0, init=False)

    @property
    def self_ns(self):
        return max(0, self.end_ns - self.start_ns - self.children_ns)


def kernels(operators):
    """Yield operators with begin and end of their self time, by thread and start, laid out as on one stream."""
    ordered = sorted(operators, key=lambda operator: (operator.thread, operator.start_ns, -operator.end_ns))
    stack = []
    for operator in ordered:
        while stack and (stack[-1].thread != operator.thread or stack[-1].end_ns <= operator.start_ns):
            stack.pop()
        if stack:
            stack[-1].children_ns += min(operator.end_ns, stack[-1].end_ns) - operator.start_ns
        stack.append(operator)
    free_ns, thread = 0, None
    for operator in ordered:
        if operator.self_ns:
            start = operator.start_ns if operator.thread != thread else max(free_ns, operator.start_ns)
            free_ns, thread = start + operator.self_ns, operator.thread
            yield operator, start, free_ns
