"""Each lever in a program that has something to change, and in one that has not: counts and losses."""

import re
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling.trying.judging import compared
from nvtx_kernels.profiling.trying.levers import BY_NAME, LEVERS
from nvtx_kernels.profiling.trying.results import Job

from tests.profiling.making.tried import ran

TRAINING = """
import gc, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        {forward}
model = Block(){model}
optimizer = torch.optim.{optimizer}
data = torch.utils.data.TensorDataset(torch.randn(400, 8){model})
{before}
for (x,) in torch.utils.data.DataLoader(data, batch_size=4{loader}):
    loss = (model(x) - x).square().mean()
    loss.backward()
    {before_update}
    optimizer.step()
    {zero_grad}
"""
USUAL = {
    "forward": "return self.b(self.a(x).tanh())",
    "model": "",
    "optimizer": "AdamW(model.parameters(), fused=True)",
    "before": "",
    "loader": ", num_workers=1",
    "before_update": "",
    "zero_grad": "optimizer.zero_grad()",
}
#: What makes the usual program one that a lever changes, and how often the lever then changes something.
CHANGED = {
    "workers": ({"loader": ""}, 1),
    "fused": ({"optimizer": "AdamW(model.parameters())"}, 26),
    "foreach": ({"optimizer": "RMSprop(model.parameters(), foreach=False)"}, 26),
    "anomaly": ({"before": "torch.autograd.set_detect_anomaly(True)"}, 1),
    "collect": ({"before_update": "gc.collect(0)"}, 26),
    "zero_grad": ({"zero_grad": "model.zero_grad(set_to_none=False)"}, 25),
    "checkpoint": ({"forward": "return self.b(checkpoint(self.a, x, use_reentrant=False).tanh())"}, 26),
    "deterministic": ({"before": "torch.use_deterministic_algorithms(True)"}, 1),
    "clip_foreach": ({"before_update": "nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)"}, 26),
    "float32": ({"model": ".double()"}, 27),
    "bf16": ({}, 26),
    "no_gc": ({}, 1),
}


def training(changes=()):
    return TRAINING.format(**{**USUAL, **dict(changes)})


@pytest.mark.parametrize("name", CHANGED)
def test_a_lever_counts_what_it_changes_and_keeps_the_losses(name, tmp_path):
    changes, times = CHANGED[name]
    base = ran(tmp_path, training(changes)).ending
    ending = ran(tmp_path, training(changes), on=[name], is_named=True).ending
    facts = ending.levers[name]
    assert (base.error, ending.error, facts.trouble) == ("", "", "")
    extra = {"workers": 4}.get(name, 0)  # batches that workers had ready are warm-up
    assert (facts.did, ending.steps) == (times, 26 + extra)
    assert compared([base], ending, BY_NAME[name].numbers).is_fine


OF_IMAGES = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
    def forward(self, x):
        formats.add((x.is_contiguous(memory_format=torch.channels_last), self.a.weight.stride()[1]))
        return self.b(self.a(x).tanh())
formats = set()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for i in range(100):
    x = torch.rand(4, 4, 5, 5)
    (model(x) - x).square().mean().backward()
    assert len(formats) == 1
    optimizer.step()
    optimizer.zero_grad()
"""


CHANGED_LAYOUT = OF_IMAGES.replace("len(formats) == 1", "formats == {(True, 1)}")


def test_images_and_their_convolutions_get_another_layout(tmp_path):
    base = ran(tmp_path, OF_IMAGES).ending
    changed = ran(tmp_path, CHANGED_LAYOUT, on=["channels_last"], is_named=True).ending
    facts = changed.levers["channels_last"]
    assert (facts.did, facts.trouble) == (27, "")
    assert compared([base], changed, BY_NAME["channels_last"].numbers).is_fine
    lazy = OF_IMAGES.replace("nn.Conv2d(4, 4, 3", "nn.LazyConv2d(4, 3").replace(
        "nn.Conv2d(4, 4, 1)", "nn.Identity()"
    )
    for text in (training(), lazy.replace("self.a.weight.stride()[1]", "0")):
        ending = ran(tmp_path, text, watched=["channels_last"]).ending
        assert (ending.error, ending.levers["channels_last"].saw) == ("", 0)


OF_GPU = [lever.name for lever in LEVERS if lever.only_on_gpu]
OTHERS = [name for name in BY_NAME if name not in (*OF_GPU, "compile", "no_gc")]


def test_levers_that_are_not_on_only_count(tmp_path):
    changes = {**CHANGED["anomaly"][0], **CHANGED["collect"][0], **CHANGED["workers"][0]}
    plain, watched = (ran(tmp_path, training(changes), watched=names).ending for names in ([], OTHERS))
    counts = {name: (facts.saw > 0, facts.did) for name, facts in watched.levers.items()}
    assert counts == {name: (name in ("anomaly", "collect", "workers"), 0) for name in OTHERS}
    assert (plain.losses, plain.weights) == (watched.losses, watched.weights)


def test_a_program_without_mistakes_has_nothing_to_change(tmp_path):
    levers = ran(tmp_path, training(), watched=[*OTHERS, *OF_GPU]).ending.levers
    assert {name for name, facts in levers.items() if facts.saw} == set()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fused", "optimizer ="),
        ("workers", "DataLoader("),
        ("collect", "gc.collect(0)"),
        ("anomaly", "set_detect"),
    ],
)
def test_the_programs_line_is_known(name, line, tmp_path):
    text = training(CHANGED[name][0])
    place = ran(tmp_path, text, watched=[name]).ending.levers[name].place
    number = 1 + next(row for row, words in enumerate(text.splitlines()) if line in words)
    assert place == f"train.py:{number}"


SWITCHED = ["fused", "anomaly", "collect", "zero_grad", "checkpoint", "deterministic", "clip_foreach", "bf16"]


@pytest.mark.parametrize("name", SWITCHED)
def test_a_lever_goes_on_and_off_between_steps(name, tmp_path):
    """The program ends as it would have without, for those that only round."""
    text = training(CHANGED[name][0]).replace("randn(400", "randn(4000")
    text = text.replace("gc.collect(0)", "gc.collect()")  # enough of a step to be tried
    screen = Job("screen", [], watched=[name], plan=[name] * 3, seconds=30.0, is_named=True)
    screened = ran(tmp_path, text, screen)
    assert [block.arm for block in screened.blocks] == ["", name, "", name, "", name, ""]
    ending = screened.ending
    assert (ending.error, ending.raised, ending.levers[name].did >= 3) == ("", {}, True)
    base = ran(tmp_path, text, steps=ending.steps - 6).ending
    assert compared([base], ending, BY_NAME[name].numbers).is_fine


LOADS = """
state = optimizer.state_dict()
def hook(*_):
    optimizer.load_state_dict(state)
model.register_forward_pre_hook(hook)
"""


def test_a_flag_that_the_program_puts_back_is_told(tmp_path):
    text = training({"optimizer": "SGD(model.parameters(), 0.1)", "before": LOADS})
    facts = ran(tmp_path, text, on=["fused"]).ending.levers["fused"]
    assert (facts.did, "sets it back" in facts.trouble) == (1, True)


@pytest.mark.slow
def test_a_compiled_model_makes_graphs_and_goes_back(tmp_path):
    text = training().replace("randn(400", "randn(4000")
    screen = Job("screen", [], watched=["compile"], plan=["compile"] * 2, seconds=100.0)
    screened = ran(tmp_path, text, screen)
    facts = screened.ending.levers["compile"]
    assert (screened.ending.error, facts.trouble, facts.did > 8) == ("", "", True)
    assert sum(screened.blocks[1].settling_s) > 5 * sum(screened.blocks[3].settling_s)


@pytest.mark.slow
def test_a_model_that_makes_no_graph_was_not_compiled(tmp_path):
    text = training({"forward": "return x * self.a.weight.sum()"}).replace("Block()", "nn.Linear(8, 8)")
    facts = ran(tmp_path, text, on=["compile"]).ending.levers["compile"]
    assert (facts.did, facts.trouble) == (0, "the compiler made no graph")


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_docs_list_each_lever(lever):
    page = Path(__file__).parents[3].joinpath("docs", "try.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{lever.name}`"))
    rules = ", ".join(f"`{rule}`" for rule in lever.rules) or "–"
    how = "switched" if lever.can_switch else "a process"
    assert [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] == [
        f"`{lever.name}`",
        lever.change,
        rules,
        how,
        lever.numbers.text,
        lever.danger,
    ]


ON_GPU = {
    "tf32": {},
    "pinned": {},
    "read_late": {"before_update": "loss.item()"},
    "empty_cache": {"before_update": "torch.cuda.empty_cache()"},
    "synchronize": {"before_update": "torch.cuda.synchronize()"},
    "bf16": {},
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_levers_of_a_gpu_count_what_they_change_there(name, tmp_path):
    on_gpu = {"model": ".cuda()"} if name != "pinned" else {"model": ""}
    text = training({"loader": "", **on_gpu, **ON_GPU[name]})
    text = text.replace("loss = (model(x) - x)", "x = x.to('cuda'); model.cuda(); loss = (model(x) - x)")
    base, ending = (ran(tmp_path, text, on=names).ending for names in ([], [name]))
    assert (base.error, ending.error, ending.levers[name].did > 0) == ("", "", True)
    assert compared([base], ending, BY_NAME[name].numbers).is_fine
    assert torch.cuda.is_available()
