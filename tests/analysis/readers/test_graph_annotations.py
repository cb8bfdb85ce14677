"""CUDA graphs that PyTorch annotated: what export_chrome_trace writes of them, or a side file."""

import gzip
import json
from dataclasses import replace

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.graph_annotations import module_path

from tests.analysis.making.kineto import Block, Call, Program, Work, write_kineto
from tests.analysis.making.traces import summary

GRAPH = 3 << 32
NODES = {
    "embed": {},
    "attention": {"module_fqn": "layers.0.attention"},
    "ffn": {"module_fqn": "layers.0.ffn.w1"},
    "ncclDevKernel": {"module_fqn": "layers.0.ffn", "name": "all_reduce", "Collective name": "allreduce"},
    "loss": {"name": "loss"},
}
PATHS = {
    "embed": ("replay",),
    "attention": ("replay", "layers.0", "attention"),
    "ffn": ("replay", "layers.0", "ffn", "w1"),
    "ncclDevKernel": ("replay", "layers.0", "ffn", "all_reduce"),
    "loss": ("replay", "loss"),
}


def replays(annotated=True, lanes=False, low_bits=False):
    """Return two replays of one graph of five kernels; annotations are texts, as PyTorch writes them."""
    work = []
    for replay in range(2):
        for node, (name, annotation) in enumerate(NODES.items(), 1):
            at = 1000 * replay + 100 * node
            said = {"graph node id": node if low_bits else GRAPH + node, **(annotation if annotated else {})}
            said |= {"graph id": 3} if low_bits else {}
            said |= {"original_stream": "13"} if lanes else {}
            size = {"In msg nelems": "256", "Out msg nelems": "256", "dtype": "Float", "Group size": "2"}
            said |= size if "Collective name" in said else {}
            work.append(Work(7 + replay, at, at + 50 + node, name, stream=7, said=tuple(said.items())))
    calls = [Call(7, 20, 30, name="cudaGraphLaunch"), Call(8, 1020, 1030, name="cudaGraphLaunch")]
    return Program([Block("replay", 10, 40), Block("replay", 1010, 1040)], calls, work)


def paths_of(path):
    """Return each kernel's path of ranges, by its name, and how long it ran in there."""
    report = summary(path)
    totals = report.totals
    parts = (totals.own_ns, totals.captured_ns, totals.outside_ns, totals.linked_ns, totals.adopted_ns)
    assert sum(parts) == totals.work_ns == sum(2 * (50 + node) for node in range(1, 6))
    return {row.kernel: row.path for row in report.kernels}


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("execute_context_0(0)_generation_8(8)", ["--capture FOLDER", "VLLM_USE_V2_MODEL_RUNNER=0"]),
        ("replay", ["let PyTorch 2.15 annotate"]),
    ],
)
def test_note_on_replays_names_what_would_tell_their_modules(tmp_path, step, says):
    program = replace(replays(annotated=False), blocks=[Block(step, 10, 40), Block(step, 1010, 1040)])
    (note,) = (
        note for note in summary(write_kineto(tmp_path / "t.json", program)).notes if "in CUDA graphs" in note
    )
    assert all(text in note for text in says)
    assert "nsys" not in note


STACK = "blocks.py:7:attend\nblocks.py:20:forward\ntrain.py:3:<module>"
FUNCTIONS = ("train.py(3): <module>", "blocks.py(20): forward", "blocks.py(7): attend")


@pytest.mark.parametrize("low_bits", [False, True], ids=["whole ids", "graph and node apart"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_stacks_of_the_capture_name_the_functions_of_a_replays_kernels(tmp_path, capsys, low_bits, pack):
    path = write_kineto(tmp_path / "t.json", replays(annotated=False, low_bits=low_bits))
    stacks = tmp_path / "stacks.json.gz"
    stacks.write_bytes(pack(json.dumps({str(GRAPH + 2): STACK, str(GRAPH + 3): "loss.py:1:loss"}).encode()))
    assert kernels.main([str(path), "--capture", str(stacks), "--format", "json"]) == 0
    found = {row["kernel"]: tuple(row["path"]) for row in json.loads(capsys.readouterr().out)["kernels"]}
    assert found["attention"] == ("replay", *FUNCTIONS)
    assert (found["ffn"], found["embed"]) == (("replay", "loss.py(1): loss"), ("replay",))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"77": STACK}, "No kernel of the trace is of a graph's node with a stack"),
        ({"77": STACK, "78": [1]}, "is not a file of graphs' stacks"),
    ],
)
def test_stacks_of_another_run_and_other_files_are_refused(tmp_path, capsys, content, says):
    path = write_kineto(tmp_path / "t.json", replays(annotated=False))
    (tmp_path / "stacks.json").write_text(json.dumps(content))
    assert kernels.main([str(path), "--capture", str(tmp_path / "stacks.json")]) > 0
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("lanes", [False, True])
def test_a_replays_kernels_are_below_it_by_module(tmp_path, lanes):
    path = write_kineto(tmp_path / "t.pt.trace.json", replays(lanes=lanes), cudaGraphInlineAnnotated=True)
    assert paths_of(path) == PATHS
    assert set(read(path).work.stream_id.tolist()) == ({13} if lanes else {7})


def test_collectives_of_annotations_have_their_sizes(tmp_path):
    messages = read(write_kineto(tmp_path / "t.pt.trace.json", replays())).messages
    assert (messages.sent_bytes.tolist(), messages.ranks.tolist()) == ([1024, 1024], [2, 2])


@pytest.mark.parametrize("low_bits", [False, True])
def test_a_side_file_says_the_same_by_node(tmp_path, low_bits):
    side = {str(GRAPH + node): [said] for node, said in enumerate(NODES.values(), 1) if said}
    (tmp_path / "kernel_annotations_rank0_3.json").write_text(json.dumps(side))
    (tmp_path / "traces").mkdir()
    assert (
        paths_of(write_kineto(tmp_path / "traces" / "t.pt.trace.json", replays(False, low_bits=low_bits))) == PATHS
    )


@pytest.mark.parametrize("content", ["[1]", '{"1": 5}', '{"1": [{"name": 3}]}', "{", "\udcff"])
def test_a_side_file_that_is_none_is_refused_with_its_name(tmp_path, content):
    (tmp_path / "kernel_annotations_rank0_3.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    (tmp_path / "traces").mkdir()
    path = write_kineto(tmp_path / "traces" / "t.pt.trace.json", replays(annotated=False))
    with pytest.raises(
        NotAReport, match=r"kernel_annotations_rank0_3\.json is not a file of graph annotations: .+"
    ):
        read(path)


def test_without_annotations_a_replay_is_one_piece(tmp_path):
    path = write_kineto(tmp_path / "t.pt.trace.json", replays(annotated=False))
    assert set(paths_of(path).values()) == {("replay",)}
    assert read(path).captures is None


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("layers.0.attention.wq", None, ("layers.0", "attention", "wq")),
        ("layers.0.1", None, ("layers.0.1",)),
        ("norm", "norm", ("norm",)),
        ("norm", "add", ("norm", "add")),
        (None, "phase A", ("phase A",)),
        ("", "", ()),
        (7, ["x"], ()),
        ("a." * 5000, None, ("a",) * 64),
    ],
)
def test_modules_are_nested_and_keep_their_indices(module, name, expected):
    assert module_path(module, name) == expected


@pytest.mark.parametrize(
    ("phase", "expected"), [("backward", ("backward", "mlp")), ("other", ("mlp",)), (None, ("mlp",))]
)
def test_a_nodes_phase_is_around_its_module(phase, expected):
    assert module_path("mlp", None, phase) == expected


def test_replayed_kernels_have_the_phase_of_their_annotation(tmp_path):
    program = replays()
    work = [
        replace(one, said=(*one.said, ("autograd_phase", "backward")))
        for one in program.work
        if "module_fqn" in dict(one.said)
    ]
    path = write_kineto(tmp_path / "t.pt.trace.json", replace(program, work=work), cudaGraphInlineAnnotated=True)
    assert {row.phase for row in summary(path).kernels} == {"backward"}
