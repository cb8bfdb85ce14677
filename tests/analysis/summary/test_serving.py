"""What names of serving engines' steps count, in the forms of vLLM, SGLang, ATOM and TensorRT-LLM."""

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.vocabulary import is_step, phase_of
from nvtx_kernels.analysis.vocabulary.served import held

import nvtx_kernels as nk
from tests.analysis.making.building import Launch, Range, Work, build

VLLM_SUMS = "sq6144sk7144sqsq20971520sqsk23019520"
# A name, requests and tokens of prompts, requests that generate and their tokens, and the phase.
NAMES = {
    "execute_context_2(14721)_generation_0(0)": (2, 14721, 0, 0, "prefill"),
    "execute_context_0(0)_generation_32(128)": (0, 0, 32, 128, "decode"),
    f"execute_6147_context_2({VLLM_SUMS})_generation_3(sq3sk6144sqsq3sqsk6144)": (2, 6144, 3, 3, "forward"),
    "step[EXTEND bs=2 toks=14721 c_sqsq=108745533 c_sqsk=108745533 c_sk=14721]": (2, 14721, 0, 0, "prefill"),
    "step[DECODE bs=64]": (0, 0, 64, 64, "decode"),
    "step[DECODE bs=64 g_sqsq=64 g_sqsk=131072 g_sk=131072]": (0, 0, 64, 64, "decode"),
    "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]": (0, 0, 64, 128, "decode"),
    "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]": (
        1, 5, 1, 1, "forward",
    ),
    "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3 sqsq=59768832 sqsk=59768832 sk=17408 tbo=1]": (
        6, 17408, 0, 0, "prefill",
    ),
    "decode[bs=117/128 tok=117 d=117]": (0, 0, 117, 117, "decode"),
    "decode[bs=32 tok=128 d=32 spec=3]": (0, 0, 32, 128, "decode"),
    "decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048 tbo=1]": (2, None, 126, None, "forward"),
    "[Executor] _forward_step 12: 2 ctx reqs, 0 gen reqs": (2, None, 0, 0, "prefill"),
    "[Executor] _forward_step 12: 1 ctx reqs, 63 gen reqs": (1, None, 63, None, "forward"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_counts_what_it_says_and_has_its_phase(name):
    assert (*held(name), phase_of(name)) == NAMES[name]
    assert is_step(name) or name.startswith("[Executor]")


@pytest.mark.parametrize("name", ["step", "step[MIXED bs=2]", "execute_model", "prefill[0]", "decode[bs=64]"])
def test_a_name_that_counts_neither_says_nothing(name):
    assert held(name) is None


def served(folder, *names):
    """Write steps of 1 ms, each with a kernel of 400 µs."""
    rows = {"ranges": [], "launches": [], "work": []}
    for number, name in enumerate(names):
        at = number * 1_000_000
        rows["ranges"].append(Range(name, at, at + 500_000))
        rows["launches"].append(Launch(number + 1, at + 10, at + 20))
        rows["work"].append(Work(number + 1, at + 1000, at + 401_000))
    return build(folder, **rows)


BOTH = "execute_context_2(6144)_generation_3(3)"


def test_steps_are_listed_with_their_tokens_and_their_sum(tmp_path):
    path = served(tmp_path, "execute_context_2(14721)_generation_0(0)", BOTH, "step[DECODE bs=64]")
    steps = nk.steps(path)["steps"].query("level == 'step'")
    assert steps["prefill_tokens"].tolist() == [14721, 6144, 0]
    assert steps["decode_tokens"].tolist() == [0, 3, 64]
    assert steps["tokens_per_s"].tolist() == [36_802_500, 15_367_500, 160_000]


def test_a_step_of_unsaid_tokens_has_no_rate(tmp_path):
    path = served(tmp_path, "decode[bs=128 tok=384 p=2 d=126]", "step[DECODE bs=64]")
    steps = nk.steps(path)["steps"].query("level == 'step'")
    assert steps["tokens_per_s"].isna().tolist() == [True, False]


def test_steps_of_both_are_one_sentence_whose_time_is_not_divided(tmp_path):
    notes = summarize(attribute(read(served(tmp_path, BOTH, BOTH)))).notes
    (said,) = [note for note in notes if note.startswith("Prefill and decode in one")]
    assert "2 steps for 12,288 tokens of 4 prompts and 6 tokens of 6 generating requests" in said
    assert "800.00 µs of kernel time together, 15,367,500 tokens a second of GPU span" in said
