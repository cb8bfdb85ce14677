"""Programs with hooks of their own."""

from functools import partial

import torch
from torch import nn

from .table import Model, program, train, x_of


@program()
def hooks_that_change_values(annotate):
    model = annotate(Model())
    model.head.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.head.register_forward_hook(lambda module, args, output: output + 1)
    model.layers[0].register_full_backward_hook(lambda module, gradients, _: (gradients[0] * 2,))
    model.layers[1].register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 3,))
    train(model)


@program()
def hooks_that_take_notes(annotate):
    model, notes = Model(), []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: notes.append(f"forward {name}"))
        module.register_full_backward_hook(lambda *_, name=name: notes.append(f"backward {name}"))
    train(annotate(model), steps=1)
    return notes


@program()
def hooks_with_keywords(annotate):
    class Scaled(nn.Module):
        def forward(self, x, *, by=1.0):
            return x * by

    model = annotate(Scaled())
    model.register_forward_pre_hook(lambda module, args, kwargs: (args, {"by": 3.0}), with_kwargs=True)
    model.register_forward_hook(lambda module, args, kwargs, output: output + kwargs["by"], with_kwargs=True)
    return model(x_of(), by=2.0)


@program()
def hook_that_is_always_called(annotate):
    model, notes = annotate(Model()), []
    model.register_forward_hook(lambda *_: notes.append("called"), always_call=True)
    try:
        model(torch.ones(3, 5))
    except RuntimeError as error:
        notes.append(str(error))
    return notes


@program()
def hooks_of_nodes(annotate):
    model, names = annotate(Model()), []
    output = model(x_of())
    node = output.grad_fn
    while node is not None:
        node.register_hook(partial(lambda name, *_: names.append(name), node.name()))
        node = next((one for one, _ in node.next_functions if one is not None), None)
    output.sum().backward()
    return names


@program()
def hooks_of_all_modules(annotate):
    notes, model = [], annotate(Model())
    handles = [
        nn.modules.module.register_module_forward_pre_hook(lambda m, _: notes.append(type(m).__name__)),
        nn.modules.module.register_module_forward_hook(lambda m, _, output: output * 1.5),
        nn.modules.module.register_module_full_backward_hook(lambda m, *_: notes.append(type(m).__name__)),
    ]
    try:
        train(model, steps=1)
    finally:
        for handle in handles:
            handle.remove()
    return notes
