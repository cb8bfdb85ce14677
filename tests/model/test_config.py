import pytest
import torch

from model.config import CONFIGS
from model.transformer import TransformerLM

# Table 1 of the assignment, with the vocabulary of 10,000.
PARAMETERS = {
    "small": 128_625_408,
    "medium": 423_183_360,
    "large": 969_411_840,
    "xl": 1_998_235_200,
    "2.7B": 3_406_809_600,
    "10B": 12_832_823_808,
}
TENSORS = {"small": 111, "medium": 219, "large": 327, "xl": 435, "2.7B": 291, "10B": 453}
D_HEAD = {"small": 64, "medium": 64, "large": 64, "xl": 64, "2.7B": 80, "10B": 128}


def parameters_on_meta(size):
    with torch.device("meta"):
        return list(TransformerLM(CONFIGS[size], context_length=128).parameters())


@pytest.mark.parametrize(("size", "count"), PARAMETERS.items())
def test_model_has_exactly_the_parameters_of_the_table(size, count):
    assert sum(parameter.numel() for parameter in parameters_on_meta(size)) == count
    assert CONFIGS[size].parameters == count


@pytest.mark.parametrize(("size", "count"), TENSORS.items())
def test_model_has_nine_parameter_tensors_per_layer_and_three(size, count):
    assert len(parameters_on_meta(size)) == 9 * CONFIGS[size].layers + 3 == count


@pytest.mark.parametrize(("size", "width"), D_HEAD.items())
def test_heads_divide_the_model_evenly(size, width):
    config = CONFIGS[size]
    assert config.d_head == width
    assert config.d_head * config.heads == config.d_model


def test_tiny_is_built_from_its_own_parameter_count():
    assert sum(parameter.numel() for parameter in parameters_on_meta("tiny")) == CONFIGS["tiny"].parameters
