import pytest
import torch
from nvtx_kernels.model.config import CONFIGS, SIZES_OF_YEAR, ModelConfig, changed, config_of, name_of, size_in
from nvtx_kernels.model.transformer import TransformerLM

# Parameters, their tensors, and the width of a head: of table 1 of the assignment, with the vocabulary of 10,000.
SIZES = [
    ("tiny", 115_008, 21, 32),
    ("small", 128_625_408, 111, 64),
    ("medium", 423_183_360, 219, 64),
    ("large", 969_411_840, 327, 64),
    ("xl", 1_998_235_200, 435, 64),
    ("2.7B", 3_406_809_600, 291, 80),
    ("10B", 12_832_823_808, 453, 128),
]


@pytest.mark.parametrize(("size", "count", "tensors", "d_head"), SIZES)
def test_model_is_that_of_the_table(size, count, tensors, d_head):
    config = CONFIGS[size]
    with torch.device("meta"):
        parameters = list(TransformerLM(config, context_length=128).parameters())
    assert sum(parameter.numel() for parameter in parameters) == config.parameters == count
    assert len(parameters) == 9 * config.layers + 3 == tensors
    assert (config.d_head, config.d_head * config.heads) == (d_head, config.d_model)


XL_OF_YEAR = {None: 1_998_235_200, "2024": 1_998_235_200, "2025": 1_998_235_200, "2026": 3_406_809_600}


@pytest.mark.parametrize(("year", "count"), XL_OF_YEAR.items())
def test_xl_is_that_of_the_years_handout(year, count):
    assert CONFIGS[size_in(year, "xl")].parameters == count
    assert all(size_in(year, size) == size for size in CONFIGS if size != "xl")


def test_every_year_names_sizes_that_there_are():
    assert {size for names in SIZES_OF_YEAR.values() for pair in names.items() for size in pair} <= CONFIGS.keys()


def test_changed_dimensions_make_another_model_with_a_name_of_its_own():
    asked = {"size": "small", "layers": 4, "heads": 12, "d_ff": None, "vocab_size": 500, "mode": "train"}
    assert changed(asked) == {"layers": 4, "vocab_size": 500}
    assert config_of(asked) == ModelConfig(d_model=768, d_ff=3_072, layers=4, heads=12, vocabulary=500)
    assert name_of(asked) == "small, layers 4, vocab_size 500"
    assert (config_of({"size": "small"}), name_of({"size": "small"})) == (CONFIGS["small"], "small")


IMPOSSIBLE = [
    ({"heads": 10}, "^d_model 64 is not a multiple of 10 heads: change one$"),
    ({"d_model": 50}, "^a head's width is even, .* d_model 50 / 2 heads = 25 is odd: change the heads$"),
]


@pytest.mark.parametrize(("dimensions", "sentence"), IMPOSSIBLE)
def test_impossible_model_is_refused_in_a_sentence(dimensions, sentence):
    with pytest.raises(ValueError, match=sentence):
        config_of({"size": "tiny", **dimensions})
