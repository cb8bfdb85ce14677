"""A listener for tests, a region around a small computation, and the nodes of its graph."""

import threading

import torch
from nvtx_kernels.profiling import annotate


class Heard:
    """The path of every range in the order of its beginning; ranges still open, per thread; marks."""

    def __init__(self):
        self.paths, self.payloads, self.marks, self.threads = [], [], [], []
        self.open = {}

    def push(self, name, payload):
        stack = self.open.setdefault(threading.get_ident(), [])
        stack.append(name)
        self.paths.append("/".join(stack))
        self.payloads.append(payload)
        self.threads.append(threading.get_native_id())

    def pop(self):
        self.open[threading.get_ident()].pop()

    def mark(self, message):
        self.marks.append(message)

    def left_open(self):
        return [name for stack in self.open.values() for name in stack]


def in_threads(*runs):
    """Run functions at the same time, each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def heard_from(run):
    """Run a function and return the paths it opened, after seeing that all were closed."""
    heard = Heard()
    with annotate.listen(heard):
        run()
    assert heard.left_open() == []
    return heard.paths


def linear(name, x, weight):
    """A product and a sine in a region."""
    with annotate.region(name) as part:
        return part.output(torch.sin(x @ weight))


def leaf(*, rows=4):
    """A leaf tensor of four columns that wants a gradient."""
    return torch.full((rows, 4), 0.5, requires_grad=True)


def nodes_of(root):
    """Return the nodes of autograd that a node leads to, and itself."""
    nodes = [root]
    seen = {root}
    for node in nodes:
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return nodes
