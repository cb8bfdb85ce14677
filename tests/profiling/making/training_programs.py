"""Programs that do on a CPU what a list of events says (`making.training_facts`), with a mark as each begins."""

import torch
from nvtx_kernels.profiling import annotate
from torch import nn
from torch.cuda import nvtx

from tests.analysis.making.training_facts import OWN, flat


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
        events = [event for event, _ in flat(events)]
        self.models = {event.of: Marking() for event in events if event.kind in "FNE"}
        names = {event.of for event in events if event.kind in "UX"}.union(*(event.inside for event in events))
        self.weights = {name: nn.Parameter(torch.ones(4)) for name in sorted(names)}
        self.optimizers = {name: torch.optim.SGD([weight], lr=0.01) for name, weight in self.weights.items()}
        self.losses, self.inside = [], ()
        for name, weight in self.weights.items():
            weight.register_post_accumulate_grad_hook(lambda _, name=name: self.update_inside(name))

    def update_inside(self, name):
        if name in self.inside:
            self.optimizers[name].step()

    def do(self, event, number, profile):
        """Do an event, numbered among those that are no ranges of the program's; return the next number."""
        if event.kind in OWN:
            with nvtx.range(event.of):
                for inner in event.inside:
                    number = self.do(inner, number, profile)
            return number
        tag = f"{event.kind}{number}"
        if event.kind in "FNE":
            self.call(event, tag)
        elif event.kind == "P":
            profile.step()
        else:
            annotate.mark(f"event {tag}")
            if event.kind == "B":
                self.backward(event)
            elif event.kind == "U":
                self.optimizers[event.of].step()
            else:
                self.skip_update(self.optimizers[event.of])
        return number + 1

    def skip_update(self, optimizer):
        """Ask a scaler for an update that it skips, as gradients overflowed."""
        scaler = torch.amp.GradScaler("cpu")
        for weight in optimizer.param_groups[0]["params"]:
            weight.grad = torch.full_like(scaler.scale(weight.detach()), torch.inf)
        scaler.step(optimizer)

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
