import copy
import gc
import io
import json
import signal
import sys
import weakref
from collections import OrderedDict

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import marks
from nvtx_kernels.profiling.annotate.interrupts import ENDING_SIGNALS
from nvtx_kernels.profiling.annotate.modules import named_modules
from torch import nn

from tests.profiling.making import forked
from tests.profiling.making.hearing import Heard, heard_from, in_threads, leaf


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ffn = nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x, *, scale):
        return x + self.ffn(self.norm(x)) * scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.heads = nn.ModuleDict({"lm": nn.Linear(4, 4)})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=2.0)
        return self.heads["lm"](x)


BLOCK = ["", "/norm", "/ffn", "/ffn/ffn 0", "/ffn/ffn 1"]
FORWARD = ["Model", *[f"Model/layer {i}{part}" for i in range(2) for part in BLOCK], "Model/lm"]


def step(model):
    model(leaf()).sum().backward()


def test_every_submodule_has_a_forward_and_a_backward_range():
    model = Model()
    with annotate.annotate_modules(model):
        heard = heard_from(lambda: step(model))
    forward, backward = heard[: len(FORWARD)], heard[len(FORWARD) :]
    assert forward == FORWARD
    assert sorted(backward) == sorted(FORWARD)


def test_index_of_a_list_item_is_its_payload():
    model, heard = Model(), Heard()
    with annotate.annotate_modules(model), annotate.listen(heard), torch.no_grad():
        model(leaf())
    assert dict(zip(heard.paths, heard.payloads, strict=True))["Model/layer 1"] == 1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(OrderedDict(first=nn.ReLU())), "Sequential/first"),
        (nn.Sequential(nn.ReLU()), "Sequential/Sequential 0"),
        (nn.Sequential(OrderedDict(blocks=nn.Sequential(nn.ReLU()))), "Sequential/blocks/block 0"),
        (nn.Sequential(OrderedDict(h=nn.Sequential(nn.ReLU()))), "Sequential/h/h 0"),
        (nn.Sequential(OrderedDict(loss=nn.Sequential(nn.ReLU()))), "Sequential/loss/loss 0"),
        (
            nn.Sequential(OrderedDict(layers=nn.Sequential(*(nn.Sequential(nn.ReLU()) for _ in range(2))))),
            "Sequential/layers/layer 1/Sequential 0",
        ),
    ],
)
def test_names_are_the_attributes_own(model, name):
    with annotate.annotate_modules(model):
        assert heard_from(lambda: model(leaf()))[-1] == name


def test_module_that_only_changes_its_input_has_a_backward_range():
    class Doubles(nn.Module):
        def forward(self, x):
            x.mul_(2)

    model, x = Doubles(), leaf() * 1
    with annotate.annotate_modules(model):
        assert heard_from(lambda: model(x)) == ["Doubles"]
        assert heard_from(lambda: x.sum().backward()) == ["Doubles"]


def test_taking_off_in_the_middle_of_a_call_closes_what_is_open():
    model = Model()
    annotated = annotate.annotate_modules(model)
    model.layers[0].ffn.register_forward_pre_hook(lambda *_: annotated.remove())
    assert heard_from(lambda: model(leaf())) == FORWARD[:4]
    assert heard_from(lambda: step(model)) == []


def test_module_called_twice_or_by_itself_has_a_range_for_each_call():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(OrderedDict(first=shared, second=shared))
    with annotate.annotate_modules(model):
        heard = heard_from(lambda: step(model))
    assert heard == ["Sequential", "Sequential/first", "Sequential/first"] * 2


def test_modules_can_be_annotated_twice_and_regions_stand_inside():
    model = nn.Sequential(OrderedDict(one=nn.ReLU()))
    with annotate.annotate_modules(model), annotate.annotate_modules(model[0]):
        assert heard_from(lambda: model(leaf()))[-1] == "Sequential/ReLU/one"


def test_threads_may_share_an_annotated_model():
    model = Model()
    with annotate.annotate_modules(model):
        heard = heard_from(lambda: in_threads(*[lambda: step(model)] * 3))
    assert sorted(heard) == sorted(FORWARD * 6)


def test_copies_and_saved_models_are_plain_and_need_nothing_of_ours():
    model, file = Model(), io.BytesIO()
    with annotate.annotate_modules(model):
        torch.save(model, file)
        file.seek(0)
        for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
            assert heard_from(lambda other=other: step(other)) == []
        assert heard_from(lambda: step(model))[: len(FORWARD)] == FORWARD
    assert b"nvtx" not in file.getvalue()


def test_model_that_nobody_looks_at_is_called_as_if_it_were_not_annotated():
    plain, model = nn.Module.__call__, Model()
    with annotate.annotate_modules(model):
        assert nn.Module.__call__ is plain
        with annotate.listen(Heard()):
            assert nn.Module.__call__ is not plain
        assert nn.Module.__call__ is plain
    assert heard_from(lambda: step(model)) == []
    assert all(not one._forward_hooks and not one._forward_pre_hooks for one in model.modules())


def test_annotating_a_model_again_adds_no_second_range():
    model = Model()
    first, second = annotate.annotate_modules(model), annotate.annotate_modules(model)
    assert heard_from(lambda: model(leaf())) == FORWARD
    first.remove()
    assert heard_from(lambda: model(leaf())) == FORWARD
    second.remove()
    assert heard_from(lambda: model(leaf())) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"depth": 0}, ["Model"]),
        ({"depth": 1}, ["Model", "Model/layer 0", "Model/layer 1", "Model/lm"]),
        ({"only": "layers.*"}, FORWARD[:-1]),
        ({"only": "layers.?"}, ["Model", "Model/layer 0", "Model/layer 1"]),
        ({"only": nn.LayerNorm}, ["Model", "Model/norm", "Model/norm"]),
        ({"only": ["heads.lm", nn.GELU]}, ["Model", "Model/ffn 1", "Model/ffn 1", "Model/lm"]),
        ({"skip": (nn.Linear, "*.norm")}, [one for one in FORWARD if one[-5:] not in ("ffn 0", "/norm", "el/lm")]),
        ({"only": "layers.*", "skip": "layers.1*", "depth": 2}, FORWARD[:4]),
    ],
    ids=str,
)
def test_modules_are_chosen_by_depth_path_and_class(options, expected):
    model = Model()
    with annotate.annotate_modules(model, **options):
        assert heard_from(lambda: model(leaf())) == expected


@pytest.mark.parametrize("training", [True, False])
def test_leaves_that_can_launch_nothing_have_no_range(training):
    layers = OrderedDict(same=nn.Identity(), drop=nn.Dropout(0.5), norm=nn.LayerNorm(4))
    model = nn.Sequential(layers).train(training)
    with annotate.annotate_modules(model):
        heard = heard_from(lambda: model(leaf()))
    assert heard == ["Sequential", *["Sequential/drop"] * training, "Sequential/norm"]


def mark_of(model, call=None, **choice):
    """Return what the mark says that a call of a model sends."""
    with annotate.annotate_modules(model, **choice), annotate.listen(heard := Heard()):
        (call or model)(leaf())
    (mark,) = heard.marks
    return json.loads(mark.removeprefix(marks.MARK))


def named_in_mark(model, **choice):
    content = mark_of(model, **choice)
    return content["classes"], content["attributes"]


def test_mark_says_the_class_of_each_module():
    model = Model()
    assert mark_of(model, lambda x: model(x).sum().backward()) == {
        "version": marks.VERSION,
        "model": "Model",
        "modules": 11,
        "classes": {
            "layer *": "Block",
            "layer */norm": "LayerNorm",
            "layer */ffn": "Sequential",
            "layer */ffn/ffn 0": "Linear",
            "layer */ffn/ffn 1": "GELU",
            "lm": "Linear",
        },
        "attributes": {"layer *": "layers.*", "layer */ffn/ffn *": "*", "lm": "heads.lm"},
    }


class Twins(nn.Module):
    """Two dicts whose modules have ranges of one name, and a list of lists."""

    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.ModuleDict({"x": layer, "y": nn.GELU()}) for layer in (nn.GELU(), nn.ReLU()))
        self.stages = nn.ModuleList(nn.ModuleList(nn.Linear(4, 4) for _ in range(2)) for _ in range(2))

    def forward(self, x):
        return self.stages[0][1](x)


def test_mark_says_nothing_that_is_not_true_of_all_modules_of_one_path():
    classes, attributes = named_in_mark(Twins())
    assert classes == {"x": "", "y": "GELU", "0 *": "Linear", "1 *": "Linear"}
    assert attributes == {"x": "", "y": "", "0 *": "stages.0.*", "1 *": "stages.1.*"}


def test_mark_of_chosen_modules_is_of_the_ranges_that_they_open():
    assert named_in_mark(Model(), only="layers.*.ffn.0") == ({"ffn *": "Linear"}, {"ffn *": "layers.*.ffn.*"})
    assert named_in_mark(Model(), only="heads.lm") == ({"lm": "Linear"}, {"lm": "heads.lm"})


def test_each_listener_that_comes_hears_the_mark():
    model, first, second = Model(), Heard(), Heard()
    with annotate.annotate_modules(model):
        for heard in (first, second):
            with annotate.listen(heard):
                model(leaf())
    assert first.marks == second.marks != []


def test_a_choice_of_no_module_names_those_that_there_are():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.warns(UserWarning, match=r"only='zzz' chooses no module of Sequential; there are 0, 1"):
        annotate.annotate_modules(model, only="zzz").remove()


def test_models_of_one_class_are_numbered_and_keep_their_numbers():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def call_both():
        first(leaf())
        second(leaf())

    annotation = annotate.annotate_modules(first)
    with annotate.annotate_modules(second):
        assert heard_from(call_both) == ["Linear", "Linear#2"]
        annotation.remove()
        with annotate.annotate_modules(first), annotate.annotate_modules(second):
            assert heard_from(call_both) == ["Linear", "Linear#2"]
    with annotate.annotate_modules(second):
        assert heard_from(call_both) == ["Linear"]


def test_callers_name_is_that_of_range_and_mark_and_not_of_its_children():
    model = nn.Sequential(nn.ReLU())
    with annotate.annotate_modules(model, name="G"):
        assert heard_from(lambda: model(leaf())) == ["G", "G/Sequential 0"]
    assert mark_of(model, name="G")["model"] == "G"


def test_compiled_model_has_the_name_of_its_own_class():
    model = Model()
    with annotate.annotate_modules(torch.compile(model, backend="eager")) as annotation:
        assert (annotation.name, heard_from(lambda: model(leaf()))) == ("Model", FORWARD)


def test_compiled_layers_have_the_paths_depths_and_classes_of_their_own():
    model = nn.Sequential(OrderedDict(layers=nn.ModuleList([nn.Sequential(nn.Linear(4, 4))])))
    before = [(one.name, one.path, one.depth) for one in named_modules(model, None)]
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    assert [(one.name, one.path, one.depth) for one in named_modules(model, None)] == before
    assert mark_of(model, model.layers[0])["classes"] == {
        "layer *": "Sequential",
        "layer */Sequential *": "Linear",
    }


def test_child_whose_name_has_a_dot_is_annotated():
    model = nn.Sequential(nn.Linear(4, 4))
    model._modules["a.b"] = nn.Sequential(nn.ReLU())
    with annotate.annotate_modules(model):
        assert heard_from(lambda: model(leaf()))[-2:] == ["Sequential/a.b", "Sequential/a.b/a.b 0"]


def test_model_that_is_freed_while_it_is_annotated_leaves_nothing():
    plain, model = nn.Module.__call__, Model()
    with annotate.listen(Heard()):
        annotation = annotate.annotate_modules(model)
        step(model)
        reference = weakref.ref(model)
        del model
        gc.collect()
        assert reference() is None
        assert nn.Module.__call__ is plain
        annotation.remove()
        assert heard_from(lambda: step(Model())) == []


@pytest.mark.parametrize("phase", ["install", "remove"])
def test_ctrl_c_while_a_model_is_annotated_or_freed_of_it_leaves_none_of_it(phase):
    # In a process of its own: what is interrupted inside the interpreter's code may stay so for later tests.
    program = f"from {__name__} import interrupted_everywhere; interrupted_everywhere({phase!r})"
    forked.run("-c", program, check=True)


def interrupted_everywhere(phase):
    """A signal after so many lines of our code, however many there are."""
    interrupted_at, handlers = 1, [signal.getsignal(number) for number in ENDING_SIGNALS]
    while interrupted_at:
        model, lines = Model(), 0
        annotation = annotate.annotate_modules(model) if phase == "remove" else None

        def trace(_frame, event, _argument):
            nonlocal lines
            lines += event == "line"
            if lines > interrupted_at and event == "line":  # noqa: B023
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
            return trace

        sys.settrace(trace)
        try:
            annotation.remove() if annotation else annotate.annotate_modules(model)
            interrupted_at = 0
        except KeyboardInterrupt:
            interrupted_at += 17
        finally:
            sys.settrace(None)
        assert [signal.getsignal(number) for number in ENDING_SIGNALS] == handlers
        if interrupted_at or annotation:
            assert heard_from(lambda model=model: step(model)) == []


class Recursive(nn.Module):
    """Calls itself until nothing is left to do; `in_between` runs at the innermost call."""

    def __init__(self, in_between=lambda: None):
        super().__init__()
        self.linear, self.in_between = nn.Linear(4, 4), in_between

    def forward(self, x, times):
        if times:
            return self(x, times - 1)
        self.in_between()
        return self.linear(x)


def deepest(model):
    """Return how often a model can call itself in itself."""
    works, fails = 1, sys.getrecursionlimit()
    while fails - works > 1:
        times = (works + fails) // 2
        try:
            model(leaf(), times)
            works = times
        except RecursionError:
            fails = times
    return works


@pytest.mark.parametrize("is_annotated", [True, False])
def test_a_recursive_model_runs_as_deep_while_it_is_recorded(is_annotated):
    model, limit = Recursive(), sys.getrecursionlimit()
    found = []
    heard_from(lambda: found.append(deepest(model)))  # as deep in other calls as below
    with annotate.annotate_modules(model if is_annotated else nn.Linear(4, 4)):
        heard_from(lambda: found.append(deepest(model)))
    plain, recorded = found
    assert plain <= recorded <= plain + 20
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_the_program_sets_in_a_deep_call_stays():
    limit, model = sys.getrecursionlimit(), Recursive(lambda: sys.setrecursionlimit(5000))
    try:
        with annotate.annotate_modules(model):
            heard_from(lambda: model(leaf(), 100))
        assert sys.getrecursionlimit() == 5000
    finally:
        sys.setrecursionlimit(limit)
