"""Modules that return unusual things, are copied, saved or changed, and tensors that are not plain."""

import copy
import pickle
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .table import Model, program, train, x_of


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: tuple
    loss: torch.Tensor | None = None


Pair = namedtuple("Pair", "mean deviation")


@program()
def returned_in_containers(annotate):
    class Rich(nn.Module):
        def __init__(self, inner, kind):
            super().__init__()
            self.inner, self.kind = inner, kind

        def forward(self, x):
            y = self.inner(x)
            if self.kind == "dataclass":
                return Answer(y, (x, y), y.sum())
            if self.kind == "named":
                return Pair(y, y.exp())
            if self.kind == "user":
                return UserDict(one=y)
            return {"one": [y, {"two": (y * 2, None, "text")}], 3: {1, 2}}

    rich = {kind: annotate(Rich(nn.Linear(4, 4), kind)) for kind in ("dataclass", "named", "user", "nested")}
    answer, pair = rich["dataclass"](x_of()), rich["named"](x_of())
    nested, user = rich["nested"](x_of()), rich["user"](x_of())
    loss = answer.loss + pair.deviation.sum() + nested["one"][1]["two"][0].sum() + user["one"].sum()
    loss.backward()
    return answer, pair, nested["one"], user.data


@program()
def returned_as_generator(annotate):
    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(3):
                x = self.cell(x).tanh()
                yield x

    model = annotate(Streams())
    outputs = list(model(x_of()))
    abandoned = model(x_of())
    first = next(abandoned)
    abandoned.close()
    (sum(one.sum() for one in outputs) + first.sum()).backward()
    return outputs


@program()
def copied_and_pickled(annotate):
    model = annotate(Model())
    before = model(x_of())
    copies = [copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))]
    for one in copies:
        train(one, steps=1)
    return before, [one.state_dict() for one in copies], [sorted(vars(one)) for one in copies]


@program()
def shapes_only(annotate):
    with torch.device("meta"):
        model = annotate(Model().eval())
        shape = model(torch.empty(3, 4)).shape
    real = model.to_empty(device="cpu")
    for one in real.parameters():
        nn.init.constant_(one, 0.1)
    return tuple(shape), real(x_of())


class Logged(torch.Tensor):
    """A tensor that writes down what is done with it."""

    seen: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Logged.seen.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


@program()
def subclass_of_tensor(annotate):
    Logged.seen.clear()
    output = annotate(Model())(x_of().detach().as_subclass(Logged))
    output.sum().backward()
    return type(output).__name__, output.as_subclass(torch.Tensor), list(Logged.seen)


@program()
def overridden_functions(annotate):
    class Seen(TorchFunctionMode):
        names = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.names += (getattr(function, "__name__", ""),)
            return function(*args, **(kwargs or {}))

    model = annotate(Model())
    with Seen() as seen:
        model(x_of()).sum().backward()
    return seen.names


@program()
def call_of_its_own(annotate):
    class Called(nn.Linear):
        calls = 0

        def __call__(self, *args):
            self.calls += 1
            return super().__call__(*args)

    model = annotate(nn.Sequential(Called(4, 4), nn.ReLU()))
    model.forward = lambda x, forward=model.forward: forward(x) * 2
    train(model)
    return model[0].calls, model.forward(x_of()), nn.Module.__call__(model, x_of())


@program()
def surgery_while_it_runs(annotate):
    model = annotate(Model())
    model(x_of()).sum().backward()
    model.head = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    model.layers.append(nn.Identity())
    del model.layers[0].norm
    model.layers[0].norm = nn.BatchNorm1d(4)
    train(model)
    return [name for name, _ in model.named_modules()]
