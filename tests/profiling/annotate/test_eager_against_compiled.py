"""An eager and a compiled program compared by module: what is slower in the second one comes first."""

import io
import json
from contextlib import redirect_stdout

import pytest
import torch
from nvtx_kernels.analysis import compare
from nvtx_kernels.profiling import annotate, recorder
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
# Wide enough that what is planted outlasts whatever else keeps a processor from the program.
STEPS, WIDTH, SLOW = 3, 512, 75


class Mixer(nn.Module):
    """A projection, as often as wanted."""

    def __init__(self):
        super().__init__()
        self.weight, self.times = nn.Parameter(torch.eye(WIDTH)), 1

    def forward(self, x):
        for _ in range(self.times):
            x = x @ self.weight
        return x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mixer, self.down = nn.Linear(WIDTH, WIDTH), Mixer(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.sin(self.mixer(self.up(x))))


def recorded(path, *, compiled, slow):
    """Record training steps of four blocks; in block 2, the mixer works so many times."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    model[2].mixer.times = slow
    x = torch.randn(128, WIDTH)
    with annotate.annotate_modules(model):
        call = torch.compile(model) if compiled else model
        with annotate.range("warmup"), recorder.record(path.with_name("warmup.sqlite"), device="cpu"):
            call(x).sum().backward()
        with recorder.record(path, device="cpu", operators=True):
            for _ in range(STEPS):
                with annotate.range("step"):
                    with annotate.range("forward"):
                        loss = call(x).sum()
                    with annotate.range("backward"):
                        loss.backward()
    return path


def test_a_planted_slow_module_of_the_compiled_program_comes_first(tmp_path):
    eager = recorded(tmp_path / "eager.sqlite", compiled=False, slow=1)
    compiled = recorded(tmp_path / "compiled.sqlite", compiled=True, slow=SLOW)
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert compare.main([str(eager), str(compiled), "--by", "range", "--format", "json"]) == 0
    answer = json.loads(printed.getvalue())
    rows = answer["by"]["range"]
    slow = [["step", phase, "Sequential", "Sequential 2", "mixer"] for phase in ("backward", "forward")]
    assert sorted(row["path"] for row in rows[:2]) == slow
    total = sum(row["delta_ns"] for row in rows)
    assert total == pytest.approx(answer["total"]["delta_ns"], abs=1e-3)
