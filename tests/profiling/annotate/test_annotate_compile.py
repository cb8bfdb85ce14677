"""Annotation inside torch.compile: no graph break, no range, no change."""

import pytest
import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate

from tests.profiling.making.hearing import heard_from, leaf

pytestmark = pytest.mark.filterwarnings("ignore")


@annotate.region("decorated")
def decorated(x):
    with annotate.region("block", payload=1) as part:
        return part.output(torch.sin(x) * 2)


@annotate.range("range")
def in_a_range(x):
    with annotate.range("step", payload=2):
        annotate.mark("message")
        return decorated(x)


class Module(torch.nn.Module):
    """A module with annotated children."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return in_a_range(self.inner(x))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("listening", [True, False])
def test_annotated_functions_compile_as_one_graph(backend, listening):
    compiled, results = torch.compile(in_a_range, backend=backend, fullgraph=True), []

    def program():
        results.append(compiled(leaf()))
        results[0].sum().backward()

    if listening:
        assert heard_from(program) == ["range"]  # the compiled function's own: what is in its graph has none
    else:
        program()
    torch.testing.assert_close(results[0], in_a_range(leaf()))


def test_annotated_modules_compile_as_one_graph():
    model = Module()
    with annotate.annotate_modules(model):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        results = []
        heard = heard_from(lambda: results.append(compiled(leaf())))
    assert torch.equal(results[0], model(leaf()))
    assert set(heard) <= {"Module"}


def test_listening_later_does_not_compile_again():
    compiled = torch.compile(in_a_range, backend="eager", fullgraph=True)
    compiled(leaf())
    with torch.compiler.set_stance("fail_on_recompile"):
        assert heard_from(lambda: compiled(leaf())) == ["range"]


def test_ranges_around_a_compiled_call_work_as_around_any_other():
    compiled = torch.compile(torch.sin, backend="aot_eager")

    def program():
        with annotate.region("outside") as part:
            x = part.output(compiled(leaf()))
        x.sum().backward()

    assert heard_from(program) == ["outside", "outside"]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_model_compiles_as_one_graph_and_computes_the_same(attention):
    torch.manual_seed(0)
    model = TransformerLM(CONFIGS["tiny"], 16, attention=attention)
    ids_BT = torch.randint(256, (2, 16))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    assert heard_from(lambda: results.append(cross_entropy(compiled(ids_BT), ids_BT))) == ["loss"]
    torch.testing.assert_close(results[0], cross_entropy(model(ids_BT), ids_BT))
    results[0].backward()


def test_compiled_autograd_of_an_annotated_model_gives_its_gradients():
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    model = Module()
    model(torch.ones(2, 4)).sum().backward()
    wanted = model.inner.weight.grad.clone()
    model.zero_grad()
    with annotate.annotate_modules(model):

        def program():
            with compiled_autograd._enable(torch.compile(backend="eager")):
                model(torch.ones(2, 4)).sum().backward()

        assert "inner" in " ".join(heard_from(program))
    torch.testing.assert_close(model.inner.weight.grad, wanted)
