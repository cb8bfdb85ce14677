"""Small training programs, made of parts that a number chooses: what they compute must not depend on a recording.

A part is a function of a program's state and the step's number; what it returns is compared. Parts do what a
tracer could disturb: they recurse, raise, yield, wait, finalize, fork, draw random numbers, look at their lines.
"""

import asyncio
import contextlib
import copy
import functools
import inspect
import io
import os
import pickle
import random
import sys
import threading
import traceback
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

WIDTH, STEPS = 6, 5


class Cube(torch.autograd.Function):
    """Has a backward in Python."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x * x
        return y * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        square = x * x
        return 3 * square * gradient


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.first = kind, nn.Linear(WIDTH, WIDTH)
        self.second, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        hidden = self.first(x)
        if self.kind == "cube":
            hidden = Cube.apply(hidden)
        elif self.kind == "checkpoint":
            hidden = checkpoint(self.second, hidden, use_reentrant=False)
        elif self.kind == "loop":
            for row in range(3):
                hidden = hidden + torch.tanh(hidden) * row
        else:
            hidden = self.drop(torch.relu(hidden))
        return self.norm(self.second(hidden))


def recursion(state, step):
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    return depth(200 + step)


def deep_recursion(state, step):
    """Go nearly as deep as Python lets anybody."""

    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    here = len(inspect.stack(0))
    return depth(sys.getrecursionlimit() - here - 80) > 0


def exceptions(state, step):
    def fails(n):
        if n == 0:
            raise ValueError(step)
        try:
            fails(n - 1)
        finally:
            state.log.append(n)

    try:
        fails(3)
    except ValueError as error:
        return [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]


def generators(state, step):
    def numbers():
        got = 0
        try:
            while True:
                sent = yield got
                got += sent or 1
        except KeyError:
            yield -1
        finally:
            state.log.append(got)

    running = numbers()
    values = [next(running), running.send(4), running.send(None), running.throw(KeyError)]
    running.close()
    return values, [*(value * 2 for value in range(4))]


def kept_generator(state, step):
    """Go on with a generator that was begun in the first step."""
    if not hasattr(state, "running"):
        state.running = (number * number for number in range(100))
    return next(state.running)


def finalizers(state, step):
    class Thing:
        pass

    def drop():
        thing = Thing()
        weakref.finalize(thing, state.log.append, f"dropped {step}")
        alive = weakref.ref(thing)
        del thing
        return alive() is None

    first = drop()
    other = Thing()
    alive = weakref.ref(other)
    other = None
    return first, alive() is None, len(state.log)


def reference_counts(state, step):
    tensor = torch.ones(2)
    held = [tensor]
    count = sys.getrefcount(tensor)
    del held
    return count, sys.getrefcount(tensor)


def lines_of_its_own(state, step):
    here = inspect.currentframe()
    return here.f_lineno - here.f_code.co_firstlineno, sorted(locals().keys() - {"here"})


def threads(state, step):
    def work(into):
        into.append(sum(range(step + 5)))
        into.append(sys.gettrace() is None)

    into = []
    thread = threading.Thread(target=work, args=(into,))
    thread.start()
    thread.join()
    return into


def forked(state, step):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        total = 0
        for number in range(50):
            total += number
        os.write(writing, str((total, sys.gettrace() is None)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def coroutines(state, step):
    async def half(n):
        await asyncio.sleep(0)
        return n / 2

    async def both():
        return await asyncio.gather(half(step), half(7))

    return asyncio.run(both())


def hooks(state, step):
    seen = []
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    handle = state.model.first.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    state.model.first(torch.ones(1, WIDTH))
    (x * 2).sum().backward()
    handle.remove()
    return seen


def reads(state, step):
    x = torch.arange(4.0) - step
    if x.sum() > 0:
        return x.max().item()
    return [float(value) for value in x], bool((x < 0).all())


def randomness(state, step):
    return torch.rand(2).tolist(), float(np.random.rand()), random.random()


def loading(state, step):
    data = TensorDataset(torch.arange(8.0))
    return [batch[0].tolist() for batch in DataLoader(data, batch_size=3, shuffle=True)]


def told_warnings(state, step):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.warn("first", UserWarning, stacklevel=1)
        warnings.warn("second", UserWarning, stacklevel=2)
    return [(str(one.message), one.lineno) for one in told]


def functions(state, step):
    @functools.lru_cache(maxsize=4)
    def cached(n):
        state.log.append(n)
        return n * n

    words = sorted(["bb", "a", "ccc"], key=lambda word: (-len(word), word))
    return [cached(n % 3) for n in range(6)], words, {name: len(name) * m for m, name in enumerate("ab")}


def classes(state, step):
    class Base:
        @property
        def value(self):
            return step

        def __getattr__(self, name):
            if name.startswith("x"):
                return len(name)
            raise AttributeError(name)

    class Derived(Base):
        @property
        def value(self):
            return super().value + 1

    made = Derived()
    return made.value, made.xyz, hasattr(made, "missing")


def contexts(state, step):
    @contextlib.contextmanager
    def around():
        state.log.append("in")
        try:
            yield step
        finally:
            state.log.append("out")

    with (
        contextlib.suppress(ZeroDivisionError),
        around() as value,
        contextlib.redirect_stdout(io.StringIO()) as said,
    ):
        sys.stdout.write(str(value))
        value / 0
    return said.getvalue()


def copies(state, step):
    twin = copy.deepcopy(state.model)
    again = pickle.loads(pickle.dumps(twin.state_dict()))
    return again["first.weight"].tolist()


def transforms(state, step):
    def loss(x):
        return (x**3).sum()

    return torch.func.grad(loss)(torch.arange(3.0)).tolist(), torch.func.vmap(torch.sin)(torch.ones(2)).tolist()


def matching(state, step):
    match [step, "b"]:
        case [0, _]:
            return "first"
        case [number, str(name)] if number > 1:
            return f"{number=} {name!r}"
    return "second" if (half := step / 2) else half


def evaluation(state, step):
    state.model.eval()
    with torch.no_grad():
        out = state.model(torch.ones(1, WIDTH)).sum().item()
    state.model.train()
    return out


PARTS = [
    *(recursion, deep_recursion, exceptions, generators, kept_generator, finalizers, reference_counts),
    *(lines_of_its_own, threads, forked, coroutines, hooks, reads, randomness, loading, told_warnings),
    *(functions, classes, contexts, copies, transforms, matching, evaluation),
]
KINDS = ("plain", "cube", "checkpoint", "loop")
OPTIMIZERS = (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop)


def program(number):
    """Return the model, the optimizer and the function of a step of the program with a number."""
    chooses = random.Random(number)
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    parts = chooses.sample(PARTS, 5)
    model = Net(chooses.choice(KINDS))
    optimizer = chooses.choice(OPTIMIZERS)(model.parameters(), lr=0.01)
    state = SimpleNamespace(model=model, log=[])

    def step(count):
        said = [part(state, count) for part in parts]
        x = torch.randn(4, WIDTH)
        loss = model(x).square().mean()
        loss.backward()
        said.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        return said, list(state.log)

    return model, optimizer, step


def result(number, around):
    """Run the steps of a program inside `around(model, optimizer)`; return all that it computed, as bytes."""
    model, optimizer, step = program(number)
    with around(model, optimizer):
        said = [step(count) for count in range(STEPS)]
    state = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    return repr((said, state, torch.get_rng_state().sum().item(), random.getstate()[1][-1]))
