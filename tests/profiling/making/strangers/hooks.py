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
def features_through_a_hook(annotate):
    model, features = annotate(Model()), {}
    for index, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda m, a, output, index=index: features.update({index: output}))
    model(x_of()).sum().backward()
    return features


@program()
def class_activation_map(annotate):
    model, kept = annotate(Model().eval()), {}
    model.layers[1].register_forward_hook(lambda m, a, output: kept.update(features=output))
    model.layers[1].register_full_backward_hook(lambda m, _, gradients: kept.update(gradients=gradients[0]))
    model(x_of())[:, 0].sum().backward()
    return (kept["features"] * kept["gradients"].mean(0)).relu()


@program()
def hook_that_removes_itself(annotate):
    model, notes = annotate(Model()), []

    def once(module, args, output):
        notes.append(tuple(output.shape))
        handle.remove()

    handle = model.head.register_forward_hook(once)
    train(model)
    return notes


@program()
def hooks_of_tensors(annotate):
    model, seen = annotate(Model()), []
    x = x_of()
    x.register_hook(lambda gradient: gradient * 2)
    output = model(x)
    output.retain_grad()
    output.register_hook(lambda gradient: seen.append(gradient.clone()))
    model.head.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    output.square().sum().backward()
    return x.grad, output.grad, seen


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
def hook_of_several_gradients(annotate):
    model, seen = annotate(Model()), []
    one, other = model(x_of()), model(x_of() * 2)
    torch.autograd.graph.register_multi_grad_hook(
        [one, other], lambda gradients: seen.append([g.clone() for g in gradients])
    )
    (one * other).sum().backward()
    return seen


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


@program()
def hooks_of_optimizers(annotate):
    model, notes = annotate(Model()), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(lambda one, args, kwargs: notes.append((len(args), sorted(kwargs))))
    optimizer.register_step_post_hook(lambda one, args, kwargs: notes.append((len(args), sorted(kwargs))))
    train(model, optimizer)
    return notes


@program(silent=True)
def hooks_of_state(annotate):
    model, notes = annotate(Model()), []
    model.register_state_dict_post_hook(lambda module, state, prefix, _: notes.append(list(state)))
    model.register_load_state_dict_pre_hook(lambda module, state, *_: state.pop("head.bias"))
    missing = model.load_state_dict(model.state_dict(), strict=False)
    return notes, list(missing.missing_keys), len(model._forward_hooks)


@program()
def hook_with_a_second_model(annotate):
    model, helper = annotate(Model()), annotate(nn.Linear(4, 4))
    model.head.register_forward_hook(lambda module, args, output: output + helper(output))
    train(model)
