"""Programs as strangers write them, with and without annotation: the same results, operators and errors."""

import gc
import importlib.util

import pytest
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack
from torch import nn

from tests.profiling.making import forked
from tests.profiling.making.hearing import Heard
from tests.profiling.making.strangers import PROGRAMS
from tests.profiling.making.strangers.harness import Operators, installed, left_alive, outcome, profiled
from tests.profiling.making.strangers.table import Model, x_of

pytestmark = pytest.mark.filterwarnings("ignore")


def case(program):
    missing = [name for name in program.needs if importlib.util.find_spec(name) is None]
    marks = [pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")]
    if program.slow:
        marks.append(pytest.mark.slow)
    return pytest.param(program, id=program.name, marks=marks)


each_program = pytest.mark.parametrize("program", [case(one) for one in PROGRAMS])


@pytest.fixture(scope="module", autouse=True)
def once():
    """Make what annotation makes once and keeps."""
    outcome(PROGRAMS[0], annotated=True)
    yield
    gc.unfreeze()


@each_program
def test_results_gradients_and_errors_are_the_same_bits(program):
    rehearse(program)
    expected = outcome(program, annotated=False)
    with left_alive() as left:
        before = installed()
        annotated = outcome(program, annotated=True)
    assert annotated.error == expected.error
    assert annotated.result == expected.result
    assert annotated.weights == expected.weights
    assert annotated.gradients == expected.gradients
    assert bool(annotated.ranges) != program.silent
    assert (annotated.left_open, left, installed()) == ([], {}, before)


@each_program
def test_operators_are_the_same(program):
    rehearse(program)
    called = [operators_of(program, annotated=annotated) for annotated in (False, True)]
    assert called[0] == called[1]


def rehearse(program):
    """Run a program before it counts: a library's first call may import others, which run operators themselves."""
    for _ in range(max(program.rehearsals, len(program.needs))):
        outcome(program, annotated=False)


def operators_of(program, *, annotated):
    with profiled() if program.threads or program.compiles else Operators() as operators:
        outcome(program, annotated=annotated)
    return operators.names


@pytest.mark.slow
def test_training_in_two_processes_is_the_same():
    done = forked.run("-m", "tests.profiling.making.strangers.two_processes", timeout=300)
    assert done.stdout.split("\n") == ["data_parallel same", "fully_sharded same", ""], done.stderr


def test_transformer_encoder_keeps_its_fast_path():
    (program,) = [one for one in PROGRAMS if one.name == "transformer_in_evaluation"]
    assert "aten._transformer_encoder_layer_fwd.default" in operators_of(program, annotated=True)


class Strange(dict):
    """A result that says how often it is looked into."""

    looked = 0

    def values(self):
        Strange.looked += 1
        raise RuntimeError

    __iter__ = items = keys = values


def test_results_are_looked_into_without_their_own_code():
    class Returns(nn.Module):
        def forward(self, x):
            return Strange(output=x * 2)

    model, heard = Returns(), Heard()
    with annotate.annotate_modules(model), annotate.listen(heard):
        dict.__getitem__(model(x_of()), "output").sum().backward()
    assert (heard.paths, Strange.looked) == (["Returns"] * 2, 0)


def hooks_on(node):
    handle = node.register_prehook(lambda _: None)
    count = len(handle.hooks_dict_ref()) - 1
    handle.remove()
    return count


def test_features_and_leaves_that_outlive_steps_collect_no_hooks():
    features, model = x_of() * 2, Model()
    leaves = [(weight * 1).grad_fn.next_functions[0][0] for weight in model.parameters()]
    with annotate.listen(Heard()), annotate.annotate_modules(model):
        for _ in range(200):
            model(features).sum().backward(retain_graph=True)
        assert set(map(hooks_on, [features.grad_fn, *leaves])) == {0}


@pytest.mark.parametrize("other", ["annotated", "no longer annotated"])
def test_backward_of_a_plain_model_gets_no_hooks_beside_an_annotated_one(other):
    plain, model, counts = Model(), Model(), []
    with annotate.listen(Heard()):
        annotation = annotate.annotate_modules(model)
        model(x_of()).sum().backward()
        if other == "no longer annotated":
            annotation.remove()
        loss = plain(x_of()).sum()
        loss.grad_fn.register_hook(lambda *_: counts.append(hooks_on(loss.grad_fn)))
        loss.backward()
        annotation.remove()
    assert counts == [0]


def test_graph_that_is_kept_opens_no_ranges_after_removal():
    model, heard = Model(), Heard()
    with annotate.listen(heard):
        with annotate.annotate_modules(model):
            loss = model(x_of()).sum()
        before = len(heard.paths)
        loss.backward()
    assert len(heard.paths) == before


@pytest.mark.parametrize("inside", ["a range", "nothing"])
def test_interrupts_leave_no_range_of_a_module_open(inside):
    model, heard = Model(), Heard()

    def interrupt(*_):
        raise KeyboardInterrupt

    with annotate.listen(heard), annotate.annotate_modules(model):
        handle = model.layers[1].ffn[1].register_forward_hook(interrupt)
        for _ in range(100):
            with pytest.raises(KeyboardInterrupt):
                model(x_of())
        handle.remove()
        assert heard.left_open() == []
        with annotate.range("running"):
            model(x_of())
            assert heard.left_open() == ["running"]
    assert range_stack.stack() == []
