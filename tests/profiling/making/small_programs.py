"""Small programs that do to their process what programs do, each as its text; most of them train.

`small_programs.txt` has them after lines `## what it does`, each for the definition of `train` before it.
"""

import re
from pathlib import Path

from tests.profiling.making.strangers import PROGRAMS

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def train(steps=40):
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item().hex())
"""
STRANGER = """
import random, torch
from tests.profiling.making.strangers import PROGRAMS
from tests.profiling.making.strangers.harness import bits
torch.manual_seed(0)
random.seed(0)
(program,) = [one for one in PROGRAMS if one.name == {name!r}]
print(bits(program.run(lambda model: model)))
"""

_, *_parts = re.split(r"^## (.*)\n", Path(__file__).with_suffix(".txt").read_text(), flags=re.MULTILINE)
#: By what they do.
SMALL = {f"it {name}": TRAIN + text for name, text in zip(_parts[::2], _parts[1::2], strict=True)}
SMALL |= {"it is an error of syntax": "def f(:", "it is no text": f"{TRAIN}x = '\ud800'"}
SMALL |= {one.name: STRANGER.format(name=one.name) for one in PROGRAMS if not one.needs and not one.slow}
