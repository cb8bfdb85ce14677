"""Programs that do on a CPU what a list of events says (`making.training_facts`), with a mark as each begins."""

import torch
from nvtx_kernels.profiling import annotate
from torch import nn


class Marking(nn.Module):
    """A layer that marks, inside its call, which event it is of."""

    def __init__(self):
        super().__init__()
        self.layer, self.event = nn.Linear(4, 4), ""

    def forward(self, x):
        annotate.mark(f"event {self.event}")
        return self.layer(x)


class WithoutGradient(torch.autograd.Function):
    """Computes a model as an implicit layer does: without gradient in forward, with one of its own in backward."""

    @staticmethod
    def forward(ctx, x, model):
        ctx.save_for_backward(x)
        return model(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


apply = WithoutGradient.apply  # as programs take it before anything is annotated


class Doing:
    """Does events with models and optimizers of the names in them."""

    def __init__(self, events):
        self.models = {event.of: Marking() for event in events if event.kind in "FNE"}
        names = {event.of for event in events if event.kind == "U"}.union(*(event.inside for event in events))
        self.weights = {name: nn.Parameter(torch.ones(4)) for name in sorted(names)}
        self.optimizers = {name: torch.optim.SGD([weight], lr=0.01) for name, weight in self.weights.items()}
        self.losses, self.inside = [], ()
        for name, weight in self.weights.items():
            weight.register_post_accumulate_grad_hook(lambda _, name=name: self.update_inside(name))

    def update_inside(self, name):
        if name in self.inside:
            self.optimizers[name].step()

    def do(self, event, number, profile):
        tag = f"{event.kind}{number}"
        if event.kind in "FNE":
            self.call(event, tag)
        elif event.kind == "P":
            profile.step()
        else:
            annotate.mark(f"event {tag}")
            self.backward(event) if event.kind == "B" else self.optimizers[event.of].step()

    def call(self, event, tag):
        model, x = self.models[event.of], torch.ones(2, 4, requires_grad=event.kind == "F")
        model.event = tag
        model.train(event.kind != "E")
        if event.kind == "F":
            self.losses.append((apply(x, model) if event.of == "fn" else model(x)).sum())
        else:
            with torch.no_grad():
                model(x)

    def backward(self, event):
        self.inside, losses = event.inside, self.losses
        self.losses = []
        sum([*losses, *((weight * weight).sum() for weight in self.weights.values())], torch.zeros(1)).backward()
        self.inside = ()
