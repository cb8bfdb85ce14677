"""What each part of a fused kernel writes: found at compilation, said in marks, and used by `--split-fused`."""

import io
import json
import os
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout

import pytest
import torch
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.readers.fused_writes import WRITES_MARK
from nvtx_kernels.profiling import annotate, recorder
from nvtx_kernels.profiling.annotate.compiled import restore, writes
from nvtx_kernels.profiling.annotate.compiled.names import Kernel
from torch import nn

from tests.profiling.making.recordings import REPOSITORY

LACKING = not hasattr(torch.fx.traceback, "annotate")
compiling = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(LACKING, reason="this PyTorch is older than 2.10: a compiled program is one piece"),
]
ROWS, WIDTH = 128, 64


class Block(nn.Module):
    """A norm and a projection, whose activation is added to the input."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()

    def forward(self, x):
        return x + self.act(self.up(self.norm(x)))


class Said:
    """Hears marks."""

    def __init__(self):
        self.rows = {}

    def push(self, name, payload):
        pass

    def pop(self):
        pass

    def mark(self, message):
        if message.startswith(WRITES_MARK):
            told = json.loads(message.removeprefix(WRITES_MARK))
            self.rows.setdefault(told["phase"], {}).update(told["rows"])


def graph():
    """Return a chain of nodes: an input, and four that each use the one before."""
    made = torch.fx.Graph()
    nodes = [made.placeholder("x")]
    for _ in range(4):
        nodes.append(made.call_function(torch.sin, (nodes[-1],)))
    return nodes


def test_a_buffer_is_of_the_part_whose_node_made_it_and_casts_behind_it_change_nothing():
    x, first, second, cast, view = graph()
    kernel = Kernel(("a + b",), {0: ("a",), 1: ("b",)})
    inside = [first, second, cast]
    assert writes.by_part(kernel, inside, [([first], 8), ([second], 4), ([cast], 2)]) == {("a",): 8, ("b",): 6}
    assert writes.by_part(kernel, inside, [([x, first, second], 4)]) == {("b",): 4}
    assert writes.by_part(kernel, inside, [([first], None)]) is None
    assert writes.by_part(kernel, inside, [([view], 8)]) is None


def test_rows_add_up_their_kernels_and_one_of_unknown_size_makes_a_row_unknown():
    rows, fusion = writes.Rows(), Kernel(("m", "a + b"), {0: ("m", "a"), 1: ("m", "b")})
    rows.add(Kernel(("m", "a"), {0: ("m", "a")}), {("m", "a"): 8})
    rows.add(fusion, {("m", "a"): 8})
    rows.add(fusion, {("m", "a"): 1, ("m", "b"): 2})
    assert list(rows.all()) == [(("m", "a + b"), ((("m", "a"), 9), (("m", "b"), 2)))]
    rows.add(fusion, None)
    assert list(rows.all()) == [(("m", "a + b"), None)]


def test_equal_layers_are_said_once_and_rows_across_layers_apart():
    def row(layer, size):
        at = (f"layer {layer}",)
        return (*at, "a + b"), (((*at, "a"), size), ((*at, "b"), 1))

    def across(layer):
        return (f"layer {layer} a + layer {layer + 1} b",), (
            ((f"layer {layer}", "a"), 1),
            ((f"layer {layer + 1}",), 1),
        )

    marks = writes.Marks([row(0, 4), row(1, 4), across(0)], "forward")
    (text,) = marks._texts
    assert json.loads(text.removeprefix(WRITES_MARK))["rows"] == {
        "layer * > a + b": [[["a"], 4], [["b"], 1]],
        "layer 0 a + layer 1 b": [[["layer 0", "a"], 1], [["layer 1"], 1]],
    }


def test_many_rows_are_bounded_and_told_in_several_marks():
    rows = [((f"{'x' * n} + b",), ((("x" * n,), 1), (("b",), 1))) for n in range(1, 1200)]
    texts = writes.Marks(rows, "backward")._texts
    assert [len(json.loads(text.removeprefix(WRITES_MARK))["rows"]) for text in texts] == [100] * 10


def step(call, x):
    with annotate.range("step"):
        with annotate.range("forward"):
            loss = call(x).sum()
        with annotate.range("backward"):
            loss.backward()


def ranges_of(path, *options):
    text = io.StringIO()
    with redirect_stdout(text):
        assert kernels.main([str(path), "--by", "range", "--format", "json", *options]) == 0
    return {(row["phase"], *row["path"]): row for row in json.loads(text.getvalue())["ranges"]}


class TestCompiled:
    """Real programs, compiled to C++."""

    pytestmark = compiling

    @pytest.fixture(autouse=True)
    def _fresh_compiler(self):
        torch.compiler.reset()
        torch.manual_seed(0)
        yield
        restore()

    def test_a_recording_of_a_compiled_program_is_split_by_what_its_kernels_write(self, tmp_path):
        model, x, path = nn.Sequential(Block(), Block()), torch.randn(ROWS, WIDTH), tmp_path / "report.sqlite"
        with (
            annotate.annotate_modules(model),
            torch._inductor.config.patch({"cpp.enable_kernel_profile": True}),
        ):
            call = torch.compile(model)
            step(call, x)
            with recorder.record(path, device="cpu", operators=True):
                step(call, x)
        before, after = ranges_of(path), ranges_of(path, "--split-fused")
        assert sum(row["self_ns"] for row in before.values()) == sum(row["self_ns"] for row in after.values())
        # The last sum is written, its activation is not: all of `act + self` is the block's own.
        block = ("forward", "step", "forward", "Sequential", "Sequential 1")
        fused = before[*block, "act + self"]["inclusive_ns"]
        assert fused > 0
        assert after[block]["estimated_self_ns"] == fused
        assert after[*block, "act + self"]["inclusive_ns"] == 0
        # A sum of ROWS × WIDTH floats, and a norm of as many with a few figures of each row.
        across = (
            "forward",
            "step",
            "forward",
            "Sequential",
            "Sequential 0 act + Sequential 0 + Sequential 1 norm",
        )
        of_norm = after[*block, "norm"]["estimated_self_ns"] / before[across]["inclusive_ns"]
        assert 0.5 < of_norm < (WIDTH + 6) / (2 * WIDTH + 6)

    def test_sizes_that_may_change_are_those_of_the_compilation(self):
        model, said = nn.Sequential(Block()), Said()
        with annotate.annotate_modules(model), annotate.listen(said):
            call = torch.compile(model, dynamic=True)
            call(torch.randn(ROWS, WIDTH)).sum().backward()
        assert said.rows["forward"]["Sequential > Sequential * > act + self"] == [
            [["act"], 0],
            [[], ROWS * WIDTH * 4],
        ]

    def test_a_second_process_says_the_same_from_the_cache(self, tmp_path):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        program = """
            import torch
            from torch._dynamo.utils import counters
            from nvtx_kernels.profiling import annotate
            from tests.profiling.annotate.test_annotate_fused_writes import Block, Said, nn
            model, said = nn.Sequential(Block()), Said()
            with annotate.annotate_modules(model), annotate.listen(said):
                torch.compile(model)(torch.ones(4, 64)).sum().backward()
            print(said.rows)
            print(counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
        """
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
        first, second = (
            subprocess.run(
                command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True
            ).stdout
            for _ in range(2)
        )
        assert "act + self" in first
        assert first.splitlines()[0] == second.splitlines()[0]
        assert second.splitlines()[1] == "1 0"
