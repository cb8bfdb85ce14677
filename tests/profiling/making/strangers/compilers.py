"""Programs that compile, trace, script or export their models."""

import torch
from torch import fx, nn

from .table import Model, program, sgd, train, x_of


@program(compiles=True, slow=True)
def compiled(annotate):
    torch.compiler.reset()
    train(torch.compile(annotate(Model()), backend="aot_eager"))


@program(compiles=True, rehearsals=1, slow=True)
def compiled_in_place_with_graph_breaks(annotate):
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.one(x)
            torch._dynamo.graph_break()
            return self.two(y) if y.sum() > 0 else y

    torch.compiler.reset()
    model = annotate(Breaks())
    model.compile(backend="aot_eager")
    train(model, sgd(model))


@program(compiles=True, slow=True)
def compiled_with_other_shapes(annotate):
    torch.compiler.reset()
    model = torch.compile(annotate(Model().eval()), backend="eager", dynamic=True)
    with torch.no_grad():
        return [model(x_of(rows)) for rows in (2, 3, 5)]


@program(compiles=True, rehearsals=1, slow=True, silent=True)
def exported(annotate):
    model = annotate(Model().eval())
    whole = torch.export.export(model, (x_of().detach(),))
    return whole.module()(x_of().detach()), [str(node.target) for node in whole.graph.nodes]


@program(compiles=True, rehearsals=1, silent=True)
def traced_by_make_fx(annotate):
    from torch.fx.experimental.proxy_tensor import make_fx

    model = annotate(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False))
    return make_fx(model)(torch.ones(2, 4)).code


@program(rehearsals=3, silent=True)
def scripted(annotate):
    model = annotate(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    return torch.jit.script(model)(x_of()), torch.jit.script(model[0])(x_of())


@program(rehearsals=3)
def traced(annotate):
    whole = torch.jit.trace(annotate(Model().eval()), x_of().detach())
    return whole(x_of()), str(whole.graph).count("aten::linear")


@program()
def symbolically_traced(annotate):
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.two(self.one(x).relu()) + x

    graph = fx.symbolic_trace(annotate(Fused()))
    changed = fx.Transformer(graph).transform()
    train(annotate(changed))
    return graph.code, [str(node.target) for node in graph.graph.nodes], fx.Interpreter(graph).run(x_of())


@program(silent=True)
def symbolically_traced_and_refused(annotate):
    class Decides(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    fx.symbolic_trace(annotate(Decides()))


@program(silent=True)
def fused_for_evaluation(annotate):
    from torch.fx.experimental.optimization import fuse

    model = annotate(nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.ReLU()).eval())
    with torch.no_grad():
        return fuse(model)(torch.ones(1, 1, 5))
