"""Which suggestion each lever carries out, and which no lever does."""

import pytest
from nvtx_kernels.profiling.trying.judging import Arm
from nvtx_kernels.profiling.trying.levers import BY_NAME
from nvtx_kernels.profiling.trying.predicting import Suggestion, join

GRAPHS = 'launched one by one: torch.compile(mode="reduce-overhead"), CUDA graphs'
DECIDE = "launched one by one: 96 reads inside stop CUDA graphs: decide on the GPU first"


def joined(*suggestions):
    arms = [Arm(name, BY_NAME[name]) for name in ("tf32", "compile", "graphs", "fused")]
    left = join(arms, {rule: Suggestion(rule, sentence, 1e6, 2e6) for rule, sentence in suggestions})
    return {arm.name for arm in arms if arm.predicted_ns}, [suggestion.rule for suggestion in left]


@pytest.mark.parametrize(
    ("suggestions", "predicted", "left"),
    [
        ([("fp32", "TF32")], {"tf32"}, []),
        ([("launching", GRAPHS)], {"compile", "graphs"}, []),
        ([("launching", DECIDE)], set(), ["launching"]),
        ([("launching", DECIDE), ("compile", "torch.compile(model)")], {"compile"}, ["launching"]),
        ([("attention", "scaled_dot_product_attention")], set(), []),  # by a lever that is not tried
        ([("to_cpu", "compute on the GPU"), ("optimizer", "fused=True")], {"fused"}, ["to_cpu"]),
    ],
)
def test_a_lever_has_the_figure_of_the_suggestion_that_it_carries_out(suggestions, predicted, left):
    assert joined(*suggestions) == (predicted, left)
